"""Optimisers by class, with the defaults of Stable-Baselines3 and the fastest form torch has."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["build_optimizer"]


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    optimizer_class: type[torch.optim.Optimizer],
    learning_rate: float,
    kwargs: dict[str, Any],
) -> torch.optim.Optimizer:
    """Adam and AdamW get SB3's eps of 1e-5 and torch's fused step unless `kwargs` say otherwise."""
    settings = dict(kwargs)
    if optimizer_class in (torch.optim.Adam, torch.optim.AdamW):
        settings.setdefault("eps", 1e-5)
        if "foreach" not in settings:
            settings.setdefault("fused", True)
    return optimizer_class(parameters, lr=learning_rate, **settings)  # type: ignore[call-arg]
