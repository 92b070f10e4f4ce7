"""Is everything in a run directory what was written? Read all of it, change nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path

from leeward.backtest import read_backtest
from leeward.durable import read_lines
from leeward.errors import LeewardError, RunDirectoryError
from leeward.training.checkpoints import load_model, read_files, read_trainer_state
from leeward.training.logs import ProgressFile
from leeward.training.run_dir import RunDir
from leeward.training.trained_on import TrainedOn

__all__ = ["examine_run"]


def examine_run(run: RunDir) -> Iterator[tuple[Path, str | None]]:
    """Each part of a run, and what is wrong with it; None where it is good."""
    yield from _tried(run.run_file, run.record) if run.run_file.is_file() else _missing(run.run_file)
    yield from _tried(run.config_file, run.config)
    if run.scaler_file.is_file() or run.scaler_file.name in _known(run):
        yield from _tried(run.scaler_file, run.checked_scaler)
    for file in (run.bars_file, *sorted(run.path.glob("inherited-*.npz"))):
        if file.is_file():
            yield from _tried(file, lambda file=file: TrainedOn.read(file))  # type: ignore[misc]
    places = [*run.checkpoint_list(), *([run.best] if run.best.is_dir() else [])]
    if places and not run.progress_file.is_file():
        yield from _missing(run.progress_file)
    else:
        yield from _tried(run.progress_file, lambda: ProgressFile.rows_of(run.progress_file))
    for file in (run.alerts_file, run.path / "population.jsonl"):
        if file.is_file():
            yield from _tried(file, lambda file=file: read_lines(file))  # type: ignore[misc]
    for place in places:
        yield from _tried(place, lambda place=place: _read(place))  # type: ignore[misc]
    for file in sorted(run.path.glob("backtest/*/metrics.json")):
        yield from _tried(file.parent, lambda file=file: read_backtest(file.parent))  # type: ignore[misc]


def _known(run: RunDir) -> dict[str, object]:
    """Files that the run has the sums of; none where run.json, which is named for it, cannot be read."""
    try:
        return dict(run.record().get("sha256", {}))
    except RunDirectoryError:
        return {}


def _read(place: Path) -> None:
    files = read_files(place)
    load_model(files)
    read_trainer_state(files)


def _missing(path: Path) -> Iterator[tuple[Path, str | None]]:
    yield path, f"{path}: missing; restore it from a copy"


def _tried(path: Path, read: Callable[[], object]) -> Iterator[tuple[Path, str | None]]:
    try:
        read()
    except LeewardError as error:
        yield path, str(error)
    else:
        yield path, None
