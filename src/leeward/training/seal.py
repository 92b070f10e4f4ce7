"""The seal on a run's test split: who tests on it leaves an entry in run.json and is told how many came before."""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leeward.errors import RunDirectoryError
from leeward.market import Market
from leeward.market.tape import Tape, same_bars
from leeward.training.run_dir import RunDir

__all__ = ["Opening", "open_seal"]


@dataclass(frozen=True, slots=True)
class Opening:
    """One look at the test bars of a run, as it stands in run.json."""

    time: str  # ISO, UTC
    split: str  # what they were called
    data: str  # fingerprint of the bars
    earlier: int  # openings of the same bars before this one, by this run and the runs beside it


def open_seal(run: RunDir, market: Market, split: str) -> Opening | None:
    """Called before an agent is shown a split: writes the opening down; None where no test bar of the run is in it."""
    window = market.split(split)
    seen = Tape.of(market.bars).part(window.start, window.end)
    # By the run's own cut and by what the bars hold: another file, name, order or cut opens the seal too.
    if not any(same_bars(past.test, seen) for past in run.lineage()):
        return None
    beside = sum(len(_openings(path)) for path in _runs_beside(run) if _shows(path, seen, market.fingerprint))
    with run.edited_record() as record:
        openings = record.setdefault("openings", [])
        opening = Opening(
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            split=split,
            data=market.fingerprint,
            earlier=beside + _of_parent(run, record) + len(openings),
        )
        openings.append(asdict(opening))
    return opening


def _of_parent(run: RunDir, record: dict[str, Any]) -> int:
    """Openings by the run it was trained from, as they were then, where that one does not lie beside it."""
    parent = record.get("parent", {})
    beside = Path(str(parent.get("run", run.path))).parent == run.path.resolve().parent
    return 0 if beside else int(parent.get("openings", 0))


def _runs_beside(run: RunDir) -> list[Path]:
    here = run.path.resolve()
    return [file.parent for file in here.parent.glob("*/run.json") if file.parent != here]


def _openings(path: Path) -> list[Any]:
    try:
        openings = RunDir(path).record().get("openings", [])
    except RunDirectoryError:  # another program's run.json
        return []
    return [entry for entry in openings if isinstance(entry, dict)]


def _shows(path: Path, seen: Tape, fingerprint: str) -> bool:
    """Whether the sealed bars of another run are among these; every opening of that run was one of them."""
    other = RunDir(path)
    if other.bars_file.is_file():
        return same_bars(other.trained_on().test, seen)
    try:  # an earlier version kept the fingerprint alone
        return bool(other.record().get("data_fingerprint") == fingerprint)
    except RunDirectoryError:
        return False
