"""Between `backward()` and `step()`: measure → finite guard → scaling stages → clip. The order is fixed.

The actor's gradient and the critics' are clipped apart: neither can take the other's room, whatever the unit of the
reward. Weights that both use, such as those of a shared extractor, get each half's gradient clipped, then added.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from leeward.optim.finite_guard import FiniteGuard
from leeward.telemetry.metrics import Metric, Numbers

__all__ = ["HALVES", "GradientPipeline", "GradientReport", "GradientStage"]

HALVES = ("actor", "critic")


class GradientStage(Protocol):
    """Reads and edits `.grad` of its own parameters in place, and reports."""

    def apply(self) -> Numbers: ...


class GradientReport(NamedTuple):
    """Norms as tensors: nothing is synchronised but the guard's one bit. `groups` is in the order of the pipeline's.

    A norm over halves is the root of the sum of their squares.
    """

    step: bool
    raw: Tensor  # (2,), actor and critic
    pre_clip: Tensor  # (2,)
    post_clip: Tensor  # (2,)
    groups: Tensor  # (n_groups,), raw
    stages: Numbers


class GradientPipeline:
    """Acts on all `parameters`; the norm of each group is taken in the same pass, before anything changes, for the
    metric it is reported under.

    `critics` are the parameters whose `.grad` is the critics'. Of those that are also in `shared`, the actor's part is
    the `.grad` of their stand-in in `actor_shares`, until `apply` adds the two.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        groups: Mapping[Metric, Sequence[nn.Parameter]],
        *,
        critics: Iterable[nn.Parameter],
        shared: Iterable[nn.Parameter] = (),
        max_consecutive_skips: int,
        stages: Sequence[GradientStage] = (),
    ) -> None:
        self.groups = list(groups)
        self.shared = list(shared)
        self.actor_shares = [nn.Parameter(torch.empty_like(p)) for p in self.shared]
        self.parameters = [*parameters, *self.actor_shares]
        place = {id(p): i for i, p in enumerate(self.parameters)}
        device = self.parameters[0].device
        self.members = torch.zeros(len(groups), len(self.parameters), device=device)
        for row, group in enumerate(groups.values()):
            for p in group:
                self.members[row, place[id(p)]] = 1.0
        of_critics = {id(p) for p in (*critics, *self.shared)}
        in_critics = [id(p) in of_critics for p in self.parameters]
        self.halves = torch.tensor([[float(not there) for there in in_critics], in_critics], device=device)
        self.members_of_half = [
            [p for p, there in zip(self.parameters, in_critics, strict=True) if there == half] for half in (False, True)
        ]
        self.guard = FiniteGuard(max_consecutive_skips)
        self.stages = list(stages)

    def apply(self, update: int, *, max_grad_norm: float | None) -> GradientReport:
        """Edit the gradients in place; `step` says whether the optimiser may use them."""
        squares = self._norms().square()
        raw = (self.halves @ squares).sqrt()
        groups = (self.members @ squares).sqrt()
        step = self.guard.allows(raw.sum(), update)
        stages: Numbers = {}
        pre_clip = raw
        if step and self.stages:
            stages = self._run_stages()
            # As `raw` is taken, so that a factor of 1 changes no bit.
            pre_clip = (self.halves @ self._norms().square()).sqrt()
        post_clip = pre_clip
        if step and max_grad_norm is not None:
            factors = (max_grad_norm / (pre_clip + 1e-6)).clamp(max=1.0)
            for own, factor in zip(self.members_of_half, factors, strict=True):
                present = [p.grad for p in own if p.grad is not None]
                if present:
                    torch._foreach_mul_(present, factor)
            post_clip = pre_clip * factors
        if step:
            self._add_shares()
        return GradientReport(step, raw, pre_clip, post_clip, groups, stages)

    def _add_shares(self) -> None:
        for parameter, share in zip(self.shared, self.actor_shares, strict=True):
            if share.grad is not None:
                parameter.grad = share.grad if parameter.grad is None else parameter.grad + share.grad

    def _run_stages(self) -> Numbers:
        """Stages see the whole gradient of a parameter; both halves of a shared one take its factor."""
        parts = [None if p.grad is None else p.grad.clone() for p in self.shared]
        self._add_shares()
        before = [None if p.grad is None else torch.linalg.vector_norm(p.grad) for p in self.shared]
        found: Numbers = {}
        for stage in self.stages:
            found |= stage.apply()
        for parameter, share, part, norm in zip(self.shared, self.actor_shares, parts, before, strict=True):
            if parameter.grad is None or norm is None:
                continue
            factor = torch.linalg.vector_norm(parameter.grad) / norm.clamp(min=torch.finfo(norm.dtype).tiny)
            parameter.grad = None if part is None else part * factor
            if share.grad is not None:
                share.grad.mul_(factor)
        return found

    def _norms(self) -> Tensor:  # (n_parameters,)
        present = [p.grad for p in self.parameters if p.grad is not None]
        norms = iter(torch._foreach_norm(present))
        zero = self.members.new_zeros(())
        return torch.stack([zero if p.grad is None else next(norms) for p in self.parameters])
