"""The one way to score a policy: a deterministic run over a split, through the kernel and costs it was trained with."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from leeward.backtest.foresight import Foresight
from leeward.backtest.result import COSTS, BacktestResult, Outlook
from leeward.backtest.strategies import AGENT
from leeward.config.trading import EnvConfig
from leeward.env import Replay, Simulation, replay, replay_targets
from leeward.env.actions import make_actions
from leeward.errors import ShapeError
from leeward.market import Market

Floats = NDArray[np.float64]

__all__ = ["Policy", "run_policy", "run_targets", "run_many"]

_INFO_OF_COST = {"interest": "interest_paid"}  # where the kernel's word is another


class Policy(Protocol):
    """What a backtest needs of a learner.

    A `predict` with arguments named `time` or `assets` is given the time of the bar it has seen and the asset names.
    `predict_distribution(observation, state, episode_start)`, if there is one, is asked of many decisions at once: n
    observations and n states side by side, as n envs would have them; of one at a time where states are no arrays.
    It may be asked after later decisions were made, so what it remembers has to be in the state.
    """

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]: ...


def run_policy(
    policy: Policy,
    market: Market,
    config: EnvConfig,
    *,
    split: str,
    alpha: float,
    name: str = AGENT,
    fingerprints: Mapping[str, str] | None = None,
    with_outlook: bool = True,
) -> BacktestResult:
    """Run a policy over a split: its memory warms up, flat, on the embargo bars; then every close is a decision.

    `with_outlook=False` does not ask for predicted distributions, which cost a second forward pass per bar.
    """
    simulation = Simulation(market, config, n_envs=1, split=split)
    window = market.split(split)
    offered = getattr(policy, "predict_distribution", None) if with_outlook else None  # an offer, not a duty
    foresight = None if offered is None else Foresight(offered, alpha)
    decider = _Decider(
        policy, make_actions(config, simulation.n_assets).targets, window.start - window.warmup, foresight
    )
    decider.tell = _asked(policy, market, simulation)
    run = replay(simulation, decider, split)
    found = {"data": market.fingerprint} | dict(fingerprints or {})
    outlook, step = (None, None) if foresight is None else foresight.read()
    return _result(run, market, config, split, name, found, outlook, step)


def run_targets(targets: Floats, market: Market, config: EnvConfig, *, split: str, name: str) -> BacktestResult:
    """Run target weights (n, A) known beforehand, one row per decision of the split; NaN leaves the asset alone."""
    simulation = Simulation(market, config, n_envs=1, split=split)
    expected = (market.split(split).n_decisions, simulation.n_assets)
    if targets.shape != expected:
        raise ShapeError(f"targets of {name} on {split} must be (decisions, assets) = {expected}, got {targets.shape}")
    run = replay_targets(simulation, targets[:, None, :], split)
    return _result(run, market, config, split, name, {"data": market.fingerprint})


def run_many(
    targets_at: Callable[[int], Floats],  # decision t -> (K, A)
    n_runs: int,
    market: Market,
    config: EnvConfig,
    *,
    split: str,
) -> Floats:
    """step_returns (K, n) of K accounts side by side: for nulls and searches, where a full record is too much."""
    simulation = Simulation(market, config, n_envs=n_runs, split=split)
    simulation.place_on_split(split, warm_up=False)
    returns = np.empty((n_runs, market.split(split).n_decisions))
    for t in range(returns.shape[1]):
        returns[:, t] = simulation.step(np.ascontiguousarray(targets_at(t)))["step_return"]
    return returns


def _asked(policy: Policy, market: Market, simulation: Simulation) -> Callable[[], dict[str, Any]]:
    """What a policy's `predict` asks for beyond the observation, by the names of its arguments."""
    try:
        wanted = inspect.signature(policy.predict).parameters.keys() & {"time", "assets"}
    except (TypeError, ValueError):  # made in C: it asks for nothing
        return dict

    def tell() -> dict[str, Any]:
        known = {"time": market.bars.time[int(simulation.bar[0])], "assets": market.bars.assets}
        return {name: known[name] for name in wanted}

    return tell if wanted else dict


class _Decider:
    """Observations in, targets out; keeps the policy's memory, and what it saw once the split has begun."""

    def __init__(
        self, policy: Policy, to_targets: Callable[[Any], Floats], warm_up_bars: int, foresight: Foresight | None
    ) -> None:
        self._policy, self._to_targets, self._left = policy, to_targets, warm_up_bars
        self._foresight = foresight
        self._state: Any = None
        self._start = np.ones(1, dtype=np.bool_)
        self.tell: Callable[[], dict[str, Any]] = dict

    def __call__(self, observation: NDArray[np.float32]) -> Floats:
        memory = {"state": self._state, "episode_start": self._start}
        if self._foresight is not None and self._left <= 0:
            self._foresight.add(observation, **memory)
        action, self._state = self._policy.predict(observation, deterministic=True, **memory, **self.tell())
        self._left -= 1
        self._start = np.zeros(1, dtype=np.bool_)
        return self._to_targets(np.asarray(action))


def _result(
    run: Replay,
    market: Market,
    config: EnvConfig,
    split: str,
    name: str,
    fingerprints: Mapping[str, str],
    outlook: Outlook | None = None,
    outlook_step: Outlook | None = None,
) -> BacktestResult:
    lived = run.bars + 1  # decided at bars, filled and marked one later
    closes = market.bars.carried_close[lived]
    opens = np.where(market.bars.present[lived], market.bars.open[lived], closes)
    units, orders = run.units[:, 0], run.orders[:, 0]
    change = np.diff(units, axis=0, prepend=0.0)
    # What was paid per unit: the open, or the close of a forced sale.
    fills = np.where(change != 0.0, orders / np.where(change != 0.0, change, 1.0), opens)
    return BacktestResult(
        name=name,
        split=split,
        assets=market.bars.assets,
        time=market.bars.time[run.bars[0] : lived[-1] + 1],
        equity=np.concatenate([[run.start_equity], run.equity[:, 0]]),
        step_returns=run.info["step_return"][:, 0],
        targets=run.targets[:, 0],
        weights=run.weights[:, 0],
        units=units,
        fills=fills,
        closes=closes,
        costs={kind: run.info[_INFO_OF_COST.get(kind, kind)][:, 0] for kind in COSTS},
        turnover=run.info["turnover"][:, 0],
        bars_per_year=market.bars_per_year,
        cash_rate=config.costs.cash_rate,
        outlook=outlook,
        outlook_step=outlook_step,
        fingerprints=dict(fingerprints),
    )
