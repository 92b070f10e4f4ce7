"""runs/<name>/: one directory per run, used by one process at a time.

config.yaml          the whole config              run.json     versions, seed, fingerprints, openings of the test split
scaler.json          what was fitted on train      progress.csv every logged metric, one row per update
bars.npz             times and closes it was trained on
checkpoints/<update>/  model.zip and the env's state    best/   the checkpoint with the best validation score
backtest/<split>/    results                        tensorboard/, report.html
alerts.jsonl         what the health rules said     audit.md, audit.json

A run that a search has found has the number of settings that were tried as `trials` in run.json.
"""

import errno
import fcntl
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import numpy as np

import leeward
from leeward.config.load import dump_config, read_config
from leeward.config.run import RunConfig
from leeward.config.trading import DataConfig
from leeward.durable import is_leftover, naming, put_back, read_object, sha256, write_atomically
from leeward.errors import CheckpointError, RunDirectoryError, printable
from leeward.market import Market, Scaler, fit_scaler, load, prepare
from leeward.training.trained_on import TrainedOn

__all__ = ["RunDir", "new_folder", "refuse_links"]

_VERSIONED = ("torch", "numpy", "stable-baselines3", "gymnasium", "numba")
_CHECKPOINT = re.compile("[0-9]{8,18}")  # the number of updates, as training writes it
_LARGEST_LOCK = 32  # bytes: a number of a process
# Of run.json: what its entries are, where others are read.
_ENTRIES: dict[str, type] = {
    "versions": dict, "openings": list, "sha256": dict, "data_fingerprint": str, "parent": dict, "extensions": list,
    "trials": int,
}  # fmt: skip


def new_folder(parent: Path, name: str) -> Path:
    """An empty folder of its own for one run, also where two start in the same second."""
    for ending in ("", *(f"-{number}" for number in range(2, 1000))):
        path = parent / f"{name}{ending}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        return path
    raise RunDirectoryError(f"{parent / name}: a thousand runs of this name began at once; choose a --run-dir")


def refuse_links(paths: Iterable[Path]) -> None:
    """What is written, cleared and removed in a run stays in it: a directory from elsewhere may hold links."""
    for path in paths:
        if path.is_symlink():
            raise RunDirectoryError(
                f"{path}: a link to {os.readlink(path)!r}; what belongs to a run lies in its directory: "
                "replace the link by what it leads to, if you trust it"
            )


class RunDir:
    """Paths of a run, and the small files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file, self.run_file = path / "config.yaml", path / "run.json"
        self.scaler_file, self.progress_file = path / "scaler.json", path / "progress.csv"
        self.bars_file = path / "bars.npz"
        self.alerts_file = path / "alerts.jsonl"
        self.checkpoints, self.best, self.tensorboard = path / "checkpoints", path / "best", path / "tensorboard"
        self.lock_file = path / ".lock"
        self._held: os.stat_result | None = None  # the lock file, while this process holds it
        self._lock: IO[str] | None = None  # the same, open

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunDir":
        """A new directory; one that already holds a run is refused."""
        run = cls(path)
        run._refuse_second()
        path.mkdir(parents=True, exist_ok=True)
        run._refuse_links()
        with run.locked():  # of two that start at once, one finds the run of the other
            run._refuse_second()
            text = dump_config(config)
            run.update_record(
                seed=config.seed,
                versions=_versions(),
                machine=f"{platform.machine()}, {os.cpu_count()} cores",
                command=printable(" ".join(["leeward", *sys.argv[1:]])),  # a path may have bytes that are no text
                openings=[],
                sha256={run.config_file.name: sha256(text.encode())},
            )
            write_atomically(run.config_file, text)  # last: where it is, there is a whole run
        return run

    def _refuse_second(self) -> None:
        if self.config_file.exists():
            raise RunDirectoryError(
                f"{self.path}: holds a run already; continue it with --resume {self.path}, choose another --run-dir, "
                "or delete it"
            )

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        run = cls(path)
        if not run.config_file.is_file():
            if (path / "population.jsonl").is_file():
                raise RunDirectoryError(f"{path}: a population; its best run is {path / 'best'}, when it has finished")
            raise RunDirectoryError(f"{path}: no run here (no config.yaml); `leeward train --run-dir {path}` makes one")
        run._refuse_links()
        if not run.run_file.is_file():
            raise RunDirectoryError(
                f"{run.run_file}: missing, and with it the sums of the run's files and the openings of its test split; "
                "restore it from a copy"
            )
        return run

    def _refuse_links(self) -> None:
        own = (self.lock_file, self.path / ".record-lock", self.checkpoints, self.best, self.tensorboard)
        below = (path for folder in (self.checkpoints, self.path / "backtest") for path in (folder, *folder.glob("*")))
        refuse_links((*own, *below))

    def config(self) -> RunConfig:
        self._check_sum(self.config_file)
        return read_config(self.config_file)

    def _check_sum(self, path: Path) -> None:
        """A file that training depends on is what the run wrote; one of an earlier version has no sum."""
        expected = self.record().get("sha256", {}).get(path.name)
        allowed = expected if isinstance(expected, list) else [expected]
        if expected is not None and path.is_file() and sha256(path.read_bytes()) not in allowed:
            raise RunDirectoryError(
                f"{path}: changed since this run wrote it (its SHA-256 in {self.run_file.name} is another one); "
                "restore it, or start a new run"
            )

    def changed_versions(self) -> list[str]:
        """What has another version than when the run began, in words: numbers may then differ in their last bits."""
        known, now = self.record().get("versions", {}), _versions()
        return [
            f"{name} {known[name]} then, {now[name]} now" for name in now if known.get(name, now[name]) != now[name]
        ]

    def record(self) -> dict[str, Any]:
        """run.json."""
        if not self.run_file.is_file():
            return {}
        try:
            record = read_object(self.run_file)
        except ValueError as error:
            raise RunDirectoryError(f"{self.run_file}: {error}; restore it from a copy") from None
        for name, kind in _ENTRIES.items():
            if name in record and not isinstance(record[name], kind):
                raise RunDirectoryError(
                    f"{self.run_file}: {name} must be a {kind.__name__}, got {record[name]!r:.80}; repair the file"
                )
        before = record.get("parent", {}).get("openings", 0)
        if type(before) is not int:
            raise RunDirectoryError(f"{self.run_file}: parent.openings must be a number, got {before!r:.80}; repair it")
        return record

    def update_record(self, **entries: Any) -> None:
        with self.edited_record() as record:
            record.update(entries)

    @contextmanager
    def edited_record(self) -> Iterator[dict[str, Any]]:
        """run.json to read and to change. Other threads and processes wait meanwhile, so that no entry is lost."""
        # A file of its own: `locked` is held for hours, and run.json itself is replaced when it is written.
        lock = self.path / ".record-lock"
        with _open_lock(lock) as file:
            _lock(file, fcntl.LOCK_EX)
            record = self.record()
            yield record
            write_atomically(self.run_file, json.dumps(record, indent=1) + "\n")

    def save_scaler(self, scaler: Scaler) -> None:
        state = {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in scaler.state_dict().items()
        }
        text = json.dumps(state, indent=1) + "\n"
        write_atomically(self.scaler_file, text)
        with self.edited_record() as record:
            record["sha256"] = dict(record.get("sha256", {})) | {self.scaler_file.name: sha256(text.encode())}

    def scaler(self) -> Scaler:
        if not self.scaler_file.is_file():
            raise RunDirectoryError(
                f"{self.path}: no scaler.json, so nothing was trained here; run `leeward train` first"
            )
        try:
            return Scaler.from_state(read_object(self.scaler_file))
        except (ValueError, KeyError, TypeError, CheckpointError) as error:
            raise RunDirectoryError(f"{self.scaler_file}: not a scaler ({error!r}); restore it from a copy") from None

    def checked_scaler(self) -> Scaler:
        """The scaler, if it is what the run wrote."""
        self._check_sum(self.scaler_file)
        return self.scaler()

    def market(self, bars: str | Path | None = None, settings: Mapping[str, Any] | None = None) -> Market:
        """Bars as the run's agent sees them, scaled by scaler.json: its own ones, or others.

        Its own are refused when they have changed, and when what is fitted on them is no longer what was fitted then.
        Others are matched by the names of their assets; `settings` are keys of `data` that say how to read them.
        """
        self.refuse_without_market()
        config, trained_on = self.config().data, self.record().get("data_fingerprint")
        if bars is None and trained_on is None and not self.scaler_file.is_file():
            return prepare(config)  # training has not begun
        saved = self.scaler()
        if bars is None:
            market = prepare(config, scaler=saved)
        else:
            reading = DataConfig.read(config.model_dump() | dict(settings or {}), where="--set data")
            market = prepare(reading, bars=self.trained_on().fitted(load(bars, reading)), scaler=saved)
        if bars is None and trained_on is not None:
            self._check_bars(market, trained_on)
        # The scales of a run that goes on from another one are those it has learned with.
        if (bars is None or market.fingerprint == trained_on) and "parent" not in self.record():
            self._check_fit(saved, fit_scaler(market.bars, config))
        self._check_sum(self.scaler_file)
        return market

    def refuse_without_market(self) -> None:
        """A run on an env of Gymnasium has nothing to backtest on, or to report."""
        gym = self.config().gym
        if gym is not None:
            raise RunDirectoryError(
                f"{self.path}: trained on {gym.id}, an env of Gymnasium: there is no market, so no backtest and no "
                "report; its scores are in progress.csv (eval/mean_reward)"
            )

    def bind(self, market: Market) -> None:
        """Write down the bars and scales that the run is trained with; a run that has begun takes no others."""
        trained_on = self.record().get("data_fingerprint")
        if trained_on is not None:
            self._check_bars(market, trained_on)
        if self.scaler_file.is_file():
            different = self.scaler().difference(market.scaler)
            if different is not None:
                raise RunDirectoryError(
                    f"{self.scaler_file}: this run has begun with other scales: {different}; "
                    "go on with RunDir.market(), or start a new run"
                )
        else:
            self.save_scaler(market.scaler)
        if not self.bars_file.is_file():
            TrainedOn.of(market).write(self.bars_file)
        self.update_record(data_fingerprint=market.fingerprint)

    def extend(self, total_steps: int, reached: int) -> None:
        """Let a run go on to `total_steps`; its schedules then run over the new total from the point reached."""
        config = self.config()
        if total_steps <= reached:
            raise RunDirectoryError(
                f"{self.path}: has {reached} steps already; --steps is the new total and must be above it, "
                f"got {total_steps}"
            )
        longer = config.model_copy(update={"ppo": config.ppo.model_copy(update={"total_steps": total_steps})})
        text, name = dump_config(longer), self.config_file.name
        with self.edited_record() as record:
            change = {"from_steps": config.ppo.total_steps, "to_steps": total_steps, "reached": reached}
            record.setdefault("extensions", []).append(change)
            # Both sums, and before the file: whoever is killed between the two leaves a run that can be read.
            known = [sha256(self.config_file.read_bytes()), sha256(text.encode())]
            record["sha256"] = dict(record.get("sha256", {})) | {name: known}
        write_atomically(self.config_file, text)

    def inherit(self, parent: "RunDir") -> None:
        """Written down before training from another run's checkpoint: what that one has seen, and its scales."""
        for i, past in enumerate(parent.lineage()):
            past.write(self.path / f"inherited-{i}.npz")
        self.save_scaler(parent.scaler())
        self.update_record(
            parent={"run": str(parent.path.resolve()), "openings": len(parent.record().get("openings", []))}
        )

    def lineage(self) -> list[TrainedOn]:
        """What this run was trained on, and the runs it was trained from."""
        return [self.trained_on(), *(TrainedOn.read(path) for path in sorted(self.path.glob("inherited-*.npz")))]

    def trained_on(self) -> TrainedOn:
        """What the agent has seen in training; from the bars themselves where an earlier version kept no record."""
        return TrainedOn.read(self.bars_file) if self.bars_file.is_file() else TrainedOn.of(self.market())

    def _check_bars(self, market: Market, trained_on: str) -> None:
        if market.fingerprint != trained_on:
            raise RunDirectoryError(
                f"{self.path}: the bars of {market.bars.source} have changed since this run began "
                f"(fingerprint {trained_on[:12]} then, {market.fingerprint[:12]} now); restore them, or start a new "
                "run; `leeward backtest --data` tests this one on other bars"
            )

    def _check_fit(self, saved: Scaler, fitted: Scaler) -> None:
        # Sums are rounded differently on other machines, by parts in 1e15; then the saved one is used all the same.
        different = saved.difference(fitted, tolerance=1e-9)
        if different is not None:
            then = self.record().get("versions", {}).get("leeward", "an unknown version")
            raise RunDirectoryError(
                f"{self.scaler_file}: when the train split is fitted now, {different}; the bars, config.yaml, this "
                f"file or Leeward ({then} then, {leeward.__version__} now) has changed since the run began: restore "
                "what was changed, or start a new run"
            )

    def checkpoint_list(self) -> list[Path]:
        """Whole checkpoints, oldest first; a directory is renamed into place only when it is complete."""
        found = (path for path in self.checkpoints.glob("*") if _CHECKPOINT.fullmatch(path.name))
        return sorted(found, key=lambda path: int(path.name))

    def best_checkpoint(self) -> Path:
        """The checkpoint that is backtested; while a newer one takes its place, the old one is read beside it."""
        beside = self.best.with_name(f".{self.best.name}.old")
        if not self.best.is_dir() and not beside.is_dir():
            raise RunDirectoryError(
                f"{self.path}: no scored checkpoint; train the run first, or continue it with --resume {self.path}"
            )
        return self.best

    def sweep(self) -> None:
        """Remove what a killed process left half written, and nothing that is whole."""
        for old in (*self.path.glob(".*.old"), *self.checkpoints.glob(".*.old")):
            put_back(old.with_name(old.name.removeprefix(".").removesuffix(".old")))
        for path in (*self.path.glob(".*"), *self.checkpoints.glob(".*")):
            if not is_leftover(path.name):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def prune(self, keep_last: int) -> None:
        for path in self.checkpoint_list()[:-keep_last]:
            # Out of sight first: one that is half removed must not look like a checkpoint.
            gone = path.with_name(f".{path.name}.pruned")
            os.replace(path, gone)
            if gone.is_dir() and not gone.is_symlink():
                shutil.rmtree(gone)
            else:  # put there by somebody else: a checkpoint is a folder
                gone.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process; the lock dies with the process, however it ends."""
        with _open_lock(self.lock_file) as file:
            try:
                _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunDirectoryError(
                    f"{self.path}: process {file.read(_LARGEST_LOCK).strip() or 'unknown'} is using this run; "
                    "wait for it, or choose another directory"
                ) from None
            found = os.fstat(file.fileno())
            if found.st_size > _LARGEST_LOCK:
                raise RunDirectoryError(f"{self.lock_file}: not a lock of ours ({found.st_size} bytes); move it away")
            _sign(file)
            self._held, self._lock = found, file
            try:
                yield
            finally:
                self._held = self._lock = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Another process may hold the directory inside, though this one is `locked`; it must have ended by then."""
        assert self._lock is not None
        file, held = self._lock, self._held
        _lock(file, fcntl.LOCK_UN)
        self._held = None
        yield
        _lock(file, fcntl.LOCK_EX)
        _sign(file)
        self._held = held

    def check_held(self) -> None:
        """Where this process holds the run, it is still the one at this path: not deleted, moved, or begun anew."""
        if self._held is None:
            return
        try:
            now = self.lock_file.stat()
        except FileNotFoundError:
            raise RunDirectoryError(
                f"{self.path}: deleted or moved while it was trained; a run that was moved is continued where it is "
                "now, with --resume"
            ) from None
        if (now.st_dev, now.st_ino) != (self._held.st_dev, self._held.st_ino):
            raise RunDirectoryError(
                f"{self.path}: another run has taken its place while it was trained; nothing more is written here"
            )


def _open_lock(path: Path) -> IO[str]:
    """A file to lock, made where there is none: no link, whose target would be written to, and no pipe to wait for."""

    def plain(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)

    try:
        return open(path, "a+", opener=plain)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR, None):  # None: Python itself, of a pipe
            raise
        raise RunDirectoryError(f"{path}: not a lock of ours, but a link, a pipe or a folder; move it away") from None


def _lock(file: IO[str], how: int) -> None:
    try:
        with naming(Path(file.name)):
            fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
            raise
        raise RunDirectoryError(
            f"{file.name}: this file system has no locks ({error.strerror}), so that two processes could write one "
            "run; put the run on a local disk"
        ) from None


def _sign(file: IO[str]) -> None:
    """Say in the lock file whose it is."""
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()


def _versions() -> dict[str, str]:
    own = {"leeward": leeward.__version__, "python": platform.python_version()}
    return own | {name: version(name) for name in _VERSIONED}
