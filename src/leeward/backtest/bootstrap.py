"""Stationary block bootstrap: how far a statistic, or its distance to a baseline, could have come out by luck."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.backtest import statistics
from leeward.errors import ArgumentError

Floats = NDArray[np.float64]

__all__ = ["STATISTICS", "Interval", "Bootstrap", "stationary_indices", "bootstrap"]

STATISTICS = ("sharpe", "cagr", "cvar", "max_drawdown")
_CELLS = 2_000_000  # returns resampled at once: 16 MB per array


@dataclass(frozen=True, slots=True)
class Interval:
    """A percentile interval; `error` is the standard deviation over the draws."""

    low: float
    high: float
    error: float


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Draws of every statistic of every series, all on the same resampled bars, so that they can be subtracted."""

    draws: Mapping[str, Mapping[str, Floats]]  # series -> statistic -> (D,)
    mass: float  # of the intervals, such as 0.9

    def interval(self, series: str, statistic: str) -> Interval:
        return _interval(self.draws[series][statistic], self.mass)

    def difference(self, series: str, baseline: str, statistic: str) -> Interval:
        """Of `series` minus `baseline`."""
        return _interval(self.draws[series][statistic] - self.draws[baseline][statistic], self.mass)


def stationary_indices(n: int, n_draws: int, *, mean_block: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows (D, n) of bar numbers: blocks of geometric length, mean `mean_block`, from anywhere, wrapping at the end.

    Politis and Romano 1994, The Stationary Bootstrap, section 2.
    """
    if n < 2 or n_draws < 1 or not mean_block >= 1.0:
        raise ArgumentError(
            f"a bootstrap needs n ≥ 2 bars, n_draws ≥ 1, mean_block ≥ 1, got {n}, {n_draws}, {mean_block}"
        )
    new_block = rng.random((n_draws, n)) < 1.0 / mean_block
    new_block[:, 0] = True
    where = np.where(new_block, np.arange(n), 0)
    began = np.maximum.accumulate(where, axis=1)  # (D, n) the position at which the current block began
    starts = rng.integers(n, size=(n_draws, n))
    picked = np.take_along_axis(starts, began, axis=1) + np.arange(n) - began
    return np.asarray(picked % n, dtype=np.int64)


def bootstrap(
    series: Mapping[str, Floats],  # name -> (n,) simple returns of the same bars
    *,
    bars_per_year: float,
    alpha: float,
    rng: np.random.Generator,
    cash: Floats | float = 0.0,  # what cash earned in each of these bars (n,), or in every one
    mean_block: float = 20.0,
    n_draws: int = 2_000,
    mass: float = 0.9,
    progress: Callable[[int], None] = lambda drawn: None,
) -> Bootstrap:
    """Resample all series together and take `STATISTICS` of each; CVaR is of the log-returns, as beside a limit.

    `progress` is told how many draws are done: one after the other takes a minute over years of minutes.
    """
    lengths = {name: values.shape for name, values in series.items()}
    if len(set(lengths.values())) != 1:
        raise ArgumentError(f"a paired bootstrap needs series of the same bars, got shapes {lengths}")
    n = next(iter(series.values())).size
    parts: dict[str, dict[str, list[Floats]]] = {name: {s: [] for s in STATISTICS} for name in series}
    chunk, left = max(1, _CELLS // n), n_draws
    while left:
        progress(n_draws - left)
        rows = stationary_indices(n, min(chunk, left), mean_block=mean_block, rng=rng)
        left -= len(rows)
        for name, values in series.items():
            sample = values[rows]  # (d, n)
            idle = cash[rows] if isinstance(cash, np.ndarray) else cash
            found = parts[name]
            found["sharpe"].append(statistics.sharpe(sample, bars_per_year=bars_per_year, cash=idle))
            found["cagr"].append(statistics.cagr(sample, bars_per_year=bars_per_year))
            found["max_drawdown"].append(statistics.max_drawdown(sample))
            found["cvar"].append(statistics.cvar(np.log1p(sample), alpha=alpha))
    draws = {name: {s: np.concatenate(p) for s, p in found.items()} for name, found in parts.items()}
    return Bootstrap(draws=draws, mass=mass)


def _interval(draws: Floats, mass: float) -> Interval:
    low, high = np.quantile(draws, [(1.0 - mass) / 2.0, (1.0 + mass) / 2.0])
    return Interval(
        low=float(low), high=float(high), error=float(draws.std(ddof=1)) if len(draws) > 1 else float("nan")
    )
