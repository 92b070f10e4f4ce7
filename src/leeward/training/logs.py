"""Where metrics go: progress.csv, TensorBoard, and the console. On resume they are cut back to the checkpoint."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from stable_baselines3.common.logger import KVWriter, Logger
from torch.utils.tensorboard import SummaryWriter

from leeward.training.run_dir import write_atomically

__all__ = ["ProgressFile", "TensorBoardFile", "make_logger"]


class ProgressFile(KVWriter):
    """A CSV with one row per update. A new column rewrites the file; rows are never lost or doubled."""

    def __init__(self, path: Path, resume_at: int | None) -> None:
        self.path = path
        self.rows: list[dict[str, str]] = []
        if resume_at is not None and path.is_file():
            text = path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]  # a process may have been killed inside its last line
            self.rows = [
                row
                for row in csv.DictReader(io.StringIO(whole))
                if int(float(row["time/total_timesteps"])) <= resume_at
            ]
        self.columns = list(dict.fromkeys(key for row in self.rows for key in row))
        self._rewrite()

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        row = {key: repr(_number(value)) for key, value in key_values.items()}
        self.rows.append(row)
        new = [key for key in row if key not in self.columns]
        if new:
            self.columns = sorted([*self.columns, *new])
            self._rewrite()
            return
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns, restval="", lineterminator="\n").writerow(row)

    def _rewrite(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        write_atomically(self.path, text.getvalue() if self.columns else "")

    def close(self) -> None:
        """Every row is on disk already."""


class TensorBoardFile(KVWriter):
    """Events for TensorBoard."""

    def __init__(self, folder: Path, resume_at: int | None) -> None:
        # purge_step hides what an interrupted process logged after the checkpoint it is resumed from.
        self.writer = SummaryWriter(str(folder), purge_step=None if resume_at is None else resume_at + 1)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        for key, value in key_values.items():
            if "tensorboard" not in (key_excluded[key] or ()):
                self.writer.add_scalar(key, _number(value), step)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()


class _Listener(KVWriter):
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
    outputs: list[KVWriter] = [
        ProgressFile(progress, resume_at),
        TensorBoardFile(tensorboard, resume_at),
        _Listener(show),
    ]
    return Logger(folder=None, output_formats=outputs)


def _number(value: Any) -> float:
    return float(np.asarray(value))
