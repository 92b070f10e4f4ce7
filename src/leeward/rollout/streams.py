"""Random streams that need no stored state: counter-based generators keyed by (seed, stream) at a given index.

The numbers of update k are a function of (seed, stream, k). To resume is to know k.
"""

import numpy as np
import torch

__all__ = [
    "ADVERSARY",
    "CLONING",
    "OPTIMIZER",
    "PREDICT",
    "SHUFFLE",
    "TARGETS",
    "generator",
    "of_process",
    "torch_generator",
]

# Streams 0, 1, 2, ... are the envs' exploration noise; named ones start far above them.
SHUFFLE = 2**32
TARGETS = 2**32 + 1
PREDICT = 2**32 + 2
OPTIMIZER = 2**32 + 3
ADVERSARY = 2**32 + 4
CLONING = 2**32 + 5


def of_process(stream: int, rank: int) -> int:
    """The stream of one of several processes, each of which draws for its own envs; the first has the plain one."""
    return stream + (rank << 40)


def generator(seed: int, stream: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, index]))


def torch_generator(seed: int, stream: int, index: int, device: torch.device) -> torch.Generator:
    start = int(generator(seed, stream, index).integers(2**63 - 1))
    return torch.Generator(device=device).manual_seed(start)
