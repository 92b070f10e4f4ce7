"""The prediction held near the one of the rollout."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.quantile import tail_levels
from leeward.maths.value_clipping import CATEGORICAL_MODES, MODES, clip_categorical, clip_quantiles

F64 = torch.float64


def row(*numbers: float) -> torch.Tensor:
    return tensor(numbers, dtype=F64)


def test_there_are_four_modes_and_two_for_a_categorical_critic():
    assert tuple(MODES) == ("disable", "mean_only", "mean_and_variance", "per_quantile")
    assert CATEGORICAL_MODES == ("disable", "mean_only")


def test_each_mode_by_hand():
    # old: mean 2, std √(2/3) = 0.816; new: mean 6, std 4·0.816. radius 1, factor 2.
    old, new = row(1.0, 2.0, 3.0), row(2.0, 6.0, 10.0)
    held = {mode: clip_quantiles(new, old, radius=1.0, mode=mode, max_std_factor=2.0) for mode in MODES}
    assert_close(held["disable"], new)
    assert_close(held["mean_only"], row(-1.0, 3.0, 7.0))  # shifted by 3 − 6 = −3
    assert_close(held["mean_and_variance"], row(1.0, 3.0, 5.0))  # then halved around 3: 4·0.816 → 2·0.816
    assert_close(held["per_quantile"], row(2.0, 3.0, 4.0))  # each within ±1 of 1, 2, 3


def test_mean_only_keeps_the_spread_exactly_and_mean_and_variance_never_widens():
    old, narrow = row(0.0, 4.0, 8.0), row(9.9, 10.0, 10.1)
    for mode in ("mean_only", "mean_and_variance"):
        assert_close(clip_quantiles(narrow, old, radius=1.0, mode=mode), row(4.9, 5.0, 5.1))


def test_the_mean_is_the_weighted_one_of_the_grid():
    # Weights 0.1, 0.9: old mean 0, new mean 0.1·0 + 0.9·10 = 9. radius 1: shift by 1 − 9 = −8.
    held = clip_quantiles(row(0.0, 10.0), row(0.0, 0.0), radius=1.0, mode="mean_only", weights=row(0.1, 0.9))
    assert_close(held, row(-8.0, 2.0))


def moments(z, weights):
    mean = (z * weights).sum(-1)
    return mean, ((z - mean.unsqueeze(-1)).square() * weights).sum(-1).sqrt()


@given(seed=st.integers(0, 10_000), radius=st.floats(0.01, 5), factor=st.floats(1, 4))
def test_what_each_mode_promises_holds(seed, radius, factor):
    rng = np.random.default_rng(seed)
    new, old = (torch.from_numpy(rng.normal(scale=rng.uniform(0.1, 5), size=(3, 8))) for _ in range(2))
    _, weights = tail_levels(8, 0.1, n_tail=3)
    old_mean, old_std = moments(old, weights)
    _, new_std = moments(new, weights)
    mean, std = moments(clip_quantiles(new, old, radius=radius, mode="mean_only", weights=weights), weights)
    assert bool(((mean - old_mean).abs() <= radius + 1e-9).all())
    assert_close(std, new_std, rtol=1e-9, atol=1e-9)
    mean, std = moments(
        clip_quantiles(new, old, radius=radius, mode="mean_and_variance", max_std_factor=factor, weights=weights),
        weights,
    )
    assert bool(((mean - old_mean).abs() <= radius + 1e-9).all())
    assert bool((std <= factor * old_std + 1e-9).all())
    assert bool((std <= new_std + 1e-9).all())
    each = clip_quantiles(new, old, radius=radius, mode="per_quantile")
    assert bool(((each - old).abs() <= radius + 1e-9).all())


@pytest.mark.parametrize("mode", list(MODES))
def test_a_prediction_within_reach_is_left_alone(mode):
    old = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 7)))
    new = old + 0.01
    assert_close(clip_quantiles(new, old, radius=0.5, mode=mode), new, rtol=0, atol=1e-12)


def gradient(mode, direction):
    """Gradient of Σ direction · held, where the mean (by 10) and the spread (four times) are both out of reach."""
    old = row(-1.0, 0.0, 1.0)
    new = row(6.0, 10.0, 14.0).requires_grad_()
    (clip_quantiles(new, old, radius=1.0, mode=mode) * direction).sum().backward()
    return new.grad


def test_where_it_acts_the_held_moments_have_no_gradient():
    up, wider = torch.ones(3, dtype=F64), row(-1.0, 0.0, 1.0)
    zero = torch.zeros(3, dtype=F64)
    assert_close(gradient("disable", up), up)
    assert_close(gradient("mean_only", up), zero)  # the mean is held ...
    assert_close(gradient("mean_only", wider), wider)  # ... the spread learns
    assert_close(gradient("mean_and_variance", up), zero)
    assert_close(gradient("mean_and_variance", wider), zero, rtol=0, atol=1e-12)
    assert float(gradient("mean_and_variance", row(1.0, -2.0, 1.0)).abs().max()) > 0.1  # the shape learns
    assert_close(gradient("per_quantile", up), zero)


def test_a_point_mass_has_a_finite_gradient():
    old = tensor([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]])
    new = torch.ones(2, 3, requires_grad=True)
    clip_quantiles(new, old, radius=0.1, mode="mean_and_variance").sum().backward()
    assert_close(new.grad, torch.ones(2, 3))


SUPPORT = torch.linspace(-4.0, 4.0, 9, dtype=F64)


def test_a_categorical_prediction_is_shifted_and_projected():
    # old at 0, new at 3, radius 1: the mean goes to 1. A second row within reach keeps its exact probabilities.
    old, new = torch.zeros(2, 9, dtype=F64), torch.zeros(2, 9, dtype=F64)
    old[:, 4] = new[0, 7] = 1.0
    new[1, 4], new[1, 5] = 0.3, 0.7
    held = clip_categorical(new, old, SUPPORT, radius=1.0, mode="mean_only")
    assert_close((held * SUPPORT).sum(-1), row(1.0, 0.7))
    assert torch.equal(held[1], new[1])
    assert torch.equal(clip_categorical(new, old, SUPPORT, radius=1.0, mode="disable"), new)


@given(seed=st.integers(0, 10_000), radius=st.floats(0.01, 2.0), shift=st.floats(-9.0, 9.0))
def test_a_categorical_mean_stays_within_the_radius_at_the_ends_of_the_support_too(seed, radius, shift):
    rng = np.random.default_rng(seed)
    old, new = (torch.from_numpy(rng.normal(scale=3.0, size=(6, 9))).softmax(-1) for _ in range(2))
    new = (new.log() + shift * torch.linspace(-1.0, 1.0, 9, dtype=F64)).softmax(-1)
    held = clip_categorical(new, old, SUPPORT, radius=radius, mode="mean_only")
    moved = ((held - old) * SUPPORT).sum(-1).abs()
    assert bool((moved <= radius * (1.0 + 1e-9)).all())
    assert bool((held >= -1e-12).all())
    assert_close(held.sum(-1), torch.ones(6, dtype=F64))


def test_a_categorical_prediction_that_is_not_finite_stays_visible():
    old = torch.full((2, 9), 1 / 9, dtype=F64)
    new = old.clone()
    new[1] = torch.nan
    held = clip_categorical(new, old, SUPPORT, radius=1.0, mode="mean_only")
    assert torch.isfinite(held).all(-1).tolist() == [True, False]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"old": torch.zeros(3, 4)}, r"old must have the shape of new, \(2, 3\), got \(3, 4\)"),
        ({"mode": "mean_onyl"}, "unknown value clip 'mean_onyl'; did you mean 'mean_only'?"),
        ({"radius": 0.0}, "radius must be positive and finite, got 0.0"),
        ({"radius": float("nan")}, "radius must be positive and finite, got nan"),
        ({"max_std_factor": 0.5}, "max_std_factor must be at least 1 .* got 0.5"),
        ({"weights": torch.ones(2) / 2}, r"weights need one entry per quantile, \(3,\), got \(2,\)"),
    ],
)
def test_value_clipping_names_what_is_wrong(change, message):
    call = {"new": torch.zeros(2, 3), "old": torch.zeros(2, 3), "radius": 1.0, "mode": "mean_only"} | change
    with pytest.raises(ArgumentError, match=message):
        clip_quantiles(call.pop("new"), call.pop("old"), **call)


@pytest.mark.parametrize("mode", ["mean_and_variance", "per_quantile"])
def test_a_categorical_critic_has_no_quantiles_to_clip(mode):
    probs = torch.full((2, 9), 1 / 9, dtype=F64)
    with pytest.raises(ArgumentError, match=f"'{mode}' does not exist for a categorical critic"):
        clip_categorical(probs, probs, SUPPORT, radius=1.0, mode=mode)
