"""From a raw table to typed columns under Leeward's own names."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.market.bars import FloatArray
from leeward.market.problems import Problem
from leeward.market.reading import Table
from leeward.market.times import read_times

__all__ = ["Columns", "PRICES", "USER_FEATURE", "read_columns"]

PRICES = ("open", "high", "low", "close")
USER_FEATURE = "feature_"
_ALIASES = {
    "time": ("time", "date", "datetime", "timestamp", "open_time", "opentime", "unnamed:_0", "index", ""),
    "asset": ("asset", "tic", "ticker", "symbol"),
    "adj_close": ("adj_close", "adjclose", "adjusted_close", "adj._close"),
    "volume": ("volume", "vol"),
    **{name: (name,) for name in PRICES},
}
_MISSING = {"", "nan", "na", "n/a", "null", "none", "nat"}


@dataclass
class Columns:
    """Typed columns of one table, rows as they stand in the file. `time` is ns in UTC, smallest int64 = unreadable."""

    time: NDArray[np.int64]
    asset: NDArray[np.str_]
    values: dict[str, FloatArray]  # open, high, low, close; volume, adj_close and feature_* where they exist
    rows: NDArray[np.int64]
    where: str
    problems: list[Problem]


def read_columns(table: Table, *, asset: str, time_zone: str) -> Columns | None:
    """Find and type the columns; None when they cannot be found (the table's problems say why).

    `asset` names the only asset of a table that has no column for it.
    """
    if table.frame.empty:
        return None
    frame = _flatten(table)
    names = _find(frame)
    missing = [name for name in ("time", *PRICES) if name not in names]
    if missing:
        came = ", ".join(repr(str(name)) for name in frame.columns)
        message = f"no column {', '.join(missing)}; the columns are {came}"
        table.problems.append(Problem(None, "missing column", message, where=table.where))
        return None
    time, problems = read_times(frame[names["time"]], table.rows, where=table.where, time_zone=time_zone)
    values: dict[str, FloatArray] = {}
    for name in (*PRICES, "volume", "adj_close", *(n for n in names if n.startswith(USER_FEATURE))):
        if name in names:
            values[name], more = _read_numbers(frame[names[name]], name, table)
            problems += more
    if "asset" in names:
        assets = frame[names["asset"]].astype(str).to_numpy(dtype=np.str_)
    else:
        assets = np.full(len(frame), asset)
    return Columns(time, assets, values, table.rows, table.where, table.problems + problems)


def _flatten(table: Table) -> pd.DataFrame:
    """Index and yfinance's two-level columns (field, ticker) become plain columns; rows repeat per ticker."""
    frame = table.frame
    numbered = pd.api.types.is_integer_dtype(frame.index) and frame.columns.nlevels == 1 and "time" in _find(frame)
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
        parts.append(part.assign(time=time, asset=str(ticker)).dropna(subset=list(part.columns), how="all"))
    flat: pd.DataFrame = pd.concat(parts)
    table.rows = table.rows[flat.index.to_numpy()]
    return flat.reset_index(drop=True)


def _find(frame: pd.DataFrame) -> dict[str, str]:
    """Leeward's name -> the frame's; the first alias that is there wins."""
    plain = {str(name).strip().lower().replace(" ", "_"): name for name in reversed(frame.columns)}
    names = {}
    for name, aliases in _ALIASES.items():
        found = next((plain[alias] for alias in aliases if alias in plain), None)
        if found is not None:
            names[name] = found
    names.update({name: column for name, column in reversed(plain.items()) if name.startswith(USER_FEATURE)})
    return names


def _read_numbers(column: "pd.Series[Any]", name: str, table: Table) -> tuple[FloatArray, list[Problem]]:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(np.float64)
    problems = []
    for i in np.flatnonzero(np.isnan(numbers)):
        cell = str(column.iloc[i]).strip()
        if cell.lower() not in _MISSING:
            message = f"{name} is {cell!r}; expected a number"
            problems.append(Problem(int(table.rows[i]), "text in number", message, where=table.where))
        elif not name.startswith(USER_FEATURE):  # an own feature may start late: it is flagged invalid there
            message = f"{name} is missing; fill it or drop the line"
            problems.append(Problem(int(table.rows[i]), "missing value", message, where=table.where))
    return numbers, problems
