"""What a run was trained with is what it is continued and tested with: its bars, and the scales of scaler.json."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import leeward
from leeward.config.run import RunConfig
from leeward.durable import sha256
from leeward.errors import RunDirectoryError
from leeward.market import Scaler, prepare
from leeward.market import market as preparing
from leeward.training.run_dir import RunDir

from ..support.tiny_runs import leeward_here


def edit_scaler(run, change):
    """Another scaler, as if it had been fitted when the run began."""
    state = json.loads(run.scaler_file.read_text())
    change(state)
    run.scaler_file.write_text(json.dumps(state))
    sign(run, run.scaler_file)
    return state


def sign(run, file):
    run.update_record(sha256=run.record()["sha256"] | {file.name: sha256(file.read_bytes())})


def nudge(size):
    """Move the mean of the third feature by `size` of its standard deviations."""

    def change(state):
        state["mean"][2] += size * state["std"][2]

    return change


def test_the_saved_scaler_is_used_and_not_the_one_that_is_fitted_again(begun):
    run, market = begun
    state = edit_scaler(run, nudge(1e-10))  # as another machine would round
    assert state["mean"][2] != market.scaler.mean[2]
    assert run.market().scaler.mean.tolist() == state["mean"]


def test_other_bars_are_scaled_by_the_saved_scaler_whatever_could_be_fitted_on_them(begun, tmp_path):
    run, market = begun
    names = ("open", "high", "low", "close", "volume")
    columns = {"date": market.bars.time} | {name: getattr(market.bars, name)[:, 0] for name in names}
    pd.DataFrame(columns)[:500].to_csv(tmp_path / "other.csv", index=False)
    state = edit_scaler(run, nudge(3.0))
    found = run.market(tmp_path / "other.csv")
    assert found.scaler.mean.tolist() == state["mean"]
    # 3 standard deviations lower than by the scales that would be fitted, where neither is clipped
    before = market.features[200:480, 0, 2]
    inside = np.abs(before) < 1.5
    np.testing.assert_allclose((before - found.features[200:480, 0, 2])[inside], 3.0, atol=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (nudge(0.01), r"return_20 has mean \S+ and standard deviation \S+, not \S+ and \S+;"),
        (lambda state: state.update(clip=3.0), r"values are clipped at 10\.0, not 3\.0;"),
        (lambda state: [state[key].pop() for key in ("names", "mean", "std")], r"the features are return_1, .*, not "),
    ],
    ids=["a scale", "the clip", "a feature"],
)
def test_a_scaler_that_is_not_what_these_bars_give_is_refused(begun, change, words):
    run, _ = begun
    edit_scaler(run, change)
    with pytest.raises(RunDirectoryError, match=rf"scaler\.json: when the train split is fitted now, {words}"):
        run.market()


def test_a_feature_that_another_version_computes_differently_is_refused_and_both_versions_are_named(begun, monkeypatch):
    run, _ = begun
    run.update_record(versions={"leeward": "0.0.9"})
    compute = preparing.compute_feature
    monkeypatch.setattr(
        preparing, "compute_feature", lambda bars, name: compute(bars, name) * (1.001 if name == "rsi_14" else 1.0)
    )
    words = rf"rsi_14 has mean .* Leeward \(0\.0\.9 then, {leeward.__version__} now\) has changed .* start a new run"
    with pytest.raises(RunDirectoryError, match=words):
        run.market()


def test_bars_that_changed_since_training_are_refused(begun):
    run, market = begun
    assert run.market().fingerprint == market.fingerprint
    run.config_file.write_text(run.config_file.read_text().replace("n_bars: 600", "n_bars: 601"))
    with pytest.raises(RunDirectoryError, match=r"config\.yaml: changed since this run wrote it"):
        run.market()
    sign(run, run.config_file)
    with pytest.raises(RunDirectoryError, match=r"the bars of sample:synthetic have changed since this run began"):
        run.market()


def test_a_run_that_has_begun_is_trained_with_no_other_bars_or_scales(begun):
    run, market = begun
    run.bind(run.market())  # the same ones
    written = run.scaler_file.read_bytes()
    config = run.config().data
    with pytest.raises(RunDirectoryError, match="have changed since this run began"):
        run.bind(prepare(config.model_copy(update={"seed": 1})))
    state = market.scaler.state_dict()
    state["std"][0] = np.nextafter(state["std"][0], 1.0)  # one bit
    with pytest.raises(RunDirectoryError, match=r"begun with other scales: return_1 has .*; go on with RunDir\.market"):
        run.bind(replace(market, scaler=Scaler.from_state(state)))
    assert run.scaler_file.read_bytes() == written


def test_a_run_that_has_not_begun_fits_its_scaler_and_one_that_lost_it_says_so(begun, tmp_path):
    run, market = begun
    fresh = RunDir.create(tmp_path / "fresh", run.config())
    assert fresh.market().scaler.difference(market.scaler) is None
    with pytest.raises(RunDirectoryError, match=r"no scaler\.json, so nothing was trained here"):
        fresh.market("sample:synthetic")
    run.scaler_file.write_text('{"names": [')
    with pytest.raises(RunDirectoryError, match=r"scaler\.json: not a scaler"):
        run.market()
    run.scaler_file.unlink()
    with pytest.raises(RunDirectoryError, match=r"no scaler\.json"):
        run.market()


def test_resume_and_backtest_use_the_saved_scaler_and_leave_it_as_it_is(trained, tmp_path):
    run = RunDir(shutil.copytree(trained, tmp_path / "run"))
    edit_scaler(run, nudge(1e-10))
    written = run.scaler_file.read_bytes()
    code, _, err = leeward_here("train", "--resume", str(run.path), "--quiet")
    assert code == 0, err
    assert run.scaler_file.read_bytes() == written
    edit_scaler(run, nudge(0.5))
    for command in (["train", "--resume", str(run.path)], ["backtest", str(run.path), "--split", "test"]):
        code, _, err = leeward_here(*command)
        assert code == 1 and err.count("\n") == 1
        assert "scaler.json: when the train split is fitted now" in err
    assert run.record()["openings"] == [], "nothing was shown to the agent"


def test_a_run_that_is_lent_can_be_held_by_another_until_it_is_taken_back(begun):
    run, _ = begun
    with run.locked():
        with run.lent(), RunDir(run.path).locked():
            run.check_held()  # it does not claim to hold it meanwhile
        held = pytest.raises(RunDirectoryError, match=f"process {os.getpid()} is using this run")
        with held, RunDir(run.path).locked():
            pass


def test_a_directory_whose_name_is_no_text_holds_a_run_that_can_be_read(tmp_path, monkeypatch):
    path = tmp_path / "a\udcff"  # a byte that is no UTF-8, as the system gives it
    monkeypatch.setattr("sys.argv", ["leeward", "train", "--run-dir", str(path)])
    RunDir.create(path, RunConfig())
    assert RunDir.open(path).record()["command"].endswith(r"a\udcff")
