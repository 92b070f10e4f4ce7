"""Gauss nodes and weights by the eigenvalues of the Jacobi matrix (Golub & Welsch 1969)."""

import math
from functools import cache

import torch
from torch import Tensor

from leeward.errors import ArgumentError

__all__ = ["gauss_hermite", "gauss_legendre"]


def gauss_legendre(n: int, low: float, high: float) -> tuple[Tensor, Tensor]:  # -> (n,), (n,) float64
    """Nodes x and weights w in (low, high): Σ w f(x) = ∫ f for polynomials up to degree 2n − 1."""
    if not low < high:
        raise ArgumentError(f"a quadrature needs low < high, got {low} and {high}")
    _check_count(n)
    k = torch.arange(1, n, dtype=torch.float64)
    nodes, vectors = _golub_welsch(k / (4.0 * k.square() - 1.0).sqrt())
    half = 0.5 * (high - low)
    return low + half * (nodes + 1.0), (high - low) * vectors


def gauss_hermite(n: int) -> tuple[Tensor, Tensor]:  # -> (n,), (n,) float64
    """Nodes x and weights w with Σ w f(x) = E f(X), X standard normal, for polynomials up to degree 2n − 1."""
    _check_count(n)
    nodes, weights = _standard_normal(n)
    return nodes.clone(), weights.clone()


@cache
def _standard_normal(n: int) -> tuple[Tensor, Tensor]:
    return _golub_welsch(torch.arange(1, n, dtype=torch.float64).sqrt())


def _golub_welsch(off_diagonal: Tensor) -> tuple[Tensor, Tensor]:
    jacobi = torch.diag(off_diagonal, 1) + torch.diag(off_diagonal, -1)
    nodes, vectors = torch.linalg.eigh(jacobi)
    weights = vectors[0].square()
    assert math.isclose(float(weights.sum()), 1.0, rel_tol=1e-9)
    return nodes, weights


def _check_count(n: int) -> None:
    if n < 1:
        raise ArgumentError(f"a quadrature needs at least one node, got {n}")
