"""What lies between two rollouts: the last observations, whether an episode begins, and the memory of the policy.

It can be cut into the shares of several processes and put together again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from leeward.maths.nested import Memory

__all__ = ["RawObservation", "RolloutState", "join_states"]

RawObservation = np.ndarray | dict[str, np.ndarray]


class RolloutState(NamedTuple):
    """Where B envs and the policy's memory of them are."""

    observation: RawObservation  # (B, ...)
    starts: np.ndarray  # (B,) bool
    memory: Memory  # each (layers, B, H)

    def share(self, envs: slice) -> "RolloutState":
        """The state of some of the envs, as a copy."""
        seen = self.observation
        cut = {key: value[envs].copy() for key, value in seen.items()} if isinstance(seen, dict) else seen[envs].copy()
        return RolloutState(cut, self.starts[envs].copy(), tuple(part[:, envs].clone() for part in self.memory))


def join_states(parts: Sequence[RolloutState]) -> RolloutState:
    """One state of all envs, from the shares of all processes in their order."""
    seen = [part.observation for part in parts]
    first = seen[0]
    joined: RawObservation
    if isinstance(first, dict):
        joined = {key: np.concatenate([each[key] for each in seen]) for key in first}
    else:
        joined = np.concatenate(seen)  # type: ignore[arg-type]
    memory = tuple(torch.cat(each, 1) for each in zip(*(part.memory for part in parts), strict=True))
    return RolloutState(joined, np.concatenate([part.starts for part in parts]), memory)
