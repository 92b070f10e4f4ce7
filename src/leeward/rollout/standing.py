"""Where envs stand between two rollouts: what they show, whether an episode begins, and the memory of the policy.

It can be cut into the shares of several processes and put together again.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from leeward.maths.nested import Memory

__all__ = ["RawObservation", "Standing", "together"]

RawObservation = np.ndarray | dict[str, np.ndarray]


class Standing(NamedTuple):
    """Of B envs."""

    observation: RawObservation  # (B, ...)
    starts: np.ndarray  # (B,) bool
    memory: Memory  # each (layers, B, H)

    def share(self, envs: slice) -> "Standing":
        """Of some of the envs; nothing is shared with this one."""
        seen = self.observation
        cut = {key: value[envs].copy() for key, value in seen.items()} if isinstance(seen, dict) else seen[envs].copy()
        return Standing(cut, self.starts[envs].copy(), tuple(part[:, envs].clone() for part in self.memory))


def together(parts: Sequence[Standing]) -> Standing:
    """The shares of all processes, in their order, as one."""
    seen = [part.observation for part in parts]
    first = seen[0]
    joined: RawObservation
    if isinstance(first, dict):
        joined = {key: np.concatenate([each[key] for each in seen]) for key in first}
    else:
        joined = np.concatenate(seen)  # type: ignore[arg-type]
    memory = tuple(torch.cat(each, 1) for each in zip(*(part.memory for part in parts), strict=True))
    return Standing(joined, np.concatenate([part.starts for part in parts]), memory)
