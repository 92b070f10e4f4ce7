"""Value heads, and the one type in which a return distribution leaves the network."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leeward.errors import ArgumentError, did_you_mean
from leeward.maths import categorical, cvar, quantile

__all__ = [
    "CRITICS",
    "CategoricalCritic",
    "Critic",
    "QuantileCritic",
    "ScalarCritic",
    "ValueDistribution",
    "make_critic",
]


CRITICS = ("quantile", "categorical", "scalar")
LEVELS = ("tail", "uniform")


@dataclass(frozen=True)
class ValueDistribution:
    """A distribution of returns: `values[..., i]` has probability `weights[i]`. In units of the return.

    Quantile critics: `values` are the quantiles at `levels`, `weights` the widths of their steps (N,).
    Categorical critics: `values` is the support (N,), `weights` the probabilities (..., N), `levels` None.
    """

    values: Tensor  # (..., N) or (N,)
    weights: Tensor  # (N,) or (..., N)
    levels: Tensor | None  # (N,) or None

    @property
    def mean(self) -> Tensor:  # (...)
        return (self.values * self.weights).sum(-1)

    def var(self, alpha: float) -> Tensor:  # (...)
        """The α-quantile: value at risk of the lower tail."""
        if self.levels is None:
            return categorical.quantile(self.weights, self.values, alpha)
        return quantile.at_level(self.values, self.levels, alpha)

    def cvar(self, alpha: float) -> Tensor:  # (...)
        """The mean of the worst α."""
        if self.levels is None:
            return cvar.from_atoms(self.weights, self.values, alpha)
        return cvar.from_quantiles(self.values, alpha, levels=self.levels, weights=self.weights)

    def at(self, levels: Tensor) -> Tensor:  # (N',) -> (..., N')
        """Quantiles at the given levels, sorted."""
        if self.levels is not None and torch.equal(levels, self.levels):
            return self.values.sort(-1).values
        return torch.stack([self.var(float(level)) for level in levels], -1)


class Critic(nn.Module):
    """Raw outputs of a value network → distributions. One instance serves every critic of a policy.

    A critic holds what is common to all its copies (levels, weights, support) but no trained parameter. `scale` is
    (mean, std) of the return: raw outputs are in units of it, distributions in units of the return.
    """

    outputs: int
    weights: Tensor
    levels: Tensor | None
    # What the critic's loss must be multiplied by to pull on the mean of a standard normal as the squared error does.
    squared_error_units: float = 1.0

    def initial_bias(self) -> Tensor:  # (N,)
        """Where a fresh head starts: the marginal distribution of a standardised return, taken as normal."""
        return torch.zeros(self.outputs)

    def distribution(self, raw: Tensor, mean: float, std: float) -> ValueDistribution:  # (..., N)
        raise NotImplementedError

    def merge(self, raw: Tensor, mean: float, std: float) -> ValueDistribution:  # (..., C, N)
        """The distribution shown to the user and bootstrapped from: the mean over the C critics."""
        raise NotImplementedError

    def means(self, raw: Tensor, mean: float, std: float) -> Tensor:  # (..., N) -> (...)
        return self.distribution(raw, mean, std).mean


class QuantileCritic(Critic):
    """Quantiles at fixed levels; merged level by level."""

    levels: Tensor
    # The mean pinball loss of N(0, 1) has curvature ∫φ² = 1/(2√π) in a shift of all quantiles; the squared error has 2.
    squared_error_units = 4.0 * math.pi**0.5

    def __init__(self, n: int, levels: str, tail_alpha: float) -> None:
        super().__init__()
        if levels not in LEVELS:
            raise ArgumentError(f"unknown levels {levels!r}; {did_you_mean(levels, LEVELS)}")
        grid, weights = quantile.tail_levels(n, tail_alpha) if levels == "tail" else quantile.uniform_levels(n)
        self.outputs = n
        self.register_buffer("levels", grid.to(torch.float32), persistent=False)
        self.register_buffer("weights", weights.to(torch.float32), persistent=False)

    def initial_bias(self) -> Tensor:
        # Φ⁻¹(τ). From zero the heads would have to learn this spread step by step, and saturating the memory gets them
        # there sooner than moving their biases does.
        bias: Tensor = torch.special.ndtri(self.levels)
        return bias

    def distribution(self, raw: Tensor, mean: float, std: float) -> ValueDistribution:
        return ValueDistribution(raw * std + mean, self.weights, self.levels)

    def merge(self, raw: Tensor, mean: float, std: float) -> ValueDistribution:
        return self.distribution(raw.mean(-2), mean, std)

    def means(self, raw: Tensor, mean: float, std: float) -> Tensor:
        return (raw * self.weights).sum(-1) * std + mean


class ScalarCritic(Critic):
    """One number: the mean alone. The ablation."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = 1
        self.register_buffer("levels", torch.full((1,), 0.5), persistent=False)
        self.register_buffer("weights", torch.ones(1), persistent=False)

    def distribution(self, raw: Tensor, mean: float, std: float) -> ValueDistribution:
        return ValueDistribution(raw * std + mean, self.weights, self.levels)

    def merge(self, raw: Tensor, mean: float, std: float) -> ValueDistribution:
        return self.distribution(raw.mean(-2), mean, std)


class CategoricalCritic(Critic):
    """Logits on an evenly spaced support, which is in units of the return and moves rarely (`algorithm.support`)."""

    support: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        if n < 3:
            raise ArgumentError(f"a categorical critic needs at least 3 atoms, got {n}")
        # The cross-entropy of N(0, 1) has curvature 1 in a shift, and ours is divided by ln K.
        self.squared_error_units = 2.0 * math.log(n)
        self.outputs = n
        self.levels = None
        self.register_buffer("support", torch.linspace(-1.0, 1.0, n))

    def distribution(self, raw: Tensor, mean: float, std: float) -> ValueDistribution:
        return ValueDistribution(self.support, raw.softmax(-1), None)

    def merge(self, raw: Tensor, mean: float, std: float) -> ValueDistribution:
        return ValueDistribution(self.support, raw.softmax(-1).mean(-2), None)


def make_critic(kind: str, *, n_quantiles: int, levels: str, tail_alpha: float, n_atoms: int) -> Critic:
    if kind == "quantile":
        return QuantileCritic(n_quantiles, levels, tail_alpha)
    if kind == "categorical":
        return CategoricalCritic(n_atoms)
    if kind == "scalar":
        return ScalarCritic()
    raise ArgumentError(f"unknown critic {kind!r}; {did_you_mean(kind, CRITICS)}")
