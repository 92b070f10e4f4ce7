"""The scale of a return: running mean and standard deviation, and the critics' unit, which follows them.

A change of unit happens between a rollout and its update, and is measured: how far did decoded values move?
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from leeward.algorithm.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from leeward.errors import TrainingDiverged
from leeward.maths.nested import as_sequence, map_observation
from leeward.networks.actor_critic import ActorCritic
from leeward.networks.value_heads import LinearCritic, Unit
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.sequences import cut, minibatches
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["CriticUnit", "ReturnScale", "SequencePlan", "UnitChange", "follow_linear"]

_REFIT_STEPS = 4096  # of a rollout, to which heads are fitted when their support moves


class ReturnScale:
    """Mean and variance of the targets, averaged over the last `window` rollouts, or more if that is fewer than `steps`
    steps: a few neighbouring steps tell nothing of how returns vary. The first rollouts count alike.

    Where the targets do not vary, the standard deviation stays what it was; if nothing has varied yet, it is the size
    of the mean. It is 0 until a target is not. So nothing here depends on the unit of the reward.
    """

    def __init__(self, window: int = 10, steps: int = 10_240) -> None:
        self.window, self.steps = window, steps
        self.rollouts = 0
        self.mean, self.variance, self.std = 0.0, 0.0, 0.0

    @property
    def unit(self) -> Unit:
        return Unit(self.mean, self.std)

    def update(self, targets: Tensor, group: ProcessGroup = SINGLE_PROCESS) -> None:
        """Take in the targets of one rollout, (T, B, ...), of all processes, in units of the return."""
        mean, variance = group.moments(targets)
        if not math.isfinite(variance):
            raise TrainingDiverged(f"the value targets are not finite (mean {mean}); check the rewards' magnitude")
        self.rollouts += 1
        steps = targets.shape[0] * group.n_envs(targets.shape[1])
        weight = max(1.0 / self.rollouts, min(1.0 / self.window, steps / self.steps))
        # The variance is kept about the running mean, so that a large mean does not swallow it.
        shift = mean - self.mean
        self.variance = (1.0 - weight) * (self.variance + weight * shift * shift) + weight * variance
        self.mean += weight * shift
        std = math.sqrt(self.variance)
        if std > 1e-6 * abs(self.mean):  # less is the rounding of float32, in whatever unit
            self.std = std
        elif self.std == 0.0:
            self.std = abs(self.mean)

    def adopt(self, unit: Unit) -> None:
        """Go on from the unit of heads that came with their weights."""
        if unit.std == 0.0:  # they have not seen a rollout
            self.load_state_dict(ReturnScale().state_dict())
        elif unit != self.unit:
            rollouts = max(self.rollouts, 1)
            self.load_state_dict({"rollouts": rollouts, "variance": unit.std * unit.std, **unit._asdict()})

    def state_dict(self) -> dict[str, float]:
        return {"rollouts": self.rollouts, "mean": self.mean, "variance": self.variance, "std": self.std}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.rollouts = int(state["rollouts"])
        self.mean, self.variance, self.std = state["mean"], state["variance"], state["std"]


@torch.no_grad()
def follow_linear(
    scale: ReturnScale, critic: LinearCritic, heads: Sequence[nn.Linear], targets: Tensor, group: ProcessGroup
) -> None:
    """Take in the targets; the heads' unit follows, and what they predict stays."""
    known = scale.std > 0.0  # before that there is no prediction to keep
    scale.update(targets, group)
    if known:
        critic.rescale(scale.unit, heads)
    else:
        critic.set_unit(scale.unit)


class SequencePlan(Protocol):
    """How a rollout is cut into sequences."""

    @property
    def sequence_length(self) -> int: ...
    @property
    def burn_in(self) -> int: ...


@dataclass(frozen=True)
class UnitChange:
    """A rollout's own predictions after the critics' unit has followed its returns."""

    raw_values: Tensor  # (T, B, C, N)
    frame: Tensor  # what they are relative to; the critic's `restate` reads it
    means: Tensor  # (T, B, C), in units of the return
    numbers: Numbers


class CriticUnit:
    """Owns the statistics of the return, and moves the critics' unit after them."""

    def __init__(self) -> None:
        self.returns = ReturnScale()

    @torch.no_grad()
    def follow(
        self,
        policy: ActorCritic,
        samples: Tensor,  # (T, B, M)
        rollout: RolloutBuffer,
        plan: SequencePlan,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> UnitChange:
        """Take in a rollout's samples of the return, of all processes, and change the unit; predictions stay."""
        critic, heads = policy.critic, policy.value_head_list
        before = _first_values(policy, rollout)
        known = self.returns.std > 0.0  # before that there is no prediction to keep
        self.returns.update(samples, group)
        everybody = group.columns(samples)
        raw, begins = rollout.raw_values, not known and self.returns.std > 0.0
        if begins:
            raw = critic.start(self.returns.unit, everybody, heads, raw)
        frame, unit = critic.frame(), critic.unit
        numbers = self._numbers(samples) | critic.numbers(raw, everybody)
        means = critic.means(raw, unit)
        if known or begins:
            critic.rescale(self.returns.unit, heads)
        if known and critic.needs_refit(everybody):
            if group.rank == 0:  # a fit to steps of its own, so that of one process holds for all
                critic.refit(everybody, heads, lambda: _latents(policy, rollout, plan))
            group.broadcast([*critic.buffers(), *policy.value_heads.parameters()])
        if known:
            shift = (_first_values(policy, rollout) - before).abs().max()
            numbers[metrics.POPART_MAX_SHIFT] = float(shift)
        return UnitChange(raw, frame, means, numbers)

    def _numbers(self, samples: Tensor) -> Numbers:
        std = self.returns.std
        farthest = float((samples - self.returns.mean).abs().max())
        return {
            metrics.RET_MEAN: self.returns.mean,
            metrics.RET_STD: std,
            metrics.VALUE_TARGET_SCALE: 1.0 / std if std > 0.0 else 1.0,
            metrics.RETURN_OUTLIER: farthest / std if std > 0.0 else 0.0,
        }


def _first_values(policy: ActorCritic, rollout: RolloutBuffer) -> Tensor:  # (B,)
    """What the critics predict at the rollout's first step."""
    every_env = torch.arange(rollout.shape[1], device=rollout.starts.device)
    memory = rollout.memory_before(torch.zeros_like(every_env), every_env)
    first = as_sequence(map_observation(lambda x: x[0], rollout.observations))
    return policy.critic.pessimistic(policy.values(policy.latents(first, memory).critic[0]))


def _latents(policy: ActorCritic, rollout: RolloutBuffer, plan: SequencePlan) -> list[Tensor]:
    """What each value head reads on a few thousand steps of the rollout, each (n, H)."""
    device = rollout.starts.device
    sequences = cut(rollout.starts.cpu().numpy(), plan.sequence_length, plan.burn_in)
    batch = next(minibatches(sequences, rollout.shape[1], _REFIT_STEPS, np.random.default_rng(0), device))
    times, envs = (torch.as_tensor(x, device=device)[batch.sequences] for x in (sequences.times, sequences.envs))
    rows = batch.rows.flatten()
    seen = map_observation(
        lambda x: x.flatten(0, 1)[rows].reshape(*batch.rows.shape, *x.shape[2:]), rollout.observations
    )
    latent = policy.latents(seen, rollout.memory_before(times, envs)).critic
    return [mlp(latent)[batch.mask] for mlp in policy.critic_mlps]
