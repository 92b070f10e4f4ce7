"""Envs in processes of their own: one that dies or hangs is named, and nobody waits for it for ever."""

import os
import signal
import socket
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor

from leeward.errors import EnvironmentFault
from leeward.rollout import env_processes

from ..support.small_models import build

LIVE, DIE, HANG, RAISE = range(4)
ENDS = {  # order -> the env that gets it, and what is said
    DIE: (1, "the process of env 1 ended with exit code 7; look at its output above"),
    HANG: (0, r"env 0 has not answered for 0\.1 s; it hangs or is too slow"),  # the first to be heard
    RAISE: (1, "the process of env 1 ended with exit code 1; look at its output above"),
}


class Mortal(gymnasium.Env[Any, Any]):
    """Raises, dies or hangs when it is told to: by an action or by an option of a reset."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        self.obey((options or {}).get("order", 0))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.obey(action)
        return np.zeros(1, np.float32), 0.0, False, False, {}

    def obey(self, order):
        if order == DIE:
            os._exit(7)
        if order == HANG:
            signal.pause()
        if order == RAISE:
            raise ZeroDivisionError("of the env")

    def action_masks(self):
        return np.ones(4, bool)


@pytest.fixture
def start():
    """A function that makes so many envs in processes; they end with the test."""
    made: list[SubprocVecEnv] = []

    def started(n_envs: int, kind: type[Mortal] = Mortal) -> VecMonitor:
        made.append(SubprocVecEnv([kind] * n_envs, start_method="fork"))
        return VecMonitor(made[-1])

    yield started
    for process in (process for envs in made for process in envs.processes):
        process.kill()
        process.join()


@pytest.fixture
def watched(start):
    envs = start(2)
    env_processes.watch_processes(envs)
    return envs


def test_a_step_and_a_reset_are_those_of_the_envs(watched):
    seen, rewards, dones, infos = watched.step(np.zeros(2, int))
    assert seen.shape == (2, 1) and not dones.any() and len(infos) == len(rewards) == 2
    assert watched.reset().shape == (2, 1)
    assert all(masks.all() for masks in watched.env_method("action_masks"))


def test_processes_are_watched_once_and_other_envs_are_left_alone(watched):
    remotes = watched.unwrapped.remotes
    env_processes.watch_processes(watched)
    assert watched.unwrapped.remotes is remotes
    plain = DummyVecEnv([Mortal])
    env_processes.watch_processes(plain)
    assert plain.reset().shape == (1, 1)


@pytest.mark.parametrize("order", ENDS, ids=["dies", "hangs", "raises"])
@pytest.mark.parametrize("call", ["step", "reset"])
def test_an_env_that_cannot_answer_is_named(call, order, watched, monkeypatch):
    watched.reset()
    if order == HANG:
        monkeypatch.setattr(env_processes, "PATIENCE", 0.1)
    env, words = ENDS[order]
    orders = [LIVE, LIVE]
    orders[env] = order
    watched.set_options([{"order": each} for each in orders])
    with pytest.raises(EnvironmentFault, match=words):
        watched.step(np.array(orders)) if call == "step" else watched.reset()


class Wide(Mortal):
    """Its actions and observations are larger than what a pipe holds while nobody reads."""

    observation_space = action_space = spaces.Box(-1, 1, (1_000_000,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(1_000_000, np.float32), {}

    def step(self, action):
        return action, 0.0, False, False, {}


@pytest.fixture
def wide(start, bounded):
    envs = start(2, Wide)
    env_processes.watch_processes(envs)
    return envs


@pytest.fixture
def hit(monkeypatch):
    """A function that gives one env a signal, and its connection 2 s: on a busy machine the others may be slow."""

    def given(envs: VecMonitor, number: int, sign: signal.Signals) -> None:
        process = envs.unwrapped.processes[number]
        os.kill(process.pid, sign)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        monkeypatch.setattr(env_processes, "PATIENCE", 2.0)
        env_processes.limit_waits(envs.unwrapped.remotes[number]._connection, 2.0)

    return given


def test_messages_larger_than_a_pipe_arrive_whole_under_any_default_timeout(start):
    socket.setdefaulttimeout(30)
    try:
        envs = start(2, Wide)
        env_processes.watch_processes(envs)
        envs.reset()
        actions = np.random.default_rng(0).uniform(-1, 1, (2, 1_000_000)).astype(np.float32)
        assert np.array_equal(envs.step(actions)[0], actions)
    finally:
        socket.setdefaulttimeout(None)


@pytest.mark.parametrize(
    "call",
    [
        lambda envs: envs.step(np.zeros((2, 1_000_000), np.float32)),
        lambda envs: envs.set_attr("memory", np.zeros(1_000_000)),
    ],
    ids=["a step", "a state"],
)
def test_a_stopped_env_that_does_not_take_what_is_sent_is_named(call, wide, hit):
    wide.reset()
    hit(wide, 1, signal.SIGSTOP)
    with pytest.raises(EnvironmentFault, match=r"env 1 has not listened for 2 s; it hangs or is too slow"):
        call(wide)
    for process in wide.unwrapped.processes:
        process.join(10)
    assert [process.exitcode for process in wide.unwrapped.processes] == [-signal.SIGKILL] * 2


def test_an_env_that_is_stopped_in_the_middle_of_its_answer_is_named(wide, hit):
    remote = wide.unwrapped.remotes[0]
    remote.send(("reset", (None, {})))
    while not remote._news.poll(0):
        time.sleep(0.01)
    hit(wide, 0, signal.SIGSTOP)
    with pytest.raises(EnvironmentFault, match=r"env 0 has not answered for 2 s"):
        remote.recv()


def test_a_dead_env_is_not_taken_for_a_slow_one_by_what_it_leaves_unread(wide, hit):
    """The process before it, a fork, holds its end of the pipe open."""
    hit(wide, 1, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="the process of env 1 ended with exit code -9"):
        wide.step(np.zeros((2, 1_000_000), np.float32))


def test_an_env_that_is_dead_already_is_named_when_it_is_asked(watched):
    watched.unwrapped.processes[1].kill()
    watched.unwrapped.processes[1].join()
    with pytest.raises(EnvironmentFault, match="the process of env 1 ended with exit code -9"):
        watched.reset()


def test_training_watches_its_envs_from_the_first_reset_on(start):
    envs = start(1)
    model = build("MlpPolicy", envs)
    envs.unwrapped.processes[0].kill()
    with pytest.raises(EnvironmentFault, match="the process of env 0 ended with exit code -9"):
        model.learn(16)
