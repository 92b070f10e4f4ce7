"""Faults of the evidence: statistics, bootstrap, verdicts, trades, baselines, calibration, runs, and what is shown."""

from tools.mutants import row

__all__ = ["MUTANTS"]

STATISTICS, BOOTSTRAP, VERDICT, TRADES, ENGINE, BASELINES = (
    "backtest/statistics",
    "backtest/bootstrap",
    "backtest/verdict",
    "backtest/trades",
    "backtest/engine",
    "backtest/baselines",
)
CALIBRATION, EVALUATION = "backtest/calibration", "backtest/evaluation"
NUMBERS, DRAWS, SENTENCES, TRIPS, RUNS, CALIBRATED = (
    "backtest/test_statistics.py",
    "backtest/test_bootstrap.py",
    "backtest/test_verdict.py",
    "backtest/test_trades.py",
    "backtest/test_engine.py",
    "backtest/test_calibration.py",
)
SHARPE = f"{NUMBERS}::test_the_sharpe_ratio_is_in_excess_of_cash"
TAIL = f"{NUMBERS}::test_value_at_risk_is_the_mildest_of_the_tail"
DRAWDOWN = f"{NUMBERS}::test_a_drawdown_counts_from_the_start"
BLOCKS = f"{DRAWS}::test_blocks_are_runs_of_neighbours_with_the_asked_mean_length"
INTERVAL = f"{DRAWS}::test_an_interval_leaves_the_same_mass_on_both_sides"
EACH_DRAW = f"{DRAWS}::test_every_statistic_of_a_draw_is_that_of_the_resampled_series"
LIMIT = f"{SENTENCES}::test_a_limit_is_kept_broken_or_neither"
EDGE = f"{SENTENCES}::test_an_edge_needs_both_the_difference_and_the_timing"
FLIP = f"{TRIPS}::test_a_flip_ends_one_trade_and_begins_the_next_and_shares_the_cost"
PARTS = f"{TRIPS}::test_a_long_trade_bought_in_two_parts_and_sold_in_two"
WARM = f"{RUNS}::test_memory_warms_up_on_the_embargo_and_starts_once"
FORETOLD = f"{RUNS}::test_the_distribution_is_asked_with_the_memory_before_the_decision"
FORESIGHT, FORESEEN = "backtest/foresight", "backtest/test_foresight.py"
AT_ONCE = f"{FORESEEN}::test_many_at_once_are_as_one_after_the_other"
SHIFTED = f"{RUNS}::test_the_timing_null_shifts_the_targets_around_the_end"
MARKOV = f"{CALIBRATED}::test_christoffersen_is_the_markov_likelihood_ratio"


MUTANTS = [
    row(
        "a week is called a year",
        "backtest/judgement:headline",
        "metrics.bars >= metrics.bars_per_year",
        "True",
        "report/test_portfolio.py::test_the_first_line_is_for_somebody_without_time",
    ),
    row(
        "what a minute costs is rounded to nothing",
        "backtest/judgement:headline",
        "_digits(cost)",
        "1",
        "report/test_portfolio.py::test_the_first_line_is_for_somebody_without_time",
    ),
    row(
        "the label of the agent's timing leaves the chart",
        "report/risk_charts:timing_chart",
        "timing.score > (edges[0] + edges[-1]) / 2.0",
        "False",
        "report/test_charts.py::test_the_label_of_the_agents_timing_stands_above_the_bars_and_inside_the_chart",
    ),
    row(
        "the bootstrap does not say how far it is",
        "backtest/bootstrap:bootstrap",
        "progress(n_draws - left)",
        "progress(0)",
        "backtest/test_run.py::test_a_backtest_tells_what_it_is_busy_with_and_how_far_the_bootstrap_is",
    ),
    # Statistics
    row(
        "growth adds up instead of compounding",
        f"{STATISTICS}:cagr",
        "np.log1p(returns)",
        "returns",
        f"{NUMBERS}::test_growth_compounds",
    ),
    row(
        "the deviation of a population",
        f"{STATISTICS}:_deviation",
        "returns.std(axis=-1, ddof=1)",
        "returns.std(axis=-1)",
        f"{NUMBERS}::test_volatility_is_the_sample_deviation_of_a_year",
    ),
    row(
        "a year multiplies the Sharpe ratio by its bars",
        f"{STATISTICS}:sharpe",
        "np.sqrt(bars_per_year)",
        "bars_per_year",
        SHARPE,
    ),
    row(
        "every bar of cash earns the same, weekend or not",
        "backtest/result:cash_returns",
        "cash_rate * (seconds / SECONDS_PER_YEAR)",
        "cash_rate * (seconds.mean() / SECONDS_PER_YEAR) * np.ones(len(seconds))",
        f"{NUMBERS}::test_cash_has_no_sharpe_ratio_beside_its_own_rate",
    ),
    row(
        "an edge is claimed on bars the agent has learned from",
        f"{VERDICT}:edge_verdict",
        "edge.in_sample",
        "''",
        f"{SENTENCES}::test_nothing_is_claimed_about_bars_the_agent_has_learned_from",
    ),
    row(
        "a run that loses to cash has no evidence of an edge",
        f"{VERDICT}:edge_verdict",
        "cash.high < 0.0",
        "cash.high < -1.0",
        f"{SENTENCES}::test_an_agent_that_loses_to_cash_for_certain_is_worse_than_cash",
    ),
    row(
        "an agent in cash is judged",
        f"{VERDICT}:edge_verdict",
        "edge.idle",
        "False",
        f"{SENTENCES}::test_an_agent_that_stays_in_cash_is_not_judged",
    ),
    row(
        "a Sharpe ratio forgets what cash earned",
        f"{STATISTICS}:_excess",
        "returns - cash",
        "returns",
        SHARPE,
    ),
    row(
        "the Sortino ratio averages losing bars alone",
        f"{STATISTICS}:sortino",
        "np.square(np.minimum(excess, 0.0)).mean(axis=-1)",
        "np.square(np.minimum(excess, 0.0)).sum(axis=-1) / np.maximum((excess < 0.0).sum(axis=-1), 1)",
        f"{NUMBERS}::test_the_sortino_ratio_counts_every_bar_in_its_downside",
    ),
    row(
        "a drawdown does not know the first capital",
        f"{STATISTICS}:drawdowns",
        "np.maximum(np.maximum.accumulate(equity, axis=-1), 1.0)",
        "np.maximum.accumulate(equity, axis=-1)",
        DRAWDOWN,
    ),
    row(
        "drawdowns of sums",
        f"{STATISTICS}:drawdowns",
        "np.cumprod(1.0 + returns, axis=-1)",
        "1.0 + np.cumsum(returns, axis=-1)",
        DRAWDOWN,
    ),
    row(
        "a drawdown that goes on is not counted",
        f"{STATISTICS}:longest_drawdown_bars",
        "np.concatenate([[-1], at_peak, [returns.shape[-1]]])",
        "np.concatenate([[-1], at_peak])",
        "backtest/test_performance.py::test_a_drawdown_that_never_ends_lasts_to_the_last_bar",
    ),
    row(
        "the value at risk of the good tail",
        f"{STATISTICS}:value_at_risk",
        "tail.value_at_risk(torch.tensor(returns, dtype=torch.float64), alpha)",
        "tail.value_at_risk(torch.tensor(returns, dtype=torch.float64), 1.0 - alpha)",
        TAIL,
    ),
    row(
        "the value at risk lies between two observations",
        f"{STATISTICS}:value_at_risk",
        "tail.value_at_risk(torch.tensor(returns, dtype=torch.float64), alpha)",
        "torch.quantile(torch.tensor(returns, dtype=torch.float64), alpha, -1)",
        TAIL,
    ),
    row(
        "CVaR counts its last observation whole",
        f"{STATISTICS}:cvar",
        "min(1.0, alpha * n / k)",
        "1.0",
        "backtest/test_performance.py::test_cvar_weights_the_partly_covered_observation",
    ),
    row(
        "a flat line has a Sharpe ratio",
        f"{STATISTICS}:_deviation",
        "np.where(constant, 0.0, spread)",
        "spread",
        "backtest/test_performance.py::test_constant_interest_has_no_sharpe_ratio_of_1e15",
    ),
    row(
        "bars in cash are misses",
        "backtest/performance:performance_of",
        "int(np.count_nonzero(returns))",
        "returns.size",
        f"{NUMBERS}::test_bars_without_a_result_are_neither_hits_nor_misses",
    ),
    row(
        "costs are set against the profit after them",
        "backtest/performance:activity_of",
        "float(equity[-1] - equity[0]) + paid",
        "float(equity[-1] - equity[0])",
        "backtest/test_performance.py::test_activity_counts_costs_against_the_profit_before_them",
    ),
    # Bootstrap
    row("bars are drawn one by one", f"{BOOTSTRAP}:stationary_indices", "1.0 / mean_block", "1.0", BLOCKS),
    row(
        "blocks stop at the last bar",
        f"{BOOTSTRAP}:stationary_indices",
        "picked % n",
        "np.minimum(picked, n - 1)",
        BLOCKS,
    ),
    row(
        "blocks start before the end only",
        f"{BOOTSTRAP}:stationary_indices",
        "rng.integers(n, size=(n_draws, n))",
        "rng.integers(n // 2, size=(n_draws, n))",
        BLOCKS,
    ),
    row(
        "agent and baseline are drawn apart",
        f"{BOOTSTRAP}:bootstrap",
        "values[rows]",
        "values[stationary_indices(n, len(rows), mean_block=mean_block, rng=rng)]",
        f"{DRAWS}::test_the_difference_to_a_baseline_is_paired",
    ),
    row(
        "the interval has its mass on one side",
        f"{BOOTSTRAP}:_interval",
        "[(1.0 - mass) / 2.0, (1.0 + mass) / 2.0]",
        "[1.0 - mass, mass]",
        INTERVAL,
    ),
    row(
        "a difference the wrong way round",
        f"{BOOTSTRAP}:Bootstrap.difference",
        "self.draws[series][statistic] - self.draws[baseline][statistic]",
        "self.draws[baseline][statistic] - self.draws[series][statistic]",
        INTERVAL,
    ),
    row("the tail of simple returns", f"{BOOTSTRAP}:bootstrap", "np.log1p(sample)", "sample", EACH_DRAW),
    # Verdicts
    row(
        "a limit is kept by the measured tail alone",
        f"{VERDICT}:risk_verdict",
        "tail.interval.low >= limit",
        "tail.measured >= limit",
        LIMIT,
    ),
    row(
        "what a policy with a memory of its own predicts is taken as it comes",
        f"{FORESIGHT}:Foresight._ask_again",
        "_ROUNDING * size",
        "np.inf",
        f"{FORESEEN}::test_a_policy_that_remembers_in_itself_is_refused",
    ),
    row(
        "a limit is broken by the measured tail alone",
        f"{VERDICT}:risk_verdict",
        "tail.interval.high < limit",
        "tail.measured < limit",
        LIMIT,
    ),
    row(
        "the risk verdict is that of the first split",
        f"{VERDICT}:risk_verdict",
        "by_split[judged]",
        "tails[0]",
        f"{SENTENCES}::test_the_risk_verdict_is_of_the_judged_split_and_names_the_others",
    ),
    row(
        "an edge without timing",
        f"{VERDICT}:edge_verdict",
        "low > 0.0 and edge.timing_percentile > TIMING",
        "low > 0.0",
        EDGE,
    ),
    row(
        "timing alone is an edge",
        f"{VERDICT}:edge_verdict",
        "low > 0.0 and edge.timing_percentile > TIMING",
        "edge.timing_percentile > TIMING",
        EDGE,
    ),
    row(
        "being worse than holding is an edge",
        f"{VERDICT}:edge_verdict",
        "low > 0.0 and edge.timing_percentile > TIMING",
        "(low > 0.0 or high < 0.0) and edge.timing_percentile > TIMING",
        EDGE,
    ),
    row(
        "the best seed decides control",
        f"{VERDICT}:control_verdict",
        "min(shares)",
        "max(shares)",
        f"{SENTENCES}::test_the_worst_seed_decides_control",
    ),
    row(
        "half of the true differences are missed",
        f"{VERDICT}:smallest_detectable",
        "stats.norm.ppf(power)",
        "0.0",
        f"{SENTENCES}::test_the_smallest_detectable_difference_is_found_four_times_in_five",
    ),
    row(
        "what did not carry over is not said",
        f"{VERDICT}:_carried",
        "edge.sharpe_in > 0.0 and edge.sharpe_out < CARRIED * edge.sharpe_in",
        "False",
        f"{SENTENCES}::test_the_edge_sentence_says_what_it_rests_on",
    ),
    row(
        "train is judged first",
        "backtest/judgement",
        '("test", "validation", "train")',
        '("train", "validation", "test")',
        f"{SENTENCES}::test_the_most_honest_split_that_was_run_is_judged",
    ),
    # Trades
    row(
        "a flip pays for the old trade alone", f"{TRADES}:_of_one", "abs(held) / (abs(held) + abs(after))", "1.0", FLIP
    ),
    row(
        "a short earns when the price rises",
        f"{TRADES}:_finish",
        "book.sign * (book.received - book.paid)",
        "book.received - book.paid",
        FLIP,
    ),
    row("a flip goes on as one trade", f"{TRADES}:_of_one", "after * book.sign <= 0.0", "after == 0.0", FLIP),
    row(
        "profit before costs",
        f"{TRADES}:_finish",
        "book.sign * (book.received - book.paid) - book.costs",
        "book.sign * (book.received - book.paid)",
        PARTS,
    ),
    row("a part that is sold is bought", f"{TRADES}:_of_one", "change > 0.0", "True", PARTS),
    row(
        "an open trade is worth its entry",
        f"{TRADES}:_of_one",
        "float(closes[-1])",
        "book.paid / book.bought",
        f"{TRIPS}::test_a_trade_still_open_is_marked_at_the_last_close",
    ),
    row(
        "every asset pays all costs",
        f"{TRADES}:round_trips",
        "shared[:, a]",
        "costs",
        f"{TRIPS}::test_each_asset_has_its_own_trades_and_its_share_of_the_costs",
    ),
    # How a policy is run
    row(
        "every bar starts an episode",
        f"{ENGINE}:_Decider.__call__",
        "self._start = np.zeros(1, dtype=np.bool_)",
        "pass",
        WARM,
    ),
    row(
        "memory starts with the split",
        "env/replay:replay",
        "simulation.place_on_split(split, warm_up=warm_up)",
        "simulation.place_on_split(split, warm_up=False)",
        WARM,
    ),
    row(
        "warm-up is in the outlook",
        f"{ENGINE}:_Decider.__call__",
        "self._foresight is not None and self._left <= 0",
        "self._foresight is not None",
        FORETOLD,
    ),
    row(
        "the outlook is asked with the memory after the decision",
        f"{ENGINE}:_Decider.__call__",
        "self._foresight.add(observation, **memory)",
        "self._foresight.add(observation, self._policy.predict(observation, **memory)[1], self._start)",
        FORETOLD,
    ),
    row(
        "what was seen last is not asked about",
        f"{FORESIGHT}:Foresight.read",
        "self._ask()",
        "pass",
        AT_ONCE,
    ),
    row(
        "memories of many decisions stand one above the other",
        f"{FORESIGHT}:Foresight._ask",
        "np.concatenate(parts, axis=1)",
        "np.concatenate(parts, axis=0)",
        AT_ONCE,
    ),
    row(
        "every decision is asked about with the memory of the first",
        f"{FORESIGHT}:Foresight._ask",
        "zip(*states, strict=True)",
        "zip(*[states[0]] * len(states), strict=True)",
        AT_ONCE,
    ),
    row(
        "an answer for one decision counts for all",
        f"{FORESIGHT}:_outlook",
        "rows[name].shape != shape",
        "False",
        f"{FORESEEN}::test_an_answer_for_fewer_decisions_than_were_asked_is_refused",
    ),
    row(
        "a memory that is written over is kept for a later question",
        f"{FORESIGHT}:Foresight.add",
        "part.copy()",
        "part",
        f"{FORESEEN}::test_a_memory_that_a_policy_writes_over_is_the_one_before_each_decision",
    ),
    row(
        "a memory that is no array is asked about when it is another",
        f"{FORESIGHT}:Foresight.add",
        "len(self._returns) < _ALONE or not can_wait",
        "len(self._returns) < _ALONE",
        f"{FORESEEN}::test_a_memory_that_a_policy_writes_over_is_the_one_before_each_decision",
    ),
    row(
        "fills are recorded at the close",
        f"{ENGINE}:_result",
        "np.where(change != 0.0, orders / np.where(change != 0.0, change, 1.0), opens)",
        "closes",
        f"{RUNS}::test_what_is_recorded_is_what_a_bare_simulation_gives",
    ),
    # Baselines
    row(
        "buy and hold rebalances",
        f"{BASELINES}:buy_and_hold",
        "np.full((window.n_decisions, len(bars.assets)), np.nan)",
        "np.full((window.n_decisions, len(bars.assets)), 1.0 / listed.sum())",
        f"{RUNS}::test_buy_and_hold_splits_the_capital_once_and_waits_for_a_missing_bar",
    ),
    row(
        "the timing null holds the agent itself",
        f"{BASELINES}:timing_null",
        "np.arange(max(1, least), n - least + 1)",
        "np.arange(n)",
        SHIFTED,
    ),
    row(
        "the timing null forgets the days",
        f"{BASELINES}:timing_null",
        "agent.targets[(t - offsets) % n]",
        "agent.targets[offsets % n]",
        SHIFTED,
    ),
    row(
        "old volatility counts as much as new",
        f"{BASELINES}:ewma_volatility",
        "_DECAY * running + (1.0 - _DECAY) * square",
        "0.5 * running + 0.5 * square",
        f"{RUNS}::test_ewma_volatility_is_the_recursion",
    ),
    row(
        "volatility knows the next move",
        f"{BASELINES}:ewma_volatility",
        "np.diff(np.log(bars.carried_close), axis=0, prepend=np.nan)",
        "np.diff(np.log(bars.carried_close), axis=0, append=np.nan)",
        f"{RUNS}::test_ewma_volatility_is_the_recursion",
    ),
    row(
        "ties count against the agent",
        f"{EVALUATION}:TimingNull.percentile",
        "50.0 * tied.mean()",
        "0.0",
        "backtest/test_evaluation.py::test_the_timing_percentile_counts_ties_by_half",
    ),
    # Calibration
    row(
        "coverage of the levels above",
        f"{CALIBRATION}:coverage",
        "diagnostics.coverage(*_tensors(quantiles, outcomes))",
        "1.0 - diagnostics.coverage(*_tensors(quantiles, outcomes))",
        f"{CALIBRATED}::test_coverage_counts_outcomes_at_or_below_each_quantile",
    ),
    row(
        "coverage of quantiles as they come, not sorted",
        f"{CALIBRATION}:_tensors",
        "np.sort(quantiles, axis=1)",
        "quantiles",
        CALIBRATED,
    ),
    row(
        "Kupiec without the measured rate",
        f"{CALIBRATION}:kupiec",
        "_log_likelihood(n - x, x, x / n)",
        "0.0",
        f"{CALIBRATED}::test_kupiec_is_the_likelihood_ratio",
    ),
    row(
        "two tests have one degree of freedom",
        f"{CALIBRATION}:christoffersen",
        "stats.chi2.sf(ratio, 2)",
        "stats.chi2.sf(ratio, 1)",
        MARKOV,
    ),
    row(
        "independence looks at one regime",
        f"{CALIBRATION}:christoffersen_independence",
        "_log_likelihood(n10, n11, stressed)",
        "_log_likelihood(n10, n11, calm)",
        MARKOV,
    ),
    row(
        "Z₂ divides by the value at risk",
        f"{CALIBRATION}:tail_residual",
        "outcomes * hit / cvar",
        "outcomes * hit / var",
        f"{CALIBRATED}::test_the_tail_residual_is_the_arithmetic",
    ),
    # How it is shown
    row(
        "a hyphen for a minus sign",
        "backtest/wording:_with_minus",
        'return text.replace("-", "−")',
        "return text",
        "backtest/test_wording.py",
    ),
    row(
        "a table of its own for the names in the terminal",
        "cli/backtest:_print_table",
        "strategy_of(name).label",
        'name.replace("_", " ")',
        "report/test_charts.py::test_a_row_of_the_table_of_strategies_is_all_that_names_and_colours_one",
    ),
    row(
        "cash among the tails",
        "report/risk_charts:_forest",
        "[name for name in known if strategy_of(name).moves]",
        "list(known)",
        "report/test_charts.py::test_what_never_moves_is_in_the_equity_chart_alone",
    ),
    row(
        "the run's own openings are counted among those beside it",
        "report/openings:seal_sentence",
        'entries[-1].get("earlier", 0) - (len(entries) - 1)',
        'entries[-1].get("earlier", 0)',
        "report/test_openings.py",
    ),
]
