"""Staggered envs whose risk variable is not their reward, a record of what they gave, and the constraint by hand.

`Ledger` is written from the equations of `leeward.algorithm.risk_constraint`, in plain Python floats, and calls nothing
of it: it is what the tests compare with.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnvWrapper

from leeward import DistributionalPPO
from leeward.config.learning import Risk

from ..engine.worlds import Staggered

__all__ = ["Earning", "Ledger", "Recorder", "discounted_sum", "earning", "recorded"]

Array = NDArray[np.float64]


class Earning(Staggered):
    """Gives a step_return of its own: of the reward's kind, but neither equal to it nor a multiple of it."""

    def __init__(self, index: int, *, tells: bool = True, **kwargs: Any) -> None:
        super().__init__(index, **kwargs)
        self.tells = tells

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        if self.tells:
            info["step_return"] = math.sinh(reward) / 3.0 - 0.1
        return observation, reward, terminated, truncated, info


def earning(n_envs: int, *, tells: Iterable[int] | None = None, **kwargs: Any) -> DummyVecEnv:
    """`tells`: the envs that give a step_return; None = all."""
    telling = set(range(n_envs) if tells is None else tells)

    def maker(index: int) -> Callable[[], Earning]:
        return lambda: Earning(index, tells=index in telling, **kwargs)

    return DummyVecEnv([maker(index) for index in range(n_envs)])


class Recorder(VecEnvWrapper):
    """Keeps every step as the envs gave it, before anything else sees it."""

    def __init__(self, venv: Any) -> None:
        super().__init__(venv)
        self.rewards: list[Array] = []
        self.told: list[Array] = []  # step_return, nan where there is none
        self.dones: list[NDArray[np.bool_]] = []
        self.truncated: list[NDArray[np.bool_]] = []
        self.actions: list[NDArray[Any]] = []
        self.successors: list[Any] = []  # the observation each step led to: the final one at an episode's end

    def reset(self) -> Any:
        return self.venv.reset()

    def step_async(self, actions: NDArray[Any]) -> None:
        self.actions.append(np.array(actions))
        self.venv.step_async(actions)

    def step_wait(self) -> Any:
        observation, rewards, dones, infos = self.venv.step_wait()
        self.rewards.append(np.array(rewards, dtype=np.float64))
        self.told.append(np.array([info.get("step_return", np.nan) for info in infos], dtype=np.float64))
        self.dones.append(np.array(dones))
        self.truncated.append(np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]))
        successors = np.array(observation)
        for env in np.flatnonzero(dones):
            successors[env] = infos[env]["terminal_observation"]
        self.successors.append(successors)
        return observation, rewards, dones, infos

    def variable(self) -> Array:  # (T, B)
        told = np.array(self.told)
        return np.where(np.isnan(told), np.array(self.rewards), told)


def recorded(model: DistributionalPPO) -> Recorder:
    env: Any = model.env
    while not isinstance(env, Recorder):
        env = env.venv
    return env


def discounted_sum(
    gains: Array,
    values: Array,
    next_values: Array,
    terminated: NDArray[Any],
    ended: NDArray[Any],
    discount: float,
    lam: float,
) -> Array:  # all (T, B); fmt: skip
    """Â_t = Σ_k (γλ)^k δ_{t+k} to the end of the episode or of the rollout, each sum by itself."""
    T, B = gains.shape
    deltas = gains + discount * np.where(terminated, 0.0, next_values) - values
    sums = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            for k in range(T - t):
                sums[t, b] += (discount * lam) ** k * deltas[t + k, b]
                if ended[t + k, b]:
                    break
    return sums


class Ledger:
    """One constraint: its samples, ν, tail and multiplier, carried over rollouts."""

    def __init__(self, risk: Risk, n_envs: int) -> None:
        self.risk = risk
        self.totals = [0.0] * n_envs
        self.pool: list[list[float]] = []
        self.learning_pool: list[list[float]] = []
        self.nu = self.tail = math.nan
        self.multiplier = self.integral = self.before = 0.0

    def outcomes(self, variable: Array, ended: NDArray[Any]) -> dict[tuple[int, int], float]:
        """X by the (time, env) at which it falls."""
        found: dict[tuple[int, int], float] = {}
        for t in range(len(variable)):
            for b in range(variable.shape[1]):
                if self.risk.measure == "step_return":
                    found[t, b] = float(variable[t, b])
                    continue
                self.totals[b] += float(variable[t, b])
                if ended[t, b]:
                    found[t, b] = self.totals[b]
                    self.totals[b] = 0.0
        return found

    def costs(self, variable: Array, ended: NDArray[Any], deployed: NDArray[Any]) -> Array:  # (T, B)
        risk = self.risk
        outcomes = self.outcomes(variable, ended)
        bound = self.pooled(self.pool, outcomes, deployed if risk.binds == "deployed" else ~deployed)
        share = risk.alpha * len(bound)
        whole = math.floor(share + 1e-9)
        # The worst α: whole samples, and the rest of the mass from the next one.
        tail = (sum(bound[:whole]) + (share - whole) * (bound[whole] if share > whole + 1e-9 else 0.0)) / share
        self.measured, self.value_at_risk, self.n_tail = tail, bound[math.ceil(share - 1e-9) - 1], share
        # The price is set by those who learn, whoever is limited.
        learning = self.pooled(self.learning_pool, outcomes, ~deployed)
        nu = learning[math.ceil(risk.alpha * len(learning) - 1e-9) - 1]
        first = math.isnan(self.nu)
        weight = 1.0 if first else risk.smoothing
        self.nu = nu if first else (1.0 - weight) * self.nu + weight * nu
        self.tail = tail if first else (1.0 - weight) * self.tail + weight * tail
        if risk.limit is not None:
            mean = sum(bound) / len(bound)
            std = math.sqrt(sum((x - mean) ** 2 for x in bound) / len(bound))
            beside = bound[min(math.floor(share + 1e-9), len(bound) - 1)]
            beyond = [max(beside - x, 0.0) / risk.alpha for x in bound]
            spread = math.sqrt(sum(b * b for b in beyond) / len(bound) - (sum(beyond) / len(bound)) ** 2)
            error = spread / math.sqrt(len(bound))
            if len(self.pool) == 1:
                error *= math.sqrt(risk.smoothing / (2.0 - risk.smoothing))
            self.control((risk.limit - self.tail + risk.margin * error) / max(abs(risk.limit), std))
        costs = np.zeros(variable.shape)
        for place, x in outcomes.items():
            costs[place] = max(self.nu - x, 0.0) / risk.alpha
        return costs

    def pooled(
        self, pool: list[list[float]], outcomes: dict[tuple[int, int], float], counted: NDArray[Any]
    ) -> list[float]:
        """Outcomes of the last rollouts, sorted: 10 in the tail, or all there are."""
        if fresh := [x for (_, b), x in sorted(outcomes.items()) if counted[b]]:
            pool.append(fresh)
        while sum(map(len, pool[1:])) >= 10.0 / self.risk.alpha:
            del pool[0]
        return sorted(x for part in pool for x in part)

    def control(self, gap: float) -> None:
        risk = self.risk

        def bounded(value: float) -> float:
            return min(max(value, 0.0), risk.ceiling)

        if risk.controller == "dual":
            self.multiplier = bounded(self.multiplier + risk.learning_rate * gap)
            return
        self.integral = bounded(self.integral + risk.learning_rate * gap)
        growth = max(gap - self.before, 0.0)
        self.multiplier = bounded(risk.proportional * gap + self.integral + risk.derivative * growth)
        self.before = gap
