"""Nothing at bar t depends on a bar after t, nor on a bar before its declared look-back."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leeward.config.trading import DataConfig, EnvConfig
from leeward.env import Simulation
from leeward.market import Bars, prepare
from leeward.market.features import FEATURES, compute_feature

from ..support.trading_panels import random_bars

N, A = 620, 2
BARS = random_bars(np.random.default_rng(0), n=N, n_assets=A, missing=0.05)
HOURLY = replace(BARS, time=np.datetime64("2024-01-01", "ns") + np.arange(N) * np.timedelta64(1, "h"))


def changed(bars: Bars, rows: slice, seed: int) -> Bars:
    """Other prices and volumes in `rows`, each moved by itself; the same bars are present."""
    rng = np.random.default_rng(seed)
    columns = {name: getattr(bars, name).copy() for name in ("open", "high", "low", "close", "volume")}
    for name in ("open", "close", "volume"):
        columns[name][rows] *= 3.0 * np.exp(0.2 * rng.standard_normal((N, A)))[rows]
    reach = np.exp(0.2 * np.abs(rng.standard_normal((2, N, A))))
    columns["high"][rows] = (np.maximum(columns["open"], columns["close"]) * reach[0])[rows]
    columns["low"][rows] = (np.minimum(columns["open"], columns["close"]) / reach[1])[rows]
    extra = {name: column.copy() for name, column in bars.extra.items()}
    for column in extra.values():
        column[rows] += 1.0
    return replace(bars, **columns, extra=extra)


@pytest.mark.parametrize("name", FEATURES)
@settings(max_examples=6)
@given(t=st.integers(90, N - 2), seed=st.integers(0, 100))
def test_a_feature_at_t_is_blind_to_later_bars(name, t, seed):
    before = compute_feature(HOURLY, name)
    after = compute_feature(changed(HOURLY, slice(t + 1, None), seed), name)
    np.testing.assert_array_equal(before[: t + 1], after[: t + 1])


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_reads_exactly_its_look_back(name):
    # On a panel without holes: changing all bars before t - look_back changes nothing at t ...
    whole = replace(random_bars(np.random.default_rng(1), n=N, n_assets=A), time=HOURLY.time)
    t, look_back = 200, FEATURES[name].look_back
    value = compute_feature(whole, name)[t]
    np.testing.assert_array_equal(value, compute_feature(changed(whole, slice(0, t - look_back), 3), name)[t])
    if (
        look_back
    ):  # ... and the bar at t - look_back is read; one that is a maximum or a median would hide a small change.
        wilder = changed(whole, slice(t - look_back, t - look_back + 1), 5)
        scaled = {c: np.where(np.arange(N)[:, None] == t - look_back, 9.0, 1.0) for c in ("open", "close", "volume")}
        wilder = replace(wilder, **{c: getattr(wilder, c) * scaled[c] for c in scaled}, high=wilder.high * 9.0)
        assert (value != compute_feature(wilder, name)[t]).all()
    full = compute_feature(whole, name)
    assert np.isnan(full[:look_back]).all() and np.isfinite(full[look_back:]).all()


@settings(max_examples=12)
@given(t=st.integers(100, N - 3), seed=st.integers(0, 100))
def test_observations_targets_and_fills_up_to_t_are_blind_to_later_bars(t, seed):
    signal = {"feature_own": np.random.default_rng(2).standard_normal((N, A))}
    bars = replace(BARS, extra={"feature_own": np.where(BARS.present, signal["feature_own"], np.nan)})
    first = prepare(DataConfig(), bars=bars)
    second = prepare(DataConfig(), bars=changed(bars, slice(t + 1, None), seed), scaler=first.scaler)
    np.testing.assert_array_equal(first.inputs[: t + 1], second.inputs[: t + 1])
    np.testing.assert_array_equal(first.valid[: t + 1], second.valid[: t + 1])
    runs = []
    for market in (first, second):
        split = "train" if market is first else "whole"
        simulation = Simulation(market, EnvConfig(min_weight=-1.0), n_envs=3, split=split)
        observation = simulation.place(79, N)
        seen = [observation]
        for _ in range(79, t):
            # A policy that reads everything it is shown.
            observation = simulation.step(np.tanh(observation[:, : A * 3 : 3].astype(np.float64))).observations
            seen.append(observation)
        runs.append((np.stack(seen), simulation.units.copy(), simulation.cash.copy()))
    for x, y in zip(*runs, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("name", ["train", "validation", "test"])
def test_a_split_reads_no_bar_of_another_split(name):
    # Everything outside [warmup, end) may change: with the scaler held fixed the split's inputs stay the same.
    whole = random_bars(np.random.default_rng(1), n=2 * N, n_assets=A)
    market = prepare(DataConfig(), bars=whole)
    split = market.splits[name]
    rng = np.random.default_rng(0)
    outside = np.ones(2 * N, dtype=bool)
    outside[split.warmup : split.end] = False
    factor = np.where(outside, np.exp(rng.standard_normal(2 * N)), 1.0)[:, None]
    columns = {c: getattr(whole, c) * factor for c in ("open", "high", "low", "close", "volume")}
    other = prepare(DataConfig(), bars=replace(whole, **columns), scaler=market.scaler)
    np.testing.assert_array_equal(market.inputs[split.start : split.end], other.inputs[split.start : split.end])


def test_the_scaler_sees_train_alone():
    # Every price, volume and hour after train is another one, and so is every feature there; no scale may notice.
    whole = random_bars(np.random.default_rng(1), n=2 * N, n_assets=A)
    whole = replace(whole, time=np.datetime64("2024-01-01", "ns") + np.arange(2 * N) * np.timedelta64(1, "h"))
    market = prepare(DataConfig(), bars=whole)
    end = market.splits["train"].end
    rng = np.random.default_rng(0)
    later = np.arange(2 * N)[:, None] >= end
    columns = {
        name: getattr(whole, name) * np.where(later, np.exp(rng.standard_normal((2 * N, A))), 1.0)
        for name in ("open", "close", "volume")
    }
    columns["high"] = np.where(later, 2.0 * np.maximum(columns["open"], columns["close"]), whole.high)
    columns["low"] = np.where(later, 0.5 * np.minimum(columns["open"], columns["close"]), whole.low)
    time = whole.time + np.where(later[:, 0], np.arange(2 * N), 0) * np.timedelta64(17, "m")
    other = prepare(DataConfig(), bars=replace(whole, **columns, time=time))
    assert set(market.feature_names) == set(FEATURES)
    assert (np.abs(market.features[end + 78 :] - other.features[end + 78 :]).max(axis=(0, 1)) > 0.1).all()
    np.testing.assert_array_equal(market.scaler.mean, other.scaler.mean)
    np.testing.assert_array_equal(market.scaler.std, other.scaler.std)
    train = market.splits["train"]
    inside = market.features[train.start : train.end]
    assert np.abs(inside.mean(axis=(0, 1))).max() < 0.05 and np.abs(inside.std(axis=(0, 1)) - 1.0).max() < 0.05


def test_a_volume_that_comes_later_does_not_unflag_earlier_bars():
    whole = random_bars(np.random.default_rng(1), n=2 * N, n_assets=A)
    late = np.where(np.arange(2 * N)[:, None] > 500, whole.volume, np.nan)
    with_volume = prepare(DataConfig(), bars=replace(whole, volume=late))
    without = prepare(DataConfig(), bars=replace(whole, volume=late * np.nan), scaler=with_volume.scaler)
    np.testing.assert_array_equal(with_volume.inputs[:501], without.inputs[:501])
    assert with_volume.flags[77:501].all() and not with_volume.flags[501:520].any() and with_volume.flags[520:].all()
