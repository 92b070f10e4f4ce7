"""What is wrong with bars: one Problem per fault, with the row it stands on."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from leeward.market.bars import FloatArray
from leeward.market.column_names import PRICES
from leeward.market.columns import Columns
from leeward.market.problems import Problem

__all__ = ["examine", "examine_joined"]

# A gap is a spacing above 3 × the largest spacing that occurs at least five times, unless the calendar explains it: a
# third of it or more are hours of the week at which there are no bars in other weeks (on a weekend, if there is no
# other week), and no more than two usual days are missing.
_GAP_FACTOR, _GAP_OCCURRENCES = 3, 5
_CLOSED_SHARE, _HOLIDAYS = 1.0 / 3.0, 2.0
_HOUR, _WEEK = 3_600 * 10**9, 168
_FRIDAY_NIGHT, _SUNDAY_NIGHT = 20 + 4 * 24, 23 + 6 * 24  # hours since Monday 00:00 UTC
_SPLIT_RATIOS = np.array([1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 8.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0])
_SPLIT_TOLERANCE = 0.03
_NO_TIME = np.iinfo(np.int64).min


def examine(columns: Columns, *, allow_gaps: bool) -> list[Problem]:
    """All problems of one table: those found while it was read, then its values, then its times asset by asset."""
    problems = list(columns.problems)
    problems += _check_values(columns)
    _, asset, counts = np.unique(columns.asset, return_inverse=True, return_counts=True)
    order = np.argsort(asset, kind="stable")
    for rows in np.split(order, np.cumsum(counts)[:-1]):
        of_asset = rows[columns.time[rows] != _NO_TIME]
        problems += _check_times(columns, of_asset, allow_gaps)
        problems += _check_splits(columns, of_asset)
    return problems


def examine_joined(
    parts: Sequence[Columns], where: str, *, allow_gaps: bool, known: Sequence[Problem]
) -> list[Problem]:
    """What only shows when the parts of an asset are put together: a time that stands in two files, a missing file."""
    if len(parts) < 2:
        return []
    names = [np.unique(part.asset) for part in parts]
    shared, counts = np.unique(np.concatenate(names), return_counts=True)
    said = {(problem.kind, problem.message) for problem in known}
    problems = []
    for asset in shared[counts > 1]:
        of_asset = [(part, part.asset == asset) for part in parts]
        time = np.concatenate([part.time[here] for part, here in of_asset])
        rows = np.concatenate([part.rows[here] for part, here in of_asset])
        order = np.argsort(time, kind="stable")
        order = order[time[order] != _NO_TIME]
        joined = Columns(time[order], np.full(len(order), asset), {}, rows[order], f"{where}: {asset}", [])
        problems += _check_times(joined, np.arange(len(order)), allow_gaps)
    return [problem for problem in problems if (problem.kind, problem.message) not in said]


# Ratios and squares of prices between them are numbers still; the cheapest coin and the worst inflation are too.
_LOWEST_PRICE, _HIGHEST_PRICE = 1e-30, 1e30


def _problems(
    columns: Columns, wrong: NDArray[np.bool_], kind: str, message: str, shown: FloatArray | None = None
) -> list[Problem]:
    found = []
    for i in np.flatnonzero(wrong):
        value = "" if shown is None else f", got {shown[i]:g}"
        found.append(Problem(int(columns.rows[i]), kind, message + value, where=columns.where))
    return found


def _check_values(columns: Columns) -> list[Problem]:
    values, problems = columns.values, []
    for name in (*PRICES, "adj_close"):
        if name in values:
            price = values[name]
            problems += _problems(columns, np.isinf(price), "infinite price", f"{name} must be finite", price)
            wrong = price <= 0.0
            problems += _problems(columns, wrong & ~np.isinf(price), "price not positive", f"{name} must be > 0", price)
            absurd = np.isfinite(price) & (price > 0.0) & ((price < _LOWEST_PRICE) | (price > _HIGHEST_PRICE))
            limits = f"{name} must lie between {_LOWEST_PRICE:g} and {_HIGHEST_PRICE:g}; change its unit"
            problems += _problems(columns, absurd, "absurd price", limits, price)
    if "volume" in values:
        volume = values["volume"]
        problems += _problems(columns, volume < 0.0, "negative volume", "volume must not be negative", volume)
        problems += _problems(columns, volume == np.inf, "infinite volume", "volume must be finite", volume)
    high, low = values["high"], values["low"]
    for i in np.flatnonzero(high < low):
        message = f"high {high[i]:g} is below low {low[i]:g}"
        problems.append(Problem(int(columns.rows[i]), "high below low", message, where=columns.where))
    outside = np.zeros(len(high), dtype=np.bool_)
    for name in ("open", "close"):
        # Half a cent of rounding in a data vendor's file is no fault.
        with np.errstate(invalid="ignore"):  # infinite prices are named above
            slack = 1e-3 * np.abs(values[name])
            outside |= (values[name] > high + slack) | (values[name] < low - slack)
    for i in np.flatnonzero(outside & (high >= low)):
        message = "open or close lies outside [low, high]"
        problems.append(Problem(int(columns.rows[i]), "outside the range", message, "warning", columns.where))
    return problems


def _check_times(columns: Columns, of_asset: NDArray[np.int64], allow_gaps: bool) -> list[Problem]:
    time, problems = columns.time[of_asset], []
    _, first = np.unique(time, return_index=True)
    repeated = np.ones(len(time), np.bool_)
    repeated[first] = False
    for i in np.flatnonzero(repeated):
        message = f"{_text(time[i])} stands in an earlier row too; drop one of them"
        problems.append(Problem(int(columns.rows[of_asset[i]]), "duplicate time", message, where=columns.where))
    latest = np.maximum.accumulate(time) if len(time) else time
    for i in np.flatnonzero(time[1:] < latest[:-1]) + 1:
        if not repeated[i]:
            message = f"{_text(time[i])} comes after {_text(latest[i - 1])}; sort the file by time"
            problems.append(Problem(int(columns.rows[of_asset[i]]), "unsorted time", message, where=columns.where))
    ordered = np.sort(time[first])
    rows = columns.rows[of_asset][first]
    return problems + _check_gaps(columns, ordered, rows, allow_gaps)


def _check_gaps(columns: Columns, time: NDArray[np.int64], rows: NDArray[np.int64], allow_gaps: bool) -> list[Problem]:
    spacing = np.diff(time)
    sizes, counts = np.unique(spacing, return_counts=True)
    usual = sizes[counts >= _GAP_OCCURRENCES]
    if len(usual) == 0:
        return []
    largest = usual.max()
    wide = [i for i in np.flatnonzero(spacing > _GAP_FACTOR * largest) if not _is_closed(time, int(i))]
    severity: Literal["error", "warning"] = "warning" if allow_gaps else "error"
    return [
        Problem(
            int(rows[i + 1]),
            "gap",
            f"{_duration(spacing[i])} after {_text(time[i])}, where the largest usual spacing is {_duration(largest)}; "
            "fill it, cut the file, or set data.allow_gaps",
            severity,
            columns.where,
        )
        for i in wide
    ]


def _is_closed(time: NDArray[np.int64], before: int) -> bool:
    """Whether the calendar explains why nothing stands between bar `before` and the next: a weekend, a holiday."""
    daily = bool((time % (24 * _HOUR) == time[0] % (24 * _HOUR)).all())
    size = 24 * _HOUR if daily else _HOUR
    slots = time // size + (3 if daily else 3 * 24)  # 1970-01-01 was a Thursday: week 0 begins on its Monday
    in_week = 7 if daily else _WEEK
    inside = np.arange(slots[before] + 1, slots[before + 1])
    if len(inside) == 0:
        return False
    seen = np.unique(slots)
    week, hour = seen // in_week, seen % in_week
    others = np.setdiff1d(np.arange(week[0], week[-1] + 1), inside // in_week)  # weeks that the gap does not touch
    if len(others):
        kept = np.isin(week, others)
        expected = np.bincount(hour[kept], minlength=in_week) / len(others)
    else:
        hours = np.arange(in_week) * (24 if daily else 1)
        expected = ((hours < _FRIDAY_NIGHT) | (hours >= _SUNDAY_NIGHT)).astype(np.float64)
    missing = expected[inside % in_week]
    a_day = expected.sum() / max(1, np.count_nonzero(expected.reshape(7, -1).sum(axis=1) > 0.5))
    return bool((missing < 0.5).mean() >= _CLOSED_SHARE and missing.sum() <= _HOLIDAYS * a_day)


def _check_splits(columns: Columns, of_asset: NDArray[np.int64]) -> list[Problem]:
    """An overnight jump by a usual split ratio, where prices are not adjusted."""
    opens, closes = columns.values["open"][of_asset], columns.values["close"][of_asset]
    if "adj_close" in columns.values:
        with np.errstate(all="ignore"):  # by a price of zero, which is named above
            factor = columns.values["adj_close"][of_asset] / closes
            opens, closes = opens * factor, closes * factor
    good = np.isfinite(opens) & np.isfinite(closes) & (opens > 0.0) & (closes > 0.0)
    opens, closes, kept = opens[good], closes[good], of_asset[good]
    with np.errstate(over="ignore", divide="ignore"):  # prices of 1e300 and of 1e-300 are infinitely far apart
        jump = np.exp(np.abs(np.log(opens[1:] / closes[:-1])))  # (m - 1,) ratio, always >= 1
    far = np.flatnonzero(jump > (1.0 - _SPLIT_TOLERANCE) * _SPLIT_RATIOS.min())  # few of millions of bars
    off = jump[far, None] / _SPLIT_RATIOS - 1.0
    nearest = np.abs(off).argmin(axis=1)
    beyond = [
        Problem(
            int(columns.rows[kept[i + 1]]),
            "jump",
            f"the open is {jump[i]:.4g} times apart from the close before; are they in the same unit?",
            "warning",
            columns.where,
        )
        for i in far
        if jump[i] > (1.0 + _SPLIT_TOLERANCE) * _SPLIT_RATIOS.max()
    ]
    return beyond + [
        Problem(
            int(columns.rows[kept[i + 1]]),
            "unadjusted split",
            f"the open is {jump[i]:.4g} times apart from the close before, like a {_SPLIT_RATIOS[ratio]:g}:1 split; "
            "adjust the prices, or add a column Adj Close or Stock Splits",
            "warning",
            columns.where,
        )
        for i, ratio, distance in zip(far, nearest, off, strict=True)
        if abs(distance[ratio]) < _SPLIT_TOLERANCE
    ]


def _text(nanoseconds: np.int64) -> str:
    return str(np.datetime64(int(nanoseconds), "ns").astype("datetime64[s]")).replace("T", " ")


def _duration(nanoseconds: np.int64) -> str:
    hours = int(nanoseconds) / 3_600e9
    return f"{hours / 24:g} days" if hours >= 48 else f"{hours:g} hours"
