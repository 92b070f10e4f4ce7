"""The test split is sealed: training cannot see it, and every opening is on the record."""

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.cli import main
from leeward.config.load import load_config
from leeward.errors import RunDirectoryError
from leeward.market import load, prepare
from leeward.training.checkpoints import read_trainer_state
from leeward.training.run_dir import RunDir
from leeward.training.testing import backtest_run

from .conftest import TINY, train_here


def with_garbage_after_validation(config):
    """The same bars, but every price, volume and hour of meaning after the validation split is noise."""
    bars = load(config.source, config)
    end = prepare(config, bars=bars).split("validation").end
    rng = np.random.default_rng(3)
    middle = rng.uniform(1.0, 1000.0, bars.close[end:].shape)
    noise = {
        "open": middle,
        "high": middle * rng.uniform(1.0, 2.0, middle.shape),
        "low": middle * rng.uniform(0.5, 1.0, middle.shape),
        "close": middle,
        "volume": rng.uniform(0.0, 1e9, middle.shape),
    }
    changed = {name: np.concatenate([getattr(bars, name)[:end], values]) for name, values in noise.items()}
    return prepare(config, bars=replace(bars, **changed))


def test_training_is_the_same_whatever_the_test_bars_are(tmp_path):
    short = "ppo.total_steps=640"
    run, market, _ = train_here(tmp_path / "true", short)
    config = load_config(None, [*TINY, "data.source=sample:synthetic", short])
    garbage = with_garbage_after_validation(config.data)
    other, _, _ = train_here(tmp_path / "garbage", short, market=garbage)

    assert garbage.fingerprint != market.fingerprint
    assert run.scaler_file.read_text() == other.scaler_file.read_text()
    for place in (run.best, run.checkpoint_list()[-1]):
        twin = other.path / place.relative_to(run.path)
        (_, tensors), (_, twins) = (read_checkpoint(folder / "model.zip") for folder in (place, twin))
        assert all(torch.equal(tensors[name], twins[name]) for name in tensors)
        assert read_trainer_state(place) == read_trainer_state(twin)
    mine, its = (backtest_run(r, m, "validation").metrics for r, m in ((run, market), (other, garbage)))
    assert mine.model_dump_json(include={"strategies"}) == its.model_dump_json(include={"strategies"})
    mine, its = (backtest_run(r, m, "test").metrics for r, m in ((run, market), (other, garbage)))
    assert mine.strategies != its.strategies, "the garbage is where the test split is"


def test_leeward_train_leaves_no_trace_of_the_test_split(trained):
    assert [path.name for path in (trained / "backtest").iterdir()] == ["validation"]
    assert RunDir.open(trained).record()["openings"] == []


@pytest.fixture
def runs(trained, tmp_path):
    """Two trained runs on the same bars, side by side."""
    for name in ("a", "b"):
        shutil.copytree(trained, tmp_path / "runs" / name)
    return tmp_path / "runs"


def backtest(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["leeward", "backtest", *map(str, arguments)])
    main_ends_well()
    return capsys.readouterr().out


def main_ends_well():
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code


def test_every_opening_is_recorded_and_counted_over_the_runs_beside_each_other(runs, monkeypatch, capsys):
    (runs / "other").mkdir()
    (runs / "other" / "run.json").write_text('{"openings": 3}')  # of another program
    assert "opened" not in backtest(monkeypatch, capsys, runs / "a")
    out = backtest(monkeypatch, capsys, runs / "a", "--split", "test")
    assert out.startswith("The test split is opened for the first time by runs in runs/.\n")
    out = backtest(monkeypatch, capsys, runs / "b", "--split", "test")
    assert out.startswith("The test split is opened after 1 earlier opening of the same bars by runs in runs/.\n")
    out = backtest(monkeypatch, capsys, runs / "a", "--split", "test")
    assert out.startswith("The test split is opened after 2 earlier openings of the same bars by runs in runs/.\n")
    openings = RunDir.open(runs / "a").record()["openings"]
    assert [entry["split"] for entry in openings] == ["test", "test"]
    assert {entry["data"] for entry in openings} == {RunDir.open(runs / "b").record()["data_fingerprint"]}


def test_the_runs_own_bars_by_another_name_open_the_seal_too(runs, monkeypatch, capsys):
    out = backtest(monkeypatch, capsys, runs / "a", "--data", "sample:synthetic")
    assert "opened for the first time" in out
    assert (runs / "a" / "backtest" / "sample-synthetic-whole" / "metrics.json").is_file()
    kept = (runs / "a" / "backtest" / "validation" / "metrics.json").read_text()
    assert json.loads(kept)["split"] == "validation", "the run's own result stays"


def test_the_last_checkpoint_stands_beside_the_best(runs, monkeypatch, capsys):
    out = backtest(monkeypatch, capsys, runs / "a", "--split", "test")
    assert "last checkpoint" in out
    metrics = json.loads((runs / "a" / "backtest" / "test" / "metrics.json").read_text())
    assert list(metrics["strategies"])[:2] == ["agent", "last_checkpoint"]
    assert "last_checkpoint" in metrics["differences"]
    assert metrics["fingerprints"].keys() == {"data", "config"}


def test_a_run_without_a_scored_checkpoint_opens_nothing(runs, monkeypatch, capsys):
    shutil.rmtree(runs / "a" / "best")
    monkeypatch.setattr(sys, "argv", ["leeward", "backtest", str(runs / "a"), "--split", "test"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "no scored checkpoint" in capsys.readouterr().err
    assert RunDir.open(runs / "a").record()["openings"] == []


def test_bars_that_changed_since_training_are_refused(runs):
    run = RunDir.open(runs / "a")
    assert run.market().fingerprint == run.record()["data_fingerprint"]
    text = run.config_file.read_text()
    run.config_file.write_text(text.replace("n_bars: 600", "n_bars: 601"))
    with pytest.raises(RunDirectoryError, match=r"the bars of sample:synthetic have changed since this run began"):
        run.market()
