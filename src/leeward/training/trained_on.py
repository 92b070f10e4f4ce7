"""What a run was trained and chosen on, kept in its bars.npz, and how other bars are fitted to it.

Other bars are matched by the names of their assets, never by position. What sets them apart (spacing, hours of the day,
size of the volume, columns) becomes a warning that stays with them.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from leeward.durable import read_arrays, write_atomically
from leeward.errors import DataError, RunDirectoryError
from leeward.market import Bars, Market, Problem
from leeward.market.bars import FloatArray
from leeward.market.tape import Tape

__all__ = ["TrainedOn"]

_SAME_HOURS = 0.9  # overlap of the hours of the day at which two files have bars, below which they are told apart
_OTHER_UNIT = 100.0  # a median volume this many times larger or smaller is in another unit


@dataclass(frozen=True, eq=False)
class TrainedOn:
    """The bars of a run, its splits by the bar they begin with, and what its features were."""

    tape: Tape
    train_from: int
    validation_to: int  # the first bar after validation
    test_from: int  # the first bar of the test split's embargo
    features: tuple[str, ...]
    interval: float  # seconds
    volume: FloatArray  # (A,) median; NaN without one

    @classmethod
    def of(cls, market: Market) -> "TrainedOn":
        splits = market.splits
        return cls(
            Tape.of(market.bars),
            splits["train"].start,
            splits["validation"].end,
            splits["test"].warmup,
            market.feature_names,
            market.bars.interval,
            _median_volume(market.bars),
        )

    def write(self, path: Path) -> None:
        file = io.BytesIO()
        np.savez_compressed(
            file,
            allow_pickle=False,
            time=self.tape.time,
            assets=np.array(self.tape.assets),
            log_close=self.tape.log_close.astype(np.float32),
            edges=np.array([self.train_from, self.validation_to, self.test_from]),
            features=np.array(self.features),
            interval=np.array(self.interval),
            volume=self.volume,
        )
        write_atomically(path, file.getvalue())

    @classmethod
    def read(cls, path: Path) -> "TrainedOn":
        try:
            file = read_arrays(path)
            assets, features = (tuple(str(name) for name in file[key]) for key in ("assets", "features"))
            tape = Tape(file["time"], assets, file["log_close"].astype(np.float64))
            train, validation, test = (int(edge) for edge in file["edges"])
            found = cls(tape, train, validation, test, features, float(file["interval"]), file["volume"])
            found._check()
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            raise RunDirectoryError(f"{path}: not the record of a run's bars ({error}); restore it") from None
        return found

    def _check(self) -> None:
        """Its parts fit together: places are those of its bars, and there is a column for each asset."""
        n, a = len(self.tape.time), len(self.tape.assets)
        shapes = self.tape.time.shape, self.tape.log_close.shape, self.volume.shape
        if self.tape.time.dtype != np.int64 or shapes != ((n,), (n, a), (a,)):
            raise ValueError(f"times, closes and volumes have shapes {shapes} for {a} assets")
        if not 0 <= self.train_from < self.validation_to <= self.test_from <= n or not self.interval > 0.0:
            edges = self.train_from, self.validation_to, self.test_from
            raise ValueError(f"the splits begin and end at bars {edges} of {n}, {self.interval} s apart")

    @property
    def test(self) -> Tape:
        """The sealed bars, their embargo among them."""
        return self.tape.part(self.test_from)

    def seen(self, bars: Bars, start: int, end: int) -> str:
        """What to say about decisions at bars [start, end) that fall into what was learned from; empty when none do."""
        first, last = self.tape.time[self.train_from], self.tape.time[self.validation_to - 1]
        decided = bars.time[start:end].astype(np.int64)
        inside = int(((decided >= first) & (decided <= last)).sum())
        if not inside:
            return ""
        return (
            f"{inside} of {len(decided)} decisions lie between {_day(first)} and {_day(last)}, "
            "from which the agent was trained and chosen"
        )

    def fitted(self, bars: Bars) -> Bars:
        """These bars with the assets of the run, in its order, and a warning for whatever else sets them apart."""
        mine, its = self.tape.assets, bars.assets
        problems = list(bars.problems)
        if len(mine) == len(its) == 1:
            if mine != its:
                message = f"the run was trained on {mine[0]} and is shown {its[0]}"
                problems.append(Problem(None, "another asset", message, "warning", bars.source))
            chosen = replace(bars, assets=mine)
        else:
            chosen = bars.chosen(_matched(mine, its, bars.source))
        problems += [Problem(None, kind, text, "warning", bars.source) for kind, text in self._apart(chosen)]
        return replace(chosen, problems=tuple(problems))

    def _apart(self, bars: Bars) -> Iterator[tuple[str, str]]:
        if abs(bars.interval / self.interval - 1.0) > 0.01:
            yield (
                "other spacing",
                f"bars are {_span(bars.interval)} apart, {_span(self.interval)} in training: every feature means "
                "something else here",
            )
        hours, own = (_hours(time) for time in (bars.time.astype(np.int64), self.tape.time))
        # An hour of daylight saving more or less is no other zone.
        if max(np.minimum(np.roll(hours, shift), own).sum() for shift in (-1, 0, 1)) < _SAME_HOURS:
            yield (
                "other hours",
                f"bars begin mostly at {hours.argmax():02d} h UTC, in training at {own.argmax():02d} h: another "
                "data.time_zone, data.stamp or trading session?",
            )
        ratio = _median_volume(bars) / self.volume  # (A,)
        if (np.maximum(ratio, 1.0 / ratio) > _OTHER_UNIT).any():
            far = int(np.nanargmax(np.maximum(ratio, 1.0 / ratio)))
            yield (
                "other unit of volume",
                f"the median volume of {bars.assets[far]} is {ratio[far]:.3g} times that of training; price impact "
                "depends on it",
            )
        lost, gained = (
            np.isnan(ratio) & np.isfinite(self.volume),
            np.isfinite(_median_volume(bars)) & np.isnan(self.volume),
        )
        if lost.any():
            names = ", ".join(np.array(bars.assets)[lost])
            yield (
                "no volume",
                f"{names} had a volume in training: here orders cost no price impact, and volume features are blank",
            )
        if gained.any():
            names = ", ".join(np.array(bars.assets)[gained])
            yield "new volume", f"{names} had no volume in training: here orders cost price impact, there they did not"
        new = sorted(set(bars.extra) - set(self.features))
        if new:
            yield "columns not used", f"{', '.join(new)}: not trained with, so the agent does not see them"


def _matched(mine: tuple[str, ...], its: tuple[str, ...], source: str) -> tuple[str, ...]:
    missing, unknown = ([n for n in a if n not in b] for a, b in ((mine, its), (its, mine)))
    if missing or unknown:
        faults = [f"lacks {', '.join(missing)}"] if missing else []
        faults += [f"has {', '.join(unknown)}, unknown to the run"] if unknown else []
        raise DataError(
            f"{source}: {' and '.join(faults)} (trained on {', '.join(mine)}); give bars of these assets, or map names "
            "with data.assets (name in the file: name in the run, or null to leave it out)"
        )
    return mine


def _median_volume(bars: Bars) -> FloatArray:  # (A,)
    known = [column[np.isfinite(column) & (column > 0.0)] for column in bars.volume.T]
    return np.array([np.median(column) if len(column) else np.nan for column in known])


def _hours(time: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> FloatArray:  # (n,) -> (24,)
    return np.bincount(time // (3_600 * 10**9) % 24, minlength=24) / len(time)


def _span(seconds: float) -> str:
    for unit, size in (("days", 86_400.0), ("hours", 3_600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:g} {unit.removesuffix('s') if seconds == size else unit}"
    return f"{seconds:g} seconds"


def _day(nanoseconds: np.int64) -> str:
    return str(np.datetime64(int(nanoseconds), "ns").astype("datetime64[D]"))
