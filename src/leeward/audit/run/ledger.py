"""An independent ledger of docs/ideas/trading-environment.md: plain Python, dictionaries and loops, no kernel.

Written from the sentences of that page, one asset at a time; plain before fast. `Ledger.step` returns a dict per bar.
"""

import itertools
import math
import statistics
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from leeward.config.trading import AssetCosts, EnvConfig
from leeward.market import Bars

__all__ = ["Ledger"]

YEAR = 365 * 86_400


@dataclass
class Ledger:
    """One account over bars, from `bar` on."""

    bars: Bars
    config: EnvConfig
    bar: int
    cash: float = 0.0
    units: dict[int, float] = field(default_factory=dict)
    ended: bool = False

    def __post_init__(self) -> None:
        self.cash = self.config.account.initial_equity
        self.units = dict.fromkeys(range(len(self.bars.assets)), 0.0)
        self.floor = self.config.account.ruin * self.config.account.initial_equity
        closes = [column.tolist() for column in self.bars.close.T]
        self.own_bars = [[t for t, close in enumerate(column) if not math.isnan(close)] for column in closes]
        self.listed_at = [set(own) for own in self.own_bars]

    def has_bar(self, t: int, a: int) -> bool:
        return t in self.listed_at[a]

    def bars_up_to(self, t: int, a: int, count: int) -> list[int]:
        """The asset's last bars at or before t, at most so many."""
        end = bisect_right(self.own_bars[a], t)
        return self.own_bars[a][max(0, end - count) : end]

    def last_close(self, t: int, a: int) -> float:
        """The carried close; an asset that is not listed yet is worth nothing."""
        last = self.bars_up_to(t, a, 1)
        return float(self.bars.close[last[0], a]) if last else 0.0

    def price_at_open(self, t: int, a: int) -> float:
        return float(self.bars.open[t, a]) if self.has_bar(t, a) else self.last_close(t, a)

    def impact_fraction(self, t: int, a: int, units: float) -> float:
        """coef · σ · sqrt(|units| / V) from the asset's own bars ≤ t."""
        own = self.bars_up_to(t, a, 21)
        closes = [float(self.bars.close[i, a]) for i in own]
        returns = [math.log(y / x) for x, y in itertools.pairwise(closes)]
        volumes = [float(self.bars.volume[i, a]) for i in own][-20:]
        if len(returns) < 2 or any(math.isnan(v) for v in volumes):
            return 0.0
        volume = statistics.median(volumes)
        if volume <= 0.0:
            return 0.0
        return self.costs_of(a).impact_coef * statistics.stdev(returns) * math.sqrt(abs(units) / volume)

    def costs_of(self, a: int) -> AssetCosts:
        return self.config.costs.of(self.bars.assets[a])

    def commission(self, a: int, size: float, change: float) -> float:
        """Rule 3 for one order: the taker's part by rate or tiers, the maker's part, per unit; then least and most."""
        costs = self.costs_of(a)
        taken, made = 1.0 - costs.maker_share, costs.maker_share
        if costs.commission_tiers:
            starts = [start for start, _ in costs.commission_tiers]
            ends = [*starts[1:], math.inf]
            parts = [
                max(0.0, min(size, end) - start) * bps / 10_000
                for (start, bps), end in zip(costs.commission_tiers, ends, strict=True)
            ]
            charge = taken * sum(parts)
        else:
            charge = taken * size * costs.commission_bps / 10_000
        charge += made * size * costs.maker_bps / 10_000 + costs.per_unit * abs(change)
        charge = max(charge, costs.min_commission)
        if costs.max_commission_bps is not None:
            charge = min(charge, size * costs.max_commission_bps / 10_000)
        return charge

    def trade(self, t: int, a: int, desired: float, price: float, out: dict[str, Any]) -> None:
        """Trade in the step that was decided at t."""
        change = desired - self.units[a]
        if change == 0.0:
            return
        costs = self.costs_of(a)
        size = abs(change * price)
        bill = {
            "commission": self.commission(a, size, change),
            "spread": (1.0 - costs.maker_share) * size * costs.half_spread_bps / 10_000,
            "impact": size * self.impact_fraction(t, a, change),
            "fees": costs.fixed_fee,
        }
        for name, amount in bill.items():
            out[name] += amount
        self.cash -= change * price + sum(bill.values())
        self.units[a] = desired
        out["traded"] += size
        out["n_trades"] += 1

    def value(self, prices: dict[int, float]) -> tuple[float, float]:
        worth = [self.units[a] * prices[a] for a in self.units]
        return sum(worth), sum(abs(w) for w in worth)

    def must_close(self, prices: dict[int, float]) -> bool:
        net, gross = self.value(prices)
        equity = self.cash + net
        return equity < self.config.account.maintenance * gross or equity <= self.floor

    def step(self, targets: list[float]) -> dict[str, Any]:
        t, assets = self.bar, list(self.units)
        costs = self.config.costs
        closes = {a: self.last_close(t, a) for a in assets}
        opens = {a: self.price_at_open(t + 1, a) for a in assets}
        next_closes = {a: self.last_close(t + 1, a) for a in assets}
        before = self.cash + self.value(closes)[0]
        names = ("commission", "spread", "impact", "fees", "traded", "n_trades", "write_off")
        out: dict[str, Any] = dict.fromkeys(names, 0.0)

        years = float((self.bars.time[t + 1] - self.bars.time[t]).astype("int64")) / 1e9 / YEAR
        paid, earned = max(-self.cash, 0.0) * costs.debit_rate * years, max(self.cash, 0.0) * costs.cash_rate * years
        for a in assets:
            value, own = self.units[a] * closes[a], self.costs_of(a)
            if value < 0:
                paid += -value * own.borrow_rate * years
            funding = value * own.funding_rate * years
            if funding > 0:
                paid += funding
            else:
                earned += -funding
        out["interest_paid"], out["interest_earned"] = paid, earned
        self.cash += out["interest_earned"] - out["interest_paid"]
        out["pnl"] = self.value(opens)[0] - self.value(closes)[0]
        equity_at_open = self.cash + self.value(opens)[0]

        terminated, out["closed_at"] = False, None
        if not self.ended and self.must_close(opens):
            terminated, out["closed_at"] = True, "open"
            for a in assets:
                self.trade(t, a, 0.0, opens[a], out)
        elif not self.ended:
            self.rebalance(t, targets, opens, equity_at_open, out)
            held = self.value(opens)[0]
            out["pnl"] += self.value(next_closes)[0] - held
            if self.must_close(next_closes):
                terminated, out["closed_at"] = True, "close"
                for a in assets:
                    self.trade(t, a, 0.0, next_closes[a], out)
        equity = self.cash + self.value(next_closes)[0]
        if equity < self.floor:
            out["write_off"] = self.floor - equity
            self.cash += out["write_off"]
            equity = self.floor
        self.ended = self.ended or terminated
        self.bar = t + 1
        paid = sum(out[name] for name in ("commission", "spread", "impact", "fees", "interest_paid"))
        out |= {
            "equity": equity,
            "cash": self.cash,
            "units": dict(self.units),
            "terminated": terminated,
            "step_return": math.log(equity / before),
            "reward_costs_fraction": paid / before,
            "turnover": out["traded"] / max(equity_at_open, self.floor),
            "exposure": self.value(next_closes)[1] / equity,
            "before": before,
        }
        return out

    def rebalance(
        self, t: int, targets: list[float], opens: dict[int, float], equity: float, out: dict[str, Any]
    ) -> None:
        account = self.config.account
        listed = {a: bool(self.bars_up_to(t + 1, a, 1)) for a in self.units}
        gone = {a: self.own_bars[a][-1] <= t for a in self.units}
        wanted = {a: targets[a] for a in self.units if listed[a] and not gone[a] and not math.isnan(targets[a])}
        for a in wanted:  # the limits of single assets, then gross, net and turnover
            low, high = account.weight_limits.get(self.bars.assets[a], (-math.inf, math.inf))
            wanted[a] = min(max(wanted[a], low), high)
        gross = sum(abs(w) for w in wanted.values())
        scale = min(1.0, account.gross_limit / gross) if gross > 0 else 1.0
        wanted = {a: w * scale for a, w in wanted.items()}
        if account.net_limit is not None:
            wanted = self.within_net(wanted, account.net_limit)
        now = {a: self.units[a] * opens[a] / equity for a in wanted}
        if account.turnover_limit is not None:
            moved = sum(abs(wanted[a] - now[a]) for a in wanted if self.has_bar(t + 1, a))
            if moved > account.turnover_limit:
                wanted = {a: now[a] + (w - now[a]) * account.turnover_limit / moved for a, w in wanted.items()}
        for a in self.units:
            if gone[a]:
                self.trade(t, a, 0.0, self.last_close(t, a), out)
            elif a in wanted and self.has_bar(t + 1, a) and abs(wanted[a] - now[a]) >= account.rebalance_band:
                self.trade(t, a, self.whole_order(a, wanted[a] * equity / opens[a], opens[a]), opens[a], out)

    @staticmethod
    def within_net(weights: dict[int, float], limit: float) -> dict[int, float]:
        """The longer side is scaled down until long less short is the limit."""
        longs, shorts = sum(w for w in weights.values() if w > 0), -sum(w for w in weights.values() if w < 0)
        if longs - shorts > limit:
            return {a: w * (limit + shorts) / longs if w > 0 else w for a, w in weights.items()}
        if shorts - longs > limit:
            return {a: w * (limit + longs) / shorts if w < 0 else w for a, w in weights.items()}
        return weights

    def whole_order(self, a: int, desired: float, price: float) -> float:
        """Units in whole lots towards 0; what is held when the order would be too small and does not close."""
        costs = self.costs_of(a)
        if costs.lot_size:
            lots = int(abs(desired) / costs.lot_size * (1 + 1e-12))
            desired = math.copysign(lots * costs.lot_size, desired)
        small = abs(desired - self.units[a]) * price < costs.min_order
        return self.units[a] if small and desired != 0 else desired
