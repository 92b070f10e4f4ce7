"""Faults of populations: settings that are not applied, decisions that should not be made, work that is lost."""

from tools.mutants import row

__all__ = ["MUTANTS"]

EXPLOIT, COMPARE, POPULATION, SPACE, MEMBER = (
    "training/population/exploit",
    "training/population/compare",
    "training/population/population",
    "training/population/space",
    "training/population/member",
)
DECIDED, CARRIED = "training/test_population_decisions.py", "training/test_population_members.py"

MUTANTS = [
    row(
        "what was applied is not read back",
        f"{EXPLOIT}:check_applied",
        "found[key] != value",
        "False",
        f"{CARRIED}::test_a_setting_that_is_not_applied_is_an_error_that_names_both_values",
    ),
    row(
        "the rate in the optimiser is not compared",
        f"{MEMBER}:_Interval._applied",
        "applied != expected",
        "False",
        f"{CARRIED}::test_a_member_whose_optimiser_has_another_rate_stops_and_others_go_on",
    ),
    row(
        "a member that takes over keeps the source's random numbers",
        f"{EXPLOIT}:take_over",
        "model.set_random_seed(seed)",
        "pass",
        f"{CARRIED}::test_what_is_taken_over_is_the_source_to_the_bit_and_settings_are_new",
    ),
    row(
        "two settings of one section overwrite each other",
        "algorithm/live_settings:_with",
        "isinstance(old, _Changed)",
        "False",
        "algorithm/test_live_settings.py::test_two_fields_of_one_section_change_together",
    ),
    row(
        "a score that is NaN is a source",
        f"{COMPARE}:_rank",
        "standing.value if math.isfinite(standing.value) and not standing.ended else -math.inf",
        "standing.value",
        f"{DECIDED}::test_nobody_takes_over_from_nan_and_nan_takes_over",
    ),
    row(
        "windows are not paired",
        f"{COMPARE}:_standard_error",
        "a - b",
        "a + b",
        f"{DECIDED}::test_a_lead_counts_in_standard_errors_over_paired_windows",
    ),
    row(
        "a setting stays at its bound",
        f"{SPACE}:_moved",
        "-share if share < 0.0 else 2.0 - share if share > 1.0 else share",
        "min(max(share, 0.0), 1.0)",
        f"{DECIDED}::test_a_setting_at_its_bound_comes_back_from_it",
    ),
    row(
        "a driver that goes on writes what the log has already",
        f"{POPULATION}:Population._write",
        '_key(values | {"event": event}) not in self._told',
        "True",
        f"{DECIDED}::test_wherever_a_driver_is_killed_the_next_one_comes_to_the_same_end",
    ),
    row(
        "an order that was carried out is carried out again",
        f"{MEMBER}:carry_out",
        "known is not None",
        "False",
        f"{CARRIED}::test_an_order_that_was_carried_out_is_not_carried_out_again",
    ),
]
