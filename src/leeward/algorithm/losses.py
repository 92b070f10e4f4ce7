"""The terms of the loss on one minibatch, each a sum over its real steps."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from leeward.algorithm.risk_constraint import RiskTargets
from leeward.config.learning import AWR, ValueClip
from leeward.maths import categorical, policy_loss, quantile, value_clipping
from leeward.maths.nested import Observation, map_observation
from leeward.networks.policy import ActorEvaluation, CriticEvaluation, DistributionalPolicy
from leeward.networks.value_heads import CategoricalCritic, QuantileCritic
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.sequences import Batch

__all__ = [
    "Coefficients",
    "Losses",
    "PolicyLosses",
    "Rows",
    "ValueLosses",
    "ValueTargets",
    "gather",
    "policy_losses",
    "prepare_value_targets",
    "value_losses",
]


@dataclass(frozen=True)
class Coefficients:
    """What weighs and shapes the terms in this update."""

    clip_range: float
    value_weight: float  # of the value loss, which is in units of the return scale
    risk_weight: float  # of the losses of the risk heads, in units of their own scales
    ent_coef: float
    kappa: float
    value_clip: ValueClip
    kl_penalty: float  # 0 = off
    awr: AWR | None


@dataclass(frozen=True)
class ValueTargets:
    """The rollout's value targets in the form the critic's loss takes, one row per step (T·B)."""

    sorted: quantile.SortedTargets | None = None  # (T·B, M), quantile critics
    probs: Tensor | None = None  # (T·B, K), categorical critics
    scalars: Tensor | None = None  # (T·B,), scalar critics
    old: Tensor | None = None  # (T·B, C, N): the rollout's own predictions (categorical: probabilities), if clipped


@dataclass(frozen=True)
class Rows:
    """One minibatch of stored steps, (L, S, ...)."""

    observations: Observation
    actions: Tensor
    action_masks: Tensor | None
    action_parameters: Tensor
    log_probs: Tensor
    advantages: Tensor
    exploring: Tensor | None  # (L, S) bool: the policy learns from these; None = from all
    index: Tensor  # (L·S,)
    mask: Tensor
    n_real: int

    @property
    def padded(self) -> bool:
        """Whether some steps are not real."""
        return self.n_real < self.mask.numel()

    @property
    def learned(self) -> Tensor:  # (L, S) bool
        """The real steps from which the policy learns."""
        return self.mask if self.exploring is None else self.mask & self.exploring

    def real(self, values: Tensor) -> Tensor:  # (L, S, ...) -> the same, 0 where a step is not real
        if not self.padded:
            return values
        mask = self.mask.reshape(self.mask.shape + (1,) * (values.ndim - 2))
        return values.masked_fill(~mask, 0.0)


@dataclass(frozen=True)
class PolicyLosses:
    """The actor's terms, sums over real steps."""

    loss: Tensor  # what is minimised
    policy: Tensor  # the same without the entropy bonus
    surrogate: Tensor
    awr: Tensor
    log_ratio: Tensor  # (L, S), detached


@dataclass(frozen=True)
class ValueLosses:
    """The critics' terms, sums over real steps; `per_critic` (C,) keeps the critics apart."""

    loss: Tensor  # what is minimised
    per_critic: Tensor
    per_critic_unclipped: Tensor
    per_critic_clipped: Tensor | None
    clipped: Tensor | None  # number of real steps whose prediction was clipped, mean over critics
    risk: Tensor  # of the risk heads


@dataclass(frozen=True)
class Losses:
    policy: PolicyLosses
    value: ValueLosses
    robust: dict[str, Tensor] = field(default_factory=dict)  # by metric, detached: what the adversary measured

    @property
    def total(self) -> Tensor:
        return self.policy.loss + self.value.loss


def _rows(table: Tensor, index: Tensor, shape: torch.Size) -> Tensor:  # (T·B, ...) -> (L, S, ...)
    return table.index_select(0, index).reshape(*shape, *table.shape[1:])


def gather(buffer: RolloutBuffer, advantages: Tensor, batch: Batch) -> Rows:
    """Pick the steps of a minibatch out of the rollout."""
    index = batch.rows.flatten()
    shape = batch.rows.shape
    exploring = None if buffer.risk is None or buffer.risk.deployed is None else ~buffer.risk.deployed

    def pick(tensor: Tensor) -> Tensor:
        return _rows(tensor.flatten(0, 1), index, shape)

    return Rows(
        map_observation(pick, buffer.observations),
        pick(buffer.actions),
        None if buffer.action_masks is None else pick(buffer.action_masks),
        pick(buffer.action_parameters),
        pick(buffer.log_probs),
        pick(advantages),
        None if exploring is None else pick(exploring.expand(buffer.shape)),
        index,
        batch.mask,
        batch.n_real,
    )


def prepare_value_targets(
    policy: DistributionalPolicy,
    samples: Tensor,  # (T, B, M)
    raw_values: Tensor,  # (T, B, C, N)
    *,
    scale: tuple[float, float],
    support: Tensor | None,
    clip: ValueClip,
    kappa: float,
) -> ValueTargets:
    """Encode the targets once per rollout; `scale` or `support` is the one the rollout's own raw values are in."""
    mean, std = float(policy.return_mean), float(policy.return_std)
    rows = samples.flatten(0, 1)  # (T·B, M)
    critic = policy.critic
    old = None
    if isinstance(critic, CategoricalCritic):
        assert support is not None
        weights = torch.full_like(rows[0], 1.0 / rows.shape[-1])
        if clip.mode != "disable":
            old = categorical.project(support, raw_values.softmax(-1), critic.support).flatten(0, 1)
        return ValueTargets(probs=categorical.project(rows, weights, critic.support), old=old)
    if clip.mode != "disable":
        # From the rollout's unit over the return's own to the present one, so that like is compared with like.
        old = ((raw_values * scale[1] + scale[0] - mean) / std).flatten(0, 1)
    encoded = (rows - mean) / std
    if isinstance(critic, QuantileCritic):
        return ValueTargets(sorted=quantile.sort_targets(encoded, squares=kappa > 0.0), old=old)
    return ValueTargets(scalars=encoded.mean(-1), old=old)


def policy_losses(
    policy: DistributionalPolicy, rows: Rows, evaluation: ActorEvaluation, weights: Coefficients
) -> PolicyLosses:
    """Clipped surrogate, and what is switched on beside it."""

    def total(values: Tensor) -> Tensor:  # (L, S) -> (), real steps that explored
        return _total(values if rows.exploring is None else values.masked_fill(~rows.exploring, 0.0), rows)

    log_ratio = evaluation.log_prob - rows.log_probs
    surrogate = total(policy_loss.clipped_surrogate(log_ratio, rows.advantages, clip_range=weights.clip_range))
    awr = torch.zeros_like(surrogate)
    if weights.awr is not None:
        sample_weights = policy_loss.awr_weights(
            rows.advantages, beta=weights.awr.beta, max_weight=weights.awr.max_weight
        )
        awr = -weights.awr.coef * total(sample_weights * evaluation.log_prob)
    policy_term = surrogate + awr
    if weights.kl_penalty > 0.0:
        kl = policy.action_head.kl(rows.action_parameters, evaluation.action_parameters)  # (L, S)
        policy_term = policy_term + weights.kl_penalty * total(kl)
    loss = policy_term
    if weights.ent_coef != 0.0:
        loss = loss - weights.ent_coef * total(policy.action_head.entropy(evaluation.action_parameters))
    return PolicyLosses(loss, policy_term, surrogate, awr, log_ratio.detach())


def value_losses(
    policy: DistributionalPolicy,
    rows: Rows,
    evaluation: CriticEvaluation,
    targets: ValueTargets,
    weights: Coefficients,
    risk: RiskTargets | None = None,
) -> ValueLosses:
    """The distributional loss of each critic, and the losses of the risk heads."""
    unclipped = _value_loss(policy, evaluation.values, rows, targets, weights)  # (L, S, C)
    chosen, clipped, active = unclipped, None, None
    if targets.old is not None:
        held, moved = _clip(policy, evaluation.values, rows, targets.old, weights.value_clip)
        clipped = _value_loss(policy, held, rows, targets, weights, probabilities=True)
        chosen = torch.maximum(unclipped, clipped)
        active = _total(moved, rows).mean()
    per_critic = _total(chosen, rows)  # (C,)
    loss = weights.value_weight * per_critic.mean()
    heads = torch.zeros_like(loss)
    if risk is not None:
        heads = _total(_risk_loss(policy, evaluation, rows, risk), rows)
        loss = loss + weights.risk_weight * heads
    return ValueLosses(
        loss=loss,
        per_critic=per_critic,
        per_critic_unclipped=per_critic if clipped is None else _total(unclipped, rows),
        per_critic_clipped=None if clipped is None else _total(clipped, rows),
        clipped=active,
        risk=heads,
    )


def _total(values: Tensor, rows: Rows) -> Tensor:  # (L, S, ...) -> (...), real steps only
    return rows.real(values).sum((0, 1))


def _value_loss(
    policy: DistributionalPolicy,
    values: Tensor,  # (L, S, C, N): raw outputs, or probabilities of a clipped categorical critic
    rows: Rows,
    targets: ValueTargets,
    weights: Coefficients,
    *,
    probabilities: bool = False,
) -> Tensor:  # (L, S, C)
    shape = rows.mask.shape

    def pick(tensor: Tensor) -> Tensor:
        return _rows(tensor, rows.index, shape)

    critic = policy.critic
    if isinstance(critic, QuantileCritic):
        assert targets.sorted is not None
        ordered, first, second = targets.sorted
        ready = quantile.SortedTargets(pick(ordered), pick(first), None if second is None else pick(second))
        return quantile.sorted_huber_loss(values, ready, critic.levels, kappa=weights.kappa)
    if isinstance(critic, CategoricalCritic):
        assert targets.probs is not None
        wanted = pick(targets.probs).unsqueeze(-2).expand_as(values)
        logits = values.clamp(min=1e-8).log() if probabilities else values
        return categorical.cross_entropy(logits, wanted)
    assert targets.scalars is not None
    return (values.squeeze(-1) - pick(targets.scalars).unsqueeze(-1)).square()


def _risk_loss(
    policy: DistributionalPolicy, evaluation: CriticEvaluation, rows: Rows, targets: RiskTargets
) -> Tensor:  # (L, S): squared error of the cost critics, pinball loss one step ahead; both act on the risk heads alone
    assert evaluation.risk is not None and policy.risk_heads is not None
    shape, critic = rows.mask.shape, policy.risk_heads.step_critic
    costs: Tensor = (evaluation.risk.costs - _rows(targets.costs, rows.index, shape)).square().mean(-1)
    values, first = (_rows(part, rows.index, shape) for part in targets.step[:2])
    ahead = quantile.SortedTargets(values, first, None)
    step = quantile.sorted_huber_loss(evaluation.risk.step.unsqueeze(-2), ahead, critic.levels, kappa=0.0).squeeze(-1)
    both: Tensor = costs + critic.squared_error_units * step
    return both


def _clip(
    policy: DistributionalPolicy, values: Tensor, rows: Rows, old: Tensor, clip: ValueClip
) -> tuple[Tensor, Tensor]:  # (L, S, C, N) -> (L, S, C, N), (L, S, C): held near each critic's own old one; moved?
    before = _rows(old, rows.index, rows.mask.shape)
    critic = policy.critic
    if isinstance(critic, CategoricalCritic):
        probs, radius = values.softmax(-1), clip.radius * float(policy.return_std)
        held = value_clipping.clip_categorical(probs, before, critic.support, radius=radius, mode=clip.mode)
        return held, (held != probs).any(-1).to(values.dtype)
    held = value_clipping.clip_quantiles(
        values,
        before,
        radius=clip.radius,
        mode=clip.mode,
        max_std_factor=clip.max_std_factor,
        weights=critic.weights,
    )
    # 1e-5 of the return scale: less than that is the rounding of a shift by 0.
    return held, ((held - values).abs() > 1e-5).any(-1).to(values.dtype)
