"""Bars: a validated panel of OHLCV, n times by A assets, in UTC.

Absent bars are NaN in every column and False in `present`. Missing volume is NaN in `volume` alone.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leeward.errors import DataError
from leeward.market.problems import Problem

__all__ = ["Bars", "FloatArray", "SECONDS_PER_YEAR"]

FloatArray = NDArray[np.float64]
SECONDS_PER_YEAR = 365.0 * 86_400.0  # actual/365, the convention of every rate in CostsConfig
JULIAN_YEAR_SECONDS = 365.25 * 86_400.0  # calendar years, for bars per year
_PRICES = ("open", "high", "low", "close")


@dataclass(frozen=True, eq=False, repr=False)
class Bars:
    """OHLCV of A assets on one time axis, the union of their bars. A bar's time is its opening."""

    time: NDArray[np.datetime64]  # (n,) datetime64[ns], UTC, strictly increasing
    assets: tuple[str, ...]  # A names
    open: FloatArray  # (n, A); so are high, low, close, volume
    high: FloatArray
    low: FloatArray
    close: FloatArray
    volume: FloatArray
    extra: Mapping[str, FloatArray] = field(default_factory=dict)  # the user's feature_* columns, (n, A) each
    source: str = "memory"
    problems: tuple[Problem, ...] = ()  # warnings and notes: what was guessed, ignored or looks wrong

    def __post_init__(self) -> None:
        shape = (len(self.time), len(self.assets))
        if not all(shape):
            raise DataError(f"{self.source}: a panel needs at least one bar and one asset, got {shape}")
        if len(set(self.assets)) != len(self.assets):
            raise DataError(f"{self.source}: asset names must differ, got {', '.join(self.assets)}")
        for name in self.assets:
            if not name.isprintable():
                raise DataError(f"{self.source}: {name!r:.40} is no name of an asset; expected letters and signs")
        for name in (*_PRICES, "volume", *self.extra):
            column = self.extra[name] if name in self.extra else getattr(self, name)
            if column.shape != shape or column.dtype != np.float64:
                raise DataError(
                    f"{self.source}: {name} must be float64 of shape {shape}, got {column.dtype} of {column.shape}"
                )
        self._check_time()
        self._check_values()

    def _check_time(self) -> None:
        if self.time.dtype != np.dtype("datetime64[ns]"):
            raise DataError(f"{self.source}: time must be datetime64[ns] in UTC, got {self.time.dtype}")
        steps = np.diff(self.time.astype(np.int64))
        if (steps <= 0).any():
            row = int(np.argmax(steps <= 0)) + 1
            raise DataError(
                f"{self.source} bar {row}: time {self.time[row]} is not after {self.time[row - 1]}; "
                "sort the bars or drop the duplicate"
            )

    def _check_values(self) -> None:
        present = self.present
        for name in _PRICES:
            column = getattr(self, name)
            wrong = present & ~(np.isfinite(column) & (column > 0.0))
            if wrong.any():
                row, asset = (int(i) for i in np.argwhere(wrong)[0])
                raise DataError(
                    f"{self.source} bar {row} ({self.time[row]}) {self.assets[asset]}: {name} must be a positive "
                    f"number, got {column[row, asset]}; correct the bar or leave the whole bar out"
                )
        if not present.any(axis=0).all():
            name = self.assets[int(np.argmin(present.any(axis=0)))]
            raise DataError(f"{self.source}: asset {name} has no bar at all; leave it out")
        wrong = present & ((self.volume < 0.0) | np.isinf(self.volume) | (self.high < self.low))
        if wrong.any():
            row, asset = (int(i) for i in np.argwhere(wrong)[0])
            raise DataError(
                f"{self.source} bar {row} ({self.time[row]}) {self.assets[asset]}: volume must be finite and not "
                f"negative and high not below low, got volume {self.volume[row, asset]}, high {self.high[row, asset]}, "
                f"low {self.low[row, asset]}"
            )

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """(n, A): the asset has a bar at this time."""
        return np.asarray(~np.isnan(self.close))

    @cached_property
    def first_bar(self) -> NDArray[np.int64]:
        """(A,) index of each asset's first bar."""
        return np.asarray(np.argmax(self.present, axis=0), dtype=np.int64)

    @cached_property
    def last_bar(self) -> NDArray[np.int64]:
        """(A,) index of each asset's last bar."""
        return np.asarray(len(self.time) - 1 - np.argmax(self.present[::-1], axis=0), dtype=np.int64)

    @cached_property
    def carried_close(self) -> FloatArray:
        """(n, A) last close at or before each time; NaN before the first bar."""
        rows = np.where(self.present, np.arange(len(self.time))[:, None], -1)
        rows = np.maximum.accumulate(rows, axis=0)
        closes = np.take_along_axis(self.close, np.maximum(rows, 0), axis=0)
        return np.where(rows >= 0, closes, np.nan)

    @cached_property
    def years_since_previous(self) -> FloatArray:
        """(n,) actual/365 years between the close of the previous bar and this one's; 0 at the first bar.

        Bars are equally long, so the distance of two closes is that of two opens.
        """
        seconds = np.diff(self.time.astype(np.int64), prepend=self.time[:1].astype(np.int64)) * 1e-9
        return np.asarray(seconds / SECONDS_PER_YEAR)

    @property
    def bars_per_year(self) -> float:
        """(bars − 1) / calendar years between the first and the last bar of the whole file."""
        if len(self.time) < 2:
            raise DataError(f"{self.source}: bars per year needs at least two bars, got {len(self.time)}")
        seconds = float((self.time[-1] - self.time[0]).astype(np.int64)) * 1e-9
        return (len(self.time) - 1) / (seconds / JULIAN_YEAR_SECONDS)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of everything in the panel: the same bars give the same 64 hex digits whatever file they came in."""
        digest = hashlib.sha256("\0".join((*self.assets, *sorted(self.extra))).encode())
        digest.update(np.ascontiguousarray(self.time.astype(np.int64)).tobytes())
        for column in (self.open, self.high, self.low, self.close, self.volume):
            digest.update(np.ascontiguousarray(column).tobytes())
        for name in sorted(self.extra):
            digest.update(np.ascontiguousarray(self.extra[name]).tobytes())
        return digest.hexdigest()

    @property
    def interval(self) -> float:
        """Seconds between two bars: the spacing that occurs most often."""
        sizes, counts = np.unique(np.diff(self.time.astype(np.int64)), return_counts=True)
        if len(sizes) == 0:
            raise DataError(f"{self.source}: one bar has no spacing; at least two are needed")
        return float(sizes[counts.argmax()]) * 1e-9

    def chosen(self, names: Sequence[str]) -> "Bars":
        """These assets alone, in this order; the union of their times."""
        at = [self.assets.index(name) for name in names]
        rows = self.present[:, at].any(axis=1)

        def taken(column: FloatArray) -> FloatArray:
            return np.ascontiguousarray(column[rows][:, at])

        return replace(
            self,
            time=self.time[rows],
            assets=tuple(names),
            open=taken(self.open),
            high=taken(self.high),
            low=taken(self.low),
            close=taken(self.close),
            volume=taken(self.volume),
            extra={name: taken(column) for name, column in self.extra.items()},
        )

    def __repr__(self) -> str:
        first, last = (str(time.astype("datetime64[s]")) for time in (self.time[0], self.time[-1]))
        return f"Bars({len(self)} bars, {first} to {last}, assets {', '.join(self.assets)}, from {self.source})"

    def __len__(self) -> int:
        return len(self.time)
