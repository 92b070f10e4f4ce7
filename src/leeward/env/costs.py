"""Prices and costs, laid out for the kernel: one row per bar and asset, one vector of rates."""

from collections.abc import Sequence

import numpy as np

from leeward.config.trading import EnvConfig, OrderCosts
from leeward.env import kernel as k
from leeward.errors import ConfigError, did_you_mean
from leeward.market.bars import Bars, FloatArray
from leeward.market.rolling import trailing_median, trailing_std

__all__ = ["IMPACT_BARS", "impact_per_root_unit", "price_panel", "rates", "terms"]

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


def terms(config: EnvConfig, assets: Sequence[str]) -> FloatArray | None:
    """(A, TERMS) what each asset costs and may weigh, in the order of the kernel's constants; None: as `rates` say."""
    costs, account = config.costs, config.account
    for where, named in (("costs.assets", costs.assets), ("account.weight_limits", account.weight_limits)):
        for name in named:
            if name not in assets:
                raise ConfigError(f"env.{where}: no asset {name!r} in these bars; {did_you_mean(name, assets)}")
    if _is_plain(config):
        return None
    table = np.zeros((len(assets), k.TERMS))
    for row, asset in zip(table, assets, strict=True):
        own = costs.of(asset)
        taken = 1.0 - own.maker_share
        row[k.TAKER] = own.commission_bps * 1e-4 * taken
        row[k.MAKER] = own.maker_bps * 1e-4 * own.maker_share
        row[k.HALF_SPREAD] = own.half_spread_bps * 1e-4 * taken
        row[k.PER_UNIT], row[k.PER_ORDER], row[k.LEAST] = own.per_unit, own.fixed_fee, own.min_commission
        row[k.MOST] = np.inf if own.max_commission_bps is None else own.max_commission_bps * 1e-4
        row[k.IMPACT_OF], row[k.BORROW_OF], row[k.FUNDING] = own.impact_coef, own.borrow_rate, own.funding_rate
        row[k.LOT], row[k.LEAST_ORDER] = own.lot_size, own.min_order
        row[k.LOWEST], row[k.HIGHEST] = account.weight_limits.get(asset, (-np.inf, np.inf))
        row[k.TIERS_FROM : k.TIERS_FROM + k.MOST_TIERS] = np.inf
        for i, (start, bps) in enumerate(own.commission_tiers):
            row[k.TIERS_FROM + i], row[k.TIERS_RATE + i] = start, bps * 1e-4 * taken
    return table


def _is_plain(config: EnvConfig) -> bool:
    """Basis points, a fee per order, impact and interest alone, the same for all: what the rates know."""
    costs, account = config.costs, config.account
    extra = OrderCosts(**{name: getattr(costs, name) for name in OrderCosts.model_fields})
    unlimited = account.net_limit is None and account.turnover_limit is None and not account.weight_limits
    return extra == OrderCosts() and not costs.assets and unlimited


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
    vector[k.NET_LIMIT] = np.inf if account.net_limit is None else account.net_limit
    vector[k.TURNOVER_LIMIT] = np.inf if account.turnover_limit is None else account.turnover_limit
    return vector
