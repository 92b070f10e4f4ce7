"""A run that was killed and resumed is the run that was never stopped."""

import csv
import json
import os
import signal
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tools.runs import EVERYTHING

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.training.logs import ProgressFile, TensorBoardFile
from leeward.training.run_dir import RunDir
from leeward.training.trainer import train

from ..support.tiny_runs import finish, leeward, leeward_here, settings, train_here


def kill_after(process, run, update):
    """SIGKILL as soon as the checkpoint of this update, or a later one, is there."""
    while process.poll() is None:
        found = run.checkpoint_list()
        if found and int(found[-1].name) >= update:
            time.sleep(0.05)  # into the next rollout or update
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    finish(process)
    assert process.returncode == -signal.SIGKILL, "the run ended before it could be killed"


def rows(run):
    with run.progress_file.open(newline="") as file:
        found = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in found]


def events(folder):
    """Everything TensorBoard shows: tag -> [(step, value)]."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    tags = [tag for tag in reader.Tags()["scalars"] if not tag.startswith("time/")]
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in tags}


def without_clock(manifest):
    """Episodes carry the second at which they ended, and frames per second are counted from where a process began."""
    state = manifest["state"]
    del state["counters"]["_num_timesteps_at_start"]
    for episode in state["episodes"]["info"]:
        episode["$dict"] = [[key, value] for key, value in episode["$dict"] if key != "t"]
    return manifest


def assert_equal_checkpoints(left, right):
    (manifest, tensors), (other_manifest, other_tensors) = (
        read_checkpoint(place / "model.zip") for place in (left, right)
    )
    assert tensors.keys() == other_tensors.keys()
    assert any(name.startswith("optimizer/") for name in tensors)
    assert all(torch.equal(tensors[name], other_tensors[name]) for name in tensors)
    assert without_clock(manifest) == without_clock(other_manifest)
    env, other_env = (load_file(place / "env.safetensors") for place in (left, right))
    assert env.keys() == other_env.keys()
    assert all(np.array_equal(env[name], other_env[name], equal_nan=True) for name in env)
    assert json.loads((left / "state.json").read_text()) == json.loads((right / "state.json").read_text())


def test_a_run_killed_twice_and_resumed_equals_one_that_was_never_stopped(trained, tmp_path):
    whole, run = RunDir.open(trained), RunDir(tmp_path / "killed")
    start = leeward("train", "--data", "sample:synthetic", "--run-dir", str(run.path), "--quiet", *settings())
    kill_after(start, run, 4)
    kill_after(leeward("train", "--resume", str(run.path), "--quiet"), run, 8)
    assert len(rows(run)) < len(rows(whole))
    code, _, err = leeward_here("train", "--resume", str(run.path), "--quiet")
    assert code == 0, err

    assert [place.name for place in run.checkpoint_list()] == ["00000010", "00000012"]
    assert_equal_checkpoints(whole.checkpoint_list()[-1], run.checkpoint_list()[-1])
    assert_equal_checkpoints(whole.best, run.best)
    assert len(rows(run)) == 12 and rows(run) == rows(whole)
    assert events(run.tensorboard) == events(whole.tensorboard)
    assert (run.path / "backtest/validation/metrics.json").read_text() == (
        trained / "backtest/validation/metrics.json"
    ).read_text()
    assert not list(run.path.glob(".*.*")), "half-written files of the killed processes are gone"


class Stop(Exception):
    """What a test ends a run with."""


def test_a_score_at_a_checkpoint_is_in_the_row_after_it(tmp_path):
    # 6 updates, and a validation split that is long enough for numbers of the critic.
    every = (
        "data.n_bars=1500",
        "ppo.gamma=0.5",
        "checkpoint.every_updates=3",
        "validation.every_updates=3",
        "ppo.total_steps=960",
    )
    whole, market, _ = train_here(tmp_path / "whole", *every)
    run = RunDir.create(tmp_path / "stopped", whole.config())

    def stop(progress):
        if progress.steps == 4 * 160:
            raise Stop

    with run.locked():
        with pytest.raises(Stop):
            train(run, market, stop, resume=False)
        train(run, market, lambda progress: None, resume=True)
    assert rows(run) == rows(whole)
    assert [bool(row["eval/explained_variance"]) for row in rows(run)] == [False, False, False, True, False, False]


def test_tensorboard_reads_processes_in_their_order_whatever_the_clock_said(tmp_path):
    def write(resume_at, steps, name):
        pace = ProgressFile(tmp_path / "progress.csv", None).pace
        log = TensorBoardFile(tmp_path / "tensorboard", resume_at, pace)
        for step in steps:
            log.write({"a": step + (resume_at or 0) / 1000}, {"a": None}, step)
        log.close()
        newest = max(log.folder.iterdir(), key=lambda file: file.stat().st_mtime_ns)
        newest.rename(log.folder / f"events.out.tfevents.{name}")

    write(None, [160, 320, 480], "9999999999.host.7.0")  # by a clock that is far ahead
    write(320, [480, 640], "9999999999.host.6.0")  # the same second, and by its number an older process
    write(480, [640, 800], "9999999998.host.9.0")
    a = [(160, 160.0), (320, 320.0), (480, pytest.approx(480.32)), (640, pytest.approx(640.48))]
    assert events(tmp_path / "tensorboard") == {"a": [*a, (800, pytest.approx(800.48))]}


def test_two_jobs_with_everything_on_interrupted_killed_and_resumed_equal_two_that_were_never_stopped(tmp_path):
    whole, run = RunDir(tmp_path / "whole"), RunDir(tmp_path / "stopped")
    start = ("train", "--data", "sample:synthetic", "--jobs", "2", "--quiet")
    code, _, err = leeward_here(*start, "--run-dir", str(whole.path), *settings(*EVERYTHING))
    assert code == 0, err
    first = leeward(*start, "--run-dir", str(run.path), *settings(*EVERYTHING), start_new_session=True)
    while not run.checkpoint_list() and first.poll() is None:
        time.sleep(0.002)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does: every process of the run gets it
    code, _, err = finish(first)
    assert code == 130, err
    # `finish` reads until the last process that holds the pipe has ended, so no worker outlives a kill -9 either.
    kill_after(leeward("train", "--resume", str(run.path), "--quiet"), run, 8)
    code, _, err = leeward_here("train", "--resume", str(run.path), "--quiet")
    assert code == 0, err
    assert_equal_checkpoints(whole.checkpoint_list()[-1], run.checkpoint_list()[-1])
    assert_equal_checkpoints(whole.best, run.best)
    assert len(rows(run)) == 12 and rows(run) == rows(whole)
    assert_everything_moved(run)


def assert_everything_moved(run):
    """Otherwise the comparison above would prove little: all that has a state was on, and had done something."""
    older, newest = (read_checkpoint(place / "model.zip") for place in run.checkpoint_list())
    parts = ("actor_memory", "critic_memory", "value_heads.0", "value_heads.1", "risk_heads", "observation_normaliser")
    for part in (*(f"policy/{name}." for name in parts), "optimizer/0/utility", "vgs/variance", "rollout/memory/0"):
        names = [name for name in newest[1] if name.startswith(part)]
        assert names and any(not torch.equal(older[1][name], newest[1][name]) for name in names), part
    multipliers = [manifest["state"]["risk"]["constraints"][0]["multiplier"] for manifest, _ in (older, newest)]
    assert 0.0 < multipliers[0] != multipliers[1] > 0.0
    assert newest[0]["exact"] is True and len(newest[0]["rng_of_jobs"]) == 1
    last = rows(run)[-2]  # the rate falls to 0 in the last
    assert all(float(last[name]) > 0.0 for name in ("adversary/epsilon", "upgd/noise_rms", "risk/multiplier"))
