"""Backtest a trained run, and keep the test split sealed: every opening is recorded and counted."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from leeward.backtest import Backtest, run_backtest
from leeward.config.run import RunConfig
from leeward.env import best_clipped_linear
from leeward.market import Market, prepare
from leeward.training.checkpoints import load_model
from leeward.training.run_dir import RunDir
from leeward.training.trainer import best_checkpoint

__all__ = ["backtest_run", "earlier_openings", "record_opening"]

_BOOTSTRAP_STREAM = 7  # keeps the backtest's draws apart from the training's, whatever the seed


def backtest_run(
    run: RunDir, split: str, *, market: Market | None = None, data: str | None = None, checkpoint: Path | None = None
) -> Backtest:
    """Run the best checkpoint over a split of the run's own bars, or of `data`, scaled as in training."""
    config = run.config()
    if data is not None:
        market = prepare(config.data, bars=data, scaler=run.scaler())
    elif market is None:
        market = prepare(config.data)
    model = load_model(checkpoint or best_checkpoint(run))
    return run_backtest(
        model,
        market,
        config.env,
        split=split,
        rng=np.random.default_rng([config.seed, _BOOTSTRAP_STREAM]),
        alpha=config.backtest.alpha,
        limit=config.backtest.limit,
        best=_best_of_control(config, market, split),
        n_offsets=config.backtest.n_offsets,
        n_draws=config.backtest.n_draws,
    )


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
    count = 0
    for file in run.path.resolve().parent.glob("*/run.json"):
        openings = RunDir(file.parent).record().get("openings", [])
        count += sum(entry["data"] == market.fingerprint for entry in openings)
    return count
