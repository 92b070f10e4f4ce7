"""Splits and dividends that stand in columns of their own: applied where the prices do not know of them yet.

Yahoo's files carry both columns beside prices that are adjusted already, other vendors' beside raw ones. The prices
tell: on the day of a split raw ones jump by its ratio and adjusted ones do not.
"""

import numpy as np
from numpy.typing import NDArray

from leeward.market.bars import FloatArray
from leeward.market.column_names import DIVIDENDS, PRICES, SPLITS
from leeward.market.columns import Columns
from leeward.market.problems import Problem

__all__ = ["apply_actions"]

Rows = NDArray[np.intp]


def apply_actions(columns: Columns, dividends: str) -> None:
    """Adjust the prices and the volume before each split, and the prices before each dividend; note what was done.

    `dividends` is data.dividends. Where an adjusted close is used instead, this has nothing to do.
    """
    for asset in np.unique(columns.asset):
        rows = np.flatnonzero(columns.asset == asset)
        rows = rows[np.argsort(columns.time[rows], kind="stable")]
        closes = columns.values["close"][rows].copy()  # a dividend is in the money of its own day
        if not all((columns.values[name][rows] > 0.0).all() for name in PRICES):
            continue  # the check says which prices are wrong
        raw = _apply_splits(columns, rows, str(asset))
        _apply_dividends(columns, rows, closes, str(asset), dividends, raw_splits=raw)


def _apply_splits(columns: Columns, rows: Rows, asset: str) -> bool | None:
    """True when splits were applied, False when prices knew of them, None when there was none."""
    ratios = np.nan_to_num(columns.values.get(SPLITS, np.zeros(len(columns.time)))[rows])
    opens, closes = columns.values["open"][rows], columns.values["close"][rows]
    at = np.flatnonzero((ratios > 0.0) & (ratios != 1.0) & (np.arange(len(rows)) > 0))
    if not len(at):
        return None
    jumps, sizes = np.log(opens[at] / closes[at - 1]), np.log(ratios[at])
    raw = bool(np.square(jumps + sizes).sum() < np.square(jumps).sum())
    if not raw:
        _note(columns, f"{asset}: {_count(at, 'split')} in Stock Splits, which the prices know of already")
        return False
    factor = np.ones(len(rows))
    for i in at:
        factor[:i] /= ratios[i]
    _scale(columns, rows, factor, volume=1.0 / factor)
    _note(columns, f"{asset}: {_count(at, 'split')} of Stock Splits applied to the prices before")
    return True


def _apply_dividends(
    columns: Columns,
    rows: Rows,
    closes: FloatArray,
    asset: str,
    meaning: str,
    *,
    raw_splits: bool | None,
) -> None:
    paid = np.nan_to_num(columns.values.get(DIVIDENDS, np.zeros(len(columns.time)))[rows])
    at = np.flatnonzero((paid > 0.0) & (np.arange(len(rows)) > 0))
    if not len(at):
        return
    if meaning == "adjusted" or (meaning == "auto" and not raw_splits):
        text = f"{asset}: {_count(at, 'payment')} in Dividends taken as known to the prices, as Yahoo's are"
        if meaning == "auto" and raw_splits is None:
            # Nothing in the file tells raw prices from adjusted ones, so the reader must.
            _note(columns, f"{text}; with raw prices set data.dividends: raw", "warning")
        else:
            _note(columns, text)
        return
    factor = np.ones(len(rows))
    for i in at:
        factor[:i] *= 1.0 - paid[i] / closes[i - 1]
    if (factor <= 0.0).any():
        text = f"{asset}: a dividend is not below the price before it; correct Dividends or leave the column out"
        columns.problems.append(Problem(None, "impossible dividend", text, "error", columns.where))
        return
    _scale(columns, rows, factor)
    _note(columns, f"{asset}: {_count(at, 'payment')} of Dividends applied to the prices before")


def _scale(
    columns: Columns,
    rows: Rows,
    factor: FloatArray,
    volume: FloatArray | None = None,
) -> None:
    for name in PRICES:
        columns.values[name][rows] *= factor
    if volume is not None and "volume" in columns.values:
        columns.values["volume"][rows] *= volume


def _note(columns: Columns, text: str, severity: str = "note") -> None:
    kind = "corporate actions"
    columns.problems.append(Problem(None, kind, text, "warning" if severity == "warning" else "note", columns.where))


def _count(at: Rows, word: str) -> str:
    return f"{len(at)} {word}{'s' if len(at) > 1 else ''}"
