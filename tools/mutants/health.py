"""Faults of the health rules, of who watches them, and of what is done about an alert."""

from tools.mutants import row

__all__ = ["MUTANTS"]

MONITOR, GUARD, LOOKS = "telemetry/monitor", "algorithm/guard", "algorithm/health_numbers"
RULES, ACTS, GALLERY = "telemetry/test_rules.py", "algorithm/test_guard.py", "faults/test_gallery.py"

LOGGED = "algorithm/test_guard.py::test_an_update_is_logged_once_a_failed_one_never_and_one_that_ends_training_too"


MUTANTS = [
    row(
        "health: an alert is raised in every update",
        f"{MONITOR}:Monitor._step",
        "state.fired or state.streak < rule.persistence",
        "state.streak < rule.persistence",
        f"{RULES}::test_an_alert_is_raised_once_and_again_only_after_it_was_quiet",
    ),
    row(
        "health: a rule does not wait for its persistence",
        f"{MONITOR}:Monitor._step",
        "state.fired or state.streak < rule.persistence",
        "state.fired",
        f"{RULES}::test_a_rule_with_persistence_waits_and_says_since_when",
    ),
    row(
        "health: what is not a number is healthy",
        "telemetry/health:Rule.holds",
        "not (value <= threshold if self.fires == 'above' else value >= threshold)",
        "value > threshold if self.fires == 'above' else value < threshold",
        f"{RULES}::test_what_is_not_a_number_is_on_the_wrong_side",
    ),
    row(
        "health: the threshold of the config is not the rule's",
        f"{MONITOR}:Monitor.threshold",
        "self.thresholds.get(rule.name, rule.threshold)",
        "rule.threshold",
        f"{RULES}::test_a_threshold_is_changed_and_a_rule_is_off_by_its_name",
    ),
    row(
        "health: a rule that is off fires",
        f"{MONITOR}:Monitor.judge",
        "rule.name not in self.off and self._step(rule, holds, facts.update)",
        "self._step(rule, holds, facts.update)",
        f"{RULES}::test_a_threshold_is_changed_and_a_rule_is_off_by_its_name",
    ),
    row(
        "health: numbers noted between two updates are lost in a checkpoint",
        f"{MONITOR}:Monitor.state_dict",
        "dict(self._pending)",
        "{}",
        f"{RULES}::test_a_restored_monitor_goes_on_as_if_it_had_not_stopped",
    ),
    row(
        "health: wall clock is kept in a checkpoint",
        f"{MONITOR}:Monitor.state_dict",
        "not name.startswith(_WALL_CLOCK)",
        "True",
        f"{RULES}::test_wall_clock_is_no_state_of_a_run",
    ),
    row(
        "health: strict does not stop",
        f"{GUARD}:Guard.act",
        "errors and (health.strict or health.rollback)",
        "errors and health.rollback",
        f"{ACTS}::test_strict_stops_with_words_and_the_model_is_the_last_good_one",
    ),
    row(
        "health: strict stops with the weights that were wrong",
        f"{GUARD}:Guard._last_words",
        "self._restore(good)",
        "pass",
        f"{ACTS}::test_strict_stops_with_words_and_the_model_is_the_last_good_one",
    ),
    row(
        "health: a rollback keeps the learning rate",
        f"{GUARD}:Guard._go_back",
        "factor = health.rollback_lr_factor ** (self.rollbacks + 1)",
        "factor = 1.0",
        f"{ACTS}::test_rollback_goes_back_with_a_smaller_rate_and_says_so",
    ),
    row(
        "health: a rollback starts from the rate that went wrong",
        f"{GUARD}:Guard._go_back",
        "self._slowest(good.rates.get(name, rate), rate)",
        "rate",
        f"{ACTS}::test_rollback_goes_back_with_a_smaller_rate_and_says_so",
    ),
    row(
        "health: how far the policy jumped is not asked",
        f"{GUARD}:_without_jump",
        "math.sqrt(_USUAL_KL / alert.value)",
        "1.0",
        f"{ACTS}::test_a_rate_that_made_the_policy_jump_becomes_as_small_as_its_kl_says",
    ),
    row(
        "health: weights that are no numbers are the env's fault",
        f"{GUARD}:Guard.survives",
        "bool(torch.isfinite(weight).all())",
        "True",
        f"{ACTS}::test_weights_that_are_no_numbers_are_not_the_envs_fault",
    ),
    row(
        "health: the direction of an update is not looked at",
        "algorithm/update_metrics:PolicyStatistics.flush",
        "(ratio - 1.0) * advantages",
        "((ratio - 1.0) * advantages).abs()",
        f"{GALLERY}::test_a_fault_is_named_in_time[policy loss with the wrong sign]",
    ),
    row(
        "health: what the envs gave is not compared",
        f"{LOOKS}:Witness.compare",
        "float((np.abs(stored - rewards) / (1.0 + np.abs(rewards))).max())",
        "0.0",
        f"{GALLERY}::test_a_fault_is_named_in_time[rewards are stored one step late]",
    ),
    row(
        "health: no step is computed a second time",
        "algorithm/update:Updater._looked_at",
        "inputs.number % 2",
        "-1",
        f"{GALLERY}::test_a_fault_is_named_in_time[gradients are never cleared]",
    ),
    row(
        "health: a weight that changed between two updates is not seen",
        "algorithm/between_updates:BetweenUpdates.look",
        "float((self._norms() != self._weights).sum())",
        "0.0",
        f"{GALLERY}::test_a_fault_is_named_in_time[a head is drawn anew]",
    ),
    row(
        "health: a feature that stands still is as usual",
        "algorithm/between_updates:BetweenUpdates._features",
        "torch.where(still, torch.full((), _STILL), beyond)",
        "beyond",
        f"{GALLERY}::test_a_fault_is_named_in_time[a part of the observation is always 0]",
    ),
    row(
        "health: a whole last line without its end is lost",
        "telemetry/alerts:read_alerts",
        "[*found, _record('the last line', last.decode())]",
        "found",
        "report/test_build.py::test_half_a_line_at_the_end_is_left_out",
    ),
    row(
        "trainer: a score at the checkpoint is lost on resume",
        "training/trainer:learn",
        "logger.record(name, value)",
        "pass",
        "training/test_resume.py::test_a_score_at_a_checkpoint_is_in_the_row_after_it",
    ),
    row(
        "health: rollbacks without end",
        f"{GUARD}:Guard._may_go_back",
        "self.rollbacks < self._model.settings.health.max_rollbacks",
        "self.rollbacks < 9",
        f"{ACTS}::test_rollbacks_are_bounded",
    ),
    row(
        "health: alerts are lost in a checkpoint",
        f"{GUARD}:Guard.state_dict",
        "self.monitor.state_dict()",
        "Monitor().state_dict()",
        f"{ACTS}::test_alerts_and_what_rules_remember_are_in_a_checkpoint",
    ),
    row(
        "health: advantages are expected to run over the end of an episode",
        f"{LOOKS}:_residual",
        "later.masked_fill(steps.ended, 0.0)",
        "later",
        f"{GALLERY}::test_its_healthy_twin_hears_nothing[stale advantages]",
    ),
    row(
        "health: the order of the critics is not looked at",
        f"{LOOKS}:rollout_looks",
        "max(_distance(values[:n], stored[:n]), _break(rollout, times[:n], envs[:n]))",
        "_distance(values[:n].mean(-2), stored[:n].mean(-2))",
        f"{GALLERY}::test_a_fault_is_named_in_time[swapped critics]",
    ),
    row(
        "health: a run that goes on keeps the alerts of the future",
        "training/logs:AlertFile.__init__",
        '"".join(f"{alert.as_json()}\\n" for alert in known)',
        '""',
        "training/test_run_files.py::test_alerts_of_a_run_that_goes_on_are_those_of_its_checkpoint",
    ),
    row(
        "health: a flat account is called an overflow",
        "training/trade_metrics:TradeMetrics.read",
        "math.isfinite(score.sharpe)",
        "True",
        "training/test_trade_metrics.py::test_a_rollout_that_never_moves_has_no_sharpe_ratio",
    ),
    row(
        "health: a round that failed is logged",
        "algorithm/ppo:DistributionalPPO.learn",
        "self.n_rollouts == before",
        "False",
        LOGGED,
    ),
    row(
        "health: the update that ends training is not logged",
        "algorithm/ppo:DistributionalPPO.learn",
        "self.guard.is_troubled or (log_interval is not None and iteration % log_interval == 0)",
        "log_interval is not None and iteration % log_interval == 0",
        LOGGED,
    ),
    row(
        "health: a checkpoint of a sick model is good",
        "algorithm/guard:Guard.keep",
        "self._errors or self.monitor.error_lasts",
        "self._errors",
        "algorithm/test_guard.py::test_a_checkpoint_of_a_sick_model_is_no_state_to_go_back_to",
    ),
    row(
        "audit: alerts of the doctor's own tasks are shown",
        "audit/doctor/probes:probe_model",
        "lambda alert: None",
        "None",
        "audit/test_doctor.py::test_alerts_of_a_toy_task_are_not_shown",
    ),
]
