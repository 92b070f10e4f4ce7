"""Two of the twelve small tasks with a known best action; `benchmarks/learning/cue_tasks.py` trains on all."""

import pytest

from ..support.cue_tasks import ROWS, finds_the_optimum, missing_pairs
from ..support.cue_training import train

QUICK = {
    ("Discrete", "vector", "none", "quantile"): 1_500,
    ("MultiDiscrete", "vector", "lstm", "categorical"): 5_000,
}


@pytest.mark.parametrize("row", QUICK, ids=" ".join)
def test_the_best_action_is_found(row: tuple[str, str, str, str]) -> None:
    assert row in ROWS
    assert finds_the_optimum(train(row, seed=0, steps=QUICK[row]), row)


def test_every_pair_of_settings_is_in_some_row() -> None:
    assert len(ROWS) == 12
    assert missing_pairs() == []


def test_a_policy_that_learned_nothing_has_not_found_it() -> None:
    row = ("Box", "vector", "none", "categorical")
    assert not finds_the_optimum(train(row, seed=0, steps=1), row)
