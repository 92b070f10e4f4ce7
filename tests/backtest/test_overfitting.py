"""Deflated Sharpe ratio and probability of backtest overfitting."""

from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import quantstats.stats as quantstats

from leeward.backtest import statistics
from leeward.backtest.overfitting import (
    backtest_overfitting,
    deflated_sharpe,
    expected_best_sharpe,
    probabilistic_sharpe,
)
from leeward.errors import ArgumentError


def test_the_published_example_of_the_deflated_sharpe_ratio():
    # Bailey and López de Prado 2014: 1250 daily returns, annual SR 2.5, skew −3, kurtosis 10, 100 trials whose annual
    # Sharpe ratios have variance 1/2. They print SR₀ = 0.1132 and DSR = 0.9004; with 46 trials DSR = 0.9505.
    benchmark = expected_best_sharpe(np.sqrt(0.5 / 250), 100)
    assert benchmark == pytest.approx(0.1132, abs=5e-5)
    moments = {"bars": 1250, "skew": -3.0, "kurtosis": 10.0}
    assert probabilistic_sharpe(2.5 / np.sqrt(250), benchmark, **moments) == pytest.approx(0.9004, abs=2e-4)
    fewer = expected_best_sharpe(np.sqrt(0.5 / 250), 46)
    assert probabilistic_sharpe(2.5 / np.sqrt(250), fewer, **moments) == pytest.approx(0.9505, abs=2e-4)


def test_the_expected_best_of_many_skill_less_trials_is_what_simulation_gives():
    draws = np.random.default_rng(0).standard_normal((4000, 60)).max(axis=1)
    assert expected_best_sharpe(1.0, 60) == pytest.approx(draws.mean(), rel=0.02)


def test_one_trial_is_not_deflated_and_equals_quantstats():
    returns = 0.0005 + 0.01 * np.random.default_rng(1).standard_t(5, size=800)
    ours = deflated_sharpe(returns, np.array([0.05]))
    assert ours == pytest.approx(quantstats.probabilistic_sharpe_ratio(pd.Series(returns)), rel=1e-9)


def test_more_trials_deflate_more():
    returns = 0.0008 + 0.01 * np.random.default_rng(1).standard_normal(800)
    trials = 0.04 * np.random.default_rng(2).standard_normal(50)
    assert (
        deflated_sharpe(returns, trials) < deflated_sharpe(returns, trials[:5]) < deflated_sharpe(returns, trials[:1])
    )


def plain_pbo(returns: np.ndarray, n_blocks: int) -> float:
    blocks = np.split(returns[: len(returns) - len(returns) % n_blocks], n_blocks)
    low = total = 0
    for chosen in combinations(range(n_blocks), n_blocks // 2):
        inside = np.concatenate([blocks[i] for i in chosen])
        outside = np.concatenate([blocks[i] for i in range(n_blocks) if i not in chosen])
        best = np.argmax(inside.mean(0) / inside.std(0, ddof=1))
        scores = outside.mean(0) / outside.std(0, ddof=1)
        rank = (scores < scores[best]).sum() + 1
        low += rank / (returns.shape[1] + 1) <= 0.5
        total += 1
    return low / total


def test_pbo_equals_a_plain_loop_over_all_splits():
    returns = np.random.default_rng(5).standard_normal((53, 7)) + np.linspace(0.0, 0.2, 7)
    assert backtest_overfitting(returns, n_blocks=6).probability == pytest.approx(plain_pbo(returns, 6))


def test_the_sharpe_ratios_of_all_splits_are_those_of_the_one_formula():
    # n_blocks 2: the first choice is the first half (26 of 53 bars, the last one is dropped), the second the other one
    returns = np.random.default_rng(5).standard_normal((53, 7)) + np.linspace(0.0, 0.2, 7)
    found = backtest_overfitting(returns, n_blocks=2)
    halves = [statistics.sharpe(half.T, bars_per_year=1.0) for half in (returns[:26], returns[26:52])]  # (K,) each
    best = [int(half.argmax()) for half in halves]
    assert found.sharpe_in == pytest.approx([halves[0][best[0]], halves[1][best[1]]], rel=1e-12)
    assert found.sharpe_out == pytest.approx([halves[1][best[0]], halves[0][best[1]]], rel=1e-12)


def test_pbo_is_low_with_a_real_edge_and_near_a_half_without():
    rng = np.random.default_rng(6)
    noise = [backtest_overfitting(rng.standard_normal((320, 20)), n_blocks=8).probability for _ in range(20)]
    assert np.mean(noise) == pytest.approx(0.5, abs=0.12)
    skilled = rng.standard_normal((320, 20))
    skilled[:, 3] += 0.5
    found = backtest_overfitting(skilled, n_blocks=8)
    assert found.probability < 0.01
    assert found.probability_of_loss == 0.0


def test_pbo_is_one_when_the_best_half_is_always_the_worst_other_half():
    # Strategy k earns only in block k and loses everywhere else: being chosen for a block means not having it outside.
    blocks = np.repeat(np.eye(4), 10, axis=0)
    returns = blocks - 0.1 + 0.01 * np.random.default_rng(0).standard_normal((40, 4))
    assert backtest_overfitting(returns, n_blocks=4).probability == 1.0


def test_what_cannot_be_split_is_refused():
    with pytest.raises(ArgumentError, match=r"even number of blocks.*n_blocks=5"):
        backtest_overfitting(np.zeros((100, 3)), n_blocks=5)
    with pytest.raises(ArgumentError, match="two strategies"):
        backtest_overfitting(np.zeros((100, 1)))
    with pytest.raises(ArgumentError, match="n_trials ≥ 1"):
        expected_best_sharpe(1.0, 0)
