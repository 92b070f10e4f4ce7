"""From a config to prepared arrays: bars, scaled features, validity, splits."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.config.trading import DataConfig
from leeward.errors import ArgumentError, DataError, did_you_mean
from leeward.market.bars import Bars
from leeward.market.features import FEATURES, chosen_features, compute_feature, is_attackable, longest_look_back
from leeward.market.leaks import leaking_features
from leeward.market.scaling import Scaler, fit_column
from leeward.market.sources import load
from leeward.market.splits import Split, split_bars, whole

__all__ = ["Market", "fit_scaler", "prepare"]


@dataclass(frozen=True, eq=False, repr=False)
class Market:
    """Everything an environment reads, n bars by A assets by F features.

    `inputs` holds, bar by bar and asset by asset, the F scaled features and then one flag: 1 where the asset has a bar
    and every feature it can have is valid. `features` and `flags` are views of it.
    """

    bars: Bars
    inputs: NDArray[np.float32]  # (n, A, F + 1)
    valid: NDArray[np.bool_]  # (n, A, F): False where `features` is 0 for want of a value
    scaler: Scaler
    splits: dict[str, Split]
    config: DataConfig

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.scaler.names

    @property
    def features(self) -> NDArray[np.float32]:  # (n, A, F)
        return self.inputs[:, :, :-1]

    @property
    def flags(self) -> NDArray[np.float32]:  # (n, A)
        return self.inputs[:, :, -1]

    @cached_property
    def attackable(self) -> NDArray[np.bool_]:
        """(F,): features an adversary may perturb; the calendar is not one of them."""
        return np.array([is_attackable(name) for name in self.feature_names], dtype=np.bool_)

    @property
    def bars_per_year(self) -> float:
        return self.bars.bars_per_year

    @property
    def fingerprint(self) -> str:
        return self.bars.fingerprint

    @property
    def look_back(self) -> int:
        return longest_look_back(self.feature_names)

    def __repr__(self) -> str:
        return f"Market({self.bars!r}, {len(self.feature_names)} features, splits {', '.join(self.splits)})"

    def split(self, name: str) -> Split:
        if name not in self.splits:
            raise ArgumentError(f"no split {name!r}; {did_you_mean(name, self.splits)}")
        return self.splits[name]


def prepare(
    config: DataConfig | None = None,
    *,
    bars: Bars | pd.DataFrame | str | Path | None = None,
    scaler: Scaler | None = None,
) -> Market:
    """Load (or take) bars, compute the features, fit the scaler on train, and cut the splits.

    With a `scaler` of an earlier run its features are computed and its scales applied, and nothing is fitted; "whole"
    is then one more split, and the others are there if the bars are enough for them.
    """
    config = config or DataConfig()
    panel = bars if isinstance(bars, Bars) else load(config.source if bars is None else bars, config)
    panel = replace(panel, problems=(*panel.problems, *leaking_features(panel)))
    if scaler is None:
        names = chosen_features(panel, config.features)
        splits = split_bars(panel.time, longest_look_back(names), config.splits, source=panel.source)
    else:
        names = _names_of(scaler, panel)
        splits = _splits_of_new_bars(panel, longest_look_back(names), config)
    inputs = np.zeros((len(panel), len(panel.assets), len(names) + 1), dtype=np.float32)
    valid = np.zeros((len(panel), len(panel.assets), len(names)), dtype=np.bool_)
    fitted = np.zeros((2, len(names)))
    for f, name in enumerate(names):  # one feature at a time: ten million bars fit into memory
        raw = compute_feature(panel, name)  # (n, A)
        valid[:, :, f] = np.isfinite(raw)
        if scaler is None:
            train = splits["train"]
            fitted[:, f] = fit_column(raw[train.start : train.end], name, source=panel.source)
            column = Scaler(names, fitted[0], fitted[1], config.feature_clip)
        else:
            column = scaler
        inputs[:, :, f] = column.apply(f, raw)
    inputs[:, :, -1] = _flags(panel, names, valid)
    return Market(
        panel, inputs, valid, scaler or Scaler(names, fitted[0], fitted[1], config.feature_clip), splits, config
    )


def fit_scaler(bars: Bars, config: DataConfig) -> Scaler:
    """What `prepare` fits on the train split of these bars, without the rest."""
    names = chosen_features(bars, config.features)
    train = split_bars(bars.time, longest_look_back(names), config.splits, source=bars.source)["train"]
    fitted = np.zeros((2, len(names)))
    for f, name in enumerate(names):
        fitted[:, f] = fit_column(compute_feature(bars, name)[train.start : train.end], name, source=bars.source)
    return Scaler(names, fitted[0], fitted[1], config.feature_clip)


def _flags(bars: Bars, names: tuple[str, ...], valid: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n, A): bar there and all features valid. An asset that has had no volume so far is not asked for it."""
    needs_volume = np.array([name in FEATURES and FEATURES[name].needs_volume for name in names], dtype=np.bool_)
    no_volume_yet = ~np.logical_or.accumulate(np.isfinite(bars.volume), axis=0)  # (n, A)
    return np.asarray(bars.present & (valid | (no_volume_yet[:, :, None] & needs_volume)).all(axis=2))


def _splits_of_new_bars(bars: Bars, look_back: int, config: DataConfig) -> dict[str, Split]:
    everything = {"whole": whole(len(bars), look_back, source=bars.source)}
    try:
        return everything | split_bars(bars.time, look_back, config.splits, source=bars.source)
    except DataError:  # a few new bars to run a trained agent on: only the whole of them makes sense
        return everything


def _names_of(scaler: Scaler, bars: Bars) -> tuple[str, ...]:
    missing = [n for n in scaler.names if n not in bars.extra and n.startswith("feature_")]
    if missing:
        raise DataError(f"{bars.source}: the run was trained with columns these bars lack: {', '.join(missing)}")
    return scaler.names
