"""From a raw table to typed columns under Leeward's own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.market.bars import FloatArray
from leeward.market.column_names import (
    ACTIONS,
    PRICES,
    USER_FEATURE,
    find,
    named_twice,
    plain,
    price_of_ticker,
    with_blanks_apart,
    zone_of,
)
from leeward.market.numbers import MISSING, decimal_sign, plain_numbers
from leeward.market.problems import Problem
from leeward.market.reading import Table
from leeward.market.times import read_times

__all__ = ["Columns", "read_columns"]

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
    if frame is None:
        return None
    names = find(frame, renamed or {})
    missing = [name for name in ("time", *PRICES) if name not in names]
    if missing:
        table.problems.append(Problem(None, "missing column", _remedy(frame, names, missing), where=table.where))
        return None
    _say_what_was_taken(table, frame, names)
    frame = _bars_alone(table, frame, names)
    time_zone = zone_of(names["time"]) or time_zone
    time, problems = read_times(_joined(frame, names), table.rows, where=table.where, time_zone=time_zone)
    values, more = _read_numbers(table, frame, names)
    problems += more
    assets = _names_of_assets(table, frame, names, asset)
    if assets is None:
        return None
    return _oldest_first(Columns(time, assets, values, table.rows, table.where, table.problems + problems))


def _names_of_assets(
    table: Table, frame: pd.DataFrame, names: Mapping[str, str], asset: str
) -> NDArray[np.str_] | None:
    """Of each line; None where one is no name (the table's problems say so)."""
    if "asset" not in names:
        return np.full(len(frame), asset)
    column = names["asset"]
    cells = frame[column]
    text = cells.astype(str).str.strip().where(cells.notna(), "")
    if (text == "").all():
        table.note(f"{str(column)!r} is empty on every line: the asset is called {asset!r}")
        return np.full(len(frame), asset)
    odd = np.flatnonzero(~np.array([each.isprintable() and 0 < len(each) <= _LONGEST_NAME for each in text]))
    if len(odd):
        cell = text.iloc[odd[0]]
        expected = f"expected 1 to {_LONGEST_NAME} letters and signs"
        message = (
            f"{cell!r:.40} is no name of an asset; {expected}"
            if cell
            else f"the cell of {str(column)!r} is empty; {expected} that name the asset, on every line or on none"
        )
        table.problems.append(Problem(int(table.rows[odd[0]]), "asset name", message, where=table.where))
        return None
    return text.to_numpy(dtype=np.str_)


def _bars_alone(table: Table, frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """Without lines that have a time and no price, as sources write days without trade, and without an empty volume."""
    missing = np.logical_and.reduce([_is_missing(frame[names[price]]) for price in PRICES])
    if missing.any() and not missing.all():
        lines = ", ".join(str(row) for row in table.rows[missing][:5])
        more = f" and {missing.sum() - 5} more" if missing.sum() > 5 else ""
        table.problems.append(
            Problem(None, "ignored", f"no price at all on line {lines}{more}: no bar", "note", table.where)
        )
        frame = frame[~missing].reset_index(drop=True)
        table.rows = table.rows[~missing]
    if "volume" in names and _is_missing(frame[names["volume"]]).all():
        table.note(f"{str(names.pop('volume'))!r} is empty: these bars have no volume")
    return frame


def _is_missing(cells: "pd.Series[Any]") -> NDArray[np.bool_]:
    missing = cells.isna()
    if not pd.api.types.is_numeric_dtype(cells):
        missing |= cells.astype(str).str.strip().str.lower().isin(MISSING)
    return missing.to_numpy(np.bool_)


def _flatten(table: Table, renamed: Mapping[str, str]) -> pd.DataFrame | None:
    """Index and yfinance's two-level columns (field, ticker) become plain columns; rows repeat per ticker.

    None where two columns have one name, since nothing tells which of them is meant.
    """
    frame = table.frame
    if frame.columns.nlevels == 1:
        frame = frame.set_axis(with_blanks_apart(frame.columns), axis=1)
    for step in (_without_index, _with_tickers, _stacked):
        if (twice := named_twice(frame)) is not None:
            message = f"two columns are called {twice!r:.80}; drop one of them, or give it another name"
            table.problems.append(Problem(None, "duplicate column", message, where=table.where))
            return None
        frame = step(table, frame, renamed)
    return frame


def _without_index(table: Table, frame: pd.DataFrame, renamed: Mapping[str, str]) -> pd.DataFrame:
    single = frame.columns.nlevels == 1
    if pd.api.types.is_integer_dtype(frame.index) and single and "time" in find(frame, renamed):
        return frame.reset_index(drop=True)  # rows that were filtered or joined keep their old numbers
    if isinstance(frame.index, pd.RangeIndex):
        return frame
    names = [str(name or "time") if k == 0 else str(name or "asset") for k, name in enumerate(frame.index.names)]
    for level, name in reversed(list(enumerate(names))):
        if single and name in frame.columns:
            table.note(f"the index is left out: {name!r} is a column too")
            frame, names = frame.reset_index(level=level, drop=True), [*names[:level], *names[level + 1 :]]
    return frame.rename_axis(index=names).reset_index() if names else frame


def _with_tickers(table: Table, frame: pd.DataFrame, renamed: Mapping[str, str]) -> pd.DataFrame:
    """Names of a field and a ticker, as Close_AAPL or AAPL.Close, are taken apart into yfinance's two levels."""
    pairs = price_of_ticker(frame, renamed) if frame.columns.nlevels == 1 else {}
    if not pairs:
        return frame
    tickers = dict.fromkeys(ticker for _, ticker in pairs.values())
    table.note(f"one column per field and asset; the assets are {', '.join(tickers)}")
    time = find(frame, renamed)["time"]
    taken = frame[[time, *pairs]]
    taken.columns = pd.MultiIndex.from_tuples([("time", ""), *pairs.values()])
    left = [str(column) for column in frame.columns if column != time and column not in pairs]
    if left:
        table.problems.append(Problem(None, "ignored", ", ".join(map(repr, left)), "note", table.where))
    return taken


def _stacked(table: Table, frame: pd.DataFrame, renamed: Mapping[str, str]) -> pd.DataFrame:
    """Tickers below each other instead of beside each other."""
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


def _remedy(frame: pd.DataFrame, names: Mapping[str, str], missing: list[str]) -> str:
    came = ", ".join(repr(str(name)) for name in frame.columns)
    text = f"no column {', '.join(missing)}; the columns are {came}"
    others = [str(column) for column in frame.columns if column not in names.values()]
    like = [column for column in others for price in missing if price in column.lower()]
    if like:
        price = next(price for price in missing if price in like[0].lower())
        return f"{text}; data.columns says which is which, as {{{like[0]}: {price}}}"
    if "time" in names and not set(PRICES) & set(names) and others:
        return (
            f"{text}. This looks like one column of closes per asset: an order is filled at the next open, so every "
            "asset needs open, high, low and close; give one file per asset, or one line per bar and asset"
        )
    if "time" in names and set(missing) == {"open", "high", "low"}:
        return f"{text}. Closes alone are not enough: orders are filled at the next open; get bars with all four prices"
    if not others:
        return f"{text}; add {'them' if len(missing) > 1 else 'it'}"
    return f"{text}; data.columns says which is which, as {{{others[0]}: {missing[0]}}}"


def _say_what_was_taken(table: Table, frame: pd.DataFrame, names: Mapping[str, str]) -> None:
    taken = [
        f"{name} from {str(column)!r}"
        for name, column in names.items()
        if plain(column) not in (*_OBVIOUS, name, "adj._close", "adjclose") and not name.startswith(USER_FEATURE)
    ]
    if taken:
        table.note(", ".join(taken))
    day_and_clock = [c for c in frame.columns if plain(c) in ("date", "time")] if _clock_column(frame) else []
    ignored = [str(column) for column in frame.columns if column not in (*names.values(), *day_and_clock)]
    if ignored:
        table.problems.append(Problem(None, "ignored", ", ".join(map(repr, ignored)), "note", table.where))


def _clock_column(frame: pd.DataFrame) -> str | None:
    """The column of hours beside one of days, as MetaTrader and Stooq have them."""
    known = {plain(name): name for name in frame.columns}
    return known["time"] if "date" in known and "time" in known else None


def _joined(frame: pd.DataFrame, names: Mapping[str, str]) -> "pd.Series[Any]":
    clock = _clock_column(frame)
    if clock is None:
        return frame[names["time"]]
    days, hours = frame[next(c for c in frame.columns if plain(c) == "date")], frame[clock].astype(str).str.strip()
    if not hours.str.fullmatch(r"\d{1,6}|\d{1,2}:\d{2}(:\d{2})?(\.\d+)?( ?[AaPp][Mm])?").all():
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


def _has_three_decimals(numbers: FloatArray) -> bool:
    """1.234 everywhere, in a file that is not cut by commas, may mean 1234 in another country."""
    thousandths = numbers * 1000.0
    whole = np.isclose(thousandths, np.round(thousandths), rtol=1e-9)
    return bool(whole.all() and (numbers < 1000.0).all() and (np.round(thousandths) % 10 != 0).mean() > 0.5)


def _read_numbers(
    table: Table, frame: pd.DataFrame, names: Mapping[str, str]
) -> tuple[dict[str, FloatArray], list[Problem]]:
    order = (*PRICES, "volume", "adj_close", *ACTIONS, *(n for n in names if n.startswith(USER_FEATURE)))
    cells = {name: frame[names[name]] for name in order if name in names}
    cells |= {name: _false_as_zero(cells[name]) for name in ACTIONS if name in cells}
    values = {n: pd.to_numeric(column, errors="coerce").to_numpy(np.float64, copy=True) for n, column in cells.items()}
    for name, column in cells.items():
        if not name.startswith(USER_FEATURE):  # true is no price, though pandas counts with it
            values[name][_is_truth(column)] = np.nan
    text = {n: column.astype(str) for n, column in cells.items() if not pd.api.types.is_numeric_dtype(column)}
    if any(np.isnan(values[name]).any() for name in text):  # one cell that is odd tells how to read the others
        prices, others = ([column for n, column in text.items() if (n in PRICES) is wanted] for wanted in (True, False))
        decimal = decimal_sign(prices, others, decimal_comma=table.decimal_comma)
        guessed: dict[str, list[str]] = {}
        for name, column in text.items():
            if decimal == "," or np.isnan(values[name]).any():
                values[name], said = plain_numbers(column, decimal)
                guessed.setdefault(said, []).append(name)
        for said in filter(None, guessed):
            table.note(f"{', '.join(guessed[said])}: {said}")
    elif table.decimal_comma and _has_three_decimals(values["close"]):
        table.note("a dot is the decimal point; if it stands between thousands, write the prices without it")
    return values, [problem for name, column in cells.items() for problem in _not_numbers(table, name, column, values)]


def _false_as_zero(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """A split or a dividend that is false is none."""
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        return column
    false = column.astype(str).str.strip().str.lower() == "false"
    return column.astype(object).mask(false, 0).infer_objects()


def _is_truth(column: "pd.Series[Any]") -> NDArray[np.bool_]:
    if column.dtype != object:
        return np.full(len(column), pd.api.types.is_bool_dtype(column))
    return np.array([isinstance(cell, bool | np.bool_) for cell in column], np.bool_)


def _not_numbers(table: Table, name: str, column: "pd.Series[Any]", values: Mapping[str, FloatArray]) -> list[Problem]:
    problems = []
    for i in np.flatnonzero(np.isnan(values[name])):
        cell = str(column.iloc[i]).strip()
        if cell.lower() not in MISSING:
            message = f"{name} is {cell!r:.80}; expected a number"
            problems.append(Problem(int(table.rows[i]), "text in number", message, where=table.where))
        elif not name.startswith(USER_FEATURE) and name not in ACTIONS:  # a feature may start late: it is flagged there
            message = f"{name} is missing; fill it or drop the line"
            problems.append(Problem(int(table.rows[i]), "missing value", message, where=table.where))
    return problems
