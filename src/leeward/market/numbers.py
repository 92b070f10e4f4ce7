"""Numbers as people write them: currency signs, thousands in either convention, K and M."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from leeward.market.bars import FloatArray

__all__ = ["MISSING", "decimal_sign", "plain_numbers"]

MISSING = {"", "nan", "na", "n/a", "null", "none", "nat", "-", "--"}
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def decimal_sign(prices: "Sequence[pd.Series[str]]", others: "Sequence[pd.Series[str]]", *, decimal_comma: bool) -> str:
    """What stands before the decimals in a table, "." or ",": all its columns are written in one convention.

    A volume of 13.246 is a number of thousands where prices are 1,1064. Where every sign stands before three digits,
    one that only prices have is before decimals, since volumes are whole. `decimal_comma` decides about 1,234 alone.
    """
    of_prices, of_others = (
        pd.concat([_bare(cells)[0] for cells in part]) if part else None for part in (prices, others)
    )
    text = pd.concat([part for part in (of_prices, of_others) if part is not None])
    comma, dot = _is_decimal(text, ",", "."), _is_decimal(text, ".", ",")
    if comma != dot:
        return "," if comma else "."
    signs = [
        set() if part is None else {sign for sign in ".," if _holds(part, sign)} for part in (of_prices, of_others)
    ]
    if len(signs[0]) == 1 and signs[1] - signs[0]:
        return signs[0].pop()
    return "," if decimal_comma and _holds(text, ",") else "."


def _holds(text: "pd.Series[str]", sign: str) -> bool:
    return bool(text.str.contains(sign, regex=False).any())


def plain_numbers(cells: "pd.Series[str]", decimal: str) -> tuple[FloatArray, str]:
    """Numbers, NaN where a cell is none, and what was guessed in words."""
    text, unit = _bare(cells)
    said = []
    if unit.notna().any():
        said.append("K, M and B are thousands, millions and billions")
    if _holds(text, ","):
        said.append(f"a comma is {'the decimal point' if decimal == ',' else 'between thousands'}")
    elif decimal == "," and _holds(text, "."):
        said.append("a dot is between thousands")
    text = text.str.replace("." if decimal == "," else ",", "", regex=False).str.replace(",", ".", regex=False)
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(np.float64)
    return numbers * unit.map(_UNITS).fillna(1.0).to_numpy(np.float64), "; ".join(said)


def _bare(cells: "pd.Series[str]") -> "tuple[pd.Series[str], pd.Series[str]]":
    """Digits and their signs, and the unit behind them."""
    text = cells.str.strip().str.replace(r"[\s'\u00a0\u202f%]|[$€£¥]|USD|EUR", "", regex=True)
    text = text.str.replace(r"^\((.*)\)$", r"-\1", regex=True)
    unit = text.str.extract(r"([KMBT])$", expand=False).str.upper()
    return text.str.replace(r"[KMBTkmbt]$", "", regex=True), unit


def _is_decimal(text: "pd.Series[str]", sign: str, other: str) -> bool:
    """Whether a cell shows that `sign` stands before decimals: behind the other one, or not before three digits."""
    numbers = text[text.str.fullmatch(r"[-+]?\d[\d.,]*")]
    signs, others = numbers.str.count(f"[{sign}]"), numbers.str.count(f"[{other}]")
    last = (signs == 1) & (others > 0) & (numbers.str.rfind(sign) > numbers.str.rfind(other))
    alone = (signs == 1) & (others == 0) & ~numbers.str.fullmatch(rf"[-+]?[1-9]\d{{0,2}}[{sign}]\d{{3}}")
    return bool((last | alone | (others > 1)).any())
