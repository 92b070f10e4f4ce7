"""The examples for SB3 users and researchers run as they stand, with fewer steps."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.filterwarnings("ignore:batch_size")
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("swap_the_import", ["--steps", "1000"], ["reward of the best model over 20 episodes", "step 40: discounted"]),
        ("return_distribution", ["--env", "CartPole-v1", "--steps", "2000"], ["states whose return is known", "0.05"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_example_runs_and_prints_what_it_promises(name, arguments, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert all(text in printed for text in expected), printed
