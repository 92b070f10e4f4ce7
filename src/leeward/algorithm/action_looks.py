"""What health rules look at in actions: are their log-probabilities those of the distribution, and do envs get what
their space allows?

By NumPy in float64, from what the rollout holds: nothing of the heads' own arithmetic.
"""

import math
from collections.abc import Callable

import numpy as np
from gymnasium import spaces

from leeward.networks.action_distributions import (
    ActionHead,
    BernoulliHead,
    CategoricalHead,
    GaussianHead,
    MultiCategoricalHead,
    SquashedGaussianHead,
    SquashedStateDependentHead,
    StateDependentHead,
)
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["density_look", "share_outside"]

_ACTIONS = 256  # of a rollout whose log-probabilities are computed again
_ROUNDING = 1e-5  # of a bound, by which a squashed action may be beyond it


def density_look(head: ActionHead, rollout: RolloutBuffer) -> Numbers:
    """How far stored log-probabilities are from the density's formula; nothing of a head that somebody made."""
    density = _DENSITIES.get(type(head))
    if density is None:
        return {}
    every = max(1, rollout.log_probs.numel() // _ACTIONS)
    parameters, actions = (
        part.flatten(0, 1)[::every].cpu().numpy().astype(np.float64)
        for part in (rollout.action_parameters, rollout.actions)
    )
    stored = rollout.log_probs.flatten()[::every].cpu().numpy().astype(np.float64)
    with np.errstate(all="ignore"):  # what is not finite is named by rules of its own
        again = density(head, parameters, actions)
        apart = np.abs(stored - again) / (1.0 + np.abs(again))
    return {metrics.DENSITY_DEV: float(apart[np.isfinite(apart)].max(initial=0.0))}


def share_outside(space: spaces.Space[object], actions: np.ndarray) -> float:  # (T', B, ...) or (B, ...)
    """Of actions as envs are given them, those that the space does not hold."""
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low, high = np.asarray(space.start), np.asarray(space.start + space.n - 1)
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    else:
        low, high = np.zeros(()), np.ones(())
    low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)  # |−128| of eight bits is −128
    within = (actions >= low - _ROUNDING * (1.0 + np.abs(low))) & (actions <= high + _ROUNDING * (1.0 + np.abs(high)))
    return 1.0 - float(within.mean())


# --- densities: parameters (n, P), actions (n, A) -> (n,) -------------------------------------------------------------


def _of_choices(head: ActionHead, parameters: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Of one choice or several, from logarithms that need not add up to 1."""
    found = np.zeros(len(actions))
    pieces = np.split(parameters, np.cumsum(head.choices)[:-1], -1)
    for logs, chosen in zip(pieces, actions.T.astype(int), strict=True):
        found += np.take_along_axis(logs, chosen[:, None], -1)[:, 0] - np.logaddexp.reduce(logs, -1)
    return found


def _of_switches(head: ActionHead, parameters: np.ndarray, actions: np.ndarray) -> np.ndarray:
    return np.asarray(-np.logaddexp(0.0, np.where(actions > 0.5, -parameters, parameters)).sum(-1))


def _of_normal(head: ActionHead, parameters: np.ndarray, actions: np.ndarray) -> np.ndarray:
    mean, log_std = np.split(parameters, 2, -1)
    squares = np.square((actions - mean) / np.exp(log_std))
    return np.asarray(-(0.5 * squares + log_std + 0.5 * math.log(2.0 * math.pi)).sum(-1))


def _of_squashed(head: ActionHead, parameters: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Of tanh(u), stretched to the bounds: the slope of tanh at u is 1 / cosh²(u)."""
    assert isinstance(head, GaussianHead)
    log_cosh = np.logaddexp(actions, -actions) - math.log(2.0)
    slope = np.log(head.half_range.cpu().numpy().astype(np.float64)) - 2.0 * log_cosh
    return np.asarray(_of_normal(head, parameters, actions) - slope.sum(-1))


_DENSITIES: dict[type[ActionHead], Callable[[ActionHead, np.ndarray, np.ndarray], np.ndarray]] = {
    CategoricalHead: _of_choices,
    MultiCategoricalHead: _of_choices,
    BernoulliHead: _of_switches,
    GaussianHead: _of_normal,
    StateDependentHead: _of_normal,
    SquashedGaussianHead: _of_squashed,
    SquashedStateDependentHead: _of_squashed,
}
