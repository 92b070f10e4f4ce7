"""Do the bars of the run tell its agent the future? The future is changed, and nothing before it may move."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from leeward.audit.findings import Fault
from leeward.config.run import RunConfig
from leeward.env import Simulation
from leeward.market import Bars, Market, fit_scaler
from leeward.market.bars import FloatArray
from leeward.market.features import compute_feature
from leeward.market.leaks import leaking_features

__all__ = [
    "accounts_know_no_future",
    "changed_after",
    "columns_know_no_future",
    "features_know_no_future",
    "scaler_is_of_train",
]

_CUTS = (0.3, 0.6, 0.9)  # of the bars before the test split, after which everything is changed
_STEPS = 200  # of an account, around a cut
_ROUNDING = 1e-5  # of a feature's train standard deviation, float32


def _before_test(market: Market) -> Bars:
    """The bars that training and choosing may know; the sealed ones are not even looked at."""
    return _part(market.bars, market.split("test").warmup)


def _part(bars: Bars, end: int) -> Bars:
    kept = np.flatnonzero(bars.present[:end].any(axis=0))  # an asset may be listed later

    def taken(column: FloatArray) -> FloatArray:
        return np.ascontiguousarray(column[:end, kept])

    return replace(
        bars,
        time=bars.time[:end],
        assets=tuple(bars.assets[a] for a in kept),
        open=taken(bars.open),
        high=taken(bars.high),
        low=taken(bars.low),
        close=taken(bars.close),
        volume=taken(bars.volume),
        extra={name: taken(column) for name, column in bars.extra.items()},
    )


def changed_after(bars: Bars, last: int, rng: np.random.Generator) -> Bars:
    """The same bars up to `last`; after it prices and volumes are others, on the same days."""
    shape = bars.close[last + 1 :].shape
    walk = np.exp(np.cumsum(rng.normal(0.0, 0.05, shape), axis=0))
    busy = np.exp(rng.normal(0.0, 1.0, shape))

    def changed(column: FloatArray, factor: FloatArray) -> FloatArray:
        return np.concatenate([column[: last + 1], column[last + 1 :] * factor])

    return replace(
        bars,
        open=changed(bars.open, walk),
        high=changed(bars.high, walk),
        low=changed(bars.low, walk),
        close=changed(bars.close, walk),
        volume=changed(bars.volume, busy),
    )


def _cuts(market: Market) -> list[int]:
    train, end = market.split("train"), market.split("test").warmup
    return [train.start + int(share * (end - train.start)) for share in _CUTS]


def features_know_no_future(market: Market) -> Iterator[Fault]:
    """What the agent sees of a bar is the same without the test split, and with every later bar changed."""
    known, rng = _before_test(market), np.random.default_rng(0)
    columns = [market.bars.assets.index(name) for name in known.assets]
    for cut in (None, *_cuts(market)):
        last = len(known) - 1 if cut is None else cut
        bars = known if cut is None else changed_after(known, cut, rng)
        for f, name in enumerate(market.feature_names):
            seen = market.features[: last + 1, columns, f]
            made = market.scaler.apply(f, compute_feature(bars, name))[: last + 1]
            moved = np.abs(seen - made) > _ROUNDING
            if moved.any():
                t, a = (int(i) for i in np.argwhere(moved)[0])
                after = "the test split were cut off" if cut is None else f"{_day(market, last)} were changed"
                yield Fault(
                    "critical",
                    f"The feature {name} knows the future",
                    f"When all bars after {after}, its value for {known.assets[a]} at {_day(market, t)} went from "
                    f"{seen[t, a]:.5g} to {made[t, a]:.5g} (train standard deviations); {int(moved.sum())} values "
                    "moved.",
                    "Look at market/features.py, or at how the column was made. No result of this run can be trusted.",
                )
                return


def scaler_is_of_train(market: Market, record: dict[str, object]) -> Iterator[Fault]:
    """Scales fitted on train do not move when everything after train does."""
    if "parent" in record:
        return  # the scales of the run it was trained from, which that one's audit looks at
    train = market.split("train")
    changed = changed_after(market.bars, train.end - 1, np.random.default_rng(1))
    different = market.scaler.difference(fit_scaler(changed, market.config), tolerance=1e-9)
    if different is not None:
        yield Fault(
            "critical",
            "The scales of the features know more than the train split",
            f"When bars after {_day(market, train.end - 1)} are changed and the scales are fitted again, {different}.",
            "Look at market/scaling.py and scaler.json. No result of this run can be trusted.",
        )


def columns_know_no_future(market: Market) -> Iterator[Fault]:
    """The user's own columns, of which nobody can see how they were made."""
    for problem in leaking_features(_before_test(market)):
        yield Fault(
            "high",
            "A column of your own seems to know the future",
            problem.message,
            "Make it from bars up to its own alone: leeward.market.leaks.with_feature tests the function that makes "
            "it.",
        )


def accounts_know_no_future(market: Market, config: RunConfig) -> Iterator[Fault]:
    """What an account has earned and paid, and what its agent sees, at a bar is settled by bars up to it."""
    known = _before_test(market)
    if known.assets != market.bars.assets:
        known = market.bars  # an asset that is listed later is in the observation from the start
    rng = np.random.default_rng(2)
    for cut in _cuts(market):
        start = max(market.split("train").start, cut - _STEPS)
        runs = []
        for bars in (known, changed_after(known, cut, rng)):
            inputs = market.inputs[: len(bars)].copy()
            if bars is not known:
                inputs[cut + 1 :, :, :-1] *= -1.0
            part = replace(market, bars=bars, inputs=inputs, valid=market.valid[: len(bars)])
            simulation = Simulation(part, config.env, n_envs=1)
            seen = [simulation.place(start, cut + 2)]
            targets = np.random.default_rng(3).uniform(size=(cut - start, 1, len(bars.assets)))
            steps = [simulation.step(each) for each in targets / len(bars.assets)]
            seen += [step.observations for step in steps]
            runs.append((np.stack([step.info[:, 0] for step in steps]), np.stack([np.ravel(each) for each in seen])))
        for name, one, other in zip(("what it earned or paid", "what it sees"), *runs, strict=True):
            if not np.array_equal(one, other, equal_nan=True):
                yield Fault(
                    "critical",
                    "The account knows the future",
                    f"When all bars after {_day(market, cut)} were changed, {name} before that day changed, first "
                    f"{int(np.argwhere((one != other).any(axis=1))[0, 0])} bars after {_day(market, start)}.",
                    "Look at env/kernel.py and env/costs.py. No result of this run can be trusted.",
                )
                return


def _day(market: Market, bar: int) -> str:
    return str(market.bars.time[bar].astype("datetime64[D]"))
