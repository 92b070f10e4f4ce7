"""Names for the columns of a table that has none: a dump of rows, or the arrays of an exchange.

Every row begins with its time. High and low betray themselves, since one is never below and the other never above the
rest; of the two that are left, every source writes the open before the close.
"""

import numpy as np
import pandas as pd

from leeward.market.bars import FloatArray

__all__ = ["name_columns"]

_SAMPLE = 2_000
_WIDEST = 3.0  # high over low of nearly every bar


def name_columns(frame: pd.DataFrame) -> tuple[list[str], str] | None:
    """A name for each column, and what was guessed in words; None where four prices after a time cannot be found."""
    sample = frame.head(_SAMPLE).astype(str)
    names: list[str] = []
    for column in sample:
        cells = sample[column].str.strip()
        if cells.str.fullmatch(r"[A-Za-z][\w./-]*").all():
            names.append("asset" if not names else f"column_{len(names)}")
        else:
            break
    if len(names) == frame.shape[1]:
        return None
    names.append("time")
    if len(names) < frame.shape[1] and _is_clock(sample.iloc[:, len(names)], sample.iloc[:, len(names) :].shape[1]):
        names[-1:] = ["date", "time"]
    at = len(names)
    numbers = sample.iloc[:, at:].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    if numbers.shape[1] < 4 or not np.isfinite(numbers[:, :4]).all():
        return None
    prices = _name_prices(numbers[:, :4])
    if prices is None:
        return None
    rest = numbers[:, 4:]
    own = [f"column_{i}" for i in range(at + 4, frame.shape[1])]
    if rest.shape[1]:
        high, low = numbers[:, prices.index("high")], numbers[:, prices.index("low")]
        # Kraken has the average price between the close and the volume.
        average = rest.shape[1] > 1 and bool(((rest[:, 0] <= high) & (rest[:, 0] >= low) | (rest[:, 0] == 0)).all())
        own[1 if average else 0] = "volume"
    names += [*prices, *own]
    return names, f"no header; the columns are taken as {', '.join(n for n in names if not n.startswith('column_'))}"


def _is_clock(cells: "pd.Series[str]", columns_left: int) -> bool:
    cells = cells.str.strip()
    if cells.str.fullmatch(r"\d{1,2}:\d{2}(:\d{2})?").all():
        return True
    # 093000 and 0930 are clocks, 930 is none: a price may look like it.
    return (
        columns_left >= 5 and bool(cells.str.fullmatch(r"\d{4}|\d{6}").all()) and bool(cells.str.startswith("0").any())
    )


def _name_prices(prices: FloatArray) -> list[str] | None:  # (n, 4)
    top, bottom = prices.max(axis=1, keepdims=True), prices.min(axis=1, keepdims=True)
    highs, lows = ((prices == edge).mean(axis=0) for edge in (top, bottom))
    if (prices == prices[:, :1]).all():
        return ["open", "high", "low", "close"]  # every order is right
    high = int(highs.argmax())
    low = int(np.where(np.arange(4) == high, -1.0, lows).argmax())
    # A tick beyond the range is a vendor's rounding; a column that is often beyond is no high and no low.
    same_thing = float(np.quantile(top / np.maximum(bottom, 1e-300), 0.9)) < _WIDEST  # and not a volume among them
    if not same_thing or highs[high] < 0.99 or lows[low] < 0.99:
        return None
    names = [""] * 4
    names[high], names[low] = "high", "low"
    first, second = (i for i in range(4) if not names[i])
    names[first], names[second] = "open", "close"
    return names
