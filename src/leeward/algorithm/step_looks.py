"""One optimiser step of an update, computed again by other means: from what was collected to what the weights become.

The bias of a linear head has a gradient that is a sum over rows of the loss's slope in the head's outputs. That takes
no second pass through the network, and everything between the rollout and the optimiser is in it: which rows, which
targets, the loss with its signs and weights, and whether gradients were cleared, changed or scaled on their way.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from leeward.algorithm.losses import Coefficients, ValueTargets
from leeward.algorithm.parallel.process_group import ProcessGroup
from leeward.maths.policy_loss import LOG_RATIO_LIMIT
from leeward.networks.action_distributions import (
    ActionHead,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
    StateDependentHead,
)
from leeward.networks.actor_critic import ActorCritic
from leeward.networks.value_heads import CategoricalCritic, Critic, QuantileCritic, ScalarCritic
from leeward.optim.pipeline import GradientReport
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.sequences import Batch
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["StepLook"]

_ROUNDING = 1e-3  # of the sum of the rows' sizes, below which a sum is what rounding left of it
_NARROW = 1e-4  # a clip range at which rounding decides which steps are clipped
_ADAMS = (torch.optim.Adam, torch.optim.AdamW)


class _Wanted(NamedTuple):
    """What a parameter's gradient must be, and the sum of the sizes of its rows."""

    gradient: Tensor  # float64
    size: float
    half: int  # 0 = actor, 1 = critics


class _Step(NamedTuple):
    """A parameter before a step, and what Adam must add to it."""

    parameter: nn.Parameter
    before: Tensor
    change: Tensor


class StepLook:
    """Of one minibatch: `add` its parts, `judge` the gradients that the optimiser gets, then `stepped`."""

    def __init__(
        self, policy: ActorCritic, rollout: RolloutBuffer, advantages: Tensor, samples: Tensor, weights: Coefficients
    ) -> None:  # advantages (T, B), samples of the return (T, B, M)
        self._policy, self._rollout, self._weights = policy, rollout, weights
        self._advantages, self._samples = advantages.flatten(), samples.flatten(0, 1)
        self._wanted: dict[nn.Parameter, _Wanted] = {}
        self._steps: list[_Step] = []
        self._whole = True
        self.numbers: Numbers = {}

    # --- what the gradients must be ---------------------------------------------------------------------------------

    def add(self, part: Batch, parameters: Tensor, values: Tensor, targets: ValueTargets, n: int) -> None:
        """A micro-batch of a minibatch of n steps: its action parameters (L, S, P) and raw values (L, S, C, N)."""
        real = part.mask.flatten()
        index = part.rows.flatten()[real]
        risk = self._rollout.risk
        acts = None if risk is None else risk.deployed  # (B,): these envs act without noise
        deployed = None if acts is None else acts[index % self._rollout.shape[1]]
        if self._weights.clip_range > _NARROW:
            self._add_actor(index, parameters.detach().flatten(0, 1)[real], deployed, n)
        if targets.old is None:  # a clipped loss has another slope
            self._add_critics(index, values.detach().flatten(0, 1)[real], deployed, n)

    def _add_actor(self, index: Tensor, outputs: Tensor, deployed: Tensor | None, n: int) -> None:
        head, weights, rollout = self._policy.action_head, self._weights, self._rollout
        actions, old = rollout.actions.flatten(0, 1)[index], rollout.log_probs.flatten()[index]
        advantages = self._advantages[index]
        with torch.enable_grad():
            leaf = outputs.requires_grad_()
            parameters = _parameters(head, leaf)
            log_prob = head.log_prob(parameters, actions)
            moved = log_prob.detach() - old
            ratio = moved.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
            # −min(r A, clip(r) A) falls with log π by r A, but where the clip has taken it out.
            out = torch.where(advantages > 0.0, ratio > 1.0 + weights.clip_range, ratio < 1.0 - weights.clip_range)
            slope = -(advantages * ratio).masked_fill(out | (moved.abs() > LOG_RATIO_LIMIT), 0.0)
            if weights.awr is not None:
                cap = math.log(weights.awr.max_weight)
                slope -= weights.awr.coef * (advantages / weights.awr.beta).clamp(max=cap).exp()
            loss = slope * log_prob
            if weights.kl_penalty > 0.0:
                loss = loss + weights.kl_penalty * head.kl(rollout.action_parameters.flatten(0, 1)[index], parameters)
            if weights.ent_coef != 0.0:
                loss = loss - weights.ent_coef * head.joint_entropy(parameters)
            if deployed is not None:
                loss = weights.policy_weight * loss.masked_fill(deployed, 0.0)
            (rows,) = torch.autograd.grad(loss.sum() / n, leaf)
        if isinstance(head, GaussianHead):
            means, widths = rows.chunk(2, -1)
            self._sum(head.net.bias, means, 0)
            if not isinstance(head, StateDependentHead):  # its width is of every feature
                self._sum(head.log_std, widths, 0)
        else:
            self._sum(head.net.bias, rows, 0)

    def _add_critics(self, index: Tensor, raw: Tensor, deployed: Tensor | None, n: int) -> None:
        weights, heads = self._weights, self._policy.value_head_list
        if deployed is not None:  # the critics learn from these alone
            index, raw = index[deployed], raw[deployed]
        rows = _slopes(self._policy.critic, raw, self._samples[index], weights.kappa)
        if rows is None:
            return
        rows = rows * (weights.value_weight * (1.0 if deployed is None else weights.outlook_weight) / (n * len(heads)))
        for c, head in enumerate(heads):
            self._sum(head.bias, rows[:, c], 1)

    def _sum(self, parameter: nn.Parameter, rows: Tensor, half: int) -> None:  # (n, ...)
        if not parameter.requires_grad:
            return
        rows = rows.detach().double()
        gradient, size = rows.sum(0), float(torch.linalg.vector_norm(rows, dim=-1).sum())
        if (before := self._wanted.get(parameter)) is not None:
            gradient, size = gradient + before.gradient, size + before.size
        self._wanted[parameter] = _Wanted(gradient, size, half)

    # --- what they are ----------------------------------------------------------------------------------------------

    def spoil(self) -> None:
        """A part was left out, and the others make up for it."""
        self._whole = False

    def _of_all(self, group: ProcessGroup, share: float) -> dict[nn.Parameter, _Wanted]:
        """What the mean over the minibatch of all processes must be; nothing if one of them left a part out."""
        parameters = list(self._policy.parameters())
        places = {parameter: place for place, parameter in enumerate(parameters)}
        own = [(places[p], w.gradient * share, w.size * share, w.half) for p, w in self._wanted.items()]
        found: dict[nn.Parameter, _Wanted] = {}
        for theirs in group.gather(own if self._whole else None):
            if theirs is None:
                return {}
            for place, gradient, size, half in theirs:
                before = found.get(parameters[place])
                if before is not None:
                    gradient, size = gradient + before.gradient, size + before.size
                found[parameters[place]] = _Wanted(gradient, size, half)
        return found

    @torch.no_grad()
    def judge(
        self,
        report: GradientReport,
        optimizer: torch.optim.Optimizer,
        group: ProcessGroup,
        share: float,
        *,
        scaled: bool,
    ) -> None:
        """Compare with what the optimiser gets. `share`: of all processes' steps that this one has; `scaled`: stages of
        one's own give each parameter its own factor."""
        all_wanted = self._of_all(group, share)
        if not report.step or not all_wanted:
            return
        clips = zip(report.raw.tolist(), report.post_clip.tolist(), strict=True)
        factors = [after / before if before > 0.0 else 1.0 for before, after in clips]
        off = 0.0
        for parameter, wanted in all_wanted.items():
            factor = factors[wanted.half]
            if wanted.size * factor == 0.0:
                continue
            given = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            expected, given = wanted.gradient * factor, given.double()
            if scaled and float(given.abs().sum()) > 0.0:
                given = given * (torch.linalg.vector_norm(expected) / torch.linalg.vector_norm(given))
            size = max(float(torch.linalg.vector_norm(expected)), _ROUNDING * wanted.size * factor)
            off = max(off, float(torch.linalg.vector_norm(given - expected)) / size)
        self.numbers[metrics.GRADIENT_DEV] = off
        self._steps = [step for parameter in all_wanted if (step := _adam(optimizer, parameter)) is not None]

    @torch.no_grad()
    def stepped(self) -> None:
        """The optimiser has made its step: are the weights where it leads?"""
        found = []
        for parameter, before, change in self._steps:
            size, rounding = float(change.abs().max()), 3e-7 * float(before.abs().max())
            if size > 10.0 * rounding:
                miss = float((parameter.double() - before - change).abs().max())
                found.append(max(0.0, miss - rounding) / size)
        if found:
            self.numbers[metrics.OPTIMIZER_STEP_DEV] = max(found)


def _parameters(head: ActionHead, leaf: Tensor) -> Tensor:
    """Action parameters as a function of what the linear layer gives: log-probabilities are logits of themselves."""
    if isinstance(head, CategoricalHead):
        return leaf.log_softmax(-1)
    if isinstance(head, MultiCategoricalHead):
        return torch.cat([each.log_softmax(-1) for each in leaf.split(head.sizes, -1)], -1)
    return leaf


def _slopes(critic: Critic, raw: Tensor, samples: Tensor, kappa: float) -> Tensor | None:
    """Slopes of the critics' losses in their outputs, (n, C, N), for samples of the return (n, M)."""
    mean, std = critic.unit
    if isinstance(critic, CategoricalCritic):
        (wanted,) = critic.encode(samples, kappa=kappa)
        assert wanted is not None
        slopes: Tensor = (raw.softmax(-1) - wanted.unsqueeze(-2)) / math.log(max(critic.outputs, 2))
        return slopes
    targets = ((samples - mean) / (std or 1.0)).to(raw.dtype)
    if isinstance(critic, ScalarCritic):
        return 2.0 * (raw - targets.mean(-1)[:, None, None])
    if not isinstance(critic, QuantileCritic):
        return None
    if kappa == 0.0:
        below = torch.searchsorted(targets.sort(-1).values, raw.flatten(1).contiguous()).view(raw.shape)
        return (below / targets.shape[-1] - critic.levels) / critic.outputs
    found = []
    for c in range(raw.shape[1]):  # one at a time: the table is (n, N, M)
        u = targets.unsqueeze(-2) - raw[:, c].unsqueeze(-1)
        asymmetry = (critic.levels.unsqueeze(-1) - (u < 0.0).to(u.dtype)).abs()
        found.append(-(asymmetry * (u / kappa).clamp(-1.0, 1.0)).mean(-1) / critic.outputs)
    return torch.stack(found, 1)


def _adam(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> _Step | None:
    """What a step of Adam adds to a parameter (Kingma & Ba 2015, arXiv:1412.6980, algorithm 1); None for others."""
    if type(optimizer) not in _ADAMS or parameter.grad is None:
        return None
    group: dict[str, Any] = next(
        (each for each in optimizer.param_groups if any(p is parameter for p in each["params"])), {}
    )
    if not group or group["amsgrad"] or group["maximize"]:
        return None
    before, gradient = parameter.detach().double(), parameter.grad.double()
    state, (beta1, beta2), rate, decay = optimizer.state.get(parameter, {}), group["betas"], group["lr"], 0.0
    if type(optimizer) is torch.optim.AdamW:
        decay = rate * group["weight_decay"]
    else:
        gradient = gradient + group["weight_decay"] * before
    first, second = (state[name].double() if name in state else 0.0 * gradient for name in ("exp_avg", "exp_avg_sq"))
    count = float(state.get("step", 0.0)) + 1.0
    first = beta1 * first + (1.0 - beta1) * gradient
    second = beta2 * second + (1.0 - beta2) * gradient.square()
    spread = (second / (1.0 - beta2**count)).sqrt() + group["eps"]
    return _Step(parameter, before, -rate * first / (1.0 - beta1**count) / spread - decay * before)
