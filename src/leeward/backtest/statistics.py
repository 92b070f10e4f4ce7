"""Statistics of returns along the last axis, so that a table (n,) and 2,000 bootstrap draws (D, n) share one equation.

A ratio whose denominator is zero is NaN: no statistic is made up for a flat line.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from leeward.maths import cvar as tail
from leeward.maths.checks import check_alpha

Floats = NDArray[np.float64]

__all__ = [
    "cagr",
    "volatility",
    "sharpe",
    "sortino",
    "omega",
    "drawdowns",
    "max_drawdown",
    "longest_drawdown_bars",
    "value_at_risk",
    "cvar",
    "tail_ratio",
]


def cagr(returns: Floats, *, bars_per_year: float) -> Floats:  # (..., n) -> (...)
    """Compound growth a year: (Π (1 + r))^(bars_per_year / n) − 1."""
    growth = np.log1p(returns).sum(axis=-1)
    return np.asarray(np.expm1(growth * bars_per_year / returns.shape[-1]))


def volatility(returns: Floats, *, bars_per_year: float) -> Floats:  # (..., n) -> (...)
    """Sample standard deviation of a bar's return, times √bars_per_year."""
    return np.asarray(_deviation(returns) * np.sqrt(bars_per_year))


def sharpe(returns: Floats, *, bars_per_year: float, cash: Floats | float = 0.0) -> Floats:  # (..., n) -> (...)
    """√bars_per_year · mean(r − cash) / std(r − cash); `cash` is what cash earned in each bar, or in every one."""
    excess = _excess(returns, cash)
    return np.asarray(_ratio(excess.mean(axis=-1), _deviation(excess)) * np.sqrt(bars_per_year))


def sortino(returns: Floats, *, bars_per_year: float, cash: Floats | float = 0.0) -> Floats:  # (..., n) -> (...)
    """√bars_per_year · mean(r − cash) / √mean(min(r − cash, 0)²)."""
    excess = _excess(returns, cash)
    downside = np.sqrt(np.square(np.minimum(excess, 0.0)).mean(axis=-1))
    return np.asarray(_ratio(excess.mean(axis=-1), downside) * np.sqrt(bars_per_year))


def omega(returns: Floats, *, cash: Floats | float = 0.0) -> Floats:  # (..., n) -> (...)
    """Sum of the returns above cash over the sum of those below it; where cash earns nothing, the profit factor."""
    excess = _excess(returns, cash)
    return _ratio(np.maximum(excess, 0.0).sum(axis=-1), np.maximum(-excess, 0.0).sum(axis=-1))


def drawdowns(returns: Floats) -> Floats:  # (..., n) -> (..., n)
    """Equity over its highest value so far (the start counts), minus 1: zero or negative."""
    equity = np.cumprod(1.0 + returns, axis=-1)
    peak = np.maximum(np.maximum.accumulate(equity, axis=-1), 1.0)
    return np.asarray(equity / peak - 1.0)


def max_drawdown(returns: Floats) -> Floats:  # (..., n) -> (...)
    """The deepest drawdown, zero or negative."""
    return np.asarray(drawdowns(returns).min(axis=-1))


def longest_drawdown_bars(returns: Floats) -> int:  # (n,) -> ()
    """The largest number of bars in a row that end below an earlier peak, finished or not."""
    at_peak = np.flatnonzero(drawdowns(returns) >= 0.0)
    edges = np.concatenate([[-1], at_peak, [returns.shape[-1]]])
    return int(np.diff(edges).max()) - 1


def value_at_risk(returns: Floats, *, alpha: float) -> Floats:  # (..., n) -> (...)
    """Historical VaR by `leeward.maths.cvar`: the mildest observation of the tail that `cvar` is the mean of."""
    return np.asarray(tail.value_at_risk(torch.tensor(returns, dtype=torch.float64), alpha).numpy())


def cvar(returns: Floats, *, alpha: float) -> Floats:  # (..., n) -> (...)
    """Historical CVaR by `leeward.maths.cvar`, the one the agent is trained with.

    Only the worst k = ⌈αn⌉ observations can matter, and they hold the tail mass αn/k, so the rest is never sorted.
    """
    n = returns.shape[-1]
    check_alpha(alpha)
    k = min(n, int(np.ceil(alpha * n)))
    worst = np.partition(returns, k - 1, axis=-1)[..., :k]  # (..., k)
    return np.asarray(tail.from_samples(torch.from_numpy(worst), min(1.0, alpha * n / k)).numpy())


def tail_ratio(returns: Floats) -> Floats:  # (..., n) -> (...)
    """|95 % quantile| / |5 % quantile|: above 1, the good days are larger than the bad ones."""
    high, low = np.quantile(returns, [0.95, 0.05], axis=-1)
    return _ratio(np.abs(high), np.abs(low))


def _excess(returns: Floats, cash: Floats | float) -> Floats:
    excess = np.asarray(returns - cash)
    # An account in cash earns what cash earns but for the last bit, which must not become a ratio.
    return np.where(np.abs(excess) < 1e-14, 0.0, excess)


def _deviation(returns: Floats) -> Floats:
    if returns.shape[-1] < 2:
        return np.full(returns.shape[:-1], np.nan)
    spread = returns.std(axis=-1, ddof=1)
    # The mean of equal numbers can miss them by one bit; the residue must not become a Sharpe ratio of 1e15.
    constant = returns.max(axis=-1) == returns.min(axis=-1)
    return np.where(constant, 0.0, spread)


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    usable = np.asarray(denominator) > 0.0
    return np.where(usable, numerator / np.where(usable, denominator, 1.0), np.nan)
