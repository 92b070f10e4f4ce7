"""The sentence follows from the numbers: a planted edge, shuffled positions, a broken limit."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from leeward.backtest.bootstrap import Interval, bootstrap
from leeward.backtest.judgement import judged_split
from leeward.backtest.verdict import (
    Edge,
    Outcome,
    Tail,
    control_verdict,
    edge_verdict,
    risk_verdict,
    smallest_detectable,
)
from leeward.errors import ArgumentError

BASELINES = {"buy and hold": -0.031, "volatility target": -0.021}


def edge(low: float, high: float, percentile: float, *, sharpe_in: float | None = 0.9) -> Edge:
    return Edge(sharpe_in, 0.8, 0.5, Interval(low, high, 0.2), percentile, 3, "filled at the next open")


def tail(measured: float, low: float, high: float, split: str = "test") -> Tail:
    return Tail(split, measured, Interval(low, high, 0.001))


@pytest.mark.parametrize(
    ("low", "high", "percentile", "headline"),
    [
        (0.1, 0.6, 99.0, "Evidence of an edge"),
        (0.1, 0.6, 94.0, "No evidence of an edge"),  # ahead, but not better timed than chance
        (-0.1, 0.6, 99.0, "No evidence of an edge"),  # well timed, but the difference may be 0
        (-0.6, -0.1, 99.0, "No edge, worse than holding"),  # excludes 0 on the wrong side: never an edge
        (float("nan"), float("nan"), 50.0, "No evidence of an edge"),
    ],
)
def test_an_edge_needs_both_the_difference_and_the_timing(low, high, percentile, headline):
    assert edge_verdict(edge(low, high, percentile), judged="test").headline == headline


AHEAD = edge(0.1, 0.6, 99.0)


def test_nothing_is_claimed_about_bars_the_agent_has_learned_from():
    verdict = edge_verdict(replace(AHEAD, in_sample="7 of 9 decisions lie between then and now"), judged="whole")
    assert (verdict.headline, verdict.outcome) == ("Not judged, in sample", Outcome.OPEN)
    assert verdict.sentence.startswith("7 of 9 decisions lie between then and now: a Sharpe ratio of 0.80 there")


def test_an_agent_that_loses_to_cash_for_certain_is_worse_than_cash():
    lost = replace(edge(-0.1, 0.6, 40.0), against_cash=Interval(-0.09, -0.02, 0.02))
    verdict = edge_verdict(lost, judged="test")
    assert (verdict.headline, verdict.outcome) == ("No edge, worse than cash", Outcome.BAD)
    assert "It grew 2.00 % to 9.00 % a year less than cash" in verdict.sentence
    perhaps = replace(lost, against_cash=Interval(-0.09, 0.01, 0.02))
    assert edge_verdict(perhaps, judged="test").headline == "No evidence of an edge"


def test_an_agent_that_stays_in_cash_is_not_judged():
    nan = float("nan")
    verdict = edge_verdict(replace(edge(nan, nan, 50.0), sharpe_out=nan, idle=True), judged="test")
    assert verdict.headline == "Stayed in cash" and "nan" not in verdict.line and "–" not in verdict.line


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "opened for the first time"), (3, "opened 3 times, which makes every result on them worth less")],
)
def test_the_number_of_openings_stands_in_the_edge_sentence(count, words):
    assert words in edge_verdict(replace(AHEAD, openings=count), judged="test").sentence
    assert "opened" not in edge_verdict(AHEAD, judged="test").sentence


def test_the_edge_sentence_says_what_it_rests_on():
    sentence = edge_verdict(edge(-0.3, 0.6, 40.0, sharpe_in=2.0), judged="test").sentence
    # smallest difference: (1.644854 + 0.841621) · 0.2 = 0.497
    for part in (
        "Sharpe 0.80 on test",
        "0.50 for buy and hold",
        "−0.30 to 0.60",
        "40 %",
        "train 2.00",
        "3 seeds",
        "filled at the next open",
        "0.50 four times",
    ):
        assert part in sentence
    assert "did not carry over to test" in sentence  # 0.8 is less than half of 2.0
    assert "carry over" not in edge_verdict(edge(-0.3, 0.6, 40.0, sharpe_in=1.0), judged="test").sentence


@pytest.mark.parametrize(
    ("measured", "low", "high", "headline", "outcome"),
    [
        (-0.015, -0.019, -0.012, "Limit kept", Outcome.GOOD),
        (-0.025, -0.029, -0.021, "Limit broken", Outcome.BAD),
        (-0.019, -0.022, -0.016, "Not distinguishable", Outcome.OPEN),
        (-0.021, -0.025, -0.018, "Not distinguishable", Outcome.OPEN),
    ],
)
def test_a_limit_is_kept_broken_or_neither(measured, low, high, headline, outcome):
    verdict = risk_verdict([tail(measured, low, high)], judged="test", alpha=0.05, limit=-0.02, baselines=BASELINES)
    assert (verdict.headline, verdict.outcome) == (headline, outcome)
    assert "worst 5 % of bars" in verdict.sentence
    assert "buy and hold −3.10 %" in verdict.sentence


def test_the_risk_verdict_is_of_the_judged_split_and_names_the_others():
    tails = [tail(-0.010, -0.012, -0.008, "train"), tail(-0.030, -0.034, -0.026, "test")]
    verdict = risk_verdict(tails, judged="test", alpha=0.05, limit=-0.02, baselines={})
    assert verdict.headline == "Limit broken"
    assert "train −1.00 %" in verdict.sentence
    with pytest.raises(ArgumentError, match="judged split 'validation'"):
        risk_verdict(tails, judged="validation", alpha=0.05, limit=-0.02, baselines={})


@pytest.mark.parametrize(
    ("splits", "judged"),
    [
        (("train", "validation", "test"), "test"),
        (("train", "validation"), "validation"),
        (("train",), "train"),
        (("sample-nasdaq-whole",), "sample-nasdaq-whole"),
    ],
)
def test_the_most_honest_split_that_was_run_is_judged(splits, judged):
    assert judged_split(dict.fromkeys(splits)) == judged


def test_without_a_limit_nothing_is_kept():
    verdict = risk_verdict([tail(-0.01, -0.02, -0.005)], judged="test", alpha=0.05, limit=None, baselines={})
    assert (verdict.headline, verdict.outcome) == ("No limit set", Outcome.OPEN)


@pytest.mark.parametrize(
    ("shares", "headline"),
    [
        ([0.93], "Signal found"),
        ([0.95, 0.79, 0.90], "Signal partly found"),
        ([0.95, -0.4], "Signal missed"),
    ],
)
def test_the_worst_seed_decides_control(shares, headline):
    assert control_verdict(shares).headline == headline


def test_the_smallest_detectable_difference_is_found_four_times_in_five():
    error = 0.3
    true = smallest_detectable(error)
    assert true == pytest.approx(2.486475 * error, rel=1e-6)
    observed = true + error * np.random.default_rng(0).standard_normal(20_000)
    assert (observed - stats.norm.ppf(0.95) * error > 0.0).mean() == pytest.approx(0.8, abs=0.01)


def test_a_planted_edge_is_named_and_the_same_positions_shuffled_are_not():
    rng = np.random.default_rng(5)
    signal = rng.standard_normal(1000)
    market = 0.0002 + 0.01 * rng.standard_normal(1000) + 0.0025 * signal  # the signal explains 6 % of a bar
    position = (signal > 0.0).astype(float)

    def judge(position: np.ndarray) -> str:
        series = {"agent": position * market, "hold": market}
        drawn = bootstrap(series, bars_per_year=252.0, alpha=0.05, rng=np.random.default_rng(0), n_draws=500)
        score = (position * market).mean() / (position * market).std()
        shifted = np.stack([np.roll(position, k) * market for k in range(20, 980)])
        percentile = 100.0 * (shifted.mean(1) / shifted.std(1) < score).mean()
        found = Edge(None, 1.0, 0.5, drawn.difference("agent", "hold", "sharpe"), percentile, 1, "no costs")
        return edge_verdict(found, judged="test").headline

    assert judge(position) == "Evidence of an edge"
    assert judge(rng.permutation(position)) == "No evidence of an edge"
