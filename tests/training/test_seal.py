"""The test split is sealed: training cannot see it, and every opening is on the record."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from functools import partial

import numpy as np
import pytest
import torch

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.backtest.robustness import robustness_curve
from leeward.cli import main
from leeward.config.load import load_config
from leeward.config.trading import SplitsConfig
from leeward.errors import ArgumentError, RunDirectoryError
from leeward.market import load, prepare
from leeward.training import testing
from leeward.training.checkpoints import read_trainer_state
from leeward.training.run_dir import RunDir
from leeward.training.seal import open_seal
from leeward.training.testing import Examination, attack_run, backtest_run

from ..support.tiny_runs import TINY, train_here


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


def openings(run):
    return run.record()["openings"]


@pytest.fixture
def run_a(runs):
    return RunDir.open(runs / "a")


@pytest.fixture
def market(run_a):
    return run_a.market()


TESTERS = {"backtest_run": backtest_run, "attack_run": attack_run, "Examination": Examination}


@pytest.fixture
def quick_attacks(monkeypatch):
    monkeypatch.setattr(testing, "robustness_curve", partial(robustness_curve, epsilons=(0.1,), steps=1))


def test_every_way_to_test_a_run_is_among_those_that_must_leave_a_record():
    offered = {name for name in testing.__all__ if callable(getattr(testing, name))}
    assert offered == set(TESTERS)


@pytest.mark.parametrize("tester", TESTERS)
def test_whoever_tests_a_run_from_python_leaves_a_record(run_a, market, quick_attacks, tester):
    TESTERS[tester](run_a, market, "validation")
    assert openings(run_a) == []
    TESTERS[tester](run_a, market, "test")
    (entry,) = openings(run_a)
    assert (entry["split"], entry["data"], entry["earlier"]) == ("test", market.fingerprint, 0)
    TESTERS[tester](run_a, market, "test")
    assert [entry["earlier"] for entry in openings(run_a)] == [0, 1]


def test_one_examination_is_one_opening_however_much_it_is_asked(run_a, market, quick_attacks):
    examination = Examination(run_a, market, "test")
    assert examination.backtest().metrics.split == examination.attack().split == "test"
    assert openings(run_a) == [asdict(examination.opening)]
    assert Examination(run_a, market, "validation").opening is None


def test_the_command_line_with_robustness_opens_once(runs, quick_attacks, monkeypatch, capsys):
    out = backtest(monkeypatch, capsys, runs / "a", "--split", "test", "--robustness")
    assert out.count("is opened") == 1 and "for the first time" in out
    assert len(openings(RunDir.open(runs / "a"))) == 1
    assert (runs / "a" / "backtest" / "test" / "robustness.json").is_file()


@pytest.mark.parametrize(("name", "tester"), [("run_backtest", backtest_run), ("robustness_curve", attack_run)])
def test_the_record_is_there_before_a_bar_of_the_split_is_read(run_a, market, monkeypatch, name, tester):
    class Read(Exception):
        pass

    def read(*arguments, **settings):
        raise Read(len(openings(run_a)))

    monkeypatch.setattr(testing, name, read)
    with pytest.raises(Read, match="1"):
        tester(run_a, market, "test")


def test_nothing_is_opened_where_there_is_nothing_to_test(run_a, market):
    with pytest.raises(ArgumentError, match="no split 'tset'"):
        backtest_run(run_a, market, "tset")
    shutil.rmtree(run_a.best)
    with pytest.raises(RunDirectoryError, match="no scored checkpoint"):
        backtest_run(run_a, market, "test")
    assert openings(run_a) == []


def test_test_bars_that_are_called_by_another_name_open_the_seal(begun):
    # 600 bars: the run's own test bars begin with their embargo at round(0.8 · 600) = 480
    run, market = begun
    config, data = run.config(), {"bars": market.bars, "scaler": market.scaler}

    def cut(validation):
        splits = SplitsConfig(train=0.5, validation=validation)
        return prepare(config.data.model_copy(update={"splits": splits}), **data)

    assert [cut(share).split("validation").end for share in (0.3, 0.31)] == [480, 486]
    assert open_seal(run, cut(0.3), "validation") is None
    assert open_seal(run, cut(0.31), "validation").earlier == 0
    assert open_seal(run, prepare(config.data, **data), "whole").earlier == 1
    assert [entry["split"] for entry in openings(run)] == ["validation", "whole"]


def test_other_bars_are_not_behind_the_seal(begun):
    run, _ = begun
    config = run.config()
    other = prepare(config.data.model_copy(update={"seed": 1}), scaler=run.scaler())
    assert open_seal(run, other, "test") is None
    assert openings(run) == []


def test_openings_of_the_same_bars_are_counted_over_the_runs_beside_each_other(begun):
    run, market = begun
    beside = RunDir(shutil.copytree(run.path, run.path.with_name("beside")))
    (run.path.with_name("other")).mkdir()
    (run.path.with_name("other") / "run.json").write_text('{"openings": [{"data": "other bars"}, 3]}')
    found = [open_seal(which, market, "test").earlier for which in (run, beside, run, run)]
    assert found == [0, 1, 2, 3]
    assert [[entry["earlier"] for entry in openings(which)] for which in (run, beside)] == [[0, 2, 3], [1]]


def test_openings_that_are_no_list_are_an_error_and_nothing_is_written(begun):
    run, market = begun
    run.update_record(openings=3)
    with pytest.raises(RunDirectoryError, match=r"run\.json: openings must be a list, got 3; repair the file"):
        open_seal(run, market, "test")
    assert json.loads(run.run_file.read_text())["openings"] == 3


OPENER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from leeward.training.run_dir import RunDir
from leeward.training.seal import open_seal

run = RunDir.open(Path(sys.argv[1]))
market = run.market()
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(4) as pool:
    for done in [pool.submit(open_seal, run, market, "test") for _ in range(12)]:
        done.result()
"""


def test_openings_at_the_same_time_by_threads_and_processes_are_all_kept(begun):
    run, _ = begun
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    options["env"] = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the code that this process tests
    rivals = [subprocess.Popen([sys.executable, "-c", OPENER, str(run.path)], **options) for _ in range(2)]
    assert [rival.stdout.readline() for rival in rivals] == ["ready\n"] * 2
    for rival in rivals:
        rival.stdin.write("go\n")
        rival.stdin.flush()
    for rival in rivals:
        rival.communicate(timeout=120)
        assert rival.returncode == 0
    # two processes of four threads, twelve openings each; every one saw all before it
    assert [entry["earlier"] for entry in openings(run)] == list(range(24))
