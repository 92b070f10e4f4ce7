"""What a person, a log or a pipeline sees while training runs."""

import sys
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import (
    Progress as Bar,
)
from rich.table import Table

from leeward.training.logs import as_json_line
from leeward.training.trainer import Progress

__all__ = ["JsonLines", "LiveView", "PlainLines", "Silent", "View"]


class View(Protocol):
    def update(self, progress: Progress) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Silent:
    """Says nothing."""

    def update(self, progress: Progress) -> None:
        """Nothing to show."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to close."""


class JsonLines(Silent):
    """Every metric of every update, one JSON object per line on stdout."""

    def update(self, progress: Progress) -> None:
        sys.stdout.write(as_json_line(progress.metrics) + "\n")
        sys.stdout.flush()


class PlainLines(Silent):
    """A line every tenth of the run, for logs."""

    def __init__(self, console: Console) -> None:
        self.console, self.shown = console, -1

    def update(self, progress: Progress) -> None:
        tenth = 10 * progress.steps // progress.total_steps
        if tenth > self.shown:
            self.shown = tenth
            facts = " · ".join(f"{name} {value}" for name, value in _facts(progress))
            self.console.print(
                f"{progress.steps:>9,} of {progress.total_steps:,} steps · {facts}", highlight=False, soft_wrap=True
            )


class LiveView(Silent):
    """A progress bar with time left, and the numbers that matter under it."""

    def __init__(self, console: Console) -> None:
        self.bar = Bar(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self.task = self.bar.add_task("training", total=None)
        self.live = Live(self.bar, console=console, refresh_per_second=8)

    def update(self, progress: Progress) -> None:
        self.bar.update(self.task, total=progress.total_steps, completed=min(progress.steps, progress.total_steps))
        facts = Table.grid(padding=(0, 3))
        for name, value in _facts(progress):
            facts.add_row(name, value)
        self.live.update(Group(self.bar, facts))

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()


def _facts(progress: Progress) -> list[tuple[str, str]]:
    metrics = progress.metrics
    facts = [
        ("steps/s", f"{progress.steps_per_second:,.0f}"),
        ("Sharpe, rollout", f"{metrics['trade/sharpe']:+.2f}"),
        ("drawdown, rollout", f"{metrics['trade/max_drawdown']:.1%}"),
        ("exposure", f"{metrics['trade/exposure']:.2f}"),
        ("explained variance", f"{metrics['train/explained_variance']:.2f}"),
    ]
    if progress.validation:
        facts += [
            ("Sharpe, validation", f"{progress.validation['sharpe']:+.2f}"),
            ("CVaR of a bar, validation", f"{progress.validation['cvar']:.2%}"),
        ]
    return facts
