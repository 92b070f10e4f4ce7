"""Do the accounts of the backtests add up? Replayed by a ledger of our own, and made once more by the agent."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from leeward.audit.checks import CannotRun
from leeward.audit.findings import Fault
from leeward.audit.run.ledger import Ledger
from leeward.backtest import BacktestResult
from leeward.backtest.files import StoredBacktest
from leeward.backtest.strategies import AGENT
from leeward.config.run import RunConfig
from leeward.market import Market

__all__ = ["agent_repeats", "books_balance"]

_MONEY = 1e-6  # of the equity
_MOST_BARS = 20_000  # of a split, in plain Python
_COSTS = {
    "cost_commission": "commission",
    "cost_spread": "spread",
    "cost_impact": "impact",
    "cost_fees": "fees",
    "cost_interest": "interest_paid",
}


def books_balance(backtests: dict[str, StoredBacktest], market: Market, config: RunConfig) -> Iterator[Fault]:
    """The agent's targets through the independent ledger give its equity and its costs, bar by bar."""
    short = {name: stored for name, stored in backtests.items() if stored.metrics.bars <= _MOST_BARS}
    if not short:
        raise CannotRun(f"every backtest has more than {_MOST_BARS:,} bars, which takes minutes in plain Python")
    for split, stored in short.items():
        if stored.metrics.fingerprints.get("data", market.fingerprint) != market.fingerprint:
            raise CannotRun(f"the backtest on {split} is of other bars than the run has now")
        yield from _balances(split, stored, market, config)


def _balances(split: str, stored: StoredBacktest, market: Market, config: RunConfig) -> Iterator[Fault]:
    ledger = Ledger(market.bars, config.env, bar=market.split(split).start)
    targets = stored.positions["target"].to_numpy().reshape(stored.metrics.bars, -1)  # (n, A)
    equity = stored.equity[AGENT].to_numpy()
    booked = {name: stored.equity[name].to_numpy()[1:] for name in _COSTS}
    for t, row in enumerate(targets.tolist()):
        truth = ledger.step(row)
        found = {"equity": (float(equity[t + 1]), float(truth["equity"]))}
        found |= {name: (float(booked[name][t]), float(truth[own])) for name, own in _COSTS.items()}
        for name, (told, true) in found.items():
            if not abs(told - true) <= _MONEY * float(truth["before"]):
                yield Fault(
                    "critical",
                    f"The account of the backtest on {split} does not add up",
                    f"At bar {t + 1} of {len(targets)} ({stored.time[t + 1].astype('datetime64[D]')}) the backtest has "
                    f"{name.replace('cost_', '')} {told:,.2f}, a ledger written from the rules has {true:,.2f}, by the "
                    "same targets, bars and costs.",
                    "Run `leeward backtest` again; if it stays, look at env/kernel.py and backtest/engine.py.",
                )
                return


def agent_repeats(backtests: dict[str, StoredBacktest], shown: dict[str, BacktestResult]) -> Iterator[Fault]:
    """The best checkpoint, asked again, decides as the stored backtest says."""
    both = [name for name in shown if name in backtests]
    if not both:
        raise CannotRun("neither train nor validation was backtested; the sealed bars are not shown again")
    for split in both:
        stored, now = backtests[split], shown[split]
        told: NDArray[np.float64] = stored.positions["target"].to_numpy().reshape(now.targets.shape)
        apart = np.abs(told - now.targets)
        if not float(np.nanmax(apart)) <= 1e-5:
            t = int(np.argmax((apart > 1e-5).any(axis=1)))
            yield Fault(
                "high",
                f"The backtest on {split} is not of this agent",
                f"Its targets differ from what the best checkpoint decides now, first at bar {t + 1} of {len(told)} "
                f"({told[t]} then, {now.targets[t]} now). The run has gone on since, or versions differ.",
                f"Run `leeward backtest --split {split}` again.",
            )
