"""The directory of a run: written whole or not at all, used by one process, and honest about its test split."""

import errno
import fcntl
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from leeward import durable
from leeward.config.load import load_config
from leeward.durable import write_atomically
from leeward.errors import RunDirectoryError
from leeward.market import Market, prepare
from leeward.telemetry.alerts import Alert
from leeward.training.checkpoints import read_trainer_state, write_checkpoint
from leeward.training.logs import AlertFile
from leeward.training.run_dir import RunDir, new_folder

SMALL = ("data.source=sample:synthetic", "data.n_bars=300", "data.features=[return_1]")


@pytest.fixture(scope="module")
def market() -> Market:
    return prepare(load_config(None, SMALL).data)


def new_run(path, *more: str) -> RunDir:
    return RunDir.create(path, load_config(None, [*SMALL, *more]))


def test_a_write_that_fails_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "run.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new, and then half of a pair: \ud800")
    assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"


class Agent:
    """As much of a model as a checkpoint asks for; one that is `broken` fails when half of it is written."""

    def __init__(self, name: str, broken: bool = False) -> None:
        self.name, self.broken = name, broken
        self.processes = self  # who knows the envs

    def save(self, file) -> None:
        file.write(self.name.encode())

    def env_state(self):
        if self.broken:
            raise RuntimeError("the disk is full")
        return {"clock": np.arange(3), "auto": True}


def test_a_checkpoint_that_fails_leaves_the_old_one_whole(tmp_path):
    place = tmp_path / "best"
    write_checkpoint(place, Agent("old"), {"best": None, "updates": 3})
    with pytest.raises(RuntimeError, match="disk is full"):
        write_checkpoint(place, Agent("new", broken=True), {"best": None, "updates": 6})
    assert (place / "model.zip").read_text() == "old" and read_trainer_state(place)["updates"] == 3
    write_checkpoint(place, Agent("new"), {"best": None, "updates": 6})
    assert (place / "model.zip").read_text() == "new" and read_trainer_state(place)["updates"] == 6
    names = ["env.safetensors", "model.zip", "sha256.json", "state.json"]
    assert sorted(path.name for path in place.iterdir()) == names
    assert len({path.stat().st_mode for path in place.iterdir()}) == 1


def test_a_directory_that_holds_a_run_is_not_made_again(tmp_path):
    new_run(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match="holds a run already"):
        new_run(tmp_path / "run", "seed=3")
    assert RunDir.open(tmp_path / "run").config().seed == 0


def test_a_run_is_used_by_one_process_at_a_time(tmp_path):
    run = new_run(tmp_path / "run")
    with run.locked(), pytest.raises(RunDirectoryError, match="is using this run"), RunDir.open(run.path).locked():
        pass
    with run.locked():
        pass


@pytest.mark.parametrize("place", ["best", "checkpoints/00000003"])
def test_a_process_that_ends_between_the_two_renames_of_an_exchange_loses_nothing(place, tmp_path):
    run = new_run(tmp_path / "run")
    write_checkpoint(run.path / place, Agent("old"), {"best": None, "updates": 3})
    renames = []

    def killed_after_one(source, target):
        if renames:
            os._exit(9)
        renames.append(os.rename(source, target))

    pid = os.fork()
    if not pid:
        durable.os.replace = killed_after_one
        write_checkpoint(run.path / place, Agent("new"), {"best": None, "updates": 6})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert not (run.path / place).exists(), "it ended there"
    if place == "best":
        assert (run.best_checkpoint() / "model.zip").read_text() == "old"
    run.sweep()
    assert (run.path / place / "model.zip").read_text() == "old"
    assert not list(run.path.glob(".*.*")) and not list(run.checkpoints.glob(".*"))


def test_of_two_that_start_in_one_directory_at_once_one_trains_its_own_config(tmp_path):
    place, start = tmp_path / "run", Barrier(2)

    def begin(seed):
        start.wait()
        try:
            return new_run(place, f"seed={seed}").config().seed
        except RunDirectoryError as error:
            assert "holds a run already" in str(error) or "is using this run" in str(error)
            return None

    with ThreadPoolExecutor(2) as pool:
        for number in range(8):
            found = [seed for seed in pool.map(begin, (2 * number, 2 * number + 1)) if seed is not None]
            assert len(found) == 1 and RunDir.open(place).config().seed == found[0]
            assert RunDir.open(place).record()["seed"] == found[0]
            shutil.rmtree(place)


def test_runs_that_start_in_one_second_have_folders_of_their_own(tmp_path):
    names = [new_folder(tmp_path / "runs", "demo-20240102-030405").name for _ in range(3)]
    assert names == ["demo-20240102-030405", "demo-20240102-030405-2", "demo-20240102-030405-3"]


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    run = new_run(tmp_path / "run")

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    words = r"\.lock: this file system has no locks .* put the run on a local disk"
    with pytest.raises(RunDirectoryError, match=words), run.locked():
        pass


def test_alerts_of_a_run_that_goes_on_are_those_of_its_checkpoint(tmp_path):
    path = tmp_path / "alerts.jsonl"
    first, lost, new = (Alert(name, "warn", 1, "m", 1.0, 0.0, "", "", "") for name in ("first", "lost", "new"))
    file = AlertFile(path, [])
    assert not path.exists()
    file.write(first)
    file.write(lost)
    AlertFile(path, [first]).write(new)  # the checkpoint was written between the two
    assert [json.loads(line)["name"] for line in path.read_text(encoding="utf-8").splitlines()] == ["first", "new"]
