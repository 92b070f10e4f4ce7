"""What a source of bars is, for a person who wants to train on it: the answer of `leeward data check`."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from leeward.config.trading import DataConfig
from leeward.errors import ConfigError, DataError
from leeward.market.bars import Bars
from leeward.market.features import chosen_features, longest_look_back
from leeward.market.leaks import leaking_features
from leeward.market.problems import Problem, limited
from leeward.market.sources import Source, examined
from leeward.market.splits import Split, split_bars

__all__ = ["Asset", "Summary", "summarise"]

LEAST_TRAIN, LEAST_OTHER = 500, 100  # decisions, below which a result is luck


@dataclass(frozen=True)
class Asset:
    """One asset: its bars and the times of the first and the last."""

    name: str
    bars: int
    first: str
    last: str


@dataclass(frozen=True)
class Summary:
    """What was found. Without bars (an error is among the problems) the rest is empty."""

    source: str
    problems: tuple[Problem, ...]
    assets: tuple[Asset, ...] = ()
    interval: str = ""
    splits: dict[str, dict[str, Any]] | None = None
    enough: str = ""  # empty: yes; else why not

    @property
    def good(self) -> bool:
        return all(problem.severity != "error" for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        return {"good": self.good} | asdict(self)


def summarise(source: Source, config: DataConfig | None = None) -> Summary:
    """Read, check and describe; never raises for what is wrong with the bars."""
    config = config or DataConfig()
    problems, bars = examined(source, config)
    if bars is None:
        return Summary(source if isinstance(source, str) else type(source).__name__, tuple(limited(problems)))
    problems = limited([*bars.problems, *leaking_features(bars)])
    assets = tuple(_asset(bars, a) for a in range(len(bars.assets)))
    interval = _duration(bars.interval) if len(bars) > 1 else ""
    try:
        names = chosen_features(bars, config.features)
        splits = split_bars(bars.time, longest_look_back(names), config.splits, source=bars.source)
    except (DataError, ConfigError) as error:
        return Summary(bars.source, tuple(problems), assets, interval, None, str(error))
    shown = {name: _window(bars, split) for name, split in splits.items()}
    return Summary(bars.source, tuple(problems), assets, interval, shown, _too_few(splits))


def _asset(bars: Bars, a: int) -> Asset:
    here = bars.time[bars.present[:, a]]
    return Asset(bars.assets[a], len(here), _text(here[0]), _text(here[-1]))


def _window(bars: Bars, split: Split) -> dict[str, Any]:
    return {"bars": split.n_bars, "first": _text(bars.time[split.start]), "last": _text(bars.time[split.end - 1])}


def _too_few(splits: dict[str, Split]) -> str:
    for name, least in (("train", LEAST_TRAIN), ("validation", LEAST_OTHER), ("test", LEAST_OTHER)):
        if splits[name].n_decisions < least:
            return f"{name} has {splits[name].n_decisions} decisions, fewer than {least}: any result will be luck"
    return ""


def _text(time: np.datetime64) -> str:
    text = str(time.astype("datetime64[s]")).replace("T", " ")
    return text.removesuffix(" 00:00:00")


def _duration(seconds: float) -> str:
    for unit, size in (("day", 86_400.0), ("hour", 3_600.0), ("minute", 60.0), ("second", 1.0)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}{'' if seconds == size else 's'}"
    return f"{seconds:g} seconds"
