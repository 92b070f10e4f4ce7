"""Every source gives the same bars."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from leeward.config.trading import DataConfig
from leeward.errors import DataError, MissingExtra
from leeward.market import from_ccxt, from_frame, load
from leeward.market.synthetic import CONTROL_R2, control, synthetic

N = 40
TIME = pd.bdate_range("2024-01-01", periods=N)
RNG = np.random.default_rng(0)
CLOSES = np.round(100.0 * np.exp(np.cumsum(0.01 * RNG.standard_normal(N))), 4)
FRAME = pd.DataFrame(
    {"Open": CLOSES - 0.5, "High": CLOSES + 1.0, "Low": CLOSES - 1.0, "Close": CLOSES, "Volume": 1000.0 + np.arange(N)},
    index=pd.DatetimeIndex(TIME, name="Date"),
)
EXPECTED = from_frame(FRAME).fingerprint


def long_form():
    lower = FRAME.rename(columns=str.lower).reset_index(names="date")
    other = lower.assign(close=lower["close"] * 2, open=lower["open"] * 2, high=lower["high"] * 2, low=lower["low"] * 2)
    both = pd.concat([lower.assign(tic="AAA"), other.assign(tic="BBB").iloc[3:]])
    return both.sort_values(["date", "tic"], ignore_index=True)


def csv(tmp_path, text, name="asset.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_text(text, encoding=encoding)
    return path


def text_forms():
    lower = FRAME.rename(columns=str.lower)
    epoch = lower.reset_index(names="timestamp")
    seconds = epoch.assign(timestamp=epoch["timestamp"].astype("datetime64[s]").astype("int64"))
    millis = epoch.assign(timestamp=epoch["timestamp"].astype("datetime64[ms]").astype("int64"))
    zoned = lower.tz_localize("UTC").tz_convert("America/New_York")
    american = lower.reset_index(names="Date").assign(Date=lower.index.strftime("%m/%d/%Y"))
    german = lower.reset_index(names="Date").assign(Date=lower.index.strftime("%d.%m.%Y %H:%M:%S.000"))
    return {
        "yfinance": (FRAME.to_csv(), "utf-8"),
        "byte order mark": (FRAME.to_csv(), "utf-8-sig"),
        "semicolons": (FRAME.to_csv(sep=";"), "utf-8"),
        "semicolons and decimal commas": (FRAME.to_csv(sep=";", decimal=","), "utf-8"),
        "tabs": (lower.to_csv(sep="\t"), "utf-8"),
        "epoch seconds": (seconds.to_csv(index=False), "utf-8"),
        "epoch milliseconds": (millis.to_csv(index=False), "utf-8"),
        "epoch milliseconds without a header": (millis.to_csv(index=False, header=False), "utf-8"),
        "a time zone": (zoned.to_csv(), "utf-8"),
        "month first": (american.to_csv(index=False), "utf-8"),
        "day first with dots": (german.to_csv(index=False), "utf-8"),
    }


@pytest.mark.parametrize("form", text_forms())
def test_text_files_of_every_form_give_the_same_bars(tmp_path, form):
    text, encoding = text_forms()[form]
    assert load(csv(tmp_path, text, encoding=encoding)).fingerprint == EXPECTED


def test_frames_rows_and_parquet_give_the_same_bars(tmp_path):
    lower = FRAME.rename(columns=str.lower)
    assert from_frame(lower).fingerprint == EXPECTED
    assert from_frame(lower.reset_index(names="datetime")).fingerprint == EXPECTED
    assert from_frame(FRAME.tz_localize("UTC").tz_convert("Asia/Tokyo")).fingerprint == EXPECTED
    rows = [[int(t.timestamp() * 1000), *map(float, row)] for t, row in zip(TIME, FRAME.to_numpy(), strict=True)]
    assert from_ccxt(rows).fingerprint == EXPECTED
    FRAME.to_parquet(tmp_path / "asset.parquet")
    assert load(tmp_path / "asset.parquet").fingerprint == EXPECTED


def test_the_long_format_of_finrl_is_a_panel():
    bars = from_frame(long_form())
    assert bars.assets == ("AAA", "BBB") and bars.close.shape == (N, 2)
    assert bars.present.sum(axis=0).tolist() == [N, N - 3]
    assert bars.first_bar.tolist() == [0, 3]
    np.testing.assert_array_equal(bars.close[3:, 1], 2 * CLOSES[3:])


@pytest.mark.parametrize("column", ["time", "date"])
def test_old_row_numbers_are_not_times(column, tmp_path):
    lower = FRAME.rename(columns=str.lower).reset_index(names=column)
    filtered = pd.concat([lower.iloc[:3], lower])[3:]
    assert not isinstance(filtered.index, pd.RangeIndex)
    assert from_frame(filtered).fingerprint == EXPECTED
    filtered.to_parquet(tmp_path / "asset.parquet")
    assert load(tmp_path / "asset.parquet").fingerprint == EXPECTED


def test_a_directory_is_a_panel_of_its_files(tmp_path):
    FRAME.to_csv(tmp_path / "AAA.csv")
    (2 * FRAME.iloc[3:]).to_csv(tmp_path / "BBB.csv")
    (tmp_path / "notes.md").write_text("not bars")
    bars = load(tmp_path)
    assert bars.assets == ("AAA", "BBB") and bars.present.sum(axis=0).tolist() == [N, N - 3]
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match="no bars in this directory"):
        load(tmp_path / "nothing")


@pytest.mark.parametrize("field_first", [True, False])
def test_many_tickers_of_yfinance_are_a_panel(field_first):
    both = pd.concat({"AAA": FRAME, "BBB": FRAME * 2}, axis=1)  # (ticker, field)
    frame = both.swaplevel(axis=1) if field_first else both
    bars = from_frame(frame)
    assert bars.assets == ("AAA", "BBB")
    np.testing.assert_array_equal(bars.close, np.stack((CLOSES, 2 * CLOSES), axis=1))


def test_adjusted_closes_adjust_all_prices_and_the_volume():
    # Adj Close = Close / 2: every price halves, the volume doubles.
    frame = FRAME.assign(**{"Adj Close": FRAME["Close"] / 2})
    bars = from_frame(frame)
    np.testing.assert_allclose(bars.open[:, 0], FRAME["Open"] / 2)
    np.testing.assert_allclose(bars.volume[:, 0], FRAME["Volume"] * 2)
    assert from_frame(frame, DataConfig(adjust=False)).fingerprint == EXPECTED


def test_a_stamp_of_the_close_is_moved_back_by_one_bar():
    bars = from_frame(FRAME, DataConfig(stamp="close"))
    assert bars.time[0] == np.datetime64("2023-12-31") and bars.time[1] == np.datetime64("2024-01-01")


def test_times_without_a_zone_are_read_in_the_one_configured():
    bars = from_frame(FRAME, DataConfig(time_zone="America/New_York"))
    assert str(bars.time[0]) == "2024-01-01T05:00:00.000000000"


def test_own_features_join_under_their_names():
    bars = from_frame(FRAME.assign(feature_mood=np.arange(N, dtype=float), Feature_Late=[np.nan] * 9 + [1.0] * (N - 9)))
    assert sorted(bars.extra) == ["feature_late", "feature_mood"]
    assert bars.fingerprint != EXPECTED


def test_samples_are_read_without_importing_their_package_and_without_torch():
    code = (
        "import sys; from leeward.market import load; import leeward.env; assert len(load('sample:nasdaq')) == 5031; "
        "print([m for m in ('arch', 'statsmodels', 'torch', 'stable_baselines3') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_sample_whose_package_is_missing_says_what_to_install(monkeypatch):
    monkeypatch.setattr("leeward.market.samples.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install 'leeward\\[trading\\]'"):
        load("sample:nasdaq")


def test_synthetic_markets_follow_their_seed():
    for make in (synthetic, control):
        assert make(3, 500).fingerprint == make(3, 500).fingerprint
        assert make(3, 500).fingerprint != make(4, 500).fingerprint
    assert load("sample:control", DataConfig(seed=3, n_bars=500)).fingerprint == control(3, 500).fingerprint


def test_the_synthetic_market_has_clustered_fat_tailed_returns():
    returns = np.diff(np.log(synthetic(0, 20_000).close[:, 0]))
    z = (returns - returns.mean()) / returns.std()
    assert (z**4).mean() > 5.0  # a normal has 3
    sizes = np.abs(returns)
    assert np.corrcoef(sizes[1:], sizes[:-1])[0, 1] > 0.1


def test_the_control_signal_explains_its_share_of_the_next_return():
    # 200,000 bars: the standard error of R² is about 2 sqrt(R² / n) = 0.00055.
    bars = control(1, 200_000)
    returns = np.diff(np.log(bars.close[:, 0]))
    correlation = np.corrcoef(bars.extra["feature_signal"][:-1, 0], returns)[0, 1]
    assert correlation**2 == pytest.approx(CONTROL_R2, abs=0.0017)
    np.testing.assert_array_equal(bars.open[1:], bars.close[:-1])
