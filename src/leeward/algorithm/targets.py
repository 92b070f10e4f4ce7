"""From a rollout to what is learned: advantages, normalised once, and samples of the return."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leeward.algorithm.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from leeward.algorithm.risk_constraint import PricedRollout, RiskControl
from leeward.algorithm.update_metrics import advantage_numbers, calibration_error, reward_numbers
from leeward.config.settings import Settings
from leeward.maths import advantage, returns
from leeward.networks.actor_critic import ActorCritic
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["Targets", "make_targets"]

_ROUNDING = 1e-6  # of float32, after the sums of GAE


@dataclass(frozen=True)
class Targets:
    """What an update learns from; advantages are normalised here and nowhere else."""

    advantages: Tensor  # (T, B), normalised
    samples: Tensor  # (T, B, M), samples of the return, in its own unit
    values: Tensor  # (T, B), the baseline: pessimistic
    raw_advantages: Tensor  # (T, B), of the return alone
    risk: PricedRollout | None  # with a constraint
    numbers: Numbers


def make_targets(
    policy: ActorCritic,
    rollout: RolloutBuffer,
    settings: Settings,
    *,
    generator: torch.Generator,
    risk: RiskControl | None = None,
    reward_unit: float = 1.0,
    group: ProcessGroup = SINGLE_PROCESS,
) -> Targets:
    """GAE on the pessimistic mean; value targets from the distribution that is shown to the user.

    `reward_unit` is what a VecNormalize divided the rewards by. Advantages are normalised over the envs of all
    processes, and what is said of advantages and values is said of all.
    """
    gamma, lam, critic = settings.gamma, settings.gae_lambda, policy.critic
    rewards, terminated, ended = rollout.rewards, rollout.terminated, rollout.ended
    values = critic.pessimistic(rollout.raw_values)  # (T, B)
    next_values = critic.pessimistic(rollout.raw_next_values)
    raw = returns.gae(rewards, values, next_values, terminated, ended, gamma=gamma, lam=lam)
    priced = None
    if risk is not None:
        priced = risk.price(rollout, raw, gamma=gamma, lam=lam, reward_unit=reward_unit, group=group)
    everybody = group.columns(raw if priced is None else priced.advantages)
    # Envs that show the policy as it will be used explore nothing, so they teach it nothing.
    deployed = None if rollout.risk is None else rollout.risk.deployed
    mask = None if deployed is None else group.columns((~deployed).expand_as(raw))
    # A spread below the rounding of the numbers it was computed from is noise, in whatever unit they are.
    size = max(float(group.columns(each).abs().max()) for each in (rewards, values))
    floor = max(_ROUNDING * size, torch.finfo(torch.float64).tiny)
    normalised = advantage.normalise(everybody, mask, mode=settings.normalisation, abs_floor=floor)
    floored = advantage.below_floor(everybody, mask, mode=settings.normalisation, abs_floor=floor)

    # Pessimism is for the baseline only: what the critics learn from is their mean (docs/lessons.md, A-FP2).
    successor = critic.merge(rollout.raw_next_values)
    draw = partial(
        returns.distributional_targets,
        rewards,
        successor.values,
        successor.levels,
        successor.weights,
        terminated,
        ended,
        gamma=gamma,
        generator=generator,
    )
    if settings.value_targets == "distributional":
        samples = draw(lam=lam, n_samples=settings.n_target_samples)
    else:
        samples = returns.lambda_returns(rewards, successor.mean, terminated, ended, gamma=gamma, lam=lam).unsqueeze(-1)
    numbers = reward_numbers(rollout, group)
    numbers |= advantage_numbers(group.columns(raw), group.columns(values), normalised)
    numbers[metrics.WARN_ADVANTAGES_STD_BELOW_FLOOR] = float(floored.any())
    complete = ended.flip(0).cummax(0).values.flip(0)  # an end at or after this step
    if bool(complete.any()):
        predicted = critic.merge(rollout.raw_values)
        numbers[metrics.CALIBRATION_ERROR] = calibration_error(predicted, draw(lam=1.0, n_samples=1), complete)
    if priced is not None:
        numbers |= priced.numbers
    return Targets(group.own(normalised), samples, values, raw, priced, numbers)
