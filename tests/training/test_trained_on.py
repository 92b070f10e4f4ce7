"""Other bars are matched to a run by name; what sets them apart is said; nothing in sample is judged."""

import numpy as np
import pandas as pd
import pytest

from leeward.config.load import load_config
from leeward.errors import DataError
from leeward.market import from_frame, prepare
from leeward.training.run_dir import RunDir
from leeward.training.seal import open_seal

from ..support.tiny_runs import TINY

N = 400
TIME = pd.date_range("2022-01-03", periods=N, freq="h")
NAMES = ("AAA", "BBB", "CCC", "DDD", "EEE", "FFF")


def panel(names=NAMES, *, seeds=None, time=TIME):
    """A long frame, one line per bar and asset."""
    parts = []
    for name in names:
        rng = np.random.default_rng([1, NAMES.index(name) if seeds is None else seeds[name]])
        close = 50.0 * np.exp(np.cumsum(0.01 * rng.standard_normal(len(time))))
        volume = np.round(1e6 * rng.random(len(time)), 0)
        part = {"date": time, "asset": name, "open": close, "high": close * 1.01, "low": close * 0.99, "close": close}
        parts.append(pd.DataFrame(part | {"volume": volume}))
    return pd.concat(parts, ignore_index=True)


def begun(path, bars):
    config = load_config(None, [*TINY, "data.features=[return_1, volume_z_20]"])
    run, market = RunDir.create(path, config), prepare(config.data, bars=bars)
    run.bind(market)
    return run, market


@pytest.fixture(scope="module")
def six(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("runs") / "six", from_frame(panel()))


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("runs") / "one", from_frame(panel(["AAA"])))


RNG = np.random.default_rng(0)
ORDERS = [tuple(RNG.permutation(NAMES)) for _ in range(8)]


@pytest.mark.parametrize("order", ORDERS, ids="".join)
def test_assets_in_another_order_are_the_same_bars(six, order):
    run, market = six
    found = run.market(panel(order))
    assert found.bars.assets == NAMES and found.fingerprint == market.fingerprint
    np.testing.assert_array_equal(found.inputs, market.inputs)
    assert not found.bars.problems


WRONG = {
    "one of six": (NAMES[:1], "lacks BBB, CCC, DDD, EEE, FFF"),
    "five of six": (NAMES[:5], "lacks FFF"),
    "four others": (("AAA", "BBB"), "lacks CCC, DDD, EEE, FFF"),
}


@pytest.mark.parametrize("case", WRONG)
def test_missing_assets_are_one_clean_line(six, case):
    names, message = WRONG[case]
    with pytest.raises(DataError, match=message) as error:
        six[0].market(panel(names))
    assert "data.assets" in str(error.value) and "\n" not in str(error.value)


def test_unknown_assets_are_refused_and_a_map_of_names_mends_it(six):
    run, market = six
    renamed = panel().replace({"asset": {"AAA": "AAA/USD"}})
    with pytest.raises(DataError, match="lacks AAA and has AAA/USD, unknown to the run"):
        run.market(renamed)
    assert run.market(renamed, {"assets": {"AAA/USD": "AAA"}}).fingerprint == market.fingerprint
    seeds = {name: i for i, name in enumerate((*NAMES, "GGG"))}
    more = panel((*NAMES, "GGG"), seeds=seeds)
    with pytest.raises(DataError, match="has GGG, unknown to the run"):
        run.market(more)
    assert run.market(more, {"assets": {"GGG": None}}).fingerprint == market.fingerprint
    with pytest.raises(DataError, match="no asset 'GG' in it; did you mean 'GGG'"):
        run.market(more, {"assets": {"GG": None}})


def kinds(market):
    return [problem.kind for problem in market.bars.problems if problem.severity == "warning"]


def test_one_asset_by_another_name_is_shown_and_said(one):
    run, _ = one
    found = run.market(panel(["AAA"]).replace({"asset": {"AAA": "ZZZ"}}))
    assert kinds(found) == ["another asset"] and found.bars.assets == ("AAA",)
    assert "trained on AAA and is shown ZZZ" in str(found.bars.problems[-1])


APART = {
    "other spacing": {"time": pd.date_range("2024-01-01", periods=N, freq="4h")},
    "other hours": {"time": pd.date_range("2024-01-01", periods=N, freq="24h")},
}


@pytest.mark.parametrize("kind", APART)
def test_other_spacing_and_other_hours_are_a_warning(one, kind):
    assert kind in kinds(one[0].market(panel(["AAA"], **APART[kind])))


def test_another_unit_of_volume_and_new_columns_are_a_warning(one):
    bars = panel(["AAA"])
    found = one[0].market(bars.assign(volume=bars["volume"] / 1000.0, feature_new=1.0))
    assert kinds(found) == ["other unit of volume", "columns not used"]


def test_a_volume_that_is_lost_or_new_is_a_warning(one, tmp_path):
    without = panel(["AAA"]).drop(columns="volume")
    assert kinds(one[0].market(without)) == ["no volume"]
    config = load_config(None, [*TINY, "data.features=[return_1]"])
    dry = RunDir.create(tmp_path / "dry", config)
    dry.bind(prepare(config.data, bars=from_frame(without)))
    assert kinds(dry.market(panel(["AAA"]))) == ["new volume"]


@pytest.mark.parametrize("split", ["train", "validation"])
def test_what_was_learned_from_is_in_sample(one, split):
    run, market = one
    window = market.split(split)
    said = run.trained_on().seen(market.bars, window.start, window.end - 1)
    n = window.n_decisions
    assert said.startswith(f"{n} of {n} decisions lie between 2022-01-03 and 2022-01-16")


def test_the_test_split_and_later_bars_are_out_of_sample(one):
    run, market = one
    window = market.split("test")
    assert run.trained_on().seen(market.bars, window.start, window.end) == ""


OVERLAPPING = {
    "the same bars without a row": lambda bars: bars.drop(bars.index[50]),
    "bars that began long before": lambda bars: panel(
        ["AAA"], seeds={"AAA": 99}, time=pd.date_range(TIME[100] - pd.Timedelta(hours=N - 1), periods=N, freq="h")
    ),
    "another asset on the same days": lambda bars: panel(["AAA"], seeds={"AAA": 99}),
    "shuffled days": lambda bars: bars.assign(
        **bars.drop(columns=["date", "asset"]).sample(frac=1, random_state=0).set_index(bars.index)
    ),
}


@pytest.mark.parametrize("case", OVERLAPPING)
def test_files_over_the_same_days_are_in_sample(one, case):
    run, _ = one
    market = run.market(OVERLAPPING[case](panel(["AAA"])))
    window = market.split("whole")
    assert "from which the agent was trained" in run.trained_on().seen(market.bars, window.start, window.end)


def test_the_seal_knows_its_bars_in_another_file_and_counts_them(six, tmp_path):
    run, market = six
    panel(ORDERS[0]).to_csv(tmp_path / "copy.csv", index=False)
    assert open_seal(run, market, "validation") is None
    assert open_seal(run, market, "test").earlier == 0
    assert open_seal(run, run.market(tmp_path / "copy.csv"), "whole").earlier == 1
    other = panel(seeds={name: 90 + i for i, name in enumerate(NAMES)})
    assert open_seal(run, run.market(other), "whole") is None
    beside, _ = begun(run.path.with_name("beside"), from_frame(panel(NAMES[::-1]).assign(volume=np.arange(6.0 * N))))
    assert open_seal(beside, beside.market(panel(NAMES)), "test").earlier == 2


def test_a_run_of_an_earlier_version_is_compared_with_its_own_bars(tmp_path):
    config = load_config(None, [*TINY, "data.source=sample:synthetic"])
    run, market = RunDir.create(tmp_path / "old", config), prepare(config.data)
    run.bind(market)
    kept = run.trained_on()
    run.bars_file.unlink()
    found = run.trained_on()
    assert found.tape.assets == kept.tape.assets and found.test_from == kept.test_from
    np.testing.assert_allclose(found.tape.log_close, kept.tape.log_close, atol=1e-6)
