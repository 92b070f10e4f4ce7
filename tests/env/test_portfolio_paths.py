"""Two assets over seven bars, worked out by hand: the gross limit, missing bars, listing and delisting."""

import math

import numpy as np
import pytest

from leeward.config.trading import AccountConfig, CostsConfig, DataConfig, EnvConfig, SplitsConfig
from leeward.env import Simulation
from leeward.market import Bars, prepare

FREE = CostsConfig(commission_bps=0.0, half_spread_bps=0.0, impact_coef=0.0, debit_rate=0.0, borrow_rate=0.0)
DATA = DataConfig(features=("intraday",), splits=SplitsConfig(train=0.34, validation=0.33))
NONE = math.nan


def run(second, targets, *, commission_bps=0.0, limit=1.0):
    """One account of 1,000 in x, always at 10, and y, at the prices `second` (None: no bar); the units after each step.

    A bar of y opens and closes at its price.
    """
    prices = np.array([[10.0, NONE if price is None else price] for price in second])
    time = np.datetime64("2024-01-01", "ns") + np.arange(7) * np.timedelta64(1, "D")
    bars = Bars(time, ("x", "y"), prices, prices, prices, prices, np.full((7, 2), NONE))
    config = EnvConfig(
        account=AccountConfig(initial_equity=1_000.0, gross_limit=limit),
        costs=FREE.model_copy(update={"commission_bps": commission_bps}),
    )
    simulation = Simulation(prepare(DATA, bars=bars), config)
    simulation.place(0, 7)
    steps, units = [], []
    for row in targets:
        steps.append(simulation.step(np.array([row])))
        units.append(simulation.units[0].tolist())
    return steps, units


def test_targets_beyond_the_gross_limit_are_scaled_down_together():
    # |1.5| + |-0.5| = 2 is twice the limit: weights 0.75 and -0.25 of 1,000 at 10 and 20.
    _, units = run([20.0] * 7, [(1.5, -0.5)])
    assert units[0] == pytest.approx([75.0, -12.5])


def test_what_cannot_be_held_takes_no_room_under_the_limit():
    # y is listed at bar 4: until then 0.5 for x is all that is wanted, and the limit of 0.5 is not passed.
    _, units = run([None] * 4 + [20.0] * 3, [(0.5, 0.5)] * 4, limit=0.5)
    assert units[:3] == [[50.0, 0.0]] * 3
    # Filled at the open of bar 4: 0.25 each of 1,000.
    assert units[3] == pytest.approx([25.0, 12.5])


def test_an_asset_is_traded_only_where_it_has_a_bar():
    # y has no bar at 1 and 3. Bought at bar 2, at 20: 25 units; the sale of half of it waits until bar 4, at 40: then
    # E = 500 + 25 · 40 = 1,500, wanted 0.5 · 1,500 / 40 = 18.75 units.
    steps, units = run([20.0, None, 20.0, None, 40.0, 40.0, 40.0], [(NONE, 0.5)] * 4)
    assert [row[1] for row in units] == pytest.approx([0.0, 25.0, 25.0, 18.75])
    # Without a bar the last close is carried.
    assert [float(step["equity"][0]) for step in steps] == pytest.approx([1000.0, 1000.0, 1000.0, 1500.0])


def test_a_delisted_asset_is_sold_at_its_last_close():
    # 25 units of y at 20, 10 bps = 0.5. Its last bar is 2, at 18: it is still held then, and sold at 18 in the next
    # one: 450 less 0.45. Equity 1,000 - 0.5 - 50 - 0.45 = 949.05.
    second = [20.0, 20.0, 18.0, None, None, None, None]
    steps, units = run(second, [(NONE, 0.5), (NONE, NONE), (NONE, NONE), (NONE, 0.5)], commission_bps=10.0)
    assert [row[1] for row in units] == [25.0, 25.0, 0.0, 0.0]
    assert [float(step["commission"][0]) for step in steps] == pytest.approx([0.5, 0.0, 0.45, 0.0])
    assert float(steps[-1]["equity"][0]) == pytest.approx(949.05)
