"""Faults of configs: unknown keys, what was meant, `--set`, parts that do not fit."""

from tools.mutants import row

__all__ = ["MUTANTS"]

BASE, LOAD, RUN, TRADING = "config/base", "config/load", "config/run", "config/trading"
SETTING, LEARNER, LIVE = "config/settings", "config/test_settings.py", "algorithm/test_live_settings.py"
MODELS, WHOLE = "config/test_base.py", "config/test_run_config.py"
NAMED = f"{MODELS}::test_a_wrong_value_is_named_with_its_place_and_what_to_write"
PARTS = f"{WHOLE}::test_parts_that_do_not_fit_are_named"
ERRORS = "cli/test_errors.py::test_an_error_is_one_line_on_stderr_and_exit_code_1"
SETTINGS = 'ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)'


MUTANTS = [
    row(
        "infinity for an env is null when its run goes on",
        "config/tune:GymConfig._come_back_equal",
        "kept = False",
        "kept = True",
        "config/test_tune.py::test_an_argument_of_an_env_that_the_file_of_a_run_cannot_hold_is_refused",
    ),
    row(
        "a sign that is no number is a place in a list",
        f"{LOAD}:_entry",
        "not place.isdecimal()",
        "not place.isdigit()",
        PARTS,
    ),
    row(
        "whatever stands for the further limits of an earlier version is taken for a list",
        f"{LOAD}:written_config",
        "not isinstance(further, list)",
        "False",
        f"{WHOLE}::test_the_config_of_a_run_of_an_earlier_version_is_read",
    ),
    row("unknown keys are ignored", f"{BASE}:Frozen", SETTINGS, SETTINGS.replace("forbid", "ignore"), NAMED),
    row(
        "a config can be changed",
        f"{BASE}:Frozen",
        SETTINGS,
        SETTINGS.replace("frozen=True", "frozen=False"),
        f"{MODELS}::test_a_config_cannot_be_changed",
    ),
    row(
        "infinity is a number",
        f"{BASE}:Frozen",
        SETTINGS,
        SETTINGS.replace("allow_inf_nan=False", "allow_inf_nan=True"),
        NAMED,
    ),
    row(
        "keys are looked up in the outermost section",
        f"{BASE}:_line",
        '_owners(model, problem["loc"][:-1])',
        "[model]",
        NAMED,
    ),
    row(
        "a list of sections has no keys to suggest",
        f"{BASE}:_owners",
        "below or named or owners",
        "below or named",
        NAMED,
    ),
    row(
        "a union suggests the keys of all its members",
        f"{BASE}:_owners",
        "below or named or owners",
        "below or owners",
        f"{MODELS}::test_a_union_names_the_keys_of_the_member_that_was_tried",
    ),
    row(
        "only the first problem is told",
        f"{BASE}:Frozen.read",
        "error.errors()",
        "error.errors()[:1]",
        f"{MODELS}::test_every_problem_has_its_own_line",
    ),
    row(
        "anything is close enough to be meant",
        "errors:did_you_mean",
        "get_close_matches(word, names, n=1, cutoff=0.6)",
        "get_close_matches(word, names, n=1, cutoff=0.0)",
        NAMED,
    ),
    row("nothing is ever meant", "errors:did_you_mean", "get_close_matches(word, names, n=1, cutoff=0.6)", "[]", NAMED),
    row(
        "--set empties the section it touches",
        f"{LOAD}:_with",
        "dict(inner or {})",
        "{}",
        f"{WHOLE}::test_set_changes_one_key_and_leaves_its_neighbours",
    ),
    row(
        "an earlier --set wins",
        f"{LOAD}:_with",
        "here[int(last) if isinstance(here, list) else last] = value",
        "here.setdefault(last, value)",
        f"{WHOLE}::test_a_later_set_wins_over_an_earlier_one_and_over_a_shortcut",
    ),
    row(
        "--set takes values as text",
        f"{LOAD}:_parsed",
        'yaml_text.read(text.encode(errors="surrogateescape"), where=f"--set {setting!r:.80}: the value is ")',
        "text",
        f"{WHOLE}::test_every_key_is_reachable_by_set[policy.net_arch]",
    ),
    row("--set needs no value", f"{LOAD}:_parsed", "not equals or not key", "not key", PARTS),
    row(
        "a value is replaced by a section",
        f"{LOAD}:_with",
        "inner is not None and not isinstance(inner, dict | list)",
        "False",
        PARTS,
    ),
    row(
        "a dump loses what is None",
        f"{LOAD}:dump_config",
        'config.model_dump(mode="json")',
        'config.model_dump(mode="json", exclude_none=True)',
        f"{WHOLE}::test_a_config_comes_back_equal_from_its_dump",
    ),
    row(
        "no bars are left for the test split",
        f"{TRADING}:SplitsConfig._leave_a_test_split",
        "self.train + self.validation >= 1.0",
        "False",
        PARTS,
    ),
    row(
        "weights in the wrong order",
        f"{TRADING}:EnvConfig._weights_in_order",
        "not self.min_weight < self.max_weight",
        "False",
        PARTS,
    ),
    row(
        "more processes than envs",
        f"{RUN}:PPOConfig._envs_for_every_process",
        "self.n_jobs > self.n_envs",
        "False",
        PARTS,
    ),
    row(
        "only the first limit must be a loss",
        f"{RUN}:RunConfig._limit_is_a_log_return",
        "self.risk",
        "self.risk[:1]",
        PARTS,
    ),
    # What settings take
    row(
        "true is a number",
        f"{BASE}:Frozen._plain_numbers",
        "_holds_bool(numbers) and not _takes_bool(cls, name)",
        "False",
        f"{LIVE}::test_a_wrong_value_is_refused_as_in_the_constructor_and_changes_nothing[gamma-True]",
        f"{LEARNER}::test_true_is_no_number_and_a_number_is_finite",
    ),
    row(
        "true is a number inside a list",
        f"{BASE}:_holds_bool",
        "isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(_holds_bool, value)))",
        "isinstance(value, bool)",
        f"{LEARNER}::test_true_is_no_number_and_a_number_is_finite",
    ),
    row(
        "a learning rate may be no number",
        f"{SETTING}:_number_or_schedule",
        "not math.isfinite(number) or number < 0.0 or (positive and number == 0.0)",
        "number < 0.0 or (positive and number == 0.0)",
        f"{LEARNER}::test_true_is_no_number_and_a_number_is_finite",
    ),
    row(
        "a clip range of 0",
        f"{SETTING}:_number_or_schedule",
        "positive and number == 0.0",
        "False",
        f"{LEARNER}::test_true_is_no_number_and_a_number_is_finite",
    ),
    row(
        "all limits but the first are ignored",
        f"{SETTING}:one_or_several",
        "(value,) if isinstance(value, Mapping | Risk) else value",
        "(value,) if isinstance(value, Mapping | Risk) else value[:1]",
        f"{LEARNER}::test_one_limit_or_several",
    ),
    row(
        "a limit that is a number is taken for none",
        f"{SETTING}:one_or_several",
        "not isinstance(value, Mapping | Risk | list | tuple)",
        "False",
        f"{LEARNER}::test_one_limit_or_several",
    ),
    row(
        "a config that says nothing trains the defaults",
        f"{LOAD}:_sections",
        "not loaded",
        "False",
        f"{ERRORS}[a BOM for a config]",
    ),
    row(
        "limits of an earlier version's run are lost",
        f"{LOAD}:written_config",
        'values["risk"] = [values.get("risk", {}), *further]',
        "pass",
        f"{LEARNER}::test_limits_that_an_earlier_version_kept_apart_are_read",
    ),
    row(
        "a run on bars learns with the settings of other tasks",
        f"{RUN}:PPOConfig._defaults",
        "_FOR_TRADING | values if isinstance(values, dict) else values",
        "values",
        f"{LEARNER}::test_what_suits_bars_is_the_default_of_a_run_and_can_be_changed",
    ),
    row(
        "what suits bars goes before what was asked for",
        f"{RUN}:PPOConfig._defaults",
        "_FOR_TRADING | values if isinstance(values, dict) else values",
        "values | _FOR_TRADING if isinstance(values, dict) else values",
        f"{LEARNER}::test_what_suits_bars_is_the_default_of_a_run_and_can_be_changed",
    ),
    row(
        "a setting of the run does not reach the learner",
        f"{RUN}:PPOConfig.keywords",
        '{"learning_rate", "critic_learning_rate"}',
        '{"learning_rate", "critic_learning_rate", "burn_in"}',
        f"{LEARNER}::test_every_setting_of_a_run_reaches_the_learner",
    ),
]
