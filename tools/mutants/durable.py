"""Faults of what must not be lost and of what must not get in."""

from tools.mutants import row

__all__ = ["MUTANTS"]

MANIFEST, CHECKPOINT, RUN_DIR = "algorithm/manifest", "algorithm/checkpoint", "training/run_dir"
HOSTILE, DAMAGED = "algorithm/test_hostile_files.py", "training/test_damaged_runs.py"
FILES, STATE, BARS = "training/test_run_files.py", "env/test_state.py", "market/test_hostile_files.py"
EXCHANGE = f"{FILES}::test_a_process_that_ends_between_the_two_renames_of_an_exchange_loses_nothing"
NONSENSE = f"{HOSTILE}::test_a_manifest_with_nonsense_anywhere_loads_or_is_an_error_of_ours"
EXPANDS = f"{HOSTILE}::test_what_would_expand_stands_twice_or_does_not_belong_there_is_refused"
SIZES = f"{HOSTILE}::test_sizes_that_the_weights_do_not_have_are_refused_before_anything_is_made"

MUTANTS = [
    row(
        "a file's names are imported",
        f"{MANIFEST}:_find",
        "sys.modules.get(module)",
        "__import__(module, fromlist=['x'])",
        f"{HOSTILE}::test_a_package_planted_beside_a_file_is_not_imported_from_any_place_where_a_name_may_stand",
    ),
    row(
        "a file replaces attributes",
        f"{CHECKPOINT}:load",
        "_refuse_reserved(model, name)",
        "pass",
        f"{HOSTILE}::test_a_file_adds_attributes_and_replaces_none",
    ),
    row(
        "a file decides where a log is written",
        f"{CHECKPOINT}:_unbuilt",
        'name != "tensorboard_log"',
        "True",
        f"{HOSTILE}::test_a_file_does_not_decide_where_a_log_is_written",
    ),
    row(
        "compressed entries are expanded",
        f"{CHECKPOINT}:_parts",
        "entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size",
        "False",
        EXPANDS,
    ),
    row("an entry may stand twice", f"{CHECKPOINT}:_parts", "found != sorted(_PARTS)", "False", EXPANDS),
    row(
        "a network is built as large as a file says",
        "algorithm/bounded_build:bounded_build.__torch_dispatch__",
        "self.made > _TIMES * self.in_file + _ALWAYS",
        "self.made > 10**13",
        f"{SIZES}[wide observation]",
    ),
    row(
        "nonsense in a manifest is a traceback",
        f"{CHECKPOINT}:_nonsense_refused",
        "_NONSENSE",
        "()",
        NONSENSE,
    ),
    row(
        "moments of another shape are loaded",
        f"{CHECKPOINT}:_load_optimizer",
        "not _is_moment_of(tuple(value.shape), shape)",
        "False",
        f"{HOSTILE}::test_moments_of_another_shape_and_weights_that_are_no_numbers_are_refused",
    ),
    row(
        "weights that are not numbers are loaded",
        f"{CHECKPOINT}:read_checkpoint",
        "_check_tensors(tensors, name)",
        "pass",
        f"{HOSTILE}::test_moments_of_another_shape_and_weights_that_are_no_numbers_are_refused",
    ),
    row(
        "the state of envs is trusted",
        "env/simulation:Simulation.load_state_dict",
        'self._check_ranges(*(np.asarray(state[name]) for name in _STATE), auto=state["auto"])',
        "pass",
        f"{STATE}::test_what_no_account_can_have_is_refused_and_the_env_stays_as_it_was",
    ),
    row("what was exchanged is swept away", f"{RUN_DIR}:RunDir.sweep", "put_back", "print", EXCHANGE),
    row(
        "the best is not looked for where it was",
        f"{RUN_DIR}:RunDir.best_checkpoint",
        "put_back(self.best)",
        "pass",
        EXCHANGE,
    ),
    row(
        "a damaged checkpoint is loaded",
        "durable:read_checked",
        "sums is not None and sums.get(path.name) != sha256(content)",
        "False",
        f"{DAMAGED}::test_a_damaged_newest_checkpoint_is_passed_over_and_named",
    ),
    row(
        "a damaged checkpoint ends a run",
        "training/trainer:_last_good",
        "continue",
        "raise",
        f"{DAMAGED}::test_a_damaged_newest_checkpoint_is_passed_over_and_named[model.zip]",
    ),
    row(
        "years wrap round",
        "market/times:_in_reach",
        "times.dt.year.between(1678, 2261)",
        "times.notna()",
        f"{BARS}::test_a_year_that_nanoseconds_do_not_reach_is_no_date",
    ),
    row(
        "a panel is made however empty it is",
        "market/sources:_assemble",
        "cells > _SPARSEST * n_bars + _ANY_PANEL",
        "False",
        f"{BARS}::test_a_panel_that_would_be_nearly_empty_is_refused",
    ),
    row(
        "a name is markup in a chart",
        "report/figure:plain",
        "html.escape(text, quote=False)",
        "text",
        "report/test_build.py::test_a_name_with_markup_stays_text",
    ),
    row(
        "keys may stand twice in YAML",
        "config/yaml_text:_Loader.construct_mapping",
        "name in seen",
        "False",
        "config/test_yaml_text.py::test_a_text_that_no_config_is_gives_one_clean_line",
    ),
    row(
        "absurd numbers are settings",
        "config/base:Frozen._no_absurd_numbers",
        "abs(part) > _LARGEST",
        "False",
        "config/test_yaml_text.py::test_a_leaf_refuses_what_no_setting_is",
    ),
]
