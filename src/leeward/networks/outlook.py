"""A predicted return distribution as a user reads it: numpy arrays, quantiles at rising levels."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from leeward.errors import ArgumentError
from leeward.maths import quantile
from leeward.networks.value_distribution import ValueDistribution

__all__ = ["Outlook", "StepNotLearned"]

Floats = NDArray[np.float64]


class StepNotLearned(ArgumentError, AttributeError):
    """The model was trained without `risk=`; also what `hasattr(outlook, "step")` understands."""


class Outlook:
    """A distribution for B observations: of the discounted return in its unit, and in `step` of the next step alone.

    `step` is of the risk variable's return over one step, in the unit of the limit, under the policy as it explores.

    `quantiles` (B, N) stand at `levels` (N,) and are sorted; `weights` (N,) are the widths of their steps, so that
    mean = Σ w q. A categorical critic's atoms are read at the tail grid; its mean, VaR and CVaR stay exact.
    """

    def __init__(self, distribution: ValueDistribution, step: "Outlook | None" = None) -> None:
        self._distribution, self._step = distribution, step
        levels = distribution.levels
        if levels is None:
            grid, widths = quantile.tail_levels(32, 0.05)
        else:
            grid, widths = levels, distribution.weights
        self._grid = grid
        self.levels: Floats = grid.double().cpu().numpy()
        self.weights: Floats = widths.double().cpu().numpy()

    @property
    def step(self) -> "Outlook":
        if self._step is None:
            raise StepNotLearned(
                "this model has not learned to predict the next step: train with risk=, e.g. risk={'alpha': 0.05}, "
                "which without a limit constrains nothing"
            )
        return self._step

    @cached_property
    def quantiles(self) -> Floats:  # (B, N)
        return np.asarray(self._distribution.at(self._grid).double().cpu().numpy())

    @property
    def mean(self) -> Floats:  # (B,)
        return np.asarray(self._distribution.mean.double().cpu().numpy())

    def var(self, alpha: float) -> Floats:  # (B,)
        """The α-quantile of the return."""
        return np.asarray(self._distribution.var(alpha).double().cpu().numpy())

    def cvar(self, alpha: float) -> Floats:  # (B,)
        """The mean of the worst α of the return."""
        return np.asarray(self._distribution.cvar(alpha).double().cpu().numpy())

    def mean_cvar(self, alpha: float) -> float:
        """The mean over observations of `cvar`."""
        return float(self._distribution.cvar(alpha).mean())

    def __repr__(self) -> str:
        return f"Outlook({len(self.mean)} observations, {len(self.levels)} levels)"
