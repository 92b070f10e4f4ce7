"""What a run directory offers an audit, part by part; what is missing or damaged is a reason, not an error.

Nothing here writes: no lock is taken, no half-written file is swept away, the seal of the test split stays shut.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from leeward.algorithm.ppo import DistributionalPPO
from leeward.audit.checks import CannotRun, Parts, reason
from leeward.audit.engine import MAKERS
from leeward.audit.engine.twins import Twins
from leeward.backtest import BacktestResult, run_policy
from leeward.backtest.files import StoredBacktest, read_backtest
from leeward.backtest.judgement import judged_split
from leeward.config.run import RunConfig
from leeward.durable import read_lines
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import LeewardError, RunDirectoryError
from leeward.market import Market
from leeward.telemetry.alerts import AlertRecord
from leeward.training.checkpoints import load_model, newest_whole, restore_env
from leeward.training.logs import ProgressFile
from leeward.training.run_dir import RunDir

__all__ = ["ALERTS", "open_run", "parts_of"]

ALERTS = "alerts.jsonl"
_OWN_SPLITS = ("train", "validation", "test")  # of the run's own bars; other folders are of other bars
_SHOWN_SPLITS = ("train", "validation")  # what the agent may be shown again: never the sealed bars
_MOST_DECISIONS = 20_000  # a longer split takes minutes
Rows = list[dict[str, float]]


def open_run(path: Path) -> RunDir:
    """A run directory, half written or not; an error where nothing of a run is."""
    run = RunDir(path)
    signs = (run.config_file, run.run_file, run.progress_file, run.checkpoints, run.best, path / "backtest")
    if not any(sign.exists() for sign in signs):
        raise RunDirectoryError(f"{path}: no run here; `leeward train --run-dir {path}` makes one")
    return run


def parts_of(run: RunDir) -> Parts:
    """Every part, made when a check first asks for it."""
    makers: dict[str, Callable[[Parts], Any]] = {
        "run": lambda parts: run,
        "record": lambda parts: run.record(),
        "config": lambda parts: _config(run),
        "market": lambda parts: _market(run),
        "place": lambda parts: _place(run),
        "twins": _twins,
        "agent": lambda parts: _agent(run),
        "backtests": lambda parts: _backtests(run),
        "judged": _judged,
        "shown": _shown,
        "progress": lambda parts: _progress(run),
        "alerts": lambda parts: _alerts(run),
    }
    return Parts(MAKERS | makers)


def _config(run: RunDir) -> RunConfig:
    if not run.config_file.is_file():
        raise CannotRun(f"{run.config_file.name} is missing: the run is half written, or not whole any more")
    return run.config()


def _market(run: RunDir) -> Market:
    _config(run)
    try:
        return run.market()
    except (LeewardError, OSError) as error:
        raise CannotRun(f"the bars of the run cannot be had: {reason(error)}") from None


def _place(run: RunDir) -> Path:
    """The newest checkpoint that is whole."""
    places = [*([run.best] if run.best.is_dir() else []), *run.checkpoint_list()]
    place, damaged = newest_whole(places, lambda files: files.place)
    if place is None:
        raise CannotRun("; ".join(damaged) or "there is no checkpoint: training has not come to its first one")
    return place


def _twins(parts: Parts) -> Twins:
    place, market, config = parts.get("place"), parts.get("market"), parts.get("config")

    def make_env() -> TradingVecEnv:
        env = TradingVecEnv(market, config.ppo.n_envs, config=config.env, seed=config.seed)
        restore_env(place, env)
        return env

    def make_model() -> DistributionalPPO:
        env = TradingVecEnv(market, config.ppo.n_envs, config=config.env, seed=config.seed)
        # One process, whatever the run had: what is computed is the same.
        model = DistributionalPPO.load(place / "model.zip", env=env, force_reset=False, n_jobs=1)
        restore_env(place, env)  # after the load, which seeds the env
        return model

    make_model()
    return Twins(make_model, make_env, lambda: place / "model.zip")


def _agent(run: RunDir) -> DistributionalPPO:
    if not run.best.is_dir():
        raise CannotRun("there is no best checkpoint: training has not come to its first score")
    return load_model(run.best)


def _backtests(run: RunDir) -> dict[str, StoredBacktest]:
    """Of the run's own bars, by split."""
    found, damaged = dict[str, StoredBacktest](), []
    for name in _OWN_SPLITS:
        folder = run.path / "backtest" / name
        if (folder / "metrics.json").is_file():
            try:
                found[name] = read_backtest(folder)
            except (LeewardError, OSError) as error:
                damaged.append(reason(error))
    if not found:
        raise CannotRun("; ".join(damaged) or "there is no backtest; run `leeward backtest`")
    return found


def _judged(parts: Parts) -> tuple[str, StoredBacktest]:
    """The most honest split that was tested: its name, and what it came to."""
    backtests: dict[str, StoredBacktest] = parts.get("backtests")
    name = judged_split({split: stored.metrics for split, stored in backtests.items()})
    return name, backtests[name]


def _shown(parts: Parts) -> dict[str, BacktestResult]:
    """The agent over train and validation once more."""
    agent, market, config = parts.get("agent"), parts.get("market"), parts.get("config")
    long = [name for name in _SHOWN_SPLITS if market.split(name).n_decisions > _MOST_DECISIONS]
    if long:
        raise CannotRun(f"{', '.join(long)} has more than {_MOST_DECISIONS:,} decisions, which takes minutes")
    return {
        name: run_policy(agent, market, config.env, split=name, alpha=config.risk[0].alpha, with_outlook=False)
        for name in _SHOWN_SPLITS
    }


def _progress(run: RunDir) -> Rows:
    rows = ProgressFile.rows_of(run.progress_file)
    if not rows:
        raise CannotRun("progress.csv holds no update")
    return [{key: float(text) for key, text in row.items() if text} for row in rows]


def _alerts(run: RunDir) -> list[AlertRecord]:
    path = run.path / ALERTS
    if not path.is_file():
        raise CannotRun(f"there is no {ALERTS}: the run was trained by a version that wrote none")
    return read_lines(path)
