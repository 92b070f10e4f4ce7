"""Optimisers by name and by class, with the defaults of Stable-Baselines3 and the fastest form there is."""

from typing import Any

import torch

from leeward.errors import ArgumentError
from leeward.optim.adam import Adam, AdamW
from leeward.optim.upgd import UPGD, UPGDW, AdaptiveUPGD, UtilityOptimizer

__all__ = ["OPTIMIZERS", "build_optimizer"]

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "upgd": UPGD,
    "upgdw": UPGDW,
    "adaptive_upgd": AdaptiveUPGD,
}
_QUICK: dict[type[torch.optim.Optimizer], type[torch.optim.Optimizer]] = {
    torch.optim.Adam: Adam,
    torch.optim.AdamW: AdamW,
}
_WAYS = {"foreach", "fused", "capturable", "differentiable"}  # to take torch's own step


def build_optimizer(
    groups: list[dict[str, Any]], optimizer_class: type[torch.optim.Optimizer], kwargs: dict[str, Any]
) -> torch.optim.Optimizer:
    """One optimiser over `groups`, each with its parameters and its rate.

    Those with Adam's moments get SB3's eps of 1e-5, and torch's own the fused step of `optim.adam`, unless `kwargs` say
    otherwise.
    """
    settings = dict(kwargs)
    if issubclass(optimizer_class, UtilityOptimizer) and "generator" in settings:
        raise ArgumentError(
            "optimizer_kwargs: leave `generator` out; the noise of an update follows from the model's seed and the "
            "update's number, so that a run can be resumed"
        )
    if optimizer_class in (torch.optim.Adam, torch.optim.AdamW, AdaptiveUPGD, UPGDW):
        settings.setdefault("eps", 1e-5)
    if optimizer_class in _QUICK and not _WAYS & settings.keys() and _alike(groups):
        optimizer_class = _QUICK[optimizer_class]
    return optimizer_class(groups, lr=groups[0]["lr"], **settings)  # type: ignore[call-arg]


def _alike(groups: list[dict[str, Any]]) -> bool:
    """Whether all parameters have one device and one dtype."""
    return len({(p.device, p.dtype) for group in groups for p in group["params"]}) == 1
