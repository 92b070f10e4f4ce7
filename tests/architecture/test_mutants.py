"""The table of mutants fits the code it mutates; `make mutants` then shows that each is killed."""

from pathlib import Path

import pytest
from tools.mutants import Mutant, table

ROOT = Path(__file__).parents[2]


def test_no_two_mutants_share_an_id():
    ids = [mutant.id for mutant in table()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("mutant", table(), ids=lambda mutant: mutant.id)
def test_a_mutant_changes_one_line_that_is_there_and_names_tests_that_exist(mutant: Mutant):
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.was) == 1
    assert mutant.fault != mutant.was
    assert mutant.tests
    for test in mutant.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test
