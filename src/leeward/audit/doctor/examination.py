"""`leeward doctor [CONFIG]`: the machine, the settings, the data, how long a run will take, and the small tasks."""

import io
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import torch

import leeward
from leeward.audit.doctor.probes import run_probes
from leeward.audit.engine.twins import begin, kept_random_state, learn, next_rollout
from leeward.backtest.baselines import buy_and_hold
from leeward.backtest.wording import percent, span
from leeward.config.run import RunConfig
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import ConfigError, LeewardError
from leeward.market import Market, prepare
from leeward.market.problems import limited
from leeward.training.trainer import make_model

__all__ = ["Outcome", "Statement", "examine"]

Outcome = Literal["good", "note", "warning", "error"]

_VERSIONED = ("torch", "numpy", "stable-baselines3", "gymnasium", "numba")
_MOST_STEPS = 8192  # of a rollout that is timed
_TIMED = 2  # rounds, after one that compiles
_LOOKS = 30  # decisions that are timed
_LOG_BYTES = 3_000  # of one update in progress.csv and TensorBoard
_PROBES_SECONDS = 40.0  # for all small tasks
_FEW_UPDATES, _FEW_TAIL = 10, 10


@dataclass(frozen=True)
class Statement:
    """One thing that was looked at, and how it stands."""

    subject: str
    outcome: Outcome
    words: str


def examine(
    config: RunConfig,
    folder: Path,
    progress: Callable[[str], None] = lambda name: None,
    *,
    seconds: float | None = None,
) -> Iterator[Statement]:
    """All that can be known before a run into `folder`; one statement after the other, as they are found.

    `seconds` bounds the small tasks; None: forty.
    """
    if config.gym is not None:
        raise ConfigError(
            f"gym: the doctor examines a market and accounts on it, and {config.gym.id} has neither; "
            "train a few thousand steps instead, with --steps"
        )
    yield _versions()
    yield _threads(config)
    yield from _settings(config)
    progress("data")
    market: Market | None = None
    try:
        market = prepare(config.data)
    except (LeewardError, OSError) as error:
        for line in str(error).splitlines():
            yield Statement("data", "error", line)
    if market is not None:
        yield from _data(market, config)
        progress("speed")
        yield from _speed(market, config, folder)
    with kept_random_state():
        torch.set_num_threads(1)
        for probe in run_probes(config, _PROBES_SECONDS if seconds is None else seconds, lambda name: progress(name)):
            outcome: Outcome = "good" if probe.learned else "error" if probe.wanted else "warning"
            yield Statement(
                f"task: {probe.name}", outcome, f"{probe.words} ({probe.steps:,} steps, score {probe.score:.2f})"
            )


def _versions() -> Statement:
    found = ", ".join(f"{name} {version(name)}" for name in _VERSIONED)
    return Statement("versions", "good", f"leeward {leeward.__version__}, Python {platform.python_version()}, {found}")


def _threads(config: RunConfig) -> Statement:
    cores, jobs, threads = os.cpu_count() or 1, config.ppo.n_jobs, torch.get_num_threads()
    words = f"{_count(cores, 'core')}, torch uses {_count(threads, 'thread')}, ppo.n_jobs {jobs}"
    if jobs > cores:
        return Statement(
            "threads", "warning", f"{words}: more processes than cores; set ppo.n_jobs to {cores} or fewer"
        )
    return Statement("threads", "good", words)


def _settings(config: RunConfig) -> Iterator[Statement]:
    """What the numbers say by themselves."""
    ppo, rollout = config.ppo, config.ppo.n_steps * config.ppo.n_envs
    updates = -(-ppo.total_steps // rollout)
    if updates < _FEW_UPDATES:
        yield Statement(
            "settings",
            "warning",
            f"ppo.total_steps {ppo.total_steps:,} are {updates} updates of {rollout:,} steps: too few to learn from; "
            "make "
            "rollouts shorter (ppo.n_steps, ppo.n_envs) or train longer",
        )
    if ppo.batch_size is not None and ppo.batch_size > rollout:
        yield Statement(
            "settings", "warning", f"ppo.batch_size {ppo.batch_size:,} is larger than a rollout of {rollout:,} steps"
        )
    risk = config.risk[0]
    if risk.limit is None:
        yield Statement("settings", "note", "risk.limit is not set: the tail is measured, and nothing bounds it")
    elif risk.measure == "step_return" and risk.alpha * rollout < _FEW_TAIL:
        yield Statement(
            "settings",
            "warning",
            f"risk.alpha {risk.alpha:g} of a rollout of {rollout:,} steps are {risk.alpha * rollout:.1f} outcomes: its "
            "tail "
            "is measured over several rollouts, and the limit acts late; use more envs or steps",
        )


def _data(market: Market, config: RunConfig) -> Iterator[Statement]:
    bars, train = market.bars, market.split("train")
    for problem in limited(bars.problems):
        yield Statement("data", "warning" if problem.severity == "warning" else "note", str(problem))
    sizes = ", ".join(f"{name} {market.split(name).n_bars:,}" for name in ("train", "validation", "test"))
    yield Statement(
        "data",
        "good",
        f"{bars.source}: {len(bars):,} bars, {_count(len(bars.assets), 'asset')}, "
        f"{_count(len(market.feature_names), 'feature')}; {sizes}",
    )
    episode = config.env.episode_bars
    if episode is not None and episode > train.n_decisions:
        yield Statement(
            "data",
            "warning",
            f"env.episode_bars {episode} is more than the {train.n_decisions:,} decisions of train: every episode is "
            "all of it",
        )
    risk = config.risk[0]
    if risk.limit is not None and risk.measure == "step_return":
        tail = buy_and_hold(market, config.env, split="train").performance(risk.alpha).cvar
        if tail >= risk.limit:
            yield Statement(
                "data",
                "note",
                f"risk.limit {percent(risk.limit)} is milder than the tail of buy and hold on train, {percent(tail)}: "
                "it may "
                "never bind",
            )


def _speed(market: Market, config: RunConfig, folder: Path) -> Iterator[Statement]:
    """Rounds of the real thing, timed; and the room that its files need."""
    ppo = config.ppo
    env = TradingVecEnv(market, ppo.n_envs, config=config.env, seed=config.seed)
    with kept_random_state(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what settings would warn of is said above
        model = make_model(config.model_copy(update={"ppo": ppo.model_copy(update={"n_jobs": 1})}), env)
        steps = max(8, min(ppo.n_steps, _MOST_STEPS // ppo.n_envs))
        model.put_in_force(model.settings.model_copy(update={"n_steps": steps}), fresh_optimizer=False)
        begin(model)
        spent = []
        for _ in range(1 + _TIMED):
            began = time.monotonic()
            learn(model, next_rollout(model))
            spent.append(time.monotonic() - began)
        seen = env.observe()[:1]
        began, state = time.monotonic(), None
        for _ in range(_LOOKS):
            model.predict_distribution(seen, state=state)
            _, state = model.predict(seen, state=state, deterministic=True)
        look = (time.monotonic() - began) / _LOOKS
        file = io.BytesIO()
        model.save(file)
    rate = steps * ppo.n_envs / float(np.mean(spent[1:]))
    rollout = ppo.n_steps * ppo.n_envs
    updates = -(-ppo.total_steps // rollout)
    scores = updates // config.validation.turn(updates) + 1
    training, scoring = ppo.total_steps / rate, (scores + 3) * look * market.split("validation").n_decisions
    by_jobs = "" if ppo.n_jobs == 1 else f", in one process; ppo.n_jobs {ppo.n_jobs} make it faster"
    yield Statement(
        "time",
        "good",
        f"about {span(training + scoring)} here: {ppo.total_steps:,} steps at {rate:,.0f} a second ({span(training)}"
        f"{by_jobs}), {scores} scores on validation and the backtest ({span(scoring)})",
    )
    kept = config.checkpoint.keep_last + 2
    needed = kept * len(file.getvalue()) + min(updates, 20_000) * _LOG_BYTES + 20_000_000
    free = shutil.disk_usage(_existing(folder)).free
    words = f"the run needs about {_size(needed)}, {_size(free)} are free at {_existing(folder)}"
    outcome: Outcome = "error" if free < needed else "warning" if free < 3 * needed else "good"
    yield Statement("disk", outcome, words)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _existing(folder: Path) -> Path:
    folder = folder.resolve()
    return folder if folder.exists() else _existing(folder.parent)


def _size(count: float) -> str:
    return f"{count / 1e6:,.0f} MB" if count < 1e9 else f"{count / 1e9:,.1f} GB"
