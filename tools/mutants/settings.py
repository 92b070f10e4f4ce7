"""Faults of settings on a live model: what is stored and not used, what is taken and must not be, what is read back."""

from tools.mutants import row

__all__ = ["MUTANTS"]

ENGINE, LIVE, PPO = "algorithm/engine", "algorithm/live_settings", "algorithm/ppo"
FORCE, CHANGE = f"{ENGINE}:Engine.put_in_force", f"{PPO}:DistributionalPPO.set_hyperparameters"
OWN = f"{PPO}:DistributionalPPO.put_in_force"
TESTS = "algorithm/test_live_settings.py"
ACTS = f"{TESTS}::test_an_assigned_argument_does_what_a_model_with_that_argument_does"
FIXED = f"{TESTS}::test_an_argument_that_the_network_depends_on_is_refused"
OTHER_WEIGHTS = f"{TESTS}::test_a_change_that_would_need_other_weights_or_moments_is_refused"
READ_BACK = f"{TESTS}::test_many_change_at_once_and_what_comes_back_is_read_from_the_live_objects"
AT_ONCE = f"{TESTS}::test_the_number_of_skips_and_the_window_of_episodes_act_at_once"
KEEPS = f"{TESTS}::test_the_optimiser_keeps_what_it_has_gathered_or_starts_afresh"


MUTANTS = [
    # Stored and not used
    row("P5 an assignment goes nowhere", f"{LIVE}:Live.__set__", "model.is_built", "False", f"{ACTS}[gamma]"),
    row("P5 the engine keeps its old settings", FORCE, "self.settings = settings", "pass", f"{ACTS}[gamma]"),
    row(
        "P5 rollouts follow the settings of the constructor",
        f"{PPO}:DistributionalPPO.collect",
        "collector, settings, now = self.collector, self.settings, self._round()",
        "collector, settings, now = self.collector, self._settings, self._round()",
        f"{ACTS}[n_steps]",
    ),
    row(
        "P5 targets follow the discount of the constructor",
        f"{ENGINE}:Engine.targets",
        "self.settings",
        "self.settings.model_copy(update={'gamma': 0.99})",
        f"{ACTS}[gamma]",
    ),
    row(
        "C4 a learning rate is not written to the optimiser at once",
        FORCE,
        "self._set_learning_rates(remaining)",
        "pass",
        f"{KEEPS}[copy]",
    ),
    row(
        "C4 a schedule of the learning rate stands still",
        f"{ENGINE}:Engine.prepare",
        "self._set_learning_rates(now.remaining)",
        "pass",
        "optim/test_training.py::test_both_schedules_run_and_are_read_back_from_the_optimiser",
    ),
    row(
        "P5 constraints keep their old settings",
        FORCE,
        "self.risk_control.configure(settings.risk)",
        "pass",
        f"{ACTS}[risk]",
    ),
    row(
        "P5 the variance scaler keeps its old settings",
        FORCE,
        "self.variance_scaler.configure(**settings.vgs.model_dump())",
        "pass",
        READ_BACK,
    ),
    row(
        "P5 a new variance scaler is not among the stages",
        FORCE,
        "pipeline.stages = [] if self.variance_scaler is None else [self.variance_scaler]",
        "pass",
        f"{ACTS}[vgs]",
    ),
    row(
        "P5 the adversary keeps its old settings",
        FORCE,
        "self.state_adversary = adversary",
        "self.state_adversary = self.state_adversary or adversary",
        READ_BACK,
    ),
    row(
        "P5 an adversary with other settings warms up anew",
        FORCE,
        "adversary.load_state_dict(self.state_adversary.state_dict())",
        "pass",
        f"{TESTS}::test_an_adversary_with_other_settings_goes_on_from_its_count",
    ),
    row(
        "P5 a KL penalty cannot be switched on",
        FORCE,
        "self.kl_controller = KLPenaltyController(settings.kl_penalty)",
        "pass",
        f"{ACTS}[kl_penalty]",
    ),
    row(
        "P5 the number of skips is stored alone",
        FORCE,
        "pipeline.guard.max_consecutive = settings.max_consecutive_skips",
        "pass",
        AT_ONCE,
    ),
    row(
        "P5 the window of episodes is stored alone",
        OWN,
        "Episodes(self).resize(settings.stats_window_size)",
        "pass",
        AT_ONCE,
    ),
    # The optimiser
    row(
        "C4 reset keeps the moments",
        OWN,
        "self.engine.build_optimizer(self._current_progress_remaining)",
        "pass",
        f"{KEEPS}[reset]",
    ),
    row(
        "C4 copy loses the moments",
        CHANGE,
        "self.put_in_force(after, fresh_optimizer=optimizer_strategy == 'reset')",
        "self.put_in_force(after, fresh_optimizer=True)",
        f"{KEEPS}[copy]",
    ),
    # Taken and must not be
    row(
        "P5 a setting that the network depends on is taken",
        f"{LIVE}:_refuse_structural",
        "is_structural(field) and getattr(now, name) != getattr(after, name)",
        "False",
        FIXED,
    ),
    row(
        "P5 critics get a rate of their own without a group for it",
        f"{LIVE}:_refuse_structural",
        "(now.critic_learning_rate is None) != (after.critic_learning_rate is None)",
        "False",
        OTHER_WEIGHTS,
    ),
    row(
        "P5 a constraint binds another policy from now on",
        f"{LIVE}:_refuse_structural",
        "shapes[0] != shapes[1]",
        "len(shapes[0]) != len(shapes[1])",
        OTHER_WEIGHTS,
    ),
    row(
        "P5 moments of another mode are gone on from",
        f"{LIVE}:_refuse_structural",
        "now.vgs is not None and after.vgs is not None and now.vgs.mode != after.vgs.mode",
        "False",
        OTHER_WEIGHTS,
    ),
    row("P5 an env is assigned past set_env", f"{LIVE}:Fixed.__set__", "model.is_built", "False", FIXED),
    row(
        "P5 a wrong value is taken on a live model",
        f"{LIVE}:changed_settings",
        "Settings.read(wanted, where=_WHERE)",
        "Settings.model_construct(**wanted)",
        f"{TESTS}::test_a_wrong_value_is_refused_as_in_the_constructor_and_changes_nothing",
    ),
    row(
        "P5 a list of constraints is counted from 1",
        f"{LIVE}:_with",
        "i == int(part)",
        "i == int(part) - 1",
        READ_BACK,
    ),
    # Read back
    row(
        "C4 what was asked for is read back",
        CHANGE,
        "self.read_hyperparameters(values)",
        "dict(values)",
        f"{TESTS}::test_what_something_else_wrote_into_the_optimiser_is_noticed",
    ),
    row(
        "C4 a rate that did not arrive is not noticed",
        f"{ENGINE}:Engine._live_rate",
        'groups[group]["lr"] != wanted',
        "False",
        f"{TESTS}::test_what_something_else_wrote_into_the_optimiser_is_noticed",
    ),
    row(
        "C4 the rate that is told is the one asked for",
        f"{ENGINE}:Engine._control",
        'float(optimizer.param_groups[0]["lr"])',
        "float(schedules.learning_rates(settings, 1.0)[0])",
        READ_BACK,
    ),
]
