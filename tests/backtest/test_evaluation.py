"""Metrics of a run, its files, and the way back."""

import csv
import json

import numpy as np
import pandas as pd
import pytest

from leeward.backtest.evaluation import TimingNull, evaluate
from leeward.backtest.files import read_backtest, write_backtest
from leeward.errors import ArgumentError, RunDirectoryError, ShapeError


def metrics_of(agent, baselines, **changes):
    options = {"alpha": 0.05, "limit": -0.02, "assumptions": "filled at the next open", "n_draws": 50}
    return evaluate(agent, baselines, rng=np.random.default_rng(0), **(options | changes))


def test_every_strategy_has_a_table_and_every_baseline_a_difference(result):
    agent, hold = result(), result("buy_and_hold", seed=1)
    metrics = metrics_of(agent, {"buy_and_hold": hold}, timing=TimingNull(1.0, np.array([0.5, 2.0])))
    assert list(metrics.strategies) == ["agent", "buy_and_hold"]
    assert metrics.strategies["agent"].performance["sharpe"] == agent.performance(0.05).sharpe
    assert metrics.strategies["agent"].costs["impact"] == pytest.approx(agent.costs["impact"].sum())
    difference = metrics.differences["buy_and_hold"]["sharpe"]
    point = agent.performance(0.05).sharpe - hold.performance(0.05).sharpe
    assert difference.low < point < difference.high
    assert metrics.timing.percentile == 50.0
    assert (metrics.start, metrics.end, metrics.bars) == ("2020-01-01T00:00:00Z", "2020-03-01T00:00:00Z", 60)


def test_what_was_written_comes_back_bit_for_bit(result, tmp_path):
    agent, cash = result(outlook=True), result("cash", seed=2)
    metrics = metrics_of(agent, {"cash": cash}, limit=None)
    write_backtest(tmp_path / "test", agent, {"cash": cash}, metrics)
    stored = read_backtest(tmp_path / "test")
    assert stored.metrics == metrics
    assert (stored.equity["agent"].to_numpy() == agent.equity).all()
    assert (stored.equity["cash"].to_numpy() == cash.equity).all()
    assert (stored.equity["step_return"].to_numpy()[1:] == agent.step_returns).all()
    assert (stored.returns("agent") == agent.returns).all()
    second = stored.positions[stored.positions["asset"] == "BBB/USD"]
    assert (second["weight"].to_numpy() == agent.weights[:, 1]).all()
    assert (second["fill"].to_numpy() == agent.fills[:, 1]).all()
    assert stored.trades["pnl"].tolist() == [trade.pnl for trade in agent.trades]
    assert stored.equity.index[0] == pd.Timestamp("2020-01-01", tz="UTC")
    assert (stored.outlook_step.quantiles == agent.outlook_step.quantiles).all()


@pytest.mark.parametrize("name", ["=1+1", "+A", "-A", "@A", "\tA", "'=A", "'A", "A=1"])
def test_a_name_is_no_formula_to_a_spreadsheet_and_comes_back(name, result, tmp_path):
    agent, other = result(), {name: result("cash", seed=2)}
    object.__setattr__(agent, "assets", (name, "BBB/USD"))
    write_backtest(tmp_path, agent, other, metrics_of(agent, other))
    header, *rows = csv.reader((tmp_path / "positions.csv").read_text().splitlines())
    cells = {row[header.index("asset")] for row in rows}
    assert cells == {name if name[0] == "A" else f"'{name}", "BBB/USD"}
    stored = read_backtest(tmp_path)
    header, *_ = csv.reader((tmp_path / "equity.csv").read_text().splitlines())
    assert header[2] == (name if name[0] == "A" else f"'{name}")
    assert (stored.equity[name].to_numpy() == other[name].equity).all()
    assert set(stored.positions["asset"]) == {name, "BBB/USD"}
    assert set(stored.trades["asset"]) == {trade.asset for trade in agent.trades}


def test_undefined_numbers_are_null_in_the_file_and_nan_again_in_memory(result, tmp_path):
    flat = result("cash")
    object.__setattr__(flat, "equity", np.full(61, 1e6))
    object.__setattr__(flat, "step_returns", np.zeros(60))
    metrics = metrics_of(result(), {"cash": flat})
    write_backtest(tmp_path, result(), {"cash": flat}, metrics)
    raw = json.loads((tmp_path / "metrics.json").read_text())
    assert raw["strategies"]["cash"]["performance"]["sharpe"] is None
    assert np.isnan(read_backtest(tmp_path).metrics.strategies["cash"].performance["sharpe"])


def test_an_outlook_of_an_earlier_backtest_does_not_stay_behind(result, tmp_path):
    for outlook in (True, False):
        agent = result(outlook=outlook)
        write_backtest(tmp_path, agent, {}, metrics_of(agent, {}))
    assert read_backtest(tmp_path).outlook is None


def test_a_predicted_tail_is_judged_on_the_next_bar(result):
    agent = result(n=400, outlook=True)
    found = metrics_of(agent, {}).calibration
    assert found.bars == 400
    assert found.breaches == (agent.step_returns <= -0.0165).sum()
    assert found.kupiec_p > 0.01  # the forecast is close to the N(0.001, 0.01) the bars were drawn from
    assert sum(found.pit) == pytest.approx(20.0)  # mean of 20 bins is 1
    assert metrics_of(result(), {}).calibration is None


@pytest.mark.parametrize(
    ("score", "null", "percentile"),
    [
        (1.0, [0.0, 0.5, 2.0, 3.0], 50.0),
        (1.0, [1.0, 1.0, 1.0], 50.0),  # constant targets: every shift is the agent itself
        (1.0, [1.0, 0.0], 75.0),  # one below, one tie by half
        (float("nan"), [float("nan")], 50.0),  # never traded
        (9.0, [1.0, 2.0], 100.0),
    ],
)
def test_the_timing_percentile_counts_ties_by_half(score, null, percentile):
    assert TimingNull(score, np.array(null)).percentile == percentile


def test_a_missing_or_foreign_directory_is_named(tmp_path, result):
    with pytest.raises(RunDirectoryError, match=r"no metrics\.json here.*leeward backtest"):
        read_backtest(tmp_path)
    (tmp_path / "metrics.json").write_text('{"split": 3}')
    with pytest.raises(RunDirectoryError, match="not the metrics of a backtest"):
        read_backtest(tmp_path)
    write_backtest(tmp_path, result(), {}, metrics_of(result(), {}))
    (tmp_path / "trades.csv").unlink()
    with pytest.raises(RunDirectoryError, match=r"trades\.csv: missing"):
        read_backtest(tmp_path)


def test_a_baseline_cannot_be_called_agent(result):
    with pytest.raises(ArgumentError, match="another name"):
        metrics_of(result(), {"agent": result()})


def test_arrays_of_another_length_are_refused(result):
    agent = result()
    values = {name: getattr(agent, name) for name in agent.__dataclass_fields__}
    with pytest.raises(ShapeError, match=r"weights must be \(60, 2\), got \(60, 1\)"):
        type(agent)(**(values | {"weights": agent.weights[:, :1]}))
