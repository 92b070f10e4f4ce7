"""Optimisers by name and by class, with the defaults of Stable-Baselines3 and the fastest form there is."""

from typing import Any

import torch
from torch import nn

from leeward.errors import ArgumentError
from leeward.optim.upgd import UPGD, UPGDW, AdaptiveUPGD, UtilityOptimizer

__all__ = ["OPTIMIZERS", "build_optimizer", "parameter_groups"]

OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "upgd": UPGD,
    "upgdw": UPGDW,
    "adaptive_upgd": AdaptiveUPGD,
}
_WAYS = {"foreach", "fused", "capturable", "differentiable"}  # in which torch's own may be asked to take a step


def build_optimizer(
    groups: list[dict[str, Any]], optimizer_class: type[torch.optim.Optimizer], kwargs: dict[str, Any]
) -> torch.optim.Optimizer:
    """One optimiser over `groups`, each with its parameters and its rate.

    Those with Adam's moments get SB3's eps of 1e-5, and torch's own the fused kernel, unless `kwargs` say otherwise.
    """
    settings = dict(kwargs)
    if issubclass(optimizer_class, UtilityOptimizer) and "generator" in settings:
        raise ArgumentError(
            "optimizer_kwargs: leave `generator` out; the noise of an update follows from the model's seed and the "
            "update's number, so that a run can be resumed"
        )
    if optimizer_class in (torch.optim.Adam, torch.optim.AdamW, AdaptiveUPGD, UPGDW):
        settings.setdefault("eps", 1e-5)
    if optimizer_class in (torch.optim.Adam, torch.optim.AdamW) and not _WAYS & settings.keys():
        settings["fused"] = True
    return optimizer_class(groups, lr=groups[0]["lr"], **settings)  # type: ignore[call-arg]


def parameter_groups(
    parameters: list[nn.Parameter], critics: list[nn.Parameter], rates: list[float]
) -> list[dict[str, Any]]:
    """The optimiser's groups: all parameters at one rate, or what the `critics` alone use at a second."""
    if len(rates) == 1:
        return [{"params": parameters, "lr": rates[0]}]
    own = {id(p) for p in critics}
    sides = ([p for p in parameters if (id(p) in own) == second] for second in (False, True))
    return [{"params": side, "lr": rate} for side, rate in zip(sides, rates, strict=True)]
