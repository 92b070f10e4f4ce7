"""Small decision problems, drawn at random, whose best policy under a CVaR limit is found exactly.

| kind | what is decided | X | ends by |
|---|---|---|---|
| `stakes` | how much to bet on a good game, with a bankroll that can be lost | episode | ruin, or the last round |
| `additive` | how much to bet, each round for itself, with odds that are shown | episode or step | time limit |
| `inventory` | how much to order before an uncertain demand | episode or step | end of the season |
| `execution` | how much to sell now and how much to keep while prices drift upwards | episode | everything sold |
| `hazard` | which way to walk on a grid where the short one can hurt | episode or step | goal, accident, or last step |
| `option` | when to exercise | episode | exercise or expiry |

A problem is a finite table: from state s, action a leads with probability p to a next state and a reward, an integer
times `scale`. All of it is observed: features of the state, the time that is left, and for an episode's return the
running total, without which no policy can hold a limit on it.

The exact answer. CVaR_α(X) ≥ limit holds if and only if some ν has ν − E(ν − X)⁺/α ≥ limit (Rockafellar & Uryasev
2000). For one ν this is a linear constraint on the policy's occupation measure. With a price λ on it, dynamic
programming gives the best policy; two policies on both sides of the limit, mixed so that it is met, are the optimum of
the linear program (its dual has one variable). The best ν is one of the values X can have: between them all is linear.
Nothing here imports Leeward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

Array = NDArray[np.float64]
Ints = NDArray[np.int64]

ALPHAS = (0.05, 0.1, 0.2)
SCALES = (1e-3, 1.0, 1e3)


@dataclass(frozen=True)
class Table:
    """S states, A actions, K outcomes of each. State 0 is where episodes begin."""

    probabilities: Array  # (S, A, K)
    successors: Ints  # (S, A, K); -1: the episode is over
    rewards: Ints  # (S, A, K)
    features: Array  # (S, F)
    horizon: int
    truncates: bool  # whether the last step is a time limit, or an end
    salvage: Ints  # (S,), what a state is worth at the last step, where that is an end

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.rewards.shape  # type: ignore[return-value]


class Answer(NamedTuple):
    """Of a policy, or a mixture of two: its mean return and its tail, in units of the table's rewards."""

    mean: float
    tail: float


@dataclass(frozen=True)
class Problem:
    """A table, and a limit on it."""

    name: str
    table: Table
    measure: str  # step_return or episode_return
    alpha: float
    scale: float
    limit: float  # in units of the table's rewards, as everything below
    free: Answer  # the best policy without a limit
    safest: Answer  # the policy with the mildest tail, and among those of nearly the same the one that earns most
    optimum: Answer  # the best policy within the limit
    std: float  # of X under the best policy without a limit
    atom: float  # share of its outcomes that sit on its lowest value

    def score(self, mean: float) -> float:
        """0 for the safest policy, 1 for the constrained optimum; `mean` in units of the env's rewards."""
        return (mean / self.scale - self.safest.mean) / (self.optimum.mean - self.safest.mean)

    def excess(self, tail: float) -> float:
        """How far a tail, in units of the env's rewards, misses the limit, in standard deviations of X."""
        return (self.limit - tail / self.scale) / self.std


# --- solving ---------------------------------------------------------------------------------------------------------


class _Play:
    """Dynamic programming over (time, state, running total); for steps there is no total to run."""

    def __init__(self, table: Table, measure: str, alpha: float) -> None:
        self.table, self.measure, self.alpha = table, measure, alpha
        self.runs = measure == "episode_return"
        least = min(0, int(table.rewards.min()) * table.horizon, int(table.salvage.min()))
        most = max(0, int(table.rewards.max()) * table.horizon)
        slack = int(np.abs(table.salvage).max())
        self.low, self.high = (least - slack, most + slack) if self.runs else (0, 0)
        self.totals = np.arange(self.low, self.high + 1)
        self.reached = self._reach()

    def _reach(self) -> list[NDArray[np.bool_]]:
        """(S, Y) at every time: what some policy reaches."""
        table, (S, A, K) = self.table, self.table.shape
        here = np.zeros((S, len(self.totals)), bool)
        here[0, -self.low] = True
        found = [here]
        for _ in range(table.horizon - 1):
            then = np.zeros_like(here)
            s, y = np.nonzero(here)
            for a in range(A):
                for k in range(K):
                    goes = (table.successors[s, a, k] >= 0) & (table.probabilities[s, a, k] > 0)
                    then[table.successors[s[goes], a, k], self._moved(y[goes], table.rewards[s[goes], a, k])] = True
            found.append(then)
            here = then
        return found

    def _moved(self, y: Ints, reward: Ints) -> Ints:
        return y + reward if self.runs else y + 0 * reward

    def _outcomes_of(self, t: int) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Where one can be at time t, (n,) states and totals, and what may follow, each (n, A, K): rewards, successors
        (−1: the episode is over) and the totals after it."""
        table = self.table
        s, y = np.nonzero(self.reached[t])
        rewards, successors = table.rewards[s], table.successors[s]
        if t == table.horizon - 1:
            if not table.truncates:
                rewards = rewards + np.where(successors >= 0, table.salvage[successors], 0)
            successors = np.full_like(successors, -1)
        return s, y, rewards, successors, self._moved(y[:, None, None], rewards)

    def _plan(self, price: float, pivot: float, offset: float) -> tuple[list[Ints], tuple[float, float]]:
        """The policy that is best for E[R] − price · E[G], as (S, Y) actions at every time, and its E[R] and E[G].

        G is the sum of (ν − X)⁺/α − (ν − limit) over all outcomes X, `pivot` = ν and `offset` = ν − limit: at most 0 on
        average where ν shows that the limit is kept. An infinite price asks for the least G alone.
        """
        table, (S, _, _) = self.table, self.table.shape
        values = np.zeros((2, S + 1, len(self.totals)))  # of R and G to go; the last row: the episode is over
        policy = list[Ints]()
        for t in reversed(range(table.horizon)):
            s, y, rewards, successors, totals = self._outcomes_of(t)
            over = successors < 0
            cost = np.maximum(pivot - (self.totals[totals] if self.runs else rewards), 0.0) / self.alpha - offset
            if self.runs:
                cost = np.where(over, cost, 0.0)
            to_go = np.where(over, 0.0, values[:, np.where(over, S, successors), totals])  # (2, n, A, K)
            of_action = (table.probabilities[s] * (to_go + np.stack([rewards, cost]))).sum(-1)  # (2, n, A)
            objective = -of_action[1] if price == np.inf else of_action[0] - price * of_action[1]
            # Among equals the one that earns most, so that "safest" is well defined.
            best = (objective + 1e-9 * of_action[0]).argmax(-1)
            values = np.zeros_like(values)
            values[:, s, y] = of_action[:, np.arange(len(s)), best]
            chosen = np.zeros((S, len(self.totals)), np.int64)
            chosen[s, y] = best
            policy.append(chosen)
        start = values[:, 0, -self.low]
        return policy[::-1], (float(start[0]), float(start[1]))

    def solve(self, price: float, pivot: float, offset: float) -> tuple[float, float]:
        """Mean return and mean G of the best policy at this price."""
        return self._plan(price, pivot, offset)[1]

    def policy(self, price: float, pivot: float) -> list[Ints]:
        return self._plan(price, pivot, 0.0)[0]

    def outcomes(self, price: float, pivot: float) -> tuple[Ints, Array]:
        """Distribution of X, values and probabilities, under the policy that is best at this price and ν."""
        table, (S, _, _), policy = self.table, self.table.shape, self.policy(price, pivot)
        mass = np.zeros((S, len(self.totals)))
        mass[0, -self.low] = 1.0
        found = dict[int, float]()
        for t in range(table.horizon):
            s, y, rewards, successors, totals = self._outcomes_of(t)
            each, a = np.arange(len(s)), policy[t][s, y]
            rewards, successors, totals = rewards[each, a], successors[each, a], totals[each, a]  # (n, K)
            share = mass[s, y][:, None] * table.probabilities[s, a]
            ended = successors < 0
            shown = ended if self.runs else np.ones_like(ended)
            values = self.totals[totals] if self.runs else rewards
            for value, p in zip(values[shown].tolist(), share[shown].tolist(), strict=True):
                found[value] = found.get(value, 0.0) + p
            mass = np.zeros_like(mass)
            np.add.at(mass, (successors[~ended], totals[~ended]), share[~ended])
        order = sorted(value for value, p in found.items() if p > 0)
        weights = np.array([found[value] for value in order])
        return np.array(order), weights / weights.sum()

    def pivots(self, most: int = 48) -> Array:
        """Values that X can have: all of them, or so many."""
        table = self.table
        if not self.runs:
            values = np.unique(table.rewards[table.probabilities > 0])
            if not table.truncates:
                values = np.unique(np.concatenate([values, np.add.outer(values, np.unique(table.salvage)).ravel()]))
        else:
            values = self.totals
        if len(values) > most:
            values = values[np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]
        return values.astype(float)


def tail_of(values: Ints, weights: Array, alpha: float) -> float:
    """CVaR_α of a discrete distribution with sorted values."""
    share = np.minimum(np.cumsum(weights), alpha)
    parts = np.diff(np.concatenate([[0.0], share]))
    return float((parts * values).sum() / alpha)


def _constrained(play: _Play, pivot: float, limit: float) -> float | None:
    """The best mean return with ν − E(ν − X)⁺/α ≥ limit for this ν; None where no policy has it."""
    offset = pivot - limit
    mean, excess = play.solve(0.0, pivot, offset)
    if excess <= 1e-9:
        return mean
    safe_mean, safe_excess = play.solve(np.inf, pivot, offset)
    if safe_excess > 1e-9:
        return None
    low, high = 0.0, 1.0
    risky, safe = (mean, excess), (safe_mean, safe_excess)
    for _ in range(40):  # a price at which the limit is kept
        found = play.solve(high, pivot, offset)
        if found[1] <= 0.0:
            safe = found
            break
        risky, low, high = found, high, 2.0 * high
    for _ in range(30):
        price = 0.5 * (low + high)
        found = play.solve(price, pivot, offset)
        if found[1] <= 0.0:
            safe, high = found, price
        else:
            risky, low = found, price
    share = -safe[1] / max(risky[1] - safe[1], 1e-12)  # of the risky one, so that G is 0 on average
    return safe[0] + share * (risky[0] - safe[0])


def _best(play: _Play, limit: float, pivots: Array) -> tuple[float, float]:
    """The constrained optimum over these ν, and the ν it has."""
    values = {pivot: _constrained(play, pivot, limit) for pivot in pivots.tolist() if pivot >= limit}
    found = [(value, pivot) for pivot, value in values.items() if value is not None]
    return max(found) if found else (-np.inf, np.nan)


def _refined(play: _Play, limit: float) -> float:
    """Over some ν of the whole range first, then over every one around the best of them."""
    coarse = play.pivots()
    value, pivot = _best(play, limit, coarse)
    if not play.runs or len(coarse) == len(play.totals) or not np.isfinite(pivot):
        return value
    step = int(np.ceil((play.high - play.low) / (len(coarse) - 1)))
    around = np.arange(max(play.low, pivot - step), min(play.high, pivot + step) + 1)
    return max(value, _best(play, limit, around)[0])


def _safest(play: _Play) -> Answer:
    """The policy with the mildest tail that this search over ν finds."""
    found = []
    for pivot in play.pivots(96):
        values, weights = play.outcomes(1e6, pivot)  # nearly infinite, so that it still earns where it is free
        mean, _ = play.solve(1e6, pivot, 0.0)
        found.append((tail_of(values, weights, play.alpha), mean))
    tail = max(each[0] for each in found)
    return Answer(max(mean for each, mean in found if each >= tail - 1e-9), tail)


def _free(play: _Play) -> tuple[Answer, float, float]:
    values, weights = play.outcomes(0.0, 0.0)
    mean, _ = play.solve(0.0, 0.0, 0.0)
    centre = (values * weights).sum()
    std = float(np.sqrt((weights * (values - centre) ** 2).sum()))
    return Answer(mean, tail_of(values, weights, play.alpha)), std, float(weights[0])


# --- the kinds -------------------------------------------------------------------------------------------------------


class _Builder:
    """Fills a table outcome by outcome."""

    def __init__(self, n_states: int, n_actions: int, n_outcomes: int) -> None:
        shape = (n_states, n_actions, n_outcomes)
        self.probabilities, self.rewards = np.zeros(shape), np.zeros(shape, np.int64)
        self.successors = np.full(shape, -1)

    def put(self, s: int, a: int, k: int, p: float, reward: float, successor: int) -> None:
        self.probabilities[s, a, k] += p
        self.rewards[s, a, k], self.successors[s, a, k] = round(reward), successor

    def table(self, features: Any, horizon: int, truncates: bool, salvage: Any = None) -> Table:
        features = np.asarray(features, float).reshape(len(self.rewards), -1)
        spread = np.abs(features).max(0)
        salvage = np.zeros(len(features), np.int64) if salvage is None else np.round(salvage).astype(np.int64)
        probabilities = self.probabilities / self.probabilities.sum(-1, keepdims=True)
        features = features / np.where(spread > 0, spread, 1.0)
        return Table(probabilities, self.successors, self.rewards, features, horizon, truncates, salvage)


def _stakes(rng: np.random.Generator) -> Table:
    """A bankroll, 5 to 9 stakes, odds better than even; who loses everything is out, and pays for it."""
    bankroll, most, n = int(rng.integers(4, 8)), 24, int(rng.integers(5, 10))
    p, gain, ruin = rng.uniform(0.53, 0.62), int(rng.integers(1, 3)), int(rng.integers(0, 4))
    horizon = int(rng.integers(5, 9))
    made = _Builder(most + 1, n, 2)
    order = [bankroll, *(b for b in range(most + 1) if b != bankroll)]  # state 0 is where episodes begin
    place = {b: i for i, b in enumerate(order)}
    for b in range(most + 1):
        for a in range(n):
            stake = min(a, b)
            win, lose = min(b + gain * stake, most), b - stake
            p_win = p if gain == 1 else p - 0.12
            made.put(place[b], a, 0, p_win, win - b, place[win])
            made.put(place[b], a, 1, 1 - p_win, lose - b - (ruin if lose == 0 else 0), -1 if lose == 0 else place[lose])
    return made.table(order, horizon, truncates=False)


def _additive(rng: np.random.Generator) -> Table:
    """Odds that change from round to round and are shown; a stake of 0 to 6 or more."""
    odds, n, horizon = int(rng.integers(2, 5)), int(rng.integers(6, 13)), int(rng.integers(8, 16))
    edges = np.sort(rng.uniform(0.5, 0.68, odds))
    chance = rng.dirichlet(np.full(odds, 3.0))
    made = _Builder(odds, n, 2 * odds)
    for s in range(odds):
        for a in range(n):
            for then in range(odds):
                made.put(s, a, 2 * then, edges[s] * chance[then], a, then)
                made.put(s, a, 2 * then + 1, (1 - edges[s]) * chance[then], -a, then)
    return made.table(np.column_stack([edges - 0.5, np.ones(odds)]), horizon, truncates=True)


def _inventory(rng: np.random.Generator) -> Table:
    """Stock of 0 to 8; demand that is mostly small and sometimes a rush, or nothing at all."""
    most, n, horizon = 8, int(rng.integers(5, 9)), int(rng.integers(4, 8))
    price, cost, keep, lost = 6, int(rng.integers(2, 5)), int(rng.integers(1, 3)), int(rng.integers(0, 3))
    demands = np.array([0, 1, 2, 3, 6])
    weights = rng.dirichlet([2.0, 3.0, 4.0, 3.0, 1.0])
    made = _Builder(most + 1, n, len(demands))
    for s in range(most + 1):
        for a in range(n):
            full = min(s + a, most)
            for k, demand in enumerate(demands):
                sold = min(full, demand)
                left = full - sold
                gain = price * sold - cost * (full - s) - keep * left - lost * (demand - sold)
                made.put(s, a, k, weights[k], gain, left)
    return made.table(np.arange(most + 1), horizon, truncates=False, salvage=-np.arange(most + 1))


def _execution(rng: np.random.Generator) -> Table:
    """Units to sell; the price drifts up and jumps, selling fast moves it; what is left at the end costs."""
    units, width, horizon = int(rng.integers(4, 7)), 3, int(rng.integers(4, 7))
    up, jump, impact = rng.uniform(0.36, 0.46), rng.uniform(0.03, 0.1), int(rng.integers(1, 3))
    steps, chances = np.array([-3, -1, 0, 1]), np.array([jump, 0.25, 0.75 - jump - up, up])
    prices = np.arange(-2 * width, 2 * width + 1)
    states = [(units, 0), *((q, d) for q in range(1, units + 1) for d in prices if (q, d) != (units, 0))]
    place = {each: i for i, each in enumerate(states)}
    made = _Builder(len(states), min(units + 1, 6), len(steps))
    for (q, d), s in place.items():
        for a in range(made.rewards.shape[1]):
            sold = min(a, q)
            for k, (move, chance) in enumerate(zip(steps, chances, strict=True)):
                then = int(np.clip(d + move, prices[0], prices[-1]))
                made.put(
                    s, a, k, chance, 2 * sold * d - impact * sold * sold, place[q - sold, then] if q > sold else -1
                )
    salvage = [2 * q * d - impact * q * q - 2 * q for q, d in states]
    return made.table(states, horizon, truncates=False, salvage=salvage)


def _hazard(rng: np.random.Generator) -> Table:
    """A grid; the straight way leads over cells where an accident is rare and expensive. Five moves."""
    width, height, horizon = 5, 4, 14
    risk, accident, goal = rng.uniform(0.02, 0.08), int(rng.integers(15, 40)), int(rng.integers(14, 22))
    cells = [(x, y) for y in range(height) for x in range(width)]
    place = {cell: i for i, cell in enumerate(cells)}
    depth = {0: risk, 1: 0.5 * risk, 2: 0.15 * risk, 3: 0.0}  # the further from the first row, the safer
    made = _Builder(len(cells), 5, 2)
    for (x, y), s in place.items():
        for a, (dx, dy) in enumerate([(1, 0), (-1, 0), (0, 1), (0, -1), (0, 0)]):
            to = (int(np.clip(x + dx, 0, width - 1)), int(np.clip(y + dy, 0, height - 1)))
            danger = depth[to[1]] if 0 < to[0] < width - 1 else 0.0
            home = to == (width - 1, 0)
            made.put(s, a, 0, 1 - danger, (goal if home else 0) - 1, -1 if home else place[to])
            made.put(s, a, 1, danger, -accident - 1, -1)
    return made.table(cells, horizon, truncates=False)


def _option(rng: np.random.Generator) -> Table:
    """A price on a lattice that drifts in the holder's favour; exercise now, or wait."""
    width, horizon = 8, int(rng.integers(6, 11))
    up, level = rng.uniform(0.52, 0.6), int(rng.integers(2, 5))
    prices = [0, *(d for d in range(-width, width + 1) if d)]
    place = {d: i for i, d in enumerate(prices)}
    made = _Builder(len(prices), 2, 2)
    for d, s in place.items():
        worth = max(level + d, 0)
        for k, (move, chance) in enumerate([(1, up), (-1, 1 - up)]):
            made.put(s, 0, k, chance, 0, place[int(np.clip(d + move, -width, width))])
            made.put(s, 1, k, chance, worth, -1)
    return made.table(prices, horizon, truncates=False)


KINDS: dict[str, tuple[Callable[[np.random.Generator], Table], tuple[str, ...]]] = {
    "stakes": (_stakes, ("episode_return",)),
    "additive": (_additive, ("episode_return", "step_return")),
    "inventory": (_inventory, ("episode_return", "step_return")),
    "execution": (_execution, ("episode_return",)),
    "hazard": (_hazard, ("episode_return", "step_return")),
    "option": (_option, ("episode_return",)),
}


@cache
def draw(kind: str, measure: str, seed: int) -> Problem:
    """The first of the problems of this kind, by this seed, on which a limit has something to decide."""
    build, _ = KINDS[kind]
    rng = np.random.default_rng([seed, sorted(KINDS).index(kind), measure == "step_return"])
    for _ in range(100):
        table = build(rng)
        alpha, scale = float(rng.choice(ALPHAS)), float(rng.choice(SCALES))
        share = float(rng.uniform(0.25, 0.75))
        play = _Play(table, measure, alpha)
        free, std, atom = _free(play)
        safest = _safest(play)
        if safest.tail - free.tail < 0.4 * std or free.mean - safest.mean < 0.15 * std:
            continue
        limit = safest.tail + share * (free.tail - safest.tail)
        best = _refined(play, limit)
        if best - safest.mean < 0.1 * std or free.mean - best < 0.03 * std:
            continue
        name = f"{kind}_{'steps' if measure == 'step_return' else 'episodes'}_{seed}"
        return Problem(name, table, measure, alpha, scale, limit, free, safest, Answer(best, limit), std, atom)
    raise ValueError(f"no problem of kind {kind}, {measure} with seed {seed} has a limit that decides")


# --- playing ---------------------------------------------------------------------------------------------------------


class ProblemEnv(VecEnv):
    """Many copies of a problem in one array step. Episodes of the first round end at random times, so that they do not
    march in step; `staggered=False` for measuring whole episodes."""

    render_mode = None

    def __init__(self, problem: Problem, n_envs: int, *, seed: int, staggered: bool = True) -> None:
        table = self.table = problem.table
        self.problem, self.staggered = problem, staggered
        n_features = table.features.shape[1] + 1 + (problem.measure == "episode_return")
        super().__init__(
            n_envs, spaces.Box(-np.inf, np.inf, (n_features,), np.float32), spaces.Discrete(table.shape[1])
        )
        self.rng = np.random.default_rng(seed)
        self.states, self.clock, self.totals = (np.zeros(n_envs, np.int64) for _ in range(3))
        self.actions = np.zeros(n_envs, np.int64)
        self.cumulative = table.probabilities.cumsum(-1)

    def _observe(self) -> NDArray[np.float32]:  # (B, F)
        parts = [self.table.features[self.states], 1.0 - self.clock[:, None] / self.table.horizon]
        if self.problem.measure == "episode_return":
            parts.append(self.totals[:, None] / self.problem.std)
        return np.concatenate(parts, 1).astype(np.float32)

    def reset(self) -> NDArray[np.float32]:
        if self._seeds[0] is not None:
            self.rng = np.random.default_rng(self._seeds[0])
        self._reset_seeds()
        self.states[:], self.totals[:], self.clock[:] = 0, 0, 0
        self.waiting = self.rng.integers(0, self.table.horizon, self.num_envs) if self.staggered else self.clock * 0
        return self._observe()

    def step_async(self, actions: NDArray[Any]) -> None:
        self.actions = np.asarray(actions).astype(np.int64)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        table, s, a = self.table, self.states, self.actions
        draws = self.rng.random(self.num_envs)
        k = (draws[:, None] > self.cumulative[s, a]).sum(-1).clip(max=table.shape[2] - 1)
        rewards, successors = table.rewards[s, a, k], table.successors[s, a, k]
        self.clock += 1
        last = self.clock >= table.horizon
        ends = successors < 0
        if not table.truncates:
            rewards = rewards + np.where(last & ~ends, table.salvage[successors], 0)
            ends = ends | last
        self.totals += rewards
        self.states = np.where(successors < 0, s, successors)
        dones = ends | last
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        final = self._observe() if dones.any() else None
        for i in np.flatnonzero(dones):
            assert final is not None
            infos[i] = {"terminal_observation": final[i], "TimeLimit.truncated": bool(last[i] and not ends[i])}
        self.states[dones], self.totals[dones], self.clock[dones] = 0, 0, 0
        return self._observe(), (rewards * self.problem.scale).astype(np.float32), dones, infos

    def close(self) -> None:
        pass

    def get_attr(self, name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, name)] * self.num_envs

    def set_attr(self, name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("the envs are one array")

    def env_method(self, name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("the envs are one array")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs
