"""Round trips on hand-made paths."""

import numpy as np
import pytest

from leeward.backtest.trades import round_trips


def trips(units, fills, closes=None, costs=None):
    units = np.asarray(units, dtype=float)
    units = units[:, None] if units.ndim == 1 else units
    fills = np.asarray(fills, dtype=float).reshape(units.shape)
    closes = fills if closes is None else np.asarray(closes, dtype=float).reshape(units.shape)
    n, a = units.shape
    return round_trips(
        assets=[f"asset{i}" for i in range(a)],
        time=np.datetime64("2020-01-01", "ns") + np.arange(n) * np.timedelta64(1, "D"),
        units=units,
        fills=fills,
        closes=closes,
        weights=units * closes / 1000.0,
        costs=np.zeros(n) if costs is None else np.asarray(costs, dtype=float),
    )


def test_a_long_trade_bought_in_two_parts_and_sold_in_two():
    # buy 10 at 10, 10 more at 12, sell 5 at 15, the last 15 at 11: paid 220, received 75 + 165 = 240; costs 4 -> 16
    (trade,) = trips([10, 20, 20, 15, 0], [10, 12, 13, 15, 11], costs=[1, 1, 0, 1, 1])
    assert (trade.side, trade.bars, trade.is_open) == ("long", 5, False)
    assert trade.entry_price == pytest.approx(11.0)
    assert trade.exit_price == pytest.approx(12.0)
    assert trade.costs == pytest.approx(4.0)
    assert trade.pnl == pytest.approx(16.0)
    assert trade.return_fraction == pytest.approx(16.0 / 220.0)


def test_a_flip_ends_one_trade_and_begins_the_next_and_shares_the_cost():
    # +10 at 10, flipped to −30 at 12 (closes 10, opens 30: a quarter and three quarters of 8), covered at 11
    first, second = trips([10, -30, 0], [10, 12, 11], costs=[0, 8, 0])
    assert (first.side, second.side) == ("long", "short")
    assert first.pnl == pytest.approx(10 * 2 - 2)
    assert second.pnl == pytest.approx(30 * 1 - 6)
    assert first.exit_time == second.entry_time


def test_a_trade_still_open_is_marked_at_the_last_close():
    (trade,) = trips([0, 4, 4], [10, 10, 10], closes=[10, 11, 13])
    assert trade.is_open
    assert trade.bars == 2
    assert trade.pnl == pytest.approx(12.0)


def test_each_asset_has_its_own_trades_and_its_share_of_the_costs():
    # bar 1 trades 10 · 10 = 100 of the first and 30 · 10 = 300 of the second: a quarter and three quarters of 4
    found = trips([[10, -30], [0, 0]], [[10, 10], [10, 10]], costs=[4, 0])
    assert [(t.asset, t.side, t.costs) for t in found] == [("asset0", "long", 1.0), ("asset1", "short", 3.0)]


def test_the_profit_of_all_trades_is_the_profit_of_the_units():
    rng = np.random.default_rng(0)
    units = rng.integers(-3, 4, size=(200, 3)).astype(float)
    fills = np.exp(0.02 * rng.standard_normal((200, 3)).cumsum(0))
    closes = fills * np.exp(0.01 * rng.standard_normal((200, 3)))
    costs = rng.random(200)
    found = trips(units, fills, closes, costs)
    changes = np.diff(units, axis=0, prepend=0.0)
    traded = (changes != 0.0).any(axis=1)
    expected = (units[-1] * closes[-1]).sum() - (changes * fills).sum() - costs[traded].sum()
    assert sum(trade.pnl for trade in found) == pytest.approx(expected)


def test_no_units_no_trades():
    assert trips([0, 0, 0], [1, 1, 1]) == ()
