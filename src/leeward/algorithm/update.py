"""One update: epochs of minibatches over a rollout. It returns numbers; it logs nothing."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from leeward.algorithm import kl_stop
from leeward.algorithm.health_numbers import network_has_its_turn
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
from leeward.algorithm.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from leeward.algorithm.risk_constraint import RiskTargets
from leeward.algorithm.state_adversary import Attack
from leeward.algorithm.step_looks import StepLook
from leeward.algorithm.two_threads import TwoThreads
from leeward.algorithm.update_metrics import PolicyStatistics, UpdateResult, add_gradients, add_losses, add_start
from leeward.maths import policy_loss
from leeward.maths.nested import Memory, forget, map_observation
from leeward.networks.actor_critic import ActorCritic, ActorEvaluation
from leeward.optim.pipeline import GradientPipeline
from leeward.optim.upgd import UtilityOptimizer
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.sequences import Batch, Sequences, cut, minibatches
from leeward.telemetry import metrics
from leeward.telemetry.tally import Tally

__all__ = ["UpdateInputs", "UpdatePlan", "Updater"]

_TELLING = 6  # sequences that are not drawn twice in the same order
_DIFFERENT_IN_TRAINING = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm, nn.RReLU)


@dataclass(frozen=True)
class UpdatePlan:
    """How an update walks over its rollout."""

    n_epochs: int
    batch_size: int | None  # real steps of all processes; None = the whole rollout
    micro_batch_size: int | None
    sequence_length: int
    burn_in: int
    refresh_memory: bool
    target_kl: float | None
    max_grad_norm: float | None


@dataclass(frozen=True)
class UpdateInputs:
    """What one update learns from: a rollout and everything derived from it."""

    rollout: RolloutBuffer
    advantages: Tensor  # (T, B), normalised
    samples: Tensor  # (T, B, M), of the return: what `targets` hold in the critics' own form
    targets: ValueTargets
    weights: Coefficients
    plan: UpdatePlan
    number: int  # of the update, for messages
    risk: RiskTargets | None = None  # with a constraint
    risk_part: Tensor | None = None  # (T, B), what the constraints contribute to the advantages
    attack: Attack | None = None  # with an adversary, after its warm-up
    group: ProcessGroup = SINGLE_PROCESS  # who else learns from a rollout of the same policy


class Updater:
    """Runs updates of one policy; owns the gradient pipeline."""

    def __init__(self, policy: ActorCritic, pipeline: GradientPipeline) -> None:
        self.policy, self.pipeline = policy, pipeline
        # Whether the network computes something else in training than in the rollout.
        self.drops_out = any(
            getattr(module, "dropout", 0.0) or isinstance(module, _DIFFERENT_IN_TRAINING) for module in policy.modules()
        )
        self.apart = policy.halves_are_apart
        # Actor and critics at the same time. Not if they draw random numbers, which come from torch's one generator.
        self.side_by_side = self.apart and policy.device.type == "cpu" and not self.drops_out

    def run(self, inputs: UpdateInputs, rng: np.random.Generator, threads: TwoThreads) -> UpdateResult:
        """Train on one rollout, on two threads only if actor and critics may be `side_by_side`.

        Numbers are means over its real steps unless their metric says otherwise.
        """
        rollout, plan, device = inputs.rollout, inputs.plan, self.policy.device
        sequences = cut(rollout.starts.cpu().numpy(), plan.sequence_length, plan.burn_in)
        times, envs = (torch.as_tensor(x, device=device) for x in (sequences.times, sequences.envs))
        memory = rollout.memory_before(times, envs)
        tally, stopped_in = Tally(), plan.n_epochs
        tally.add(metrics.SKIPPED_MINIBATCHES, 0.0)
        statistics = PolicyStatistics(self.policy.action_head, inputs.weights.clip_range)
        steps, looked_at = 0, self._looked_at(inputs)
        turns = _Turns(rollout.rewards.numel(), exact=looked_at is not None)
        for epoch in range(plan.n_epochs):
            if epoch > 0 and plan.refresh_memory and memory:
                memory = self._refreshed(rollout, sequences, memory)
            for number, batch in enumerate(self._turns(inputs, sequences, rng)):
                first = epoch == 0 and number == 0
                if first and batch is not None and self.drops_out:
                    self._check_ratio(inputs, batch, memory, tally)
                if first and batch is not None:
                    self._measure_pulls(inputs, batch, memory, tally)
                look = first and not self.drops_out
                again = None
                if steps == looked_at:
                    again = StepLook(self.policy, rollout, inputs.advantages, inputs.samples, inputs.weights)
                steps += 1
                if not self._minibatch(inputs, batch, memory, tally, statistics, threads, look=look, again=again):
                    stopped_in = epoch
                    break
                turns.add(batch, epoch, number)
            statistics.flush(tally)
            if stopped_in == epoch:
                break
            tally.add(metrics.ROLLOUT_USED, turns.used())
        tally.add(metrics.MINIBATCHES_REPEATED, turns.repeated)
        numbers = inputs.group.combine(tally.read(), tally.weights())
        numbers[metrics.KL_STOP_EPOCH] = float(stopped_in)
        if isinstance(self.policy.optimizer, UtilityOptimizer):
            numbers |= self.policy.optimizer.numbers()
        return UpdateResult(
            numbers,
            stopped_in,
            policy_entropy=numbers.get(metrics.POLICY_ENTROPY),
            kl_exact=numbers.get(metrics.KL_EXACT),
            risk_grad_norm=numbers.get(metrics.RISK_GRAD_NORM),
        )

    def _looked_at(self, inputs: UpdateInputs) -> int | None:
        """Which step is computed a second time, in every other update: the first and the second in turns, since an
        update may have but one, and what is wrong with a sum of gradients shows in the second only."""
        if inputs.attack is not None or network_has_its_turn(inputs.number):  # what an adversary adds is not known here
            return None
        return inputs.number // 2 % 2

    def _turns(self, inputs: UpdateInputs, sequences: Sequences, rng: np.random.Generator) -> Iterator[Batch | None]:
        """The minibatches of an epoch, as many in every process; None where this one has no sequence left."""
        T, B = inputs.rollout.shape
        device, group, size = self.policy.device, inputs.group, inputs.plan.batch_size
        if group.size == 1 or size is None:
            yield from minibatches(sequences, B, size, rng, device)
            return
        turns = max(1, round(T * group.n_envs(B) / size))
        own = list(minibatches(sequences, B, T * B / turns, rng, device))
        yield from own
        yield from (None for _ in range(turns - len(own)))

    def _minibatch(
        self,
        inputs: UpdateInputs,
        batch: Batch | None,
        memory: Memory,
        tally: Tally,
        statistics: PolicyStatistics,
        threads: TwoThreads,
        *,
        look: bool,
        again: StepLook | None,
    ) -> bool:
        """One optimiser step, from one or several micro-batches; False when the KL stop ends the update before it.

        `look`: nothing has been learned yet, so the ratios must be 1; `again`: the step is computed a second time. All
        that decides here is summed over processes.
        """
        for parameter in self.pipeline.parameters:
            parameter.grad = None
        own, used, learned, kl_sum = 0 if batch is None else batch.n_real, 0.0, 0.0, 0.0
        for part in () if batch is None else _micro_batches(batch, inputs.plan.micro_batch_size):
            rows = gather(inputs.rollout, inputs.advantages, part)
            actor, losses, finite = self._pass(inputs, rows, _before(part, memory), own, threads)
            if look:
                add_start(tally, inputs.rollout.starts, rows, actor)
            statistics.add(rows, actor, losses.policy, finite)
            if not finite:
                tally.add(metrics.SKIPPED_MINIBATCHES, 1.0)
                if again is not None:
                    again.spoil()
                continue
            if again is not None:
                again.add(part, actor.action_parameters, losses.value.values, inputs.targets, own)
            add_losses(tally, rows, losses)
            used += rows.n_real
            if inputs.plan.target_kl is not None:
                distances = policy_loss.kl_k3(losses.policy.log_ratio)[rows.learned]
                learned, kl_sum = learned + len(distances), kl_sum + float(distances.sum())
        n_real, used, learned, kl_sum = inputs.group.join_gradients(
            self.pipeline.parameters, own, used, learned, kl_sum
        )
        if used == 0:
            self.pipeline.guard.skipped(inputs.number)
            return True
        if learned and kl_stop.stops(kl_sum / learned, inputs.plan.target_kl):
            return False
        if used < n_real:  # a micro-batch was skipped: the others make up the whole
            grads = [p.grad for p in self.pipeline.parameters if p.grad is not None]
            torch._foreach_mul_(grads, n_real / used)
        report = self.pipeline.apply(inputs.number, max_grad_norm=inputs.plan.max_grad_norm)
        optimizer = self.policy.optimizer
        if again is not None:
            again.judge(report, optimizer, inputs.group, own / n_real, scaled=bool(self.pipeline.stages))
        if report.step:
            optimizer.step()
        if again is not None:
            again.stepped()
            for metric, value in again.numbers.items():
                tally.add(metric, value)
        add_gradients(tally, self.pipeline.groups, report, n_real, skips_count=inputs.group.rank == 0)
        return True

    def _pass(
        self, inputs: UpdateInputs, rows: Rows, before: Memory, n_minibatch: int, threads: TwoThreads
    ) -> tuple[ActorEvaluation, Losses, bool]:
        """Forward and backward; whether all is finite. If so, the gradients of the mean over the whole minibatch's
        `n_minibatch` steps have been added, else none."""
        if self.apart and inputs.attack is None:
            return self._pass_in_halves(inputs, rows, before, n_minibatch, threads)
        # What actor and critics share runs once, and what the adversary adds is drawn from one generator.
        actor, critic = self.policy.evaluate(rows.observations, rows.actions, before, rows.action_masks)
        losses = Losses(
            policy_losses(self.policy, rows, actor, inputs.weights),
            value_losses(self.policy, rows, critic, inputs.targets, inputs.weights, inputs.risk),
        )
        if inputs.attack is not None:
            losses = inputs.attack.harden(losses, rows, before, inputs.weights)
        finite = _finite(losses.total, rows, losses.policy)
        if finite:
            self._backward_apart(losses, n_minibatch)
        return actor, losses, finite

    def _backward_apart(self, losses: Losses, n_minibatch: int) -> None:
        """Both halves of the gradient; of weights that both train, the actor's goes to their stand-ins."""
        shared, shares = self.pipeline.shared, self.pipeline.actor_shares
        if not shared:
            _backward(losses.total / n_minibatch)
            return
        of_critics = [p.grad for p in shared]
        for parameter, share in zip(shared, shares, strict=True):
            parameter.grad = share.grad
        torch.autograd.backward(losses.policy.loss / n_minibatch, retain_graph=True)
        for parameter, share, gradient in zip(shared, shares, of_critics, strict=True):
            share.grad, parameter.grad = parameter.grad, gradient
        _backward(losses.value.loss / n_minibatch)

    def _pass_in_halves(
        self, inputs: UpdateInputs, rows: Rows, before: Memory, n_minibatch: int, threads: TwoThreads
    ) -> tuple[ActorEvaluation, Losses, bool]:
        """The actor's pass and the critics', side by side if there are two threads."""
        policy, weights = self.policy, inputs.weights
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
            losses = value_losses(policy, rows, critic, inputs.targets, weights, inputs.risk)
            finite = math.isfinite(losses.loss.detach())
            if finite:
                _backward(losses.loss / n_minibatch)
            return losses, finite

        (actor, first, policy_is_finite), (second, value_is_finite) = threads.run_both(of_policy, of_values)
        finite = policy_is_finite and value_is_finite
        if not finite:  # one half may have added its own
            for parameter, gradient in zip(self.pipeline.parameters, gradients, strict=True):
                parameter.grad = gradient
        return actor, Losses(first, second), finite

    def _evaluate_actor(self, rows: Rows, before: Memory, hidden: Tensor | None = None) -> ActorEvaluation:
        return self.policy.evaluate_actor(rows.observations, rows.actions, before, rows.action_masks, hidden)

    @torch.no_grad()
    def _check_ratio(self, inputs: UpdateInputs, batch: Batch, memory: Memory, tally: Tally) -> None:
        """The look at a policy with dropout, which is off for it."""
        self.policy.set_training_mode(False)
        rows = gather(inputs.rollout, inputs.advantages, batch)
        add_start(tally, inputs.rollout.starts, rows, self._evaluate_actor(rows, _before(batch, memory)))
        self.policy.set_training_mode(True)

    def _measure_pulls(self, inputs: UpdateInputs, batch: Batch, memory: Memory, tally: Tally) -> None:
        """How hard the constraints, and the imitation of AWR, pull on the policy before anything is learned."""
        if inputs.risk_part is None and inputs.weights.awr is None:
            return
        rows = gather(inputs.rollout, inputs.advantages, batch)
        self.policy.set_training_mode(False)  # dropout would draw numbers that training then lacks
        actor = self._evaluate_actor(rows, _before(batch, memory))
        self.policy.set_training_mode(True)
        if inputs.risk_part is not None:
            costs = gather(inputs.rollout, inputs.risk_part, batch).advantages
            log_ratio = actor.log_prob - rows.log_probs
            loss = policy_loss.clipped_surrogate(log_ratio, costs, clip_range=inputs.weights.clip_range)
            pull = inputs.weights.policy_weight * loss.masked_fill(~rows.learned, 0.0).sum() / batch.n_real
            tally.add(metrics.RISK_GRAD_NORM, self._head_gradient(pull))
        if inputs.weights.awr is not None:
            losses = policy_losses(self.policy, rows, actor, inputs.weights)
            ratio = self._head_gradient(losses.awr) / self._head_gradient(losses.surrogate).clamp(min=1e-12)
            tally.add(metrics.BC_LOSS_RATIO, ratio, batch.n_real)

    def _head_gradient(self, loss: Tensor) -> Tensor:  # () -> ()
        """The norm of a loss's gradient at the action head."""
        head = list(self.policy.action_head.parameters())
        gradients = torch.autograd.grad(loss, head, retain_graph=True, allow_unused=True)
        norms = [torch.linalg.vector_norm(gradient) for gradient in gradients if gradient is not None]
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm

    @torch.no_grad()
    def _refreshed(self, rollout: RolloutBuffer, sequences: Sequences, memory: Memory) -> Memory:
        """The memories before all sequences, recomputed with the present weights, in the order of time; no dropout."""
        device = self.policy.device
        self.policy.set_training_mode(False)
        fresh = tuple(part.clone() for part in memory)
        running = tuple(part[0].clone() for part in rollout.memories)  # of every env, before the rollout's first step
        begins, lengths = sequences.times + sequences.context, sequences.lengths - sequences.context
        # Sequences that begin together and are equally long run as one batch; by time, so that `running` is up to date.
        for begin, length in sorted(set(zip(begins.tolist(), lengths.tolist(), strict=True))):
            chosen = np.flatnonzero((begins == begin) & (lengths == length))
            envs = torch.as_tensor(sequences.envs[chosen], device=device)
            start = forget(tuple(part[:, envs] for part in running), rollout.starts[begin, envs])
            plain = torch.as_tensor(sequences.context[chosen] == 0, device=device)
            which = torch.as_tensor(chosen, device=device)
            seen = map_observation(partial(_window, begin=begin, length=length, envs=envs), rollout.observations)
            after = self.policy.latents(seen, start).memory
            for part, first, now, new in zip(fresh, start, running, after, strict=True):
                part[:, which[plain]] = first[:, plain]
                now[:, envs] = new
        self.policy.set_training_mode(True)
        return fresh


class _Turns:
    """Whether the minibatches of an update hold every step once in an epoch, and others than the epoch before."""

    def __init__(self, n_steps: int, *, exact: bool) -> None:
        """`exact`: the steps of the first epoch are counted one by one."""
        self._n_steps, self._exact = n_steps, exact
        self._order: Tensor | None = None  # the sequences of the first minibatch before
        self._counted, self._rows = 0, list[Tensor]()
        self.repeated = 0.0  # 1 if two first minibatches were the same

    def add(self, batch: Batch | None, epoch: int, number: int) -> None:
        if number == 0:
            self._counted = 0
            self._rows.clear()
        if batch is None:
            return
        self._counted += batch.n_real
        if epoch == 0 and self._exact:
            self._rows.append(batch.rows[batch.mask])
        # Of a few sequences the same may come twice by chance, and a minibatch of all is always the same.
        if number == 0 and len(batch.sequences) >= _TELLING and batch.n_real < 0.9 * self._n_steps:
            before, self._order = self._order, batch.sequences
            if before is not None:
                self.repeated = max(self.repeated, float(torch.equal(before, batch.sequences)))

    def used(self) -> float:
        """Share of the rollout's steps that the epoch went through, in the first exactly once."""
        if not self._rows:
            return self._counted / self._n_steps
        return float((torch.bincount(torch.cat(self._rows)) == 1).sum()) / self._n_steps


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
