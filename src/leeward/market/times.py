"""Times of bars: text, epoch numbers or timestamps of any zone, to UTC."""

import re
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.market.problems import Problem

__all__ = ["read_times"]

_OFFSET = r"(Z|[+-]\d{2}(?::?\d{2})?)\s*$"
_ZONE = r" ((?:Africa|America|Asia|Atlantic|Australia|Europe|Pacific|US|Etc)/[A-Za-z_/+\-0-9]+|UTC|GMT)$"
_DAYS = ("%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%d-%b-%y", "%d %b %y", "%Y%m%d", "%Y-%m-%d")
_WRITE = "write times as 2024-01-31 09:30:00, or as seconds since 1970"
# A zone with daylight saving changes its offset by one hour, months apart; anything else is a mixture of zones.
_DAYLIGHT_HOURS, _DAYLIGHT_DAYS = 1.0, 60.0
# Epoch numbers of 1973..5138 in seconds; the factor of 1000 between units leaves no overlap.
_FURTHEST = 9.2e18  # nanoseconds from 1970 that int64 holds: the years 1678 to 2261
# 2024010209 could be a second of 2034, but a column of which each is a date and an hour is one of dates.
_CALENDAR = ((10, "%Y%m%d%H"), (12, "%Y%m%d%H%M"), (14, "%Y%m%d%H%M%S"))  # digits, form
_EPOCH_UNITS = ((1e8, 1e11, 10**9), (1e11, 1e14, 10**6), (1e14, 1e17, 10**3), (1e17, 1e20, 1))


def read_times(
    column: "pd.Series[Any]", rows: NDArray[np.int64], *, where: str, time_zone: str
) -> tuple[NDArray[np.int64], list[Problem]]:
    """Nanoseconds since 1970 in UTC, and the problems; an unreadable time is the smallest int64."""
    if pd.api.types.is_datetime64_any_dtype(column):
        known = _in_reach(column)
        far = np.flatnonzero((known.isna() & column.notna()).to_numpy())
        problems = [
            Problem(int(rows[i]), "impossible date", f"{column.iloc[i]} is not in 1678 to 2261", where=where)
            for i in far
        ]
        if isinstance(column.dtype, pd.DatetimeTZDtype):
            return _nanoseconds(known.dt.tz_convert("UTC")), problems
        nanoseconds, more = _localise(known, rows, where, time_zone)
        return nanoseconds, problems + more
    numbers = pd.to_numeric(column, errors="coerce")
    large = len(numbers) and bool(numbers.notna().all()) and float(numbers.abs().min()) >= _EPOCH_UNITS[0][0]
    if large or pd.api.types.is_numeric_dtype(column):
        plain = np.asarray(numbers, dtype=np.float64)
        if len(plain) and ((plain >= 19000101) & (plain <= 21001231) & (plain % 1 == 0)).all():
            return _read_text(numbers.astype("int64").astype(str), rows, where, time_zone)  # 20240131 is a day
        written = _calendar(plain)
        if written is not None:
            return _localise(written, rows, where, time_zone)
        return _read_epoch(plain, rows, where)
    return _read_text(column.astype(str).str.strip(), rows, where, time_zone)


def _calendar(numbers: NDArray[np.float64]) -> "pd.Series[pd.Timestamp] | None":
    """Numbers that are dates written without signs, such as 202401020930; None when one of them is not such a date."""
    for digits, form in _CALENDAR:
        if len(numbers) and ((numbers >= 10 ** (digits - 1)) & (numbers < 10**digits)).all():
            times = pd.to_datetime(pd.Series(numbers.astype(np.int64).astype(str)), format=form, errors="coerce")
            if bool(times.notna().all()) and bool(times.dt.year.between(1900, 2100).all()):
                return times
    return None


def _read_epoch(
    numbers: NDArray[np.float64], rows: NDArray[np.int64], where: str
) -> tuple[NDArray[np.int64], list[Problem]]:
    nanoseconds = np.full(len(numbers), np.iinfo(np.int64).min)
    for low, high, factor in _EPOCH_UNITS:
        inside = (np.abs(numbers) >= low) & (np.abs(numbers) < high) & (np.abs(numbers) < _FURTHEST / factor)
        nanoseconds[inside] = numbers[inside].astype(np.int64) * factor
    unread = np.flatnonzero(nanoseconds == np.iinfo(np.int64).min)
    problems = [
        Problem(int(rows[i]), "impossible date", f"{numbers[i]} is no epoch time (seconds, ms, µs or ns)", where=where)
        for i in unread
    ]
    if len(unread) == len(numbers) > 1:
        return nanoseconds, [_unknown_form(f"{numbers[0]:.15g}", rows, where)]
    return nanoseconds, problems


def _unknown_form(first: str, rows: NDArray[np.int64], where: str) -> Problem:
    """Not one time of the column can be read: it is not the lines that are wrong."""
    return Problem(
        int(rows[0]), "impossible date", f"{first!r:.80} is in no form of time that is known; {_WRITE}", where=where
    )


def _read_text(
    text: "pd.Series[str]", rows: NDArray[np.int64], where: str, time_zone: str
) -> tuple[NDArray[np.int64], list[Problem]]:
    text = text.str.replace(r"\s+", " ", regex=True)
    zones = text.str.extract(_ZONE, expand=False)
    if len(zones) and zones.notna().all() and zones.nunique() == 1:  # as Interactive Brokers writes them
        text, time_zone = text.str.replace(_ZONE, "", regex=True), str(zones.iloc[0])
    offsets = text.str.extract(_OFFSET, expand=False)
    # A date alone ("2024-01-02") ends like an offset ("01-02" does not, "-0102" would), so a clock is required.
    aware = offsets.notna() & text.str.contains(":", regex=False)
    parsed, said = _parse(text, utc=bool(aware.any()))
    parsed = _in_reach(parsed)
    problems = [
        Problem(int(rows[i]), "impossible date", f"{text.iloc[i]!r:.80} is no date; correct or drop it", where=where)
        for i in np.flatnonzero(parsed.isna().to_numpy())
    ]
    if len(problems) == len(text) > 1:
        problems = [_unknown_form(str(text.iloc[0]), rows, where)]
    if said:
        problems.append(Problem(None, "read as", said, "warning", where))
    if not aware.any():
        nanoseconds, more = _localise(parsed, rows, where, time_zone)
        return nanoseconds, problems + more
    nanoseconds = _nanoseconds(parsed)
    known = parsed.notna().to_numpy()
    return nanoseconds, problems + _mixed_zones(offsets, aware & known, known, nanoseconds, rows, where)


def _parse(text: "pd.Series[str]", *, utc: bool) -> tuple["pd.Series[pd.Timestamp]", str]:
    """Times, and what had to be guessed."""
    sample = text[text != ""].head(1000)
    parts = r"\d{{1,2}}\{0}\d{{1,2}}\{0}(\d{{4}}|\d{{2}})\b"
    separator = next((c for c in "./" if sample.str.match(parts.format(c)).mean() > 0.5), None)
    clock = _clock(str(sample.iloc[0])) if len(sample) else ""
    if separator:
        year = "%Y" if sample.str.contains(r"\d{4}", regex=True).mean() > 0.5 else "%y"
        orders = [separator.join(order) + clock for order in (("%m", "%d", year), ("%d", "%m", year))]
        month_first, day_first = (pd.to_datetime(text, format=form, errors="coerce", utc=utc) for form in orders)
        if separator == ".":
            return day_first, ""  # 31.12.2024: no one writes the month first with dots
        return _in_either_order(month_first, day_first, str(sample.iloc[-1]))
    if "%p" in clock or sample.str.match(r"\d{8}( |$)|[A-Za-z]{3,}|\d{1,2}[ -][A-Za-z]{3}").mean() > 0.5:
        for day in _DAYS:
            if pd.to_datetime(sample, format=day + clock, errors="coerce").notna().mean() > 0.5:
                return pd.to_datetime(text, format=day + clock, errors="coerce", utc=utc), ""
    return pd.to_datetime(text, format="ISO8601", errors="coerce", utc=utc), ""


def _in_either_order(
    month_first: "pd.Series[pd.Timestamp]", day_first: "pd.Series[pd.Timestamp]", example: str
) -> tuple["pd.Series[pd.Timestamp]", str]:
    """12/31/2024 has the month first, 31/12/2024 the day: the order in which more days exist and run in order.

    Where no day is above the twelfth both may. Bars are equally far apart, so the calmer steps are right: the firsts of
    twelve months, not twelve days and then a year without any. Where that is the same too, bars lie close together.
    """
    disorder = (_disorder(month_first), _disorder(day_first))
    if disorder[0] != disorder[1] or month_first.equals(day_first):
        return (day_first if disorder[1] < disorder[0] else month_first), ""
    day_wins = (_unevenness(day_first), _span(day_first)) < (_unevenness(month_first), _span(month_first))
    words = "the day" if day_wins else "the month"
    said = f"{words} comes first in {example!r:.80}, which may be wrong: every date here has two meanings; {_WRITE}"
    return (day_first if day_wins else month_first), said


def _span(times: "pd.Series[pd.Timestamp]") -> float:
    return float((times.max() - times.min()).total_seconds()) if times.notna().any() else 0.0


def _unevenness(times: "pd.Series[pd.Timestamp]") -> float:
    """The longest way from a day to the next, in usual ones, to the nearest power of two: 0 where all are alike."""
    days = np.unique(times.dropna().to_numpy().astype("datetime64[D]").astype(np.int64))
    steps = np.diff(days)
    return 0.0 if len(steps) == 0 else float(np.round(np.log2(steps.max() / np.median(steps))))


def _disorder(times: "pd.Series[pd.Timestamp]") -> float:
    """Share of steps that are no step or go against the rest: near 0 for bars in order, in either direction."""
    steps = np.diff(times.dropna().to_numpy().astype("datetime64[ns]").astype(np.int64))
    unread = float(times.isna().mean())
    return unread + (0.0 if len(steps) == 0 else min(float((steps < 0).mean()), float((steps > 0).mean())))


def _in_reach(times: "pd.Series[pd.Timestamp]") -> "pd.Series[pd.Timestamp]":
    """NaT where nanoseconds in int64 do not reach: there they would wrap round to another century."""
    return times.where(times.dt.year.between(1678, 2261))


def _clock(time: str) -> str:
    if re.search(r" \d{6}$", time):
        return " %H%M%S"
    if re.search(r" \d{1,2}-[AaPp][Mm]$", time):
        return " %I-%p"  # as CryptoDataDownload wrote hours
    found = re.search(r" \d{1,2}:\d{2}(:\d{2})?(\.\d+)?( ?[AaPp][Mm])?", time)
    if found is None:
        return ""
    half = found.group(3)
    clock = (" %I:%M" if half else " %H:%M") + (":%S" if found.group(1) else "") + (".%f" if found.group(2) else "")
    return clock + ("" if not half else " %p" if half.startswith(" ") else "%p")


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
    at = at[np.argsort(nanoseconds[at], kind="stable")]  # in a long table each asset begins anew
    places = np.flatnonzero(np.diff(hours[at]) != 0.0) + 1
    changes = at[places]
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
            f"offset {offsets.iloc[i]} after {offsets.iloc[before]}; store the file in UTC",
            where=where,
        )
        for i, before in zip(changes, at[places - 1], strict=True)
    ]


def _hours(offset: str) -> float:
    return (-1.0 if offset[0] == "-" else 1.0) * (int(offset[1:3]) + int(offset[3:5] or "0") / 60.0)
