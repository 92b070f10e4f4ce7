"""`leeward verify`."""

from pathlib import Path

from rich.console import Console

from leeward.cli.view import say
from leeward.training.run_dir import RunDir
from leeward.training.verification import examine_run

__all__ = ["verify_command"]


def verify_command(path: Path) -> None:
    """Print one line per part of the run; exit code 1 when one of them is damaged."""
    console, run, damaged = Console(), RunDir.open(path), False
    for part, problem in examine_run(run):
        damaged = damaged or problem is not None
        say(console, f"{part.relative_to(run.path)}: {'good' if problem is None else problem}")
    if damaged:
        raise SystemExit(1)
