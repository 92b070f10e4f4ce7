"""Replay: a deterministic run over one window from a flat account, with everything that happened at each bar."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.env import kernel as k
from leeward.env.simulation import INFO_INDEX, Simulation
from leeward.errors import ArgumentError
from leeward.market.bars import FloatArray

__all__ = ["Replay", "replay", "replay_targets"]


@dataclass(frozen=True, eq=False)
class Replay:
    """T decisions of B accounts in A assets. Row i was decided at the close of bars[i] and marked one bar later.

    `info[name]` is (T, B) for every name in `kernel.INFO_NAMES`: equity, each cost, step_return, write_off and so on.
    """

    bars: NDArray[np.int64]  # (T,) bar of each decision
    start_equity: float
    info: dict[str, FloatArray]
    targets: FloatArray  # (T, B, A) as decided, before any scaling
    units: FloatArray  # (T, B, A) held after the step
    weights: FloatArray  # (T, B, A) share of equity at the close after the step
    orders: FloatArray  # (T, B, A) signed notional traded in the step
    terminated: NDArray[np.bool_]  # (T, B)

    @property
    def equity(self) -> FloatArray:
        """(T, B) equity at the close after each decision."""
        return self.info["equity"]


def replay(
    simulation: Simulation,
    decide: Callable[[NDArray[np.float32]], FloatArray],
    split: str,
    *,
    warm_up: bool = True,
) -> Replay:
    """Run over a whole split: `decide` maps observations (B, D) to target weights (B, A).

    With `warm_up`, `decide` first sees the bars before the split (its memory settles, its targets are ignored); only
    decisions inside the split are in the result.
    """
    observations = simulation.place_on_split(split, warm_up=warm_up)
    bounds = simulation.market.split(split)
    n, skipped = bounds.n_decisions, bounds.start - int(simulation.bar[0])
    for _ in range(skipped):
        observations = simulation.step(decide(observations)).observations
    shape = (n, simulation.n_envs, simulation.n_assets)
    info, terminated = np.empty((n, k.INFO, simulation.n_envs)), np.empty(shape[:2], dtype=np.bool_)
    targets, units, weights, orders = (np.empty(shape) for _ in range(4))
    for i in range(n):
        targets[i] = decide(observations)
        step = simulation.step(targets[i])
        info[i], terminated[i], orders[i] = step.info, step.ends[0], step.orders
        units[i], weights[i] = simulation.units, simulation.weights
        observations = step.observations
    return Replay(
        bars=np.arange(bounds.start, bounds.start + n),
        start_equity=simulation.config.account.initial_equity,
        info={name: info[:, row] for name, row in INFO_INDEX.items()},
        targets=targets,
        units=units,
        weights=weights,
        orders=orders,
        terminated=terminated,
    )


def replay_targets(simulation: Simulation, targets: FloatArray, split: str) -> Replay:
    """Run over a split with targets (T, B, A) known beforehand, one row per decision."""
    n = simulation.market.split(split).n_decisions
    if targets.shape != (n, simulation.n_envs, simulation.n_assets):
        raise ArgumentError(
            f"targets of the {split} split must be {(n, simulation.n_envs, simulation.n_assets)}, got {targets.shape}"
        )
    rows = iter(targets)
    return replay(simulation, lambda _: next(rows), split, warm_up=False)
