"""Copies of a model, each with envs of its own that stand where the model's do: what is done to them changes nothing.

A rollout of such a copy is what the checks of the learner look at, with everything that lay before it.
"""

import copy
import copyreg
import io
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

from leeward.algorithm.checkpoint import ARGUMENTS, Path, pack_rng, unpack_rng
from leeward.algorithm.engine import Round
from leeward.algorithm.ppo import Collected, DistributionalPPO
from leeward.algorithm.two_threads import TwoThreads
from leeward.audit.checks import CannotRun
from leeward.networks.value_heads import Unit
from leeward.rollout.rollout_state import RawObservation, RolloutState
from leeward.telemetry.metrics import Numbers

__all__ = [
    "Scene",
    "Twins",
    "begin",
    "kept_random_state",
    "learn",
    "moment",
    "next_rollout",
    "play",
    "shrink",
    "twins_of",
]

_MOST_STEPS = 8192  # of a rollout, of all envs
_TARGET_SAMPLES = 128  # the more, the sharper the check of their moments
_MIDWAY = 0.5  # of the progress: a rate that fades to 0 at the end has taught something here
_NO_COPY = (TypeError, ValueError, RuntimeError, NotImplementedError, AttributeError, OSError, pickle.PicklingError)

MakeTwin = Callable[[], DistributionalPPO]
MakeEnv = Callable[[], VecEnv]
MakeFile = Callable[[], Path]


@dataclass(frozen=True)
class Twins:
    """How to make a copy of the model, and envs that stand where the model's do, as often as one likes."""

    model: MakeTwin
    env: MakeEnv
    file: MakeFile  # of which the copies are made


@dataclass(frozen=True)
class Scene:
    """A copy of the model after one rollout, from which nothing has been learned yet."""

    model: DistributionalPPO
    before: RolloutState  # where envs and memory were
    running: list[np.ndarray]  # return of each env's episode before the rollout (B,), of each constraint
    collected: Collected
    unit: Unit  # of the critics while the rollout was made
    env: VecEnv  # others, which stand where the rollout began


@contextmanager
def kept_random_state() -> Iterator[None]:
    """A copy is loaded with the generators of its file; whoever asked for it has his own back afterwards."""
    tensors: dict[str, torch.Tensor] = {}
    packed, threads = pack_rng(tensors), torch.get_num_threads()
    try:
        yield
    finally:
        unpack_rng(packed, tensors)
        torch.set_num_threads(threads)


def twins_of(model: DistributionalPPO, env: VecEnv | None) -> Twins:
    """Copies of a live model; `env` instead of the model's own, for a model whose envs cannot be copied."""
    given = model.env if env is None else env
    if given is None:
        raise CannotRun("this model has no env; pass env= to see it act")
    own = None if env is None else DistributionalPPO._wrap_env(env)
    written = io.BytesIO()
    model.save(written)
    arguments = {name: getattr(model, name) for name in ARGUMENTS} | {"policy_class": model.policy_class, "n_jobs": 1}

    def make_env() -> VecEnv:
        try:
            with _refused(Connection):
                return copy.deepcopy(own or given)
        except _NO_COPY as error:
            raise CannotRun(
                f"its env cannot be copied ({type(error).__name__}: {error}), and the model's own is not stepped; "
                "pass env=, such as a DummyVecEnv of the same envs"
            ) from None

    def file() -> io.BytesIO:
        written.seek(0)
        return written

    def make_model() -> DistributionalPPO:
        # A model that was trained with other envs than these begins an episode in them.
        fresh = own is not None
        return DistributionalPPO.load(file(), make_env(), model.device, arguments, force_reset=fresh)

    return Twins(make_model, make_env, file)


@contextmanager
def _refused(kind: type) -> Iterator[None]:
    """Nothing of this kind is copied inside: a copied end of a pipe closes the pipe itself when it is freed."""

    def refuse(thing: Any) -> str:
        raise TypeError(f"cannot copy a {kind.__name__} to another process")

    before = copyreg.dispatch_table.get(kind)
    copyreg.dispatch_table[kind] = refuse
    try:
        yield
    finally:
        del copyreg.dispatch_table[kind]
        if before is not None:
            copyreg.dispatch_table[kind] = before


class _Nothing(BaseCallback):
    def _on_step(self) -> bool:
        return True


def play(twins: Twins) -> Scene:
    """One rollout of a copy, small enough to be looked at."""
    model = twins.model()
    fresh = model.rollout_state is None
    shrink(model)
    begin(model)
    assert model.collector is not None
    before, control = model.collector.state.share(slice(None)), model.engine.risk_control
    running = [] if control is None else [each.running.numpy().copy() for each in control.constraints]
    env, unit = twins.env(), model.policy.critic.unit
    if fresh:  # as the copy of the model did
        if model.seed is not None:
            env.seed(model.seed)
        env.reset()
    return Scene(model, before, running, next_rollout(model), unit, env)


def begin(model: DistributionalPPO) -> None:
    """Ready for the next rollout: where the envs were, or at the start of an episode."""
    assert model.collector is not None
    model.set_logger(Logger(folder=None, output_formats=[]))
    fresh = model.rollout_state is None
    model._setup_learn(model.num_timesteps + _MOST_STEPS, None, reset_num_timesteps=False)
    if fresh:
        model.collector.reset(cast(RawObservation, model._last_obs))
        if model.engine.risk_control is not None:
            model.engine.risk_control.begin(model.n_envs)


def shrink(model: DistributionalPPO) -> None:
    """Fewer steps and one epoch, so that a look takes seconds; everything else as it is."""
    now, n_envs = model.settings, model.n_envs
    steps = max(min(now.n_steps, _MOST_STEPS // n_envs), min(now.n_steps, 8))
    changes: dict[str, Any] = {"n_steps": steps, "n_epochs": 1}
    if now.batch_size is not None:
        changes["batch_size"] = min(now.batch_size, steps * n_envs)
    if now.value_targets == "distributional":
        changes["n_target_samples"] = max(now.n_target_samples, _TARGET_SAMPLES)
    model.put_in_force(now.model_copy(update=changes), fresh_optimizer=False)


def moment(model: DistributionalPPO) -> Round:
    """The round that comes next, at half of the progress."""
    return Round(model.n_rollouts, model.stream_seed, model.device, _MIDWAY)


def learn(model: DistributionalPPO, collected: Collected) -> Numbers:
    """One update, with the rates of half of the progress."""
    numbers = model.engine.learn_from(collected.rollout, collected.targets, moment(model), TwoThreads())
    model.n_rollouts += 1
    return numbers


def next_rollout(model: DistributionalPPO) -> Collected:
    """The rollout that follows, and its targets."""
    callback = _Nothing()
    callback.init_callback(model)
    collected = model.collect(callback)
    assert collected is not None  # this callback never asks to stop
    return collected
