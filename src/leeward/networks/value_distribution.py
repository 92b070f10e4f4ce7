"""The one type in which a return distribution leaves the network."""

from dataclasses import dataclass

import torch
from torch import Tensor

from leeward.maths import categorical, cvar, quantile

__all__ = ["ValueDistribution"]


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
