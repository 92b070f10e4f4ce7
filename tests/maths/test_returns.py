"""Advantages, λ-returns and distributional targets along a rollout."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.testing import assert_close

from leeward.errors import ArgumentError, ShapeError
from leeward.maths import cvar
from leeward.maths.quantile import tail_levels, uniform_levels
from leeward.maths.returns import distributional_targets, gae, lambda_returns

F64 = torch.float64


def column(*numbers: float) -> torch.Tensor:  # (T, 1)
    return torch.tensor(numbers, dtype=F64).unsqueeze(-1)


def flags(*marks: int) -> torch.Tensor:  # (T, 1) bool
    return torch.tensor(marks, dtype=torch.bool).unsqueeze(-1)


def random_rollout(seed: int):
    """A rollout of random size with terminations and truncations: rewards, values, next values, terminated, ended."""
    rng = np.random.default_rng(seed)
    T, B = int(rng.integers(1, 13)), int(rng.integers(1, 6))
    terminated = rng.random((T, B)) < 0.2
    truncated = rng.random((T, B)) < 0.2
    numbers = [torch.from_numpy(rng.normal(size=(T, B)) * 3.0) for _ in range(3)]
    return *numbers, torch.from_numpy(terminated), torch.from_numpy(terminated | truncated)


# --- gae -------------------------------------------------------------------------------------------------------------


def test_gae_of_three_steps_by_hand():
    # γ = 0.5, λ = 0.5, so the carry is 0.25. No end inside; the last row bootstraps.
    # δ₂ = 3 + 0.5·8 − 1 = 6          Â₂ = 6
    # δ₁ = 2 + 0.5·1 − 2 = 0.5        Â₁ = 0.5 + 0.25·6 = 2
    # δ₀ = 1 + 0.5·2 − 4 = −2         Â₀ = −2 + 0.25·2 = −1.5
    never = flags(0, 0, 0)
    result = gae(column(1, 2, 3), column(4, 2, 1), column(2, 1, 8), never, never, gamma=0.5, lam=0.5)
    assert_close(result, column(-1.5, 2.0, 6.0))


def test_gae_does_not_leak_across_a_truncation():
    # Step 0 is truncated: it bootstraps (0.5·6 = 3) but takes nothing of step 1, which belongs to another episode.
    # δ₀ = 1 + 3 − 2 = 2 = Â₀         δ₁ = 100 + 0.5·4 − 1 = 101 = Â₁
    result = gae(column(1, 100), column(2, 1), column(6, 4), flags(0, 0), flags(1, 0), gamma=0.5, lam=1.0)
    assert_close(result, column(2.0, 101.0))


def test_gae_does_not_bootstrap_a_terminated_step():
    # δ₀ = 1 + 0 − 2 = −1, whatever value the successor was given.
    result = gae(column(1, 100), column(2, 1), column(1e6, 4), flags(1, 0), flags(1, 0), gamma=0.5, lam=1.0)
    assert_close(result, column(-1.0, 101.0))


def brute_force_gae(rewards, values, next_values, terminated, ended, gamma, lam):
    """Â_t = Σ_k (γλ)^k δ_{t+k}, summed forward and stopped after the first end; plain numpy."""
    T, B = rewards.shape
    deltas = rewards + gamma * np.where(terminated, 0.0, next_values) - values
    advantages = np.zeros((T, B))
    for t in range(T):
        for b in range(B):
            for k in range(T - t):
                advantages[t, b] += (gamma * lam) ** k * deltas[t + k, b]
                if ended[t + k, b]:
                    break
    return advantages


def test_gae_equals_the_sum_over_the_rest_of_the_episode_in_200_random_rollouts():
    worst = 0.0
    for seed in range(200):
        rollout = random_rollout(seed)
        gamma, lam = np.random.default_rng(1000 + seed).random(2)
        expected = brute_force_gae(*(part.numpy() for part in rollout), gamma, lam)
        worst = max(worst, float(np.abs(gae(*rollout, gamma=gamma, lam=lam).numpy() - expected).max()))
    assert worst <= 1e-10


def test_endless_reward_of_one_is_worth_one_over_one_minus_gamma():
    # With the right value 1/(1 − 0.9) = 10 everywhere, 1 + 0.9·10 − 10 = 0: no step is better than expected, whether
    # the rollout is cut by time limits or not.
    T, B = 7, 3
    ones, tens = torch.ones(T, B, dtype=F64), torch.full((T, B), 10.0, dtype=F64)
    never = torch.zeros(T, B, dtype=torch.bool)
    cut = never.clone()
    cut[2, 0] = cut[4, 1] = True
    for ended in (never, cut):
        assert_close(gae(ones, tens, tens, never, ended, gamma=0.9, lam=0.95), torch.zeros(T, B, dtype=F64))


def test_gae_in_float32_stays_float32_and_near_float64():
    rollout = random_rollout(5)
    exact = gae(*rollout, gamma=0.99, lam=0.95)
    single = gae(*(part.float() if part.is_floating_point() else part for part in rollout), gamma=0.99, lam=0.95)
    assert single.dtype == torch.float32
    assert_close(single.double(), exact, rtol=0, atol=1e-4)


@given(seed=st.integers(0, 10_000), gamma=st.floats(0, 1), lam=st.floats(0, 1))
def test_advantage_plus_value_is_the_lambda_return(seed, gamma, lam):
    rewards, values, next_values, terminated, ended = random_rollout(seed)
    # True only where the bootstrap of a step that goes on is the value of the next row.
    next_values = torch.where(ended, next_values, torch.cat([values[1:], next_values[-1:]]))
    advantages = gae(rewards, values, next_values, terminated, ended, gamma=gamma, lam=lam)
    returns = lambda_returns(rewards, next_values, terminated, ended, gamma=gamma, lam=lam)
    assert_close(advantages + values, returns, rtol=0, atol=1e-9)


def test_lambda_return_by_hand():
    # γ = 0.5, λ = 0.5. G₁ = 4 + 0.5·6 = 7 (last row: the bootstrap). G₀ = 1 + 0.5·(0.5·2 + 0.5·7) = 3.25
    never = flags(0, 0)
    assert_close(lambda_returns(column(1, 4), column(2, 6), never, never, gamma=0.5, lam=0.5), column(3.25, 7.0))


# --- distributional targets ------------------------------------------------------------------------------------------


def sampled(rewards, next_quantiles, weights, terminated, ended, *, gamma, lam, n_samples, seed=0, levels=None):
    generator = torch.Generator().manual_seed(seed)
    return distributional_targets(
        rewards,
        next_quantiles,
        levels,
        weights,
        terminated,
        ended,
        gamma=gamma,
        lam=lam,
        n_samples=n_samples,
        generator=generator,
    )


def test_with_lambda_zero_each_target_is_reward_plus_discounted_quantile():
    # T=1, B=2, N=4 equal weights, M=4 systematic draws: each quantile is drawn exactly once.
    rewards = torch.tensor([[1.0, 2.0]], dtype=F64)
    quantiles = torch.tensor([[[0.0, 2.0, 4.0, 6.0], [-2.0, 0.0, 2.0, 8.0]]], dtype=F64)
    _, weights = uniform_levels(4)
    never = torch.zeros(1, 2, dtype=torch.bool)
    result = sampled(rewards, quantiles, weights, never, never, gamma=0.5, lam=0.0, n_samples=4)
    assert_close(result, torch.tensor([[[1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 6.0]]], dtype=F64))


def test_a_terminated_step_is_worth_its_reward_and_a_truncated_one_ends_in_its_own_distribution():
    # Rows: 0 terminated, 1 truncated, 2 the last. λ = 1, γ = 0.5, next distributions are points at 100, 6, 8.
    # G₀ = 1 (nothing after a termination); G₁ = 2 + 0.5·6 = 5; G₂ = 3 + 0.5·8 = 7
    quantiles = torch.tensor([100.0, 6.0, 8.0], dtype=F64).reshape(3, 1, 1).expand(3, 1, 2)
    weights = torch.tensor([0.5, 0.5], dtype=F64)
    result = sampled(
        column(1, 2, 3), quantiles, weights, flags(1, 0, 0), flags(1, 1, 0), gamma=0.5, lam=1.0, n_samples=5
    )
    assert_close(result, column(1.0, 5.0, 7.0).unsqueeze(-1).expand(3, 1, 5))


def test_with_lambda_one_every_sample_follows_the_trajectory_to_the_last_row():
    # G₂ = 4 + 0.5·{0, 8} = {4, 8};  G₁ = 2 + 0.5 G₂ = {4, 6};  G₀ = 1 + 0.5 G₁ = {3, 4}
    quantiles = torch.tensor([[99.0, 99.0], [77.0, 77.0], [0.0, 8.0]], dtype=F64).unsqueeze(1)
    never = flags(0, 0, 0)
    weights = torch.tensor([0.5, 0.5], dtype=F64)
    result = sampled(column(1, 2, 4), quantiles, weights, never, never, gamma=0.5, lam=1.0, n_samples=2)
    assert_close(result[:, 0], torch.tensor([[3.0, 4.0], [4.0, 6.0], [4.0, 8.0]], dtype=F64))


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.9, 1.0])
def test_the_mean_over_samples_is_the_lambda_return(lam):
    T, B, N, M = 5, 3, 7, 20_000
    rewards = torch.from_numpy(np.random.default_rng(3).normal(size=(T, B)))
    quantiles = torch.from_numpy(np.random.default_rng(4).normal(size=(T, B, N)))
    weights = torch.from_numpy(np.random.default_rng(5).dirichlet(np.ones(N)))
    terminated, ended = torch.zeros(T, B, dtype=torch.bool), torch.zeros(T, B, dtype=torch.bool)
    terminated[1, 0] = ended[1, 0] = ended[2, 1] = True
    result = sampled(rewards, quantiles, weights, terminated, ended, gamma=0.9, lam=lam, n_samples=M)
    expected = lambda_returns(rewards, (quantiles * weights).sum(-1), terminated, ended, gamma=0.9, lam=lam)
    # The spread of a sample is about 1.5, so that of a mean of 20,000 is about 0.011.
    assert_close(result.mean(-1), expected, rtol=0, atol=0.045)


GAMMA, DEPTH, N_ENVS = 0.9, 3, 2**19
RETURN_MEAN, RETURN_STD = 1.0 / (1.0 - GAMMA), (1.0 - GAMMA**2) ** -0.5
# CVaR of a normal: mean − std · φ(Φ⁻¹(α))/α
RETURN_CVAR = RETURN_MEAN - RETURN_STD * stats.norm.pdf(stats.norm.ppf(0.05)) / 0.05


def gaussian_targets(values, weights, levels, lam):
    """Targets of the first row, one per env, where rewards are i.i.d. N(1, 1) and the successor's return is known."""
    generator = torch.Generator().manual_seed(1)
    rewards = 1.0 + torch.randn(DEPTH, N_ENVS, generator=generator, dtype=F64)
    never = torch.zeros(DEPTH, N_ENVS, dtype=torch.bool)
    return sampled(rewards, values, weights, never, never, gamma=GAMMA, lam=lam, n_samples=1, levels=levels)[0, :, 0]


def test_iid_gaussian_rewards_have_the_closed_form_return_at_every_lambda():
    # Return N(10, 1/(1 − 0.81)): std 2.294. The sampling error of the mean is 0.14 %, of the CVaR 0.3 % of a std.
    levels, weights = tail_levels(32, 0.05)
    quantiles = torch.from_numpy(stats.norm.ppf(levels.numpy(), RETURN_MEAN, RETURN_STD))
    support = torch.linspace(RETURN_MEAN - 6 * RETURN_STD, RETURN_MEAN + 6 * RETURN_STD, 201, dtype=F64)
    density = torch.from_numpy(stats.norm.pdf(support.numpy(), RETURN_MEAN, RETURN_STD))
    grids = {"32 tail levels": (quantiles, weights, levels), "201 atoms": (support, density / density.sum(), None)}
    for name, grid in grids.items():
        for lam in (0.0, 0.5, 0.95, 1.0):
            samples = gaussian_targets(*grid, lam)
            mean_error = abs(float(samples.mean()) - RETURN_MEAN) / RETURN_STD
            cvar_error = abs(float(cvar.from_samples(samples, 0.05)) - RETURN_CVAR) / RETURN_STD
            assert mean_error < 0.01, (name, lam, mean_error)
            assert cvar_error < 0.01, (name, lam, cvar_error)


def test_uniform_levels_make_the_tail_about_six_percent_of_a_std_too_mild():
    levels, weights = uniform_levels(32)
    quantiles = torch.from_numpy(stats.norm.ppf(levels.numpy(), RETURN_MEAN, RETURN_STD))
    samples = gaussian_targets(quantiles, weights, levels, 0.0)
    too_mild = (float(cvar.from_samples(samples, 0.05)) - RETURN_CVAR) / RETURN_STD
    assert 0.04 < too_mild < 0.08


def test_regressing_on_the_mean_would_lose_most_of_the_spread():
    # The scalar λ-return with λ = 0 is r + 0.9·10: its std is that of one reward, 1, not the return's 2.294.
    levels, weights = tail_levels(32, 0.05)
    quantiles = torch.from_numpy(stats.norm.ppf(levels.numpy(), RETURN_MEAN, RETURN_STD))
    distributional = gaussian_targets(quantiles, weights, levels, 0.0)
    scalar = gaussian_targets((quantiles * weights).sum().reshape(1), torch.ones(1, dtype=F64), None, 0.0)
    assert float(distributional.std()) == pytest.approx(RETURN_STD, rel=0.02)
    assert float(scalar.std()) == pytest.approx(1.0, rel=0.02)


def test_draws_follow_weights_that_differ_from_row_to_row():
    # Row 0 puts 3/4 on its second value, row 1 puts 3/4 on its first. With 4 systematic draws that is 3 of 4.
    weights = torch.tensor([[[0.25, 0.75]], [[0.75, 0.25]]], dtype=F64)  # (2, 1, 2)
    support = torch.tensor([0.0, 1.0], dtype=F64)
    result = sampled(column(0, 0), support, weights, flags(0, 0), flags(1, 1), gamma=1.0, lam=1.0, n_samples=4)
    assert_close(result.sum(-1), column(3.0, 1.0))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_value_of_weight_zero_is_never_drawn(dtype):
    # Rounding may leave weights that sum to a little less than 1; what is missing belongs to none of the zeros. Here it
    # is 5e-5, so that among 20,000 × 7 systematic points about 7 lie beyond the sum.
    T, B, M = 1, 20_000, 7
    support = torch.tensor([0.0, 1.0, 1e9], dtype=dtype)
    weights = torch.tensor([0.0, 0.99995, 0.0], dtype=dtype)
    never = torch.zeros(T, B, dtype=torch.bool)
    result = sampled(torch.zeros(T, B, dtype=dtype), support, weights, never, never, gamma=1.0, lam=0.0, n_samples=M)
    assert float(result.min()) == float(result.max()) == 1.0


def test_draws_come_from_the_generator_alone():
    grid = torch.linspace(-1, 1, 6, dtype=F64)
    weights = torch.full((6,), 1 / 6, dtype=F64)
    never = torch.zeros(2, 3, dtype=torch.bool)

    def once(seed):
        return sampled(
            torch.zeros(2, 3, dtype=F64), grid, weights, never, never, gamma=1, lam=0.5, n_samples=4, seed=seed
        )

    torch.manual_seed(1)
    first = once(7)
    torch.manual_seed(2)
    assert torch.equal(first, once(7))
    assert not torch.equal(first, once(8))


# --- bad input -------------------------------------------------------------------------------------------------------


def arguments(T=3, B=2):
    numbers = [torch.zeros(T, B) for _ in range(3)]
    return [*numbers, torch.zeros(T, B, dtype=torch.bool), torch.zeros(T, B, dtype=torch.bool)]


@pytest.mark.parametrize(
    ("position", "value", "message"),
    [
        (1, torch.zeros(2, 3), r"values must have the shape of rewards, \(3, 2\), got \(2, 3\)"),
        (2, torch.zeros(3, 1), r"next_values must have the shape of rewards, \(3, 2\), got \(3, 1\)"),
        (4, torch.zeros(3, 3, dtype=torch.bool), r"ended must have the shape of rewards, \(3, 2\), got \(3, 3\)"),
        (0, torch.full((3, 2), torch.nan), r"rewards must be finite, got 6 NaN and 0 infinite values, the first at"),
        (2, torch.full((3, 2), torch.inf), r"next_values must be finite, got 0 NaN and 6 infinite values"),
        (3, torch.zeros(3, 2), r"terminated and ended must be bool, got torch.float32 and torch.bool"),
        (3, torch.ones(3, 2, dtype=torch.bool), r"a terminated step must also be ended"),
        (0, torch.zeros(3, 2, dtype=torch.int64), r"rewards must be floating point, got torch.int64"),
    ],
)
def test_gae_names_what_is_wrong(position, value, message):
    broken = arguments()
    broken[position] = value
    with pytest.raises(ArgumentError, match=message):
        gae(*broken, gamma=0.9, lam=0.9)


@pytest.mark.parametrize(("gamma", "lam", "message"), [(1.1, 0.5, "gamma .* got 1.1"), (0.5, -0.1, "lam .* got -0.1")])
def test_discount_and_lambda_must_lie_in_the_unit_interval(gamma, lam, message):
    with pytest.raises(ArgumentError, match=message):
        gae(*arguments(), gamma=gamma, lam=lam)


@pytest.mark.parametrize("shape", [(0, 2), (4,), (2, 3, 4)])
def test_a_rollout_has_two_axes_and_at_least_one_step(shape):
    numbers, marks = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    with pytest.raises(ShapeError, match=r"rewards must be \(T, B\) with at least one step"):
        gae(numbers, numbers, numbers, marks, marks, gamma=0.9, lam=0.9)
    with pytest.raises(ShapeError, match=r"rewards must be \(T, B\) with at least one step"):
        lambda_returns(numbers, numbers, marks, marks, gamma=0.9, lam=0.9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"next_quantiles": torch.zeros(3, 4)},
            r"next_quantiles must be \(N,\) or \(T, B, N\) = \(3, 2, 4\), got \(3, 4\)",
        ),
        ({"next_quantiles": torch.full((4,), torch.nan)}, "next_quantiles must be finite, got 4 NaN"),
        ({"next_quantiles": torch.zeros(3, 2, 0)}, "next_quantiles need at least one entry along the last axis"),
        ({"weights": torch.full((4,), 0.3)}, "weights must sum to 1 along the last axis, got sums 1.2"),
        ({"weights": torch.tensor([-0.5, 0.5, 0.5, 0.5])}, "weights must not be negative, got -0.5"),
        (
            {"levels": torch.tensor([0.1, 0.5, 0.4, 0.9])},
            "levels must rise strictly, got 0.5.* before 0.4.* at index 1",
        ),
        (
            {"levels": torch.tensor([0.1, 0.4, 0.4, 0.9])},
            "levels must rise strictly, got 0.4.* before 0.4.* at index 1",
        ),
        ({"levels": torch.tensor([0.1, 0.5])}, "levels must have one entry per quantile, 4, got 2"),
        ({"n_samples": 0}, "n_samples must be at least 1, got 0"),
    ],
)
def test_distributional_targets_name_what_is_wrong(change, message):
    marks = torch.zeros(3, 2, dtype=torch.bool)
    call = {
        "rewards": torch.zeros(3, 2),
        "next_quantiles": torch.zeros(3, 2, 4),
        "levels": torch.tensor([0.2, 0.4, 0.6, 0.8]),
        "weights": torch.full((4,), 0.25),
        "terminated": marks,
        "ended": marks,
        "gamma": 0.9,
        "lam": 0.9,
        "n_samples": 5,
        "generator": torch.Generator(),
    }
    with pytest.raises(ArgumentError, match=message):
        distributional_targets(**(call | change))
