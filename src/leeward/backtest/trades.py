"""Round trips: a trade runs from flat, or from a change of sign, to the next one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

__all__ = ["Trade", "round_trips"]


@dataclass(frozen=True, slots=True)
class Trade:
    """One round trip in one asset. Prices are averages over the units; money is currency."""

    asset: str
    side: str  # "long" or "short"
    entry_time: np.datetime64
    exit_time: np.datetime64  # of the last bar so far when still open
    bars: int  # bars in which it was held, entry bar included
    entry_price: float
    exit_price: float  # the last close for what is still held
    peak_weight: float  # largest |weight| at a close
    costs: float
    pnl: float  # after these costs; interest is not shared out to trades
    return_fraction: float  # pnl over the largest capital put in, at cost
    is_open: bool


@dataclass(slots=True)
class _Book:
    """The running sums of a trade that is not finished."""

    sign: float
    entered: int
    bought: float = 0.0  # units into the position
    paid: float = 0.0  # money for them
    sold: float = 0.0  # units out of it
    received: float = 0.0
    costs: float = 0.0
    peak_units: float = 0.0
    peak_weight: float = 0.0


def round_trips(
    *,
    assets: Sequence[str],
    time: NDArray[np.datetime64],  # (n,) the bar in which row t is filled
    units: Floats,  # (n, A) held after it
    fills: Floats,  # (n, A)
    closes: Floats,  # (n, A)
    weights: Floats,  # (n, A) at the close
    costs: Floats,  # (n,) trading costs of the bar
) -> tuple[Trade, ...]:
    """All round trips, in order of entry. A bar that flips the sign ends one and begins the next at the same price."""
    before = np.vstack([np.zeros(len(assets)), units[:-1]])
    notional = np.abs(units - before) * np.where(np.isnan(fills), 0.0, fills)  # (n, A)
    total = notional.sum(axis=1, keepdims=True)
    shared = np.where(total > 0.0, notional / np.where(total > 0.0, total, 1.0), 0.0) * costs[:, None]
    found: list[Trade] = []
    for a, asset in enumerate(assets):
        found += _of_one(asset, time, units[:, a], fills[:, a], closes[:, a], weights[:, a], shared[:, a])
    return tuple(sorted(found, key=lambda trade: (trade.entry_time, trade.asset)))


def _of_one(
    asset: str,
    time: NDArray[np.datetime64],
    units: Floats,
    fills: Floats,
    closes: Floats,
    weights: Floats,
    costs: Floats,
) -> list[Trade]:
    trades: list[Trade] = []
    book: _Book | None = None
    held = 0.0
    for t in np.flatnonzero(np.diff(units, prepend=0.0)):
        after, price = float(units[t]), float(fills[t])
        if book is not None and after * book.sign <= 0.0:  # closed, perhaps flipped
            share = abs(held) / (abs(held) + abs(after))
            book.sold += abs(held)
            book.received += abs(held) * price
            book.costs += share * float(costs[t])
            trades.append(_finish(asset, book, time, weights, int(t), is_open=False))
            book, held = None, 0.0
            share_left = 1.0 - share
        else:
            share_left = 1.0
        if after != 0.0:
            book = book or _Book(sign=float(np.sign(after)), entered=int(t))
            change = abs(after) - abs(held)
            if change > 0.0:
                book.bought += change
                book.paid += change * price
            else:
                book.sold -= change
                book.received -= change * price
            book.costs += share_left * float(costs[t])
            book.peak_units = max(book.peak_units, abs(after))
        held = after
    if book is not None:
        book.sold += abs(held)
        book.received += abs(held) * float(closes[-1])
        trades.append(_finish(asset, book, time, weights, len(units) - 1, is_open=True))
    return trades


def _finish(
    asset: str, book: _Book, time: NDArray[np.datetime64], weights: Floats, last: int, *, is_open: bool
) -> Trade:
    pnl = book.sign * (book.received - book.paid) - book.costs
    entry_price = book.paid / book.bought
    return Trade(
        asset=asset,
        side="long" if book.sign > 0.0 else "short",
        entry_time=time[book.entered],
        exit_time=time[last],
        bars=last - book.entered + 1,
        entry_price=entry_price,
        exit_price=book.received / book.sold,
        peak_weight=float(np.abs(weights[book.entered : last + 1]).max()),
        costs=book.costs,
        pnl=pnl,
        return_fraction=pnl / (book.peak_units * entry_price),
        is_open=is_open,
    )
