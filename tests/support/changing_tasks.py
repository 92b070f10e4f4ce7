"""Two tasks whose rules change, and change again; what is best is known after every change.

`ChangingMarket`: six signals in the trading env, with all its costs. One of them speaks of the next bar; which one, and
whether it is to be believed or turned round, is what changes. `PermutedClusters`: a point is shown and its label is to
be named; what changes is the order of the features.

A task is an endless row of *phases*. `begin(phase)` says which one the envs that are made next belong to. The phases of
a seed are the same for every learner. Who acts at random, or not at all, earns nothing or less.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from leeward.config.trading import DataConfig, EnvConfig, SplitsConfig
from leeward.env.sb3 import TradingVecEnv
from leeward.market import Bars, prepare

from .risk_markets import Array, BatchedMarket

Actions = NDArray[np.int64]


class Task(Protocol):
    """What a run needs of a task."""

    def begin(self, phase: int) -> None: ...
    def training(self, n_envs: int) -> VecEnv: ...
    def testing(self, n_envs: int) -> VecEnv: ...
    def best(self, observation: NDArray[np.float32]) -> Actions: ...  # (B, F) -> (B,)


class ChangingMarket:
    """ln(C_{t+1} / C_t) = s (sqrt(R²) · ± signal_t[carrier] + sqrt(1 − R²) ε_t), s = 1 % per bar, R² = 20 %.

    Every signal is an AR(1) of variance 1 with φ = 0.9. A phase has 4,000 bars of its own; testing is on bars that
    training does not see. The carrier is another one after every change, its sign is drawn. Positions are −1, 0 and 1.
    """

    n_signals, n_bars, persistence, r2, std = 6, 4000, 0.9, 0.2, 0.01

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def begin(self, phase: int) -> None:
        rng = np.random.default_rng([self.seed, phase])
        # Steps of 1 to 5 around the circle of signals never lead back to where they began.
        steps = np.random.default_rng([self.seed, 1_000_000]).integers(1, self.n_signals, phase + 1)
        self.carrier, self.sign = int(steps.sum() % self.n_signals), float(rng.choice((-1.0, 1.0)))
        signals = rng.standard_normal((self.n_bars, self.n_signals))
        for before, now in pairwise(signals):
            now[:] = self.persistence * before + np.sqrt(1.0 - self.persistence**2) * now
        noise = rng.standard_normal(self.n_bars - 1)
        moves = np.sqrt(self.r2) * self.sign * signals[:-1, self.carrier] + np.sqrt(1.0 - self.r2) * noise
        close = 100.0 * np.exp(np.cumsum(np.append(0.0, self.std * moves)))[:, None]
        open_ = np.concatenate((close[:1], close[:-1]))
        bars = Bars(
            time=np.datetime64("2020-01-01", "ns") + np.arange(self.n_bars) * np.timedelta64(4, "h"),
            assets=("changing",),
            open=open_,
            high=np.maximum(open_, close),
            low=np.minimum(open_, close),
            close=close,
            volume=np.full_like(close, 1e8),
            extra={f"feature_{i}": np.ascontiguousarray(signals[:, [i]]) for i in range(self.n_signals)},
        )
        splits = SplitsConfig(train=0.5, validation=0.45, embargo_bars=0)
        self.market = prepare(DataConfig(features=(), splits=splits), bars=bars)

    def _envs(self, n_envs: int, split: str, episode_bars: int) -> TradingVecEnv:
        config = EnvConfig(action="positions", positions=(-1.0, 0.0, 1.0), episode_bars=episode_bars)
        return TradingVecEnv(self.market, n_envs, split=split, seed=self.seed, config=config)

    def training(self, n_envs: int) -> VecEnv:
        return self._envs(n_envs, "train", 256)

    def testing(self, n_envs: int) -> VecEnv:
        return self._envs(n_envs, "validation", 64)

    def best(self, observation: NDArray[np.float32]) -> Actions:
        """Optimal but for costs: it also turns round when the signal has crossed zero by a hair."""
        return np.where(self.sign * observation[:, self.carrier] > 0.0, 2, 0)


class PermutedClusters:
    """The centres are N(0, 1) in 16 dimensions, the points N(centre, 1/2); four clusters share each of four labels.

    The right label earns 1 and a wrong one −1/3. An episode is one step.
    """

    n_clusters, n_labels, n_features, spread = 16, 4, 16, 0.5

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.centres = np.random.default_rng(seed).standard_normal((self.n_clusters, self.n_features))

    def begin(self, phase: int) -> None:
        self.phase = phase
        self.shown = self.centres[:, np.random.default_rng([self.seed, phase]).permutation(self.n_features)]

    def training(self, n_envs: int) -> VecEnv:
        return ClusterEnv(self, n_envs, seed=2 * (1000 * self.seed + self.phase), length=1)

    def testing(self, n_envs: int) -> VecEnv:
        return ClusterEnv(self, n_envs, seed=2 * (1000 * self.seed + self.phase) + 1, length=1)

    def best(self, observation: NDArray[np.float32]) -> Actions:
        """The label of the nearest centre."""
        distances = np.linalg.norm(observation[:, None] - self.shown, axis=2)  # (B, clusters)
        return np.asarray(distances.argmin(axis=1) % self.n_labels)


class ClusterEnv(BatchedMarket[PermutedClusters]):
    """`cluster` is the one whose point is shown."""

    truncates = False

    def _space(self) -> spaces.Box:
        return spaces.Box(-10.0, 10.0, (self.market.n_features,), np.float32)

    def _prepare(self) -> None:
        self.action_space = spaces.Discrete(self.market.n_labels)
        self.cluster = np.zeros(self.num_envs, dtype=np.int64)
        self.points = np.zeros((self.num_envs, self.market.n_features))

    def _begin(self, envs: NDArray[np.bool_]) -> None:
        count = int(envs.sum())
        self.cluster[envs] = self.rng.integers(0, self.market.n_clusters, count)
        noise = self.market.spread * self.rng.standard_normal((count, self.market.n_features))
        self.points[envs] = self.market.shown[self.cluster[envs]] + noise

    def _observe(self) -> Array:
        return self.points

    def step_async(self, actions: NDArray[Any]) -> None:
        self.named = np.asarray(actions)

    def _earn(self, positions: Array) -> Array:
        return np.where(self.named == self.cluster % self.market.n_labels, 1.0, -1.0 / (self.market.n_labels - 1))


def play(
    choose: Callable[[NDArray[np.float32]], Actions], env: Any, steps: int = 16
) -> tuple[float, NDArray[np.float32]]:
    """Mean reward, and what was seen on the way."""
    observation, rewards, seen = env.reset(), [], []
    for _ in range(steps):
        seen.append(np.array(observation))
        observation, reward, _, _ = env.step(choose(observation))
        rewards.append(reward)
    return float(np.mean(rewards)), np.concatenate(seen)


TASKS: dict[str, type[ChangingMarket] | type[PermutedClusters]] = {
    "market": ChangingMarket,
    "permuted": PermutedClusters,
}
