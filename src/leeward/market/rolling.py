"""Rolling windows, each computed from its own bars alone.

A running sum would be faster, but its rounding depends on everything before it: then a bar outside the look-back would
change a feature in the last digit, and "finite look-back" would not be exact.
"""

import numba
import numpy as np
from numpy.typing import NDArray

from leeward.market.bars import FloatArray

__all__ = ["rolling_max", "rolling_mean", "rolling_std", "trailing_median", "trailing_std", "weighted"]


@numba.njit(cache=True)
def rolling_mean(values: FloatArray, window: int) -> FloatArray:  # (n,) -> (n,), NaN where the window is not full
    out = np.full(values.shape[0], np.nan)
    for t in range(window - 1, values.shape[0]):
        total = 0.0
        for i in range(t - window + 1, t + 1):
            total += values[i]
        out[t] = total / window
    return out


@numba.njit(cache=True)
def rolling_std(values: FloatArray, window: int) -> FloatArray:  # (n,) -> (n,), sample standard deviation
    out = np.full(values.shape[0], np.nan)
    for t in range(window - 1, values.shape[0]):
        out[t] = _std(values[t - window + 1 : t + 1])
    return out


@numba.njit(cache=True)
def rolling_max(values: FloatArray, window: int) -> FloatArray:  # (n,) -> (n,)
    out = np.full(values.shape[0], np.nan)
    for t in range(window - 1, values.shape[0]):
        top = values[t]
        for i in range(t - window + 1, t):
            if values[i] > top:
                top = values[i]
        out[t] = top
    return out


@numba.njit(cache=True)
def weighted(values: FloatArray, weights: FloatArray) -> FloatArray:  # (n,), (w,) -> (n,); weights[0] is the newest bar
    window = weights.shape[0]
    out = np.full(values.shape[0], np.nan)
    for t in range(window - 1, values.shape[0]):
        total = 0.0
        for i in range(window):
            total += weights[i] * values[t - i]
        out[t] = total
    return out


@numba.njit(cache=True)
def trailing_std(values: FloatArray, window: int) -> FloatArray:
    """Sample standard deviation of up to `window` values ≤ t; NaN below two of them. Leading NaN are skipped."""
    out = np.full(values.shape[0], np.nan)
    first = 0
    while first < values.shape[0] and np.isnan(values[first]):
        first += 1
    for t in range(first + 1, values.shape[0]):
        out[t] = _std(values[max(first, t - window + 1) : t + 1])
    return out


@numba.njit(cache=True)
def trailing_median(values: FloatArray, window: int) -> FloatArray:
    """Median of up to `window` values ≤ t; NaN where one of them is."""
    out = np.full(values.shape[0], np.nan)
    for t in range(values.shape[0]):
        out[t] = np.median(values[max(0, t - window + 1) : t + 1])
    return out


@numba.njit(cache=True)
def _std(values: NDArray[np.float64]) -> float:
    total = 0.0
    for value in values:
        total += value
    mean = total / values.shape[0]
    squares = 0.0
    for value in values:
        squares += (value - mean) ** 2
    return float(np.sqrt(squares / (values.shape[0] - 1)))
