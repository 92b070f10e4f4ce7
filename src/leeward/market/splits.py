"""Splits by time, each preceded by embargo bars that belong to no split.

    | look-back | train            | embargo | validation | embargo | test      |
    0           L                  a         a+E          b         b+E         n

Embargo bars serve the split after them as look-back and as warm-up of a recurrent memory, with a flat account.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.config.trading import SplitsConfig
from leeward.errors import ConfigError, DataError

__all__ = ["Split", "split_bars", "whole"]


@dataclass(frozen=True)
class Split:
    """Bars [start, end); [warmup, start) are its embargo. Decisions, fills and marks stay in [start, end)."""

    name: str
    warmup: int
    start: int
    end: int

    @property
    def n_bars(self) -> int:
        return self.end - self.start

    @property
    def n_decisions(self) -> int:
        """A decision at the last bar would be filled outside the split."""
        return self.end - self.start - 1


def split_bars(time: NDArray[np.datetime64], look_back: int, config: SplitsConfig, *, source: str) -> dict[str, Split]:
    """train, validation and test of the bars at these times; `look_back` is the longest one of the features."""
    n_bars = len(time)
    embargo = look_back if config.embargo_bars is None else config.embargo_bars
    if embargo < look_back:
        raise ConfigError(
            f"data.splits.embargo_bars must not be below the longest look-back ({look_back} bars), got {embargo}: "
            "features of one split would read bars of another"
        )
    edges = (0, *_inner_edges(time, config), n_bars)
    splits = {
        name: Split(name, low, low + embargo, high)
        for name, low, high in zip(("train", "validation", "test"), edges, edges[1:], strict=False)
    }
    for split in splits.values():
        if split.n_decisions < 1:
            raise DataError(
                f"{source}: the {split.name} split has {max(0, split.n_bars)} of {n_bars} bars left after an embargo "
                f"of {embargo}; it needs at least 2: use more bars, other shares or dates, or features with a shorter "
                "look-back"
            )
    return splits


def _inner_edges(time: NDArray[np.datetime64], config: SplitsConfig) -> tuple[int, int]:
    if config.validation_from is not None and config.test_from is not None:
        days = (config.validation_from, config.test_from)
        first, second = (int(np.searchsorted(time, np.datetime64(day.isoformat()))) for day in days)
        return first, second
    return round(config.train * len(time)), round((config.train + config.validation) * len(time))


def whole(n_bars: int, look_back: int, *, source: str, name: str = "whole") -> Split:
    """All bars as one split, after the look-back."""
    split = Split(name, 0, look_back, n_bars)
    if split.n_decisions < 1:
        raise DataError(
            f"{source}: {n_bars} bars are too few after a look-back of {look_back}; at least 2 must be left"
        )
    return split
