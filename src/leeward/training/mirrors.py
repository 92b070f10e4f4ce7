"""A copy of metrics and alerts in a tracker of one's own, beside progress.csv and TensorBoard: `leeward train --track`.

Trackio writes to its own local place (TRACKIO_DIR), MLflow to `mlflow.db` in the run or where MLFLOW_TRACKING_URI says.
A mirror is written to and never read: what a resumed run trains again after a kill stands there twice.
"""

import importlib.util
import os
import sys
import time
from abc import abstractmethod
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from stable_baselines3.common.logger import KVWriter

from leeward.errors import MissingExtra
from leeward.telemetry.alerts import Alert

__all__ = ["MIRRORS", "MLflowMirror", "Mirror", "TrackioMirror", "open_mirror", "require"]

_PROJECT = "leeward"


class Mirror(KVWriter):
    """An output of SB3's logger that takes alerts as well."""

    @abstractmethod
    def __init__(self, run: Path, config: dict[str, Any]) -> None:
        """Of the run in this directory: a new one of the tracker, or the one it has already."""

    @abstractmethod
    def alert(self, alert: Alert, step: int) -> None:
        """An alert, at so many env steps."""


class TrackioMirror(Mirror):
    """A run of Trackio's project `leeward`, with alerts as its own alerts; nothing leaves the machine."""

    def __init__(self, run: Path, config: dict[str, Any]) -> None:
        self.trackio: Any = importlib.import_module("trackio")
        with redirect_stdout(sys.stderr):  # what Trackio says is no part of the command's own output
            self.run = self.trackio.init(
                project=_PROJECT, name=run.name, config=config, resume="allow", embed=False, auto_log_gpu=False,
                auto_log_cpu=False,
            )  # fmt: skip

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.run.log({key: float(np.asarray(value)) for key, value in key_values.items()}, step=step)

    def alert(self, alert: Alert, step: int) -> None:
        with redirect_stdout(sys.stderr):
            self.run.alert(alert.name, alert.line, self.trackio.AlertLevel(alert.severity))

    def close(self) -> None:
        with redirect_stdout(sys.stderr):
            self.run.finish()


class MLflowMirror(Mirror):
    """A run of MLflow's experiment `leeward`; an alert is a tag `alert/<name>` with its line."""

    def __init__(self, run: Path, config: dict[str, Any]) -> None:
        folder = quote(str(run.resolve()))  # an apostrophe would end MLflow's filter, a ? the path of its database
        uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        self.entities: Any = importlib.import_module("mlflow.entities")
        self.client: Any = importlib.import_module("mlflow.tracking").MlflowClient(uri)
        experiment = self.client.get_experiment_by_name(_PROJECT)
        number = self.client.create_experiment(_PROJECT) if experiment is None else experiment.experiment_id
        known = self.client.search_runs([number], f"tags.`leeward.run` = '{folder}'")
        made = known[0] if known else self.client.create_run(number, run_name=run.name, tags={"leeward.run": folder})
        self.id = made.info.run_id
        if known:
            self.client.update_run(self.id, status="RUNNING")
        for section, values in config.items():
            self.client.log_param(self.id, section, str(values))

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        now = int(1000 * time.time())
        rows = [self.entities.Metric(key, float(np.asarray(value)), now, step) for key, value in key_values.items()]
        self.client.log_batch(self.id, metrics=rows)

    def alert(self, alert: Alert, step: int) -> None:
        self.client.set_tag(self.id, f"alert/{alert.name}", alert.line)

    def close(self) -> None:
        self.client.set_terminated(self.id)


MIRRORS: dict[str, tuple[type[Mirror], tuple[str, ...]]] = {  # with the modules that each needs
    "trackio": (TrackioMirror, ("trackio",)),
    "mlflow": (MLflowMirror, ("mlflow", "sqlalchemy", "alembic")),
}


def require(name: str) -> None:
    """Raise where the packages of this tracker are not installed, before anything is trained."""
    for module in MIRRORS[name][1]:
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(module, name, f"--track {name}")


def open_mirror(name: str, run: Path, config: dict[str, Any]) -> Mirror:
    """The tracker's copy of the run in this directory, a new one or the one it has already."""
    require(name)
    return MIRRORS[name][0](run, config)
