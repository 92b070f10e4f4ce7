"""What the critic says along a split against what came, by hand, and in a real run."""

import csv
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leeward.backtest.result import Outlook
from leeward.telemetry import metrics
from leeward.training.critic_check import critic_numbers

from ..support.tiny_runs import train_here


def result(returns: np.ndarray, mean: np.ndarray, quantiles: np.ndarray, levels: np.ndarray) -> Any:
    outlook = Outlook(levels, np.full(len(levels), 1 / len(levels)), quantiles, mean, mean, mean)
    return SimpleNamespace(step_returns=returns, outlook=outlook)


def test_a_critic_that_knows_the_discounted_returns_explains_them_all():
    rng = np.random.default_rng(0)
    returns, gamma = rng.normal(size=200), 0.5
    # γ^7 = 0.0078 is the first below 0.01, so the last 7 returns are not whole.
    realised = [sum(gamma**k * r for k, r in enumerate(returns[t:])) for t in range(200)]
    mean = np.array(realised)
    levels = np.array([0.25, 0.5])
    spread = np.stack([mean - 1.0, mean + 1e-6], 1)  # covers nothing, and everything
    found = critic_numbers(result(returns, mean, spread, levels), gamma=gamma)
    assert found[metrics.EVAL_EXPLAINED_VARIANCE] == pytest.approx(1.0)
    assert found[metrics.EVAL_CALIBRATION_ERROR] == pytest.approx((0.25 + 0.5) / 2)


def test_what_lies_behind_the_end_is_left_out():
    returns = np.zeros(100)
    returns[-7:] = 1e3  # weighs less than 1 % in what is looked at, but is seen in the last rows
    returns[:93] = np.arange(93) % 2
    mean = np.zeros(100)
    quantiles = np.full((100, 1), 0.75)
    found = critic_numbers(result(returns, mean, quantiles, np.array([0.5])), gamma=0.0)
    assert found[metrics.EVAL_CALIBRATION_ERROR] == pytest.approx(abs(47 / 100 - 0.5))  # γ = 0: every return is whole


@pytest.mark.parametrize("gamma", [1.0, 0.99])
def test_too_few_whole_returns_say_nothing(gamma):
    returns = np.ones(100)
    assert critic_numbers(result(returns, returns, returns[:, None], np.array([0.5])), gamma=gamma) == {}


def test_without_a_prediction_or_a_variance_there_is_nothing_to_say():
    returns = np.zeros(100)
    still = result(returns, returns, returns[:, None], np.array([0.5]))
    assert list(critic_numbers(still, gamma=0.5)) == [metrics.EVAL_CALIBRATION_ERROR]
    still.outlook = None
    assert critic_numbers(still, gamma=0.5) == {}


def test_a_run_logs_how_right_its_critic_is_on_validation(tmp_path):
    run, _, _ = train_here(tmp_path / "run", "ppo.gamma=0.5", "ppo.total_steps=1600", "data.n_bars=1500")
    with run.progress_file.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for metric in (metrics.EVAL_EXPLAINED_VARIANCE, metrics.EVAL_CALIBRATION_ERROR):
        values = [float(row[metric.name]) for row in rows if row.get(metric.name)]
        assert len(values) >= 2 and np.isfinite(values).all() and max(values) <= 1.0
