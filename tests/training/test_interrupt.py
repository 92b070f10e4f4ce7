"""Ctrl-C, locks and outputs of a running training."""

import json
import signal
import time

import pytest

from leeward.training.run_dir import RunDir

from .conftest import finish, leeward, settings


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run stopped by Ctrl-C after some updates, while another process wanted it too."""
    run = RunDir(tmp_path_factory.mktemp("runs") / "stopped")
    process = leeward(
        "train", "--data", "sample:synthetic", "--run-dir", str(run.path), "--json", *settings("ppo.total_steps=160000")
    )
    first = process.stdout.readline()
    rival = finish(leeward("train", "--resume", str(run.path)))
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    return run, code, first + out, err, rival


def test_ctrl_c_saves_and_ends_with_130(interrupted):
    run, code, _, err, _ = interrupted
    assert code == 130
    assert err.splitlines()[-1] == f"Stopped after a whole update. Continue with: leeward train --resume {run.path}"
    assert "Traceback" not in err
    steps = [int(line.split(",")[0]) for line in _column(run, "time/total_timesteps")]
    assert int(run.checkpoint_list()[-1].name) * 160 == steps[-1], "the last update is in the checkpoint"
    assert steps[-1] < 160000


def _column(run, name):
    header, *lines = run.progress_file.read_text().splitlines()
    place = header.split(",").index(name)
    return [line.split(",")[place].removesuffix(".0") for line in lines]


def test_a_stopped_run_goes_on_where_it_stopped(interrupted):
    run, *_ = interrupted
    before = _column(run, "time/total_timesteps")
    process = leeward("train", "--resume", str(run.path), "--json")
    first = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    code, _, _ = finish(process)
    assert code == 130
    assert first["time/total_timesteps"] == int(before[-1]) + 160
    assert _column(run, "time/total_timesteps")[: len(before)] == before


def test_two_processes_on_one_run_are_refused(interrupted):
    run, *_, rival = interrupted
    code, out, err = rival
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {run.path}: process ") and err.endswith(
        "is using this run; wait for it, or choose another directory\n"
    )


def test_json_mode_prints_valid_json_lines_only(interrupted):
    _, _, out, _, _ = interrupted
    lines = [json.loads(line) for line in out.splitlines()]
    assert len(lines) >= 1
    assert all({"trade/sharpe", "train/value_loss", "time/total_timesteps"} <= line.keys() for line in lines)
    assert "NaN" not in out and "Infinity" not in out


def test_ctrl_c_before_the_first_update_leaves_no_traceback(tmp_path):
    run = RunDir(tmp_path / "early")
    process = leeward("train", "--data", "sample:synthetic", "--run-dir", str(run.path), *settings())
    while not run.config_file.exists():
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code == 130
    assert "Traceback" not in err
