"""Where the time of a round goes, and which other shapes of it are tried."""

import time

import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv

from leeward.config.load import load_config
from leeward.errors import LeewardError
from leeward.market import prepare
from leeward.training import bench as module
from leeward.training.bench import GAIN, PARTS, Shape, Timing, bench, timed

from ..support.tiny_runs import TINY, leeward_here, settings

GYM = [
    part
    for setting in ("gym.id=CartPole-v1", "ppo.n_envs=4", "ppo.n_steps=32", "ppo.batch_size=64")
    for part in ("--set", setting)
]


@pytest.fixture
def invented(monkeypatch):
    """Rounds that take as long as a test says, by shape."""
    asked = []

    def times(seconds):
        def instead(config, market, shape):
            asked.append(shape)
            torch.set_num_threads(shape.threads)
            return Timing(shape, seconds(shape), dict.fromkeys(PARTS, 0.0))

        monkeypatch.setattr(module, "timed", instead)
        return asked

    return times


def shapes(seconds=60.0):
    return [timing.shape for timing in bench(load_config(None, GYM[1::2]), None, seconds)]


def test_parts_of_a_round_add_up_to_it():
    spent = {"round": 100.0, "collect": 40.0, "envs": 7.0, "targets": 5.0, "update": 50.0}
    parts = {part: module._part(spent, part) for part in PARTS}
    # 40 of the rollout less 7 and 5 are the policy's; 100 less 40 and 50 are left for the rest.
    assert parts == {
        "envs": 7.0, "policy in the rollout": 28.0, "targets": 5.0, "update": 50.0, "rules and metrics": 10.0,
    }  # fmt: skip


def test_a_slow_env_is_seen_as_one(monkeypatch):
    config = load_config(None, [*TINY, "data.source=sample:synthetic"])
    market, plain = prepare(config.data), module.task_of

    def slow(*arguments):
        task = plain(*arguments)

        def env(seed):
            made = type(task).env(task, seed)
            step = made.step_wait
            made.step_wait = lambda: (time.sleep(0.01), step())[1]
            return made

        task.env = env
        return task

    ppo = config.ppo
    shape = Shape(ppo.n_envs, ppo.n_steps, ppo.batch_size, 1)
    monkeypatch.setattr(module, "task_of", slow)
    monkeypatch.setattr(module, "_ROUNDS", 2)  # one that counts: medians of several may be of different ones
    found = timed(config, market, shape)
    assert found.parts["envs"] >= 0.01 * shape.n_steps
    assert found.seconds >= found.parts["envs"]
    for part in ("policy in the rollout", "targets", "update", "rules and metrics"):
        assert 0.0 < found.parts[part] < found.seconds - found.parts["envs"], part


def test_other_shapes_have_as_many_steps_a_rollout_and_differ_in_one_thing(invented):
    invented(lambda shape: 1.0)
    threads = torch.get_num_threads()
    own, *others = shapes()
    assert own == Shape(4, 32, 64, threads)
    assert {shape.n_envs * shape.n_steps for shape in others} == {128}
    for shape in others:
        same = (shape.n_envs, shape.n_steps) == (4, 32), shape.batch_size == 64, shape.threads == threads
        assert sum(same) == 2, shape
    assert {shape.n_envs for shape in others} == {1, 2, 4, 8, 16}
    assert {shape.batch_size for shape in others} == {32, 64, 128}


def test_threads_are_as_before_wherever_it_ends(invented, monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)
    invented(lambda shape: 1.0)
    threads = torch.get_num_threads()
    tried = bench(load_config(None, ["gym.id=CartPole-v1"]), None, 60.0)
    while next(tried).shape.threads == threads:
        pass
    assert torch.get_num_threads() != threads
    tried.close()
    assert torch.get_num_threads() == threads


def test_what_is_faster_is_kept_for_what_is_tried_next(invented):
    invented(lambda shape: 1.0 / shape.n_envs)
    *_, last = shapes()
    assert (last.n_envs, last.n_steps) == (16, 8)


def test_what_gains_less_than_noise_is_not_kept(invented):
    invented(lambda shape: 1.0 if shape.n_envs == 4 else 1.01 / GAIN)
    *_, last = shapes()
    assert (last.n_envs, last.n_steps) == (4, 32)


def test_the_first_shape_is_timed_whatever_the_time_and_no_other_after_it(invented):
    asked = invented(lambda shape: time.sleep(0.02) or 1.0)
    assert len(shapes(seconds=0.01)) == len(asked) == 1


DEPLOYED = ["--set", "risk={alpha: 0.5, limit: -1.0, binds: deployed}"]


def test_a_shape_that_the_settings_refuse_is_skipped_and_nothing_that_was_timed_is_lost(monkeypatch):
    # Where a limit binds the deployed policy some envs act without noise, and one env cannot be both.
    monkeypatch.setattr(module, "_other_threads", lambda shape: [])
    monkeypatch.setattr(module, "_other_batches", lambda shape: [])
    config = load_config(None, [*GYM[1::2], "ppo.n_steps=16", *DEPLOYED[1::2]])
    tried = bench(config, None, 600.0)
    found = []
    with pytest.raises(StopIteration) as end:
        while True:
            found.append(next(tried).shape.n_envs)
    # Twice as many, with 8 steps each, and half as many; 16 envs would have 4 steps each, and 1 env is refused.
    assert (found, end.value.value) == ([4, 8, 2], True)
    with pytest.raises(LeewardError, match="2"):
        timed(config, None, Shape(1, 64, 64, 1))


def test_an_env_is_closed_also_where_its_training_fails(monkeypatch):
    closed = []
    plain = DummyVecEnv.close
    monkeypatch.setattr(DummyVecEnv, "close", lambda env: (closed.append(env.num_envs), plain(env))[1])
    config = load_config(None, [*GYM[1::2], *DEPLOYED[1::2]])
    with pytest.raises(LeewardError):
        timed(config, None, Shape(1, 64, 64, 1))
    assert closed == [1]


def bench_words(seconds="60"):
    code, out, err = leeward_here("bench", "--seconds", seconds, *GYM)
    assert (code, err) == (0, "")
    return " ".join(out.split())


def test_nothing_is_called_a_good_choice_that_was_compared_with_nothing(invented):
    invented(lambda shape: time.sleep(1.1) or 1.0)
    words = bench_words("1")
    assert "Not everything was tried in 1 s; --seconds 4 tries more." in words
    assert "No other shape was timed" in words and "good choice" not in words


def test_all_that_was_tried_was_tried_however_long_it_took(invented, monkeypatch):
    # The last of all shapes ends after the time is over; none was left out for it.
    monkeypatch.setattr(module, "_other_threads", lambda shape: [])
    monkeypatch.setattr(module, "_other_batches", lambda shape: [])
    invented(lambda shape: time.sleep(1.1 if shape.n_envs == 1 else 0.0) or 1.0)
    words = bench_words("1")
    assert "Not everything was tried" not in words and "yours is a good choice" in words


def test_the_advice_is_what_to_add_to_the_users_own_command(invented):
    invented(lambda shape: 1.0 if shape.batch_size == 64 else 0.5)
    words = bench_words()
    assert "Add --set ppo.batch_size=32 at the end of your own `leeward train` command." in words


def test_the_command_says_how_fast_where_the_time_goes_and_what_to_try():
    code, out, err = leeward_here("bench", "--seconds", "2", *settings("data.source=sample:synthetic"))
    assert (code, err) == (0, "")
    for words in ("steps/s", "as configured", "Where a round of", *PARTS, "in other shapes"):
        assert words in out, words
    assert any(words in out for words in ("Fastest: ", "is a good choice", "No other shape was timed"))


def test_the_command_takes_an_env_of_gymnasium_and_refuses_bad_settings():
    code, out, err = leeward_here("bench", "--seconds", "1", *GYM)
    assert (code, err) == (0, "")
    assert "4 envs × 32 steps, minibatches of 64" in out
    code, out, err = leeward_here("bench", "--set", "ppo.n_env=2")
    assert code == 1
    assert "n_envs" in err
