"""Envs in processes of their own (SB3's SubprocVecEnv): one that dies or does not answer is named."""

import time
from multiprocessing.connection import wait
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from leeward.errors import EnvironmentFault

__all__ = ["PATIENCE", "step_envs"]

PATIENCE = 600.0  # seconds for one step of one env


def step_envs(env: VecEnv, actions: np.ndarray) -> Any:
    """`env.step(actions)`, waiting for processes no longer than `PATIENCE`."""
    base = env.unwrapped
    if not isinstance(base, SubprocVecEnv):
        return env.step(actions)
    try:
        env.step_async(actions)
        _await(base)
        return env.step_wait()
    except (EOFError, ConnectionError) as error:
        raise EnvironmentFault(f"{_dead(base)}; look at its output above ({type(error).__name__})") from error


def _await(base: SubprocVecEnv) -> None:
    """All envs have answered, or one of them cannot."""
    silent, end = dict(enumerate(base.remotes)), time.monotonic() + PATIENCE
    while silent:
        # Also for the end of a process: a forked sibling holds the other end of its pipe open.
        ends = [base.processes[env].sentinel for env in silent]
        found = wait([*silent.values(), *ends], max(end - time.monotonic(), 0.0))
        answered = [env for env, remote in silent.items() if remote in found]
        for env in answered:
            del silent[env]
        if found and not answered:
            raise EOFError
        if silent and not found:
            for process in base.processes:
                process.kill()  # nobody can wait for them to end by themselves
            raise EnvironmentFault(
                f"env {min(silent)} has not answered a step for {PATIENCE:g} s; it hangs or is too slow"
            )


def _dead(base: SubprocVecEnv) -> str:
    for env, process in enumerate(base.processes):
        process.join(0.2)
        if process.exitcode is not None:
            return f"the process of env {env} ended with exit code {process.exitcode}"
    return "the process of an env closed its connection"
