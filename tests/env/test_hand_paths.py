"""Seven-bar paths whose every number is worked out in the comment beside it."""

import math

import numpy as np
import pytest

from leeward.config.trading import AccountConfig, CostsConfig, DataConfig, EnvConfig, SplitsConfig
from leeward.env import Simulation
from leeward.market import Bars, prepare

FREE = CostsConfig(commission_bps=0.0, half_spread_bps=0.0, impact_coef=0.0, debit_rate=0.0, borrow_rate=0.0)
DATA = DataConfig(features=("intraday",), splits=SplitsConfig(train=0.34, validation=0.33))


def run(opens, closes, targets, *, costs=FREE, account=None, days=None, volume=math.nan):
    """Step one account of 1,000 through seven bars; returns the list of steps and the simulation."""
    opens, closes = (np.asarray(prices, dtype=np.float64)[:, None] for prices in (opens, closes))
    time = np.datetime64("2024-01-01", "ns") + np.asarray(days or range(7)) * np.timedelta64(1, "D")
    bars = Bars(
        time.astype("datetime64[ns]"), ("x",), opens, np.maximum(opens, closes), np.minimum(opens, closes), closes,
        np.full((7, 1), volume),
    )  # fmt: skip
    account = AccountConfig(initial_equity=1_000.0, **(account or {}))
    simulation = Simulation(prepare(DATA, bars=bars), EnvConfig(account=account, costs=costs))
    simulation.place(0, 7)
    return [simulation.step(np.array([[target]])) for target in targets], simulation


def column(steps, name):
    return [float(step[name][0]) for step in steps]


def test_long_one_pays_once_then_drifts_back_to_its_weight():
    # 10 bps on the notional. Bar 1 opens at 10: 100 units for 1,000, cost 1, cash -1. Close 11: equity 1100 - 1 = 1099.
    # Bar 2 opens at 12: E = 1200 - 1 = 1199, wanted 1199/12 = 99.9167 units, sold 0.08333 (notional 1), cost 0.001:
    # cash = -1 + 1 - 0.001 = -0.001; close 12: equity 1199 - 0.001.
    costs = FREE.model_copy(update={"commission_bps": 10.0})
    steps, simulation = run([9, 10, 12, 12, 12, 12, 12], [9, 11, 12, 12, 12, 12, 12], [1.0, 1.0], costs=costs)
    assert column(steps, "equity") == pytest.approx([1099.0, 1198.999], rel=1e-12)
    assert column(steps, "commission") == pytest.approx([1.0, 0.001], rel=1e-9)
    assert float(simulation.units[0, 0]) == pytest.approx(1199 / 12, rel=1e-12)
    assert column(steps, "turnover") == pytest.approx([1.0, 1.0 / 1199.0], rel=1e-9)
    assert column(steps, "reward_costs_fraction") == pytest.approx([0.001, 0.001 / 1099.0], rel=1e-9)
    assert column(steps, "step_return") == pytest.approx([math.log(1.099), math.log(1198.999 / 1099.0)], rel=1e-12)


def test_short_half_gains_when_the_price_falls_and_pays_for_the_borrow():
    # Short 50 units at 10 (notional 500), cash 1,500. Close 8: equity 1,500 - 400 = 1,100.
    # Borrow 36.5 % a year for the day to the next close on 400 at close t: 400 × 0.365 / 365 = 0.4.
    # Bar 2 opens at 8 with the target left alone: equity 1,500 - 0.4 - 50·8 = 1099.6.
    costs = FREE.model_copy(update={"borrow_rate": 0.365})
    steps, _ = run([10] * 2 + [8] * 5, [10, 8, 8, 8, 8, 8, 8], [-0.5, math.nan], costs=costs)
    assert column(steps, "equity") == pytest.approx([1100.0, 1099.6], rel=1e-12)
    assert column(steps, "interest_paid") == pytest.approx([0.0, 0.4], rel=1e-9)
    assert column(steps, "n_trades") == [1.0, 0.0]
    assert column(steps, "reward_costs_fraction") == pytest.approx([0.0, 0.4 / 1100], rel=1e-9)  # interest is a cost
    assert column(steps, "exposure") == pytest.approx([400 / 1100, 400 / 1099.6])
    assert column(steps, "net_exposure") == pytest.approx([-400 / 1100, -400 / 1099.6])


def test_borrow_is_paid_on_the_value_at_the_last_close():
    # Short 50 units, closed at 8, opened at 9: 400 × 0.365 / 365 = 0.4, and 1,500 - 0.4 - 50 · 9 = 1,049.6 are left.
    costs = FREE.model_copy(update={"borrow_rate": 0.365})
    steps, _ = run([10, 10, 9, 9, 9, 9, 9], [10, 8, 9, 9, 9, 9, 9], [-0.5, math.nan], costs=costs)
    assert column(steps, "interest_paid") == pytest.approx([0.0, 0.4], rel=1e-9)
    assert column(steps, "equity") == pytest.approx([1100.0, 1049.6], rel=1e-12)


def test_a_flip_trades_the_whole_distance():
    # Long 100 units at 10, half spread 5 bps = 0.5: E = 999.5 at the next open. Target -1: wanted -99.95 units, so
    # 199.95 units are sold, notional 1999.5, half spread 0.99975. Close 9: the short gains 99.95.
    # Equity 999.5 - 0.99975 + 99.95 = 1098.45025.
    costs = FREE.model_copy(update={"half_spread_bps": 5.0})
    steps, simulation = run([10] * 7, [10, 10, 9, 9, 9, 9, 9], [1.0, -1.0], costs=costs)
    assert column(steps, "spread") == pytest.approx([0.5, 0.99975], rel=1e-9)
    assert column(steps, "equity") == pytest.approx([999.5, 1098.45025], rel=1e-12)
    assert float(simulation.units[0, 0]) == pytest.approx(-99.95)
    # Sold short at 10, marked at 9: gain since entry ln(10/9), next to the weight -899.55/1098.45.
    observation = simulation.observe()[0]
    assert observation[-2] == pytest.approx(math.log(10 / 9), rel=1e-6)
    assert observation[-3] == pytest.approx(-99.95 * 9 / 1098.45025, rel=1e-6)


def test_a_long_position_borrows_nothing():
    costs = FREE.model_copy(update={"borrow_rate": 0.365})
    steps, _ = run([10] * 7, [10] * 7, [1.0, 1.0, 1.0], costs=costs)
    assert column(steps, "interest_paid") == [0.0, 0.0, 0.0]


def test_a_flip_begins_a_new_entry_price():
    # Long 100 units at 10. Bar 2 opens at 12: E = 1,200, wanted -100 units, 200 are sold, cash 2,400. Close 9: equity
    # 2,400 - 900 = 1,500, and what is held was sold at 12: a gain of ln(12/9).
    steps, simulation = run([10, 10, 12, 12, 12, 12, 12], [10, 10, 9, 9, 9, 9, 9], [1.0, -1.0])
    assert column(steps, "equity") == pytest.approx([1000.0, 1500.0])
    assert simulation.observe()[0, -2] == pytest.approx(math.log(12 / 9), rel=1e-6)


def test_an_increase_averages_the_entry_price():
    # 50 units at 10, cash 500. Bar 2 opens at 20: E = 1,500, wanted 75 units, 25 more at 20: (500 + 500) / 75 = 13.33.
    _, simulation = run([10, 10, 20, 20, 20, 20, 20], [10, 10, 20, 20, 20, 20, 20], [0.5, 1.0])
    assert simulation.observe()[0, -2] == pytest.approx(math.log(20 / (1000 / 75)), rel=1e-6)


@pytest.mark.parametrize(("close", "shown"), [(20.0, 0.5), (11.0, math.log(1.1)), (5.0, -0.5)])
def test_the_return_since_entry_is_cut_at_one_half(close, shown):
    _, simulation = run([10] * 7, [10] + [close] * 6, [1.0])
    assert simulation.observe()[0, -2] == pytest.approx(shown, rel=1e-6)


def test_a_partial_sale_keeps_the_entry_price_and_books_the_gap():
    # 100 units at 10, fee 3: equity 997. Night to 12: P&L 200, E = 1,197. Target 0.5: hold 598.5/12 = 49.875 units,
    # sell 50.125, fee 3. Close 12: equity 1,194. The entry price stays 10: return since entry ln 1.2.
    costs = FREE.model_copy(update={"fixed_fee": 3.0})
    steps, simulation = run([10, 10, 12, 12, 12, 12, 12], [10, 10, 12, 12, 12, 12, 12], [1.0, 0.5], costs=costs)
    assert column(steps, "equity") == pytest.approx([997.0, 1194.0], rel=1e-12)
    assert column(steps, "pnl") == pytest.approx([0.0, 200.0], rel=1e-12)
    assert column(steps, "fees") == [3.0, 3.0]
    assert float(simulation.units[0, 0]) == pytest.approx(49.875)
    assert simulation.observe()[0, -2] == pytest.approx(math.log(1.2), rel=1e-6)


def test_interest_on_debit_and_on_cash_is_actual_over_365():
    # Bars 3 days apart, twice long (limit 2), then flat.
    # Debit 7.3 % a year is 0.0006 in 3 days, cash 3.65 % is 0.0003.
    costs = FREE.model_copy(update={"debit_rate": 0.073, "cash_rate": 0.0365})
    steps, _ = run(
        [10] * 7, [10] * 7, [2.0, 0.0, 0.0], costs=costs, account={"gross_limit": 2.0}, days=list(range(0, 21, 3))
    )
    # The first step earns 0.3 on its cash before it buys: E = 1000.3, bought 2000.6, debt 1000.3, which costs 0.60018.
    # Then 999.69982 in cash earn 0.299909946.
    assert column(steps, "interest_earned") == pytest.approx([0.3, 0.0, 0.299909946], rel=1e-9)
    assert column(steps, "interest_paid") == pytest.approx([0.0, 0.60018, 0.0], rel=1e-9)
    assert column(steps, "equity") == pytest.approx([1000.3, 999.69982, 999.999729946], rel=1e-12)


def test_a_margin_call_at_the_open_closes_everything_and_ends_the_episode():
    # Three times long at 10: 300 units, cash -2,000. Opens at 8: value 2,400, equity 400 < 0.25 × 2,400 = 600.
    # Closed at 8 with 10 bps = 2.4 (and 3 at the purchase): equity 1,000 - 3 - 600 - 2.4 = 394.6 for good.
    costs = FREE.model_copy(update={"commission_bps": 10.0})
    steps, simulation = run(
        [10, 10, 8, 8, 8, 8, 8], [10, 10, 9, 9, 9, 9, 9], [3.0, 3.0, 3.0], costs=costs, account={"gross_limit": 3.0}
    )
    assert [bool(step.ends[0, 0]) for step in steps] == [False, True, False]
    assert column(steps, "equity") == pytest.approx([997.0, 394.6, 394.6], rel=1e-12)  # then the rest is cash
    assert float(simulation.units[0, 0]) == 0.0
    assert column(steps, "write_off") == [0.0, 0.0, 0.0]


def test_a_margin_call_at_the_close_sells_what_was_bought_at_the_open():
    # Three times long at 10: 300 units, commission 3, cash -2,003. Closes at 8: value 2,400, equity 397 < 600.
    # Sold at 8 with 10 bps = 2.4: equity 394.6. Traded 3,000 + 2,400 of an equity of 1,000 at the open.
    costs = FREE.model_copy(update={"commission_bps": 10.0})
    steps, simulation = run([10] * 7, [10] + [8] * 6, [3.0, 3.0], costs=costs, account={"gross_limit": 3.0})
    assert [bool(step.ends[0, 0]) for step in steps] == [True, False]
    assert column(steps, "equity") == pytest.approx([394.6, 394.6], rel=1e-12)
    assert column(steps, "commission") == pytest.approx([5.4, 0.0], rel=1e-12)
    assert column(steps, "turnover") == pytest.approx([5.4, 0.0], rel=1e-12)
    assert column(steps, "n_trades") == [2.0, 0.0]
    assert float(simulation.units[0, 0]) == 0.0


def test_ruin_in_one_night_is_floored_and_the_rest_is_written_off():
    # Three times long at 10, cash -2,000. Opens at 5: value 1,500, equity -500. Floor 1 % of 1,000 = 10: write-off 510.
    steps, _ = run([10, 10, 5, 5, 5, 5, 5], [10, 10, 5, 5, 5, 5, 5], [3.0, 3.0], account={"gross_limit": 3.0})
    assert column(steps, "equity") == pytest.approx([1000.0, 10.0])
    assert column(steps, "write_off") == pytest.approx([0.0, 510.0])
    assert column(steps, "step_return")[1] == pytest.approx(math.log(0.01))
    assert bool(steps[1].ends[0, 0])


def test_impact_grows_with_the_root_of_the_share_of_volume():
    # Closes 10, 11, 10: log-returns ±ln 1.1, sample std = ln 1.1 × sqrt 2. Decided at bar 2, filled at bar 3 at 10:
    # 100 units of a median volume of 400: fraction 0.5 × 0.134789 × sqrt(1/4) = 0.0336973, on 1,000 = 33.697.
    costs = FREE.model_copy(update={"impact_coef": 0.5})
    steps, _ = run([10] * 7, [10, 11, 10, 10, 10, 10, 10], [0.0, 0.0, 1.0], costs=costs, volume=400.0)
    sigma = math.log(1.1) * math.sqrt(2.0)
    assert column(steps, "impact") == pytest.approx([0.0, 0.0, 1000 * 0.5 * sigma * 0.5], rel=1e-12)


def test_a_change_inside_the_band_is_not_traded():
    # Held 0.5 of 1,000 at 10; at 12 the weight is 600/1,100 = 0.5454. Back to 0.5 is a change of 0.0454.
    prices = [10, 10, 12, 12, 12, 12, 12]
    for band, trades in ((0.05, 0.0), (0.04, 1.0)):
        steps, _ = run(prices, prices, [0.5, 0.5], account={"rebalance_band": band})
        assert column(steps, "n_trades") == [1.0, trades]
