"""What the report says about portfolios, about bars of less than a day, and in its first line."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from leeward.backtest.judgement import headline
from leeward.report.data import load_run
from leeward.report.figure import Figure, in_sight
from leeward.report.portfolio_charts import contributions, portfolio_charts
from leeward.report.position_charts import choice_sentence
from leeward.report.tables import tails_table

NAMES = ("AAA", "BBB", "CCC", "DDD")


def stored(weights, *, hours=24, n=6):
    """A backtest of n bars, as far as these charts look at it; prices rise by 1 a bar, fills at the close before."""
    time = pd.date_range("2024-01-01", periods=n + 1, freq=f"{hours}h", tz="UTC")
    close = 100.0 + np.arange(1.0, n + 1)
    rows = [
        {"time": time[t + 1], "asset": name, "weight": w, "units": 10.0 * w, "fill": close[t] - 1.0, "close": close[t]}
        for t in range(n)
        for name, w in zip(NAMES, weights, strict=False)
    ]
    equity = pd.DataFrame({"agent": np.full(n + 1, 1000.0), "turnover": [np.nan, *[0.25] * n]}, index=time)
    activity = {"turnover_per_year": 12.0}
    metrics = SimpleNamespace(assets=NAMES[: len(weights)], strategies={"agent": SimpleNamespace(activity=activity)})
    return SimpleNamespace(positions=pd.DataFrame(rows), equity=equity, metrics=metrics)


def test_contributions_are_what_each_asset_earned():
    # 2 units of AAA bought at 100 gain 1 in each of 6 bars: 12 of 1000; 1 unit of BBB short loses 6
    assert contributions(stored((0.2, -0.1))) == pytest.approx({"AAA": 0.012, "BBB": -0.006})


def test_a_portfolio_has_weights_exposure_contribution_and_turnover():
    figures = {figure.key: figure for figure in portfolio_charts(stored((0.5, -0.2, 0.1)))}
    assert list(figures) == ["weights", "exposure", "contribution", "turnover"]
    gross, net = figures["exposure"].data
    assert (gross["name"], gross["y"][0], net["name"], net["y"][0]) == ("gross", 0.8, "net", 0.4)
    assert "stackgroup" not in figures["weights"].data[0], "a short position would be hidden in a stack"
    assert figures["weights"].data[0]["name"] == "AAA", "the most held first"
    assert figures["turnover"].data[0]["y"][-1] == 1.5
    assert portfolio_charts(stored((0.5, 0.2)))[0].data[0]["stackgroup"] == "one"
    assert [figure.key for figure in portfolio_charts(stored((0.5,)))] == ["turnover"]


def test_which_assets_are_drawn_is_said_where_not_all_are():
    said = choice_sentence(stored((0.1, 0.4, 0.2, 0.3)))
    assert said == "Prices of the 3 most held: BBB, DDD, CCC; not of AAA."
    assert choice_sentence(stored((0.1, 0.4, 0.2))) == ""


def axis(x):
    return Figure("x", "x", "x", [{"x": list(x), "y": [0.0] * len(x)}]).spec()["layout"].get("xaxis", {})


def test_bars_of_less_than_a_day_stand_side_by_side():
    days = pd.bdate_range("2024-01-04", periods=20)
    x = [f"{day:%Y-%m-%d} {hour:02d}:30" for day in days for hour in (14, 15, 16)]
    found = axis(x)
    assert found["type"] == "category" and found["categoryarray"] == x
    assert len(set(found["ticktext"])) == len(found["ticktext"]) <= 7
    places = [x.index(tick) for tick in found["tickvals"]]
    assert min(np.diff(places)) >= len(x) / 6 - 3
    assert axis([f"{day:%Y-%m-%d}" for day in days]) == {}, "days are a calendar"


def test_a_limit_that_is_far_away_does_not_press_the_data_flat():
    assert in_sight(-0.02, [-0.006, 0.001]) and not in_sight(-0.02, [-0.004])


def test_the_first_line_is_for_somebody_without_time(whole_run):
    metrics = load_run(whole_run).backtest.metrics
    earned = {"cagr": 0.042, "total_return": 0.011, "cvar": -0.018}
    agent = metrics.strategies["agent"].model_copy(update={"performance": earned})
    held = {"cagr": -0.074, "total_return": -0.003}
    hold = metrics.strategies["buy_and_hold"].model_copy(update={"performance": held})
    daily = {"strategies": {"agent": agent, "buy_and_hold": hold}, "bars": 252, "bars_per_year": 252.0, "limit": -0.02}
    assert headline(metrics.model_copy(update=daily)) == (
        "Earned 4.2 % a year, holding lost 7.4 %; the worst days cost 1.8 % on average, limit 2.0 %."
    )
    # Less than a year is not made one, and what a minute costs is not rounded to nothing.
    agent = agent.model_copy(update={"performance": earned | {"cvar": -0.0004}})
    week = {
        "bars": 1872,
        "bars_per_year": 98_000.0,
        "start": "2024-03-29T15:47:00Z",
        "end": "2024-04-04T20:59:00Z",
        "limit": -0.0005,
    }
    found = headline(metrics.model_copy(update=daily | week | {"strategies": {"agent": agent, "buy_and_hold": hold}}))
    assert found == (
        "Earned 1.1 % from 2024-03-29 to 2024-04-04, holding lost 0.3 %; the worst bars cost 0.040 % on average, "
        "limit 0.050 %."
    )


def test_tails_of_a_day_stand_beside_those_of_a_bar(whole_run):
    table = tails_table(load_run(whole_run).backtest)  # bars of four hours
    assert [row[0].split()[0] for row in table.rows] == ["Bar", "Day"]
    assert table.title.startswith("Mean log-return of the worst 5 %")
    assert float(table.rows[1][1].split()[0].replace("−", "-")) < float(table.rows[0][1].split()[0].replace("−", "-"))
