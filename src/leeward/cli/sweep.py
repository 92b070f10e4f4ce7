"""`leeward sweep`."""

import time
from pathlib import Path

from rich.console import Console

from leeward.cli.backtest import print_verdicts
from leeward.cli.view import say
from leeward.config.load import load_config
from leeward.errors import RunDirectoryError
from leeward.market import prepare
from leeward.report import write_report
from leeward.training.gym_envs import check_gym
from leeward.training.run_dir import RunDir, new_folder
from leeward.training.sweep import Sweep, check_folder
from leeward.training.testing import backtest_run
from leeward.training.trainer import EndedAtOnce, Interrupted

__all__ = ["sweep_command"]


def sweep_command(file: Path, settings: list[str], run_dir: Path | None, *, trials: int, resume: bool) -> None:
    """Search (or go on), write the best as an ordinary run, backtest it on validation, and report."""
    console = Console()
    config = load_config(file, settings)
    market = None
    if config.gym is not None:
        check_gym(config.gym)
    else:
        market = prepare(config.data)  # a wrong file leaves nothing behind
    folder = run_dir or new_folder(Path("runs"), f"{file.stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    check_folder(folder, resume=resume)
    folder.mkdir(parents=True, exist_ok=True)
    with RunDir(folder).locked():  # of two that start at once, one finds the sweep of the other
        sweep = Sweep(folder, config, market, resume=resume)
        try:
            sweep.run(trials, lambda line: say(console, line))
        except (Interrupted, EndedAtOnce) as end:
            say(console, f"Stopped. Continue with: leeward sweep {file} --run-dir {folder} --resume")
            raise SystemExit(128 + end.number) from None
        best = sweep.write_best()
        if best is None:
            raise RunDirectoryError(f"{folder}: no trial has a score; its runs are in {folder / 'trials'}")
        if config.gym is None:
            result = backtest_run(best, best.market(), "validation")
            result.write(best.path / "backtest" / "validation")
            write_report(best.path)
            print_verdicts(console, {"validation": result.metrics})
    record = best.record()
    say(console, f"Best of {record['trials']} trials: {record['sweep']}\nRun: {best.path}")
