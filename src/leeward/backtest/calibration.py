"""Does what was predicted happen as often, and as badly, as predicted?

Predictions stand in rows (T, N), one per bar: quantiles at rising levels (N,). Outcomes (T,) are one bar ahead.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from scipy.special import xlogy

from leeward.errors import ArgumentError, ShapeError
from leeward.maths import diagnostics

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

__all__ = [
    "Test",
    "coverage",
    "coverage_error",
    "pit",
    "pit_histogram",
    "kupiec",
    "christoffersen_independence",
    "christoffersen",
    "tail_residual",
    "step_weights",
    "acerbi_szekely",
]


@dataclass(frozen=True, slots=True)
class Test:
    """A test statistic and the probability of one at least as bad when the prediction is right."""

    __test__ = False  # not a test case, whatever pytest reads into the name

    statistic: float
    p_value: float


def coverage(quantiles: Floats, outcomes: Floats) -> Floats:  # (T, N), (T,) -> (N,)
    """Share of outcomes at or below each predicted quantile, by `leeward.maths`; the levels when calibrated."""
    _check(quantiles, outcomes)
    return np.asarray(diagnostics.coverage(*_tensors(quantiles, outcomes)).numpy())


def coverage_error(levels: Floats, quantiles: Floats, outcomes: Floats) -> float:  # (N,), (T, N), (T,) -> ()
    """Mean absolute gap between level and coverage, as train/calibration_error has it for the critic."""
    _check(quantiles, outcomes)
    return float(diagnostics.calibration_error(*_tensors(quantiles, outcomes), torch.tensor(levels)))


def pit(levels: Floats, quantiles: Floats, outcomes: Floats) -> Floats:  # (N,), (T, N), (T,) -> (T,)
    """Probability integral transform: the level at which each outcome stood; uniform when calibrated.

    Linear between two levels. Beyond the outermost one the prediction does not say where: the middle of what is left.
    """
    _check(quantiles, outcomes)
    if levels.shape != quantiles.shape[1:] or (np.diff(levels) <= 0.0).any() or not 0.0 < levels[0] <= levels[-1] < 1.0:
        raise ArgumentError(f"levels are rising numbers in (0, 1), one per quantile {quantiles.shape}, got {levels}")
    rows = np.sort(quantiles, axis=1)
    ranks = np.empty(len(outcomes))
    for t, (row, outcome) in enumerate(zip(rows, outcomes, strict=True)):
        if outcome < row[0]:
            ranks[t] = levels[0] / 2.0
        elif outcome > row[-1]:
            ranks[t] = (1.0 + levels[-1]) / 2.0
        else:
            ranks[t] = np.interp(outcome, row, levels)
    return ranks


def pit_histogram(ranks: Floats, *, n_bins: int = 20) -> Floats:  # (T,) -> (n_bins,)
    """Share of outcomes per bin, times the number of bins: 1 everywhere when calibrated, U-shaped when too narrow."""
    counts, _ = np.histogram(ranks, bins=n_bins, range=(0.0, 1.0))
    return np.asarray(counts * n_bins / len(ranks))


def kupiec(breaches: Flags, alpha: float) -> Test:  # (T,)
    """Were losses beyond VaR as frequent as alpha? Proportion-of-failures likelihood ratio, χ²(1).

    Kupiec 1995, Techniques for Verifying the Accuracy of Risk Measurement Models.
    """
    n, x = len(breaches), int(breaches.sum())
    ratio = 2.0 * (_log_likelihood(n - x, x, x / n) - _log_likelihood(n - x, x, alpha))
    return Test(ratio, float(stats.chi2.sf(ratio, 1)))


def christoffersen_independence(breaches: Flags) -> Test:  # (T,)
    """Do losses beyond VaR come one by one? Likelihood ratio of a first-order Markov chain, χ²(1).

    Christoffersen 1998, Evaluating Interval Forecasts, eq. 7–8.
    """
    before, after = breaches[:-1], breaches[1:]
    n00, n01 = int((~before & ~after).sum()), int((~before & after).sum())
    n10, n11 = int((before & ~after).sum()), int((before & after).sum())
    together = (n01 + n11) / (n00 + n01 + n10 + n11)
    calm = n01 / (n00 + n01) if n00 + n01 else 0.0
    stressed = n11 / (n10 + n11) if n10 + n11 else 0.0
    free = _log_likelihood(n00, n01, calm) + _log_likelihood(n10, n11, stressed)
    ratio = max(0.0, 2.0 * (free - _log_likelihood(n00 + n10, n01 + n11, together)))
    return Test(ratio, float(stats.chi2.sf(ratio, 1)))


def christoffersen(breaches: Flags, alpha: float) -> Test:  # (T,)
    """Conditional coverage: frequency and independence together, χ²(2)."""
    ratio = kupiec(breaches, alpha).statistic + christoffersen_independence(breaches).statistic
    return Test(ratio, float(stats.chi2.sf(ratio, 2)))


def tail_residual(outcomes: Floats, var: Floats, cvar: Floats, alpha: float) -> Floats:  # (..., T), (T,), (T,) -> (...)
    """Acerbi and Szekely's Z₂ = 1 − Σ xₜ·1{xₜ ≤ VaRₜ} / (T α CVaRₜ).

    0 when the prediction is right, negative when tails were worse than it said.
    Acerbi and Szekely 2014, Back-testing Expected Shortfall, eq. 6, for returns (losses are negative).
    """
    if (cvar >= 0.0).any():
        raise ArgumentError(f"Z₂ divides by CVaR and needs predicted losses (CVaR < 0), got {cvar.max():.3g}")
    hit = outcomes <= var
    return np.asarray(1.0 - (outcomes * hit / cvar).sum(axis=-1) / (outcomes.shape[-1] * alpha))


def step_weights(levels: Floats) -> Floats:  # (N,) -> (N,)
    """Probability each level stands for: the steps between the middles of neighbouring levels, from 0 to 1."""
    edges = np.concatenate([[0.0], (levels[1:] + levels[:-1]) / 2.0, [1.0]])
    return np.asarray(np.diff(edges))


def acerbi_szekely(
    outcomes: Floats,  # (T,)
    quantiles: Floats,  # (T, N)
    weights: Floats,  # (N,) probability each quantile stands for
    var: Floats,  # (T,)
    cvar: Floats,  # (T,)
    *,
    alpha: float,
    rng: np.random.Generator,
    n_draws: int = 2_000,
) -> Test:
    """Z₂ and its one-sided p-value: how often markets drawn from the predictions themselves look as bad."""
    _check(quantiles, outcomes)
    if weights.shape != quantiles.shape[1:] or not np.isclose(weights.sum(), 1.0):
        raise ArgumentError(f"weights are probabilities, one per quantile {quantiles.shape}, sum 1, got {weights}")
    measured = float(tail_residual(outcomes, var, cvar, alpha))
    rows = np.sort(quantiles, axis=1)
    edges = np.cumsum(weights)[:-1]
    as_bad = 0
    for _ in range(n_draws):
        picked = np.searchsorted(edges, rng.random(len(outcomes)), side="right")
        drawn = np.take_along_axis(rows, picked[:, None], axis=1)[:, 0]
        as_bad += bool(tail_residual(drawn, var, cvar, alpha) <= measured)
    return Test(measured, (as_bad + 1.0) / (n_draws + 1.0))


def _log_likelihood(misses: int, hits: int, rate: float) -> float:
    return float(xlogy(misses, 1.0 - rate) + xlogy(hits, rate))


def _tensors(quantiles: Floats, outcomes: Floats) -> tuple[torch.Tensor, torch.Tensor]:  # (T, N), (T, 1)
    """Sorted: predictions that cross stand for the distribution they are."""
    return torch.tensor(np.sort(quantiles, axis=1)), torch.tensor(outcomes[:, None])


def _check(quantiles: Floats, outcomes: Floats) -> None:
    if quantiles.ndim != 2 or outcomes.shape != quantiles.shape[:1] or not len(outcomes):
        raise ShapeError(f"expected quantiles (T, N) and outcomes (T,), got {quantiles.shape} and {outcomes.shape}")
