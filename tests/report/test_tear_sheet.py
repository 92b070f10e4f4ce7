"""A tear sheet of returns, of weights and of a policy, without a run."""

import numpy as np
import pandas as pd
import pytest

from leeward.config.trading import DataConfig
from leeward.errors import ArgumentError
from leeward.market import prepare
from leeward.report import tear_sheet

FEW = {"n_draws": 20, "n_offsets": 20}


@pytest.fixture(scope="module")
def daily():
    return prepare(DataConfig(source="sample:synthetic", n_bars=400, features=("return_1",)))


def returns(n=120, seed=0, name="fund"):
    rng = np.random.default_rng(seed)
    return pd.Series(0.01 * rng.standard_normal(n), index=pd.bdate_range("2023-01-02", periods=n), name=name)


def test_somebodys_returns_have_a_sheet_and_no_verdict_about_an_edge(tmp_path):
    path = tear_sheet(returns(), returns(seed=1), path=tmp_path / "x.html", name="a fund", n_draws=20)
    page = path.read_text(encoding="utf-8")
    assert "<h1>a fund</h1>" in page and "Returns as given: positions, costs and fills are not known." in page
    assert "holding" in page and "Evidence of an edge" not in page
    with pytest.raises(ArgumentError, match="needs the index of the returns"):
        tear_sheet(returns(), returns(n=119), path=tmp_path / "x.html")


class Asking:
    """Records what it is told."""

    def __init__(self):
        self.seen = []

    def predict(self, observation, state=None, episode_start=None, deterministic=True, *, time, assets):
        self.seen.append((time, assets))
        return np.array([[0.5]]), state


def test_a_policy_is_given_bar_times_and_names_if_it_asks(daily, tmp_path):
    policy = Asking()
    tear_sheet(policy, daily, path=tmp_path / "x.html", unseen_from="2001-01-01", limit=-0.02, **FEW)
    times, names = zip(*policy.seen, strict=True)
    first = int(np.searchsorted(daily.bars.time, np.datetime64("2001-01-01")))
    # one bar of warm-up, then every close but the last
    assert list(times) == list(daily.bars.time[first - 1 : -1]) and set(names) == {("synthetic",)}


def test_weights_are_what_is_traded_and_nothing_is_judged_that_may_have_been_seen(daily, tmp_path):
    weights = pd.DataFrame({"synthetic": [0.0, 1.0]}, index=daily.bars.time[[0, 200]])
    page = tear_sheet(weights, daily, path=tmp_path / "x.html", **FEW).read_text(encoding="utf-8")
    assert "Not judged, in sample" in page and "Nobody has said which of these bars" in page
    page = tear_sheet(weights, daily, path=tmp_path / "x.html", unseen_from="2000-06-01", **FEW).read_text("utf-8")
    assert "Not judged" not in page
    with pytest.raises(ArgumentError, match="no column for synthetic"):
        tear_sheet(weights.rename(columns={"synthetic": "x"}), daily, path=tmp_path / "x.html")
    with pytest.raises(ArgumentError, match="trade something"):
        tear_sheet(weights, path=tmp_path / "x.html")
