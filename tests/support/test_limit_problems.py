"""The exact answers, against every policy of a problem small enough to list them, and against the env that plays it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from .limit_problems import Problem, ProblemEnv, Table, _free, _Play, _refined, _safest, draw, tail_of


def small_game(truncates: bool) -> Table:
    """Two rounds, two states, two actions: safe, or a bet that is better in the second state."""
    chance = np.array([[[1.0, 0.0], [0.6, 0.4]], [[1.0, 0.0], [0.8, 0.2]]])
    rewards = np.array([[[0, 0], [2, -2]], [[1, 0], [3, -3]]])
    successors = np.array([[[0, 0], [1, 0]], [[1, 0], [0, 1]]])
    return Table(chance, successors, rewards, np.eye(2), 2, truncates, np.array([0, 1]))


def every_policy(table: Table, measure: str) -> list[tuple[float, dict[int, float]]]:
    """Mean return and distribution of X of every deterministic policy on (time, state, total): every path walked."""
    places = [(0, 0, 0)]
    for a, k in itertools.product(range(2), range(2)):
        if table.probabilities[0, a, k] > 0:
            places.append((1, int(table.successors[0, a, k]), int(table.rewards[0, a, k])))
    places = sorted(set(places))
    found = []
    for choice in itertools.product(range(2), repeat=len(places)):
        policy = dict(zip(places, choice, strict=True))
        mean, spread = 0.0, dict[int, float]()
        for first, second in itertools.product(range(2), repeat=2):
            a = policy[0, 0, 0]
            s, r = int(table.successors[0, a, first]), int(table.rewards[0, a, first])
            p = table.probabilities[0, a, first]
            if p == 0:
                continue
            b = policy[1, s, r]
            p *= table.probabilities[s, b, second]
            last = int(table.rewards[s, b, second])
            if not table.truncates:
                last += int(table.salvage[table.successors[s, b, second]])
            mean += p * (r + last)
            for x in (r + last,) if measure == "episode_return" else (r, last):
                spread[x] = spread.get(x, 0.0) + p / (1 if measure == "episode_return" else 2)
        found.append((mean, spread))
    return found


def by_linear_program(policies: list[tuple[float, dict[int, float]]], alpha: float, limit: float) -> float:
    """The best mixture of listed policies with CVaR_α(X) ≥ limit: one linear program for each ν."""
    best = -np.inf
    for nu in sorted({x for _, spread in policies for x in spread}):
        cost = [sum(p * max(nu - x, 0.0) for x, p in spread.items()) / alpha for _, spread in policies]
        solved = linprog(
            [-mean for mean, _ in policies], A_ub=[cost], b_ub=[nu - limit], A_eq=[[1.0] * len(policies)], b_eq=[1.0]
        )
        if solved.success:
            best = max(best, -solved.fun)
    return best


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("measure", ["episode_return", "step_return"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_the_constrained_optimum_is_that_of_a_linear_program_over_every_policy(
    measure: str, truncates: bool, share: float
) -> None:
    table, alpha = small_game(truncates), 0.3
    play, policies = _Play(table, measure, alpha), every_policy(table, measure)
    tails = [tail_of(np.array(sorted(s)), np.array([s[x] for x in sorted(s)]), alpha) for _, s in policies]
    free, _, _ = _free(play)
    safest = _safest(play)
    assert free.mean == pytest.approx(max(mean for mean, _ in policies))
    assert safest.tail == pytest.approx(max(tails))
    limit = safest.tail + share * (free.tail - safest.tail)
    assert free.tail < limit < safest.tail
    # Mixing policies from the start is what a policy that draws its actions can do too.
    assert _refined(play, limit) == pytest.approx(by_linear_program(policies, alpha, limit), abs=1e-6)


@pytest.mark.parametrize(("kind", "measure"), [("stakes", "episode_return"), ("inventory", "step_return")])
def test_the_env_plays_what_was_solved(kind: str, measure: str) -> None:
    problem = replace(draw(kind, measure, 0), scale=0.5)
    env = ProblemEnv(problem, 4000, seed=1, staggered=False)
    play = _Play(problem.table, measure, problem.alpha)
    policy = play.policy(0.0, 0.0)
    env.reset()
    returns, steps, running = [], [], np.zeros(4000)
    for _ in range(3 * problem.table.horizon):
        place = env.totals - play.low if play.runs else env.totals * 0
        action = np.stack([policy[t][s, y] for t, s, y in zip(env.clock, env.states, place, strict=True)])
        _, rewards, dones, _ = env.step(action)
        running += rewards
        steps.append(rewards)
        returns += running[dones].tolist()
        running[dones] = 0.0
    error = 4 * np.std(returns) / np.sqrt(len(returns))
    assert np.mean(returns) / 0.5 == pytest.approx(problem.free.mean, abs=error / 0.5)
    x = np.sort(returns if play.runs else np.concatenate(steps)) / 0.5
    tail = x[: round(problem.alpha * len(x))].mean()
    assert tail == pytest.approx(problem.free.tail, abs=0.1 * problem.std)


def test_a_limit_lies_between_the_safest_policy_and_the_free_one() -> None:
    problem: Problem = draw("option", "episode_return", 0)
    assert problem.free.tail < problem.limit < problem.safest.tail
    assert problem.safest.mean < problem.optimum.mean < problem.free.mean
    assert problem.score(problem.optimum.mean * problem.scale) == pytest.approx(1.0)
    assert problem.score(problem.safest.mean * problem.scale) == pytest.approx(0.0)
    assert problem.excess(problem.limit * problem.scale) == pytest.approx(0.0)
