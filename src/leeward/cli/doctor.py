"""`leeward doctor`."""

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leeward.audit.doctor.examination import Outcome, examine
from leeward.cli.view import harmless, say
from leeward.config.load import load_config

__all__ = ["doctor_command"]

_COLOURS: dict[Outcome, str] = {"good": "green", "note": "cyan", "warning": "yellow", "error": "bold red"}


def doctor_command(config: Path | None, settings: list[str], run_dir: Path | None) -> None:
    """Say how everything stands, line by line as it is found; exit code 1 where something will go wrong."""
    console, loaded = Console(), load_config(config, settings)
    counts = dict.fromkeys(_COLOURS, 0)
    with console.status("doctor ...") as status:
        statements = examine(loaded, run_dir or Path("runs"), lambda name: status.update(f"doctor: {name} ..."))
        for statement in statements:
            counts[statement.outcome] += 1
            row = Table.grid(padding=(0, 2))
            row.add_column(width=8, no_wrap=True)
            row.add_column(width=20)
            row.add_column(overflow="fold")
            row.add_row(
                Text(statement.outcome, _COLOURS[statement.outcome]), statement.subject, Text(harmless(statement.words))
            )
            console.print(row)
    if counts["error"]:
        say(console, "Not yet: what is marked error will go wrong. Change it and ask again.")
        raise SystemExit(1)
    warned = (
        f" {counts['warning']} warning{'s' if counts['warning'] > 1 else ''} to read first."
        if counts["warning"]
        else ""
    )
    say(console, f"Ready to train.{warned}")
