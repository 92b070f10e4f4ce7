"""Exploration noise: one stream per env, drawn once per rollout.

An env's noise depends on the seed, its index and the rollout alone: not on how many other envs there are, nor on how
they are sharded over processes.
"""

import numpy as np
import torch
from torch import Tensor

from leeward.rollout.streams import generator
from leeward.rollout.types import RolloutPolicy

__all__ = ["rollout_noise"]


def rollout_noise(
    policy: RolloutPolicy,
    seed: int,
    rollout: int,
    n_steps: int,
    n_envs: int,
    *,
    hold: int | None,
    first_env: int = 0,
) -> Tensor:  # (T', B, *noise_shape)
    """Noise for every step of a rollout; with `hold`, one draw for each `hold` steps (gSDE), 0 = one for all."""
    draws = n_steps if hold is None else 1 if hold == 0 else -(-n_steps // hold)
    envs = range(first_env, first_env + n_envs)
    each = [policy.draw_noise(generator(seed, env, rollout), (draws,)) for env in envs]
    return torch.as_tensor(np.stack(each, 1), device=policy.device)
