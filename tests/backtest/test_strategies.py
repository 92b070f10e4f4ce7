"""The table of strategies: names, words and styles in one place."""

import re
from dataclasses import replace
from importlib.resources import files

from leeward.backtest.strategies import AGENT, BASELINES, CASH, LAST_CHECKPOINT, STRATEGIES, Strategy, strategy_of


def test_the_table_is_in_the_order_of_every_table_that_is_shown():
    assert tuple(STRATEGIES) == (AGENT, LAST_CHECKPOINT, *BASELINES)
    assert all(name == row.name for name, row in STRATEGIES.items())


def test_no_two_strategies_look_or_read_the_same():
    rows = STRATEGIES.values()
    assert len({row.label for row in rows}) == len(rows)
    assert len({(row.tone, row.dash, row.width) for row in rows}) == len(rows)
    drawn = [row for row in rows if row.moves]
    assert len({(row.tone, row.symbol) for row in drawn}) == len(drawn)


def test_the_agent_alone_has_the_accent_and_cash_alone_never_moves():
    assert [row.name for row in STRATEGIES.values() if row.tone == "accent"] == [AGENT]
    assert [row.name for row in STRATEGIES.values() if not row.moves] == [CASH]


def test_every_tone_is_a_colour_of_the_page():
    style = files("leeward.report").joinpath("assets", "page.css").read_text(encoding="utf-8")
    assert {row.tone for row in STRATEGIES.values()} <= set(re.findall(r"--([\w-]+):", style))


def test_a_name_without_a_row_is_shown_plainly():
    found = strategy_of("my_PPO")
    assert (found.label, found.heading) == ("my PPO", "My PPO")
    assert found == replace(Strategy("x", "x"), name="my_PPO", label="my PPO")
    assert strategy_of("buy_and_hold").heading == "Buy and hold"
