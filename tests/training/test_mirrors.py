"""`--track`: a copy of metrics and alerts in Trackio's or MLflow's own local store; without the package one line."""

import importlib.util
import math
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

from leeward.errors import MissingExtra
from leeward.telemetry.alerts import Alert
from leeward.training.mirrors import MIRRORS, Mirror, open_mirror
from leeward.training.run_dir import RunDir

from ..support.tiny_runs import leeward_here, settings

ALERT = Alert("policy_jumped", "error", 3, "train/approx_kl", 2.0, 1.0, "KL is 2", "a large rate", "lower it")


@pytest.mark.parametrize("name", MIRRORS)
def test_without_the_package_one_line_says_what_to_install_and_nothing_is_trained(name: str, tmp_path) -> None:
    find = importlib.util.find_spec
    missing = MIRRORS[name][1][0]
    with mock.patch.object(importlib.util, "find_spec", lambda module: None if module == missing else find(module)):
        with pytest.raises(MissingExtra, match=rf"pip install 'leeward\[{name}\]'"):
            open_mirror(name, tmp_path, {})
        code, out, err = leeward_here("train", "--run-dir", str(tmp_path / "run"), "--track", name)
    assert code == 1 and out == "" and not (tmp_path / "run").exists()
    assert err.strip() == f"error: --track {name} needs the package {missing!r}: pip install 'leeward[{name}]'"


class Written(Mirror):
    """A tracker that keeps what it is given."""

    def __init__(self, run: Any, config: dict[str, Any]) -> None:
        self.run, self.config = run, config
        self.rows: list[tuple[int, dict[str, Any]]] = []
        self.alerts: list[tuple[int, str]] = []
        self.is_closed = False

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.rows.append((step, dict(key_values)))

    def alert(self, alert: Alert, step: int) -> None:
        self.alerts.append((step, alert.name))

    def close(self) -> None:
        self.is_closed = True


def test_a_tracker_gets_every_row_every_alert_and_an_end(tmp_path) -> None:
    made: list[Written] = []

    def make(run: Any, config: dict[str, Any]) -> Written:
        made.append(Written(run, config))
        return made[0]

    path = tmp_path / "run"
    with mock.patch.dict(MIRRORS, trackio=(make, ())):
        own = settings("ppo.learning_rate=0.0", "ppo.total_steps=480")
        code, _, err = leeward_here("train", "--run-dir", str(path), "--quiet", "--track", "trackio", *own)
    assert code == 0, err
    (mirror,) = made
    assert [step for step, _ in mirror.rows] == [160, 320, 480] and mirror.is_closed
    assert "train/approx_kl" in mirror.rows[0][1] and mirror.config["ppo"]["total_steps"] == 480
    told = RunDir.open(path).alerts_file.read_text()
    assert (160, "learning_rate_zero") in mirror.alerts and told.count("\n") == len(mirror.alerts)


def fill(mirror: Mirror) -> None:
    mirror.write({"train/loss": 0.5, "train/n_updates": 2}, {"train/loss": (), "train/n_updates": ()}, 160)
    mirror.alert(ALERT, 160)
    mirror.close()


def test_trackio_keeps_metrics_and_alerts_as_its_own(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="the extra `trackio` is not installed")
    from trackio.sqlite_storage import SQLiteStorage

    for _ in range(2):  # the second is the same run, resumed
        fill(open_mirror("trackio", tmp_path / "my-run", {"seed": 1}))
    rows = SQLiteStorage.get_logs("leeward", "my-run")
    assert [(row["step"], row["train/loss"], row["train/n_updates"]) for row in rows] == [(160, 0.5, 2.0)] * 2
    alert = SQLiteStorage.get_alerts("leeward")[0]
    assert (alert["title"], alert["level"]) == ("policy_jumped", "error") and "Try: lower it" in alert["text"]
    assert capsys.readouterr().out == "", "stdout is the command's own"


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of MLflow's own queries
@pytest.mark.parametrize("name", ["my-run", 'it\'s 100%20 "mine"?#'])
def test_mlflow_keeps_metrics_and_alerts_in_the_run(name, tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for module in MIRRORS["mlflow"][1]:
        pytest.importorskip(module, reason="the extra `mlflow` is not installed")
    from mlflow.tracking import MlflowClient

    path = tmp_path / name
    path.mkdir()
    for _ in range(2):
        fill(open_mirror("mlflow", path, {"seed": 1}))
    client = MlflowClient(f"sqlite:///{quote(str(path / 'mlflow.db'))}")
    experiment = client.get_experiment_by_name("leeward")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (
        (path / "mlflow.db").is_file()
        and run.info.run_name == name
        and run.data.params == {"seed": "1"}
        and run.info.status == "FINISHED"
    )
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert {(each.step, each.value) for each in history} == {(160, 0.5)}
    assert "Try: lower it" in run.data.tags["alert/policy_jumped"] and math.isclose(run.data.metrics["train/loss"], 0.5)
