"""Where metrics and alerts go: progress.csv, alerts.jsonl, TensorBoard, and the console.

On resume they are cut back to the checkpoint.
"""

import csv
import io
import math
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, Logger
from torch.utils.tensorboard import SummaryWriter

from leeward.durable import LARGEST_LOG, as_cell, from_cell, naming, read_bounded, write_atomically
from leeward.errors import RunDirectoryError
from leeward.telemetry.alerts import Alert
from leeward.telemetry.metrics import TOTAL_TIMESTEPS

__all__ = ["AlertFile", "Listener", "ProgressFile", "TensorBoardFile", "make_logger"]


_MOST_ROWS = 20_000  # of a log: some 30 MB. A week of training has thirty times as many updates
_EVENTS = "events.out.tfevents."


class _Pace:
    """Which updates a log keeps: all at first, and every 2nd, 4th, 8th ... of the older ones as they become many.

    It follows from the number of an update alone, so that a run that was stopped keeps the same ones.
    """

    def __init__(self, steps_of_first: int | None) -> None:
        self.unit = steps_of_first

    def number(self, steps: int) -> int:
        """Of the update after which there were so many steps; the first is 1."""
        self.unit = self.unit or max(steps, 1)
        return max(steps // self.unit, 1)

    @staticmethod
    def stride(number: int) -> int:
        return 1 << max(0, math.ceil(math.log2(2 * number / _MOST_ROWS)))

    def is_kept(self, steps: int, now: int) -> bool:
        return (self.number(steps) - 1) % self.stride(now) == 0


class ProgressFile(KVWriter):
    """A CSV with one row per update. A new column rewrites the file; rows are never lost or doubled, but thinned."""

    def __init__(self, path: Path, resume_at: int | None) -> None:
        self.path = path
        rows = [row for row in self.rows_of(self.path) if _steps(row) <= resume_at] if resume_at is not None else []
        self.pace = _Pace(_steps(rows[0]) if rows else None)
        self.columns = list(dict.fromkeys(key for row in rows for key in row))
        self._rewrite(rows)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        row = {key: repr(_number(value)) for key, value in key_values.items()}
        new, number = [key for key in row if key not in self.columns], self.pace.number(step)
        thin = number % (_MOST_ROWS // 2) == 0
        if new or thin:
            self.columns = sorted([*self.columns, *new])
            rows = [*self.rows_of(self.path), row]
            self._rewrite([kept for kept in rows if self.pace.is_kept(_steps(kept), number)] if thin else rows)
            return
        # "r+" makes no new file: one that is gone was deleted, and a log without its beginning would take its place.
        with naming(self.path), self.path.open("r+", newline="", encoding="utf-8") as file:
            file.seek(0, io.SEEK_END)
            csv.DictWriter(file, self.columns, restval="", lineterminator="\n").writerow(row)

    @staticmethod
    def rows_of(path: Path) -> list[dict[str, str]]:
        """The rows that are there, without what a process that was killed inside its last line left of it."""
        if not path.is_file():
            return []
        try:
            text = read_bounded(path, LARGEST_LOG).decode("utf-8")
            reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]), strict=True)
            reader.fieldnames = [from_cell(name) for name in reader.fieldnames or ()]
            rows = list(reader)
            for row in rows:
                _steps(row)
                if None in row or None in row.values():
                    raise ValueError("a row has not one cell for each column")
        except (csv.Error, ValueError, LookupError, TypeError, OverflowError) as error:
            raise RunDirectoryError(
                f"{path}: not the log of a run ({type(error).__name__}: {error}); repair it, or move it away to "
                "go on without what it holds"
            ) from None
        return rows

    @classmethod
    def of_rows(cls, path: Path, rows: list[dict[str, str]]) -> None:
        """A file of rows that were written elsewhere."""
        file = cls(path, None)
        file.columns = sorted({key for row in rows for key in row})
        file._rewrite(rows)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writerow({key: as_cell(key) for key in self.columns})
        writer.writerows(rows)
        write_atomically(self.path, text.getvalue() if self.columns else "")

    def close(self) -> None:
        """Every row is on disk already."""


def _steps(row: dict[str, str]) -> int:
    return int(float(row[TOTAL_TIMESTEPS.name]))


class TensorBoardFile(KVWriter):
    """Events for TensorBoard; of the later updates of a long run every 2nd, 4th, 8th ..."""

    def __init__(self, folder: Path, resume_at: int | None, pace: _Pace) -> None:
        _put_in_the_past(folder)
        # purge_step hides what an interrupted process logged after the checkpoint it is resumed from.
        self.writer = SummaryWriter(str(folder), purge_step=None if resume_at is None else resume_at + 1)
        self.folder, self.pace = folder, pace
        self._reported = threading.excepthook
        threading.excepthook = self._report

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        if not self.pace.is_kept(step, self.pace.number(step)):
            return
        with naming(self.folder):
            for key, value in key_values.items():
                if "tensorboard" not in (key_excluded[key] or ()):
                    self.writer.add_scalar(key, _number(value), step)

    def _report(self, failed: threading.ExceptHookArgs) -> None:
        """What TensorBoard's own thread fails of is raised again by the next call of its writer, not printed here."""
        if not type(failed.thread).__module__.startswith("tensorboard."):
            self._reported(failed)

    def flush(self) -> None:
        with naming(self.folder):
            self.writer.flush()

    def close(self) -> None:
        try:
            with naming(self.folder):
                self.writer.close()
        finally:
            threading.excepthook = self._reported


def _put_in_the_past(folder: Path) -> None:
    """TensorBoard reads a run's files by their names, which begin with the second of their making.

    Two processes of one second, or a clock that was set back, would be read in the wrong order, and what the earlier
    one purges would be the work of the later one. Files that do not come before now are numbered from 0 instead.
    """
    files = sorted(folder.glob(f"{_EVENTS}*"))
    if files and files[-1].name >= f"{_EVENTS}{int(time.time()):010d}":
        with naming(folder):
            for number, file in enumerate(files):
                file.rename(folder / f"{_EVENTS}{number:010d}")


class AlertFile:
    """One JSON object per alert and line. It begins with the alerts of the checkpoint that is continued, if any.

    An empty file says that every update was judged and nothing was found.
    """

    def __init__(self, path: Path, known: Iterable[Alert]) -> None:
        self.path = path
        write_atomically(path, "".join(f"{alert.as_json()}\n" for alert in known))

    def write(self, alert: Alert) -> None:
        with naming(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(f"{alert.as_json()}\n")


class Listener(KVWriter):
    """Hands every row of metrics on."""

    def __init__(self, show: Callable[[dict[str, float]], None]) -> None:
        self.show = show

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.show({key: _number(value) for key, value in key_values.items()})

    def close(self) -> None:
        """Nothing is held open."""


def make_logger(
    progress: Path, tensorboard: Path, resume_at: int | None, show: Callable[[dict[str, float]], None]
) -> Logger:
    """SB3's logger with our three outputs; `resume_at` is the step of the checkpoint that is continued."""
    rows = ProgressFile(progress, resume_at)
    outputs: list[KVWriter] = [rows, TensorBoardFile(tensorboard, resume_at, rows.pace), Listener(show)]
    return Logger(folder=None, output_formats=outputs)


def _number(value: Any) -> float:
    return float(np.asarray(value))
