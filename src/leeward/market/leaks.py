"""Features that know the future: a user's own columns are tested, since nobody can see how they were made.

A column is compared with the moves before and after each bar. One made of the past alone is explained by past moves,
and what is left of it has nothing to do with later ones. So the question is how much later moves add to an explanation
by earlier ones: the partial R² of two least-squares fits. A bounce between bid and ask or a trend cannot fool it, since
they work through the past.

Where a function makes the feature there is a sharper test: it is made again from bars that were cut at t, and must not
change at or before t. That finds a scale fitted on the whole file too, which no comparison of numbers can.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from leeward.errors import ArgumentError
from leeward.market.bars import Bars, FloatArray
from leeward.market.column_names import USER_FEATURE
from leeward.market.problems import Problem

__all__ = ["leaking_features", "with_feature"]

_HORIZON, _BARS_EACH = 20, 60  # bars before and after, fewer where there are not 60 bars for each
_MOST_BARS = 5_000  # the last ones are enough
_LEAST_BARS = 150
# Partial R² from which on a column knows too much. A planted signal that is far stronger than any real one (the control
# market's) reaches 0.08 over 20 bars. Volatility is foreseeable, so for the size of moves much more is allowed.
_SIGNED, _SIZE = 0.12, 0.5
_ERRORS = 4.0  # standard errors of an R² by luck
_CUTS = (0.35, 0.5, 0.65, 0.8, 0.95)  # of the bars, at which a function is asked again

Make = Callable[[pd.DataFrame], "Sequence[float] | pd.Series[float] | FloatArray"]


def leaking_features(bars: Bars) -> list[Problem]:
    """A warning for each of the user's own columns that seems to know what comes after its bar."""
    found = []
    bases: list[dict[bytes, _Moves]] = [{} for _ in bars.assets]
    for name, column in bars.extra.items():
        share, asset = max(
            (_foreknown(column[:, a], bars.close[:, a], bases[a]), asset) for a, asset in enumerate(bars.assets)
        )
        if share > 0.0:
            message = (
                f"{name} knows the future: later moves of {asset} explain {share:.0%} of it beyond what earlier ones "
                "do; its value at t may use nothing after the close of t. No result with it can be trusted"
            )
            found.append(Problem(None, "leaking feature", message, "warning", bars.source))
    return found


def with_feature(bars: Bars, name: str, make: Make) -> Bars:
    """Bars with one more column, made by `make` from each asset's own bars (a frame of open … volume, indexed by time).

    The function is asked again with bars that end earlier. Where an answer changes, the column uses what comes later:
    a warning then stays with the bars.
    """
    if not name.startswith(USER_FEATURE):
        raise ArgumentError(f"the name of an own feature begins with {USER_FEATURE!r}, got {name!r}")
    column = np.full(bars.close.shape, np.nan)
    problems = list(bars.problems)
    for a, asset in enumerate(bars.assets):
        here = np.flatnonzero(bars.present[:, a])
        frame = _frame(bars, a, here)
        column[here, a] = values = _made(make, frame, name)
        changed = _changed(make, frame, values, name)
        if changed is not None:
            message = (
                f"{name} of {asset} changes when later bars are cut off (at {frame.index[changed]}): it is made from "
                "the future, such as a scale fitted on the whole file. No result with it can be trusted"
            )
            problems.append(Problem(None, "leaking feature", message, "warning", bars.source))
    return replace(bars, extra=dict(bars.extra) | {name: column}, problems=tuple(problems))


def _frame(bars: Bars, asset: int, here: "np.ndarray[tuple[int], np.dtype[np.intp]]") -> pd.DataFrame:
    columns = {name: getattr(bars, name)[here, asset] for name in ("open", "high", "low", "close", "volume")}
    return pd.DataFrame(columns, index=pd.DatetimeIndex(bars.time[here], name="time"))


def _made(make: Make, frame: pd.DataFrame, name: str) -> FloatArray:
    values = np.asarray(make(frame.copy()), dtype=np.float64)
    if values.shape != (len(frame),):
        raise ArgumentError(f"{name}: the function must give one number per bar, {len(frame)}, got {values.shape}")
    return values


def _changed(make: Make, frame: pd.DataFrame, values: FloatArray, name: str) -> int | None:
    """The first bar whose value differs when the bars end earlier."""
    for share in _CUTS:
        end = int(share * len(frame))
        if end < 2:
            continue
        again = _made(make, frame.iloc[:end], name)
        room = 1e-9 * (1.0 + np.abs(values[:end]))
        same = (np.abs(again - values[:end]) <= room) | (np.isnan(again) & np.isnan(values[:end]))
        if not same.all():
            return int(np.argmin(same))
    return None


def _foreknown(column: FloatArray, close: FloatArray, bases: dict[bytes, "_Moves"]) -> float:
    """(n,), (n,) -> the largest suspicious share, or 0. `bases` keeps what the columns of one asset have in common."""
    known = np.isfinite(column) & np.isfinite(close)
    values, prices = column[known][-_MOST_BARS:], close[known][-_MOST_BARS:]
    if len(values) < _LEAST_BARS:
        return 0.0
    key = known.tobytes()
    if key not in bases:
        bases[key] = _Moves(prices)
    moves = bases[key]
    forms = [values, np.diff(values, prepend=values[0]), values / prices]
    if (values > 0.0).all():
        forms.append(np.log(values / prices))
    found = [0.0]
    for signed, least in ((True, _SIGNED), (False, _SIZE)):
        shares = [moves.partial(form, signed=signed) for form in forms]
        found += [share for share, form in zip(shares, forms, strict=True) if share > least + _luck(form)]
    return max(found)


class _Moves:
    """The h moves before and the h moves after each bar of one asset, as orthonormal columns to fit with."""

    def __init__(self, prices: FloatArray) -> None:
        self.h, moves = _horizon(len(prices)), np.diff(np.log(prices))  # move i leads from bar i to bar i + 1
        self.n = len(moves) - 2 * self.h + 1
        plain = np.column_stack([np.ones(self.n), np.linspace(-1.0, 1.0, self.n)])
        self._fits = {}
        for signed, shown in ((True, moves), (False, np.abs(moves))):
            # row i: moves i … i + 2h − 1, which lie around bar i + h
            windows = np.lib.stride_tricks.sliding_window_view(shown, 2 * self.h)
            past = np.column_stack([plain, windows[:, : self.h]])
            self._fits[signed] = tuple(_basis(c) for c in (past, np.column_stack([past, windows[:, self.h :]])))

    def partial(self, values: FloatArray, *, signed: bool) -> float:
        """Adjusted partial R² of the next h moves in explaining `values` (n,), beyond the last h and a trend."""
        target = values[self.h : self.h + self.n]
        target = target - target.mean()
        total = float(target @ target)
        if total <= 1e-24 * len(target) * max(1.0, float(np.abs(values).max())) ** 2:
            return 0.0  # it never moves
        past, both = self._fits[signed]
        before, after = (total - float(np.square(fit.T @ target).sum()) for fit in (past, both))
        if before <= 1e-9 * total:
            return 0.0  # made of past moves and nothing else
        degrees = len(target) - past.shape[1]
        return float(1.0 - max(after, 0.0) / before * degrees / (degrees - self.h))


def _basis(columns: FloatArray) -> FloatArray:
    norms = np.linalg.norm(columns, axis=0)
    return np.asarray(np.linalg.qr(columns / np.where(norms > 0.0, norms, 1.0))[0])


def _luck(values: FloatArray) -> float:
    """What a column without foresight may reach. One that drifts is worth fewer bars: it goes along with anything."""
    around = values - values.mean()
    neighbours = float(around[1:] @ around[:-1]) / max(float(around @ around), 1e-300)
    drift = (1.0 + neighbours) / max(1.0 - neighbours, 1e-3) if neighbours > 0.0 else 1.0
    return _ERRORS * float(np.sqrt(2.0 * _horizon(len(values)) * drift)) / len(values)


def _horizon(n: int) -> int:
    return max(2, min(_HORIZON, n // _BARS_EACH))
