"""The tools that attack runs and files, in small: `make fuzz` and `make kills` do the same for long."""

import pytest
from tools.fuzz import run_target
from tools.kills import try_kills

GOOD = {"refused", "harmless"}


@pytest.mark.parametrize(
    ("name", "cases"), [("checkpoints", 40), ("configs", 150), ("data", 100), ("run_files", 6)], ids=lambda value: value
)
def test_bad_files_are_refused_or_harmless(name, cases):
    said: list[str] = []
    found = run_target(name, cases, seed=1, show=said.append)
    assert {end for end, count in found.items() if count} <= GOOD, "\n".join(said)
    assert found["refused"] >= cases // 4


def test_a_run_killed_in_its_writes_ends_as_if_never_stopped(tmp_path):
    found = try_kills(4, tmp_path, seed=2, more=())
    assert found["kills"] == 4 and found["aimed"] >= 2
    assert not found["runs lost"] + found["best checkpoints lost"] + found["runs that ended otherwise"]
