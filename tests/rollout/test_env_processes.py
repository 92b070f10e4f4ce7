"""Envs in processes of their own: one that dies or hangs is named, and nobody waits for it for ever."""

import os
import time
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor

from leeward.errors import EnvironmentFault
from leeward.rollout import env_processes


class Mortal(gymnasium.Env[Any, Any]):
    """Dies or hangs when its action says so."""

    observation_space, action_space = spaces.Box(-1, 1, (1,)), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if action == 1:
            os._exit(7)
        if action == 2:
            time.sleep(60)
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.fixture
def envs():
    made = VecMonitor(SubprocVecEnv([Mortal] * 2, start_method="fork"))
    made.reset()
    yield made
    for process in made.unwrapped.processes:
        process.kill()
        process.join()


def test_a_step_is_that_of_the_envs(envs):
    seen, rewards, dones, infos = env_processes.step_envs(envs, np.zeros(2, int))
    assert seen.shape == (2, 1) and not dones.any() and len(infos) == len(rewards) == 2
    plain = DummyVecEnv([Mortal])
    plain.reset()
    assert env_processes.step_envs(plain, np.zeros(1, int))[0].shape == (1, 1)


def test_an_env_whose_process_dies_is_named(envs):
    with pytest.raises(EnvironmentFault, match="the process of env 1 ended with exit code 7"):
        env_processes.step_envs(envs, np.array([0, 1]))


def test_an_env_that_hangs_is_named(envs, monkeypatch):
    monkeypatch.setattr(env_processes, "PATIENCE", 0.3)
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=r"env 1 has not answered a step for 0\.3 s"):
        env_processes.step_envs(envs, np.array([0, 2]))
    assert time.monotonic() - began < 10
