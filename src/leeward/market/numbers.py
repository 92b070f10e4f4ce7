"""Numbers as people write them: currency signs, thousands in either convention, K and M."""

import numpy as np
import pandas as pd

from leeward.market.bars import FloatArray

__all__ = ["MISSING", "plain_numbers"]

MISSING = {"", "nan", "na", "n/a", "null", "none", "nat", "-", "--"}
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def plain_numbers(cells: "pd.Series[str]", *, decimal_comma: bool) -> tuple[FloatArray, str]:
    """Numbers, NaN where a cell is none, and what was guessed in words.

    `decimal_comma` decides about 1,234, where nothing in the column does: 1.234 if True, else 1234.
    """
    text = cells.str.strip().str.replace(r"[\s'\u00a0\u202f%]|[$€£¥]|USD|EUR", "", regex=True)
    text = text.str.replace(r"^\((.*)\)$", r"-\1", regex=True)
    unit = text.str.extract(r"([KMBT])$", expand=False).str.upper()
    text = text.str.replace(r"[KMBTkmbt]$", "", regex=True)
    said = []
    if unit.notna().any():
        said.append("K, M and B are thousands, millions and billions")
    comma = text.str.contains(",", regex=False)
    if comma.any():
        is_decimal = _comma_is_decimal(text[comma], decimal_comma)
        said.append(f"a comma is {'the decimal point' if is_decimal else 'between thousands'}")
        text = text.str.replace("." if is_decimal else ",", "", regex=False)
        text = text.str.replace(",", ".", regex=False)
    elif text.str.fullmatch(r"-?\d{1,3}(\.\d{3}){2,}").any():
        said.append("a dot is between thousands")
        text = text.str.replace(".", "", regex=False)
    numbers = pd.to_numeric(text, errors="coerce").to_numpy(np.float64)
    return numbers * unit.map(_UNITS).fillna(1.0).to_numpy(np.float64), "; ".join(said)


def _comma_is_decimal(text: "pd.Series[str]", otherwise: bool) -> bool:
    both = text[text.str.contains(".", regex=False)]
    if len(both):
        return bool((both.str.rfind(",") > both.str.rfind(".")).any())
    if (text.str.count(",") > 1).any():
        return False
    thousands = text.str.fullmatch(r"-?[1-9]\d{0,2},\d{3}")
    return True if not thousands.all() else otherwise
