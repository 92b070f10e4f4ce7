"""What the columns of other people's tables are called, and which of Leeward's they are."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from zoneinfo import available_timezones

import pandas as pd

__all__ = [
    "ACTIONS", "DIVIDENDS", "PRICES", "SPLITS", "USER_FEATURE", "find", "is_of_assets", "named_twice", "plain",
    "price_of_ticker", "with_blanks_apart", "zone_of",
]  # fmt: skip

PRICES = ("open", "high", "low", "close")
USER_FEATURE = "feature_"
ACTIONS = (SPLITS, DIVIDENDS) = ("stock_splits", "dividends")
# Leeward's name -> what others call it, the likeliest first.
_ALIASES = {
    "time": (
        *("time", "date", "datetime", "date_time", "timestamp", "open_time", "opentime", "time_open", "timeopen"),
        *("window_start", "unix", "unix_timestamp", "gmt_time", "local_time", "datum", "zeit", "fecha", "day"),
        *(
            "time_period_start",
            "begins_at",
            "start",
            "ts",
            "trade_date",
            "observation_date",
            "dtyyyymmdd",
            "data",
            "unnamed:_0",
            "index",
            "",
        ),
    ),
    "asset": ("asset", "tic", "ticker", "symbol", "instrument", "act_symbol"),
    "adj_close": ("adj_close", "adjclose", "adjusted_close", "adj._close", "adj_close*", "adj_close**"),
    "volume": (
        *("volume", "vol", "px_volume", "vol.", "volumen", "tickvol", "tick_volume", "volume_base", "basevolume"),
        *("wolumen", "tottrdqty"),
    ),
    "open": (
        *("open", "px_open", "open_price", "opening_price", "eröffnung", "eröffnungskurs", "eröffn.", "ouverture"),
        *("ouv.", "apertura", "abertura", "otwarcie"),
    ),
    "high": (
        *("high", "px_high", "high_price", "max", "hoch", "tageshoch", "haut", "+haut", "plus_haut", "máximo"),
        *("massimo", "máxima", "najwyzszy"),
    ),
    "low": (
        *("low", "px_low", "low_price", "min", "tief", "tagestief", "bas", "+bas", "plus_bas", "mínimo"),
        *("minimo", "mínima", "najnizszy"),
    ),
    "close": (
        *("close", "px_last", "close_price", "closing_price", "close/last", "last", "last_price", "price", "close*"),
        *("schluss", "schlusskurs", "dernier", "clôture", "cierre", "último", "ultimo", "zuletzt", "zamkniecie"),
    ),
    SPLITS: ("stock_splits", "split", "splits", "split_ratio", "split_coefficient", "splitfactor"),
    DIVIDENDS: ("dividends", "dividend", "dividend_amount", "divcash"),
}
_IN_BRACKETS = re.compile(r"\s*\(([A-Z]{3,5})\)\s*$")  # the zone of a time, or a currency: Time (EET), Open (USD)
_SIDES = {"bid", "ask", "mid", "adj", "prev", "previous"}  # what stands before a field and is no asset
_FIELD_OF = re.compile(r"(?P<field>adj[ _.]?close|open|high|low|close|volume)", re.IGNORECASE)


def find(frame: pd.DataFrame, renamed: Mapping[str, str]) -> dict[str, str]:
    """Leeward's name -> the frame's; what the user says, then the first alias that is there."""
    known = {_without_brackets(name): name for name in reversed(frame.columns)}
    known |= {plain(name): name for name in reversed(frame.columns)}
    names = {meaning: name for name, meaning in renamed.items() if name in frame.columns}
    left = {alias: name for alias, name in known.items() if name not in names.values()}
    for name, aliases in _ALIASES.items():
        found = next((left[alias] for alias in aliases if alias in left), None)
        if found is None and name == "volume":  # Volume BTC, Volume USDT: the first is in the asset's own units
            found = next((left[alias] for alias in reversed(left) if alias.startswith(("volume_", "vol_"))), None)
        if found is not None:
            names.setdefault(name, found)
    stamped = [name for name in set(left.values()) if pd.api.types.is_datetime64_any_dtype(frame[name])]
    if len(stamped) == 1:  # whatever it is called
        names.setdefault("time", stamped[0])
    if "tickvol" in left and _is_zero(frame[names["volume"]]):  # MetaTrader's real volume, of what has none
        names["volume"] = left["tickvol"]
    names.update({name: column for name, column in reversed(left.items()) if name.startswith(USER_FEATURE)})
    return names


def _is_zero(cells: "pd.Series[Any]") -> bool:
    return bool((pd.to_numeric(cells, errors="coerce") == 0.0).all())


def plain(name: object) -> str:
    """A name in lower case, without the signs that MetaTrader and Stooq put around it."""
    return str(name).strip().strip("<>").lower().replace(" ", "_")


def _without_brackets(name: object) -> str:
    """Without a currency, or a zone that is one: Time (PST) may mean several."""
    bare = plain(_IN_BRACKETS.sub("", str(name)))
    unclear = bare in _ALIASES["time"] and zone_of(name) is None
    return plain(name) if unclear else bare


def is_of_assets(name: object, renamed: Mapping[str, str]) -> bool:
    """Whether a column of this name says which asset a line is of."""
    return plain(name) in _ALIASES["asset"] or renamed.get(str(name)) == "asset"


def named_twice(frame: pd.DataFrame) -> str | None:
    """The first name that two columns have."""
    twice: list[Any] = frame.columns[frame.columns.duplicated()].tolist()
    if not twice:
        return None
    return " ".join(map(str, twice[0])).strip() if isinstance(twice[0], tuple) else str(twice[0])


def with_blanks_apart(names: Iterable[Any]) -> list[Any]:
    """Columns that nobody has named are no two of one name: all but the first of them get a number."""
    seen: Counter[Any] = Counter()
    apart = []
    for name in names:
        blank = plain(name) in ("", "none", "nan") or plain(name).startswith("unnamed:")
        apart.append(f"{name}.{seen[str(name)]}" if blank and seen[str(name)] else name)
        seen[str(name)] += 1
    return apart


def price_of_ticker(frame: pd.DataFrame, renamed: Mapping[str, str]) -> dict[Any, tuple[str, str]]:
    """Column -> field and ticker, as in Close_AAPL or AAPL.Close, where each ticker has all four prices."""
    names = find(frame, renamed)
    if "time" not in names or set(PRICES) & set(names):
        return {}
    pairs = {column: pair for column in frame.columns if (pair := _field_and_ticker(str(column))) is not None}
    fields = {ticker: {field for field, other in pairs.values() if other == ticker} for _, ticker in pairs.values()}
    whole = all(set(PRICES) <= found for found in fields.values())
    return pairs if whole and not _SIDES & set(map(str.lower, fields)) else {}


def _field_and_ticker(name: str) -> tuple[str, str] | None:
    """The two parts of Close_AAPL or AAPL.Close."""
    for pattern in (rf"{_FIELD_OF.pattern}[ _.:-](?P<ticker>.+)", rf"(?P<ticker>.+)[ _.:-]{_FIELD_OF.pattern}"):
        found = re.fullmatch(pattern, name.strip(), re.IGNORECASE)
        if found:
            return plain(found["field"]), found["ticker"]
    return None


def zone_of(name: object) -> str | None:
    """The zone in the brackets of Time (EET), where it is one."""
    found = _IN_BRACKETS.search(str(name))
    return found.group(1) if found and found.group(1) in available_timezones() else None
