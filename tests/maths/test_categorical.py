"""Distributions on a fixed support."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.categorical import cross_entropy, outside_fraction, project, quantile

F64 = torch.float64
SUPPORT = torch.linspace(-2.0, 2.0, 5, dtype=F64)  # −2, −1, 0, 1, 2


def test_mass_goes_to_the_two_neighbouring_atoms():
    # 0.25 lies a quarter of the way from 0 to 1: 3/4 of its mass stays at 0. −1 is an atom and keeps all of its own.
    probs = project(tensor([0.25, -1.0], dtype=F64), tensor([0.4, 0.6], dtype=F64), SUPPORT)
    assert_close(probs, tensor([0.0, 0.6, 0.3, 0.1, 0.0], dtype=F64))


def test_values_outside_the_support_count_at_its_nearest_end():
    values = tensor([[-9.0, 0.0, 7.0]], dtype=F64)
    probs = project(values, tensor([0.2, 0.3, 0.5], dtype=F64), SUPPORT)
    assert_close(probs, tensor([[0.2, 0.0, 0.3, 0.0, 0.5]], dtype=F64))
    assert float(outside_fraction(values, SUPPORT)) == pytest.approx(2 / 3)


def test_one_set_of_values_serves_rows_of_probabilities():
    probs = torch.from_numpy(np.random.default_rng(0).dirichlet(np.ones(3), size=(4, 2)))  # (4, 2, 3)
    values = tensor([-0.5, 0.1, 1.9], dtype=F64)
    together = project(values, probs, SUPPORT)
    assert together.shape == (4, 2, 5)
    assert_close(together[3, 1], project(values, probs[3, 1], SUPPORT))


@given(seed=st.integers(0, 10_000), m=st.integers(1, 9))
def test_projection_keeps_the_mass_and_inside_the_support_the_mean(seed, m):
    rng = np.random.default_rng(seed)
    values, probs = torch.from_numpy(rng.uniform(-2, 2, m)), torch.from_numpy(rng.dirichlet(np.ones(m)))
    result = project(values, probs, SUPPORT)
    assert float(result.min()) >= 0.0
    assert float(result.sum()) == pytest.approx(1.0)
    assert float((result * SUPPORT).sum()) == pytest.approx(float((values * probs).sum()), abs=1e-9)


def test_projection_equals_the_triangle_sum_of_the_paper():
    rng = np.random.default_rng(1)
    values, probs = torch.from_numpy(rng.uniform(-4, 4, (3, 6))), torch.from_numpy(rng.dirichlet(np.ones(6), size=3))
    triangle = (1.0 - (values.clamp(-2, 2).unsqueeze(-1) - SUPPORT).abs() / 1.0).clamp(min=0.0)  # (3, 6, 5)
    assert_close(project(values, probs, SUPPORT), (probs.unsqueeze(-1) * triangle).sum(-2))


def test_cross_entropy_by_hand():
    # softmax(0, ln 3) = ¼, ¾. Target ½, ½: −½ ln ¼ − ½ ln ¾ = 0.836988; divided by ln 2: 1.207519
    loss = cross_entropy(tensor([0.0, math.log(3.0)], dtype=F64), tensor([0.5, 0.5], dtype=F64))
    assert float(loss) == pytest.approx(1.207519, abs=1e-6)


@pytest.mark.parametrize("atoms", [2, 7, 51])
def test_a_uniform_prediction_scores_one(atoms):
    targets = torch.from_numpy(np.random.default_rng(atoms).dirichlet(np.ones(atoms), size=3))
    assert_close(cross_entropy(torch.zeros(3, atoms, dtype=F64), targets), torch.ones(3, dtype=F64))


def test_a_single_atom_scores_zero_and_nothing_is_divided_by_ln_one():
    assert float(cross_entropy(tensor([3.0]), tensor([1.0]))) == 0.0


@given(seed=st.integers(0, 10_000))
def test_no_prediction_scores_better_than_the_target_itself(seed):
    rng = np.random.default_rng(seed)
    target, other = torch.from_numpy(rng.dirichlet(np.ones(6), size=2)).clamp(min=1e-9)
    assert float(cross_entropy(other.log(), target)) >= float(cross_entropy(target.log(), target)) - 1e-9


def test_the_gradient_of_the_cross_entropy_is_prediction_minus_target():
    # d/dlogit (−Σ p ln softmax) = softmax − p, divided by ln 4.
    logits = tensor([0.3, -0.2, 0.9, 0.0], dtype=F64, requires_grad=True)
    target = tensor([0.1, 0.2, 0.3, 0.4], dtype=F64)
    cross_entropy(logits, target).backward()
    assert_close(logits.grad, (logits.detach().softmax(-1) - target) / math.log(4.0))


def test_the_quantile_is_the_first_atom_that_reaches_the_level():
    # Cumulated: 0.1, 0.3, 0.6, 0.6, 1.
    probs = tensor([[0.1, 0.2, 0.3, 0.0, 0.4]], dtype=F64)
    found = [float(quantile(probs, SUPPORT, tau)) for tau in (0.05, 0.1, 0.11, 0.6, 0.61, 0.99)]
    assert found == [-2.0, -2.0, -1.0, 0.0, 2.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_level_met_exactly_is_not_pushed_to_the_next_atom_by_rounding(dtype):
    # 0.7 in float32 is 0.699999988.
    assert float(quantile(tensor([0.7, 0.3], dtype=dtype), tensor([-1.0, 1.0], dtype=dtype), 0.7)) == -1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: project(torch.zeros(3), torch.ones(2) / 2, SUPPORT), "probs need one entry per value, 3, got 2"),
        (lambda: project(tensor([torch.nan]), torch.ones(1), SUPPORT), "values must be finite, got 1 NaN"),
        (lambda: project(torch.zeros(1), tensor([torch.inf]), SUPPORT), "probs must be finite, got 0 NaN and 1 inf"),
        (lambda: project(torch.zeros(1), torch.ones(1), torch.zeros(1)), r"at least two atoms, got shape \(1,\)"),
        (lambda: project(torch.zeros(1), torch.ones(1), tensor([0.0, 1.0, 3.0])), "support must rise in even steps"),
        (lambda: project(torch.zeros(1), torch.ones(1), tensor([1.0, 0.0])), "support must rise in even steps"),
        (lambda: project(torch.zeros(1), torch.ones(1), tensor([0.0, 1.0, torch.inf])), "support must be finite"),
        (lambda: cross_entropy(torch.zeros(2, 3), torch.zeros(3, 2)), r"shape of logits, \(2, 3\), got \(3, 2\)"),
        (lambda: quantile(torch.ones(5) / 5, SUPPORT, 0.0), r"tau is a level inside \(0, 1\), got 0.0"),
        (lambda: quantile(torch.ones(4) / 4, SUPPORT, 0.5), "probs need one entry per atom, 5, got 4"),
        (lambda: quantile(torch.ones(5), SUPPORT, 0.5), "weights must sum to 1"),
    ],
)
def test_categorical_names_what_is_wrong(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
