"""The performance table: what a series of returns and the positions behind it were worth."""

from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from leeward.backtest import statistics
from leeward.errors import ArgumentError

Floats = NDArray[np.float64]

__all__ = ["Performance", "Activity", "performance_of", "activity_of"]


@dataclass(frozen=True, slots=True)
class Performance:
    """Statistics of simple returns per bar; VaR and CVaR are of the risk variable, the net log-return of a bar."""

    bars: int
    years: float
    total_return: float  # fraction
    cagr: float  # fraction a year
    volatility: float  # fraction a year
    sharpe: float  # annualised, in excess of cash
    sortino: float  # annualised, in excess of cash
    calmar: float
    omega: float
    max_drawdown: float  # fraction, ≤ 0
    max_drawdown_bars: int  # bars under water, the longest stretch
    alpha: float  # tail mass of the next two
    var: float  # log-return of one bar
    cvar: float  # log-return of one bar
    skew: float
    kurtosis: float  # excess: 0 for a normal
    tail_ratio: float
    hit_rate: float  # share of the bars with a result that were positive
    profit_factor: float  # per bar

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(field.name for field in fields(cls))


@dataclass(frozen=True, slots=True)
class Activity:
    """What was done and what it cost."""

    turnover_per_year: float  # traded notional over equity, a year
    exposure: float  # mean over bars of Σ|weight| at the close
    trades: int  # round trips, the ones still open included
    costs_per_year: float  # all costs and interest paid over equity, a year
    costs_total: float  # currency
    costs_of_gross_profit: float  # fraction of the profit before costs; NaN when that is not positive

    def as_dict(self) -> dict[str, float | int]:
        return asdict(self)


def performance_of(
    returns: Floats,  # (n,) simple returns
    step_returns: Floats | None = None,  # (n,) log-returns; None: taken from `returns`
    *,
    bars_per_year: float,
    alpha: float,
    cash: Floats | float = 0.0,  # what cash earned in each bar (n,), or in every one
) -> Performance:
    """The whole table of one series."""
    if returns.ndim != 1 or returns.size < 2:
        raise ArgumentError(f"performance needs a series of at least two returns (n,), got shape {returns.shape}")
    if not np.isfinite(returns).all() or (returns <= -1.0).any():
        raise ArgumentError("performance needs finite simple returns above −1; a ruined book is floored by the env")
    if not bars_per_year > 0.0:
        raise ArgumentError(f"bars_per_year counts the bars of a year and is positive, got {bars_per_year}")
    risk = np.log1p(returns) if step_returns is None else step_returns
    growth = float(statistics.cagr(returns, bars_per_year=bars_per_year))
    depth = float(statistics.max_drawdown(returns))
    moving = np.ptp(returns) > 0.0  # the higher moments of a constant are undefined
    n_results = int(np.count_nonzero(returns))
    return Performance(
        bars=returns.size,
        years=returns.size / bars_per_year,
        total_return=float(np.expm1(np.log1p(returns).sum())),
        cagr=growth,
        volatility=float(statistics.volatility(returns, bars_per_year=bars_per_year)),
        sharpe=float(statistics.sharpe(returns, bars_per_year=bars_per_year, cash=cash)),
        sortino=float(statistics.sortino(returns, bars_per_year=bars_per_year, cash=cash)),
        calmar=growth / -depth if depth < 0.0 else float("nan"),
        omega=float(statistics.omega(returns, cash=cash)),
        max_drawdown=depth,
        max_drawdown_bars=statistics.longest_drawdown_bars(returns),
        alpha=alpha,
        var=float(statistics.value_at_risk(risk, alpha=alpha)),
        cvar=float(statistics.cvar(risk, alpha=alpha)),
        skew=float(stats.skew(returns, bias=False)) if moving and returns.size > 2 else float("nan"),
        kurtosis=float(stats.kurtosis(returns, bias=False)) if moving and returns.size > 3 else float("nan"),
        tail_ratio=float(statistics.tail_ratio(returns)),
        hit_rate=float((returns > 0.0).sum() / n_results) if n_results else float("nan"),
        profit_factor=float(statistics.omega(returns)),
    )


def activity_of(
    *,
    equity: Floats,  # (n + 1,) currency, the start first
    turnover: Floats,  # (n,) fraction of equity
    exposure: Floats,  # (n,) Σ|weight| at the close
    costs: Floats,  # (n,) currency: commission, spread, impact, fees, interest paid
    trades: int,
    bars_per_year: float,
) -> Activity:
    """Turnover, exposure and costs of one run."""
    paid = float(costs.sum())
    gross = float(equity[-1] - equity[0]) + paid
    return Activity(
        turnover_per_year=float(turnover.mean()) * bars_per_year,
        exposure=float(exposure.mean()),
        trades=trades,
        costs_per_year=float((costs / equity[:-1]).mean()) * bars_per_year,
        costs_total=paid,
        costs_of_gross_profit=paid / gross if gross > 0.0 else float("nan"),
    )
