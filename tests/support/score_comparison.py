"""How the scores of two systems are compared: interquartile means, and intervals from resampled seeds.

Pure functions of arrays of scores, one score for each seed. The seeds of two systems are not pairs, since a seed does
not give two systems the same random numbers: each resample draws the seeds of each system and task anew, with
replacement ("stratified"). An interval is that of the percentiles of what the resamples say.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Interval", "difference", "interquartile_mean", "interval", "passes", "pooled_difference", "unit"]

Array = NDArray[np.float64]
Interval = tuple[float, float]
RESAMPLES = 10_000
SMALLEST_UNIT = 0.05  # of the size of the peer's score


def interquartile_mean(scores: ArrayLike) -> Array:
    """Mean of the middle half along the last axis; a score on the edge counts with the part that is inside."""
    ordered = np.sort(np.asarray(scores, dtype=np.float64), axis=-1)
    n = ordered.shape[-1]
    place = np.arange(n)
    weights = np.minimum(place + 1, 0.75 * n) - np.maximum(place, 0.25 * n)
    return np.asarray(ordered @ np.clip(weights, 0.0, 1.0) / (0.5 * n))


def resampled(scores: ArrayLike, rng: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """The interquartile mean of each resample of the seeds."""
    values = np.asarray(scores, dtype=np.float64)
    return interquartile_mean(values[rng.integers(len(values), size=(resamples, len(values)))])


def difference(ours: ArrayLike, theirs: ArrayLike, rng: np.random.Generator) -> tuple[float, Array]:
    """Of the interquartile means: ours less theirs, and the same of each resample."""
    estimate = float(interquartile_mean(ours) - interquartile_mean(theirs))
    return estimate, resampled(ours, rng) - resampled(theirs, rng)


def interval(resamples: ArrayLike, level: float) -> Interval:
    """The middle part of the resamples that has this share of them."""
    low, high = np.quantile(np.asarray(resamples), [0.5 - level / 2, 0.5 + level / 2])
    return float(low), float(high)


def unit(scores: ArrayLike) -> float:
    """One spread of the peer: the standard deviation over its seeds, at least 5 % of the size of its score."""
    values = np.asarray(scores, dtype=np.float64)
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return max(spread, SMALLEST_UNIT * abs(float(interquartile_mean(values)))) or 1.0


def pooled_difference(
    ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]], rng: np.random.Generator
) -> tuple[float, Array]:
    """Mean over tasks of the difference in units of the peer's spread, and the same of each resample.

    The unit of a task is not resampled. Every task counts alike.
    """
    found = [
        (estimate / unit(theirs[task]), draws / unit(theirs[task]))
        for task in ours
        for estimate, draws in [difference(ours[task], theirs[task], rng)]
    ]
    return float(np.mean([estimate for estimate, _ in found])), np.mean([draws for _, draws in found], axis=0)


def passes(scores: ArrayLike, threshold: float) -> int:
    """How many runs have a score above the threshold."""
    return int(np.sum(np.asarray(scores) > threshold))
