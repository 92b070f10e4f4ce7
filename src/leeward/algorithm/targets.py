"""From a rollout to what is learned: advantages, normalised once, and samples of the return."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from leeward.algorithm.peers import ALONE, Peers
from leeward.algorithm.risk_constraint import RiskControl, RiskVerdict
from leeward.maths import advantage, diagnostics, returns
from leeward.networks.policy import DistributionalPolicy
from leeward.networks.value_heads import ValueDistribution
from leeward.rollout.buffer import RolloutBuffer

__all__ = ["Targets", "make_targets"]


@dataclass(frozen=True)
class Targets:
    """All (T, B) or (T, B, M); advantages are normalised here and nowhere else."""

    advantages: Tensor  # (T, B), normalised
    samples: Tensor  # (T, B, M), samples of the return, in its own unit
    risk: RiskVerdict | None  # with a constraint
    metrics: dict[str, float]


def make_targets(
    policy: DistributionalPolicy,
    buffer: RolloutBuffer,
    *,
    gamma: float,
    lam: float,
    n_samples: int,
    distributional: bool,
    normalisation: str,
    generator: torch.Generator,
    risk: RiskControl | None = None,
    reward_unit: float = 1.0,
    peers: Peers = ALONE,
) -> Targets:
    """GAE on the pessimistic mean; value targets from the distribution that is shown to the user.

    `reward_unit` is what a VecNormalize divided the rewards by. Advantages are normalised over the envs of all `peers`,
    and what is said of advantages and values is said of all.
    """
    rewards, terminated, ended = buffer.rewards, buffer.terminated, buffer.ended
    values = policy.pessimistic(buffer.raw_values)  # (T, B)
    next_values = policy.pessimistic(buffer.raw_next_values)
    raw = returns.gae(rewards, values, next_values, terminated, ended, gamma=gamma, lam=lam)
    verdict = None if risk is None else risk.judge(buffer, raw, reward_unit, peers)
    learned = raw if verdict is None else verdict.advantages
    # Envs that show the policy as it will be used explore nothing, so they teach it nothing.
    quiet = None if buffer.risk is None else buffer.risk.deployed
    mask = None if quiet is None else (~quiet).expand_as(raw)
    everybody = peers.columns(learned)
    mask = None if mask is None else peers.columns(mask)
    normalised = advantage.normalise(everybody, mask, mode=normalisation)
    floored = advantage.below_floor(everybody, mask, mode=normalisation)

    # Pessimism is for the baseline only: what the critics learn from is their mean (FINDINGS A-FP2).
    successor = policy.distribution(buffer.raw_next_values)
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
    if distributional:
        samples = draw(lam=lam, n_samples=n_samples)
    else:
        samples = returns.lambda_returns(rewards, successor.mean, terminated, ended, gamma=gamma, lam=lam).unsqueeze(-1)
    buffer.values, buffer.advantages, buffer.returns = values, raw, raw + values
    metrics = _advantage_metrics(peers.columns(raw), peers.columns(values), normalised)
    metrics["warn/advantages_std_below_floor"] = float(floored.any())
    complete = ended.flip(0).cummax(0).values.flip(0)  # an end at or after this step
    if bool(complete.any()):
        predicted = policy.distribution(buffer.raw_values)
        metrics["train/calibration_error"] = _calibration_error(predicted, draw(lam=1.0, n_samples=1), complete)
    if verdict is not None:
        metrics |= verdict.metrics
    return Targets(peers.own(normalised), samples, verdict, metrics)


def _advantage_metrics(raw: Tensor, values: Tensor, normalised: Tensor) -> dict[str, float]:  # (T, B) each
    return {
        "train/advantage_mean_raw": float(raw.mean()),
        "train/advantage_std_raw": float(raw.std(correction=0)),
        "train/advantage_min": float(raw.min()),
        "train/advantage_max": float(raw.max()),
        "train/advantages_norm_max_abs": float(normalised.abs().max()),
        "train/advantages_norm_mean": float(normalised.mean()),
        "train/advantages_norm_std": float(normalised.std(correction=0)),
        "train/explained_variance": float(diagnostics.explained_variance(values, raw + values)),
    }


def _calibration_error(predicted: ValueDistribution, whole: Tensor, complete: Tensor) -> float:  # (T, B, 1), (T, B)
    """Predicted distributions against whole returns, where the episode ended inside the rollout."""
    if predicted.levels is not None:
        return float(diagnostics.calibration_error(predicted.values[complete], whole[complete], predicted.levels))
    # Atoms: coverage of the deciles, each judged by the mass at or below the outcome.
    below = (predicted.weights * (predicted.values <= whole)).sum(-1)[complete]  # (n,)
    deciles = torch.arange(0.1, 0.95, 0.1, device=below.device)
    return float(((below[:, None] <= deciles).float().mean(0) - deciles).abs().mean())
