"""The scale of a return: running mean and standard deviation, and the PopArt rescale that goes with every change."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from leeward.algorithm.peers import ALONE, Peers
from leeward.errors import TrainingDiverged
from leeward.maths.normalisation import popart_rescale

__all__ = ["ReturnScale", "rescale_heads"]


class ReturnScale:
    """Mean and variance of the targets, averaged over rollouts with weight max(1/k, `rate`) for the k-th.

    The weight makes the first rollouts count alike and the scale follow slowly afterwards. Where the targets do not
    vary, the standard deviation stays what it was.
    """

    def __init__(self, rate: float = 0.1) -> None:
        self.rate = rate
        self.rollouts = 0
        self.mean, self.variance, self.std = 0.0, 0.0, 1.0

    def update(self, targets: Tensor, peers: Peers = ALONE) -> None:
        """Take in the targets of one rollout, of all processes; any shape, in units of the return."""
        mean, variance = peers.moments(targets)
        if not math.isfinite(variance):
            raise TrainingDiverged(f"the value targets are not finite (mean {mean}); check the rewards' magnitude")
        self.rollouts += 1
        weight = max(1.0 / self.rollouts, self.rate)
        # The variance is kept about the running mean, so that a large mean does not swallow it.
        shift = mean - self.mean
        self.variance = (1.0 - weight) * (self.variance + weight * shift * shift) + weight * variance
        self.mean += weight * shift
        std = math.sqrt(self.variance)
        if std > max(1e-6 * abs(self.mean), 1e-12):  # less is the rounding of float32, in whatever unit
            self.std = std

    def state_dict(self) -> dict[str, float]:
        return {"rollouts": self.rollouts, "mean": self.mean, "variance": self.variance, "std": self.std}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.rollouts = int(state["rollouts"])
        self.mean, self.variance, self.std = state["mean"], state["variance"], state["std"]


@torch.no_grad()
def rescale_heads(heads: Iterable[nn.Module], old: tuple[float, float], new: tuple[float, float]) -> None:
    """Change the unit of linear heads from `old` (mean, std) to `new`, leaving what they decode to unchanged."""
    for head in heads:
        assert isinstance(head, nn.Linear)
        weight, bias = popart_rescale(head.weight, head.bias, old, new)
        head.weight.copy_(weight)
        head.bias.copy_(bias)
