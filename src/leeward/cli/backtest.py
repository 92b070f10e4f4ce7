"""`leeward backtest` and `leeward report`."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from leeward.backtest import Metrics, judge, read_backtest
from leeward.backtest.robustness import write_curve
from leeward.cli.view import percent, percent_2, ratio, say
from leeward.market import Market, prepare
from leeward.report import write_report
from leeward.training.run_dir import RunDir
from leeward.training.testing import attack_run, backtest_run, earlier_openings, record_opening

__all__ = ["backtest_command", "backtest_into", "print_verdicts", "report_command"]

_COLUMNS = (
    ("CAGR", "cagr", percent),
    ("volatility", "volatility", lambda value: percent(value).removeprefix("+")),
    ("Sharpe", "sharpe", ratio),
    ("max drawdown", "max_drawdown", percent),
    ("CVaR of a bar", "cvar", percent_2),
)


def backtest_command(path: Path, split: str, data: str | None, *, quiet: bool, robustness: bool = False) -> None:
    """Backtest, write the files, print the table; the test split is opened on the record. With `robustness` under
    attack too."""
    console, run = Console(quiet=quiet), RunDir.open(path)
    with run.locked():
        run.best_checkpoint()  # nothing to test, nothing to open
        market = run.market() if data is None else prepare(run.config().data, bars=data, scaler=run.scaler())
        window = market.split(split)
        own = market.fingerprint == run.record().get("data_fingerprint")
        if own and window.end == len(market.bars):  # the test split, or the whole of the run's own bars
            say(console, _opened(run, market))
            record_opening(run, market, split)
        name = split if data is None else f"{Path(data).stem.replace(':', '-')}-{split}"
        metrics = backtest_into(run, market, split, name)
        if robustness:
            write_curve(run.path / "backtest" / name, attack_run(run, market, split))
    _print_table(console, metrics)
    print_verdicts(console, {split: metrics})


def _opened(run: RunDir, market: Market) -> str:
    before = earlier_openings(run, market)
    often = f"after {before} earlier opening{'s' if before > 1 else ''} of the same bars"
    words = "for the first time" if before == 0 else often
    return f"The test split is opened {words} by runs in {run.path.resolve().parent.name}/."


def backtest_into(run: RunDir, market: Market, split: str, name: str) -> Metrics:
    """Backtest the best checkpoint over a split and write it into the run, as backtest/`name`."""
    result = backtest_run(run, market, split)
    result.write(run.path / "backtest" / name)
    return result.metrics


def report_command(path: Path, control: Path | None, out: Path | None) -> None:
    """Write the report and say what it says."""
    console = Console()
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
        table.add_row(name.replace("_", " "), *(show(strategy.performance[key]) for _, key, show in _COLUMNS))
    console.print(table)
