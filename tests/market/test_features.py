"""Features against other ways to compute them."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from leeward.config.trading import DataConfig, SplitsConfig
from leeward.errors import ConfigError, DataError
from leeward.market import Bars, Scaler, load, prepare
from leeward.market.features import chosen_features, compute_feature
from leeward.market.rolling import trailing_median, trailing_std

from ..support.trading_panels import random_bars

NASDAQ = load("sample:nasdaq")
CLOSE = pd.Series(NASDAQ.close[:, 0])
RETURNS = np.log(CLOSE).diff()


def test_features_equal_pandas():
    high, low, volume = (pd.Series(column[:, 0]) for column in (NASDAQ.high, NASDAQ.low, NASDAQ.volume))
    logs = np.log1p(volume)
    change = CLOSE.diff()
    gain, loss = change.clip(lower=0).rolling(14).mean(), (-change).clip(lower=0).rolling(14).mean()
    expected = {
        "return_5": np.log(CLOSE / CLOSE.shift(5)),
        "gap": np.log(pd.Series(NASDAQ.open[:, 0]) / CLOSE.shift(1)),
        "volatility_20": np.log(RETURNS.rolling(20).std()),
        "parkinson_20": np.log(np.sqrt((np.log(high / low) ** 2).rolling(20).mean() / (4 * math.log(2)))),
        "momentum_60_5": np.log(CLOSE.shift(5) / CLOSE.shift(60)) / (RETURNS.rolling(60).std() * math.sqrt(55)),
        "rsi_14": (gain - loss) / (gain + loss),
        "drawdown_60": np.log(CLOSE / CLOSE.rolling(60).max()),
        "volume_z_20": (logs - logs.rolling(20).mean()) / logs.rolling(20).std(),
    }
    for name, column in expected.items():
        np.testing.assert_allclose(compute_feature(NASDAQ, name)[:, 0], column, rtol=1e-7, atol=1e-10, err_msg=name)


def test_macd_is_near_the_endless_one():
    endless = np.log(CLOSE).ewm(span=12).mean() - np.log(CLOSE).ewm(span=26).mean()
    # 78 bars hold 1 - (25/27)^78 = 99.75 % of the slow weight.
    assert np.nanmax(np.abs(compute_feature(NASDAQ, "macd_12_26")[200:, 0] - endless[200:])) < 2e-3


def test_yang_zhang_finds_the_volatility_of_a_random_walk():
    # Gap 0.5 %, 400 steps of 0.08 % in the day: variance 0.005² + 400 · 0.0008² = 2.81e-4, σ = 0.01676 a bar.
    rng = np.random.default_rng(0)
    n = 1_500
    steps = np.concatenate((0.005 * rng.standard_normal((n, 1)), 0.0008 * rng.standard_normal((n, 400))), axis=1)
    path = np.cumsum(steps).reshape(n, 401)
    day = np.exp(path)
    columns = {"open": day[:, 0], "high": day.max(axis=1), "low": day.min(axis=1), "close": day[:, -1]}
    time = np.datetime64("2000-01-01", "ns") + np.arange(n) * np.timedelta64(1, "D")
    bars = Bars(time, ("x",), **{k: v[:, None] for k, v in columns.items()}, volume=np.full((n, 1), np.nan))
    sigma = np.exp(compute_feature(bars, "yang_zhang_20")[20:, 0])
    # 400 steps see a little less than the whole range, which lowers the estimate by some per cent.
    assert np.median(sigma) == pytest.approx(math.sqrt(2.81e-4), rel=0.08)


def test_missing_volume_leaves_its_feature_out_or_says_so():
    bars = Bars(NASDAQ.time, NASDAQ.assets, NASDAQ.open, NASDAQ.high, NASDAQ.low, NASDAQ.close, NASDAQ.close * np.nan)
    assert "volume_z_20" not in chosen_features(bars, None)
    assert prepare(bars=bars).flags[100:].all()
    with pytest.raises(DataError, match="volume_z_20 has no valid value in the train split"):
        prepare(DataConfig(features=("return_1", "volume_z_20")), bars=bars)


def test_an_unknown_feature_is_named():
    with pytest.raises(ConfigError, match="unknown feature 'retrun_1'; did you mean 'return_1'"):
        chosen_features(NASDAQ, ["retrun_1"])


def test_nasdaq_splits_and_year():
    market = prepare()
    assert market.bars_per_year == pytest.approx(251.6, abs=0.05)
    days = {name: (s.start, s.end) for name, s in market.splits.items()}
    # round(0.65 · 5031) = 3270, round(0.8 · 5031) = 4025, embargo = 77 bars of look-back
    assert days == {"train": (77, 3270), "validation": (3347, 4025), "test": (4102, 5031)}
    assert [str(market.bars.time[s.end - 1])[:4] for s in market.splits.values()] == ["2011", "2014", "2018"]
    assert market.flags[77:].all() and not market.flags[:77].any()
    assert market.inputs.shape == (5031, 1, 17)


def test_too_short_a_file_or_embargo_is_refused():
    bars = load("sample:synthetic", DataConfig(n_bars=300))
    with pytest.raises(DataError, match="the validation split has 0 of 300 bars left"):
        prepare(bars=bars)
    with pytest.raises(ConfigError, match="must not be below the longest look-back"):
        prepare(DataConfig(splits=SplitsConfig(embargo_bars=3)))


def test_a_scaler_travels_as_plain_arrays():
    market = prepare()
    again = Scaler.from_state(market.scaler.state_dict())
    other = prepare(scaler=again)
    np.testing.assert_array_equal(market.inputs, other.inputs)
    assert other.splits["whole"].end == 5031


def test_scaled_features_are_cut_and_one_that_never_moves_is_zero():
    # On train (bars 0 to 129) the spike is 0 and 2 by turns: mean 1, std 1. Afterwards it is 9: (9 - 1) / 1, cut at 3.
    bars = random_bars(np.random.default_rng(0), n=200, n_assets=1)
    spike = np.where(np.arange(200) < 130, 2.0 * (np.arange(200) % 2), 9.0)[:, None]
    bars = replace(bars, extra={"feature_flat": np.full((200, 1), 0.7), "feature_spike": spike})
    config = DataConfig(features=(), feature_clip=3.0, splits=SplitsConfig(train=0.65, validation=0.15))
    scaled = prepare(config, bars=bars).features[:, 0]  # (n, 2)
    assert np.abs(scaled[:, 0]).max() < 1e-12  # and not 0.7 less a mean that misses it by one bit, over that bit
    assert scaled[[0, 1, 130], 1].tolist() == [-1.0, 1.0, 3.0]
    uncut = prepare(config.model_copy(update={"feature_clip": None}), bars=bars)
    assert uncut.features[130, 0, 1] == 8.0


def test_a_fingerprint_depends_on_every_number():
    bars = replace(
        random_bars(np.random.default_rng(0), n=9, n_assets=2), extra={"feature_own": np.arange(18.0).reshape(9, 2)}
    )
    changed = {name: getattr(bars, name) * 1.001 for name in ("open", "low", "close", "volume")}
    changed["high"] = bars.high * 1.002
    found = {replace(bars, **{name: column}).fingerprint for name, column in changed.items()}
    found |= {replace(bars, extra={"feature_own": bars.extra["feature_own"] + 1.0}).fingerprint}
    found |= {
        replace(bars, assets=("a", "b")).fingerprint,
        replace(bars, time=bars.time + np.timedelta64(1, "s")).fingerprint,
    }
    assert len(found | {bars.fingerprint}) == 9
    assert replace(bars, source="elsewhere").fingerprint == bars.fingerprint


def test_trailing_statistics_use_what_there_is():
    values = np.array([np.nan, 1.0, 3.0, 8.0])
    # std of (1, 3) = sqrt 2, of (1, 3, 8) = 3.6056, of the last two (3, 8) = 3.5355
    np.testing.assert_allclose(trailing_std(values, 3), [np.nan, np.nan, math.sqrt(2), 3.605551275], rtol=1e-9)
    np.testing.assert_allclose(trailing_std(values, 2)[3], 5 / math.sqrt(2))
    np.testing.assert_allclose(trailing_median(np.array([4.0, 2.0, 9.0, 1.0]), 3), [4.0, 3.0, 4.0, 2.0])
