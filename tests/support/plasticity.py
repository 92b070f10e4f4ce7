"""How well a network can still learn: its effective rank, and how long it takes after a change."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["effective_rank", "updates_to_recover"]


def effective_rank(features: Tensor) -> float:  # (B, H)
    """exp of the entropy of the singular values as shares of their sum (Roy & Vetterli 2007)."""
    values = torch.linalg.svdvals(features.double())
    return float(torch.special.entr(values / values.sum().clamp_min(1e-300)).sum().exp())


def updates_to_recover(scores: NDArray[np.float64], enough: float) -> float:  # (changes, updates) -> mean over changes
    """The first update whose score is enough; all of them where none is."""
    reached = scores >= enough
    return float(np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, scores.shape[1]).mean())
