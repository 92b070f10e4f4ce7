"""What a person, a log or a pipeline sees while training runs."""

import json
import math
import sys
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leeward.backtest.wording import number, percent
from leeward.errors import printable
from leeward.telemetry.alerts import Alert
from leeward.training.trade_metrics import EpisodeScore, Score
from leeward.training.trainer import Progress

__all__ = ["JsonLines", "LiveView", "PlainLines", "Silent", "View", "harmless", "say"]


def harmless(text: str) -> str:
    """Lines that may hold what a file from elsewhere says: nothing in them steers the terminal."""
    return "\n".join(printable(line) for line in text.split("\n"))


def say(console: Console, text: str) -> None:
    """Print lines as they are: a path or a command is never wrapped, coloured or taken for markup."""
    console.print(harmless(text), highlight=False, soft_wrap=True, markup=False)


class View(Protocol):
    def update(self, progress: Progress) -> None: ...
    def alert(self, alert: Alert) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Says nothing, but of errors."""

    def update(self, progress: Progress) -> None:
        """Nothing to show."""

    def alert(self, alert: Alert) -> None:
        """A line on stderr, for errors alone."""
        if alert.severity == "error":
            sys.stderr.write(f"{printable(alert.line)}\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""


class JsonLines(Silent):
    """Every metric of every update, one JSON object per line on stdout."""

    def update(self, progress: Progress) -> None:
        self.write(progress.metrics)

    def alert(self, alert: Alert) -> None:
        self.write({"alert": alert.as_dict()})

    @staticmethod
    def write(values: Mapping[str, Any]) -> None:
        line = memoryview(f"{json.dumps(_without_nan(values))}\n".encode())
        sys.stdout.flush()
        # Unbuffered (PYTHONUNBUFFERED=1), a write that a signal cuts short is not gone on with by Python.
        while line:
            line = line[sys.stdout.buffer.write(line) :]
        sys.stdout.flush()


class PlainLines(Silent):
    """A line every tenth of the run, for logs."""

    def __init__(self, console: Console) -> None:
        self.console, self.shown = console, -1

    def alert(self, alert: Alert) -> None:
        say(self.console, alert.line)

    def update(self, progress: Progress) -> None:
        tenth = 10 * progress.steps // progress.total_steps
        if tenth > self.shown:
            self.shown = tenth
            scores = [f"{name}: {_words(score)}" for name, score in _scores(progress)[:2]]
            say(self.console, " | ".join([_steps(progress), _speed(progress), *scores]))


class LiveView(Silent):
    """A progress bar with time left, and the numbers that matter under it."""

    def __init__(self, console: Console) -> None:
        self.live = Live(Text("The first rollout ..."), console=console, refresh_per_second=4)

    def alert(self, alert: Alert) -> None:
        say(self.live.console, alert.line)  # above the bar, where it stays

    def update(self, progress: Progress) -> None:
        self.live.update(Group(_bar(progress), Text(), _table(progress)))

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()


def _bar(progress: Progress) -> RenderableType:
    row = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=progress.total_steps, completed=min(progress.steps, progress.total_steps), width=20)
    row.add_row(bar, _steps(progress), _speed(progress))
    return row


def _table(progress: Progress) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="dim")
    table.add_column("")
    for title in _cells(progress.exploring):
        table.add_column(title, justify="right", min_width=len(title))
    for name, score in _scores(progress):
        table.add_row(name, *_cells(score).values())
    return table


def _scores(progress: Progress) -> list[tuple[str, Score | EpisodeScore]]:
    named = (("exploring", progress.exploring), ("validation", progress.validation), ("best so far", progress.best))
    return [(name, score) for name, score in named if score is not None]


def _cells(score: Score | EpisodeScore) -> dict[str, str]:
    """Title and text of each number."""
    if isinstance(score, EpisodeScore):
        return {"return of an episode": number(score.mean_return)}
    return {
        "growth a year": percent(math.expm1(score.growth), 1, signed=True),  # compounded, as CAGR
        "Sharpe": number(score.sharpe, signed=True),
        "drawdown": percent(score.max_drawdown, 1, signed=True),
        "CVaR of a bar": percent(score.cvar, signed=True),
    }


def _words(score: Score | EpisodeScore) -> str:
    cells = [*_cells(score).values()]
    if isinstance(score, EpisodeScore):
        return f"return of an episode {cells[0]}"
    growth, sharpe, drawdown, cvar = cells
    return f"growth {growth} a year, Sharpe {sharpe}, drawdown {drawdown}, CVaR of a bar {cvar}"


def _steps(progress: Progress) -> str:
    total = f"{progress.total_steps:,}"
    return f"{min(progress.steps, progress.total_steps):>{len(total)},} of {total} steps"


def _speed(progress: Progress) -> str:
    if progress.stopping:
        return "stopping after this update ..."
    left = max(progress.total_steps - progress.steps, 0) / max(progress.steps_per_second, 1e-9)
    clock = timedelta(seconds=round(left))
    return f"{progress.steps_per_second:,.0f} steps/s, {clock} left"


def _without_nan(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, Mapping):
        return {key: _without_nan(entry) for key, entry in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
