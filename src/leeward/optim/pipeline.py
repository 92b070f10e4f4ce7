"""Between `backward()` and `step()`: measure → finite guard → scaling stages → clip. The order is fixed."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from leeward.optim.finite_guard import FiniteGuard

__all__ = ["GradientPipeline", "GradientReport", "GradientStage"]


class GradientStage(Protocol):
    """Reads and edits `.grad` of its own parameters in place, and reports."""

    def apply(self) -> dict[str, float]: ...


class GradientReport(NamedTuple):
    """Norms as tensors: nothing is synchronised but the guard's one bit. `groups` is in the order of `names`."""

    step: bool
    raw: Tensor  # ()
    pre_clip: Tensor  # ()
    post_clip: Tensor  # ()
    groups: Tensor  # (n_groups,), raw
    stages: dict[str, float]


class GradientPipeline:
    """Acts on all `parameters`; the norm of each named group is taken in the same pass, before anything changes."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        groups: Mapping[str, Sequence[nn.Parameter]],
        *,
        max_grad_norm: float | None,
        max_consecutive_skips: int,
        stages: Sequence[GradientStage] = (),
    ) -> None:
        self.names = list(groups)
        self.parameters = list(parameters)
        place = {id(p): i for i, p in enumerate(self.parameters)}
        device = self.parameters[0].device
        self.members = torch.zeros(len(groups), len(self.parameters), device=device)
        for row, group in enumerate(groups.values()):
            for p in group:
                self.members[row, place[id(p)]] = 1.0
        self.max_grad_norm = max_grad_norm
        self.guard = FiniteGuard(max_consecutive_skips)
        self.stages = list(stages)

    def apply(self, update: int) -> GradientReport:
        """Edit the gradients in place; `step` says whether the optimiser may use them."""
        squares = self._norms().square()
        raw = squares.sum().sqrt()
        groups = (self.members @ squares).sqrt()
        step = self.guard.allows(raw, update)
        stages: dict[str, float] = {}
        pre_clip = raw
        if step and self.stages:
            for stage in self.stages:
                stages |= stage.apply()
            # As `raw` is taken, so that a factor of 1 changes no bit.
            pre_clip = self._norms().square().sum().sqrt()
        post_clip = pre_clip
        if step and self.max_grad_norm is not None:
            factor = (self.max_grad_norm / (pre_clip + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], factor)
            post_clip = pre_clip * factor
        return GradientReport(step, raw, pre_clip, post_clip, groups, stages)

    def _norms(self) -> Tensor:  # (n_parameters,)
        present = [p.grad for p in self.parameters if p.grad is not None]
        norms = iter(torch._foreach_norm(present))
        zero = self.members.new_zeros(())
        return torch.stack([zero if p.grad is None else next(norms) for p in self.parameters])
