"""Times of bars: text, epoch numbers or timestamps of any zone, to UTC."""

import re
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.market.problems import Problem

__all__ = ["read_times"]

_OFFSET = r"(Z|[+-]\d{2}:?\d{2})\s*$"
# A zone with daylight saving changes its offset by one hour, months apart; anything else is a mixture of zones.
_DAYLIGHT_HOURS, _DAYLIGHT_DAYS = 1.0, 60.0
# Epoch numbers of 1973..5138 in seconds; the factor of 1000 between units leaves no overlap.
_EPOCH_UNITS = ((1e8, 1e11, 10**9), (1e11, 1e14, 10**6), (1e14, 1e17, 10**3), (1e17, 1e20, 1))


def read_times(
    column: "pd.Series[Any]", rows: NDArray[np.int64], *, where: str, time_zone: str
) -> tuple[NDArray[np.int64], list[Problem]]:
    """Nanoseconds since 1970 in UTC, and the problems; an unreadable time is the smallest int64."""
    if isinstance(column.dtype, pd.DatetimeTZDtype):
        return _nanoseconds(column.dt.tz_convert("UTC")), []
    if pd.api.types.is_datetime64_any_dtype(column):
        return _localise(column, rows, where, time_zone)
    if pd.api.types.is_numeric_dtype(column):
        return _read_epoch(np.asarray(column, dtype=np.float64), rows, where)
    numbers = pd.to_numeric(column, errors="coerce")
    if len(numbers) and bool(numbers.notna().all()) and float(numbers.abs().min()) >= _EPOCH_UNITS[0][0]:
        return _read_epoch(np.asarray(numbers, dtype=np.float64), rows, where)
    return _read_text(column.astype(str).str.strip(), rows, where, time_zone)


def _read_epoch(
    numbers: NDArray[np.float64], rows: NDArray[np.int64], where: str
) -> tuple[NDArray[np.int64], list[Problem]]:
    nanoseconds = np.full(len(numbers), np.iinfo(np.int64).min)
    for low, high, factor in _EPOCH_UNITS:
        inside = (np.abs(numbers) >= low) & (np.abs(numbers) < high)
        nanoseconds[inside] = numbers[inside].astype(np.int64) * factor
    unread = np.flatnonzero(nanoseconds == np.iinfo(np.int64).min)
    problems = [
        Problem(int(rows[i]), "impossible date", f"{numbers[i]} is no epoch time (seconds, ms, µs or ns)", where=where)
        for i in unread
    ]
    return nanoseconds, problems


def _read_text(
    text: "pd.Series[str]", rows: NDArray[np.int64], where: str, time_zone: str
) -> tuple[NDArray[np.int64], list[Problem]]:
    offsets = text.str.extract(_OFFSET, expand=False)
    # A date alone ("2024-01-02") ends like an offset ("01-02" does not, "-0102" would), so a clock is required.
    aware = offsets.notna() & text.str.contains(":", regex=False)
    parsed = _parse(text, utc=bool(aware.any()))
    problems = [
        Problem(int(rows[i]), "impossible date", f"{text.iloc[i]!r} is no date; correct or drop the line", where=where)
        for i in np.flatnonzero(parsed.isna().to_numpy())
    ]
    if not aware.any():
        nanoseconds, more = _localise(parsed, rows, where, time_zone)
        return nanoseconds, problems + more
    nanoseconds = _nanoseconds(parsed)
    known = parsed.notna().to_numpy()
    return nanoseconds, problems + _mixed_zones(offsets, aware & known, known, nanoseconds, rows, where)


def _parse(text: "pd.Series[str]", *, utc: bool) -> "pd.Series[pd.Timestamp]":
    sample = text[text != ""].head(1000)
    separator = next((c for c in "./" if sample.str.match(rf"\d{{1,2}}\{c}\d{{1,2}}\{c}\d{{4}}").mean() > 0.5), None)
    if separator:
        first = pd.to_numeric(text.str.extract(r"^(\d{1,2})", expand=False), errors="coerce")
        # 31.12.2024 has the day first. 12/31/2024 has the month first, unless some first number can only be a day.
        dayfirst = separator == "." or bool((first > 12).any())
        day = separator.join(("%d", "%m", "%Y") if dayfirst else ("%m", "%d", "%Y"))
        form = day + _clock(str(sample.iloc[0]))
    else:
        form = "%Y%m%d" if sample.str.fullmatch(r"\d{8}").mean() > 0.5 else "ISO8601"
    return pd.to_datetime(text, format=form, errors="coerce", utc=utc)


def _clock(time: str) -> str:
    found = re.search(r" \d{1,2}:\d{2}(:\d{2})?(\.\d+)?", time)
    if found is None:
        return ""
    return " %H:%M" + (":%S" if found.group(1) else "") + (".%f" if found.group(2) else "")


def _localise(
    times: "pd.Series[pd.Timestamp]", rows: NDArray[np.int64], where: str, time_zone: str
) -> tuple[NDArray[np.int64], list[Problem]]:
    """Times without a zone are taken to be of `time_zone`; those the clock change skips or repeats are problems."""
    if time_zone == "UTC":
        return _nanoseconds(times), []
    local = times.dt.tz_localize(time_zone, nonexistent="NaT", ambiguous="NaT")
    lost = np.flatnonzero((local.isna() & times.notna()).to_numpy())
    problems = [
        Problem(
            int(rows[i]),
            "impossible date",
            f"{times.iloc[i]} does not exist, or exists twice, in {time_zone}; store the file in UTC",
            where=where,
        )
        for i in lost
    ]
    return _nanoseconds(local.dt.tz_convert("UTC")), problems


def _nanoseconds(times: "pd.Series[pd.Timestamp]") -> NDArray[np.int64]:
    """NaT becomes the smallest int64."""
    naive = times.dt.tz_localize(None) if isinstance(times.dtype, pd.DatetimeTZDtype) else times
    return naive.to_numpy().astype("datetime64[ns]").astype(np.int64)


def _mixed_zones(
    offsets: "pd.Series[str]",
    aware: "pd.Series[bool]",
    known: NDArray[np.bool_],
    nanoseconds: NDArray[np.int64],
    rows: NDArray[np.int64],
    where: str,
) -> list[Problem]:
    naive = np.flatnonzero(known & ~aware.to_numpy())
    problems = [
        Problem(int(rows[i]), "mixed time zones", "no offset here, but other rows have one", where=where) for i in naive
    ]
    names = offsets.where(aware).replace("Z", "+00:00").str.replace(":", "", regex=False)
    hours = names.map(_hours, na_action="ignore").to_numpy(np.float64)
    at = np.flatnonzero(aware.to_numpy())
    changes = at[1:][np.diff(hours[at]) != 0.0]
    if len(changes) == 0:
        return problems
    days_apart = np.diff(nanoseconds[changes]) / 86_400e9
    span = np.nanmax(hours) - np.nanmin(hours)
    if span == _DAYLIGHT_HOURS and (days_apart >= _DAYLIGHT_DAYS).all():
        return problems
    return problems + [
        Problem(
            int(rows[i]),
            "mixed time zones",
            f"offset {offsets.iloc[i]} after {offsets.iloc[at[np.searchsorted(at, i) - 1]]}; store the file in UTC",
            where=where,
        )
        for i in changes
    ]


def _hours(offset: str) -> float:
    return (-1.0 if offset[0] == "-" else 1.0) * (int(offset[1:3]) + int(offset[3:5]) / 60.0)
