"""Faults of a training run: the seal of the test split, the choice of a checkpoint, resuming, files, what is seen."""

from tools.mutants import row

__all__ = ["MUTANTS"]

TRAINER, TASKS, RUN_DIR, SEAL, CHECKPOINTS, LOGS, METRICS = (
    "training/trainer",
    "training/tasks",
    "training/run_dir",
    "training/seal",
    "training/checkpoints",
    "training/logs",
    "training/trade_metrics",
)
SCORED = "training/test_tasks.py"
TRAINING, SEALED, BOUND, FILES = (
    "training/test_training.py",
    "training/test_seal.py",
    "training/test_run_dir.py",
    "training/test_run_files.py",
)
SAID = "training/test_what_is_said.py"
LIMIT_SAID = f"{SAID}::test_a_limit_that_was_not_kept_on_train_is_said_once_with_what_to_do"
KEPT = f"{SAID}::test_a_limit_that_was_kept_needs_no_words_but_a_pipeline_may_read_it"
NAMED_OTHERWISE = f"{SEALED}::test_test_bars_that_are_called_by_another_name_open_the_seal"
RANKED = f"{TRAINING}::test_checkpoints_that_meet_the_limit_come_first"
BEST = f"{TRAINING}::test_what_is_kept_is_the_best_score_on_validation"
RESUMED = f"{TRAINING}::test_a_run_goes_on_from_its_last_checkpoint_and_ends_as_if_it_had_not_stopped"
CUT_OFF = f"{TRAINING}::test_a_line_that_was_cut_off_is_dropped_on_resume"
OPENINGS = f"{SEALED}::test_openings_of_the_same_bars_are_counted_over_the_runs_beside_each_other"
TRAINED_ON, MATCHED = "training/trained_on", "training/test_trained_on.py"
VOLUME = f"{MATCHED}::test_a_volume_that_is_lost_or_new_is_a_warning"
OTHER_BARS = f"{BOUND}::test_bars_that_changed_since_training_are_refused"
ROLLOUT = "training/test_trade_metrics.py::test_a_rollout_is_reduced_over_steps_and_envs"


BENCH = "training/test_bench.py"

MUTANTS = [
    # What a bench tells
    row(
        "bench: the envs' time is the policy's too",
        "training/bench:_part",
        'spent["collect"] - spent["envs"] - spent["targets"]',
        'spent["collect"] - spent["targets"]',
        f"{BENCH}::test_parts_of_a_round_add_up_to_it",
    ),
    row(
        "bench: what the envs take is not watched",
        "training/bench:_watched",
        'watch.around(env, "step_wait", "envs")',
        "pass",
        f"{BENCH}::test_a_slow_env_is_seen_as_one",
    ),
    row(
        "bench: noise is a gain",
        "training/bench:bench",
        "found.steps_per_second > GAIN * best.steps_per_second",
        "found.steps_per_second > best.steps_per_second",
        f"{BENCH}::test_what_gains_less_than_noise_is_not_kept",
    ),
    row(
        "bench: threads stay as the last shape had them",
        "training/bench:bench",
        "torch.set_num_threads(threads)",
        "pass",
        f"{BENCH}::test_threads_are_as_before_wherever_it_ends",
    ),
    row(
        "bench: a shape that is refused ends all",
        "training/bench:bench",
        "continue",
        "raise",
        f"{BENCH}::test_a_shape_that_the_settings_refuse_is_skipped_and_nothing_that_was_timed_is_lost",
    ),
    row(
        "bench: an env whose training fails stays open",
        "training/bench:timed",
        "env.close()",
        "pass",
        f"{BENCH}::test_an_env_is_closed_also_where_its_training_fails",
    ),
    row(
        "bench: a choice without an other is a good one",
        "cli/bench:bench_command",
        "len(found) == 1",
        "False",
        f"{BENCH}::test_nothing_is_called_a_good_choice_that_was_compared_with_nothing",
    ),
    row(
        "bench: what stopped early tried everything",
        "training/bench:bench",
        "return False",
        "return True",
        f"{BENCH}::test_nothing_is_called_a_good_choice_that_was_compared_with_nothing",
    ),
    # What is said
    row(
        "an opened split is called sealed", "cli/train:train_command", 'not run.record().get("openings")', "True", KEPT
    ),
    row("a volume that is lost is not missed", f"{TRAINED_ON}:TrainedOn._apart", "lost.any()", "False", VOLUME),
    row("a volume that is new is not seen", f"{TRAINED_ON}:TrainedOn._apart", "gained.any()", "False", VOLUME),
    row("a broken limit is not told", f"{TRAINER}:learn", "control.verdicts()", "[]", LIMIT_SAID),
    row(
        "a warning is shown as code", "cli/train:_warnings_in_words", "warnings.showwarning = show", "pass", LIMIT_SAID
    ),
    row(
        "kept limits are called broken", "cli/train:train_command", "all(limit.kept for limit in limits)", "False", KEPT
    ),
    row(
        "every limit is called kept",
        "cli/train:train_command",
        "all(limit.kept for limit in limits)",
        "True",
        LIMIT_SAID,
    ),
    row(
        "a pipeline is not told of limits",
        "cli/train:_result",
        "[asdict(limit) for limit in limits]",
        "[]",
        KEPT,
    ),
    row(
        "a backtest keeps to itself what it does",
        "cli/backtest:backtest_command",
        'lambda text: status.update(f"{split}: {text} ...")',
        "lambda text: None",
        f"{SAID}::test_a_backtest_says_in_a_terminal_what_it_is_busy_with",
    ),
    # The seal
    row("a checkpoint is chosen on the test split", f"{TASKS}:MarketTask.score", '"validation"', '"test"', BEST),
    row(
        "only the run's own openings are counted",
        f"{SEAL}:open_seal",
        "sum(len(_openings(path)) for path in _runs_beside(run) if _shows(path, seen, market.fingerprint))",
        "0",
        OPENINGS,
    ),
    row(
        "openings of other bars are counted",
        f"{SEAL}:_shows",
        'other.record().get("data_fingerprint") == fingerprint',
        "True",
        OPENINGS,
    ),
    row(
        "an opening replaces the one before",
        f"{SEAL}:open_seal",
        "openings.append(asdict(opening))",
        "openings[:] = [asdict(opening)]",
        OPENINGS,
    ),
    row(
        "bars that changed are taken",
        f"{RUN_DIR}:RunDir._check_bars",
        "market.fingerprint != trained_on",
        "False",
        OTHER_BARS,
    ),
    row(
        "a record forgets what it held",
        f"{RUN_DIR}:RunDir.update_record",
        "record.update(entries)",
        "record.clear(); record.update(entries)",
        f"{SEALED}::test_other_bars_are_not_behind_the_seal",
    ),
    row(
        "seal: the command line records and a function of training does not",
        "training/testing:Examination.__init__",
        "self.opening = open_seal(run, market, split)",
        "self.opening = None",
        f"{SEALED}::test_whoever_tests_a_run_from_python_leaves_a_record",
    ),
    row(
        "seal: the attack is an opening beside its backtest",
        "cli/backtest:backtest_command",
        "write_curve(folder, examination.attack())",
        "write_curve(folder, Examination(run, run.market(data), split).attack())",
        f"{SEALED}::test_the_command_line_with_robustness_opens_once",
    ),
    row(
        "seal: only a split that is called test",
        f"{SEAL}:open_seal",
        "any(same_bars(past.test, seen) for past in run.lineage())",
        'split == "test"',
        NAMED_OTHERWISE,
    ),
    row(
        "seal: the whole file is compared and not what is shown of it",
        f"{SEAL}:open_seal",
        "Tape.of(market.bars).part(window.start, window.end)",
        "Tape.of(market.bars)",
        NAMED_OTHERWISE,
    ),
    row(
        "seal: only bars of the same fingerprint",
        f"{SEAL}:open_seal",
        "any(same_bars(past.test, seen) for past in run.lineage())",
        'market.fingerprint == run.record().get("data_fingerprint")',
        f"{MATCHED}::test_the_seal_knows_its_bars_in_another_file_and_counts_them",
    ),
    row(
        "assets are matched by position",
        f"{TRAINED_ON}:TrainedOn.fitted",
        "bars.chosen(_matched(mine, its, bars.source))",
        "replace(bars, assets=_matched(mine, its, bars.source))",
        f"{MATCHED}::test_assets_in_another_order_are_the_same_bars",
    ),
    row(
        "only the train split is in sample",
        f"{TRAINED_ON}:TrainedOn.of",
        'splits["validation"].end',
        'splits["train"].end',
        f"{MATCHED}::test_what_was_learned_from_is_in_sample",
    ),
    row(
        "in sample is a matter of the first decision",
        f"{TRAINED_ON}:TrainedOn.seen",
        "(decided >= first) & (decided <= last)",
        "(decided[:1] >= first) & (decided[:1] <= last)",
        f"{MATCHED}::test_files_over_the_same_days_are_in_sample",
    ),
    row(
        "seal: run.json is read and written without a lock",
        f"{RUN_DIR}:RunDir.edited_record",
        "_lock(file, fcntl.LOCK_EX)",
        "pass",
        f"{SEALED}::test_openings_at_the_same_time_by_threads_and_processes_are_all_kept",
    ),
    row(
        "the scaler is fitted again and the saved one is not used",
        f"{RUN_DIR}:RunDir.market",
        "prepare(config, scaler=saved)",
        "prepare(config)",
        f"{BOUND}::test_the_saved_scaler_is_used_and_not_the_one_that_is_fitted_again",
    ),
    row(
        "a fit that differs from the saved one is taken",
        f"{RUN_DIR}:RunDir._check_fit",
        "saved.difference(fitted, tolerance=1e-9)",
        "None",
        f"{BOUND}::test_a_scaler_that_is_not_what_these_bars_give_is_refused",
    ),
    row(
        "training writes its own scaler over the saved one",
        f"{RUN_DIR}:RunDir.bind",
        "self.scaler_file.is_file()",
        "False",
        f"{BOUND}::test_a_run_that_has_begun_is_trained_with_no_other_bars_or_scales",
    ),
    # Scores of an env of Gymnasium, and of windows
    row(
        "an env of Gymnasium is scored on the seeds it is trained with",
        f"{TASKS}:GymTask._episodes",
        "envs.seed(_OTHER_SEEDS)",
        "envs.seed(self.config.seed)",
        f"{SCORED}::test_the_score_of_a_gym_env_is_of_whole_episodes_on_seeds_that_training_does_not_have",
    ),
    row(
        "a second episode counts in the score of the first",
        f"{TASKS}:GymTask._episodes",
        "returns += rewards * going",
        "returns += rewards",
        f"{SCORED}::test_the_score_of_a_gym_env_is_of_whole_episodes_on_seeds_that_training_does_not_have",
    ),
    row(
        "a tail beyond the limit costs nothing in a population",
        f"{TASKS}:_windows",
        "min(0.0, tail - limit)",
        "0.0",
        f"{SCORED}::test_a_tail_beyond_the_limit_costs_what_it_lacks_on_every_bar",
    ),
    # The choice of a checkpoint
    row(
        "the worst checkpoint is kept",
        f"{TRAINER}:Session._validate",
        'self.task.rank(self.validation) > self.task.rank(read_score(self.best["score"]))',
        'self.task.rank(self.validation) < self.task.rank(read_score(self.best["score"]))',
        BEST,
    ),
    row(
        "the limit does not count in the choice",
        f"{TASKS}:MarketTask.rank",
        "limit is not None and tail < limit",
        "False",
        RANKED,
    ),
    row(
        "the wildest comes first where none meets the limit",
        f"{TASKS}:MarketTask.rank",
        "return False, tail",
        "return False, -tail",
        RANKED,
    ),
    row(
        "those that break the limit come first",
        f"{TASKS}:MarketTask.rank",
        "return False, tail",
        "return True, score.growth",
        RANKED,
    ),
    row(
        "the tail on train does not count in the choice",
        f"{TASKS}:MarketTask.rank",
        "min(score.cvar, score.train_cvar)",
        "score.cvar",
        f"{TRAINING}::test_the_limit_is_one_on_train_too",
    ),
    row(
        "the tail on train is that of the exploring policy",
        f"{TASKS}:MarketTask._tail_on_train",
        "actions, memory = agent.predict(seen, memory, starts, deterministic=True)",
        "actions, memory = agent.predict(seen, memory, starts, deterministic=False)",
        f"{TRAINING}::test_the_tail_on_train_is_that_of_the_policy_as_it_is_used",
    ),
    row(
        "an account that never moved is never beaten",
        f"{TASKS}:MarketTask.rank",
        "value if np.isfinite(value) else -np.inf",
        "value if np.isfinite(value) else np.inf",
        f"{TRAINING}::test_an_account_that_never_moved_is_no_hindrance_to_a_better_one",
    ),
    row(
        "growth of the split, not of a year",
        f"{METRICS}:score_of",
        "float(np.log(result.equity[-1] / result.equity[0])) / performance.years",
        "float(np.log(result.equity[-1] / result.equity[0]))",
        f"{TRAINING}::test_the_score_is_that_of_the_backtest",
    ),
    # Resuming
    row(
        "resumed from the oldest checkpoint",
        "training/checkpoints:newest_whole",
        "reversed(places)",
        "places",
        RESUMED,
    ),
    row("resumed with fresh episodes", f"{TRAINER}:pick_up", "restore_env(files, env)", "env.reset()", RESUMED),
    row(
        "resumed without the best score so far",
        f"{TRAINER}:pick_up",
        "read_trainer_state(files)",
        '{"best": None, "updates": read_trainer_state(files)["updates"]}',
        RESUMED,
    ),
    row(
        "resumed with a count of updates that starts anew",
        f"{TRAINER}:pick_up",
        "read_trainer_state(files)",
        'read_trainer_state(files) | {"updates": 0}',
        RESUMED,
    ),
    row(
        "resumed for the whole length again",
        f"{TRAINER}:learn",
        "session.config.ppo.total_steps - model.num_timesteps",
        "session.config.ppo.total_steps",
        RESUMED,
    ),
    row("resumed with steps that count from zero", f"{TRAINER}:learn", "not go_on", "True", RESUMED),
    row(
        "rows after the checkpoint are logged twice",
        f"{LOGS}:ProgressFile.__init__",
        "_steps(row) <= resume_at",
        "True",
        CUT_OFF,
    ),
    row(
        "events are read by the clock of their process",
        f"{LOGS}:TensorBoardFile.__init__",
        "_put_in_the_past(folder)",
        "pass",
        "training/test_resume.py::test_tensorboard_reads_processes_in_their_order_whatever_the_clock_said",
    ),
    row("half a line is a row", f"{LOGS}:ProgressFile.rows_of", 'text[: text.rfind("\\n") + 1]', "text", CUT_OFF),
    row(
        "a new column shifts the rows before it",
        f"{LOGS}:ProgressFile.write",
        "[*self.rows_of(self.path), row]",
        "[row]",
        f"{TRAINING}::test_a_new_column_is_added_to_every_row",
    ),
    # Files
    row(
        "a file is written in its place",
        "durable:write_atomically",
        'path.with_name(f".{path.name}.{os.getpid()}")',
        "path",
        "algorithm/test_checkpoint_files.py::test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it",
    ),
    row(
        "a checkpoint is written in its place",
        "durable:write_folder",
        'place.with_name(f".{place.name}.{os.getpid()}")',
        "place",
        f"{FILES}::test_a_process_that_ends_between_the_two_renames_of_an_exchange_loses_nothing",
    ),
    row(
        "an old run is written over",
        f"{RUN_DIR}:RunDir._refuse_second",
        "self.config_file.exists()",
        "False",
        f"{FILES}::test_a_directory_that_holds_a_run_is_not_made_again",
    ),
    row(
        "two processes share a run",
        f"{RUN_DIR}:RunDir.locked",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        f"{FILES}::test_a_run_is_used_by_one_process_at_a_time",
    ),
    row(
        "the newest checkpoints are pruned",
        f"{RUN_DIR}:RunDir.prune",
        "self.checkpoint_list()[:-keep_last]",
        "self.checkpoint_list()[keep_last:]",
        f"{TRAINING}::test_old_checkpoints_are_pruned_and_leftovers_swept",
    ),
    row(
        "half-written checkpoints are whole ones",
        f"{RUN_DIR}:RunDir.checkpoint_list",
        "_CHECKPOINT.fullmatch(path.name)",
        "True",
        f"{TRAINING}::test_old_checkpoints_are_pruned_and_leftovers_swept",
    ),
    # Metrics of a rollout
    row("drawdowns across envs", f"{METRICS}:TradeMetrics.read", "simple.T", "simple", ROLLOUT),
    row(
        "a rollout counts into the next",
        f"{METRICS}:TradeMetrics.read",
        "self.begin()",
        "pass",
        ROLLOUT,
    ),
    row(
        "the Sharpe ratio of a rollout is of log-returns",
        f"{METRICS}:TradeMetrics.read",
        "statistics.sharpe(simple.ravel(), bars_per_year=year, cash=idle)",
        "statistics.sharpe(returns.ravel(), bars_per_year=year, cash=idle)",
        "training/test_trade_metrics.py",
    ),
    row(
        "the Sharpe ratio of a rollout forgets cash",
        f"{METRICS}:TradeMetrics.read",
        "self.cash_rate / self.bars_per_year",
        "0.0",
        "training/test_trade_metrics.py",
    ),
    row(
        "a line of --json ends where a signal cut its write short",
        "cli/view:JsonLines.write",
        "while line:\n    line = line[sys.stdout.buffer.write(line) :]",
        "sys.stdout.buffer.write(line)",
        "cli/test_view.py::test_json_lines_stay_whole_when_a_signal_comes_while_the_reader_is_slow",
    ),
]
