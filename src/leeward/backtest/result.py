"""What one deterministic run over a split left behind, bar by bar."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leeward.backtest.performance import Activity, Performance, activity_of, performance_of
from leeward.backtest.trades import Trade, round_trips
from leeward.errors import ShapeError
from leeward.market.bars import SECONDS_PER_YEAR

Floats = NDArray[np.float64]

__all__ = ["COSTS", "TRADING_COSTS", "Outlook", "BacktestResult", "cash_returns"]

TRADING_COSTS = ("commission", "spread", "impact", "fees")  # paid when units change hands
COSTS = (*TRADING_COSTS, "interest")  # interest paid on debit and short positions; what cash earns is no cost


@dataclass(frozen=True, eq=False)
class Outlook:
    """What the policy predicted at each decision: quantiles (n, N) at rising levels (N,)."""

    levels: Floats  # (N,)
    weights: Floats  # (N,) probability each quantile stands for
    quantiles: Floats  # (n, N)
    var: Floats  # (n,) at the alpha of the risk variable
    cvar: Floats  # (n,)
    mean: Floats  # (n,)


def cash_returns(time: NDArray[np.datetime64], cash_rate: float) -> Floats:  # (n + 1,) -> (n,)
    """What cash earns between two closes, as the env books it: actual days over 365, weekends included."""
    seconds = np.diff(time.astype("datetime64[ns]").astype(np.int64)) * 1e-9
    return np.asarray(cash_rate * (seconds / SECONDS_PER_YEAR))


@dataclass(frozen=True, eq=False)
class BacktestResult:
    """n decisions on A assets. Row t: decided at the close of time[t], filled and marked in the bar of time[t + 1]."""

    name: str
    split: str
    assets: tuple[str, ...]
    time: NDArray[np.datetime64]  # (n + 1,) bars: the first decision's, then every bar that was lived through
    equity: Floats  # (n + 1,) currency at the closes
    step_returns: Floats  # (n,) ln of the equity ratio: the risk variable
    targets: Floats  # (n, A) decided weights, fractions of equity; NaN leaves the asset alone
    weights: Floats  # (n, A) at the close
    units: Floats  # (n, A) held at the close
    fills: Floats  # (n, A) price at which units changed hands
    closes: Floats  # (n, A) last close
    costs: Mapping[str, Floats]  # name of COSTS -> (n,) currency
    turnover: Floats  # (n,) traded notional over equity
    bars_per_year: float
    cash_rate: float = 0.0  # fraction a year
    outlook: Outlook | None = None  # of the discounted return
    outlook_step: Outlook | None = None  # of the next bar's risk variable
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n, a = len(self.step_returns), len(self.assets)
        shapes: dict[str, tuple[int, ...]] = {"time": (n + 1,), "equity": (n + 1,), "turnover": (n,)}
        shapes |= dict.fromkeys(("targets", "weights", "units", "fills", "closes"), (n, a))
        for name, expected in shapes.items():
            if getattr(self, name).shape != expected:
                raise ShapeError(f"backtest {self.name}: {name} must be {expected}, got {getattr(self, name).shape}")
        if set(self.costs) != set(COSTS) or any(cost.shape != (n,) for cost in self.costs.values()):
            got = {name: cost.shape for name, cost in self.costs.items()}
            raise ShapeError(f"backtest {self.name}: costs must be {', '.join(COSTS)}, each ({n},), got {got}")

    @cached_property
    def returns(self) -> Floats:
        """(n,) simple returns."""
        return np.asarray(self.equity[1:] / self.equity[:-1] - 1.0)

    @cached_property
    def cash(self) -> Floats:
        """(n,) simple returns of an account in cash over the same bars."""
        return cash_returns(self.time, self.cash_rate)

    @cached_property
    def costs_total(self) -> Floats:
        """(n,) currency."""
        return np.asarray(np.sum([self.costs[name] for name in COSTS], axis=0))

    @cached_property
    def exposure(self) -> Floats:
        """(n,) Σ|weight| at the close."""
        return np.asarray(np.abs(self.weights).sum(axis=1))

    @cached_property
    def trades(self) -> tuple[Trade, ...]:
        """Round trips per asset, in order of entry; a bar's trading costs are shared by traded notional."""
        return round_trips(
            assets=self.assets,
            time=self.time[1:],
            units=self.units,
            fills=self.fills,
            closes=self.closes,
            weights=self.weights,
            costs=np.sum([self.costs[name] for name in TRADING_COSTS], axis=0),
        )

    def performance(self, alpha: float) -> Performance:
        """The performance table; `alpha` is the tail mass of the risk variable."""
        return performance_of(
            self.returns, self.step_returns, bars_per_year=self.bars_per_year, alpha=alpha, cash=self.cash
        )

    @cached_property
    def activity(self) -> Activity:
        """Turnover, exposure, trades and costs."""
        return activity_of(
            equity=self.equity,
            turnover=self.turnover,
            exposure=self.exposure,
            costs=self.costs_total,
            trades=len(self.trades),
            bars_per_year=self.bars_per_year,
        )
