"""`leeward bench`: how fast training is here, where its time goes, and what other shapes of a round would gain.

Whole rounds of the config's own agent and envs are timed, by the wall clock, and nothing is written.
"""

import os
import statistics
import time
import warnings
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from leeward.config.run import RunConfig
from leeward.errors import LeewardError
from leeward.market import Market
from leeward.training.tasks import task_of
from leeward.training.trainer import make_model

__all__ = ["GAIN", "PARTS", "Shape", "Timing", "bench", "timed"]

PARTS = ("envs", "policy in the rollout", "targets", "update", "rules and metrics")
GAIN = 1.05  # times as fast, from which on another shape is worth a change; less is the machine's own noise
_ROUNDS = 4  # of each shape; the first, in which things are compiled and memory is asked for, does not count
_LEAST_STEPS = 8  # of an env in a rollout, and of a minibatch: less is all overhead


@dataclass(frozen=True)
class Shape:
    """What may be chosen for speed; each rollout has as many steps in all as the config's."""

    n_envs: int
    n_steps: int
    batch_size: int | None  # None: the whole rollout
    threads: int


@dataclass(frozen=True)
class Timing:
    """Rounds of one shape, medians."""

    shape: Shape
    seconds: float  # of a round
    parts: dict[str, float]  # seconds of it; sum to about `seconds`

    @property
    def steps_per_second(self) -> float:
        return self.shape.n_envs * self.shape.n_steps / self.seconds


def bench(config: RunConfig, market: Market | None, seconds: float) -> Generator[Timing, None, bool]:
    """The config's own shape, then others: one thing is changed at a time, and kept where it is faster.

    Ends when everything was tried, or `seconds` have passed; returns whether everything was.
    """
    began, threads = time.monotonic(), torch.get_num_threads()
    ppo = config.ppo
    try:
        best = timed(config, market, Shape(ppo.n_envs, ppo.n_steps, ppo.batch_size, threads))
        yield best
        for others in (_other_threads, _other_envs, _other_batches):
            for shape in others(best.shape):
                if time.monotonic() - began > seconds:
                    return False
                try:
                    found = timed(config, market, shape)
                except LeewardError:  # the settings refuse it, as they refuse one env where a limit binds `deployed`
                    continue
                yield found
                best = found if found.steps_per_second > GAIN * best.steps_per_second else best
        return True
    finally:
        torch.set_num_threads(threads)


def _other_threads(shape: Shape) -> list[Shape]:
    """Actor and critics train side by side with two; more are within operations, which few networks gain from."""
    wanted = {1, min(2, os.cpu_count() or 1)} - {shape.threads}
    return [replace(shape, threads=threads) for threads in sorted(wanted)]


def _other_envs(shape: Shape) -> list[Shape]:
    more = [
        replace(shape, n_envs=factor * shape.n_envs, n_steps=shape.n_steps // factor)
        for factor in (2, 4)
        if shape.n_steps % factor == 0 and shape.n_steps // factor >= _LEAST_STEPS
    ]
    fewer = [
        replace(shape, n_envs=shape.n_envs // factor, n_steps=factor * shape.n_steps)
        for factor in (2, 4)
        if shape.n_envs % factor == 0
    ]
    return more + fewer


def _other_batches(shape: Shape) -> list[Shape]:
    size = shape.n_envs * shape.n_steps
    batch = size if shape.batch_size is None else min(shape.batch_size, size)
    wanted = {2 * batch, 4 * batch, batch // 2}
    return [replace(shape, batch_size=each) for each in sorted(wanted) if _LEAST_STEPS <= each <= size]


def timed(config: RunConfig, market: Market | None, shape: Shape) -> Timing:
    """A few rounds of the agent in this shape."""
    changed = {"n_envs": shape.n_envs, "n_steps": shape.n_steps, "batch_size": shape.batch_size, "n_jobs": 1}
    config = config.model_copy(update={"ppo": config.ppo.model_copy(update=changed)})
    torch.set_num_threads(shape.threads)
    env = task_of(config, market).env(config.seed)
    try:
        watch = _watched(config, env)
    finally:
        env.close()
    rounds = watch.rounds[1:]
    seconds = statistics.median(each["round"] for each in rounds)
    return Timing(shape, seconds, {part: statistics.median(_part(each, part) for each in rounds) for part in PARTS})


def _watched(config: RunConfig, env: VecEnv) -> "_Stopwatch":
    """What a few rounds of the agent in these envs took."""
    watch = _Stopwatch()
    watch.around(env, "step_async", "envs")
    watch.around(env, "step_wait", "envs")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what becomes of so few rounds is not of interest
        model = make_model(config, env, on_alert=lambda alert: None)
        watch.around(model, "collect", "collect")
        watch.around(model.engine, "targets", "targets")
        watch.around(model.engine.updater, "run", "update")
        model.learn(_ROUNDS * config.ppo.n_envs * config.ppo.n_steps, watch)
    return watch


def _part(spent: dict[str, float], part: str) -> float:
    """Seconds of one part of a round, from those of what was watched: a rollout has its targets and the envs in it."""
    if part == "policy in the rollout":
        return spent["collect"] - spent["envs"] - spent["targets"]
    if part == "rules and metrics":
        return spent["round"] - spent["collect"] - spent["update"]
    return spent[part]


class _Stopwatch(BaseCallback):
    """How long each round took, and what was watched within it."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds: list[dict[str, float]] = []
        self._spent = dict.fromkeys(("envs", "collect", "targets", "update"), 0.0)
        self._began: float | None = None

    def around(self, owner: Any, method: str, name: str) -> None:
        """Watch a method of this object."""
        plain: Callable[..., Any] = getattr(owner, method)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            began = time.perf_counter()
            try:
                return plain(*arguments, **keywords)
            finally:
                self._spent[name] += time.perf_counter() - began

        setattr(owner, method, watched)

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self._note()
        self._began = time.perf_counter()

    def _on_training_end(self) -> None:
        self._note()

    def _note(self) -> None:
        if self._began is not None:
            self.rounds.append(self._spent | {"round": time.perf_counter() - self._began})
        self._spent = dict.fromkeys(self._spent, 0.0)
