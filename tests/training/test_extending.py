"""A finished run goes on to a new total, or is the beginning of another one; what was seen stays seen."""

import shutil

import pytest
import torch

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.cli import main
from leeward.config.run import ValidationConfig
from leeward.errors import RunDirectoryError
from leeward.training.checkpoints import read_steps
from leeward.training.run_dir import RunDir
from leeward.training.seal import open_seal
from leeward.training.testing import Examination


@pytest.fixture
def finished(trained, tmp_path):
    return RunDir(shutil.copytree(trained, tmp_path / "runs" / "first"))


def test_a_finished_run_goes_on_to_a_new_total(finished, monkeypatch, capsys):
    code, printed = leeward(monkeypatch, capsys, "train", "--resume", finished.path, "--steps", 2240, "--quiet")
    assert code == 0, printed.err
    assert finished.config().ppo.total_steps == 2240
    assert read_steps(finished.checkpoint_list()[-1]) == 2240
    assert finished.record()["extensions"] == [{"from_steps": 1920, "to_steps": 2240, "reached": 1920}]
    rows = finished.progress_file.read_text().splitlines()
    assert len(rows) == 1 + 14  # 12 updates, and two more
    # the rate falls to 0 over the new total: at the 13th update 2080 of 2240 steps are done
    rate = float(rows[13].split(",")[rows[0].split(",").index("train/learning_rate")])
    assert rate == pytest.approx(1e-3 * (1 - 2080 / 2240))


def test_a_new_total_must_be_above_what_is_reached(finished):
    with pytest.raises(RunDirectoryError, match="has 1920 steps already; --steps is the new total"):
        finished.extend(1920, 1920)


def leeward(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["leeward", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code or 0, capsys.readouterr()


def test_a_run_from_another_one_begins_with_its_weights_its_scales_and_what_it_has_seen(
    finished, tmp_path, monkeypatch, capsys
):
    place = tmp_path / "elsewhere" / "second"
    options = ["--run-dir", place, "--steps", 160, "--set", "ppo.learning_rate=1e-12", "--set", "data.seed=1"]
    open_seal(finished, finished.market(), "test")
    code, printed = leeward(monkeypatch, capsys, "train", "--from", finished.path, *options, "--quiet")
    assert code == 0, printed.err
    run = RunDir.open(place)
    assert run.record()["parent"] == {"run": str(finished.path.resolve()), "openings": 1}
    assert run.scaler().difference(finished.scaler()) is None
    mine, its = (read_checkpoint(folder / "model.zip")[1] for folder in (run.best, finished.best))
    names = [name for name in its if name.endswith("weight") and name in mine]
    assert names and all(torch.allclose(mine[name], its[name], atol=1e-6) for name in names)
    # The days of the parent's training are in sample for the child, whatever bars it was shown itself.
    assert len(run.lineage()) == 2
    bars = finished.market().bars
    assert run.lineage()[1].seen(bars, 100, 200).startswith("100 of 100 decisions")
    assert Examination(run, run.market("sample:synthetic", {"seed": 0}), "test").opening.earlier == 1


def test_another_network_is_refused(finished, tmp_path, monkeypatch, capsys):
    options = ["--run-dir", tmp_path / "third", "--steps", 160, "--set", "policy.lstm_hidden_size=4", "--quiet"]
    code, printed = leeward(monkeypatch, capsys, "train", "--from", finished.path, *options)
    assert code == 1 and "its network is another one" in printed.err and len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(("updates", "turn"), [(5, 1), (30, 3), (99, 9), (100, 10), (1000, 10)])
def test_every_run_has_at_least_ten_scores(updates, turn):
    assert ValidationConfig().turn(updates) == turn
    assert ValidationConfig(every_updates=7).turn(updates) == 7
