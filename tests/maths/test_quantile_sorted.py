"""The quantile Huber loss on sorted targets is the one with the whole table: value and gradient."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.quantile import huber_loss, tail_levels, uniform_levels
from leeward.maths.quantile_sorted import SortedTargets, sort_targets, sorted_huber_loss, with_sums

F64 = torch.float64
S, L, C, N = 2, 3, 4, 5  # rows on two axes, critics, levels: all different, and different from the targets


def on_sorted(quantiles, targets, levels, kappa):  # (..., C, N), (..., M) -> (..., C), and its gradient
    return by(sort_targets(targets, kappa=kappa), quantiles, levels, kappa)


def on_sums(quantiles, targets, levels, kappa):
    """By running sums, as on a device that is no CPU."""
    return by(with_sums(targets.sort(-1).values, squares=kappa > 0.0), quantiles, levels, kappa)


def by(prepared, quantiles, levels, kappa):
    leaf = quantiles.clone().requires_grad_()
    loss = sorted_huber_loss(leaf, prepared, levels, kappa=kappa)
    weights = torch.arange(1.0, loss.numel() + 1.0, dtype=loss.dtype).reshape(loss.shape)  # every row pulls otherwise
    return loss.detach(), torch.autograd.grad((weights * loss).sum(), leaf)[0] / weights.unsqueeze(-1)


def on_the_table(quantiles, targets, levels, kappa):  # the same by the reference
    leaf = quantiles.clone().requires_grad_()
    rows = targets.unsqueeze(-2).expand(*quantiles.shape[:-1], -1)  # (..., C, M)
    loss = huber_loss(leaf, rows, levels, kappa=kappa)
    return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]


FORMS = (on_sorted, on_sums)


def assert_equal(quantiles, targets, levels, kappa, *, atol):
    expected = on_the_table(quantiles, targets, levels, kappa)
    for form in FORMS:
        for ours, reference in zip(form(quantiles, targets, levels, kappa), expected, strict=True):
            assert_close(ours, reference, rtol=0, atol=atol)


def normal(*shape, seed=0, dtype=F64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def halves(*shape, seed=0, dtype=F64):
    """Multiples of ½, so that many are equal and some are zeros of either sign."""
    return (2.0 * normal(*shape, seed=seed, dtype=dtype)).round() / 2.0


# --- equal to the reference ------------------------------------------------------------------------------------------


def test_by_hand():
    # κ = 0. Critic 1, quantiles 0, 2: τ=.25 on 1, 3: .25, .75 -> .5. τ=.75: −1 -> .25, 1 -> .75 -> .5. Mean .5
    # Critic 2, quantiles 1, 4: τ=.25: 0, .5 -> .25. τ=.75: −3 -> .75, −1 -> .25 -> .5. Mean .375
    quantiles, targets = tensor([[0.0, 2.0], [1.0, 4.0]]), sort_targets(tensor([3.0, 1.0]), kappa=0.0)
    found = sorted_huber_loss(quantiles, targets, tensor([0.25, 0.75]), kappa=0.0)
    assert_close(found, tensor([0.5, 0.375]))


@pytest.mark.parametrize("n_targets", [1, 2, 6, 7, 8, 31, 32, 33, 128])
@pytest.mark.parametrize("kappa", [0.0, 0.1, 0.7, 1.0, 30.0])
@pytest.mark.parametrize("draw", [normal, halves], ids=["normal", "ties"])
def test_value_and_gradient_of_standardised_returns_are_those_of_the_table(n_targets, kappa, draw):
    levels, _ = tail_levels(N, 0.1, n_tail=2)
    assert_equal(draw(S, L, C, N, seed=1), draw(S, L, n_targets, seed=2), levels, kappa, atol=1e-12)


@pytest.mark.parametrize("kappa", [0.0, 0.7])
def test_where_the_numbers_lie_in_memory_does_not_matter(kappa):
    quantiles, targets, (levels, _) = normal(L, S, C, N, seed=1), normal(L, S, 7, seed=2), uniform_levels(N)
    turned = on_sorted(quantiles.transpose(0, 1), targets.transpose(0, 1), levels, kappa)
    for found, expected in zip(turned, on_sorted(quantiles, targets, levels, kappa), strict=True):
        assert_close(found, expected.transpose(0, 1), rtol=0, atol=1e-15)


near = st.floats(-4, 4) | st.integers(-8, 8).map(lambda x: x / 2)


@given(
    qs=st.lists(near, min_size=1, max_size=7),
    ts=st.lists(near, min_size=1, max_size=9),
    kappa=st.just(0.0) | st.floats(0.1, 30.0) | st.sampled_from([0.5, 1.0, 2.0]),
)
def test_they_agree_on_whatever_numbers(qs, ts, kappa):
    levels, _ = uniform_levels(len(qs))
    assert_equal(tensor([qs, qs[::-1]], dtype=F64), tensor(ts, dtype=F64), levels, kappa, atol=1e-12)


far = st.floats(-50, 50)


@given(
    qs=st.lists(far, min_size=1, max_size=7),
    ts=st.lists(far, min_size=1, max_size=9),
    kappa=st.sampled_from([1e-3, 0.01, 1.0]),
)
def test_a_small_kappa_costs_digits_in_proportion_to_the_squared_spread_over_it(qs, ts, kappa):
    # Sums of squares up to 9 · 100² are divided by 2κ M: each rounding is 2⁻⁵³ of that.
    levels, _ = uniform_levels(len(qs))
    atol = 4 * 2.0**-53 * 100.0**2 / kappa
    assert_equal(tensor([qs], dtype=F64), tensor(ts, dtype=F64), levels, kappa, atol=atol)


@pytest.mark.parametrize(
    ("kappa", "of_loss", "of_gradient"),
    # The gradient of a mean over 32 levels is at most 1/32, and errs by about 1e-7/κ of that.
    [(0.0, 1e-6, 1e-8), (1.0, 1e-6, 1e-8), (0.1, 5e-6, 1e-7), (0.01, 5e-5, 1e-6)],
)
def test_in_float32_they_agree_to_its_digits_in_the_sizes_training_uses(kappa, of_loss, of_gradient):
    levels, _ = tail_levels(32, 0.05)
    quantiles, targets = normal(96, 2, 32, seed=1, dtype=torch.float32), normal(96, 33, seed=2, dtype=torch.float32)
    exact, slope = on_the_table(quantiles.double(), targets.double(), levels.float().double(), kappa)
    for form in FORMS:
        loss, gradient = form(quantiles, targets, levels, kappa)
        assert loss.dtype == gradient.dtype == torch.float32
        assert_close(loss.double(), exact, rtol=0, atol=of_loss)
        assert_close(gradient.double(), slope, rtol=0, atol=of_gradient)


@pytest.mark.parametrize("kappa", [0.0, 0.1, 1.0])
def test_float32_keeps_its_digits_far_from_zero(kappa):
    # Returns around 1000 with spread 1: uncentred sums of squares would be 1e6 and lose the spread.
    targets, quantiles = (1000.0 + normal(5, *shape, dtype=torch.float32) for shape in ((33,), (1, 7)))
    levels, _ = uniform_levels(7)
    exact, _ = on_the_table(quantiles.double(), targets.double(), levels, kappa)
    assert_close(on_sorted(quantiles, targets, levels, kappa)[0].double(), exact, rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("n_targets", [1, 2, 3, 31, 32, 33, 128])
def test_targets_that_equal_a_quantile_are_not_below_it(n_targets, dtype):
    targets, quantiles = halves(3, 40, n_targets, seed=1, dtype=dtype), halves(3, 40, 2, 9, seed=2, dtype=dtype)
    zeros = torch.signbit(targets[targets == 0.0])
    assert bool(zeros.any()) and not bool(zeros.all())
    levels, _ = uniform_levels(9)
    below = (targets[..., None, None, :] < quantiles.unsqueeze(-1)).sum(-1)
    for form in FORMS:
        _, gradient = form(quantiles, targets, levels, 0.0)
        assert_close(gradient, ((below / n_targets - levels) / 9).to(dtype), rtol=0, atol=1e-7)


# --- at work ---------------------------------------------------------------------------------------------------------


def test_descent_on_the_loss_finds_the_quantiles_of_a_normal():
    levels, _ = tail_levels(12, 0.05, n_tail=4)
    targets = torch.from_numpy(stats.norm.ppf((np.arange(4000) + 0.5) / 4000))
    prepared = sort_targets(targets, kappa=0.01)
    q = torch.zeros(12, dtype=F64, requires_grad=True)
    optimiser = torch.optim.Adam([q], lr=0.05)
    for _ in range(600):
        optimiser.zero_grad()
        sorted_huber_loss(q[None], prepared, levels, kappa=0.01).sum().backward()
        optimiser.step()
    exact = torch.from_numpy(stats.norm.ppf(levels.numpy()))
    assert_close(q.detach(), exact, rtol=0, atol=0.05)


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_what_is_not_finite_stays_visible_in_its_own_row(poison, kappa):
    levels, _ = uniform_levels(3)
    for spoilt in ("targets", "quantiles"):
        targets, quantiles = torch.arange(10.0).reshape(2, 5), torch.zeros(2, 1, 3)
        if spoilt == "targets":
            targets[1, 2] = poison
        else:
            quantiles[1, 0, 2] = poison
        for form in FORMS:
            loss, _ = form(quantiles, targets, levels, kappa)
            assert torch.isfinite(loss.squeeze(-1)).tolist() == [True, False], (spoilt, form)


@pytest.mark.parametrize(
    ("quantiles", "targets", "n_levels", "kappa", "message"),
    [
        (torch.zeros(2, 1, 3), torch.zeros(4, 5), 3, 1.0, r"\(2, 1, 3\) and targets \(4, 5\) must agree"),
        (torch.zeros(2, 1, 3), torch.zeros(2, 5), 4, 1.0, "one entry per level, 4, got 3"),
        (torch.zeros(2, 1, 3), torch.zeros(2, 0), 3, 1.0, "targets need at least one entry"),
        (torch.zeros(2, 1, 3), torch.zeros(2, 5), 3, -1.0, "kappa must be finite and not negative, got -1.0"),
        (torch.zeros(2, 1, 3), torch.zeros(2, 5), 3, torch.nan, "kappa must be finite .* got nan"),
        (
            torch.zeros(2, 1, 3),
            torch.zeros(2, 5, dtype=F64),
            3,
            1.0,
            "float32 or both float64, got torch.float32 and torch.float64",
        ),
        (
            torch.zeros(2, 1, 3).half(),
            torch.zeros(2, 5).half(),
            3,
            1.0,
            "both be float32 or both float64, got torch.float16",
        ),
    ],
)
def test_the_loss_names_what_is_wrong(quantiles, targets, n_levels, kappa, message):
    levels, _ = uniform_levels(n_levels)
    with pytest.raises(ArgumentError, match=message):
        sorted_huber_loss(quantiles, sort_targets(targets, kappa=kappa), levels, kappa=kappa)


@pytest.mark.parametrize(
    ("ready", "message"),
    [
        (sort_targets(torch.zeros(2, 5), kappa=0.0), "and these were prepared for kappa = 0"),
        (with_sums(torch.zeros(2, 5), squares=False), "kappa > 0 needs targets with sums of squares"),
    ],
)
def test_what_was_prepared_for_the_pinball_loss_serves_it_alone(ready, message):
    levels, _ = uniform_levels(3)
    assert isinstance(ready, SortedTargets) and ready.second is None
    with pytest.raises(ArgumentError, match=message):
        sorted_huber_loss(torch.zeros(2, 1, 3), ready, levels, kappa=1.0)


def test_a_wrong_shape_is_a_shape_error():
    ready, (levels, _) = sort_targets(torch.zeros(4, 5), kappa=0.0), uniform_levels(3)
    with pytest.raises(ShapeError):
        sorted_huber_loss(torch.zeros(2, 1, 3), ready, levels, kappa=0.0)
