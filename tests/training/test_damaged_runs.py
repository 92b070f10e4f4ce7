"""A run whose files were damaged: an older checkpoint takes over, or one clean line says what is wrong."""

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from leeward.algorithm.checkpoint import VERSION, read_checkpoint
from leeward.durable import SUMS, sha256
from leeward.errors import CheckpointError, RunDirectoryError
from leeward.training.checkpoints import load_model, newest_whole, read_files, read_steps, read_trainer_state
from leeward.training.logs import ProgressFile
from leeward.training.run_dir import RunDir
from leeward.training.trainer import replay_one_update, train
from leeward.training.verification import examine_run

from ..support.tiny_runs import leeward_here

STORED = Path(__file__).parents[1] / "support" / "files"
FILES = ("model.zip", "env.safetensors", "state.json", SUMS)


@pytest.fixture
def run(trained, tmp_path):
    """A copy of a finished run with two checkpoints."""
    return RunDir(shutil.copytree(trained, tmp_path / "run"))


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_newest_checkpoint_is_passed_over_and_named(name, run):
    older, newest = run.checkpoint_list()
    whole = load_model(newest).policy.state_dict()
    flip(newest / name)
    told = []
    train(run, run.market(), lambda progress: None, resume=True, notice=told.append)
    assert len(told) == 1 and told[0].endswith(f"Going on from {older} instead.")
    assert str(newest / (name if name != SUMS else "")) in told[0]
    assert run.checkpoint_list()[-1] == newest
    again = load_model(newest).policy.state_dict()
    assert all(bool((again[key] == whole[key]).all()) for key in whole), "the same weights, trained again"


def test_a_backtest_needs_the_best_checkpoint_and_says_that_the_last_one_is_damaged(run):
    newest = run.checkpoint_list()[-1]
    flip(newest / "model.zip")
    code, out, err = leeward_here("backtest", str(run.path))
    assert code == 0, err
    assert f"{newest / 'model.zip'}: damaged" in out and "tested without the last one beside it" in out
    assert "last_checkpoint" not in (run.path / "backtest" / "validation" / "metrics.json").read_text()
    flip(run.best / "model.zip")
    code, _, err = leeward_here("backtest", str(run.path))
    assert code == 1 and f"{run.best / 'model.zip'}: damaged" in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["run.json", "scaler.json", "progress.csv"])
@pytest.mark.parametrize("instead", ["nothing", "a folder", "a pipe", "a link to nothing"])
def test_a_file_that_is_gone_is_not_called_good(name, instead, run):
    path = run.path / name
    path.unlink()
    if instead == "a folder":
        path.mkdir()
    elif instead == "a pipe":
        os.mkfifo(path)
    elif instead == "a link to nothing":
        path.symlink_to("/nowhere/at/all")
    code, out, err = leeward_here("verify", str(run.path))
    assert code == 1 and any(name in line and "good" not in line for line in (out + err).splitlines())


def test_a_run_without_its_record_is_not_gone_on_with(run):
    run.run_file.unlink()  # and with it what says that config.yaml was changed, and who has seen the test split
    for command in (["train", "--resume", str(run.path)], ["backtest", str(run.path), "--split", "test"]):
        code, _, err = leeward_here(*command)
        assert code == 1 and "run.json: missing" in err and len(err.splitlines()) == 1


def test_a_line_of_the_alerts_that_is_damaged_is_named(run):
    run.alerts_file.write_text('{"name": "x"}\n{"name": \n')
    assert dict(examine_run(run))[run.alerts_file].startswith(f"{run.alerts_file} line 2: not JSON")


def test_a_copy_of_another_name_is_not_taken_for_the_newest_checkpoint(run):
    known = run.checkpoint_list()
    for name in ("9", "²", "00000099 copy"):
        shutil.copytree(known[0], run.checkpoints / name)
    assert run.checkpoint_list() == known
    later = [shutil.copytree(known[0], run.checkpoints / name) for name in ("99999999", "100000000")]
    assert run.checkpoint_list() == [*known, *later]


def test_where_no_checkpoint_is_whole_each_is_named(run):
    for place in run.checkpoint_list():
        flip(place / "model.zip")
    with pytest.raises(CheckpointError) as found:
        train(run, run.market(), lambda progress: None, resume=True)
    lines = str(found.value).splitlines()
    assert len(lines) == 3 and lines[-1].endswith("no checkpoint is whole; start a new run")
    code, _, err = leeward_here("train", "--resume", str(run.path))
    assert (code, err) == (1, f"error: {' | '.join(lines)}\n"), "one failure is one line"


def test_a_checkpoint_without_its_sums_or_one_of_its_files_is_damaged(run):
    place = run.checkpoint_list()[-1]
    (place / SUMS).unlink()
    with pytest.raises(CheckpointError, match=rf"{SUMS}: missing"):
        load_model(place)
    (run.best / "env.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"env\.safetensors: missing"):
        load_model(run.best)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"trainer": 3}',
        '{"trainer": {"updates": "3", "best": null}}',
        '{"trainer": {"updates": 3, "best": {"score": {"growth": 1}}}}',
        "[" * 100_000,
    ],
    ids=["empty", "list", "number", "text", "half a score", "deep"],
)
def test_a_state_that_nothing_of_ours_wrote_is_refused(text, run):
    place = run.checkpoint_list()[-1]
    (place / "state.json").write_text(text)
    sums = json.loads((place / SUMS).read_text()) | {"state.json": sha256(text.encode())}
    (place / SUMS).write_text(json.dumps(sums))  # as somebody does who wants it to be read
    with pytest.raises(CheckpointError, match=r"state\.json"):
        read_trainer_state(place)


def run_of_format(number, folder):
    """A copy of a run that was stopped after its sixth update, as the version of that format wrote it."""
    return RunDir(shutil.copytree(STORED / f"format_{number}" / "run", folder / "old"))


@pytest.mark.parametrize("number", range(3, VERSION + 1))
def test_a_run_directory_of_every_format_goes_on_to_its_end(number, tmp_path):
    old = run_of_format(number, tmp_path)
    assert read_checkpoint(old.best / "model.zip")[0]["written_as"] == number
    assert (old.checkpoint_list()[-1] / SUMS).exists() == (number >= 4)
    train(old, old.market(), lambda progress: None, resume=True, notice=lambda line: None)
    assert [place.name for place in old.checkpoint_list()] == ["00000006", "00000008"]
    assert json.loads((old.checkpoint_list()[-1] / SUMS).read_text()).keys() == set(FILES) - {SUMS}


def test_a_run_of_other_versions_goes_on_and_they_are_named(tmp_path):
    run = run_of_format(VERSION, tmp_path)
    versions = run.record()["versions"]
    run.update_record(versions=versions | {"python": "3.99.0", "torch": "1.0.0"})
    told: list[str] = []
    train(run, run.market(), lambda progress: None, resume=True, notice=told.append)
    (words,) = [line for line in told if line.startswith("Exact to the bit only with the same versions: ")]
    assert "python 3.99.0 then, " in words and "torch 1.0.0 then, " in words
    assert run.checkpoint_list()[-1].name == "00000008"


def test_an_update_is_replayed_to_the_bit_and_another_log_is_seen(run):
    shutil.rmtree(run.checkpoint_list()[-1])  # as if the process had been killed after update 12: 11 is in the log
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    words = replay_one_update(run, run.market())
    assert words.startswith("Update 11 was replayed from") and words.endswith("metrics are the same, bit for bit.")
    assert int(words.split(": ")[-1].split()[0]) > 60
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before
    header, *lines = run.progress_file.read_text().splitlines()
    place = header.split(",").index("train/value_loss")
    cells = lines[10].split(",")
    cells[place] = repr(np.nextafter(float(cells[place]), 1.0).item())
    run.progress_file.write_text("\n".join([header, *lines[:10], ",".join(cells), *lines[11:], ""]))
    with pytest.raises(CheckpointError, match=r"update 11, replayed, differs from progress\.csv in 1 of \d+ metrics"):
        replay_one_update(run, run.market())


def test_an_update_is_replayed_over_the_total_it_was_made_for_before_a_run_goes_on_to_a_new_one(run):
    longer = run.config().ppo.total_steps + 320
    code, out, err = leeward_here("train", "--resume", str(run.path), "--verify", "--steps", str(longer), "--quiet")
    assert (code, err) == (0, "")
    assert "metrics are the same, bit for bit." in out
    assert run.config().ppo.total_steps == longer
    assert float(ProgressFile.rows_of(run.progress_file)[-1]["time/total_timesteps"]) == longer


def test_where_the_newest_checkpoint_is_damaged_an_update_is_replayed_from_the_one_before(run):
    older, newest = run.checkpoint_list()
    flip(newest / "env.safetensors")
    code, out, err = leeward_here("train", "--resume", str(run.path), "--verify", "--quiet")
    assert code == 0, err
    said = [line for line in out.splitlines() if "older" in line or str(older) in line]
    assert [line.split(". ")[-1] for line in said] == [
        "No update is replayed from it.",
        said[1],
        f"Going on from {older} instead.",
    ]
    assert said[0].startswith(f"{newest / 'env.safetensors'}: damaged")
    assert said[1].startswith(f"Update 11 was replayed from {older}: ") and said[1].endswith("bit for bit.")
    for place in run.checkpoint_list():
        flip(place / "state.json")
    told: list[str] = []
    assert replay_one_update(run, run.market(), told.append).startswith("Nothing was replayed")
    assert len(told) == 2


def test_verify_names_what_is_damaged(run):
    assert all(problem is None for _, problem in examine_run(run))
    parts = [str(part.relative_to(run.path)) for part, _ in examine_run(run)]
    assert parts == ["run.json", "config.yaml", "scaler.json", "bars.npz", "progress.csv", "alerts.jsonl",
                     "checkpoints/00000010", "checkpoints/00000012", "best", "backtest/validation"]  # fmt: skip
    damage = {"scaler.json": "scaler.json", "best": "best/env.safetensors", "config.yaml": "config.yaml",
              "bars.npz": "bars.npz", "backtest/validation": "backtest/validation/outlook.npz"}  # fmt: skip
    for file in damage.values():
        flip(run.path / file)
    bad = {str(part.relative_to(run.path)) for part, problem in examine_run(run) if problem is not None}
    assert bad == set(damage)


@pytest.mark.parametrize("lost", ["cvar", "step_cvar"])
def test_an_outlook_that_lacks_a_part_is_named(lost, run):
    file = run.path / "backtest" / "validation" / "outlook.npz"
    with np.load(file, allow_pickle=False) as found:
        of_episode = {name: found[name] for name in found.files if not name.startswith("step_")}
    arrays = of_episode | {f"step_{name}": values for name, values in of_episode.items()}
    for kept in (arrays, {name: values for name, values in arrays.items() if name != lost}):
        np.savez(file, allow_pickle=False, **kept)
        (problem,) = [problem for part, problem in examine_run(run) if part == file.parent]
        assert (problem is None) == (kept is arrays)
    assert "outlook.npz: damaged (it holds " in str(problem)


def test_a_checkpoint_that_is_exchanged_after_it_was_checked_is_not_what_is_loaded(run):
    newest = run.checkpoint_list()[-1]
    files = read_files(newest)
    whole = load_model(files).policy.state_dict()
    shutil.rmtree(newest)
    again = load_model(files).policy.state_dict()
    assert all(bool((again[key] == whole[key]).all()) for key in whole)


def test_a_run_whose_newest_checkpoint_is_damaged_can_be_extended(run):
    older, newest = run.checkpoint_list()
    flip(newest / "model.zip")
    steps, damaged = newest_whole([older, newest], read_steps)
    assert steps == read_steps(older) > 0 and len(damaged) == 1 and str(newest) in damaged[0]
    assert newest_whole([newest], read_steps) == (None, damaged)


@pytest.mark.parametrize(
    "change",
    [
        {"edges": np.array([0, 10**6, 10**7])},
        {"edges": np.array([-5, 10, 20])},
        {"time": np.zeros((3, 2), np.int64)},
        {"volume": np.zeros(9)},
        {"interval": np.array(-1.0)},
        {"log_close": np.zeros(1 << 26)},
    ],
    ids=["edges", "negative", "time", "volume", "interval", "bomb"],
)
def test_a_record_of_bars_that_does_not_fit_together_or_expands_is_refused(change, run):
    with np.load(run.bars_file) as file:
        arrays = dict(file)
    np.savez_compressed(run.bars_file, **arrays | change)
    words = "expands to" if "log_close" in change else ""
    with pytest.raises(RunDirectoryError, match=rf"bars\.npz: not the record of a run's bars \({words}"):
        run.trained_on()


@pytest.mark.parametrize("kind", ["<U0", "|S0", "|V0"])
def test_an_array_of_cells_without_bytes_is_refused_however_many_it_says_it_has(kind, run):
    with np.load(run.bars_file) as file:
        arrays = dict(file)
    del arrays["assets"]
    np.savez_compressed(run.bars_file, **arrays)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": (10**6,)})
    with zipfile.ZipFile(run.bars_file, "a") as archive:
        archive.writestr("assets.npy", header.getvalue())
    with pytest.raises(RunDirectoryError, match=r"bars\.npz: not the record .*the cells of 'assets' have no bytes"):
        run.trained_on()


def test_an_array_whose_header_is_half_a_line_is_refused(run):
    header = b"{'descr': '<i8', 'shape': (3,\n"
    with zipfile.ZipFile(run.bars_file, "w") as archive:
        archive.writestr("time.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(RunDirectoryError, match=r"bars\.npz: not the record of a run's bars \(TokenError"):
        run.trained_on()
