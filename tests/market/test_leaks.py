"""A column that knows the future is named; usual indicators are not."""

import numpy as np
import pandas as pd
import pytest

from leeward.config.trading import DataConfig
from leeward.errors import ArgumentError
from leeward.market import from_frame, load, prepare, with_feature
from leeward.market.leaks import leaking_features


def bars_of(seed=None, n=1200):
    config = DataConfig(seed=seed or 0, n_bars=n)
    return load("sample:synthetic" if seed is not None else "sample:nasdaq", config)


def frame_of(bars):
    columns = {name: getattr(bars, name)[:, 0] for name in ("open", "high", "low", "close", "volume")}
    return pd.DataFrame(columns, index=pd.DatetimeIndex(bars.time, name="date"))


def honest(d):
    close, high, low, move = d.close, d.high, d.low, np.log(d.close).diff()
    up, down = move.clip(lower=0), -move.clip(upper=0)
    reach = pd.concat([high - low, (high - close.shift()).abs(), (low - close.shift()).abs()], axis=1).max(axis=1)
    fast, slow = close.ewm(span=12).mean(), close.ewm(span=26).mean()
    typical = (high + low + close) / 3
    top, bottom = high.rolling(14).max(), low.rolling(14).min()
    return {
        "sma_20": close.rolling(20).mean(),
        "sma_200": close.rolling(200).mean(),
        "ema_50": close.ewm(span=50).mean(),
        "macd": fast - slow,
        "macd_signal": (fast - slow).ewm(span=9).mean(),
        "rsi": 100 - 100 / (1 + up.ewm(alpha=1 / 14).mean() / down.ewm(alpha=1 / 14).mean()),
        "bollinger_top": close.rolling(20).mean() + 2 * close.rolling(20).std(),
        "bollinger_width": 4 * close.rolling(20).std() / close.rolling(20).mean(),
        "percent_b": (close - close.rolling(20).mean()) / close.rolling(20).std(),
        "atr": reach.ewm(alpha=1 / 14).mean(),
        "stochastic": (close - bottom) / (top - bottom),
        "williams_r": (top - close) / (top - bottom),
        "cci": (typical - typical.rolling(20).mean()) / typical.rolling(20).std(),
        "rate_of_change": close.pct_change(10),
        "momentum_252": close.pct_change(252),
        "obv": (np.sign(move) * d.volume).cumsum(),
        "volatility": move.rolling(20).std(),
        "vwap": (typical * d.volume).rolling(20).sum() / d.volume.rolling(20).sum(),
        "donchian": high.rolling(55).max(),
        "z_score": (close - close.rolling(100).mean()) / close.rolling(100).std(),
        "close": close,
        "last_move": move,
        "gap": np.log(d.open / close.shift()),
        "weekday": pd.Series(pd.DatetimeIndex(d.index).day_of_week, d.index),
    }


def leaking(d):
    close, move = d.close, np.log(d.close).diff()
    return {
        "next_return": move.shift(-1),
        "next_close": close.shift(-1),
        "next_high": d.high.shift(-1),
        "sign_of_the_next_return": np.sign(move.shift(-1)),
        "centred_5": close.rolling(5, center=True).mean(),
        "centred_21": close.rolling(21, center=True).mean(),
        "centred_51": close.rolling(51, center=True).mean(),
        "centred_ratio": close.rolling(21, center=True).mean() / close - 1,
        "return_of_the_next_week": np.log(close.shift(-5) / close),
        "filled_backwards": close.where(np.arange(len(d)) % 10 == 9).bfill(),
        "size_of_the_next_return": move.shift(-1).abs(),
        "next_return_in_noise": move.shift(-1) + 1.5 * move.std() * np.random.default_rng(0).standard_normal(len(d)),
    }


def named(bars):
    return sorted(p.message.split()[0].removeprefix("feature_") for p in leaking_features(bars))


def with_columns(frame, columns):
    return from_frame(frame.assign(**{f"feature_{name}": np.asarray(c, float) for name, c in columns.items()}))


@pytest.mark.parametrize("seed", [None, 0, 4])
def test_every_leaking_column_is_named_and_no_honest_one(seed):
    frame = frame_of(bars_of(seed)).iloc[-1200:]
    assert named(with_columns(frame, honest(frame))) == []
    assert named(with_columns(frame, leaking(frame))) == sorted(leaking(frame))


def test_honest_columns_of_few_bars_are_not_named_by_luck():
    for seed in range(6):
        frame = frame_of(bars_of(seed, 300))
        assert named(with_columns(frame, honest(frame))) == []


def test_a_planted_signal_and_a_bounce_between_bid_and_ask_are_no_leaks():
    assert leaking_features(load("sample:control", DataConfig(n_bars=3000))) == []
    frame = frame_of(bars_of(1))
    bounce = frame * np.where(np.arange(len(frame)) % 2, 1.01, 0.99)[:, None]  # every move is undone by the next
    assert named(with_columns(bounce, {"last_move": np.log(bounce.close).diff()})) == []


def test_a_leak_in_one_of_several_assets_is_found_and_stays_with_the_market():
    parts = []
    for i, name in enumerate(("AAA", "BBB")):
        frame = frame_of(bars_of(i, 400)).reset_index()
        move = np.log(frame.close).diff()
        parts.append(frame.assign(asset=name, feature_odd=move.shift(-1 if name == "BBB" else 0)))
    market = prepare(DataConfig(features=("return_1",)), bars=pd.concat(parts))
    (problem,) = market.bars.problems
    assert problem.kind == "leaking feature" and problem.severity == "warning"
    assert "feature_odd knows the future: later moves of BBB explain 100%" in problem.message


def scaled_by_all(frame):
    return (frame.close - frame.close.mean()) / frame.close.std()


def rolling_score(frame):
    return (frame.close - frame.close.rolling(20).mean()) / frame.close.rolling(20).std()


def test_a_function_that_scales_by_the_future_is_named():
    bars = bars_of(0, 300)
    (problem,) = with_feature(bars, "feature_scaled", scaled_by_all).problems
    assert problem.message.startswith("feature_scaled of synthetic changes when later bars are cut off")
    good = with_feature(bars, "feature_score", rolling_score)
    assert good.problems == () and np.isfinite(good.extra["feature_score"][19:]).all()
    (problem,) = with_feature(bars, "feature_next", lambda frame: frame.close.shift(-1)).problems
    assert "feature_next" in problem.message


def test_a_function_must_give_one_number_per_bar():
    with pytest.raises(ArgumentError, match="one number per bar, 300, got"):
        with_feature(bars_of(0, 300), "feature_x", lambda frame: frame.close[:-1])
    with pytest.raises(ArgumentError, match="begins with 'feature_'"):
        with_feature(bars_of(0, 300), "x", rolling_score)
