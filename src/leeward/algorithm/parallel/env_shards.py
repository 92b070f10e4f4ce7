"""Envs that can be made again in another process, so that several processes can share them.

A VecEnv that can be shared has a method `shard(first, count)`. It gives a function that can be pickled and that makes a
VecEnv of those envs, which goes on where they stand, with the random streams they have in the whole.
If it also has `state_dict`, `load_state_dict` and `join(states)`, which takes the states of its shards in their order,
a run that shares it can be resumed exactly.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper

from leeward.errors import ArgumentError

__all__ = ["EnvFunction", "EnvList", "env_functions", "has_state", "refuse_unshardable", "shard", "shardable"]

EnvFunction = Callable[[], gymnasium.Env[Any, Any]]


class EnvList(DummyVecEnv):
    """A DummyVecEnv of functions that can be called again, each env with a Monitor; env i is seeded with seed + i."""

    def __init__(self, functions: Sequence[EnvFunction], first_env: int = 0) -> None:
        self.functions, self.first_env = list(functions), first_env
        super().__init__([partial(_monitored, function) for function in functions])

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        return super().seed(None if seed is None else seed + self.first_env)

    def shard(self, first: int, count: int) -> Callable[[], VecEnv]:
        return partial(EnvList, self.functions[first : first + count], self.first_env + first)


def _monitored(function: EnvFunction) -> gymnasium.Env[Any, Any]:
    env = function()
    # Its own Monitor may lie below other wrappers.
    layer: gymnasium.Env[Any, Any] = env
    while isinstance(layer, gymnasium.Wrapper):
        if isinstance(layer, Monitor):
            return env
        layer = layer.env
    return Monitor(env)


def env_functions(env: Any, n_jobs: int) -> Any:
    """Functions for one env per process where `env` is an id and there are several; else `env` as it is."""
    if not isinstance(env, str) or n_jobs == 1:
        return env
    # The spec and not its name: a process that never ran the user's script does not know the name.
    return [partial(gymnasium.make, gymnasium.spec(env))] * n_jobs


def shardable(env: VecEnv) -> bool:
    """Whether its envs can be made again elsewhere."""
    return _offers(env, "shard")


def has_state(env: VecEnv) -> bool:
    """Whether the state of all envs can be collected from the processes and put back."""
    return all(_offers(env, name) for name in ("state_dict", "load_state_dict", "join"))


def _offers(env: VecEnv, name: str) -> bool:
    # Asked of the class: an SB3 wrapper hands attributes on, and the shard of what it wraps would lack the wrapper. One
    # with a method of its own still needs that of the env inside.
    own = callable(getattr(type(env), name, None))
    return own and (not isinstance(env, VecEnvWrapper) or _offers(env.venv, name))


def shard(env: VecEnv, envs: slice) -> Callable[[], VecEnv]:
    """A function that makes these envs elsewhere."""
    found: Callable[[], VecEnv] = env.shard(envs.start, envs.stop - envs.start)  # type: ignore[attr-defined]
    return found


def refuse_unshardable(env: VecEnv, n_jobs: int) -> None:
    """An error that says what to pass, unless `n_jobs` processes can share this env."""
    if not shardable(env):
        raise ArgumentError(
            f"n_jobs={n_jobs} makes the envs again in every process, and a {type(env).__name__} cannot be made again; "
            "pass an env id, a list of functions that make one env each, a TradingVecEnv, or a VecEnv with a method "
            "shard(first, count)"
        )
    if env.num_envs < n_jobs:
        raise ArgumentError(
            f"n_jobs={n_jobs} processes share the envs, and there are {env.num_envs}; pass at least {n_jobs} envs, or "
            "a smaller n_jobs"
        )
