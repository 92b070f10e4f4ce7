"""Faults of market data: look-ahead, scaling, splits, adjustments, times, and what a check lets through."""

from tools.mutants import row

__all__ = ["MUTANTS"]

BARS, FEATURES, ROLLING, TIMES, SOURCES = (
    "market/bars",
    "market/features",
    "market/rolling",
    "market/times",
    "market/sources",
)
ACTIONS, ACTION_TESTS = "market/corporate_actions", "market/test_corporate_actions.py"
APPLIED = f"{ACTION_TESTS}::test_a_split_and_dividends_of_raw_prices_are_applied_to_all_bars_before_them"
SHAPES, LEAKS, HOSTILE = "market/test_bar_files.py", "market/test_leaks.py", "market/test_hostile_files.py"
READ = f"{SHAPES}::test_a_file_in_a_usual_shape_is_read"
REFUSED = f"{SHAPES}::test_what_cannot_be_read_is_refused_with_the_remedy"
TAPE, TAPES = "market/tape", "market/test_tape.py"
CHECKS, MARKET, SPLITS, SCALING = "market/checks", "market/market", "market/splits", "market/scaling"
AHEAD, FEATURE_TESTS, SOURCE_TESTS, CHECK_TESTS = (
    "market/test_look_ahead.py",
    "market/test_features.py",
    "market/test_sources.py",
    "market/test_checks.py",
)
BLIND = f"{AHEAD}::test_a_feature_at_t_is_blind_to_later_bars"
LOOK_BACK = f"{AHEAD}::test_a_feature_reads_exactly_its_look_back"
TRAIN_ALONE = f"{AHEAD}::test_the_scaler_sees_train_alone"
NASDAQ = f"{FEATURE_TESTS}::test_nasdaq_splits_and_year"
SCALED = f"{FEATURE_TESTS}::test_scaled_features_are_cut_and_one_that_never_moves_is_zero"
FINGERPRINT = f"{FEATURE_TESTS}::test_a_fingerprint_depends_on_every_number"
ADJUSTED = f"{SOURCE_TESTS}::test_adjusted_closes_adjust_all_prices_and_the_volume"
STAMP = f"{SOURCE_TESTS}::test_a_stamp_of_the_close_is_moved_back_by_one_bar"
FORMS = f"{SOURCE_TESTS}::test_text_files_of_every_form_give_the_same_bars"
GAP = f"{CHECK_TESTS}::test_a_gap_is_more_than_three_usual_weekends"


MUTANTS = [
    row(
        "the name of an asset is read as a number",
        "market/reading:_parsed",
        "is_of_assets(name, renamed)",
        "False",
        f"{HOSTILE}::test_a_name_of_digits_keeps_its_zeros_and_is_no_other_name",
    ),
    row(
        "a line without its asset is of an asset without a name",
        "market/columns:_names_of_assets",
        "0 < len(each) <= _LONGEST_NAME",
        "len(each) <= _LONGEST_NAME",
        f"{HOSTILE}::test_a_line_that_does_not_say_its_asset_is_named",
    ),
    row(
        "a name of an asset is a number where the config says which column it is",
        "market/column_names:is_of_assets",
        'renamed.get(str(name)) == "asset"',
        "False",
        f"{HOSTILE}::test_the_column_of_names_is_of_texts_also_where_the_config_says_which_it_is",
    ),
    row(
        "a column of names without a name is a fault",
        "market/columns:_names_of_assets",
        '(text == "").all()',
        "False",
        f"{HOSTILE}::test_a_column_of_names_that_is_empty_names_nothing_and_the_file_does",
    ),
    row(
        "an index is made a column that is there",
        "market/columns:_without_index",
        "single and name in frame.columns",
        "False",
        f"{HOSTILE}::test_an_index_that_is_a_column_too_is_left_out_and_said",
    ),
    row(
        "two columns of one name in a text get another one",
        "market/column_names:with_blanks_apart",
        "blank and seen[str(name)]",
        "seen[str(name)]",
        f"{HOSTILE}::test_two_columns_of_one_name_in_a_text_are_named",
    ),
    row(
        "false is no dividend and no number",
        "market/columns:_read_numbers",
        "_false_as_zero(cells[name])",
        "cells[name]",
        f"{HOSTILE}::test_false_is_no_split_and_no_dividend_and_true_is_no_number",
    ),
    row(
        "true of NumPy is a price of one",
        "market/columns:_is_truth",
        "isinstance(cell, bool | np.bool_)",
        "isinstance(cell, bool)",
        f"{HOSTILE}::test_true_of_numpy_is_no_price",
    ),
    row(
        "true is a price of one",
        "market/columns:_read_numbers",
        "values[name][_is_truth(column)] = np.nan",
        "pass",
        f"{HOSTILE}::test_true_is_no_price_and_no_volume_but_a_feature_may_be_true",
    ),
    row(
        "of two columns of one name either may be meant",
        "market/column_names:named_twice",
        "not twice",
        "True",
        f"{HOSTILE}::test_two_columns_of_one_name_are_named_before_anything_is_made_of_them",
    ),
    # Files
    row(
        "an order of columns is taken on trust",
        "market/unnamed:_name_prices",
        "not same_thing or highs[high] < 0.99 or lows[low] < 0.99",
        "False",
        f"{SHAPES}::test_what_cannot_be_read_is_refused_with_the_remedy",
    ),
    row(
        "a comma is always between thousands",
        "market/numbers:_is_decimal",
        "bool((last | alone | (others > 1)).any())",
        'sign == "."',
        f"{READ}[decimal commas only]",
    ),
    row(
        "each column has a convention of its own",
        "market/columns:_read_numbers",
        'decimal == "," or np.isnan(values[name]).any()',
        "np.isnan(values[name]).any()",
        f"{READ}[a volume of thousands beside decimal commas]",
    ),
    row(
        "a number of thousands is read before the commas beside it",
        "market/reading:_read_text",
        "any(_has_commas(frame[column]) for column in frame)",
        "False",
        f"{READ}[a volume of thousands beside decimal commas]",
    ),
    row(
        "a volume has decimals where prices have three",
        "market/numbers:decimal_sign",
        "len(signs[0]) == 1 and signs[1] - signs[0]",
        "False",
        f"{READ}[a volume of thousands beside three decimals]",
    ),
    row(
        "three decimals between semicolons are not worth a word",
        "market/columns:_has_three_decimals",
        "(np.round(thousandths) % 10 != 0).mean() > 0.5",
        "False",
        f"{READ}[three decimals everywhere between semicolons]",
    ),
    row(
        "the firsts of months are days of January",
        f"{TIMES}:_in_either_order",
        "(_unevenness(day_first), _span(day_first)) < (_unevenness(month_first), _span(month_first))",
        "_span(day_first) < _span(month_first)",
        f"{READ}[months, the day first in every date]",
        f"{READ}[months, the month first in every date]",
    ),
    row(
        "a date with two meanings passes without a word",
        f"{TIMES}:_read_text",
        'problems.append(Problem(None, "read as", said, "warning", where))',
        "pass",
        f"{READ}[months, the day first in every date]",
    ),
    row(
        "a form of time that is unknown is a fault of every line",
        f"{TIMES}:_read_epoch",
        "len(unread) == len(numbers) > 1",
        "False",
        f"{REFUSED}[days counted by a spreadsheet]",
    ),
    row(
        "the zone in the header is not heard",
        "market/columns:read_columns",
        'zone_of(names["time"]) or time_zone',
        "time_zone",
        f"{READ}[the zone in the header]",
    ),
    row(
        "a zone with several meanings is UTC",
        "market/column_names:_without_brackets",
        'bare in _ALIASES["time"] and zone_of(name) is None',
        "False",
        f"{REFUSED}[a zone that has several meanings]",
    ),
    row(
        "bid and ask are assets",
        "market/column_names:price_of_ticker",
        "_SIDES & set(map(str.lower, fields))",
        "False",
        f"{REFUSED}[bid and ask, apart]",
    ),
    row(
        "a line without a price is a fault",
        "market/columns:_bars_alone",
        "missing.any() and not missing.all()",
        "False",
        f"{READ}[a day without trade]",
    ),
    row(
        "one price that is missing makes a line no bar",
        "market/columns:_bars_alone",
        "np.logical_and.reduce",
        "np.logical_or.reduce",
        "cli/test_data.py::test_every_kind_of_bad_file_is_one_line_with_its_row_and_exit_code_1",
    ),
    row(
        "an empty volume is a fault of every line",
        "market/columns:_bars_alone",
        '_is_missing(frame[names["volume"]]).all()',
        "False",
        f"{READ}[an empty volume]",
    ),
    row(
        "the months of an asset are assets",
        f"{SOURCES}:_name_continued",
        "len(family) < 2 or any(a.time.max() >= b.time.min() for a, b in pairwise(family))",
        "True",
        f"{READ}[months of one asset, a file each]",
    ),
    row(
        "files that overlap are one asset",
        f"{SOURCES}:_name_continued",
        "any(a.time.max() >= b.time.min() for a, b in pairwise(family))",
        "False",
        f"{CHECK_TESTS}::test_files_that_overlap_are_assets_of_their_own",
    ),
    row(
        "files of an asset are checked one by one alone",
        f"{CHECKS}:examine_joined",
        "problems += _check_times(joined, np.arange(len(order)), allow_gaps)",
        "pass",
        f"{CHECK_TESTS}::test_a_file_that_is_missing_among_those_of_an_asset_is_a_gap",
        f"{CHECK_TESTS}::test_a_time_that_stands_in_two_files_of_an_asset_is_a_duplicate",
    ),
    row(
        "offsets are compared line by line",
        f"{TIMES}:_mixed_zones",
        'np.argsort(nanoseconds[at], kind="stable")',
        "np.arange(len(at))",
        f"{CHECK_TESTS}::test_daylight_saving_is_no_mixture_where_assets_stand_one_after_another",
    ),
    row(
        "a note of many files is told of each",
        f"{SOURCES}:examined",
        "_told_once(ignored + problems)",
        "ignored + problems",
        f"{CHECK_TESTS}::test_a_note_that_is_the_same_for_many_files_is_told_once",
    ),
    row(
        "a jump to another unit passes",
        f"{CHECKS}:_check_splits",
        "jump[i] > (1.0 + _SPLIT_TOLERANCE) * _SPLIT_RATIOS.max()",
        "False",
        f"{CHECK_TESTS}::test_a_jump_that_no_split_explains_asks_for_the_unit",
    ),
    row(
        "an archive in an archive is opened",
        "market/reading:_is_of_bars",
        "name.endswith(TEXT)",
        "name.endswith(SUFFIXES)",
        f"{REFUSED}[an archive without bars]",
    ),
    row(
        "splits are applied to prices that know of them",
        "market/corporate_actions:_apply_splits",
        "bool(np.square(jumps + sizes).sum() < np.square(jumps).sum())",
        "True",
        f"{SHAPES}::test_a_file_in_a_usual_shape_is_read[yfinance history, splits known to the prices]",
    ),
    row(
        "a dividend is a share of its own day's close",
        f"{ACTIONS}:_apply_dividends",
        "factor[:i] *= 1.0 - paid[i] / closes[i - 1]",
        "factor[:i] *= 1.0 - paid[i] / closes[i]",
        APPLIED,
    ),
    row(
        "dividends are in the money after the split",
        f"{ACTIONS}:apply_actions",
        "_apply_dividends(columns, rows, closes, str(asset), dividends, raw_splits=raw)",
        'closes = columns.values["close"][rows]; '
        "_apply_dividends(columns, rows, closes, str(asset), dividends, raw_splits=raw)",
        APPLIED,
    ),
    row("a split leaves the volume", f"{ACTIONS}:_apply_splits", "1.0 / factor", "np.ones(len(rows))", APPLIED),
    row(
        "a split is applied to the bar it falls on too",
        f"{ACTIONS}:_apply_splits",
        "factor[:i] /= ratios[i]",
        "factor[: i + 1] /= ratios[i]",
        APPLIED,
    ),
    row(
        "dividends are applied to prices that know of them",
        f"{ACTIONS}:_apply_dividends",
        'meaning == "adjusted" or (meaning == "auto" and not raw_splits)',
        'meaning == "adjusted"',
        f"{ACTION_TESTS}::test_prices_that_know_of_the_split_know_of_the_dividends",
    ),
    row(
        "dividends of which nothing is known pass without a word",
        f"{ACTIONS}:_apply_dividends",
        'meaning == "auto" and raw_splits is None',
        "False",
        f"{ACTION_TESTS}::test_dividends_alone_mean_what_the_config_says_and_without_it_a_warning_asks",
    ),
    row(
        "a dividend above the price is applied",
        f"{ACTIONS}:_apply_dividends",
        "(factor <= 0.0).any()",
        "False",
        f"{ACTION_TESTS}::test_a_dividend_above_the_price_is_refused_with_what_to_do",
    ),
    row(
        "a file that runs backwards is not turned round",
        "market/columns:_oldest_first",
        "turned |= bool((steps < 0).any())",
        "turned |= False",
        f"{SHAPES}::test_a_file_in_a_usual_shape_is_read[newest first]",
    ),
    row(
        "every wide spacing beside a weekend is closed",
        f"{CHECKS}:_is_closed",
        "missing.sum() <= _HOLIDAYS * a_day",
        "True",
        f"{CHECK_TESTS}::test_a_gap_is_more_than_three_usual_weekends",
    ),
    # Foresight
    row(
        "what the past explains counts as foresight",
        "market/leaks:_Moves.partial",
        "max(after, 0.0) / before",
        "max(after, 0.0) / total",
        f"{LEAKS}::test_a_planted_signal_and_a_bounce_between_bid_and_ask_are_no_leaks",
        f"{LEAKS}::test_every_leaking_column_is_named_and_no_honest_one",
    ),
    row(
        "only one cut of a function's bars is compared, at the end",
        "market/leaks:_changed",
        "int(share * len(frame))",
        "len(frame)",
        f"{LEAKS}::test_a_function_that_scales_by_the_future_is_named",
    ),
    # The same bars
    row(
        "bars are the same when their times are",
        f"{TAPE}:_same_moves",
        "(np.abs(move - its)[moved] <= room).mean() >= AGREEING",
        "True",
        f"{TAPES}::test_other_bars_of_the_same_days_are_not",
    ),
    row(
        "moves that are zero in both agree",
        f"{TAPE}:_same_moves",
        "(move != 0.0) | (its != 0.0)",
        "np.ones(len(move), dtype=bool)",
        f"{TAPES}::test_two_assets_that_seldom_move_are_not_the_same_for_that",
    ),
    row(
        "moves agree to one basis point however small they are",
        f"{TAPE}:_same_moves",
        "min(_TOLERANCE, _OF_A_MOVE * float(move[moved].std()))",
        "_TOLERANCE",
        f"{TAPES}::test_small_moves_are_compared_by_their_own_size",
    ),
    # Look-ahead
    row(
        "a lag looks forward",
        f"{FEATURES}:_lagged",
        "out[lag:] = values[: len(values) - lag]",
        "out[: len(values) - lag] = values[lag:]",
        f"{BLIND}[return_1]",
    ),
    row(
        "a rolling window is one bar late",
        f"{ROLLING}:rolling_std",
        "values[t - window + 1 : t + 1]",
        "values[t - window + 2 : t + 2]",
        f"{BLIND}[volatility_20]",
    ),
    row(
        "a rolling mean remembers everything before it",
        f"{ROLLING}:rolling_mean",
        "range(t - window + 1, t + 1)",
        "range(0, t + 1)",
        f"{LOOK_BACK}[parkinson_20]",
    ),
    row(
        "a moving average weighs the oldest bar most",
        f"{ROLLING}:weighted",
        "weights[i] * values[t - i]",
        "weights[i] * values[t - window + 1 + i]",
        f"{FEATURE_TESTS}::test_macd_is_near_the_endless_one",
    ),
    row(
        "a feature says that it reads less than it does",
        FEATURES,
        'Feature("rsi_14", 14, partial(_rsi, bars=14))',
        'Feature("rsi_14", 13, partial(_rsi, bars=14))',
        f"{LOOK_BACK}[rsi_14]",
    ),
    row(
        "a volume that comes later unflags earlier bars",
        f"{MARKET}:_flags",
        "~np.logical_or.accumulate(np.isfinite(bars.volume), axis=0)",
        "~np.isfinite(bars.volume).any(axis=0, keepdims=True) & bars.present",
        f"{AHEAD}::test_a_volume_that_comes_later_does_not_unflag_earlier_bars",
    ),
    row(
        "an asset without a bar is flagged as valid",
        f"{MARKET}:_flags",
        "bars.present & (valid | (no_volume_yet[:, :, None] & needs_volume)).all(axis=2)",
        "np.ones_like(bars.present)",
        NASDAQ,
    ),
    # Scaling
    row(
        "features are scaled by all bars",
        f"{MARKET}:prepare",
        "raw[train.start : train.end]",
        "raw",
        TRAIN_ALONE,
    ),
    row(
        "features are scaled by train and validation",
        f"{MARKET}:prepare",
        "raw[train.start : train.end]",
        'raw[train.start : splits["validation"].end]',
        TRAIN_ALONE,
    ),
    row(
        "scaled features are not cut",
        f"{SCALING}:Scaler.apply",
        "self.clip is not None",
        "False",
        SCALED,
    ),
    row(
        "a feature that never moves is divided by its rounding",
        f"{SCALING}:fit_column",
        "std <= _LEAST_RELATIVE_STD * max(1.0, abs(mean))",
        "std == 0.0",
        SCALED,
    ),
    row(
        "a new run's bars are scaled by themselves",
        f"{MARKET}:prepare",
        "column = scaler",
        "column = Scaler(names, *np.array([fit_column(raw, name, source='')] * len(names)).T, scaler.clip)",
        f"{AHEAD}::test_observations_targets_and_fills_up_to_t_are_blind_to_later_bars",
    ),
    # Splits
    row("no embargo", f"{SPLITS}:split_bars", "low + embargo", "low", NASDAQ),
    row(
        "an embargo shorter than the look-back",
        f"{SPLITS}:split_bars",
        "embargo < look_back",
        "False",
        f"{FEATURE_TESTS}::test_too_short_a_file_or_embargo_is_refused",
    ),
    row(
        "the test split begins where validation does",
        f"{SPLITS}:_inner_edges",
        "round((config.train + config.validation) * len(time))",
        "round(config.train * len(time))",
        NASDAQ,
    ),
    row(
        "a decision at the last bar of a split",
        f"{SPLITS}:Split.n_decisions",
        "self.end - self.start - 1",
        "self.end - self.start",
        "env/test_replay.py::test_buy_and_hold_trades_once",
    ),
    # Adjustments and years
    row(
        "adjusted volume is multiplied",
        f"{SOURCES}:_adjust",
        'values["volume"] / factor',
        'values["volume"] * factor',
        ADJUSTED,
    ),
    row("only closes are adjusted", f"{SOURCES}:_adjust", "PRICES", '("close",)', ADJUSTED),
    row("prices are adjusted against the user's will", f"{SOURCES}:_assemble", "config.adjust", "True", ADJUSTED),
    row(
        "an adjusted split is called unadjusted",
        f"{CHECKS}:_check_splits",
        '"adj_close" in columns.values',
        "False",
        f"{CHECK_TESTS}::test_an_unadjusted_split_is_a_warning",
    ),
    row(
        "interest counts 360 days",
        BARS,
        "365.0 * 86_400.0",
        "360.0 * 86_400.0",
        "env/test_hand_paths.py::test_interest_on_debit_and_on_cash_is_actual_over_365",
    ),
    row(
        "a year of bars has 365 days",
        f"{BARS}:Bars.bars_per_year",
        "seconds / JULIAN_YEAR_SECONDS",
        "seconds / SECONDS_PER_YEAR",
        NASDAQ,
    ),
    # Times
    row(
        "a stamp of the close is moved forward",
        f"{SOURCES}:_opening_times",
        "part.time - sizes[counts.argmax()]",
        "part.time + sizes[counts.argmax()]",
        STAMP,
    ),
    row("a bar is as long as a weekend", f"{SOURCES}:_opening_times", "sizes[counts.argmax()]", "sizes.max()", STAMP),
    row(
        "times without a zone are UTC whatever the config says",
        f"{TIMES}:_localise",
        'times.dt.tz_localize(time_zone, nonexistent="NaT", ambiguous="NaT")',
        'times.dt.tz_localize("UTC", nonexistent="NaT", ambiguous="NaT")',
        f"{SOURCE_TESTS}::test_times_without_a_zone_are_read_in_the_one_configured",
    ),
    row(
        "the offset of a time is dropped",
        f"{TIMES}:_nanoseconds",
        "naive = times.dt.tz_localize(None) if isinstance(times.dtype, pd.DatetimeTZDtype) else times",
        "naive = times.dt.tz_convert('America/New_York').dt.tz_localize(None) "
        "if isinstance(times.dtype, pd.DatetimeTZDtype) else times",
        f"{FORMS}[a time zone]",
    ),
    row(
        "the day comes first with slashes too",
        f"{TIMES}:_in_either_order",
        "disorder[1] < disorder[0]",
        "True",
        f"{FORMS}[month first]",
    ),
    row(
        "two zones in one file are daylight saving",
        f"{TIMES}:_mixed_zones",
        "span == _DAYLIGHT_HOURS and (days_apart >= _DAYLIGHT_DAYS).all()",
        "True",
        f"{CHECK_TESTS}::test_mixed_time_zones",
    ),
    row(
        "the unfinished bar of an exchange is stored",
        "market/exchange:download",
        "_milliseconds(now or datetime.now(UTC)) - step + 1",
        "_milliseconds(now or datetime.now(UTC)) + 1",
        "market/test_exchange.py::test_until_and_the_unfinished_bar_are_left_out",
    ),
    # What a check lets through, and what a panel is
    row(
        "a bar that is missing is a gap",
        f"{CHECKS}:_check_gaps",
        "_GAP_FACTOR * largest",
        "sizes.min()",
        f"{CHECK_TESTS}::test_a_bar_or_two_that_are_missing_are_no_gap",
    ),
    row("an allowed gap is an error", f"{CHECKS}:_check_gaps", '"warning" if allow_gaps else "error"', '"error"', GAP),
    row(
        "a time that stands twice goes unseen",
        f"{CHECKS}:_check_times",
        "repeated = np.ones(len(time), np.bool_)",
        "repeated = np.zeros(len(time), np.bool_)",
        f"{CHECK_TESTS}::test_duplicates_and_disorder",
    ),
    row(
        "the volume is not in the fingerprint",
        f"{BARS}:Bars.fingerprint",
        "(self.open, self.high, self.low, self.close, self.volume)",
        "(self.open, self.high, self.low, self.close)",
        FINGERPRINT,
    ),
    row(
        "own features are not in the fingerprint",
        f"{BARS}:Bars.fingerprint",
        "digest.update(np.ascontiguousarray(self.extra[name]).tobytes())",
        "pass",
        FINGERPRINT,
    ),
    row(
        "assets of a long table are mixed up",
        f"{SOURCES}:_assemble",
        "panel[key][row, column] = values",
        "panel[key][row, column[::-1]] = values",
        f"{SOURCE_TESTS}::test_the_long_format_of_finrl_is_a_panel",
    ),
    row(
        "the planted signal explains the return of its own bar",
        "market/synthetic:control",
        "signal[:-1]",
        "signal[1:]",
        f"{SOURCE_TESTS}::test_the_control_signal_explains_its_share_of_the_next_return",
    ),
]
