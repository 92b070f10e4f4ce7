"""From a raw table to typed columns under Leeward's own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.market.bars import FloatArray
from leeward.market.numbers import MISSING, plain_numbers
from leeward.market.problems import Problem
from leeward.market.reading import Table
from leeward.market.times import read_times

__all__ = ["ACTIONS", "DIVIDENDS", "PRICES", "SPLITS", "USER_FEATURE", "Columns", "holds_bars", "read_columns"]

PRICES = ("open", "high", "low", "close")
USER_FEATURE = "feature_"
ACTIONS = (SPLITS, DIVIDENDS) = ("stock_splits", "dividends")
# Leeward's name -> what others call it, the likeliest first.
_ALIASES = {
    "time": (
        *("time", "date", "datetime", "date_time", "timestamp", "open_time", "opentime", "time_open", "timeopen"),
        *("window_start", "unix", "unix_timestamp", "gmt_time", "local_time", "datum", "zeit", "fecha", "day"),
        *("time_period_start", "begins_at", "start", "ts", "trade_date", "dtyyyymmdd", "unnamed:_0", "index", ""),
    ),
    "asset": ("asset", "tic", "ticker", "symbol", "instrument", "act_symbol"),
    "adj_close": ("adj_close", "adjclose", "adjusted_close", "adj._close", "adj_close*", "adj_close**"),
    "volume": ("volume", "vol", "px_volume", "vol.", "volumen", "tickvol", "tick_volume", "volume_base", "basevolume"),
    "open": ("open", "px_open", "open_price", "opening_price", "eröffnung", "eröffnungskurs", "ouverture", "apertura"),
    "high": ("high", "px_high", "high_price", "max", "hoch", "tageshoch", "haut", "+haut", "plus_haut", "máximo"),
    "low": ("low", "px_low", "low_price", "min", "tief", "tagestief", "bas", "+bas", "plus_bas", "mínimo"),
    "close": (
        *("close", "px_last", "close_price", "closing_price", "close/last", "last", "last_price", "price", "close*"),
        *("schluss", "schlusskurs", "dernier", "clôture", "cierre", "último", "zuletzt"),
    ),
    SPLITS: ("stock_splits", "split", "splits", "split_ratio", "split_coefficient"),
    DIVIDENDS: ("dividends", "dividend", "dividend_amount", "divcash"),
}
_LONGEST_NAME = 64
_OBVIOUS = {"time", "date", "datetime", "timestamp", "tic", "ticker", "symbol", "vol", "index", "unnamed:_0", ""}


@dataclass
class Columns:
    """Typed columns of one table, rows as they stand in the file. `time` is ns in UTC, smallest int64 = unreadable."""

    time: NDArray[np.int64]
    asset: NDArray[np.str_]
    values: dict[str, FloatArray]  # open, high, low, close; volume, adj_close and feature_* where they exist
    rows: NDArray[np.int64]
    where: str
    problems: list[Problem]


def read_columns(
    table: Table, *, asset: str, time_zone: str, renamed: Mapping[str, str] | None = None
) -> Columns | None:
    """Find and type the columns; None when they cannot be found (the table's problems say why).

    `asset` names the only asset of a table that has no column for it; `renamed` is data.columns.
    """
    if table.frame.empty:
        return None
    frame = _flatten(table, renamed or {})
    names = _find(frame, renamed or {})
    missing = [name for name in ("time", *PRICES) if name not in names]
    if missing:
        table.problems.append(Problem(None, "missing column", _remedy(frame, names, missing), where=table.where))
        return None
    _say_what_was_taken(table, frame, names)
    time, problems = read_times(_joined(frame, names), table.rows, where=table.where, time_zone=time_zone)
    values: dict[str, FloatArray] = {}
    for name in (*PRICES, "volume", "adj_close", *ACTIONS, *(n for n in names if n.startswith(USER_FEATURE))):
        if name in names:
            values[name], more = _read_numbers(frame[names[name]], name, table)
            problems += more
    if "asset" in names:
        text = frame[names["asset"]].astype(str).str.strip()
        odd = np.flatnonzero(~np.array([each.isprintable() and len(each) <= _LONGEST_NAME for each in text]))
        if len(odd):
            message = (
                f"{text.iloc[odd[0]]!r:.40} is no name of an asset; expected at most {_LONGEST_NAME} letters and signs"
            )
            table.problems.append(Problem(int(table.rows[odd[0]]), "asset name", message, where=table.where))
            return None
        assets = text.to_numpy(dtype=np.str_)
    else:
        assets = np.full(len(frame), asset)
    return _oldest_first(Columns(time, assets, values, table.rows, table.where, table.problems + problems))


def holds_bars(table: Table) -> bool:
    """Whether any column of prices, or a price per ticker, is in a table."""
    frame = table.frame
    return frame.columns.nlevels == 2 or bool({"open", "close"} & _find(frame, {}).keys())


def _flatten(table: Table, renamed: Mapping[str, str]) -> pd.DataFrame:
    """Index and yfinance's two-level columns (field, ticker) become plain columns; rows repeat per ticker."""
    frame = table.frame
    single = frame.columns.nlevels == 1
    numbered = pd.api.types.is_integer_dtype(frame.index) and single and "time" in _find(frame, renamed)
    if numbered:  # rows that were filtered or joined keep their old numbers
        frame = frame.reset_index(drop=True)
    elif not isinstance(frame.index, pd.RangeIndex):
        frame = frame.rename_axis(index=str(frame.index.name or "time")).reset_index()
    if frame.columns.nlevels != 2:
        return frame
    fields = [str(first).lower() for first in frame.columns.get_level_values(0)]
    level = 1 if "close" in fields else 0  # group_by="ticker" turns the levels round
    time = frame.iloc[:, 0]
    parts = []
    for ticker in dict.fromkeys(frame.columns.get_level_values(level)[1:]):
        part = frame.iloc[:, 1:].xs(ticker, axis=1, level=level)
        empty = part.isna() | (part.astype(str).apply(lambda cells: cells.str.strip()) == "")
        parts.append(part.assign(time=time, asset=str(ticker))[~empty.all(axis=1)])
    flat: pd.DataFrame = pd.concat(parts)
    table.rows = table.rows[flat.index.to_numpy()]
    return flat.reset_index(drop=True)


def _plain(name: object) -> str:
    return str(name).strip().strip("<>").lower().replace(" ", "_")


def _find(frame: pd.DataFrame, renamed: Mapping[str, str]) -> dict[str, str]:
    """Leeward's name -> the frame's; what the user says, then the first alias that is there."""
    plain = {_plain(name): name for name in reversed(frame.columns)}
    names = {meaning: name for name, meaning in renamed.items() if name in frame.columns}
    left = {alias: name for alias, name in plain.items() if name not in names.values()}
    for name, aliases in _ALIASES.items():
        found = next((left[alias] for alias in aliases if alias in left), None)
        if found is None and name == "volume":  # Volume BTC, Volume USDT: the first is in the asset's own units
            found = next((left[alias] for alias in reversed(left) if alias.startswith(("volume_", "vol_"))), None)
        if found is not None:
            names.setdefault(name, found)
    if "tickvol" in left and _is_zero(frame[names["volume"]]):  # MetaTrader's real volume, of what has none
        names["volume"] = left["tickvol"]
    names.update({name: column for name, column in reversed(left.items()) if name.startswith(USER_FEATURE)})
    return names


def _is_zero(cells: "pd.Series[Any]") -> bool:
    return bool((pd.to_numeric(cells, errors="coerce") == 0.0).all())


def _remedy(frame: pd.DataFrame, names: Mapping[str, str], missing: list[str]) -> str:
    came = ", ".join(repr(str(name)) for name in frame.columns)
    text = f"no column {', '.join(missing)}; the columns are {came}"
    others = [str(column) for column in frame.columns if column not in names.values()]
    if "time" in names and not set(PRICES) & set(names) and len(others) > 1:
        return (
            f"{text}. This looks like one column of closes per asset: an order is filled at the next open, so every "
            "asset needs open, high, low and close; give one file per asset, or one line per bar and asset"
        )
    if "time" in names and set(missing) == {"open", "high", "low"}:
        return f"{text}. Closes alone are not enough: orders are filled at the next open; get bars with all four prices"
    return f"{text}; data.columns says which is which, as {{{others[0] if others else 'name'}: {missing[0]}}}"


def _say_what_was_taken(table: Table, frame: pd.DataFrame, names: Mapping[str, str]) -> None:
    taken = [
        f"{name} from {str(column)!r}"
        for name, column in names.items()
        if _plain(column) not in (*_OBVIOUS, name, "adj._close", "adjclose") and not name.startswith(USER_FEATURE)
    ]
    if taken:
        table.note(", ".join(taken))
    clock = _clock_column(frame)
    ignored = [str(column) for column in frame.columns if column not in (*names.values(), clock, "date")]
    if ignored:
        table.problems.append(Problem(None, "ignored", ", ".join(map(repr, ignored)), "note", table.where))


def _clock_column(frame: pd.DataFrame) -> str | None:
    """The column of hours beside one of days, as MetaTrader and Stooq have them."""
    plain = {_plain(name): name for name in frame.columns}
    return plain["time"] if "date" in plain and "time" in plain else None


def _joined(frame: pd.DataFrame, names: Mapping[str, str]) -> "pd.Series[Any]":
    clock = _clock_column(frame)
    if clock is None:
        return frame[names["time"]]
    days, hours = frame[next(c for c in frame.columns if _plain(c) == "date")], frame[clock].astype(str).str.strip()
    if not hours.str.fullmatch(r"\d{1,6}|\d{1,2}:\d{2}(:\d{2})?").all():
        return frame[names["time"]]
    digits = hours.str.fullmatch(r"\d{1,6}")
    width = 4 if hours[digits].str.len().max() in (3, 4) else 6  # 930 is half past nine, 93000 too
    clocks = hours.str.zfill(width).str.replace(r"^(\d{2})(\d{2})(\d{2})?$", r"\1:\2:\3", regex=True).str.rstrip(":")
    return days.astype(str).str.strip() + " " + clocks.where(digits, hours)


def _oldest_first(columns: Columns) -> Columns:
    """A file that runs from new to old, asset by asset, is turned round."""
    known = columns.time != np.iinfo(np.int64).min
    turned = False
    for asset in np.unique(columns.asset):
        steps = np.diff(columns.time[known & (columns.asset == asset)])
        if (steps > 0).any():
            return columns
        turned |= bool((steps < 0).any())
    if not turned:
        return columns
    note = Problem(None, "read as", "newest bar first; turned round", "note", columns.where)
    order = np.arange(len(columns.time))[::-1]
    values = {name: column[order] for name, column in columns.values.items()}
    problems = [*columns.problems, note]
    return Columns(columns.time[order], columns.asset[order], values, columns.rows[order], columns.where, problems)


def _read_numbers(column: "pd.Series[Any]", name: str, table: Table) -> tuple[FloatArray, list[Problem]]:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64, copy=True)
    if np.isnan(numbers).any() and not pd.api.types.is_numeric_dtype(column):
        # All cells of a column are written in one way: one that is odd tells how to read the others.
        numbers, said = plain_numbers(column.astype(str), decimal_comma=table.decimal_comma)
        if said:
            table.note(f"{name}: {said}")
    problems = []
    for i in np.flatnonzero(np.isnan(numbers)):
        cell = str(column.iloc[i]).strip()
        if cell.lower() not in MISSING:
            message = f"{name} is {cell!r}; expected a number"
            problems.append(Problem(int(table.rows[i]), "text in number", message, where=table.where))
        elif not name.startswith(USER_FEATURE) and name not in ACTIONS:  # a feature may start late: it is flagged there
            message = f"{name} is missing; fill it or drop the line"
            problems.append(Problem(int(table.rows[i]), "missing value", message, where=table.where))
    return numbers, problems
