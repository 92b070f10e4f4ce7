"""How far SB3's VecNormalize moved under the policy during a rollout."""

from typing import NamedTuple

import numpy as np
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["Moments", "drift", "moments"]


class Moments(NamedTuple):
    """Mean and standard deviation of every feature, all keys of a Dict observation side by side."""

    mean: np.ndarray  # (F,)
    std: np.ndarray  # (F,)
    seen: float  # observations; of several keys, those of the one with the fewest


def moments(env: VecNormalize | None) -> Moments | None:
    """What `env` normalises observations by; None if it does not, or has seen none yet."""
    if env is None or not env.norm_obs:
        return None
    parts: list[RunningMeanStd] = list(env.obs_rms.values()) if isinstance(env.obs_rms, dict) else [env.obs_rms]
    if not parts or any(part.count < 1.0 for part in parts):
        return None
    mean = np.concatenate([np.ravel(part.mean) for part in parts])
    variance = np.concatenate([np.ravel(part.var) for part in parts])
    return Moments(mean.copy(), np.sqrt(variance + env.epsilon), min(float(part.count) for part in parts))


def drift(before: Moments | None, after: Moments | None) -> Numbers:
    """The largest move of a mean and of a standard deviation, in units of the new one."""
    if before is None or after is None:
        return {}
    return {
        metrics.VECNORMALIZE_MEAN_DRIFT: float((np.abs(after.mean - before.mean) / after.std).max()),
        metrics.VECNORMALIZE_STD_DRIFT: float((np.abs(after.std - before.std) / after.std).max()),
        metrics.NORMALISER_COUNT: after.seen,
    }
