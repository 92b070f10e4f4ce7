"""A tape: times and closes of bars, which are the same bars whatever file, format, order or name they come in."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.market.bars import Bars, FloatArray

__all__ = ["Tape", "same_bars"]

AGREEING = 0.9  # share of the common moves of two tapes from which on they are the same bars
_TOLERANCE, _OF_A_MOVE = 1e-4, 0.1  # of a log-return: the smaller of this and a tenth of the usual move
_LEAST_MOVES = 5  # fewer agree by chance, where many assets are compared with many
_ZONES = np.arange(-28, 29) * 1_800 * 10**9  # ns: a file in another zone is up to 14 hours away, in half hours
_ZONE_BARS = 2_000  # enough to tell in which zone a file is


@dataclass(frozen=True, eq=False)
class Tape:
    """Times and log-closes. Prices may be scaled: only moves are compared."""

    time: NDArray[np.int64]  # (n,) ns, UTC
    assets: tuple[str, ...]
    log_close: FloatArray  # (n, A), NaN where the asset has no bar

    @classmethod
    def of(cls, bars: Bars) -> "Tape":
        return cls(bars.time.astype(np.int64), bars.assets, np.log(bars.close))

    def part(self, start: int, end: int | None = None) -> "Tape":
        return Tape(self.time[start:end], self.assets, self.log_close[start:end])


def same_bars(mine: Tape, other: Tape) -> bool:
    """Whether `other` shows bars of `mine`: of the moves between their common times, 90 % agree, for any two assets.

    Volume, names, order, an adjustment by a factor, a few rows more or less and another time zone change nothing.
    Moves that are 0 in both say nothing and are not counted.
    """
    if _agree(mine, other):
        return True
    late = mine.part(max(0, len(mine.time) - _ZONE_BARS))
    return any(_agree(late, Tape(other.time + shift, other.assets, other.log_close)) for shift in _ZONES if shift)


def _agree(mine: Tape, other: Tape) -> bool:
    _, here, there = np.intersect1d(mine.time, other.time, assume_unique=True, return_indices=True)
    shared = (mine.time >= other.time[:1]) & (mine.time <= other.time[-1:])
    if 2 * len(here) < shared.sum() or len(here) <= _LEAST_MOVES:
        return False
    return any(
        _same_moves(mine.log_close[here, a], other.log_close[there, b])
        for a in range(len(mine.assets))
        for b in range(len(other.assets))
    )


def _same_moves(mine: FloatArray, other: FloatArray) -> bool:  # (m,), (m,)
    known = np.isfinite(mine) & np.isfinite(other)
    move, its = np.diff(mine[known]), np.diff(other[known])
    moved = (move != 0.0) | (its != 0.0)
    if moved.sum() < _LEAST_MOVES:
        return False
    room = min(_TOLERANCE, _OF_A_MOVE * float(move[moved].std()))
    return bool((np.abs(move - its)[moved] <= room).mean() >= AGREEING)
