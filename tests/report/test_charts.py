"""Charts and tables show the numbers they are given, with their units, and the limit as a line."""

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from leeward.backtest import judge
from leeward.backtest.strategies import STRATEGIES
from leeward.cli.backtest import _print_table
from leeward.report.data import load_run
from leeward.report.figure import numbers, stamps, thin
from leeward.report.outlook_charts import outlook_charts
from leeward.report.position_charts import costs_chart, position_charts
from leeward.report.returns_charts import (
    distribution_chart,
    drawdown_chart,
    equity_chart,
    months_chart,
    rolling_charts,
)
from leeward.report.risk_charts import differences_chart, sharpes_chart, tails_chart, timing_chart
from leeward.report.tables import full_table, summary_table, trades_table
from leeward.report.training_charts import training_charts


@pytest.fixture(scope="module")
def run(whole_run):
    return load_run(whole_run)


@pytest.fixture(scope="module")
def bare(bare_run):
    return load_run(bare_run).backtest


def limits_of(figure):
    """Horizontal limits: named in the legend, so that no label covers the curves."""
    return [(trace["name"], trace["y"]) for trace in figure.data if trace["name"].startswith("limit")]


def lines_at(figure, axis):
    return [shape[axis] for shape in figure.layout.get("shapes", [])]


def test_equity_starts_at_one_and_ends_at_the_total_return(run):
    figure = equity_chart(run.backtest)
    agent = figure.data[-1]
    assert agent["name"] == "agent"  # last, so that it is drawn on top
    assert agent["y"][0] == 1.0
    total = run.backtest.metrics.strategies["agent"].performance["total_return"]
    assert agent["y"][-1] == pytest.approx(1.0 + total, rel=1e-5)
    assert figure.scales
    assert figure.layout["yaxis"]["type"] == "log"


def test_the_deepest_point_of_the_drawdown_is_that_of_the_table(run):
    agent = drawdown_chart(run.backtest).data[-1]
    assert min(agent["y"]) == pytest.approx(
        run.backtest.metrics.strategies["agent"].performance["max_drawdown"], rel=1e-5
    )


def test_the_limit_is_a_line_wherever_a_tail_is_shown(run):
    rolling = {figure.key: figure for figure in rolling_charts(run.backtest)}
    assert limits_of(rolling["rolling_cvar"]) == [("limit −2.00 %", [-0.02, -0.02])]
    assert lines_at(tails_chart(run.splits), "x0") == [-0.02]
    assert -0.02 in lines_at(distribution_chart(run.backtest), "x0")
    measured = {f.key: f for f in training_charts(run.progress, limit=-0.02)}["train_risk_cvar_measured"]
    assert limits_of(measured) == [("limit −2.00 %", [-0.02, -0.02])] and measured.layout["showlegend"]


def test_without_a_limit_there_is_no_line(bare):
    rolling = {figure.key: figure for figure in rolling_charts(bare)}
    assert limits_of(rolling["rolling_cvar"]) == []
    assert len(lines_at(distribution_chart(bare), "x0")) == 2  # VaR and CVaR


def test_a_row_of_the_table_of_strategies_is_all_that_names_and_colours_one(run, monkeypatch):
    row = replace(STRATEGIES["buy_and_hold"], label="the market", tone="bad", dash="longdash", symbol="cross")
    monkeypatch.setitem(STRATEGIES, "buy_and_hold", row)
    metrics, console = run.backtest.metrics, Console(file=io.StringIO(), width=120)
    _print_table(console, metrics)
    assert "the market" in console.file.getvalue()
    assert "The market" in [line[0] for line in summary_table(metrics).rows]
    assert "The market" in full_table(metrics).heading
    assert "minus the market" in differences_chart(metrics).layout["yaxis"]["ticktext"]
    assert "the market −" in judge({"test": metrics})[0].sentence
    for figure in (equity_chart(run.backtest), drawdown_chart(run.backtest), *rolling_charts(run.backtest)):
        (trace,) = (trace for trace in figure.data if trace["name"] == "the market")
        assert (trace["line"]["color"], trace["line"]["dash"]) == ("var(--bad)", "longdash"), figure.key
    for figure in (tails_chart(run.splits), sharpes_chart(run.splits)):
        (trace,) = (trace for trace in figure.data if trace["name"] == "the market")
        assert (trace["marker"]["color"], trace["marker"]["symbol"]) == ("var(--bad)", "cross"), figure.key
    assert distribution_chart(run.backtest).data[1]["name"] == "the market"


def test_what_never_moves_is_in_the_equity_chart_alone(run):
    assert "cash" in [trace["name"] for trace in equity_chart(run.backtest).data]
    others = [drawdown_chart(run.backtest), *rolling_charts(run.backtest), tails_chart(run.splits)]
    for figure in (*others, sharpes_chart(run.splits)):
        assert "cash" not in [trace["name"] for trace in figure.data], figure.key
    assert "cash" not in judge({"test": run.backtest.metrics})[0].sentence


def test_months_are_returns_between_month_ends():
    # 100 at the start, 110 at the end of January, 99 at the end of February, 108.9 in March: +10 %, −10 %, +10 %
    time = pd.DatetimeIndex(["2020-01-01", "2020-01-31", "2020-02-15", "2020-02-28", "2020-03-03"], tz="UTC")
    stored = _Stored(pd.DataFrame({"agent": [100.0, 110.0, 50.0, 99.0, 108.9]}, index=time))
    (trace,) = months_chart(stored).data
    assert trace["z"][0][:3] == pytest.approx([0.1, -0.1, 0.1])
    assert trace["z"][0][12] == pytest.approx(0.089)
    assert trace["text"][0][:4] == ["10.0", "−10.0", "10.0", ""]
    assert months_chart(_Stored(stored.equity.iloc[:2])) is None


class _Stored:
    def __init__(self, equity):
        self.equity = equity


def test_shares_of_the_distribution_add_up_to_one_with_the_tails_in_the_end_bins(run):
    bars = distribution_chart(run.backtest).data[0]
    assert sum(bars["y"]) == pytest.approx(1.0, abs=1e-4)


def test_every_split_stands_in_the_forest_with_its_interval(run):
    for figure, statistic in ((tails_chart(run.splits), "cvar"), (sharpes_chart(run.splits), "sharpe")):
        assert figure.layout["yaxis"]["ticktext"] == ["train", "test"]
        assert "best policy" in [trace["name"] for trace in figure.data]  # only the test split has it
        agent = figure.data[-1]
        # rows stand at 0 and −1: the agent a little above its baselines, nearer to its own row than to another
        rows = dict(zip(agent["customdata"], agent["y"], strict=True))
        for other in figure.data[:-1]:
            assert all(rows[split] > y for split, y in zip(other["customdata"], other["y"], strict=True))
        assert [round(-y) for y in agent["y"]] == [0, 1]
        strategy = run.splits["test"].metrics.strategies["agent"]
        assert agent["x"][1] == pytest.approx(strategy.performance[statistic], rel=1e-5)
        reach = agent["error_x"]["array"][1]
        assert agent["x"][1] + reach == pytest.approx(strategy.intervals[statistic].high, rel=1e-4)


def test_the_difference_to_cash_is_left_out_because_it_is_not_defined(run):
    figure = differences_chart(run.backtest.metrics)
    assert "minus cash" not in figure.layout["yaxis"]["ticktext"]
    assert "minus buy and hold" in figure.layout["yaxis"]["ticktext"]


def test_the_timing_null_is_drawn_only_when_there_is_one(run):
    metrics = run.backtest.metrics
    assert lines_at(timing_chart(metrics), "x0") == [metrics.timing.score]
    assert timing_chart(metrics.model_copy(update={"timing": None})) is None
    flat = metrics.timing.model_copy(update={"null": (1.0,) * 40})
    assert timing_chart(metrics.model_copy(update={"timing": flat})) is None


def test_positions_show_price_weight_and_both_ends_of_a_trade(run):
    (figure,) = position_charts(run.backtest)
    names = [trace["name"] for trace in figure.data]
    assert names == ["close", "weight", "entry", "exit"]
    closed = int((run.backtest.trades["is_open"] == 0).sum())
    assert len(figure.data[3]["x"]) == closed
    # a mark lies on the line
    first = figure.data[2]
    position = figure.data[0]["x"].index(first["x"][0])
    assert first["y"][0] == figure.data[0]["y"][position]


def test_costs_end_at_their_sum(run):
    stored = run.backtest
    paid = {trace["name"]: trace["y"][-1] for trace in costs_chart(stored).data}
    expected = stored.metrics.strategies["agent"].costs
    assert paid["commission"] == pytest.approx(expected["commission"] / 1e6, rel=1e-5)
    free = replace(stored, equity=stored.equity.assign(**{c: 0.0 for c in stored.equity if c.startswith("cost_")}))
    assert costs_chart(free) is None


def test_the_fan_is_of_the_next_bar_when_the_policy_offers_it(run):
    fan, coverage, pit = outlook_charts(run.backtest)
    assert fan.title == "Outlook for the next bar"
    assert fan.layout["yaxis"]["title"]["text"] == "log-return of a bar"
    assert coverage.data[1]["x"] == pytest.approx([0.02, 0.04, 0.25, 0.5, 0.75, 0.95])
    assert "Kupiec" in pit.note
    (only,) = outlook_charts(replace(run.backtest, outlook_step=None))
    assert only.layout["yaxis"]["title"]["text"] == "discounted return"
    assert outlook_charts(replace(run.backtest, outlook_step=None, outlook=None)) == []


def test_the_fan_is_linear_between_the_predicted_levels_and_ends_with_them(run):
    # std .005; median: 0. 5 % lies between 4 % (−1.75) and 25 % (−.67): −1.75 + 1.08/21 = −1.698571 -> −.00849286
    # 95 % is predicted: 1.64 -> .0082; 25 %: −.00335; 75 %: .00335
    low, high, inner_low, inner_high, median, _ = outlook_charts(run.backtest)[0].data
    values = [trace["y"][0] for trace in (low, inner_low, median, inner_high, high)]
    assert values == pytest.approx([-0.00849286, -0.00335, 0.0, 0.00335, 0.0082], rel=1e-5)


def test_training_curves_are_of_what_was_logged(run):
    figures = training_charts(run.progress)
    assert [figure.note for figure in figures] == ["risk/cvar_measured", "train/approx_kl"]
    assert figures[1].data[0]["x"][-1] == 5120.0


def test_long_lines_are_thinned_but_keep_both_ends():
    kept = thin(100_000, 1500)
    assert len(kept) <= 1500
    assert (kept[0], kept[-1]) == (0, 99_999)
    assert thin(10).tolist() == list(range(10))


def test_what_is_not_finite_is_a_gap():
    assert numbers([1.23456789, float("nan"), float("inf")]) == [1.23457, None, None]


def test_days_are_dates_and_hours_are_times():
    assert stamps(pd.DatetimeIndex(["2020-01-01", "2020-01-02"], tz="UTC")) == ["2020-01-01", "2020-01-02"]
    assert stamps(pd.DatetimeIndex(["2020-01-01 04:00"], tz="UTC")) == ["2020-01-01 04:00"]


def test_tables_say_what_is_not_defined(run):
    summary = summary_table(run.backtest.metrics)
    assert summary.heading == ("", "CAGR", "Sharpe", "CVaR", "Drawdown")
    assert summary.rows[1][0] == "90 % interval"
    assert summary.rows[-1] == ("Cash", "0.0 %", "–", "0.00 %", "0.0 %")
    full = full_table(run.backtest.metrics)
    assert full.heading == ("", "Agent", "Buy and hold", "Volatility target", "Best policy", "Cash")
    assert len(full.rows) == 22


def test_the_trades_that_made_and_lost_most_are_listed(run):
    table = trades_table(run.backtest)
    assert len(table.rows) == 10
    profits = [float(row[-1].replace("−", "-").replace("\u202f", "").replace(" ", "")) for row in table.rows]
    assert profits == sorted(profits, reverse=True)
    assert trades_table(replace(run.backtest, trades=run.backtest.trades.iloc[:0])) is None
    assert np.isfinite(profits).all()


def test_the_label_of_the_agents_timing_stands_above_the_bars_and_inside_the_chart(run):
    timing = run.backtest.metrics.timing
    for score, anchor in ((min(timing.null), "left"), (max(timing.null), "right")):
        moved = timing.model_copy(update={"score": score})
        figure = timing_chart(run.backtest.metrics.model_copy(update={"timing": moved}))
        assert figure.layout["yaxis"]["range"][1] == pytest.approx(1.2 * max(figure.data[0]["y"]), rel=1e-5)
        assert figure.layout["annotations"][0]["xanchor"] == anchor
