"""The closed forms of the markets under a limit against brute force on the envs themselves."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy import stats

from .risk_markets import (
    BatchedMarket,
    CrashEnv,
    CrashMarket,
    EpisodeEnv,
    EpisodeMarket,
    GaussianEnv,
    GaussianMarket,
    PairEnv,
    PairMarket,
    RegimeEnv,
    RegimeMarket,
    Sight,
    WalkEnv,
    WalkMarket,
    normal_cvar_factor,
    normal_mixture_cvar,
)

Array = NDArray[Any]
SIGMAS = 4.5  # standard errors: one false alarm in 150,000 checks
N_ENVS, N_STEPS = 2000, 500  # a million steps


def play(env: BatchedMarket[Any], n_steps: int, act: Callable[[Array], Any]) -> Array:  # -> rewards (T, B)
    observation, rewards = env.reset(), np.empty((n_steps, env.num_envs))
    for t in range(n_steps):
        actions = np.broadcast_to(act(observation), (env.num_envs, env.n_assets))
        observation, rewards[t], _, _ = env.step(actions)
    return rewards


def assert_mean(samples: Array, expected: float) -> None:  # (T, B), envs independent of each other
    by_env = samples.mean(axis=0)
    float32 = 1e-6 * abs(expected)
    assert abs(by_env.mean() - expected) < SIGMAS * by_env.std() / np.sqrt(len(by_env)) + float32


def assert_cvar(samples: Array, expected: float, alpha: float) -> None:  # (T, B), envs independent of each other
    level = np.quantile(samples, alpha)
    assert_mean(level - np.maximum(level - samples, 0.0) / alpha, expected)


ALL: dict[str, Callable[..., BatchedMarket[Any]]] = {
    "gaussian": lambda n, **k: GaussianEnv(GaussianMarket(), n, **k),
    "episode blind": lambda n, **k: EpisodeEnv(EpisodeMarket(), n, **k),
    "episode held": lambda n, **k: EpisodeEnv(EpisodeMarket(), n, sight=Sight.HELD, **k),
    "episode free": lambda n, **k: EpisodeEnv(EpisodeMarket(), n, sight=Sight.FREE, **k),
    "crash": lambda n, **k: CrashEnv(CrashMarket(), n, **k),
    "pair": lambda n, **k: PairEnv(PairMarket(), n, **k),
    "walk": lambda n, **k: WalkEnv(WalkMarket(), n, length=60, **k),
    "regime": lambda n, **k: RegimeEnv(RegimeMarket(), n, length=60, **k),
}


@pytest.mark.parametrize("name", ALL)
def test_episodes_are_staggered_and_end_as_announced(name: str) -> None:
    env = ALL[name](7, seed=3)
    observation, ends, ages = env.reset(), [], -env.clock
    assert len(set(env.clock)) > 1
    for t in range(2 * env.length + 1):
        assert env.observation_space.shape == observation.shape[1:]
        assert observation.dtype == np.float32
        assert all(env.observation_space.contains(row) for row in observation)
        observation, rewards, dones, infos = env.step(np.full((7, env.n_assets), 0.5, dtype=np.float32))
        assert (rewards.shape, rewards.dtype, dones.shape) == ((7,), np.float32, (7,))
        for i in range(7):
            assert set(infos[i]) == ({"TimeLimit.truncated", "terminal_observation"} if dones[i] else set())
            if dones[i]:
                ends.append((i, t + 1 - ages[i]))
                ages[i] = t + 1
                assert infos[i]["TimeLimit.truncated"] is not name.startswith("episode")
                assert env.observation_space.contains(infos[i]["terminal_observation"])
    assert {i for i, _ in ends} == set(range(7))
    assert all(age == env.length for _, age in ends)


@pytest.mark.parametrize("name", ALL)
def test_a_seed_decides_the_run(name: str) -> None:
    def run(env: BatchedMarket[Any]) -> Array:
        return play(env, 30, lambda _: 0.7)

    first = run(ALL[name](5, seed=1))
    assert_array_equal(run(ALL[name](5, seed=1)), first)
    assert (run(ALL[name](5, seed=2)) != first).any()
    env = ALL[name](5, seed=2)
    env.seed(1)
    assert_array_equal(run(env), first)
    assert (run(env) != first).any()  # the second reset goes on with the stream


def test_the_envs_of_a_batch_differ() -> None:
    assert len(np.unique(play(GaussianEnv(GaussianMarket(), 5), 30, lambda _: 1.0))) == 150


def test_an_unstaggered_env_starts_every_episode_at_its_beginning() -> None:
    env = EpisodeEnv(EpisodeMarket(), 3, staggered=False)
    assert_array_equal(env.reset(), np.ones((3, 1)))
    assert_allclose(env.step(np.ones((3, 1)))[0], np.full((3, 1), 0.95), rtol=1e-6)


def test_positions_outside_the_bounds_are_clipped() -> None:
    inside, outside = (GaussianEnv(GaussianMarket(), 4, seed=1) for _ in range(2))
    assert_array_equal(play(outside, 9, lambda _: 3.0), play(inside, 9, lambda _: 1.0))
    assert_array_equal(play(outside, 9, lambda _: -1.0), np.zeros((9, 4)))


def test_the_normal_tail_factor() -> None:
    # z = −1.644854, φ(z) = 0.1031356; / 0.05
    assert normal_cvar_factor(0.05) == pytest.approx(2.062713, abs=1e-6)
    levels = (np.arange(200_000) + 0.5) / 200_000 * 0.2  # the mean of the quantiles below 0.2
    assert normal_cvar_factor(0.2) == pytest.approx(-stats.norm.ppf(levels).mean(), abs=1e-4)
    with pytest.raises(ValueError, match=r"alpha is a tail mass in \(0, 1\), got 5"):
        normal_cvar_factor(5)


def test_the_tail_of_a_mixture_of_normals() -> None:
    assert normal_mixture_cvar((0.1, 0.1), (0.3, 0.3), (0.5, 0.5), 0.05) == pytest.approx(
        0.1 - 0.3 * 2.062713, abs=1e-6
    )
    # half of the mass is exactly zero: the worst 5 % of all are the worst 10 % of the other half
    assert normal_mixture_cvar((0.0, 0.1), (0.0, 0.3), (0.5, 0.5), 0.05) == pytest.approx(
        0.1 - 0.3 * normal_cvar_factor(0.1), abs=1e-6
    )
    rng = np.random.default_rng(0)
    wide = rng.random((100, 10_000)) < 0.3
    samples = np.where(wide, 0.2, -0.1) + np.where(wide, 1.5, 0.4) * rng.standard_normal(wide.shape)
    assert_cvar(samples, normal_mixture_cvar((0.2, -0.1), (1.5, 0.4), (0.3, 0.7), 0.1), 0.1)


@pytest.mark.parametrize("position", [0.3, 1.0])
@pytest.mark.parametrize(
    ("build", "market"),
    [
        (GaussianEnv, GaussianMarket()),
        (GaussianEnv, GaussianMarket(mu=-0.003, sigma=0.05, alpha=0.2)),
        (CrashEnv, CrashMarket()),
        (CrashEnv, CrashMarket(probability=0.08)),
        (RegimeEnv, RegimeMarket()),
        (PairEnv, PairMarket()),
    ],
)
def test_mean_and_cvar_of_a_step_at_a_fixed_position(build: Any, market: Any, position: float) -> None:
    env = build(market, N_ENVS, seed=4)
    action = (position, 0.5) if build is PairEnv else position
    held: Any = (position, position) if build is RegimeEnv else action
    rewards = play(env, N_STEPS, lambda _: action)
    assert_mean(rewards, float(market.mean(held)))
    assert_cvar(rewards, float(market.cvar(held)), market.alpha)


def test_the_tails_at_position_one_by_hand() -> None:
    assert GaussianMarket().tail == pytest.approx(-0.0312543, abs=1e-7)  # 0.01 − 0.02 · 2.062713
    assert EpisodeMarket().tail == pytest.approx(-0.1044946, abs=1e-7)  # 20 · 0.004 − √20 · 0.02 · 2.062713
    assert CrashMarket().tail == pytest.approx(-0.032)  # (0.01 · −0.2 + 0.04 · 0.01) / 0.05
    assert CrashMarket().mean_at_one == pytest.approx(0.0079)  # 0.99 · 0.01 − 0.01 · 0.2


@pytest.mark.parametrize("market", [GaussianMarket(), EpisodeMarket(), CrashMarket()])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 1.0, 1.5])
def test_the_best_position_is_the_largest_that_meets_the_limit(market: Any, share: float) -> None:
    limit, grid = share * market.tail, np.linspace(0.0, 1.0, 1001)
    assert market.tail < 0.0 < market.mean(1.0)  # without a limit, position 1 is best
    feasible = market.cvar(grid) >= limit - 1e-12
    best = grid[feasible][np.argmax(market.mean(grid[feasible]))]
    assert market.optimal_position(limit) == pytest.approx(best, abs=1e-3)
    assert market.optimal_position(limit) == pytest.approx(min(share, 1.0))


def test_a_limit_that_no_position_meets_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no position reaches a CVaR of 0\.01"):
        GaussianMarket().optimal_position(0.01)


@pytest.mark.parametrize("sight", [Sight.BLIND, Sight.HELD])
def test_mean_and_cvar_of_an_episode_at_a_fixed_position(sight: Sight) -> None:
    market = EpisodeMarket(length=10)
    env = EpisodeEnv(market, N_ENVS, sight=sight, seed=5, staggered=False)
    # When the position is held only the action of the first step (time left 1) counts.
    held = sight is Sight.HELD
    rewards = play(env, 1000, lambda seen: np.where(held & (seen[:, :1] < 1.0), 0.9, 0.4))
    returns = rewards.reshape(100, 10, N_ENVS).sum(axis=1)
    assert_mean(returns, float(market.mean(0.4)))
    assert_cvar(returns, float(market.cvar(0.4)), market.alpha)


def test_the_running_return_and_the_held_position_are_shown() -> None:
    market = EpisodeMarket()
    env = EpisodeEnv(market, 3, sight=Sight.HELD, staggered=False)
    assert_array_equal(env.reset(), [[1.0, 0.0, 0.0]] * 3)
    total = np.zeros(3)
    for t in range(19):
        seen, rewards, _, _ = env.step(np.full((3, 1), 0.25 if t == 0 else 1.0))
        total += rewards
        assert_allclose(seen[:, 0], 1.0 - (t + 1) / 20, rtol=1e-5)
        assert_allclose(seen[:, 1], total / market.std, rtol=1e-4)
        assert_array_equal(seen[:, 2], 0.25)
    seen, rewards, dones, infos = env.step(np.ones((3, 1)))
    assert dones.all()
    assert_array_equal(seen, [[1.0, 0.0, 0.0]] * 3)
    assert_allclose(infos[1]["terminal_observation"], [0.0, (total + rewards)[1] / market.std, 0.25], rtol=1e-4)


def test_no_schedule_that_ignores_returns_beats_the_constant() -> None:
    market, rng = EpisodeMarket(), np.random.default_rng(6)
    limit = 0.5 * market.tail
    schedules = np.clip(0.5 + rng.normal(scale=[[0.02], [0.1], [0.4]] * 1000, size=(3000, 20)), 0.0, 1.0)
    mean = market.mu * schedules.sum(axis=1)
    cvar = mean - normal_cvar_factor(0.05) * market.sigma * np.sqrt((schedules**2).sum(axis=1))
    best = float(market.mean(market.optimal_position(limit)))
    at_the_limit = mean * limit / cvar  # scaled so that each schedule uses the whole limit
    assert (at_the_limit < best).all()
    assert at_the_limit.max() > 0.99 * best


def test_a_player_who_sees_the_running_return_holds_far_more_than_the_constant() -> None:
    market = EpisodeMarket()
    limit = 0.5 * market.tail
    player = market.adaptive(limit, n_grid=201, n_positions=21)
    env = EpisodeEnv(market, 50_000, sight=Sight.FREE, seed=7, staggered=False)
    held: list[Array] = []

    def act(seen: Array) -> Array:
        held.append(player.position(len(held) % 20, seen[:, 1] * market.std))
        return held[-1][:, None]

    returns = play(env, 20, act).sum(axis=0)
    tail = np.sort(returns)[: len(returns) // 20].mean()
    assert tail == pytest.approx(limit, rel=0.04)  # the grid's error, and 1 % of sampling
    assert returns.mean() == pytest.approx(player.mean_return, rel=0.02)
    assert np.mean(held) == pytest.approx(player.mean_position, rel=0.02)
    assert player.mean_position == pytest.approx(0.838, abs=0.01)  # n_grid 801, 81 positions
    # Loose limit: nothing to gain over position 1.
    loose = market.adaptive(1.5 * market.tail, n_grid=101, n_positions=11)
    assert loose.mean_position == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.65])
def test_the_best_pair_of_weights(share: float) -> None:
    market = PairMarket()
    limit = share * market.tail
    weights = market.optimal_weights(limit)
    assert float(market.cvar(weights)) == pytest.approx(limit)
    axis = np.linspace(0.0, 1.0, 801)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    mean = np.where(market.cvar(grid) >= limit, market.mean(grid), -np.inf)
    best = grid[np.unravel_index(mean.argmax(), mean.shape)]
    assert float(market.mean(weights)) == pytest.approx(mean.max(), rel=2e-3)
    assert mean.max() <= market.mean(weights) + 1e-12
    assert_allclose(weights, best, rtol=0.05)  # the grid's own optimum is that uncertain: the return is flat there


def test_weights_without_a_binding_limit_or_inside_solution() -> None:
    market = PairMarket()
    assert_array_equal(market.optimal_weights(1.5 * market.tail), [1.0, 1.0])
    with pytest.raises(ValueError, match=r"the closed form holds inside \(0, 1\)²"):
        market.optimal_weights(0.9 * market.tail)


def test_how_well_the_pair_is_identified() -> None:
    market = PairMarket()
    limit = 0.5 * market.tail
    first, second = market.optimal_weights(limit)
    assert market.partner(first, limit) == pytest.approx(second, rel=1e-6)
    low = (0.9 * first, market.partner(0.9 * first, limit))
    assert float(market.cvar(low)) == pytest.approx(limit)
    assert 1.0 - market.mean(low) / market.mean((first, second)) == pytest.approx(0.0213, abs=1e-4)
    with pytest.raises(ValueError, match="no second weight meets the limit"):
        market.partner(1.1 * first, limit)


def test_the_two_assets_are_correlated_as_stated() -> None:
    market = PairMarket(correlation=0.3)
    env = PairEnv(market, 200_000, seed=8)
    play(env, 1, lambda _: (0.0, 1.0))
    assert_allclose(np.cov(env.returns.T), market.covariance, rtol=0.03)
    assert_allclose(env.returns.mean(axis=0), market.means, rtol=0.03)


@pytest.mark.parametrize("market", [WalkMarket(), WalkMarket(rho=-0.5, noise=2.0, mu=0.7, gamma=0.8)])
def test_the_discounted_return_given_the_state(market: WalkMarket) -> None:
    env = WalkEnv(market, N_ENVS, seed=9, length=10_000)
    seen: list[Array] = []

    def act(observation: Array) -> float:
        seen.append(market.state(observation))
        return 0.5

    rewards = play(env, 1100, act)
    totals, running = np.empty_like(rewards), np.zeros(N_ENVS)
    for t in reversed(range(len(rewards))):
        totals[t] = running = rewards[t] + market.gamma * running
    # Windows of 100 steps: γ^100 = 3e-5, so they are all but independent, and what follows the last is negligible.
    x, returns = np.stack(seen)[:1000:100].ravel(), totals[:1000:100].ravel()
    assert stats.kstest(x / market.stationary_std, stats.norm.cdf).pvalue > 1e-5
    assert stats.kstest(market.cdf(x, returns), stats.uniform.cdf).pvalue > 1e-5
    residual = (returns - market.mean(x))[None]
    assert_mean(residual, 0.0)
    assert_mean(residual * x, 0.0)  # the slope
    assert_mean(residual**2, market.std**2)
    assert_cvar(residual, float(market.cvar(0.0) - market.mean(0.0)), 0.05)
    assert_allclose(market.cdf(x, market.quantile(x, 0.3)), 0.3)
    levels = (np.arange(100_000) + 0.5) / 100_000 * 0.05  # CVaR is the mean of the quantiles below 0.05
    assert float(market.cvar(1.3)) == pytest.approx(market.quantile(1.3, levels).mean(), rel=1e-4)


REGIMES = RegimeMarket()
REGIME_LIMIT = 0.4 * REGIMES.tail


def test_regimes_last_as_long_as_stated_and_spread_as_stated() -> None:
    env = RegimeEnv(REGIMES, N_ENVS, seed=10, length=200)
    env.reset()
    volatile, returns, changed = [], [], []
    for _ in range(N_STEPS):
        before = env.volatile.copy()
        dones = env.step(np.ones((N_ENVS, 1)))[2]
        volatile.append(before[~dones])
        returns.append(env.returns[~dones].copy())
        changed.append((before != env.volatile)[~dones])
    # `volatile` read before the step is the regime of the return that the step pays
    is_volatile, paid = np.concatenate(volatile), np.concatenate(returns)
    assert np.mean(np.concatenate(changed)) == pytest.approx(1 / 50, rel=0.04)
    assert is_volatile.mean() == pytest.approx(0.5, abs=0.01)
    assert_allclose([paid[~is_volatile].std(), paid[is_volatile].std()], [0.01, 0.03], rtol=0.01)


def test_the_told_player_meets_the_limit_and_no_other_pair_does_better() -> None:
    told = REGIMES.told(REGIME_LIMIT)
    env = RegimeEnv(REGIMES, N_ENVS, seed=11)
    rewards = play(env, N_STEPS, lambda _: np.where(env.volatile, told.high, told.low)[:, None])
    assert_mean(rewards, told.mean_return)
    assert_cvar(rewards, REGIME_LIMIT, REGIMES.alpha)
    for share in (0.25, 0.4):  # position 1 is out of reach in both regimes, and in the volatile one only
        limit = share * REGIMES.tail
        best = REGIMES.told(limit)
        axis = np.linspace(0.0, 1.0, 51)
        pairs = [(low, high) for low in axis for high in axis if low + high > best.mean_return / REGIMES.mu * 1.9]
        means = [REGIMES.mean(pair) for pair in pairs if REGIMES.cvar(pair) >= limit]
        assert max(means) <= best.mean_return + 1e-12
        assert max(means) == pytest.approx(best.mean_return, rel=0.02)
        assert REGIMES.cvar((best.low, best.high)) == pytest.approx(limit, rel=1e-6)


def test_the_filtering_player_meets_the_limit_with_the_return_promised() -> None:
    player = REGIMES.filtering(REGIME_LIMIT)
    env = RegimeEnv(REGIMES, N_ENVS, seed=12, length=10_000)
    belief = np.full(N_ENVS, 0.5)

    def act(seen: Array) -> Array:  # Bayes' rule from the observation, written out
        nonlocal belief
        calm = (1 - belief) * stats.norm.pdf(seen[:, 0] * REGIMES.sigma, REGIMES.mu, 0.01)
        volatile = belief * stats.norm.pdf(seen[:, 0] * REGIMES.sigma, REGIMES.mu, 0.03)
        posterior = volatile / (calm + volatile)
        belief = posterior * 0.98 + (1 - posterior) * 0.02
        return player.position(belief)[:, None]

    rewards = play(env, N_STEPS + 50, act)[50:]
    assert_mean(rewards, player.mean_return)
    assert_cvar(rewards, REGIME_LIMIT, REGIMES.alpha)
    assert belief.mean() == pytest.approx(float(np.sum(player.belief * player.weight)), abs=0.03)
    assert np.mean(belief < 0.1) == pytest.approx(player.weight[player.belief < 0.1].sum(), abs=0.04)


def test_no_other_use_of_the_belief_beats_the_filtering_player() -> None:
    player, rng = REGIMES.filtering(REGIME_LIMIT), np.random.default_rng(13)
    weight = np.stack([1.0 - player.belief, player.belief]) * player.weight  # (2, G)

    def scored(table: Array) -> float:
        """Mean return of a position function, scaled to the limit as far as position 1 allows."""
        table = np.clip(table, 0.0, 1.0)
        cvar = normal_mixture_cvar(
            np.broadcast_to(REGIMES.mu * table, weight.shape), REGIMES.sigmas[:, None] * table, weight, REGIMES.alpha
        )
        scale = min(REGIME_LIMIT / cvar, 1.0 / table.max())
        return REGIMES.mu * scale * float(np.sum(player.weight * table))

    assert scored(player.table) == pytest.approx(player.mean_return, rel=1e-3)
    others = [player.table + size * rng.normal() * np.cos(rng.normal() + 5 * rng.normal() * player.belief)
              for size in (0.01, 0.1) for _ in range(60)]  # fmt: skip
    others += [np.where(player.belief < cut, 1.0, high) for cut in (0.2, 0.4, 0.6, 0.8) for high in (0.2, 0.3, 0.4)]
    scores = [scored(other) for other in others]
    assert max(scores) <= player.mean_return * (1 + 1e-4)
    assert max(scores) > 0.98 * player.mean_return


def test_more_memory_is_worth_more_and_never_as_much_as_being_told() -> None:
    shares = [
        REGIMES.share_of_told(REGIMES.filtering(REGIME_LIMIT, memory, n_grid=201).mean_return, REGIME_LIMIT)
        for memory in (0, 1, 10, None)
    ]
    assert all(less < more for less, more in pairwise(shares))
    assert_allclose(shares, [0.0, 0.135, 0.797, 0.807], atol=0.005)


def test_the_share_of_the_told_player_compares_at_equal_tails() -> None:
    told = REGIMES.told(1.1 * REGIME_LIMIT)
    assert REGIMES.share_of_told(told.mean_return, 1.1 * REGIME_LIMIT) == pytest.approx(1.0)
    assert REGIMES.share_of_told(told.mean_return, REGIME_LIMIT) > 1.05  # what exceeding the limit would have bought
    assert REGIMES.share_of_told(REGIMES.mu * 0.4, REGIME_LIMIT) == pytest.approx(0.0)


def test_equal_regimes_leave_nothing_to_be_told() -> None:
    same = replace(REGIMES, factor=1.0)
    plain = GaussianMarket(mu=same.mu, sigma=same.sigma)
    assert same.tail == pytest.approx(plain.tail)
    told = same.told(0.5 * same.tail)
    assert (told.low, told.high) == pytest.approx((0.5, 0.5), abs=1e-3)
