"""The directory of a run: written whole or not at all, used by one process, and honest about its test split."""

import errno
import fcntl
import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from leeward import durable
from leeward.config.load import load_config
from leeward.durable import read_folder, write_atomically, write_folder
from leeward.errors import CheckpointError, RunDirectoryError
from leeward.market import Market, prepare
from leeward.telemetry.alerts import Alert
from leeward.training.checkpoints import read_trainer_state
from leeward.training.logs import AlertFile, ProgressFile, TensorBoardFile
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


def write(place, name: str, updates: int, **more: bytes) -> None:
    """A checkpoint as a folder: its files, of which the model's is just a name."""
    state = {"env": {}, "trainer": {"best": None, "updates": updates}}
    files = {"model.zip": name.encode(), "env.safetensors": b"", "state.json": json.dumps(state).encode()}
    write_folder(place, files | more)


def test_a_checkpoint_that_fails_leaves_the_old_one_whole(tmp_path):
    place = tmp_path / "best"
    write(place, "old", 3)
    with pytest.raises(OSError, match="File name too long"):  # when the files before it are written
        write(place, "new", 6, **{"x" * 300: b""})
    assert (place / "model.zip").read_text() == "old" and read_trainer_state(place)["updates"] == 3
    write(place, "new", 6)
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
    write(run.path / place, "old", 3)
    renames = []

    def killed_after_one(source, target):
        if renames:
            os._exit(9)
        renames.append(os.rename(source, target))

    pid = os.fork()
    if not pid:
        durable.os.replace = killed_after_one
        write(run.path / place, "new", 6)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert not (run.path / place).exists(), "it ended there"
    if place == "best":
        assert read_folder(run.best_checkpoint(), ["model.zip"])[0] == {"model.zip": b"old"}
        assert not run.best.exists(), "who reads moves nothing"
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
    assert path.read_text(encoding="utf-8") == ""
    file.write(first)
    file.write(lost)
    AlertFile(path, [first]).write(new)  # the checkpoint was written between the two
    assert [json.loads(line)["name"] for line in path.read_text(encoding="utf-8").splitlines()] == ["first", "new"]


def test_a_folder_that_is_exchanged_while_it_is_read_is_read_again_as_a_whole(tmp_path, monkeypatch):
    place = tmp_path / "best"
    for name in ("old", "new"):
        write(tmp_path / name, name, len(name))
    os.rename(tmp_path / "old", place)
    read, exchanged = durable._content, []

    def content(folder, name):
        found = read(folder, name)
        if not exchanged:  # after the first file of the old one, as another process does it
            exchanged.append(os.rename(place, tmp_path / ".best.old"))
            os.rename(tmp_path / "new", place)
            shutil.rmtree(tmp_path / ".best.old")
        return found

    monkeypatch.setattr(durable, "_content", content)
    found, has_sums = read_folder(place, ["model.zip", "state.json"])
    assert exchanged and has_sums
    assert found["model.zip"] == b"new" and b'"updates": 3' in found["state.json"]


def test_a_link_or_a_pipe_is_no_file_of_a_checkpoint(tmp_path):
    write(tmp_path / "best", "old", 3)
    os.rename(tmp_path / "best" / "model.zip", tmp_path / "elsewhere")
    for make in (lambda path: path.symlink_to(tmp_path / "elsewhere"), os.mkfifo):
        make(tmp_path / "best" / "model.zip")
        with pytest.raises(CheckpointError, match=r"model\.zip: missing"):
            read_folder(tmp_path / "best", ["model.zip"])
        (tmp_path / "best" / "model.zip").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "best")
    with pytest.raises(CheckpointError, match="expected a folder, and no link to one"):
        read_folder(tmp_path / "link", ["state.json"])


@pytest.mark.parametrize("part", [".lock", "checkpoints", "best", "tensorboard", "backtest", "backtest/test"])
def test_a_link_that_leads_out_of_a_run_is_refused_and_nothing_is_written_or_removed_there(part, tmp_path):
    run = new_run(tmp_path / "run")
    outside = tmp_path / "home"
    (outside / ".ssh.old").mkdir(parents=True)
    (outside / "keys").write_text("secret")
    (run.path / part).parent.mkdir(exist_ok=True)
    (run.path / part).unlink(missing_ok=True)
    (run.path / part).symlink_to(outside / "keys" if part == ".lock" else outside)
    with pytest.raises(RunDirectoryError, match=rf"run/{part}: a link to "):
        RunDir.open(run.path)
    assert sorted(path.name for path in outside.iterdir()) == [".ssh.old", "keys"]
    assert (outside / "keys").read_text() == "secret"


def test_only_what_a_killed_process_left_is_swept_away(tmp_path):
    run = new_run(tmp_path / "run")
    run.checkpoints.mkdir()
    kept = [run.path / ".notes.txt", run.path / "._config.yaml", run.checkpoints / ".keep"]
    gone = [run.path / ".run.json.123", run.path / ".best.77", run.checkpoints / ".00000002.pruned"]
    for path in (*kept, *gone):
        path.mkdir() if path.suffix in (".77", ".pruned") else path.write_text("x")
    (run.path / ".link.5").symlink_to(tmp_path)
    run.sweep()
    assert all(path.exists() for path in kept) and not any(path.exists() for path in gone)
    assert not (run.path / ".link.5").is_symlink() and run.path.is_dir(), "the link, not what it leads to"


def test_a_file_that_waits_where_a_new_one_is_written_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".run.json.{os.getpid()}").symlink_to(tmp_path / "mine")
    write_atomically(tmp_path / "run.json", "new")
    assert (tmp_path / "mine").read_text() == "mine" and (tmp_path / "run.json").read_text() == "new"


def test_a_lock_that_is_somebodys_file_is_not_emptied(tmp_path):
    run = new_run(tmp_path / "run")
    run.lock_file.write_text("a letter of more than a few digits, by a hard link")
    with pytest.raises(RunDirectoryError, match="not a lock of ours"), run.locked():
        pass
    assert run.lock_file.read_text().startswith("a letter")


def test_a_run_that_was_deleted_moved_or_begun_anew_is_not_written_to(tmp_path):
    run = new_run(tmp_path / "run")
    with run.locked():
        run.check_held()
        os.rename(run.path, tmp_path / "moved")
        with pytest.raises(RunDirectoryError, match="deleted or moved while it was trained"):
            run.check_held()
        with pytest.raises(FileNotFoundError):
            write(run.checkpoints / "00000002", "x", 2)
        assert not run.path.exists(), "no husk of a run"
        new_run(run.path)
        with pytest.raises(RunDirectoryError, match="another run has taken its place"):
            run.check_held()
    assert RunDir.open(tmp_path / "moved").config().seed == 0


@pytest.mark.parametrize(
    "entry",
    [{"openings": {}}, {"versions": []}, {"sha256": "x"}, {"data_fingerprint": 3}, {"extensions": 1},
     {"parent": {"openings": "many"}}],
    ids=lambda entry: next(iter(entry)),
)  # fmt: skip
def test_an_entry_of_the_record_that_is_of_another_kind_is_named(entry, tmp_path):
    run = new_run(tmp_path / "run")
    run.run_file.write_text(json.dumps(entry))
    with pytest.raises(RunDirectoryError, match=rf"run\.json: {next(iter(entry))}\S* must be a"):
        run.record()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("mine", path)])
@pytest.mark.parametrize("name", [".lock", ".record-lock"])
def test_a_lock_that_is_a_link_or_a_pipe_is_refused_and_not_waited_for(name, make, tmp_path):
    run = new_run(tmp_path / "run")
    (run.path / "mine").write_text("precious")
    (run.path / name).unlink()
    make(run.path / name)
    with pytest.raises(RunDirectoryError, match=rf"{name}: not a lock of ours"), run.locked():
        run.update_record(seed=3)
    assert (run.path / "mine").read_text() == "precious"


def test_a_record_without_end_is_not_read_to_its_end(tmp_path):
    run = new_run(tmp_path / "run")
    with run.run_file.open("wb") as file:
        file.truncate(1 << 40)  # of holes: it takes no room on the disk
    with pytest.raises(RunDirectoryError, match=r"run\.json: more than 16,777,216 bytes; restore it from a copy"):
        run.record()


def test_a_log_whose_directory_is_gone_is_named_and_nothing_is_printed_by_its_thread(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    before = threading.excepthook
    rows = ProgressFile(tmp_path / "run" / "progress.csv", None)
    events = TensorBoardFile(tmp_path / "run" / "tensorboard", None, rows.pace)
    values, excluded = (
        {"train/loss": 1.0, "time/total_timesteps": 8},
        dict.fromkeys(("train/loss", "time/total_timesteps")),
    )
    rows.write(values, excluded, 8)
    rows.path.unlink()
    with pytest.raises(FileNotFoundError, match=r"progress\.csv"):
        rows.write(values | {"time/total_timesteps": 16}, excluded, 16)
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(OSError, match="tensorboard"):
        for step in range(100):  # its thread notices at the first, and says so at one of the next
            events.write(values, excluded, step)
            events.flush()
    with pytest.raises(OSError, match="tensorboard"):
        events.close()
    assert threading.excepthook is before and not capsys.readouterr().err
