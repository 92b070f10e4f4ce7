"""`leeward backtest` and `leeward report`."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from leeward.backtest import Metrics, judge, read_backtest
from leeward.backtest.robustness import write_curve
from leeward.backtest.strategies import strategy_of
from leeward.backtest.wording import number, percent
from leeward.cli.data import data_settings
from leeward.cli.view import say
from leeward.market import Bars
from leeward.report import write_report
from leeward.training.run_dir import RunDir
from leeward.training.seal import Opening
from leeward.training.testing import Examination

__all__ = ["backtest_command", "print_problems", "print_verdicts", "report_command"]

_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("CAGR", "cagr", lambda value: percent(value, 1, signed=True)),
    ("volatility", "volatility", lambda value: percent(value, 1, signed=True).removeprefix("+")),
    ("Sharpe", "sharpe", lambda value: number(value, signed=True)),
    ("max drawdown", "max_drawdown", lambda value: percent(value, 1, signed=True)),
    ("CVaR of a bar", "cvar", lambda value: percent(value, signed=True)),
)


def backtest_command(
    path: Path, split: str, data: str | None, settings: list[str], *, quiet: bool, robustness: bool = False
) -> None:
    """Backtest, write the files, print the table; with `robustness` under attack too. Says when the seal is opened."""
    console, run = Console(quiet=quiet), RunDir.open(path)
    with run.locked():
        run.refuse_without_market()
        run.best_checkpoint()  # nothing to test: no need to read the bars first
        market = run.market(data, data_settings(settings))
        print_problems(console, market.bars)
        examination = Examination(run, market, split, lambda line: say(console, line))
        if examination.opening is not None:
            say(console, _words(run, examination.opening))
        name = split if data is None else f"{Path(data).stem.replace(':', '-')}-{split}"
        folder = run.path / "backtest" / name
        with console.status("") as status:
            result = examination.backtest(lambda text: status.update(f"{split}: {text} ..."))
        result.write(folder)
        if robustness:
            write_curve(folder, examination.attack())
        report = write_report(run.path)
    _print_table(console, result.metrics)
    print_verdicts(console, {split: result.metrics})
    say(console, f"Files: {folder}\nReport: {report}")


def print_problems(console: Console, bars: Bars) -> None:
    """What was guessed about the bars, and what the check of them warns of."""
    for problem in bars.problems:
        say(console, str(problem))


def _words(run: RunDir, opening: Opening) -> str:
    times = f"{opening.earlier} earlier opening{'s' if opening.earlier > 1 else ''}"
    often = f"after {times} of the same bars" if opening.earlier else "for the first time"
    return f"The test split is opened {often} by runs in {run.path.resolve().parent.name}/."


def report_command(path: Path, control: Path | None, out: Path | None) -> None:
    """Write the report and say what it says."""
    console = Console()
    if path.is_dir() and not any(path.glob("backtest/*/metrics.json")):
        RunDir.open(path).refuse_without_market()  # which says more than that there is no backtest
    written = write_report(path, control_run=control, path=out)
    splits = _stored(path)
    print_verdicts(console, splits, None if control is None else _stored(control))
    say(console, f"Report: {written}")


def print_verdicts(console: Console, splits: dict[str, Metrics], controls: dict[str, Metrics] | None = None) -> None:
    """One line per question, chosen by rule."""
    for verdict in judge(splits, controls):
        say(console, verdict.line)


def _stored(path: Path) -> dict[str, Metrics]:
    folders = sorted(file.parent for file in path.glob("backtest/*/metrics.json"))
    return {folder.name: read_backtest(folder).metrics for folder in folders}


def _print_table(console: Console, metrics: Metrics) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    table.add_column(f"{metrics.split} split", no_wrap=True)
    for title, _, _ in _COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for name, strategy in metrics.strategies.items():
        table.add_row(strategy_of(name).label, *(show(strategy.performance[key]) for _, key, show in _COLUMNS))
    console.print(table)
