"""The terms of the loss on one minibatch, each a sum over its real steps."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from leeward.algorithm.return_scale import UnitChange
from leeward.algorithm.risk_constraint import RiskTargets
from leeward.config.learning import AWR, ValueClip
from leeward.maths import policy_loss
from leeward.maths.nested import Observation, map_observation
from leeward.networks.actor_critic import ActorCritic, ActorEvaluation, CriticEvaluation
from leeward.networks.value_heads import Critic, Encoded
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.sequences import Batch
from leeward.telemetry.metrics import Metric

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
    policy_weight: float  # all envs over those that explore, so that the policy learns a mean over the latter's steps
    outlook_weight: float  # all envs over those that act as deployed; 1 without such envs
    value_weight: float  # of the value loss, which is in units of the return scale
    risk_weight: float  # of the losses of the risk heads, in units of their own scales
    ent_coef: float
    kappa: float
    value_clip: ValueClip
    kl_penalty: float  # 0 = off
    awr: AWR | None


@dataclass(frozen=True)
class ValueTargets:
    """What the critics learn from in one update, one row per step (T·B)."""

    encoded: Encoded
    old: Tensor | None = None  # (T·B, C, N): the rollout's own predictions as the critic restates them, if clipped


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
    values: Tensor  # (L, S, C, N), detached: the raw outputs it is of
    per_critic: Tensor
    per_critic_unclipped: Tensor
    per_critic_clipped: Tensor | None
    clipped: Tensor | None  # number of real steps whose prediction was clipped, mean over critics
    risk: Tensor  # of the risk heads


@dataclass(frozen=True)
class Losses:
    policy: PolicyLosses
    value: ValueLosses
    robust: dict[Metric, Tensor] = field(default_factory=dict)  # detached: what the adversary measured

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
    critic: Critic, samples: Tensor, change: UnitChange, weights: Coefficients
) -> ValueTargets:  # (T, B, M)
    """Encode the targets once per rollout, in the unit the critics have now."""
    old = None
    if weights.value_clip.mode != "disable":
        old = critic.restate(change.raw_values, change.frame).flatten(0, 1)
    return ValueTargets(critic.encode(samples.flatten(0, 1), kappa=weights.kappa), old)


def policy_losses(policy: ActorCritic, rows: Rows, evaluation: ActorEvaluation, weights: Coefficients) -> PolicyLosses:
    """Clipped surrogate, and what is switched on beside it."""

    def total(values: Tensor) -> Tensor:  # (L, S) -> (), real steps that explored, for all
        if rows.exploring is None:
            return _total(values, rows)
        return weights.policy_weight * _total(values.masked_fill(~rows.exploring, 0.0), rows)

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
        loss = loss - weights.ent_coef * total(policy.action_head.joint_entropy(evaluation.action_parameters))
    return PolicyLosses(loss, policy_term, surrogate, awr, log_ratio.detach())


def value_losses(
    policy: ActorCritic,
    rows: Rows,
    evaluation: CriticEvaluation,
    targets: ValueTargets,
    weights: Coefficients,
    risk: RiskTargets | None = None,
) -> ValueLosses:
    """The distributional loss of each critic, and the losses of the risk heads.

    With deployed envs the critics and the step head learn from those alone: what they predict is the policy as it will
    be used, and as a baseline that is as good as any. Cost critics are baselines only, and learn from all.
    """
    critic, shape = policy.critic, rows.mask.shape
    wanted = tuple(None if table is None else _rows(table, rows.index, shape) for table in targets.encoded)

    def total(values: Tensor) -> Tensor:  # (L, S, ...) -> (...), real steps of the policy that the outlook describes
        if rows.exploring is None:
            return _total(values, rows)
        shape = rows.exploring.shape + (1,) * (values.ndim - 2)
        return weights.outlook_weight * _total(values.masked_fill(rows.exploring.reshape(shape), 0.0), rows)

    unclipped = critic.loss(evaluation.values, wanted, kappa=weights.kappa)  # (L, S, C)
    chosen, clipped, active = unclipped, None, None
    if targets.old is not None:
        old = _rows(targets.old, rows.index, shape)
        held, moved = critic.hold_near(evaluation.values, old, weights.value_clip)
        clipped = critic.loss(held, wanted, kappa=weights.kappa)
        chosen = torch.maximum(unclipped, clipped)
        active = total(moved).mean()
    per_critic = total(chosen)  # (C,)
    loss = weights.value_weight * per_critic.mean()
    heads = torch.zeros_like(loss)
    if risk is not None:
        costs, step = _risk_losses(policy, evaluation, rows, risk)
        heads = _total(costs, rows) + total(step)
        loss = loss + weights.risk_weight * heads
    return ValueLosses(
        loss=loss,
        values=evaluation.values.detach(),
        per_critic=per_critic,
        per_critic_unclipped=per_critic if clipped is None else total(unclipped),
        per_critic_clipped=None if clipped is None else total(clipped),
        clipped=active,
        risk=heads,
    )


def _total(values: Tensor, rows: Rows) -> Tensor:  # (L, S, ...) -> (...), real steps only
    return rows.real(values).sum((0, 1))


def _risk_losses(
    policy: ActorCritic, evaluation: CriticEvaluation, rows: Rows, targets: RiskTargets
) -> tuple[Tensor, Tensor]:  # (L, S) each: squared error of the cost critics, pinball loss one step ahead
    assert evaluation.risk is not None and policy.risk_heads is not None
    shape, critic = rows.mask.shape, policy.risk_heads.step_critic
    costs: Tensor = (evaluation.risk.costs - _rows(targets.costs, rows.index, shape)).square().mean(-1)
    ahead = tuple(None if table is None else _rows(table, rows.index, shape) for table in targets.step)
    step = critic.loss(evaluation.risk.step.unsqueeze(-2), ahead, kappa=0.0).squeeze(-1)
    return costs, critic.squared_error_units * step
