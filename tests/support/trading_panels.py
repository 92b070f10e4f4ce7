"""Random panels for tests: jumps, missing bars, late listings and delistings, with or without volume."""

import numpy as np

from leeward.config.trading import DataConfig, SplitsConfig
from leeward.market import Bars, Market, prepare


def random_bars(
    rng: np.random.Generator,
    *,
    n: int,
    n_assets: int,
    volatility: float = 0.03,
    missing: float = 0.0,
    volume: bool = True,
) -> Bars:
    shape = (n, n_assets)
    close = 100.0 * np.exp(np.cumsum(volatility * rng.standard_t(4.0, shape), axis=0))
    open_ = np.vstack((np.full(n_assets, 100.0), close[:-1])) * np.exp(0.5 * volatility * rng.standard_normal(shape))
    high, low = np.maximum(open_, close) * 1.01, np.minimum(open_, close) * 0.99
    traded = np.exp(rng.normal(9.0, 1.0, shape)) if volume else np.full(shape, np.nan)
    absent = rng.random(shape) < missing
    absent[:, 0] = False  # one asset is always there, so that no time is empty
    if missing and n_assets > 1:
        absent[: n // 5, 1] = True  # listed late
        absent[-n // 5 :, n_assets - 1] = True  # delisted
    columns = {"open": open_, "high": high, "low": low, "close": close, "volume": traded}
    for column in columns.values():
        column[absent] = np.nan
    days = np.cumsum(rng.integers(1, 4, n)).astype("timedelta64[D]")
    time = (np.datetime64("2020-01-01") + days).astype("datetime64[ns]")
    return Bars(time, tuple(f"asset{a}" for a in range(n_assets)), **columns)


def small_market(bars: Bars) -> Market:
    """Two features with a short look-back, so that nearly all bars are in a split."""
    config = DataConfig(features=("return_1", "intraday"), splits=SplitsConfig(train=0.6, validation=0.2))
    return prepare(config, bars=bars)
