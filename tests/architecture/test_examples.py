"""The examples run as they stand, with fewer steps."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
CASES = {
    "swap_the_import": (["--steps", "1000"], ["reward of the best model over 20 episodes", "step 40: discounted"]),
    "return_distribution": (["--env", "CartPole-v1", "--steps", "2000"], ["states whose return is known", "0.05"]),
    "moving_average": (
        ["--bars", "bars.csv", "--draws", "20", "--unseen-from", "2002-01-01"],
        ["weights: tear_sheet.html", "tear_sheet_policy.html"],
    ),
    "other_learners": (["--steps", "2048", "--draws", "20"], ["Leeward's env: tear_sheet.html", "on CartPole"]),
    "own_bars": (
        ["bars.csv", "--steps", "1", "--limit", "-0.02"],
        ["validation: 58 bars", "Risk: ", "own-bars/report"],
    ),
}


@pytest.fixture
def _bars(monkeypatch, tmp_path):
    """A directory that holds the first bars of what `own_bars` writes where there is no file."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "own_bars.py"))["write_synthetic_bars"](tmp_path / "all.csv")
    lines = (tmp_path / "all.csv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "bars.csv").write_text("".join(lines[:901]), encoding="utf-8")


@pytest.mark.usefixtures("_bars")
@pytest.mark.filterwarnings("ignore:batch_size")
@pytest.mark.parametrize("name", CASES)
def test_an_example_runs_and_prints_what_it_promises(name, monkeypatch, capsys):
    arguments, expected = CASES[name]
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(text in printed for text in expected), printed


def test_every_example_is_run():
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(CASES)
