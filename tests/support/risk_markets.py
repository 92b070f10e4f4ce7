"""Markets whose best policy under a CVaR limit is known exactly, each beside the env that plays it.

| case | market | env | known |
|---|---|---|---|
| a | `GaussianMarket` | `GaussianEnv` | position, CVaR of one step |
| a, episodes | `EpisodeMarket` | `EpisodeEnv` | position, CVaR of an episode; what seeing the running return is worth |
| b | `CrashMarket` | `CrashEnv` | position, CVaR of a two-point reward |
| c | `PairMarket` | `PairEnv` | both weights |
| d | `WalkMarket` | `WalkEnv` | the discounted return's distribution given the state |
| e | `RegimeMarket` | `RegimeEnv` | constant, told and filtering player |

Nothing here imports Leeward: this is what Leeward is measured against. CVaR_α(X) is the mean of the worst share α of X,
so a *limit* is a lower bound, CVaR_α(X) ≥ limit, and both are negative for a loss. Rewards are simple returns of one
step. Where X is a position times something (a, b, and c along a ray), CVaR is positively homogeneous, CVaR(wX) =
w·CVaR(X), so the best position is limit / CVaR at position 1. Mixing positions never helps: the tail mean of a mixture
is at most the mixture of the tail means, so no policy, random or with memory, beats the constant in (a), (b) and (c).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import ndtr, ndtri
from stable_baselines3.common.vec_env import VecEnv

Array = NDArray[np.float64]
Numbers = float | Sequence[float] | Array
Market = TypeVar("Market")


def normal_density(z: Numbers) -> Array:
    return np.asarray(np.exp(-0.5 * np.square(z)) / np.sqrt(2.0 * np.pi))


def normal_cvar_factor(alpha: float) -> float:
    """k_α = φ(z_α) / α: a normal variable's mean over its worst share α lies k_α standard deviations below its mean."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha is a tail mass in (0, 1), got {alpha}")
    return float(normal_density(ndtri(alpha)) / alpha)


def normal_shortfall(level: Numbers, mean: Numbers, std: Numbers) -> Array:
    """E(level − X)⁺ = (level − m) Φ(z) + s φ(z), z = (level − m) / s, for X ~ N(m, s)."""
    gap = np.asarray(level, dtype=float) - mean
    z = gap / np.maximum(std, 1e-12)  # a position of zero has no spread
    return np.asarray(gap * ndtr(z) + std * normal_density(z))


def normal_mixture_cvar(mean: Numbers, std: Numbers, weight: Numbers, alpha: float) -> float:
    """CVaR_α of a mixture of normals: max over ν of ν − E(ν − X)⁺ / α, attained where P(X ≤ ν) = α."""
    mean, std, weight = np.asarray(mean, dtype=float), np.asarray(std, dtype=float), np.asarray(weight, dtype=float)
    spread = 40.0 * std + 1e-9

    def excess_mass(level: float) -> float:
        return float(np.sum(weight * ndtr((level - mean) / np.maximum(std, 1e-12)))) - alpha

    quantile = brentq(excess_mass, float(np.min(mean - spread)), float(np.max(mean + spread)), xtol=1e-14)
    return float(quantile - np.sum(weight * normal_shortfall(quantile, mean, std)) / alpha)


def largest_position(limit: float, tail: float) -> float:
    """The largest w in [0, 1] with w · tail ≥ limit, where `tail` is the CVaR at position 1."""
    if limit <= tail:
        return 1.0
    if limit > 0.0:
        raise ValueError(f"no position reaches a CVaR of {limit}: the best of position 0 and 1 is {max(tail, 0.0)}")
    return limit / tail


class Scaled:
    """What follows when the reward is w·r: mean and CVaR are those of position 1, times w."""

    @property
    def mean_at_one(self) -> float:
        raise NotImplementedError

    @property
    def tail(self) -> float:
        """CVaR at position 1, the unconstrained optimum."""
        raise NotImplementedError

    def mean(self, position: Numbers) -> Array:
        return np.asarray(position, dtype=float) * self.mean_at_one

    def cvar(self, position: Numbers) -> Array:
        return np.asarray(position, dtype=float) * self.tail

    def optimal_position(self, limit: float) -> float:
        return largest_position(limit, self.tail)


class BatchedMarket(VecEnv, Generic[Market]):
    """All envs in one array step, one random stream; positions are clipped to [0, 1]. Unless a market says otherwise
    there is nothing to observe (a constant 1) and an episode ends by a time limit after `length` steps.

    `staggered` starts each env at a random point of its first episode, at every `reset`; to measure whole episodes,
    turn it off or leave each env's first one out. `seed` acts at the next `reset`.
    """

    render_mode = None
    n_assets = 1
    default_length = 100
    truncates = True

    def __init__(
        self, market: Market, n_envs: int = 64, *, seed: int = 0, length: int | None = None, staggered: bool = True
    ) -> None:
        self.market, self.staggered = market, staggered
        self.length = length or self.default_length
        super().__init__(n_envs, self._space(), spaces.Box(0.0, 1.0, (self.n_assets,), np.float32))
        self.rng = np.random.default_rng(seed)
        self.clock = np.zeros(n_envs, dtype=np.int64)
        self.positions = np.zeros((n_envs, self.n_assets))
        self._prepare()

    def _space(self) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def _prepare(self) -> None:
        """Make the arrays of the state."""

    def _begin(self, envs: NDArray[np.bool_]) -> None:
        """Draw the first state of an episode for the marked envs."""

    def _observe(self) -> Array:  # (B, F)
        return np.ones((self.num_envs, 1))

    def _earn(self, positions: Array) -> Array:  # (B, A) -> (B,)
        """Move every env one step and return its reward."""
        raise NotImplementedError

    def reset(self) -> NDArray[np.float32]:
        if self._seeds[0] is not None:
            self.rng = np.random.default_rng(self._seeds[0])
        self._reset_seeds()
        self._reset_options()
        self.clock[:] = self.rng.integers(0, self.length, self.num_envs) if self.staggered else 0
        self._begin(np.ones(self.num_envs, dtype=bool))
        return self._observe().astype(np.float32)

    def step_async(self, actions: NDArray[Any]) -> None:
        self.positions = np.clip(np.asarray(actions, dtype=np.float64), 0.0, 1.0).reshape(self.positions.shape)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        rewards = self._earn(self.positions)
        self.clock += 1
        dones = self.clock >= self.length
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        observation = self._observe().astype(np.float32)
        if dones.any():
            for env in np.flatnonzero(dones):
                infos[env] = {"TimeLimit.truncated": self.truncates, "terminal_observation": observation[env]}
            self.clock[dones] = 0
            self._begin(dones)
            observation = self._observe().astype(np.float32)
        return observation, rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        """Nothing to release."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(f"the envs of a batch share their settings; make another one to change {attr_name!r}")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(f"the envs of a batch are not separate objects; {method_name!r} cannot be called on one")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


@dataclass(frozen=True)
class GaussianMarket(Scaled):
    """(a) One asset, r ~ N(mu, sigma) each step, reward w·r.

    CVaR_α(w·r) = w (μ − σ k_α)        w* = limit / (μ − σ k_α), at most 1
    """

    mu: float = 0.01
    sigma: float = 0.02
    alpha: float = 0.05

    @property
    def mean_at_one(self) -> float:
        return self.mu

    @property
    def tail(self) -> float:
        return self.mu - self.sigma * normal_cvar_factor(self.alpha)


class GaussianEnv(BatchedMarket[GaussianMarket]):
    def _earn(self, positions: Array) -> Array:
        return positions[:, 0] * (self.market.mu + self.market.sigma * self.rng.standard_normal(self.num_envs))


class AdaptivePlayer(NamedTuple):
    """The best policy that sees the running return: `position(step, running_return)`, step counted from 0."""

    mean_return: float
    mean_position: float  # over steps and paths
    grid: Array  # (G,) running return
    table: Array  # (length, G) position

    def position(self, step: int, running_return: Numbers) -> Array:
        return np.asarray(np.interp(running_return, self.grid, self.table[step]))


@dataclass(frozen=True)
class EpisodeMarket(Scaled):
    """(a) with episodes: its asset over episodes of `length` steps; X = Σ w_t r_t is the return of an episode.

    CVaR_α of a constant position: w (Tμ − √T σ k_α)        w* = limit / (Tμ − √T σ k_α), at most 1

    In which sense w* is *the* answer. A schedule w_1 … w_T that does not look at returns gives N(μ Σ w_t, σ √Σ w_t²),
    and at equal mean the equal weights have the smallest spread; random positions are mixtures and no better. So w* is
    optimal among all policies that cannot see past returns (`Sight.BLIND`), and among all policies when the position is
    chosen once per episode (`Sight.HELD`). A policy that sees the running return and may react to it (`Sight.FREE`)
    does far better: it holds much more and steps back when the running return comes near the tail. `adaptive` finds
    that optimum by dynamic programming; with the defaults and half the tail as the limit its mean position is 0.84, not
    0.5. So w* is no target for a learner with that observation.

    μ is smaller than in (a): with μ/σ = 0.5 the worst 5 % of 20-step returns would be a gain, and no limit would bind.
    """

    mu: float = 0.004
    sigma: float = 0.02
    length: int = 20
    alpha: float = 0.05

    @property
    def std(self) -> float:
        """Standard deviation of an episode's return at position 1."""
        return float(self.sigma * np.sqrt(self.length))

    @property
    def mean_at_one(self) -> float:
        return self.length * self.mu

    @property
    def tail(self) -> float:
        return self.mean_at_one - self.std * normal_cvar_factor(self.alpha)

    def adaptive(self, limit: float, *, n_grid: int = 401, n_positions: int = 41) -> AdaptivePlayer:
        """The best policy that sees time and running return, to about 1 % (seconds).

        max E X  s.t.  ν − E(ν − X)⁺ / α ≥ limit, over policies and ν: for given ν and multiplier λ a dynamic program
        with the final utility x − λ (ν − x)⁺ / α; the value is the minimum over λ, then the maximum over ν (X is linear
        in the positions on every path, so both are convex problems).
        """
        grid = np.linspace(-5.0 * self.std, self.length * self.mu + 5.0 * self.std, n_grid)
        choices = np.linspace(0.0, 1.0, n_positions)
        nodes, weights = np.polynomial.hermite_e.hermegauss(21)
        weights = weights / weights.sum()
        landing = grid[:, None, None] + choices[:, None] * (self.mu + self.sigma * nodes)  # (G, W, nodes)
        place = np.clip((landing - grid[0]) / (grid[1] - grid[0]), 0.0, n_grid - 1 - 1e-9)
        left = place.astype(np.int64)
        right_share = place - left

        def plan(multiplier: float, level: float) -> tuple[float, Array]:
            value = grid - multiplier / self.alpha * np.maximum(level - grid, 0.0)  # (G,)
            table = np.empty((self.length, n_grid))
            for step in reversed(range(self.length)):
                values = (value[left] + right_share * (value[left + 1] - value[left])) @ weights  # (G, W)
                best = values.argmax(axis=1)
                table[step], value = choices[best], values[np.arange(n_grid), best]
            return float(np.interp(0.0, grid, value)), table

        def dual(level: float) -> tuple[float, float]:
            def bound(log_multiplier: float) -> float:
                multiplier = float(np.exp(log_multiplier))
                return plan(multiplier, level)[0] + multiplier * (level - limit)

            found = minimize_scalar(bound, bounds=(-5.0, 4.0), method="bounded", options={"xatol": 0.02})
            return float(found.fun), float(np.exp(found.x))

        level = minimize_scalar(
            lambda level: -dual(level)[0], bounds=(limit, 0.0), method="bounded", options={"xatol": 0.01 * abs(limit)}
        ).x
        mean_return, multiplier = dual(float(level))
        _, table = plan(multiplier, float(level))
        return AdaptivePlayer(mean_return, mean_return / (self.length * self.mu), grid, table)


class Sight(Enum):
    """What a player of `EpisodeEnv` sees and decides."""

    BLIND = "time left"
    HELD = "time left, running return and the position, which is the first action of the episode"
    FREE = "time left and running return"


class EpisodeEnv(BatchedMarket[EpisodeMarket]):
    """Episodes terminate after `market.length` steps; time left is a share, the running return in `market.std`."""

    truncates = False

    def __init__(
        self,
        market: EpisodeMarket,
        n_envs: int = 64,
        *,
        sight: Sight = Sight.BLIND,
        seed: int = 0,
        staggered: bool = True,
    ) -> None:
        self.sight = sight
        self.n_columns = {Sight.BLIND: 1, Sight.FREE: 2, Sight.HELD: 3}[sight]
        super().__init__(market, n_envs, seed=seed, length=market.length, staggered=staggered)

    def _space(self) -> spaces.Box:
        low, high = np.array([[0.0, -20.0, 0.0], [1.0, 20.0, 1.0]], dtype=np.float32)[:, : self.n_columns]
        return spaces.Box(low, high, dtype=np.float32)

    def _prepare(self) -> None:
        self.running, self.held = np.zeros(self.num_envs), np.zeros(self.num_envs)
        self.first = np.ones(self.num_envs, dtype=bool)

    def _begin(self, envs: NDArray[np.bool_]) -> None:
        self.running[envs], self.held[envs], self.first[envs] = 0.0, 0.0, True

    def _observe(self) -> Array:
        columns = [1.0 - self.clock / self.length, self.running / self.market.std, self.held]
        return np.stack(columns[: self.n_columns], axis=1)

    def _earn(self, positions: Array) -> Array:
        free = self.first | (self.sight is not Sight.HELD)
        self.held = np.where(free, positions[:, 0], self.held)
        self.first[:] = False
        earned = self.held * (self.market.mu + self.market.sigma * self.rng.standard_normal(self.num_envs))
        self.running += earned
        return earned


@dataclass(frozen=True)
class CrashMarket(Scaled):
    """(b) r = drift, or `crash` with a small probability p; reward w·r.

    CVaR_α(w·r) = w (p · crash + (α − p) · drift) / α for p < α, else w · crash
    """

    drift: float = 0.01
    crash: float = -0.2
    probability: float = 0.01
    alpha: float = 0.05

    @property
    def mean_at_one(self) -> float:
        return (1.0 - self.probability) * self.drift + self.probability * self.crash

    @property
    def tail(self) -> float:
        crashes = min(self.probability, self.alpha)
        return (crashes * self.crash + (self.alpha - crashes) * self.drift) / self.alpha


class CrashEnv(BatchedMarket[CrashMarket]):
    def _earn(self, positions: Array) -> Array:
        crashed = self.rng.random(self.num_envs) < self.market.probability
        return positions[:, 0] * np.where(crashed, self.market.crash, self.market.drift)


@dataclass(frozen=True)
class PairMarket:
    """(c) Two assets, r ~ N(means, Σ), weights w in [0, 1]², reward w·r.

    max w·m  s.t.  w·m − k_α √(w'Σw) ≥ limit. Stationarity gives w* = c u with u = Σ⁻¹m, and the limit gives the scale,
    c = limit / (S − k_α √S) with S = m'Σ⁻¹m. The correlation is negative on purpose: a positive one makes the
    optimum flat.
    """

    means: tuple[float, float] = (0.008, 0.009)
    sigmas: tuple[float, float] = (0.02, 0.03)
    correlation: float = -0.5
    alpha: float = 0.05

    @property
    def covariance(self) -> Array:  # (2, 2)
        correlation = np.array([[1.0, self.correlation], [self.correlation, 1.0]])
        return np.asarray(np.outer(self.sigmas, self.sigmas) * correlation)

    @property
    def tail(self) -> float:
        """CVaR at weights (1, 1), the unconstrained optimum."""
        return float(self.cvar((1.0, 1.0)))

    def mean(self, weights: Numbers) -> Array:  # (..., 2) -> (...)
        return np.asarray(np.asarray(weights, dtype=float) @ np.asarray(self.means))

    def std(self, weights: Numbers) -> Array:  # (..., 2) -> (...)
        weights = np.asarray(weights, dtype=float)
        return np.asarray(np.sqrt(np.sum(weights @ self.covariance * weights, axis=-1)))

    def cvar(self, weights: Numbers) -> Array:  # (..., 2) -> (...)
        return np.asarray(self.mean(weights) - normal_cvar_factor(self.alpha) * self.std(weights))

    def optimal_weights(self, limit: float) -> Array:  # (2,)
        if limit <= self.tail:
            return np.ones(2)
        direction = np.asarray(np.linalg.solve(self.covariance, self.means), dtype=np.float64)
        weights = direction * limit / float(self.cvar(direction))
        if not (weights.min() > 0.0 and weights.max() < 1.0):
            raise ValueError(f"the closed form holds inside (0, 1)²; at the limit {limit} it gives {weights}")
        return np.asarray(weights)

    def partner(self, first: float, limit: float) -> float:
        """The largest second weight that keeps CVaR at the limit when the first weight is given.

        (m·w − limit)² = k_α² w'Σw is a quadratic in the second weight: a x² + 2b x + c = 0.
        """
        (m1, m2), k2, cov = self.means, normal_cvar_factor(self.alpha) ** 2, self.covariance
        a = m2**2 - k2 * cov[1, 1]
        b = m2 * (first * m1 - limit) - k2 * first * cov[0, 1]
        c = (first * m1 - limit) ** 2 - k2 * first**2 * cov[0, 0]
        if b * b < a * c:
            raise ValueError(f"no second weight meets the limit {limit} with the first at {first}")
        return float(max((-b - np.sqrt(b * b - a * c)) / a, (-b + np.sqrt(b * b - a * c)) / a))


class PairEnv(BatchedMarket[PairMarket]):
    """`returns` are the assets' last returns."""

    n_assets = 2

    def _prepare(self) -> None:
        self.root, self.returns = np.linalg.cholesky(self.market.covariance), np.zeros((self.num_envs, 2))

    def _earn(self, positions: Array) -> Array:
        self.returns = self.market.means + self.rng.standard_normal((self.num_envs, 2)) @ self.root.T
        return np.asarray(np.sum(positions * self.returns, axis=1))


@dataclass(frozen=True)
class WalkMarket:
    """(d) x' = ρ x + η ε, reward μ + x', whatever is done; G = Σ γ^k r_{t+1+k}, without end.

    G | x ~ N(μ / (1 − γ) + ρ x / (1 − γρ),  η / ((1 − γρ) √(1 − γ²)))        x ~ N(0, η / √(1 − ρ²))

    A shock at lag j adds γ^j η / (1 − γρ) to G; the squares sum to the variance.
    """

    rho: float = 0.8
    noise: float = 0.01
    mu: float = 0.0
    gamma: float = 0.9

    @property
    def stationary_std(self) -> float:
        return float(self.noise / np.sqrt(1.0 - self.rho**2))

    def state(self, observation: Numbers) -> Array:  # (..., 1) -> (...)
        """x from what `WalkEnv` shows."""
        return np.asarray(observation, dtype=float)[..., 0] * self.stationary_std

    def mean(self, x: Numbers) -> Array:
        slope = self.rho / (1.0 - self.gamma * self.rho)
        return self.mu / (1.0 - self.gamma) + slope * np.asarray(x, dtype=float)

    @property
    def std(self) -> float:
        return float(self.noise / ((1.0 - self.gamma * self.rho) * np.sqrt(1.0 - self.gamma**2)))

    def cdf(self, x: Numbers, value: Numbers) -> Array:
        return np.asarray(ndtr((np.asarray(value, dtype=float) - self.mean(x)) / self.std))

    def quantile(self, x: Numbers, level: Numbers) -> Array:
        return self.mean(x) + self.std * np.asarray(ndtri(np.asarray(level, dtype=float)))

    def cvar(self, x: Numbers, alpha: float = 0.05) -> Array:
        return self.mean(x) - self.std * normal_cvar_factor(alpha)


class WalkEnv(BatchedMarket[WalkMarket]):
    """Observes x in units of its stationary standard deviation, from which each episode's first x is drawn."""

    default_length = 1000

    def _space(self) -> spaces.Box:
        return spaces.Box(-10.0, 10.0, (1,), np.float32)

    def _prepare(self) -> None:
        self.x = np.zeros(self.num_envs)

    def _begin(self, envs: NDArray[np.bool_]) -> None:
        self.x[envs] = self.market.stationary_std * self.rng.standard_normal(int(envs.sum()))

    def _observe(self) -> Array:
        return self.x[:, None] / self.market.stationary_std

    def _earn(self, positions: Array) -> Array:
        self.x = self.market.rho * self.x + self.market.noise * self.rng.standard_normal(self.num_envs)
        return self.market.mu + self.x


class ToldPlayer(NamedTuple):
    low: float  # position in the calm regime
    high: float  # position in the volatile regime
    mean_return: float  # per step


class FilterPlayer(NamedTuple):
    """Position as a function of the belief that the next return is volatile; `weight` is the belief's distribution."""

    belief: Array  # (G,) ascending
    weight: Array  # (G,)
    table: Array  # (G,)
    mean_return: float  # per step

    def position(self, belief: Numbers) -> Array:
        return np.asarray(np.interp(belief, self.belief, self.table))


@dataclass(frozen=True)
class RegimeMarket:
    """(e) r ~ N(mu, sigma or factor · sigma); the regime changes with probability 1 / mean_length after each return.

    The limit is on the CVaR of one step's reward, pooled over both regimes. Three players maximise the mean reward:
    `optimal_position` knows nothing, `told` knows the regime of the next return, `filtering` knows the model and past
    returns. The last bounds every agent: changes are noticed late, so memory alone cannot reach what `told` reaches.
    """

    mu: float = 0.005
    sigma: float = 0.01
    factor: float = 3.0
    mean_length: float = 50.0
    alpha: float = 0.05

    @property
    def sigmas(self) -> Array:  # (2,) calm, volatile
        return self.sigma * np.array([1.0, self.factor])

    @property
    def leave(self) -> float:
        return 1.0 / self.mean_length

    @property
    def tail(self) -> float:
        """CVaR at position 1 in both regimes, the unconstrained optimum."""
        return self.cvar((1.0, 1.0))

    def mean(self, positions: Numbers) -> float:  # (2,) calm, volatile
        return self.mu * float(np.mean(positions))

    def cvar(self, positions: Numbers) -> float:  # (2,) calm, volatile
        """Pooled over the stationary distribution, which spends half the time in each regime."""
        positions = np.asarray(positions, dtype=float)
        return normal_mixture_cvar(positions * self.mu, positions * self.sigmas, (0.5, 0.5), self.alpha)

    def optimal_position(self, limit: float) -> float:
        return largest_position(limit, self.tail)

    def told(self, limit: float) -> ToldPlayer:
        """CVaR is homogeneous, so each direction has one largest feasible pair; the direction is searched."""

        def pair(angle: float) -> Array:
            direction = np.array([np.cos(angle), np.sin(angle)])
            direction /= direction.max()
            return direction * largest_position(limit, self.cvar(direction))

        angles = np.linspace(0.0, np.pi / 2, 361)
        best = int(np.argmax([pair(angle).sum() for angle in angles]))
        bounds = (angles[max(best - 1, 0)], angles[min(best + 1, 360)])
        angle = minimize_scalar(lambda a: -pair(a).sum(), bounds=bounds, method="bounded", options={"xatol": 1e-10}).x
        low, high = pair(float(angle))
        return ToldPlayer(float(low), float(high), self.mean((low, high)))

    def share_of_told(self, mean_return: float, cvar: float) -> float:
        """Where a mean return per step lies between the constant (0) and the told player (1) *with the same CVaR*.

        Give the CVaR that was measured: a player 5 % over its limit must not be paid for it.
        """
        constant = self.mu * self.optimal_position(cvar)
        return (mean_return - constant) / (self.told(cvar).mean_return - constant)

    def next_belief(self, belief: Numbers, returns: Numbers) -> Array:
        """P(next return volatile | past) from P(this return volatile | past before it) and this return."""
        low, high = self.sigmas
        centred = np.square(np.asarray(returns, dtype=float) - self.mu)
        log_ratio = np.log(low / high) + 0.5 * centred * (low**-2 - high**-2)
        belief = np.asarray(belief, dtype=float)
        calm = (1.0 - belief) * np.exp(-log_ratio)  # the ratio is bounded from below, so this cannot overflow
        posterior = belief / (belief + calm)
        return np.asarray(self.leave + (1.0 - 2.0 * self.leave) * posterior)

    def beliefs(self, memory: int | None = None, *, n_grid: int = 401) -> tuple[Array, Array]:
        """The belief's grid (G,) and distribution (G,) for a player who sees the last `memory` returns; None: all."""
        grid = np.linspace(self.leave, 1.0 - self.leave, n_grid)
        nodes = ndtri((np.arange(400) + 0.5) / 400)
        kernel = np.zeros((n_grid, n_grid))
        for sigma, chance in zip(self.sigmas, (1.0 - grid, grid), strict=True):
            landing = self.next_belief(grid[:, None], self.mu + sigma * nodes)  # (G, nodes)
            place = np.clip((landing - grid[0]) / (grid[1] - grid[0]), 0.0, n_grid - 1 - 1e-9)
            left = place.astype(np.int64)
            rows = np.broadcast_to(np.arange(n_grid)[:, None], left.shape)
            mass = np.broadcast_to(chance[:, None] / len(nodes), left.shape)
            np.add.at(kernel, (rows, left), mass * (1.0 - (place - left)))
            np.add.at(kernel, (rows, left + 1), mass * (place - left))
        weight = np.zeros(n_grid)
        weight[n_grid // 2] = 1.0  # belief ½ before any return; n_grid is odd
        for _ in range(1000 if memory is None else memory):
            weight = weight @ kernel
        return grid, weight

    def filtering(self, limit: float, memory: int | None = None, *, n_grid: int = 401) -> FilterPlayer:
        """The best position for each belief, to about 0.1 % of the mean return.

        max μ E w  s.t.  ν − E(ν − w r)⁺ / α ≥ limit is concave in (w(·), ν). For given ν and multiplier the beliefs
        separate; the multiplier makes the limit hold with equality; ν is searched. `memory` as in `beliefs`.
        """
        grid, weight = self.beliefs(memory, n_grid=n_grid)
        chance = np.stack([1.0 - grid, grid], axis=1)  # (G, 2)

        def positions(multiplier: float, level: float) -> Array:  # (G,)
            low, high = np.full(n_grid, 1e-9), np.ones(n_grid)
            for _ in range(40):
                middle = 0.5 * (low + high)
                z = (level / middle[:, None] - self.mu) / self.sigmas
                below = np.sum(chance * (self.mu * ndtr(z) - self.sigmas * normal_density(z)), axis=1)  # E[r; w r < ν]
                rises = self.mu + multiplier / self.alpha * below > 0.0
                low, high = np.where(rises, middle, low), np.where(rises, high, middle)
            return 0.5 * (low + high)

        def room(log_multiplier: float, level: float) -> float:
            held = positions(float(np.exp(log_multiplier)), level)[:, None]
            short = np.sum(chance * normal_shortfall(level, held * self.mu, held * self.sigmas), axis=1)
            return float(level - np.sum(weight * short) / self.alpha) - limit

        def best(level: float) -> Array:
            if room(-12.0, level) >= 0.0:
                return positions(float(np.exp(-12.0)), level)
            return positions(float(np.exp(brentq(room, -12.0, 8.0, args=(level,), xtol=1e-7))), level)

        level = minimize_scalar(
            lambda level: -np.sum(weight * best(level)),
            bounds=(limit, 0.1 * limit), method="bounded", options={"xatol": 1e-3 * abs(limit)},
        ).x  # fmt: skip
        table = best(float(level))
        return FilterPlayer(grid, weight, table, self.mu * float(np.sum(weight * table)))


class RegimeEnv(BatchedMarket[RegimeMarket]):
    """Observes the last return and its size, in units of the calm regime's sigma; the regime itself is hidden.

    `volatile` is the regime of the *next* return: what a told player knows when it acts. Every episode begins with one
    return of the stationary market already seen.
    """

    default_length = 1000

    def _space(self) -> spaces.Box:
        bound = 10.0 * self.market.factor + self.market.mu / self.market.sigma
        return spaces.Box(np.array([-bound, 0.0], dtype=np.float32), np.full(2, bound, dtype=np.float32))

    def _prepare(self) -> None:
        self.volatile, self.returns = np.zeros(self.num_envs, dtype=bool), np.zeros(self.num_envs)

    def _begin(self, envs: NDArray[np.bool_]) -> None:
        self.volatile[envs] = self.rng.random(int(envs.sum())) < 0.5
        self._draw(envs)

    def _draw(self, envs: NDArray[np.bool_]) -> None:
        """One return in the present regime, then the regime of the next one."""
        n = int(envs.sum())
        sigmas = self.market.sigmas[self.volatile[envs].astype(np.int64)]
        self.returns[envs] = self.market.mu + sigmas * self.rng.standard_normal(n)
        self.volatile[envs] ^= self.rng.random(n) < self.market.leave

    def _observe(self) -> Array:
        scaled = self.returns / self.market.sigma
        return np.stack([scaled, np.abs(scaled)], axis=1)

    def _earn(self, positions: Array) -> Array:
        self._draw(np.ones(self.num_envs, dtype=bool))
        return positions[:, 0] * self.returns
