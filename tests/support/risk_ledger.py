"""The constraint by hand: written from the equations of `leeward.algorithm.risk_constraint`, in plain Python floats.

It calls nothing of it: it is what the tests compare with.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leeward.config.learning import Risk

__all__ = ["Ledger", "discounted_sum"]

Array = NDArray[np.float64]


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
        self.multiplier = self.integral = self.before = self.widest = 0.0

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
            averaged = math.sqrt(risk.smoothing / (2.0 - risk.smoothing)) if len(self.pool) == 1 else 1.0
            gap, unit = risk.limit - self.tail + risk.margin * error * averaged, max(abs(risk.limit), std)
            self.widest = max(0.97 * self.widest, abs(gap))
            self.control(gap / unit, gap / max(self.widest, 0.3 * unit, 3.0 * error))
        # A policy that keeps its limit has its quantile above it.
        pivot = self.nu if risk.limit is None else max(self.nu, risk.limit)
        costs = np.zeros(variable.shape)
        for place, x in outcomes.items():
            costs[place] = max(pivot - x, 0.0) / risk.alpha
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

    def control(self, gap: float, of_widest: float) -> None:
        """One step of the multiplier: the gap relative to the unit, and relative to the widest one so far."""
        risk = self.risk

        def bounded(value: float) -> float:
            return min(max(value, 0.0), risk.ceiling)

        if risk.controller == "dual":
            self.multiplier = bounded(self.multiplier + risk.learning_rate * (1.0 + self.multiplier) * of_widest)
            return
        gain = 1.0 + self.integral
        self.integral = bounded(self.integral + risk.learning_rate * gain * of_widest)
        growth = max(gap - self.before, 0.0)
        self.multiplier = bounded(gain * (risk.proportional * gap + risk.derivative * growth) + self.integral)
        self.before = gap
