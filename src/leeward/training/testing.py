"""Backtest a trained run, and keep the test split sealed: every opening is recorded and counted."""

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from leeward.backtest import Backtest, run_backtest
from leeward.backtest.robustness import RobustnessCurve, robustness_curve
from leeward.config.run import RunConfig
from leeward.env import best_clipped_linear
from leeward.errors import RunDirectoryError
from leeward.market import Market
from leeward.training.checkpoints import load_model
from leeward.training.run_dir import RunDir

__all__ = ["LAST_CHECKPOINT", "attack_run", "backtest_run", "earlier_openings", "record_opening"]

LAST_CHECKPOINT = "last_checkpoint"
_BOOTSTRAP_STREAM = 7  # keeps the backtest's draws apart from the training's, whatever the seed


def backtest_run(run: RunDir, market: Market, split: str) -> Backtest:
    """Run the best checkpoint over a split of `market`, the last one and the baselines beside it."""
    torch.set_num_threads(1)  # one observation at a time: more threads cost more than they give
    config = run.config()
    agent = load_model(run.best_checkpoint())
    last = run.checkpoint_list()[-1:]
    return run_backtest(
        agent,
        market,
        config.env,
        split=split,
        rng=np.random.default_rng([config.seed, _BOOTSTRAP_STREAM]),
        alpha=config.risk.alpha,
        limit=config.risk.limit,
        best=_best_of_control(config, market, split),
        beside={LAST_CHECKPOINT: load_model(last[0])} if last else {},
        fingerprints={"config": hashlib.sha256(run.config_file.read_bytes()).hexdigest()},
        n_offsets=config.backtest.n_offsets,
        n_draws=config.backtest.n_draws,
    )


def attack_run(run: RunDir, market: Market, split: str) -> RobustnessCurve:
    """The best checkpoint's score over a split of `market` against the radius of each attack."""
    torch.set_num_threads(1)
    config = run.config()
    agent = load_model(run.best_checkpoint())
    return robustness_curve(agent, market, config.env, split=split, seed=config.seed, score=config.validation.score)


def _best_of_control(config: RunConfig, market: Market, split: str) -> np.ndarray | None:
    """The known best policy of the control market, fitted on train; None on any other market."""
    if market.bars.source != "sample:control" or "train" not in market.splits:
        return None
    best = best_clipped_linear(market, config.env)
    window = market.split(split)
    signal = market.bars.extra["feature_signal"][window.start : window.start + window.n_decisions]
    return best.targets(signal)


def record_opening(run: RunDir, market: Market, split: str) -> None:
    """Write into the run that its test split was opened."""
    entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "split": split, "data": market.fingerprint}
    run.update_record(openings=[*run.record().get("openings", []), entry])


def earlier_openings(run: RunDir, market: Market) -> int:
    """How often runs beside this one, itself included, have opened the same bars so far."""
    return sum(
        entry.get("data") == market.fingerprint
        for file in run.path.resolve().parent.glob("*/run.json")
        for entry in _openings(file.parent)
    )


def _openings(path: Path) -> list[dict[str, str]]:
    try:
        openings = RunDir(path).record().get("openings", [])
    except RunDirectoryError:  # another program's run.json
        return []
    return [entry for entry in openings if isinstance(entry, dict)] if isinstance(openings, list) else []
