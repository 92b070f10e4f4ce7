"""`leeward train`."""

import time
from pathlib import Path

from rich.console import Console

from leeward.cli.backtest import backtest_into, print_verdicts
from leeward.cli.view import JsonLines, LiveView, PlainLines, Silent
from leeward.config.load import load_config
from leeward.report import write_report
from leeward.training.run_dir import RunDir
from leeward.training.trainer import Interrupted, train

__all__ = ["train_command"]


def train_command(
    config: Path | None,
    run_dir: Path | None,
    overrides: list[str],
    resume: Path | None,
    *,
    quiet: bool,
    json_lines: bool,
) -> None:
    """Train (or go on), backtest on validation, report. Exit code 130 after Ctrl-C, with the run saved."""
    console = Console(stderr=json_lines)
    if resume is not None:
        run = RunDir.open(resume)
    else:
        settled = load_config(config, overrides)
        stem = config.stem if config is not None else "run"
        run = RunDir.create(run_dir or Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}", settled)
    view = (
        Silent()
        if quiet
        else JsonLines()
        if json_lines
        else LiveView(console)
        if console.is_terminal
        else PlainLines(console)
    )
    with run.locked():
        try:
            with view:
                market = train(run, view.update, resume=resume is not None)
        except Interrupted:
            console.print(
                f"Stopped after a whole update. Continue with: leeward train --resume {run.path}", highlight=False
            )
            raise SystemExit(130) from None
        metrics = backtest_into(run, "validation", market=market)
        report = write_report(run.path)
    if json_lines:
        return
    print_verdicts(console, {"validation": metrics})
    console.print(f"Run: {run.path}\nReport: {report}", highlight=False, soft_wrap=True)
    console.print(f"The test split stays sealed until: leeward backtest {run.path} --split test", highlight=False)
