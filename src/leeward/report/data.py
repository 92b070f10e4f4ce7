"""What a report is made of: the files of a run directory, each one optional but a backtest."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from leeward.backtest.files import StoredBacktest, read_backtest
from leeward.backtest.judgement import judged_split
from leeward.backtest.robustness import RobustnessCurve, read_curve
from leeward.durable import LARGEST_JSON, LARGEST_LOG, from_cell, read_bounded, read_lines, read_object
from leeward.errors import RunDirectoryError, one_line, printable
from leeward.telemetry.alerts import AlertRecord

__all__ = ["ReportData", "load_run"]

_SPLITS = ("train", "validation", "test")  # in the order of time; others follow by name


@dataclass(frozen=True, eq=False)
class ReportData:
    """One run. What is None or empty was off or has not happened yet, and its section is left out."""

    name: str
    splits: dict[str, StoredBacktest]
    config: str | None  # config.yaml as it was written
    progress: pd.DataFrame | None  # one row per logged update
    alerts: tuple[AlertRecord, ...]
    run: dict[str, Any]  # run.json: versions, seed, fingerprints, openings of the test split
    robustness: dict[str, RobustnessCurve] = field(default_factory=dict)  # by split
    audit: dict[str, Any] | None = None  # audit.json: findings, passed, not_run
    population: tuple[dict[str, Any], ...] = ()  # population.jsonl: the events of the population it was found by

    @property
    def judged(self) -> str:
        return judged_split({name: stored.metrics for name, stored in self.splits.items()})

    @property
    def backtest(self) -> StoredBacktest:
        """Of the judged split."""
        return self.splits[self.judged]


def load_run(run_dir: Path) -> ReportData:
    """Read runs/<name>/: backtest/<split>/*, config.yaml, run.json, progress.csv, alerts.jsonl, audit.json and, where a
    search has found it, population.jsonl."""
    if not run_dir.is_dir():
        raise RunDirectoryError(f"{run_dir}: no such run directory; `leeward train` makes one")
    found = sorted(path.parent.name for path in run_dir.glob("backtest/*/metrics.json"))
    if not found:
        raise RunDirectoryError(f"{run_dir}: no finished backtest in it; run `leeward backtest` first")
    names = [name for name in _SPLITS if name in found] + [name for name in found if name not in _SPLITS]
    config, run, audit = run_dir / "config.yaml", run_dir / "run.json", run_dir / "audit.json"
    return ReportData(
        name=printable(run_dir.resolve().name),
        splits={name: read_backtest(run_dir / "backtest" / name) for name in names},
        config=_text(config) if config.is_file() else None,
        progress=_progress(run_dir / "progress.csv"),
        alerts=_lines(run_dir / "alerts.jsonl"),
        population=_lines(run_dir / "population.jsonl"),
        run=_json(run) if run.is_file() else {},
        audit=_audit(audit) if audit.is_file() else None,
        robustness={name: curve for name in names if (curve := read_curve(run_dir / "backtest" / name)) is not None},
    )


def _progress(path: Path) -> pd.DataFrame | None:
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        frame = pd.read_csv(io.BytesIO(read_bounded(path, LARGEST_LOG))).rename(columns=from_cell).astype(float)
    except ValueError as error:
        raise RunDirectoryError(f"{path}: not the log of a run ({one_line(error)}); delete or repair it") from None
    return frame if len(frame) > 1 else None  # one update is a point, not a curve


def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    return tuple(read_lines(path)) if path.is_file() else ()


def _audit(path: Path) -> dict[str, Any]:
    audit = _json(path)
    for name in ("findings", "passed", "not_run"):
        if not isinstance(audit.get(name), list):
            raise RunDirectoryError(f"{path}: {name} must be a list; run `leeward audit` again")
    if not all(isinstance(finding, dict) for finding in audit["findings"]):
        raise RunDirectoryError(f"{path}: every finding must be an object; run `leeward audit` again")
    return audit


def _text(path: Path) -> str:
    try:
        return read_bounded(path, LARGEST_JSON).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunDirectoryError(f"{path}: byte {error.start} is not UTF-8 text; delete or repair it") from None


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_object(path)
    except ValueError as error:
        raise RunDirectoryError(f"{path}: {error}; restore it from a copy") from None
