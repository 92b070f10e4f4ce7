"""Markets of random daily bars for backtests."""

import numpy as np

from leeward.config.trading import DataConfig, SplitsConfig
from leeward.market import Bars, Market, prepare

__all__ = ["market_of", "panel"]


def panel(n: int = 400, n_assets: int = 2, seed: int = 0, absent: tuple[int, int] | None = None) -> Bars:
    """Random daily bars; asset 1 has no bar in [absent)."""
    rng = np.random.default_rng(seed)
    close = 100.0 * np.exp(0.01 * rng.standard_normal((n, n_assets)).cumsum(0))
    opens = close * np.exp(0.003 * rng.standard_normal((n, n_assets)))
    columns = [
        opens,
        np.maximum(opens, close) * 1.001,
        np.minimum(opens, close) * 0.999,
        close,
        np.full_like(close, 1e6),
    ]
    if absent is not None:
        for column in columns:
            column[absent[0] : absent[1], 1] = np.nan
    time = np.datetime64("2015-01-01", "ns") + np.arange(n) * np.timedelta64(1, "D")
    names = tuple(f"asset{i}" for i in range(n_assets))
    return Bars(time, names, *columns)


def market_of(bars: Bars, embargo: int = 9) -> Market:
    config = DataConfig(features=("return_1", "return_5"), splits=SplitsConfig(embargo_bars=embargo), allow_gaps=True)
    return prepare(config, bars=bars)
