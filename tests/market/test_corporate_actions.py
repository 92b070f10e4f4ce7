"""Splits and dividends in columns of their own, applied to raw prices and to no others; every number by hand."""

import numpy as np
import pandas as pd
import pytest

from leeward.config.trading import DataConfig
from leeward.errors import DataError
from leeward.market import load

CLOSES = [100.0, 104.0, 51.0, 52.0, 51.5, 50.0]
SPLITS = [0.0, 0.0, 2.0, 0.0, 0.0, 0.0]  # two for one before the open of the third bar
DIVIDENDS = [0.0, 1.0, 0.0, 0.0, 1.04, 0.0]  # 1 of 100 the day before; 1.04 of 52


def frame(closes=CLOSES, *, splits=None, dividends=None):
    columns = {
        "Date": pd.bdate_range("2024-01-01", periods=len(closes)),
        "Open": [close + 0.25 for close in closes],
        "High": [close + 1.0 for close in closes],
        "Low": [close - 1.0 for close in closes],
        "Close": closes,
        "Volume": [1000.0] * len(closes),
    }
    if dividends is not None:
        columns["Dividends"] = dividends
    if splits is not None:
        columns["Stock Splits"] = splits
    return pd.DataFrame(columns)


def said(bars):
    return [(problem.severity, problem.message) for problem in bars.problems]


def test_a_split_and_dividends_of_raw_prices_are_applied_to_all_bars_before_them():
    bars = load(frame(splits=SPLITS, dividends=DIVIDENDS), name="A")
    # Bar 0: 1/2 for the split, 1 − 1/100 = .99 and 1 − 1.04/52 = .98 for the dividends; each in the money of its day.
    factor = np.array([0.5 * 0.99 * 0.98, 0.5 * 0.98, 0.98, 0.98, 1.0, 1.0])
    for column, offset in (("open", 0.25), ("high", 1.0), ("low", -1.0), ("close", 0.0)):
        np.testing.assert_allclose(getattr(bars, column)[:, 0], (np.array(CLOSES) + offset) * factor, rtol=1e-15)
    assert bars.volume[:, 0].tolist() == [2000.0, 2000.0, 1000.0, 1000.0, 1000.0, 1000.0]  # dividends sell no shares
    assert said(bars) == [
        ("note", "A: 1 split of Stock Splits applied to the prices before"),
        ("note", "A: 2 payments of Dividends applied to the prices before"),
    ]
    # Who held over the first dividend earned 104 + 1 on 100, as (104 · .49) / (100 · .4851) says: 1.0505 = 1.04 / .99.
    assert bars.close[1, 0] / bars.close[0, 0] == pytest.approx(1.04 / 0.99, rel=1e-15)


def test_prices_that_know_of_the_split_know_of_the_dividends():
    closes = [50.0, 52.0, 51.0, 52.0, 51.5, 50.0]
    bars = load(frame(closes, splits=SPLITS, dividends=DIVIDENDS), name="A")
    assert bars.close[:, 0].tolist() == closes and set(bars.volume[:, 0]) == {1000.0}
    assert said(bars) == [
        ("note", "A: 1 split in Stock Splits, which the prices know of already"),
        ("note", "A: 2 payments in Dividends taken as known to the prices, as Yahoo's are"),
    ]


@pytest.mark.parametrize(
    ("meaning", "factor", "severity"), [("auto", 1.0, "warning"), ("adjusted", 1.0, "note"), ("raw", 0.98, "note")]
)
def test_dividends_alone_mean_what_the_config_says_and_without_it_a_warning_asks(meaning, factor, severity):
    closes = [51.0, 52.0, 51.5, 50.0]
    bars = load(frame(closes, dividends=[0.0, 0.0, 1.04, 0.0]), DataConfig(dividends=meaning), name="A")
    np.testing.assert_allclose(bars.close[:, 0], [51.0 * factor, 52.0 * factor, 51.5, 50.0], rtol=1e-15)
    ((found, words),) = said(bars)
    assert found == severity and ("set data.dividends: raw" in words) is (meaning == "auto")


def test_an_adjusted_close_makes_both_columns_superfluous():
    table = frame(splits=SPLITS, dividends=DIVIDENDS)
    table["Adj Close"] = [49.0, 51.0, 50.0, 51.0, 51.5, 50.0]
    bars = load(table, name="A")
    np.testing.assert_allclose(bars.close[:, 0], table["Adj Close"], rtol=1e-15)
    np.testing.assert_allclose(bars.volume[0, 0], 1000.0 * 100.0 / 49.0, rtol=1e-15)
    unadjusted = load(table, DataConfig(adjust=False), name="A")
    assert unadjusted.close[:, 0].tolist() == CLOSES


def test_a_dividend_above_the_price_is_refused_with_what_to_do():
    with pytest.raises(DataError, match="A: a dividend is not below the price before it; correct Dividends or leave"):
        load(frame([51.0, 52.0, 51.5], dividends=[0.0, 52.0, 0.0]), DataConfig(dividends="raw"), name="A")


def test_each_asset_has_splits_of_its_own():
    calm = frame([50.0, 52.0, 51.0, 52.0, 51.5, 50.0], splits=[0.0] * 6)
    both = pd.concat([calm.assign(tic="CALM"), frame(splits=SPLITS).assign(tic="SPLIT")])
    bars = load(both)
    assert bars.assets == ("CALM", "SPLIT")
    assert bars.close[0].tolist() == [50.0, 50.0] and bars.volume[0].tolist() == [1000.0, 2000.0]
