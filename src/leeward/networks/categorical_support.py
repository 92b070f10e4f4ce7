"""The support of a categorical critic: it moves rarely, and the heads are refitted when it does.

A softmax on fixed atoms has no exact counterpart of PopArt, so the support stays where it is until more than 1 % of the
targets fall outside it, or they use less than a quarter of it.
"""

import torch
from torch import Tensor, nn

from leeward.maths import categorical

__all__ = ["OUTSIDE", "USED", "fitting_support", "needs_move", "normal_logits", "refit_head"]

OUTSIDE = 0.01
USED = 0.25
# Share of mass that is spread evenly over all atoms: one of probability 0 would need a logit of −∞ and never come back.
FLOOR = 1e-3
_NARROWEST = 1e-4  # width over the size of the returns


def needs_move(targets: Tensor, support: Tensor) -> bool:
    """Too many targets outside, or too little of the support in use."""
    if float(categorical.outside_fraction(targets, support)) > OUTSIDE:
        return True
    low, high = _range(targets)
    return (high - low) < USED * float(support[-1] - support[0]) and high > low


def fitting_support(targets: Tensor, atoms: int) -> Tensor:  # -> (K,)
    """Twice the range of the targets around its middle, so that half of it is in use and both rules are far away."""
    low, high = _range(targets)
    # Returns that do not vary still need room between atoms: a little of their own size, in whatever unit.
    width = max(high - low, _NARROWEST * max(abs(high), abs(low)), 1e-30)
    middle = 0.5 * (low + high)
    return torch.linspace(middle - width, middle + width, atoms, device=targets.device, dtype=torch.float64)


def _range(targets: Tensor) -> tuple[float, float]:
    ordered = targets.flatten().sort().values
    edge = int(0.001 * len(ordered))
    return float(ordered[edge]), float(ordered[-1 - edge])


def normal_logits(support: Tensor, std: float) -> Tensor:  # -> (K,)
    """A normal distribution around 0, of one atom's width at least: where a head starts that knows nothing else."""
    width = max(std, float(support[1] - support[0]))
    return _with_floor((-0.5 * (support / width).square()).softmax(0)).log()


def _with_floor(probs: Tensor) -> Tensor:  # (..., K) -> (..., K)
    return (1.0 - FLOOR) * probs + FLOOR / probs.shape[-1]


def refit_head(head: nn.Linear, latent: Tensor, old: Tensor, new: Tensor) -> None:
    """Fit a head on the new support to its own old predictions, re-projected; `latent` is (n, H)."""
    with torch.no_grad():
        probs = head(latent).softmax(-1)
        wanted = _with_floor(categorical.project(old, probs.to(old.dtype), new)).to(probs.dtype)  # (n, K)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = categorical.cross_entropy(head(latent), wanted).mean()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)
    optimiser.zero_grad()
