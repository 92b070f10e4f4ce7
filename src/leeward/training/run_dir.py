"""runs/<name>/: one directory per run, used by one process at a time.

config.yaml          the whole config              run.json     versions, seed, fingerprints, openings of the test split
scaler.json          what was fitted on train      progress.csv every logged metric, one row per update
checkpoints/<update>/  model.zip and the env's state    best/   the checkpoint with the best validation score
backtest/<split>/    results                        tensorboard/, report.html
"""

import fcntl
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import leeward
from leeward.config.load import dump_config, load_config
from leeward.config.run import RunConfig
from leeward.errors import RunDirectoryError
from leeward.market import Market, Scaler, prepare

__all__ = ["RunDir", "write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """The old file or the new one, never half of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


class RunDir:
    """Paths of a run, and the small files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file, self.run_file = path / "config.yaml", path / "run.json"
        self.scaler_file, self.progress_file = path / "scaler.json", path / "progress.csv"
        self.checkpoints, self.best, self.tensorboard = path / "checkpoints", path / "best", path / "tensorboard"

    @classmethod
    def create(cls, path: Path, config: RunConfig) -> "RunDir":
        """A new directory; one that already holds a run is refused."""
        run = cls(path)
        if run.config_file.exists():
            raise RunDirectoryError(
                f"{path}: holds a run already; continue it with --resume {path}, choose another --run-dir, or delete it"
            )
        path.mkdir(parents=True, exist_ok=True)
        write_atomically(run.config_file, dump_config(config))
        run.update_record(
            seed=config.seed,
            versions={"leeward": leeward.__version__, "python": platform.python_version()}
            | {name: version(name) for name in ("torch", "numpy", "stable-baselines3", "gymnasium", "numba")},
            machine=f"{platform.machine()}, {os.cpu_count()} cores",
            command=" ".join(["leeward", *sys.argv[1:]]),
            openings=[],
        )
        return run

    @classmethod
    def open(cls, path: Path) -> "RunDir":
        run = cls(path)
        if not run.config_file.is_file():
            raise RunDirectoryError(f"{path}: no run here (no config.yaml); `leeward train --run-dir {path}` makes one")
        return run

    def config(self) -> RunConfig:
        return load_config(self.config_file)

    def record(self) -> dict[str, Any]:
        """run.json."""
        if not self.run_file.is_file():
            return {}
        try:
            record = json.loads(self.run_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunDirectoryError(f"{self.run_file}: not JSON ({error}); delete or repair it") from None
        if not isinstance(record, dict):
            raise RunDirectoryError(f"{self.run_file}: expected a JSON object, got {type(record).__name__}")
        return record

    def update_record(self, **entries: Any) -> None:
        write_atomically(self.run_file, json.dumps(self.record() | entries, indent=1) + "\n")

    def save_scaler(self, scaler: Scaler) -> None:
        state = {
            key: value.tolist() if isinstance(value, np.ndarray) else value
            for key, value in scaler.state_dict().items()
        }
        write_atomically(self.scaler_file, json.dumps(state, indent=1) + "\n")

    def scaler(self) -> Scaler:
        if not self.scaler_file.is_file():
            raise RunDirectoryError(
                f"{self.path}: no scaler.json, so nothing was trained here; run `leeward train` first"
            )
        return Scaler.from_state(json.loads(self.scaler_file.read_text(encoding="utf-8")))

    def market(self) -> Market:
        """The bars the run was trained on; bars that have changed since are refused."""
        market, trained_on = prepare(self.config().data), self.record().get("data_fingerprint")
        if trained_on is not None and market.fingerprint != trained_on:
            raise RunDirectoryError(
                f"{self.path}: the bars of {market.bars.source} have changed since this run began "
                f"(fingerprint {trained_on[:12]} then, {market.fingerprint[:12]} now); restore them, or start a new "
                "run; `leeward backtest --data` tests this one on other bars"
            )
        return market

    def checkpoint_list(self) -> list[Path]:
        """Whole checkpoints, oldest first; a directory is renamed into place only when it is complete."""
        return sorted(path for path in self.checkpoints.glob("*") if path.name.isdigit())

    def best_checkpoint(self) -> Path:
        """The checkpoint that is backtested."""
        if not (self.best / "model.zip").is_file():
            raise RunDirectoryError(
                f"{self.path}: no scored checkpoint; train the run first, or continue it with --resume {self.path}"
            )
        return self.best

    def sweep(self) -> None:
        """Remove what a killed process left half written."""
        for path in (*self.path.glob(".*.*"), *self.checkpoints.glob(".*")):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def prune(self, keep_last: int) -> None:
        for path in self.checkpoint_list()[:-keep_last]:
            shutil.rmtree(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the directory for this process; the lock dies with the process, however it ends."""
        with (self.path / ".lock").open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise RunDirectoryError(
                    f"{self.path}: process {file.read().strip() or 'unknown'} is using this run; "
                    "wait for it, or choose another directory"
                ) from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield
