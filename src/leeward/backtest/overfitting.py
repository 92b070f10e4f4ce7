"""How much of a good result is the luck of having tried many things: deflated Sharpe ratio and PBO.

All Sharpe ratios in this file are per bar, not annualised.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from leeward.backtest import statistics
from leeward.errors import ArgumentError

Floats = NDArray[np.float64]

__all__ = [
    "expected_best_sharpe",
    "probabilistic_sharpe",
    "deflated_sharpe",
    "Overfitting",
    "backtest_overfitting",
]


def expected_best_sharpe(sharpe_std: float, n_trials: int) -> float:
    """The best Sharpe ratio to expect from `n_trials` tries without any skill.

    SR₀ = √V · ((1 − γ) Φ⁻¹(1 − 1/N) + γ Φ⁻¹(1 − 1/(N e))), γ = Euler's 0.5772…
    Bailey and López de Prado 2014, The Deflated Sharpe Ratio, eq. 1. One try expects 0.
    """
    if n_trials < 1 or sharpe_std < 0.0:
        raise ArgumentError(f"needs n_trials ≥ 1 and a standard deviation ≥ 0, got {n_trials} and {sharpe_std}")
    if n_trials == 1:
        return 0.0
    high, higher = stats.norm.ppf(1.0 - 1.0 / n_trials), stats.norm.ppf(1.0 - 1.0 / (n_trials * np.e))
    return float(sharpe_std * ((1.0 - np.euler_gamma) * high + np.euler_gamma * higher))


def probabilistic_sharpe(sharpe: float, benchmark: float, *, bars: int, skew: float, kurtosis: float) -> float:
    """Probability that the true Sharpe ratio is above `benchmark`, given the moments of the returns.

    Φ((SR − SR*) √(n − 1) / √(1 − γ₃ SR + (γ₄ − 1)/4 · SR²)); Bailey and López de Prado 2012, The Sharpe Ratio Efficient
    Frontier, eq. 11. `kurtosis` is γ₄ itself: 3 for a normal.
    """
    spread = 1.0 - skew * sharpe + (kurtosis - 1.0) / 4.0 * sharpe**2
    if bars < 2 or spread <= 0.0:
        raise ArgumentError(
            f"needs two bars or more and moments of real returns, got bars={bars}, variance {spread:.3g}"
        )
    return float(stats.norm.cdf((sharpe - benchmark) * np.sqrt((bars - 1.0) / spread)))


def deflated_sharpe(returns: Floats, trial_sharpes: Floats) -> float:
    """Probability that the Sharpe ratio of `returns` (n,) beats the best that its trials (K,) would give by luck."""
    sharpe = float(statistics.sharpe(returns, bars_per_year=1.0))
    spread = float(trial_sharpes.std(ddof=1)) if len(trial_sharpes) > 1 else 0.0
    return probabilistic_sharpe(
        sharpe,
        expected_best_sharpe(spread, len(trial_sharpes)),
        bars=len(returns),
        skew=float(stats.skew(returns, bias=False)),
        kurtosis=float(stats.kurtosis(returns, bias=False)) + 3.0,
    )


@dataclass(frozen=True, slots=True)
class Overfitting:
    """What choosing the best in sample was worth out of sample, over all symmetric splits."""

    probability: float  # of overfitting: the chosen one ends in the lower half
    probability_of_loss: float  # the chosen one has a Sharpe ratio below 0 out of sample
    logits: Floats  # (C,) ln(rank / (1 − rank)) of the chosen one
    sharpe_in: Floats  # (C,) of the chosen one, per bar
    sharpe_out: Floats  # (C,)


def backtest_overfitting(returns: Floats, *, n_blocks: int = 16) -> Overfitting:  # (n, K)
    """Probability of backtest overfitting by combinatorially symmetric cross-validation.

    The n bars are cut into S blocks (a remainder at the end is dropped); each choice of S/2 of them is once the sample
    in which the best of K strategies is chosen, the others that in which its rank is read.
    Bailey, Borwein, López de Prado and Zhu 2017, The Probability of Backtest Overfitting, section 3.
    """
    n, k = returns.shape
    if n_blocks < 2 or n_blocks % 2 or n < 2 * n_blocks or k < 2:
        raise ArgumentError(
            f"PBO needs two strategies or more, an even number of blocks and two bars in each, "
            f"got returns {returns.shape} and n_blocks={n_blocks}"
        )
    blocks = returns[: n - n % n_blocks].reshape(n_blocks, -1, k)  # (S, n/S, K)
    chosen = np.zeros((len(list(combinations(range(n_blocks), n_blocks // 2))), n_blocks))  # (C, S)
    for row, members in enumerate(combinations(range(n_blocks), n_blocks // 2)):
        chosen[row, list(members)] = 1.0
    inside, outside = _sharpes(blocks, chosen), _sharpes(blocks, 1.0 - chosen)  # (C, K)
    best = inside.argmax(axis=1)[:, None]
    ranks = stats.rankdata(outside, axis=1)  # 1 = worst
    rank = np.take_along_axis(ranks, best, axis=1)[:, 0] / (k + 1.0)
    logits = np.log(rank / (1.0 - rank))
    sharpe_out = np.take_along_axis(outside, best, axis=1)[:, 0]
    return Overfitting(
        probability=float((logits <= 0.0).mean()),
        probability_of_loss=float((sharpe_out < 0.0).mean()),
        logits=logits,
        sharpe_in=np.take_along_axis(inside, best, axis=1)[:, 0],
        sharpe_out=sharpe_out,
    )


def _sharpes(blocks: Floats, chosen: Floats) -> Floats:  # (S, m, K), (C, S) -> (C, K)
    """`statistics.sharpe` per bar of every choice of blocks; 0 where it is undefined, since all must have a rank."""
    count = chosen.sum(axis=1, keepdims=True) * blocks.shape[1]
    # Sums per block are enough; centring first keeps the difference of squares accurate.
    centre = blocks.mean(axis=(0, 1))
    moved = blocks - centre
    mean = chosen @ moved.sum(axis=1) / count
    variance = (chosen @ np.square(moved).sum(axis=1) - count * mean**2) / (count - 1.0)
    usable = variance > 0.0
    return np.where(usable, (mean + centre) / np.sqrt(np.where(usable, variance, 1.0)), 0.0)
