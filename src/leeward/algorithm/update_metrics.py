"""What is measured of one update and of the rollout behind it. Nothing here changes what is learned."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from leeward.algorithm.losses import Losses, PolicyLosses, Rows
from leeward.algorithm.parallel.process_group import ProcessGroup
from leeward.algorithm.return_scale import UnitChange
from leeward.maths import diagnostics, policy_loss
from leeward.maths.nested import forget, map_observation
from leeward.networks.action_distributions import ActionHead, GaussianHead
from leeward.networks.actor_critic import ActorCritic, ActorEvaluation
from leeward.networks.lstm import Recurrence
from leeward.networks.value_distribution import ValueDistribution
from leeward.optim.pipeline import HALVES, GradientReport
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Metric, Numbers
from leeward.telemetry.rules import RULES
from leeward.telemetry.tally import Tally

__all__ = [
    "PolicyStatistics",
    "UpdateResult",
    "add_gradients",
    "add_losses",
    "add_start",
    "advantage_numbers",
    "calibration_error",
    "critics_ratio",
    "gradient_groups",
    "reward_numbers",
    "rollout_numbers",
]

_PART = 8192  # rows whose entropy is computed at a time
_YOUNG = 5  # steps after a reset that lstm/h_norm_after_reset_ratio looks at
_SATURATED = 0.95
_NO_MOVE = 1e-30  # sums below it have no direction


@dataclass(frozen=True)
class UpdateResult:
    """What an update came to: what controllers act on by name, and every number for the log."""

    numbers: Numbers
    stopped_in: int  # the epoch in which the KL stop ended it; n_epochs if it did not
    policy_entropy: float | None  # nats, mean over the steps learned from; None if there was no finite one
    kl_exact: float | None  # nats, KL(old ‖ new), likewise
    risk_grad_norm: float | None  # how hard the constraints pull on the action head; None without one


def gradient_groups(policy: ActorCritic) -> dict[Metric, list[nn.Parameter]]:
    """Parameters by the gradient norm they are reported under."""
    parts = policy.parameter_groups()
    groups: dict[Metric, list[nn.Parameter]] = {}
    for i, metric in zip(range(1, len(policy.value_heads) + 1), _CRITIC_GRAD_NORMS, strict=False):
        groups[metric] = parts.get(f"critic{i}_mlp", []) + parts[f"critic{i}_head"]
    trunk = parts.get("critic_memory", []) + parts.get("critic_extractor", [])
    if trunk:
        groups[metrics.CRITIC_TRUNK_GRAD_NORM] = trunk
    for name, memory in (("actor", policy.actor_memory), ("critic", policy.critic_memory)):
        if isinstance(memory, Recurrence):
            for layer in range(memory.layers):
                own = [p for key, p in memory.core.named_parameters() if key.endswith(f"_l{layer}")]
                groups[metrics.LSTM_GRAD_NORM.of(module=name, layer=layer)] = own
    return groups


_CRITIC_GRAD_NORMS = (metrics.CRITIC1_GRAD_NORM, metrics.CRITIC2_GRAD_NORM)
_CRITIC_LOSSES = (metrics.CRITIC1_LOSS, metrics.CRITIC2_LOSS)
_LOSSES: tuple[Metric, ...] = (
    metrics.LOSS,
    metrics.POLICY_GRADIENT_LOSS,
    metrics.POLICY_LOSS,
    metrics.VALUE_LOSS,
    metrics.CRITIC_LOSS_UNCLIPPED,
)
_COUNTS = (metrics.LOG_RATIO_NAN_COUNT, metrics.LOG_RATIO_INF_COUNT, metrics.LOG_RATIO_NONFINITE)
_NORMS = (
    *(metrics.GRAD_NORM_RAW, metrics.GRAD_NORM_PRE_CLIP, metrics.GRAD_NORM_POST_CLIP),
    *(metrics.GRAD_NORM_RAW_MAX, metrics.GRAD_NORM_PRE_CLIP_MAX, metrics.GRAD_NORM_POST_CLIP_MAX),
    *(metrics.GRAD_NORM_PRE_CLIP_OF.of(half=half) for half in HALVES),
    *(metrics.GRAD_NORM_POST_CLIP_OF.of(half=half) for half in HALVES),
    *(metrics.GRAD_NORM_PRE_CLIP_MAX_OF.of(half=half) for half in HALVES),
    *(metrics.GRAD_NORM_POST_CLIP_MAX_OF.of(half=half) for half in HALVES),
)


# --- of a rollout and its targets -------------------------------------------------------------------------------------


def reward_numbers(rollout: RolloutBuffer, group: ProcessGroup) -> Numbers:
    """What the rewards of all processes say by themselves, before any normalisation."""
    rewards = group.columns(rollout.rewards.double() if rollout.original_rewards is None else rollout.original_rewards)
    lowest, highest = float(rewards.min()), float(rewards.max())
    # Where every step earns the same, how long an episode lasts may still differ, if it is not cut from outside.
    alike = lowest == highest and (highest == 0.0 or not bool(group.columns(rollout.terminated).any()))
    paid = rewards[rewards != 0.0].abs()
    return {
        metrics.REWARD_MEAN: float(rewards.mean()),
        metrics.REWARD_SIZE: float(paid.median()) if len(paid) else 0.0,
        metrics.REWARD_STD: float(rewards.std(correction=0)),
        metrics.WARN_REWARD_CONSTANT: float(alike),
    }


def advantage_numbers(raw: Tensor, values: Tensor, normalised: Tensor) -> Numbers:  # (T, B) each
    numbers = {
        metrics.ADVANTAGE_MEAN_RAW: float(raw.mean()),
        metrics.ADVANTAGE_STD_RAW: float(raw.std(correction=0)),
        metrics.ADVANTAGE_MIN: float(raw.min()),
        metrics.ADVANTAGE_MAX: float(raw.max()),
        metrics.ADVANTAGES_NORM_MAX_ABS: float(normalised.abs().max()),
        metrics.ADVANTAGES_NORM_MEAN: float(normalised.mean()),
        metrics.ADVANTAGES_NORM_STD: float(normalised.std(correction=0)),
    }
    explained = float(diagnostics.explained_variance(values, raw + values))
    if not math.isnan(explained):  # returns that do not vary have no variance to explain
        numbers[metrics.EXPLAINED_VARIANCE] = explained
    return numbers


def calibration_error(predicted: ValueDistribution, whole: Tensor, complete: Tensor) -> float:  # (T, B, 1), (T, B)
    """Predicted distributions against whole returns, where the episode ended inside the rollout."""
    if predicted.levels is not None:
        return float(diagnostics.calibration_error(predicted.values[complete], whole[complete], predicted.levels))
    # Atoms: coverage of the deciles, each judged by the mass at or below the outcome.
    below = (predicted.weights * (predicted.values <= whole)).sum(-1)[complete]  # (n,)
    deciles = torch.arange(0.1, 0.95, 0.1, device=below.device)
    return float(((below[:, None] <= deciles).float().mean(0) - deciles).abs().mean())


def rollout_numbers(policy: ActorCritic, rollout: RolloutBuffer, change: UnitChange) -> Numbers:
    """What the policy was like in the rollout: its memory, its critics, its noise."""
    numbers = _memory_numbers(policy, rollout)
    if change.means.shape[-1] > 1:
        numbers[metrics.CRITIC_GAP] = float((change.means[..., 0] - change.means[..., 1]).abs().mean())
    if isinstance(policy.action_head, GaussianHead):
        log_std = rollout.action_parameters[..., policy.action_head.action_size :]
        numbers[metrics.STD] = float(log_std.exp().mean())
    if (costs := rollout.cost_fractions) is not None:
        finite = np.isfinite(costs)
        numbers[metrics.TRADE_COSTS_DROPPED] = float((~finite).sum())
        if finite.any():
            numbers[metrics.TRADE_COSTS_FRACTION] = float(costs[finite].mean())
    return numbers


class _MemoryMetrics(NamedTuple):
    h_mean: Metric
    h_std: Metric
    h_norm: Metric
    c_mean: Metric
    c_norm: Metric
    saturation: Metric


_MEMORY_METRICS = {
    "actor": _MemoryMetrics(
        metrics.LSTM_H_MEAN,
        metrics.LSTM_H_STD,
        metrics.LSTM_H_NORM,
        metrics.LSTM_C_MEAN,
        metrics.LSTM_C_NORM,
        metrics.LSTM_SATURATION,
    ),
    "critic": _MemoryMetrics(
        metrics.LSTM_CRITIC_H_MEAN,
        metrics.LSTM_CRITIC_H_STD,
        metrics.LSTM_CRITIC_H_NORM,
        metrics.LSTM_CRITIC_C_MEAN,
        metrics.LSTM_CRITIC_C_NORM,
        metrics.LSTM_CRITIC_SATURATION,
    ),
}


def _memory_numbers(policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
    """The memories from which sequences start, by layer, and how their gates are there."""
    if not rollout.memories:
        return {}
    numbers: Numbers = {}
    times = list(rollout.memory_slots)
    starts = rollout.starts[times].flatten()  # (slots·B,)
    flat = tuple(part.transpose(0, 1).flatten(1, 2) for part in rollout.memories)  # each (layers, slots·B, H)
    seen = map_observation(lambda x: x[times], rollout.observations)
    place = 0
    for name, activity in policy.memory_activity(seen, forget(flat, starts)).items():
        parts = 2 if policy.cell == "lstm" else 1
        for layer, (gates, squashed) in enumerate(activity):
            own = _MemoryMetrics(*(metric.of(i=layer) for metric in _MEMORY_METRICS[name]))
            h = flat[place][layer]
            numbers[own.h_mean] = float(h.mean())
            numbers[own.h_std] = float(h.std(correction=0))
            numbers[own.h_norm] = float(torch.linalg.vector_norm(h, dim=-1).mean())
            if parts == 2:
                c = flat[place + 1][layer]
                numbers[own.c_mean] = float(c.mean())
                numbers[own.c_norm] = float(torch.linalg.vector_norm(c, dim=-1).mean())
            stuck = (gates < 1.0 - _SATURATED) | (gates > _SATURATED)
            numbers[own.saturation] = float(torch.maximum(_share(stuck), _share(squashed.abs() > _SATURATED)))
        place += parts
    return numbers


def _share(marks: Tensor) -> Tensor:  # bool (...) -> ()
    return marks.float().mean()


# --- of minibatches ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def add_start(tally: Tally, starts: Tensor, rows: Rows, actor: ActorEvaluation) -> None:
    """Before the first step every ratio is 1, or rollout and update disagree."""
    deviation = (actor.log_prob - rows.log_probs).expm1().abs()[rows.mask].max()
    tally.add(metrics.RATIO_FIRST_MINIBATCH_MAX_DEV, deviation)
    if actor.hidden is not None:
        _add_resets(tally, starts, rows, actor.hidden)


def _add_resets(tally: Tally, starts: Tensor, rows: Rows, hidden: Tensor) -> None:
    """How the memory's norm right after a reset compares with its norm at large."""
    T, _ = starts.shape
    clock = torch.arange(T, device=starts.device)[:, None]
    begun = torch.where(starts, clock, torch.full_like(clock, -T)).cummax(0).values  # start of the episode, if seen
    young = ((begun >= 0) & (clock - begun < _YOUNG)).flatten()[rows.index].reshape(rows.mask.shape)[rows.mask]
    norms = torch.linalg.vector_norm(hidden, dim=-1)[rows.mask]
    if bool(young.any()):
        tally.add(metrics.LSTM_H_NORM_AFTER_RESET_RATIO, norms[young].mean() / norms.mean().clamp(min=1e-12))


@torch.no_grad()
def add_losses(tally: Tally, rows: Rows, losses: Losses) -> None:
    policy, value = losses.policy, losses.value
    value_loss = value.per_critic.mean()
    clipped = value.per_critic_clipped is not None
    unclipped = value.per_critic_unclipped.mean() if clipped else value_loss
    names, totals = _LOSSES, [losses.total, policy.surrogate, policy.policy, value_loss, unclipped, *value.per_critic]
    names += _CRITIC_LOSSES[: len(value.per_critic)]
    if value.per_critic_clipped is not None and value.clipped is not None:
        names += (metrics.CRITIC_LOSS_CLIPPED, metrics.VF_CLIP_ACTIVE_FRAC)
        totals += [value.per_critic_clipped.mean(), value.clipped]
    if losses.robust:
        names += tuple(losses.robust)
        totals += losses.robust.values()
    tally.add_totals(names, torch.stack(totals), rows.n_real)


def add_gradients(
    tally: Tally, groups: list[Metric], report: GradientReport, n_real: float, *, skips_count: bool
) -> None:
    """Norms of one optimiser step. All processes skip together and their sums are added up: one of them counts."""
    if not report.step:
        tally.add(metrics.SKIPPED_MINIBATCHES, 1.0 if skips_count else 0.0)
        return
    halves = torch.stack((report.raw, report.pre_clip, report.post_clip))  # (3, 2)
    clipped = halves[1:].flatten()
    both = torch.linalg.vector_norm(halves, dim=1)
    tally.add_row((*_NORMS, *groups), torch.cat((both, both, clipped, clipped, report.groups)), n_real)
    for metric, value in report.stages.items():
        tally.add(metric, value, n_real)


def critics_ratio(numbers: Numbers) -> Numbers:
    """Do both critics learn alike? A critic without a gradient is vanishing, and that alone (docs/lessons.md, C7)."""
    first, second = (numbers.get(metric) for metric in _CRITIC_GRAD_NORMS)
    if first is None or second is None or min(first, second) < RULES["critic1_vanishing"].threshold:
        return {}
    return {metrics.CRITICS_GRAD_RATIO: first / second}


class PolicyStatistics:
    """What is said of the policy row by row, taken together once per epoch: a few dozen small operations on every
    minibatch would cost more than the numbers are worth."""

    def __init__(self, head: ActionHead, clip_range: float) -> None:
        self.head, self.clip_range = head, clip_range
        # For every minibatch: log-ratio, advantage, real?, learned from?, (n,) each; action parameters before and now,
        # (n, P).
        self.rows: list[tuple[Tensor, ...]] = []

    def add(self, rows: Rows, actor: ActorEvaluation, losses: PolicyLosses, finite: bool) -> None:
        learned = rows.learned if finite else torch.zeros_like(rows.mask)
        ratios = (losses.log_ratio, rows.advantages)
        parts = (*ratios, rows.mask, learned, rows.action_parameters, actor.action_parameters.detach())
        self.rows.append(tuple(part.flatten(0, 1) for part in parts))

    @torch.no_grad()
    def flush(self, tally: Tally) -> None:
        """Hand everything added since the last time to the tally."""
        if not self.rows:
            return
        log_ratio, advantages, real, learned, before, now = (torch.cat(parts) for parts in zip(*self.rows, strict=True))
        self.rows.clear()
        every = log_ratio[real]
        nan, inf = torch.isnan(every).sum(), torch.isinf(every).sum()
        tally.add_row(_COUNTS, torch.stack((nan, inf, nan + inf)).to(torch.float32), 1.0)
        log_ratio, advantages, before, now = (part[learned] for part in (log_ratio, advantages, before, now))
        n = len(log_ratio)
        if n == 0:
            return
        size, ratio = log_ratio.abs(), policy_loss.ratio(log_ratio)
        # In parts: a squashed head takes some dozen numbers for each of an action.
        entropy = torch.cat([self.head.joint_entropy(part) for part in now.split(_PART)])
        gains, mean_entropy = (ratio - 1.0) * advantages, entropy.mean()
        found = {
            metrics.APPROX_KL: policy_loss.kl_k3(log_ratio).mean(),
            metrics.APPROX_KL_K1: policy_loss.kl_k1(log_ratio).mean(),
            metrics.KL_EXACT: self.head.kl(before, now).mean(),
            metrics.CLIP_FRACTION: ((ratio - 1.0).abs() > self.clip_range).float().mean(),
            metrics.SURROGATE_DIRECTION: gains.sum() / gains.abs().sum().clamp(min=_NO_MOVE),
            metrics.LOG_RATIO_EXTREME_FRACTION: (size > 10.0).float().mean(),
            metrics.LOG_RATIO_CLAMPED_FRACTION: (size > policy_loss.LOG_RATIO_LIMIT).float().mean(),
            metrics.POLICY_ENTROPY: mean_entropy,
            metrics.ENTROPY_LOSS: -mean_entropy,
            metrics.LOG_RATIO_MAX_ABS: size.max(),
            metrics.POLICY_ENTROPY_MIN: entropy.min(),
            metrics.POLICY_ENTROPY_MAX: entropy.max(),
        }
        tally.add_row(tuple(found), torch.stack(tuple(found.values())), n)
