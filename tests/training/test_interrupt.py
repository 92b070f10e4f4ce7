"""Ctrl-C, locks and outputs of a running training."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from leeward.config.load import load_config
from leeward.market import prepare
from leeward.training.run_dir import RunDir
from leeward.training.trainer import EndedAtOnce, Interrupted, train

from ..support.tiny_runs import TINY, finish, first_line, leeward, leeward_here, settings


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run stopped by Ctrl-C after some updates, while another process wanted it too."""
    run = RunDir(tmp_path_factory.mktemp("runs") / "stopped")
    process = leeward(
        "train", "--data", "sample:synthetic", "--run-dir", str(run.path), "--json", *settings("ppo.total_steps=160000")
    )
    first = first_line(process)
    rival = leeward_here("train", "--resume", str(run.path))
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
    first = json.loads(first_line(process))
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert code == 128 + signal.SIGTERM
    assert err.splitlines()[-1].startswith("Stopped after a whole update.")
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_after_the_update_and_a_second_one_ends_at_once_without_damage(number, tmp_path):
    config = load_config(None, [*TINY, "data.source=sample:synthetic", "checkpoint.every_updates=3"])
    run, market = RunDir.create(tmp_path / "run", config), prepare(config.data)
    before = signal.getsignal(number)

    def once(progress):
        if progress.steps == 160:
            signal.raise_signal(number)

    with pytest.raises(Interrupted) as end:
        train(run, market, once, resume=False)
    assert end.value.number == number
    assert [place.name for place in run.checkpoint_list()] == ["00000001"], "saved, though it was not its turn"

    def twice(progress):
        if progress.steps == 640:
            signal.raise_signal(number)
            signal.raise_signal(number)

    with pytest.raises(EndedAtOnce) as at_once:
        train(run, market, twice, resume=True)
    assert at_once.value.number == number
    assert [place.name for place in run.checkpoint_list()] == ["00000001", "00000003"]
    train(run, market, lambda progress: None, resume=True)
    assert run.checkpoint_list()[-1].name == "00000012"
    assert signal.getsignal(number) is before


HANGING = """
import time
import gymnasium
import numpy as np
from leeward import DistributionalPPO

class Hanging(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)
    def __init__(self, hangs):
        self.hangs = hangs
    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}
    def step(self, action):
        if self.hangs:
            time.sleep(600)
        return np.zeros(1, np.float32), 0.0, False, False, {}

def plain():
    return Hanging(False)

def hanging():
    return Hanging(True)

def told(local, everything):
    print("stepped", flush=True)
    return True

if __name__ == "__main__":
    model = DistributionalPPO("MlpPolicy", [plain, hanging], n_steps=4, batch_size=8, device="cpu", n_jobs=2)
    model.learn(80, callback=told)
"""


def test_ctrl_c_is_heard_while_a_worker_hangs(tmp_path):
    script = tmp_path / "hanging.py"
    script.write_text(HANGING)
    start = "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    start += f"runpy.run_path({str(script)!r}, run_name='__main__')"
    process = subprocess.Popen(
        [sys.executable, "-c", start],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    for _ in range(4):  # its own share of the rollout: then it waits for the worker, whose env hangs
        assert first_line(process) == "stepped\n"
    time.sleep(0.5)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert "KeyboardInterrupt" in err and code != 0
    assert time.monotonic() - began < 60
