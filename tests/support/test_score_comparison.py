"""How `benchmarks/learning` compares two systems, with numbers derived by hand."""

import numpy as np
import pytest

from .score_comparison import (
    difference,
    interquartile_mean,
    interval,
    passes,
    pooled_difference,
    resampled,
    unit,
)


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        ([7.0], 7.0),
        ([0.0, 1.0], 0.5),
        ([100.0, 1.0, 3.0, -50.0], 2.0),  # the two in the middle
        ([8.0, 0.0, 100.0, 4.0, 0.0], 4.0),  # (3/4 × 0 + 4 + 3/4 × 8) / 2.5
        ([-9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 99.0, -9.0], 2.5),  # 1, 2, 3, 4 of -9, -9, 1, 2, 3, 4, 5, 99
    ],
)
def test_the_interquartile_mean_is_that_of_the_middle_half(scores, mean):
    assert interquartile_mean(scores) == pytest.approx(mean)


def test_the_interquartile_mean_is_taken_along_the_last_axis():
    np.testing.assert_allclose(interquartile_mean([[0, 0, 2, 9], [4, 1, 2, 3]]), [1.0, 2.5])


def test_resamples_of_two_seeds_are_binomial():
    # Two draws of {0, 1}: a mean of 0, 1/2 and 1 with probability 1/4, 1/2 and 1/4.
    draws = resampled([0.0, 1.0], np.random.default_rng(0), 40_000)
    shares = [np.mean(draws == value) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.01)


def test_the_interval_of_a_difference_of_two_seeds():
    estimate, draws = difference([10.0, 11.0], [4.0, 4.0], np.random.default_rng(0))
    assert estimate == 6.5
    assert interval(draws, 0.95) == (6.0, 7.0)  # both ends have probability 1/4
    assert interval(draws, 0.4) == (6.5, 6.5)  # from the 30th to the 70th percentile, inside the half in the middle


def test_both_systems_are_resampled_by_themselves():
    # The difference of two such means is -1 and 1 with probability 1/16, ±1/2 with 1/4 each, and 0 with 3/8.
    _, draws = difference([0.0, 1.0], [0.0, 1.0], np.random.default_rng(0))
    shares = [np.mean(draws == value) for value in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    assert shares == pytest.approx([1 / 16, 1 / 4, 3 / 8, 1 / 4, 1 / 16], abs=0.02)


def test_an_interval_is_that_of_percentiles():
    assert interval(np.arange(101.0), 0.9) == pytest.approx((5.0, 95.0))


@pytest.mark.parametrize(
    ("scores", "size"),
    [
        ([1.0, 3.0], 2.0**0.5),  # (1 + 1) / (2 - 1)
        ([500.0, 500.0], 25.0),  # no spread: 5 % of the score
        ([-200.0, -200.0], 10.0),
        ([0.0, 0.0], 1.0),
        ([80.0], 4.0),
    ],
)
def test_the_unit_is_the_peers_spread_with_a_floor(scores, size):
    assert unit(scores) == pytest.approx(size)


def test_tasks_are_pooled_in_units_of_the_peer():
    theirs = {"long": [500.0, 500.0], "short": [0.0, 0.0]}
    ours = {"long": [450.0, 450.0], "short": [4.0, 6.0]}
    estimate, draws = pooled_difference(ours, theirs, np.random.default_rng(0))
    assert estimate == pytest.approx(1.5)  # (-50 / 25 + 5 / 1) / 2
    assert interval(draws, 0.95) == pytest.approx((1.0, 2.0))  # of the second task 4 … 6, of the first -2


def test_a_pass_is_a_score_above_the_threshold():
    assert passes([450.0, 450.1, 500.0, 20.0], 450.0) == 2
