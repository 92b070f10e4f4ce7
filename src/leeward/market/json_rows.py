"""Bars in JSON: ccxt's rows, exchanges' answers, lists of records, columns of lists, and one object per line."""

import json
import re
from typing import Any

import pandas as pd

__all__ = ["json_frames"]

_DIGITS = 19  # nanoseconds have as many; what has more is a number all the same, and none that pandas could convert
_FIELD = re.compile(r"^\d+[a-z]?\. ?")  # Alpha Vantage numbers its fields: "1. open"
_SHORT = {"t": "time", "o": "open", "h": "high", "l": "low", "c": "close", "v": "volume", "s": "asset", "T": "asset"}


def json_frames(text: str) -> dict[str, pd.DataFrame]:
    """Asset -> table; the name is empty where the file does not say it. Raises ValueError where no bars are found."""
    try:
        try:
            content = _parsed(text)
        except ValueError:
            content = [_parsed(line) for line in text.splitlines() if line.strip()]
        return _tables(content, "") or {}
    except RecursionError:
        raise ValueError("nested deeper than any list of bars is") from None


def _parsed(text: str) -> Any:
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) <= _DIGITS else float(digits))


def _tables(content: Any, name: str) -> dict[str, pd.DataFrame]:
    if isinstance(content, list):
        return _from_list(content, name)
    if not isinstance(content, dict):
        return {}
    symbol = next((content[key] for key in ("symbol", "ticker") if isinstance(content.get(key), str)), name)
    if {"columns", "index", "data"} == set(content):  # pandas, orient="split"
        return {symbol: _named(pd.DataFrame(content["data"], columns=content["columns"]).assign(time=content["index"]))}
    columns = {key: value for key, value in content.items() if isinstance(value, list) and len(value) > 1}
    if len(columns) >= 5 and len({len(value) for value in columns.values()}) == 1:
        return {symbol: _named(pd.DataFrame(columns))}
    if len(content) > 1 and all(isinstance(value, dict) for value in content.values()) and _are_times(content):
        records = [{"time": key} | value for key, value in content.items()]
        return {symbol: _named(pd.DataFrame(records))}
    if len(content) >= 4 and all(isinstance(value, dict) and _are_times(value) for value in content.values()):
        by_column = pd.DataFrame(content)  # pandas' own: column -> time -> value
        return {symbol: _named(by_column.rename_axis(index="time").reset_index())}
    found: dict[str, pd.DataFrame] = {}
    for key, value in content.items():
        generic = key in ("data", "result", "results", "list", "bars", "candles", "chart", "values") or " " in key
        found |= _tables(value, symbol if generic else symbol or key)
    return found


def _from_list(content: list[Any], name: str) -> dict[str, pd.DataFrame]:
    if len(content) == 1 and isinstance(content[0], dict | list):
        return _tables(content[0], name)
    if content and all(isinstance(row, list) and len(row) >= 5 for row in content):
        return {name: pd.DataFrame(content)}
    if content and all(isinstance(row, dict) for row in content):
        return {name: _named(pd.DataFrame([_unpacked(row) for row in content]))}
    return {}


def _unpacked(row: dict[str, Any]) -> dict[str, Any]:
    """A record whose prices stand one level deeper, where there is one such level: OANDA's "mid"."""
    deeper = [key for key, value in row.items() if isinstance(value, dict)]
    if len(deeper) != 1:
        return row
    return {**{key: value for key, value in row.items() if key != deeper[0]}, **row[deeper[0]]}


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    plain = {name: _FIELD.sub("", str(name)) for name in frame.columns}
    if {"o", "h", "l", "c"} <= set(plain.values()):
        plain = {name: _SHORT.get(short, short) for name, short in plain.items()}
    return frame.rename(columns=plain)


def _are_times(content: dict[str, Any]) -> bool:
    return len(content) > 0 and all(re.fullmatch(r"[\d :T.Z+-]{8,}", key) for key in content)
