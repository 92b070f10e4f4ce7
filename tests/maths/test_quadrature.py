"""Gauss nodes and weights."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.quadrature import gauss_hermite, gauss_legendre


@pytest.mark.parametrize("n", [1, 2, 8, 24, 64])
def test_legendre_nodes_are_those_of_numpy_on_any_interval(n):
    nodes, weights = np.polynomial.legendre.leggauss(n)
    found = gauss_legendre(n, 0.05, 1.0)
    assert_close(found[0], torch.from_numpy(0.05 + 0.475 * (nodes + 1)), rtol=0, atol=1e-12)
    assert_close(found[1], torch.from_numpy(0.475 * weights), rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 16, 32])
def test_hermite_nodes_are_those_of_numpy_for_a_standard_normal(n):
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    found = gauss_hermite(n)
    assert_close(found[0], torch.from_numpy(nodes), rtol=0, atol=1e-10)
    assert_close(found[1], torch.from_numpy(weights / weights.sum()), rtol=0, atol=1e-12)


def test_polynomials_up_to_twice_the_nodes_minus_one_are_exact():
    # Three nodes: ∫₀¹ x⁵ = 1/6 and E X⁴ = 3.
    x, w = gauss_legendre(3, 0.0, 1.0)
    assert float((w * x**5).sum()) == pytest.approx(1 / 6)
    x, w = gauss_hermite(3)
    assert float((w * x**4).sum()) == pytest.approx(3.0)


def test_the_caller_owns_the_nodes_it_is_given():
    gauss_hermite(4)[1].zero_()
    assert float(gauss_hermite(4)[1].sum()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gauss_legendre(0, 0.0, 1.0), "at least one node, got 0"),
        (lambda: gauss_hermite(0), "at least one node, got 0"),
        (lambda: gauss_legendre(3, 1.0, 1.0), "low < high, got 1.0 and 1.0"),
    ],
)
def test_impossible_quadratures_are_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
