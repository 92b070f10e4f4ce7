"""One update: epochs of minibatches over a rollout. It returns numbers; it logs nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from leeward.algorithm import kl_control
from leeward.algorithm.lanes import Lanes
from leeward.algorithm.losses import (
    Coefficients,
    Losses,
    PolicyLosses,
    Rows,
    ValueLosses,
    ValueTargets,
    gather,
    policy_losses,
    value_losses,
)
from leeward.algorithm.peers import ALONE, Peers
from leeward.algorithm.risk_constraint import RiskTargets
from leeward.algorithm.state_adversary import Attack
from leeward.config.learning import KLStop
from leeward.maths import policy_loss
from leeward.maths.nested import Memory, forget, map_observation
from leeward.networks.action_distributions import ActionHead
from leeward.networks.lstm import Recurrence
from leeward.networks.policy import ActorEvaluation, DistributionalPolicy
from leeward.optim.pipeline import GradientPipeline, GradientReport
from leeward.optim.upgd import UtilityOptimizer
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.sequences import Batch, Sequences, cut, minibatches
from leeward.telemetry.tally import Tally

__all__ = ["Lesson", "Updater", "metric_groups"]

_MOODY = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RReLU)
_PART = 8192  # rows whose entropy is computed at a time
_YOUNG = 5  # steps after a reset that lstm/h_norm_after_reset_ratio looks at


@dataclass(frozen=True)
class Lesson:
    """What one update learns from: a rollout and everything derived from it."""

    buffer: RolloutBuffer
    advantages: Tensor  # (T, B), normalised
    targets: ValueTargets
    weights: Coefficients
    number: int  # of the update, for messages
    risk: RiskTargets | None = None  # with a constraint
    risk_part: Tensor | None = None  # (T, B), what the constraints contribute to the advantages
    attack: Attack | None = None  # with an adversary, after its warm-up
    peers: Peers = ALONE  # who else learns from a rollout of the same policy


class Updater:
    """Epochs of minibatches with the same settings in every update."""

    def __init__(
        self,
        policy: DistributionalPolicy,
        pipeline: GradientPipeline,
        *,
        n_epochs: int,
        batch_size: int | None,
        micro_batch_size: int | None,
        sequence_length: int,
        burn_in: int,
        refresh_memory: bool,
        kl_stop: KLStop,
    ) -> None:
        self.policy, self.pipeline, self.kl_stop = policy, pipeline, kl_stop
        self.n_epochs, self.batch_size, self.micro_batch_size = n_epochs, batch_size, micro_batch_size
        self.sequence_length, self.burn_in, self.refresh_memory = sequence_length, burn_in, refresh_memory
        # Whether the network computes something else in training than in the rollout.
        self.drops_out = any(
            getattr(module, "dropout", 0.0) or isinstance(module, _MOODY) for module in policy.modules()
        )
        self.apart = policy.halves_are_apart
        # Actor and critics at the same time. Not if they draw random numbers, which come from torch's one generator.
        self.side_by_side = self.apart and policy.device.type == "cpu" and not self.drops_out

    def run(self, lesson: Lesson, rng: np.random.Generator, halves: Lanes) -> dict[str, float]:
        """Train on one rollout, in two lanes only if actor and critics may be `side_by_side`.

        The metrics are means over its real steps unless their name says otherwise.
        """
        buffer, device = lesson.buffer, self.policy.device
        sequences = cut(buffer.starts.cpu().numpy(), self.sequence_length, self.burn_in)
        times, envs = (torch.as_tensor(x, device=device) for x in (sequences.times, sequences.envs))
        memory = buffer.memory_before(times, envs)
        tally, stopped_in = Tally(), self.n_epochs
        told = _PolicyRows(self.policy.action_head, lesson.weights.clip_range)
        for epoch in range(self.n_epochs):
            if epoch > 0 and self.refresh_memory and memory:
                memory = self._refreshed(buffer, sequences, memory)
            for number, batch in enumerate(self._turns(lesson, sequences, rng)):
                first = epoch == 0 and number == 0
                if first and batch is not None and self.drops_out:
                    self._check_ratio(lesson, batch, memory, tally)
                if first and batch is not None and lesson.risk_part is not None:
                    self._risk_gradient(lesson, lesson.risk_part, batch, memory, tally)
                look = first and not self.drops_out
                if not self._minibatch(lesson, batch, memory, tally, told, halves, look=look):
                    stopped_in = epoch
                    break
            told.flush(tally)
            if stopped_in == epoch:
                break
        metrics = lesson.peers.combine(tally.read(), tally.kinds())
        metrics["train/kl_stop_epoch"] = float(stopped_in)
        if isinstance(self.policy.optimizer, UtilityOptimizer):
            metrics |= self.policy.optimizer.metrics()
        return metrics

    def _turns(self, lesson: Lesson, sequences: Sequences, rng: np.random.Generator) -> Iterator[Batch | None]:
        """The minibatches of an epoch, as many in every process; None where this one has no sequence left."""
        T, B = lesson.buffer.shape
        device, peers = self.policy.device, lesson.peers
        if peers.size == 1 or self.batch_size is None:
            yield from minibatches(sequences, B, self.batch_size, rng, device)
            return
        turns = max(1, round(T * peers.n_envs(B) / self.batch_size))
        own = list(minibatches(sequences, B, T * B / turns, rng, device))
        yield from own
        yield from (None for _ in range(turns - len(own)))

    def _minibatch(
        self,
        lesson: Lesson,
        batch: Batch | None,
        memory: Memory,
        tally: Tally,
        told: "_PolicyRows",
        halves: Lanes,
        *,
        look: bool,
    ) -> bool:
        """One optimiser step, from one or several micro-batches; False when the KL stop ends the update before it.

        `look`: nothing has been learned yet, so the ratios must be 1. All that decides here is summed over processes.
        """
        for parameter in self.pipeline.parameters:
            parameter.grad = None
        own, used, kl_sum = 0 if batch is None else batch.n_real, 0.0, 0.0
        for part in () if batch is None else _micro_batches(batch, self.micro_batch_size):
            rows = gather(lesson.buffer, lesson.advantages, part)
            actor, losses, finite = self._pass(lesson, rows, _before(part, memory), own, halves)
            if look:
                _tally_start(tally, lesson.buffer.starts, rows, actor)
            told.add(rows, actor, losses.policy, finite)
            if not finite:
                tally.extreme("sum", "train/skipped_minibatches", 1.0)
                continue
            _tally_losses(tally, rows, losses, lesson.weights)
            used += rows.n_real
            if self.kl_stop.target is not None:
                learned = policy_loss.kl_k3(losses.policy.log_ratio)[rows.learned]
                kl_sum += rows.n_real * float(learned.mean()) if len(learned) else 0.0
        n_real, used, kl_sum = lesson.peers.join_gradients(self.pipeline.parameters, own, used, kl_sum)
        if used == 0:
            self.pipeline.guard.skipped(lesson.number)
            return True
        if kl_control.stops(kl_sum / used, self.kl_stop):
            return False
        if used < n_real:  # a micro-batch was skipped: the others make up the whole
            grads = [p.grad for p in self.pipeline.parameters if p.grad is not None]
            torch._foreach_mul_(grads, n_real / used)
        report = self.pipeline.apply(lesson.number)
        if report.step:
            self.policy.optimizer.step()
        self._tally_gradients(tally, report, n_real, skips_count=lesson.peers.rank == 0)
        return True

    def _pass(
        self, lesson: Lesson, rows: Rows, before: Memory, n_minibatch: int, halves: Lanes
    ) -> tuple[ActorEvaluation, Losses, bool]:
        """Forward and backward; whether all is finite. If so, the gradients of the mean over the whole minibatch's
        `n_minibatch` steps have been added, else none."""
        if self.apart and lesson.attack is None:
            return self._pass_in_halves(lesson, rows, before, n_minibatch, halves)
        # What actor and critics share runs once, and what the adversary adds is drawn from one generator.
        actor, critic = self.policy.evaluate(rows.observations, rows.actions, before, rows.action_masks)
        losses = Losses(
            policy_losses(self.policy, rows, actor, lesson.weights),
            value_losses(self.policy, rows, critic, lesson.targets, lesson.weights, lesson.risk),
        )
        if lesson.attack is not None:
            losses = lesson.attack.harden(losses, rows, before, lesson.weights)
        finite = _finite(losses.total, rows, losses.policy)
        if finite:
            _backward(losses.total / n_minibatch)
        return actor, losses, finite

    def _pass_in_halves(
        self, lesson: Lesson, rows: Rows, before: Memory, n_minibatch: int, halves: Lanes
    ) -> tuple[ActorEvaluation, Losses, bool]:
        """The actor's pass and the critics', side by side if there are two lanes."""
        policy, weights = self.policy, lesson.weights
        hidden = policy.shared_hidden(rows.observations, before)
        # All None, except after the first of several micro-batches.
        gradients = [None if p.grad is None else p.grad.clone() for p in self.pipeline.parameters]

        def of_policy() -> tuple[ActorEvaluation, PolicyLosses, bool]:
            actor = self._evaluate_actor(rows, before, hidden)
            losses = policy_losses(policy, rows, actor, weights)
            finite = _finite(losses.loss, rows, losses)
            if finite:
                _backward(losses.loss / n_minibatch)
            return actor, losses, finite

        def of_values() -> tuple[ValueLosses, bool]:
            critic = policy.evaluate_critic(rows.observations, before, hidden)
            losses = value_losses(policy, rows, critic, lesson.targets, weights, lesson.risk)
            finite = math.isfinite(losses.loss.detach())
            if finite:
                _backward(losses.loss / n_minibatch)
            return losses, finite

        (actor, first, policy_is_finite), (second, value_is_finite) = halves.both(of_policy, of_values)
        finite = policy_is_finite and value_is_finite
        if not finite:  # one half may have added its own
            for parameter, gradient in zip(self.pipeline.parameters, gradients, strict=True):
                parameter.grad = gradient
        return actor, Losses(first, second), finite

    def _evaluate_actor(self, rows: Rows, before: Memory, hidden: Tensor | None = None) -> ActorEvaluation:
        return self.policy.evaluate_actor(rows.observations, rows.actions, before, rows.action_masks, hidden)

    @torch.no_grad()
    def _check_ratio(self, lesson: Lesson, batch: Batch, memory: Memory, tally: Tally) -> None:
        """The look at a policy with dropout, which is off for it."""
        self.policy.set_training_mode(False)
        rows = gather(lesson.buffer, lesson.advantages, batch)
        _tally_start(tally, lesson.buffer.starts, rows, self._evaluate_actor(rows, _before(batch, memory)))
        self.policy.set_training_mode(True)

    def _risk_gradient(self, lesson: Lesson, risk_part: Tensor, batch: Batch, memory: Memory, tally: Tally) -> None:
        """How hard the constraints pull on the policy: the gradient of their part of the surrogate alone."""
        rows = gather(lesson.buffer, risk_part, batch)
        log_ratio = self._evaluate_actor(rows, _before(batch, memory)).log_prob - rows.log_probs
        loss = policy_loss.clipped_surrogate(log_ratio, rows.advantages, clip_range=lesson.weights.clip_range)
        pull = loss.masked_fill(~rows.learned, 0.0).sum() / batch.n_real
        gradients = torch.autograd.grad(pull, list(self.policy.action_head.parameters()), allow_unused=True)
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients if gradient is not None]
        tally.extreme("max", "risk/grad_norm", torch.linalg.vector_norm(torch.stack(norms)))

    @torch.no_grad()
    def _refreshed(self, buffer: RolloutBuffer, sequences: Sequences, memory: Memory) -> Memory:
        """The memories before all sequences, recomputed with the present weights, in the order of time; no dropout."""
        device = self.policy.device
        self.policy.set_training_mode(False)
        fresh = tuple(part.clone() for part in memory)
        running = tuple(part[0].clone() for part in buffer.memories)  # of every env, before the rollout's first step
        begins, lengths = sequences.times + sequences.context, sequences.lengths - sequences.context
        # Sequences that begin together and are equally long run as one batch; by time, so that `running` is up to date.
        for begin, length in sorted(set(zip(begins.tolist(), lengths.tolist(), strict=True))):
            chosen = np.flatnonzero((begins == begin) & (lengths == length))
            envs = torch.as_tensor(sequences.envs[chosen], device=device)
            start = forget(tuple(part[:, envs] for part in running), buffer.starts[begin, envs])
            plain = torch.as_tensor(sequences.context[chosen] == 0, device=device)
            which = torch.as_tensor(chosen, device=device)
            seen = map_observation(partial(_window, begin=begin, length=length, envs=envs), buffer.observations)
            after = self.policy.advance(seen, start)
            for part, first, now, new in zip(fresh, start, running, after, strict=True):
                part[:, which[plain]] = first[:, plain]
                now[:, envs] = new
        self.policy.set_training_mode(True)
        return fresh

    def _tally_gradients(self, tally: Tally, report: GradientReport, n_real: float, *, skips_count: bool) -> None:
        # All processes skip together, and their sums are added up.
        tally.extreme("sum", "train/skipped_minibatches", 0.0 if report.step or not skips_count else 1.0)
        if not report.step:
            return
        tally.mean_of("train/grad_norm_raw", report.raw, n_real)
        tally.mean_of("train/grad_norm_pre_clip", report.pre_clip, n_real)
        tally.extreme("max", "train/grad_norm_post_clip", report.post_clip)
        for name, norm in zip(self.pipeline.names, report.groups, strict=True):
            tally.mean_of(name, norm, n_real)
        for name, value in report.stages.items():
            tally.mean_of(name, value, n_real)


def metric_groups(policy: DistributionalPolicy) -> dict[str, list[nn.Parameter]]:
    """Parameters by the gradient norm they are reported under."""
    parts = policy.parameter_groups()
    groups: dict[str, list[nn.Parameter]] = {}
    for i in range(1, len(policy.value_heads) + 1):
        groups[f"train/critic{i}_grad_norm"] = parts.get(f"critic{i}_mlp", []) + parts[f"critic{i}_head"]
    trunk = parts.get("critic_memory", []) + parts.get("critic_extractor", [])
    if trunk:
        groups["train/critic_trunk_grad_norm"] = trunk
    for name, memory in (("actor", policy.actor_memory), ("critic", policy.critic_memory)):
        if isinstance(memory, Recurrence):
            for layer in range(memory.layers):
                own = [p for key, p in memory.core.named_parameters() if key.endswith(f"_l{layer}")]
                groups[f"train/lstm_grad_norm/{name}/{layer}"] = own
    return groups


def _micro_batches(batch: Batch, size: int | None) -> Iterator[Batch]:
    """Whole sequences, near `size` real steps each."""
    if size is None or size >= batch.n_real:
        yield batch
        return
    steps = batch.mask.sum(0).cumsum(0).cpu().numpy()
    edges = np.searchsorted(steps, np.arange(size, batch.n_real, size)) + 1
    columns = np.arange(len(steps))
    for part in np.split(columns, np.unique(edges[edges < len(steps)])):
        chosen = torch.as_tensor(part, device=batch.rows.device)
        mask = batch.mask[:, chosen]
        length = int(mask.any(1).nonzero().max()) + 1
        yield Batch(batch.sequences[chosen], batch.rows[:length, chosen], mask[:length], int(mask.sum()))


def _backward(loss: Tensor) -> None:
    """By a name of its own, which a profile shows."""
    torch.autograd.backward(loss)


def _finite(loss: Tensor, rows: Rows, policy: PolicyLosses) -> bool:
    """An infinite log-ratio is clamped in the loss and would pass unseen, so it is looked at by itself."""
    return math.isfinite(loss.detach() + rows.real(policy.log_ratio).sum())


def _before(batch: Batch, memory: Memory) -> Memory:
    """The memory before each sequence of a minibatch."""
    return tuple(part.index_select(1, batch.sequences) for part in memory)


def _window(tensor: Tensor, begin: int, length: int, envs: Tensor) -> Tensor:  # (T, B, ...) -> (L, S, ...)
    return tensor[begin : begin + length, envs]


@torch.no_grad()
def _tally_start(tally: Tally, starts: Tensor, rows: Rows, actor: ActorEvaluation) -> None:
    """Before the first step every ratio is 1, or rollout and update disagree."""
    deviation = (actor.log_prob - rows.log_probs).expm1().abs()[rows.mask].max()
    tally.extreme("max", "train/ratio_first_minibatch_max_dev", deviation)
    if actor.hidden is not None:
        _tally_resets(tally, starts, rows, actor.hidden)


def _tally_resets(tally: Tally, starts: Tensor, rows: Rows, hidden: Tensor) -> None:
    """How the memory's norm right after a reset compares with its norm at large."""
    T, _ = starts.shape
    clock = torch.arange(T, device=starts.device)[:, None]
    begun = torch.where(starts, clock, torch.full_like(clock, -T)).cummax(0).values  # start of the episode, if seen
    young = ((begun >= 0) & (clock - begun < _YOUNG)).flatten()[rows.index].reshape(rows.mask.shape)[rows.mask]
    norms = torch.linalg.vector_norm(hidden, dim=-1)[rows.mask]
    if bool(young.any()):
        tally.extreme("max", "lstm/h_norm_after_reset_ratio", norms[young].mean() / norms.mean().clamp(min=1e-12))


def _tally_losses(tally: Tally, rows: Rows, losses: Losses, weights: Coefficients) -> None:
    n, policy, value = rows.n_real, losses.policy, losses.value
    learned = n if rows.exploring is None else int(rows.learned.sum())
    if learned:
        of_policy = {
            "train/policy_gradient_loss": policy.surrogate,
            "train/policy_loss": policy.policy,
        }
        for name, total in of_policy.items():
            tally.sum_of(name, total, learned)
    value_loss = value.per_critic.mean()
    clipped = value.per_critic_clipped is not None
    sums = {
        "train/loss": losses.total,
        "train/value_loss": value_loss,
        "train/critic_loss_unclipped": value.per_critic_unclipped.mean() if clipped else value_loss,
    }
    sums |= {f"train/critic{i}_loss": each for i, each in enumerate(value.per_critic.unbind(), start=1)}
    if value.per_critic_clipped is not None and value.clipped is not None:
        sums["train/critic_loss_clipped"] = value.per_critic_clipped.mean()
        sums["train/vf_clip_active_frac"] = value.clipped
    for name, total in (sums | losses.robust).items():
        tally.sum_of(name, total, n)
    if weights.awr is not None:
        tally.mean_of("train/bc_loss_ratio", policy.awr.abs() / policy.surrogate.abs().clamp(min=1e-12), n)


class _PolicyRows:
    """What is told of the policy row by row, taken together once per epoch: a few dozen small operations on every
    minibatch would cost more than the numbers are worth."""

    def __init__(self, head: ActionHead, clip_range: float) -> None:
        self.head, self.clip_range = head, clip_range
        # Of every minibatch: log-ratio, real?, told of?, (n,) each; action parameters before and now, (n, P).
        self.rows: list[tuple[Tensor, ...]] = []

    def add(self, rows: Rows, actor: ActorEvaluation, losses: PolicyLosses, finite: bool) -> None:
        learned = rows.learned if finite else torch.zeros_like(rows.mask)
        parts = (losses.log_ratio, rows.mask, learned, rows.action_parameters, actor.action_parameters.detach())
        self.rows.append(tuple(part.flatten(0, 1) for part in parts))

    @torch.no_grad()
    def flush(self, tally: Tally) -> None:
        """Tell the tally of everything added since the last time."""
        if not self.rows:
            return
        log_ratio, real, learned, before, now = (torch.cat(parts) for parts in zip(*self.rows, strict=True))
        self.rows.clear()
        every = log_ratio[real]
        nan, inf = torch.isnan(every).sum(), torch.isinf(every).sum()
        for name, count in (("nan_count", nan), ("inf_count", inf), ("nonfinite", nan + inf)):
            tally.extreme("sum", f"error/log_ratio_{name}", count)
        log_ratio, before, now = log_ratio[learned], before[learned], now[learned]
        if len(log_ratio) == 0:
            return
        size, ratio = log_ratio.abs(), policy_loss.ratio(log_ratio)
        # In parts: a squashed head takes some dozen numbers for each of an action.
        entropy = torch.cat([self.head.entropy(part) for part in now.split(_PART)])
        tally.mean(
            len(log_ratio),
            train__approx_kl=policy_loss.kl_k3(log_ratio).mean(),
            train__approx_kl_k1=policy_loss.kl_k1(log_ratio).mean(),
            train__kl_exact=self.head.kl(before, now).mean(),
            train__clip_fraction=((ratio - 1.0).abs() > self.clip_range).float().mean(),
            train__log_ratio_extreme_fraction=(size > 10.0).float().mean(),
            train__log_ratio_clamped_fraction=(size > policy_loss.LOG_RATIO_LIMIT).float().mean(),
            train__policy_entropy=entropy.mean(),
            train__entropy_loss=-entropy.mean(),
        )
        tally.extreme("max", "train/log_ratio_max_abs", size.max())
        tally.extreme("min", "train/policy_entropy_min", entropy.min())
        tally.extreme("max", "train/policy_entropy_max", entropy.max())
