"""Prices and costs, laid out for the kernel: one row per bar and asset, one vector of rates."""

import numpy as np

from leeward.config.trading import EnvConfig
from leeward.env import kernel as k
from leeward.market.bars import Bars, FloatArray
from leeward.market.rolling import trailing_median, trailing_std

__all__ = ["IMPACT_BARS", "impact_per_root_unit", "price_panel", "rates"]

IMPACT_BARS = 20


def impact_per_root_unit(bars: Bars) -> FloatArray:
    """σ / sqrt(V) (n, A): impact as a fraction of the notional is coef · this · sqrt(units traded).

    σ = sample standard deviation of the last 20 close-to-close log-returns ≤ t, V = median volume of the last 20 bars
    ≤ t, both over the asset's own bars and over fewer of them at its start. No volume, or no σ yet: no impact.
    """
    out = np.zeros((len(bars), len(bars.assets)))
    for asset in range(len(bars.assets)):
        here = bars.present[:, asset]
        close = np.ascontiguousarray(bars.close[here, asset])
        volume = trailing_median(np.ascontiguousarray(bars.volume[here, asset]), IMPACT_BARS)
        sigma = trailing_std(np.diff(np.log(close), prepend=np.nan), IMPACT_BARS)
        known = np.isfinite(sigma) & np.isfinite(volume) & (volume > 0.0)
        out[here, asset] = np.where(known, sigma / np.sqrt(np.where(known, volume, 1.0)), 0.0)
        rows = np.maximum.accumulate(np.where(here, np.arange(len(bars)), 0))
        out[:, asset] = np.where(np.arange(len(bars)) >= bars.first_bar[asset], out[rows, asset], 0.0)
    return out


def price_panel(bars: Bars) -> FloatArray:
    """(n, A, 4): open, close, impact and code of every bar; an absent bar repeats the last close as both prices."""
    carried = bars.carried_close
    before = np.isnan(carried)
    panel = np.empty((len(bars), len(bars.assets), k.PANEL_COLUMNS))
    panel[:, :, k.OPEN] = np.where(bars.present, bars.open, np.where(before, 1.0, carried))
    panel[:, :, k.CLOSE] = np.where(before, 1.0, carried)  # never held before the first bar, so any price will do
    panel[:, :, k.IMPACT] = impact_per_root_unit(bars)
    after = np.arange(len(bars))[:, None] > bars.last_bar
    panel[:, :, k.CODE] = np.where(bars.present, k.TRADABLE, np.where(before, k.NOT_LISTED, k.NO_BAR))
    panel[:, :, k.CODE][after] = k.DELISTED
    return panel


def rates(config: EnvConfig) -> FloatArray:
    """The vector of numbers the kernel reads, in the order of its constants."""
    costs, account = config.costs, config.account
    vector = np.zeros(k.RATES)
    vector[k.COMMISSION_RATE] = costs.commission_bps * 1e-4
    vector[k.SPREAD_RATE] = costs.half_spread_bps * 1e-4
    vector[k.FIXED_FEE] = costs.fixed_fee
    vector[k.IMPACT_COEF] = costs.impact_coef
    vector[k.CASH_RATE] = costs.cash_rate
    vector[k.DEBIT_RATE] = costs.debit_rate
    vector[k.BORROW_RATE] = costs.borrow_rate
    vector[k.GROSS_LIMIT] = account.gross_limit
    vector[k.BAND] = account.rebalance_band
    vector[k.MAINTENANCE] = account.maintenance
    vector[k.FLOOR] = account.ruin * account.initial_equity
    vector[k.INITIAL] = account.initial_equity
    vector[k.SHARPE_REWARD] = float(config.reward == "differential_sharpe")
    vector[k.SHARPE_RATE] = 1.0 / config.sharpe_memory_bars
    vector[k.SHARPE_PRIOR] = config.sharpe_prior_std**2
    return vector
