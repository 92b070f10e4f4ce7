"""`leeward train`."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console

from leeward.backtest import Metrics
from leeward.backtest.baselines import buy_and_hold
from leeward.backtest.metrics import AGENT
from leeward.cli.backtest import backtest_into, print_verdicts
from leeward.cli.view import JsonLines, LiveView, PlainLines, Silent, View, percent_2, say
from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.market import Market, prepare
from leeward.report import write_report
from leeward.training.run_dir import RunDir
from leeward.training.trainer import Interrupted, train

__all__ = ["train_command"]


def train_command(
    config: Path | None,
    run_dir: Path | None,
    settings: list[str],
    shortcuts: dict[str, Any],
    resume: Path | None,
    *,
    quiet: bool,
    json_lines: bool,
) -> None:
    """Train (or go on), backtest on validation, report. Exit code 130 after Ctrl-C, with the run saved."""
    console = Console(stderr=json_lines)
    if resume is not None:
        run = RunDir.open(resume)
        market = run.market()
    else:
        settled = load_config(config, settings, shortcuts)
        market = prepare(settled.data)  # before the directory is made: a wrong file leaves nothing behind
        stem = config.stem if config is not None else "run"
        run = RunDir.create(run_dir or Path("runs") / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}", settled)
    with run.locked():
        if not quiet:
            say(console, _tail_on_train(market, run.config()))
        try:
            with _view(console, quiet=quiet, json_lines=json_lines) as view:
                train(run, market, view.update, resume=resume is not None)
        except Interrupted:
            say(console, f"Stopped after a whole update. Continue with: leeward train --resume {run.path}")
            raise SystemExit(130) from None
        if not quiet:
            say(console, "Backtest on validation and report ...")
        metrics = backtest_into(run, market, "validation", "validation")
        report = write_report(run.path)
    if json_lines:
        JsonLines.write(_result(run, report, metrics))
        return
    print_verdicts(console, {"validation": metrics})
    say(console, f"Run: {run.path}\nReport: {report}")
    say(console, f"The test split stays sealed until: leeward backtest {run.path} --split test")


def _view(console: Console, *, quiet: bool, json_lines: bool) -> View:
    if json_lines:
        return JsonLines()
    if quiet:
        return Silent()
    return LiveView(console) if console.is_terminal else PlainLines(console)


def _tail_on_train(market: Market, config: RunConfig) -> str:
    """What a limit could be measured by."""
    alpha = config.risk.alpha
    tail = buy_and_hold(market, config.env, split="train").performance(alpha).cvar
    limit = config.risk.limit
    against = "no limit is set (risk.limit)" if limit is None else f"the limit is {percent_2(limit)}"
    return (
        f"Tail on train: the worst {100 * alpha:g} % of bars average {percent_2(tail)} for buy and hold, "
        f"{percent_2(0.0)} in cash; {against}."
    )


def _result(run: RunDir, report: Path, metrics: Metrics) -> dict[str, Any]:
    return {"run": str(run.path), "report": str(report), "validation": metrics.strategies[AGENT].performance}
