"""Faults of the trading environment: fills, costs, interest, margin, ruin, listing, what an agent is shown."""

from tools.mutants import row

__all__ = ["MUTANTS"]

KERNEL, COSTS, SIMULATION, SB3 = "env/kernel", "env/costs", "env/simulation", "env/sb3"
PATHS, PORTFOLIO, ENVS = "env/test_hand_paths.py", "env/test_portfolio_paths.py", "env/test_envs.py"
LONG = f"{PATHS}::test_long_one_pays_once_then_drifts_back_to_its_weight"
SHORT = f"{PATHS}::test_short_half_gains_when_the_price_falls_and_pays_for_the_borrow"
FLIP = f"{PATHS}::test_a_flip_trades_the_whole_distance"
NEW_ENTRY = f"{PATHS}::test_a_flip_begins_a_new_entry_price"
PARTIAL = f"{PATHS}::test_a_partial_sale_keeps_the_entry_price_and_books_the_gap"
IMPACT = f"{PATHS}::test_impact_grows_with_the_root_of_the_share_of_volume"
INTEREST = f"{PATHS}::test_interest_on_debit_and_on_cash_is_actual_over_365"
AT_OPEN = f"{PATHS}::test_a_margin_call_at_the_open_closes_everything_and_ends_the_episode"
AT_CLOSE = f"{PATHS}::test_a_margin_call_at_the_close_sells_what_was_bought_at_the_open"
RUIN = f"{PATHS}::test_ruin_in_one_night_is_floored_and_the_rest_is_written_off"
BARS = f"{PORTFOLIO}::test_an_asset_is_traded_only_where_it_has_a_bar"
DELISTED = f"{PORTFOLIO}::test_a_delisted_asset_is_sold_at_its_last_close"
WARM_UP = f"{ENVS}::test_warm_up_is_flat_and_a_split_is_never_left"
VEC = f"{ENVS}::test_the_vec_env_equals_single_envs_in_the_same_windows"
RUNNING = f"{ENVS}::test_the_running_return_of_many_envs_starts_anew_with_each_episode"
BROKER = "env/test_accounting.py::test_every_bar_equals_the_ledger_with_the_costs_of_brokers"


MUTANTS = [
    # Fills
    row(
        "filled at the close it was decided on", f"{KERNEL}:_trade", "panel[t + 1, a, OPEN]", "panel[t, a, CLOSE]", LONG
    ),
    row(
        "a target is a share of the equity before the gap",
        f"{KERNEL}:_account",
        "_trade(t, equity, targets, panel, rates, terms, book, held, orders, info, b)",
        "_trade(t, before, targets, panel, rates, terms, book, held, orders, info, b)",
        LONG,
    ),
    row(
        "a target that leaves an asset alone sells it",
        f"{KERNEL}:_trade",
        "weight = targets[b, a] * scale",
        "weight = 0.0 if math.isnan(targets[b, a]) else targets[b, a] * scale",
        SHORT,
    ),
    row(
        "the band is ignored",
        f"{KERNEL}:_trade",
        "abs(weight - units * price / equity) < rates[BAND]",
        "False",
        f"{PATHS}::test_a_change_inside_the_band_is_not_traded",
    ),
    row(
        "the gross limit is ignored",
        f"{KERNEL}:_trade",
        "gross > rates[GROSS_LIMIT]",
        "False",
        f"{PORTFOLIO}::test_targets_beyond_the_gross_limit_are_scaled_down_together",
    ),
    row(
        "long and short offset each other under the gross limit",
        f"{KERNEL}:_trade",
        "gross += abs(targets[b, a])",
        "gross += targets[b, a]",
        f"{PORTFOLIO}::test_targets_beyond_the_gross_limit_are_scaled_down_together",
    ),
    row(
        "an asset that is not listed takes room under the limit",
        f"{KERNEL}:_trade",
        "code != NOT_LISTED and code != DELISTED and not math.isnan(targets[b, a])",
        "not math.isnan(targets[b, a])",
        f"{PORTFOLIO}::test_what_cannot_be_held_takes_no_room_under_the_limit",
    ),
    row("traded without a bar", f"{KERNEL}:_trade", "code == TRADABLE", "code in (TRADABLE, NO_BAR)", BARS),
    row("a delisted asset is kept", f"{KERNEL}:_trade", "desired = 0.0", "desired = units", DELISTED),
    row(
        "delisted in its last bar",
        f"{COSTS}:price_panel",
        "np.arange(len(bars))[:, None] > bars.last_bar",
        "np.arange(len(bars))[:, None] >= bars.last_bar",
        DELISTED,
    ),
    row(
        "an absent bar has the price of the next one",
        f"{COSTS}:price_panel",
        "carried = bars.carried_close",
        "carried = bars.carried_close[np.minimum(np.arange(len(bars)) + 1, len(bars) - 1)]",
        BARS,
    ),
    # Costs
    row(
        "commission on units",
        f"{KERNEL}:_fill",
        "rates[COMMISSION_RATE] * size",
        "rates[COMMISSION_RATE] * abs(change)",
        LONG,
    ),
    row(
        "basis points are percent", f"{COSTS}:rates", "costs.commission_bps * 1e-4", "costs.commission_bps * 1e-2", LONG
    ),
    row(
        "only purchases cross the spread",
        f"{KERNEL}:_fill",
        "rates[SPREAD_RATE] * size",
        "rates[SPREAD_RATE] * max(notional, 0.0)",
        FLIP,
    ),
    row(
        "the fee is shown and not paid",
        f"{KERNEL}:_fill",
        "notional + commission + spread + impact_cost + fee",
        "notional + commission + spread + impact_cost",
        PARTIAL,
    ),
    row(
        "impact grows with the size itself",
        f"{KERNEL}:_fill",
        "rates[IMPACT_COEF] * impact * math.sqrt(abs(change)) * size",
        "rates[IMPACT_COEF] * impact * abs(change) * size",
        IMPACT,
    ),
    row(
        "impact knows the bar of the fill", f"{KERNEL}:_trade", "panel[t, a, IMPACT]", "panel[t + 1, a, IMPACT]", IMPACT
    ),
    row(
        "impact knows the next return",
        f"{COSTS}:impact_per_root_unit",
        "np.diff(np.log(close), prepend=np.nan)",
        "np.diff(np.log(close), append=np.nan)",
        IMPACT,
    ),
    row(
        "costs without interest",
        f"{KERNEL}:_account",
        "info[COMMISSION, b] + info[SPREAD, b] + info[PRICE_IMPACT, b] + info[FEES, b] + info[INTEREST_PAID, b]",
        "info[COMMISSION, b] + info[SPREAD, b] + info[PRICE_IMPACT, b] + info[FEES, b]",
        SHORT,
    ),
    row(
        "turnover over the equity before the gap",
        f"{KERNEL}:_account",
        "traded / max(equity, floor)",
        "traded / max(before, floor)",
        LONG,
    ),
    # Interest
    row("interest for the bar before", f"{KERNEL}:_interest", "years[t + 1]", "years[t]", INTEREST),
    row(
        "debt earns the rate of cash",
        f"{KERNEL}:_interest",
        "max(cash, 0.0) * rates[CASH_RATE] * time",
        "cash * rates[CASH_RATE] * time",
        INTEREST,
    ),
    row(
        "cash pays the rate of debt",
        f"{KERNEL}:_interest",
        "-min(cash, 0.0) * rates[DEBIT_RATE] * time",
        "-cash * rates[DEBIT_RATE] * time",
        INTEREST,
    ),
    row(
        "long positions are borrowed",
        f"{KERNEL}:_interest",
        "short -= min(held[b, UNITS, a] * panel[t, a, CLOSE], 0.0)",
        "short += abs(held[b, UNITS, a] * panel[t, a, CLOSE])",
        f"{PATHS}::test_a_long_position_borrows_nothing",
    ),
    row(
        "borrow is paid on the next close",
        f"{KERNEL}:_interest",
        "short -= min(held[b, UNITS, a] * panel[t, a, CLOSE], 0.0)",
        "short -= min(held[b, UNITS, a] * panel[t + 1, a, OPEN], 0.0)",
        f"{PATHS}::test_borrow_is_paid_on_the_value_at_the_last_close",
    ),
    # Costs of brokers, limits of a desk
    row(
        "the least commission is forgotten",
        f"{KERNEL}:_commission",
        "max(charged, terms[a, LEAST])",
        "charged",
        f"{BROKER}[per share with a minimum]",
    ),
    row(
        "a whole order pays the rate of its last tier",
        f"{KERNEL}:_commission",
        "percentage += terms[a, TIERS_RATE + i] * (min(size, end) - start)",
        "percentage = terms[a, TIERS_RATE + i] * size",
        f"{BROKER}[tiers]",
    ),
    row(
        "a short position pays funding too",
        f"{KERNEL}:_interest",
        "value * terms[a, FUNDING] * time",
        "abs(value) * terms[a, FUNDING] * time",
        f"{BROKER}[maker, taker and funding]",
    ),
    row(
        "lots are rounded up",
        f"{KERNEL}:_in_lots",
        "math.floor(abs(desired) / lot * (1.0 + 1e-12))",
        "math.ceil(abs(desired) / lot)",
        f"{BROKER}[lots and a smallest order]",
    ),
    row(
        "the net limit scales both sides",
        f"{KERNEL}:_bounded",
        "up = (limit + shorts * scale) / longs",
        "up = down = scale * limit / ((longs - shorts) * scale)",
        f"{BROKER}[limits of a desk]",
    ),
    # Profit, margin and ruin
    row(
        "the gap of the night is not in the profit",
        f"{KERNEL}:_account",
        "pnl = at_open - at_close",
        "pnl = 0.0",
        PARTIAL,
    ),
    row("the step's return is simple", f"{KERNEL}:_account", "math.log(now / before)", "now / before - 1.0", LONG),
    row(
        "no margin call at the open",
        f"{KERNEL}:_account",
        "equity < rates[MAINTENANCE] * gross or equity <= floor",
        "equity <= floor",
        AT_OPEN,
    ),
    row(
        "no margin call at the close",
        f"{KERNEL}:_account",
        "now < rates[MAINTENANCE] * gross or now <= floor",
        "now <= floor",
        AT_CLOSE,
    ),
    row("a margin call is free", f"{KERNEL}:_settle", "book[b, CASH] -= spent", "book[b, CASH] -= notional", AT_OPEN),
    row("an account that ended trades again", f"{KERNEL}:_account", "clock[b, ENDED] == 0", "True", AT_OPEN),
    row("ruin has no floor", f"{KERNEL}:_account", "now < floor", "False", RUIN),
    row("the write-off is not told", f"{KERNEL}:_account", "info[WRITE_OFF, b] = floor - now", "pass", RUIN),
    row(
        "the floor is a share of one unit of money",
        f"{COSTS}:rates",
        "account.ruin * account.initial_equity",
        "account.ruin",
        RUIN,
    ),
    # What is shown
    row("a sale moves the entry price", f"{KERNEL}:_fill", "abs(desired) > abs(units)", "True", PARTIAL),
    row(
        "a flip keeps the entry price",
        f"{KERNEL}:_fill",
        "desired == 0.0 or units * desired < 0.0 or units == 0.0",
        "desired == 0.0 or units == 0.0",
        NEW_ENTRY,
    ),
    row(
        "the entry price is that of the last purchase",
        f"{KERNEL}:_fill",
        "(abs(units) * entry + abs(change) * price) / abs(desired)",
        "price",
        f"{PATHS}::test_an_increase_averages_the_entry_price",
    ),
    row("a short that gains is shown as a loss", f"{KERNEL}:_observe", "gain if units > 0.0 else -gain", "gain", FLIP),
    row(
        "the return since entry is not cut",
        f"{KERNEL}:_observe",
        "max(-ENTRY_RETURN_LIMIT, min(ENTRY_RETURN_LIMIT, gain if units > 0.0 else -gain))",
        "gain if units > 0.0 else -gain",
        f"{PATHS}::test_the_return_since_entry_is_cut_at_one_half",
    ),
    row(
        "the drawdown never forgets a peak",
        f"{KERNEL}:_remember",
        "dropped >= book[b, PEAK]",
        "False",
        f"{ENVS}::test_drawdown_is_measured_over_a_rolling_window",
    ),
    row(
        "the peak of an episode stays for the next",
        f"{KERNEL}:_begin",
        "ring[b] = 0.0",
        "pass",
        f"{ENVS}::test_an_episode_remembers_nothing_of_the_one_before",
    ),
    row(
        "the differential Sharpe ratio has a unit",
        f"{KERNEL}:_reward",
        "variance**1.5",
        "variance",
        f"{ENVS}::test_differential_sharpe_follows_its_equation",
    ),
    row(
        "the account's state may be attacked",
        f"{SIMULATION}:Simulation.attackable",
        "np.zeros(2 * self.n_assets + 1, dtype=np.bool_)",
        "np.ones(2 * self.n_assets + 1, dtype=np.bool_)",
        f"{ENVS}::test_only_market_features_are_attackable",
    ),
    # Episodes and their faces
    row("warm-up earns interest", f"{KERNEL}:step_all", "t >= clock[b, TRADE_FROM]", "True", WARM_UP),
    row(
        "a window is left by one bar",
        f"{SIMULATION}:Simulation.place",
        "k.place_all(start, end - 1, trade_from, self._rates, self.book, self.held, self.clock, self.ring)",
        "k.place_all(start, end, trade_from, self._rates, self.book, self.held, self.clock, self.ring)",
        WARM_UP,
    ),
    row(
        "envs end in step for ever",
        f"{KERNEL}:begin_random",
        "window[5] != 0 and episode == 0",
        "False",
        f"{ENVS}::test_staggered_envs_do_not_end_in_step",
    ),
    row(
        "a shard draws the windows of the first envs",
        f"{SIMULATION}:Simulation.reseed",
        "self.first_env",
        "0",
        f"{ENVS}::test_each_env_draws_from_a_stream_of_its_own",
    ),
    row(
        "a state that is not started may point anywhere",
        f"{SIMULATION}:Simulation.load_state_dict",
        "any(each.any() for each in found)",
        "False",
        "env/test_state.py::test_a_state_that_is_not_started_points_nowhere",
    ),
    row(
        "a state of other bars is taken",
        f"{SIMULATION}:Simulation.load_state_dict",
        'state["fingerprint"] != self.market.fingerprint',
        "False",
        f"{ENVS}::test_a_state_of_other_bars_or_another_shape_is_refused",
    ),
    row(
        "weights are not cut to the box",
        "env/actions:Weights.targets",
        "np.minimum(np.maximum(weights, self.low), self.high)",
        "weights",
        f"{ENVS}::test_an_action_that_is_not_finite_is_refused_and_a_large_one_is_cut",
    ),
    row(
        "ruin looks like a time limit",
        f"{SB3}:TradingVecEnv._finished",
        "bool(step.ends[1, env])",
        "True",
        f"{ENVS}::test_ruin_is_no_time_limit",
    ),
    row(
        "the last observation is that of the next episode",
        f"{SB3}:TradingVecEnv._finished",
        "self.simulation.final_observations[env].copy()",
        "step.observations[env].copy()",
        VEC,
    ),
    row(
        "the running return runs on into the next episode",
        f"{SB3}:RunningReturnVecEnv.step_wait",
        "self._totals[dones] = 0.0",
        "pass",
        RUNNING,
    ),
    row(
        "the last observation lacks the last return",
        f"{SB3}:RunningReturnVecEnv.step_wait",
        "np.asarray(self._totals[env], dtype=last.dtype)",
        "np.asarray(0.0, dtype=last.dtype)",
        RUNNING,
    ),
]
