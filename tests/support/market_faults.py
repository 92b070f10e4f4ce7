"""Faults of markets, each put into this process: a tiny run is trained with it, and the audit looks at it there."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from leeward.audit import Audit
from leeward.audit.run.whole import audit_run
from leeward.config.load import load_config
from leeward.env import kernel
from leeward.env.costs import rates
from leeward.market import features, prepare
from leeward.market.scaling import fit_column
from leeward.training.run_dir import RunDir
from leeward.training.testing import backtest_run
from leeward.training.trainer import train

__all__ = ["MARKET_FAULTS", "MarketFault", "audited"]

_SMALL = (
    "data.source=sample:synthetic", "data.n_bars=600", "env.episode_bars=30", "backtest.n_draws=50",
    "backtest.n_offsets=50", "ppo.total_steps=640", "ppo.n_envs=8", "ppo.n_steps=20", "ppo.batch_size=80",
    "ppo.n_epochs=2", "ppo.n_quantiles=12", "policy.lstm_hidden_size=8", "policy.net_arch=[8]",
)  # fmt: skip


@dataclass(frozen=True)
class MarketFault:
    """One fault, the checks of the audit of which any names it, and the alerts of which any does."""

    name: str
    put_in: Callable[[ExitStack], object]
    checks: tuple[str, ...]
    alerts: tuple[str, ...] = ()
    setup: Sequence[str] = ()

    def __repr__(self) -> str:
        return self.name


def audited(fault: MarketFault, path: Path) -> Audit:
    """Train, backtest and audit a run, all of it with the fault."""
    config = load_config(None, [*_SMALL, *fault.setup])
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fault.put_in(stack)
        run, bars = RunDir.create(path, config), prepare(config.data)
        with run.locked():
            train(run, bars, lambda progress: None, resume=False, tell=lambda alert: None)
            backtest_run(run, bars, "validation", lambda text: None).write(path / "backtest" / "validation")
        return audit_run(path)


def _tomorrow(stack: ExitStack) -> None:
    """A feature that shows the return of the next bar."""
    leaky = replace(features.FEATURES["return_1"], compute=lambda series: np.append(np.diff(np.log(series.close)), 0.0))
    stack.enter_context(mock.patch.dict(features.FEATURES, return_1=leaky))


def _fitted_on_all(stack: ExitStack) -> None:
    """Scales of every bar there is, those of the test split among them."""

    def wrong(train: np.ndarray, name: str, *, source: str) -> Any:
        assert train.base is not None  # the bars of which it is a part
        return fit_column(train.base, name, source=source)

    stack.enter_context(mock.patch("leeward.market.market.fit_column", wrong))


def _paid_to_trade(stack: ExitStack) -> None:
    """Commission and spread have the wrong sign."""

    def wrong(config: Any) -> Any:
        found = rates(config)
        found[[kernel.COMMISSION_RATE, kernel.SPREAD_RATE]] *= -1.0
        return found

    stack.enter_context(mock.patch("leeward.env.simulation.rates", wrong))


_FREE = ("env.costs.commission_bps=0", "env.costs.half_spread_bps=0", "env.costs.impact_coef=0")
MARKET_FAULTS = (
    MarketFault("leaking feature", _tomorrow, ("features",)),
    MarketFault("scaler fitted on test", _fitted_on_all, ("scaler",)),
    MarketFault("costs of zero", lambda stack: None, ("costs",), ("costs_zero",), _FREE),
    MarketFault("cost sign flipped in the market", _paid_to_trade, ("books",), ("costs_negative",)),
)
