"""What must be as the update before left it: the weights, and what the features of an observation are like."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from leeward.algorithm.parallel.process_group import ProcessGroup
from leeward.errors import CheckpointError
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["BetweenUpdates"]

_TIMES, _ENVS = 64, 12  # of a rollout that are looked at
_KNOWN = 3  # updates in which a feature has varied, after which it must go on to
_RATE = 0.2  # by which what is usual follows what is seen
_STILL = 1e9  # what a feature that varied and has one value now counts as


class BetweenUpdates:
    """Owns what one update leaves for the next to be compared with."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters: list[Tensor] = list(parameters)
        self._weights: Tensor | None = None  # (parameters,) norms
        # (F,) each: updates in which a feature was different at most steps, and what is usual for it.
        self._varied = self._mean = self._log_spread = torch.empty(0)

    def forget_weights(self) -> None:
        """They come from elsewhere, or `learn` begins: the next update compares them with nothing."""
        self._weights = None

    @torch.no_grad()
    def look(self, rollout: RolloutBuffer, group: ProcessGroup) -> Numbers:
        """Before an update; of the envs of all processes."""
        moved = 0.0
        if self._weights is not None:
            moved = float((self._norms() != self._weights).sum())
        return {metrics.WEIGHTS_MOVED: moved, metrics.OBS_CHANGED: self._features(rollout, group)}

    @torch.no_grad()
    def leave(self) -> None:
        """After an update."""
        self._weights = self._norms()

    def _norms(self) -> Tensor:  # (parameters,)
        return torch.stack(torch._foreach_norm(self._parameters))

    def _features(self, rollout: RolloutBuffer, group: ProcessGroup) -> float:
        """How many times the mean or the spread of a feature is beyond what is usual for it; only of those that differ
        at most steps, since an event may be rare and a choice may come to be made always."""
        features = _sample(rollout, group)
        if features is None or len(features) < 2:
            return 0.0
        std, mean = torch.std_mean(features, 0, correction=0)
        varies = (features[1:] != features[:-1]).float().mean(0) > 0.5
        log_spread = std.clamp(min=1e-30).log()
        if self._varied.shape != varies.shape:
            self._varied, self._mean, self._log_spread = varies.float(), mean, log_spread
            return 0.0
        known = self._varied >= _KNOWN
        beyond = torch.maximum(log_spread.sub(self._log_spread).exp(), (mean - self._mean).abs() / _usual(self))
        # Of numbers as large as a clock's, float32 tells no spread.
        beyond = beyond.where(varies, torch.zeros(()))
        still = (features == features[0]).all(0)
        beyond = torch.where(still, torch.full((), _STILL), beyond)
        found = float(beyond[known].max()) if bool(known.any()) else 0.0
        self._varied = self._varied + varies
        self._mean = torch.where(varies, torch.lerp(self._mean, mean, _RATE), self._mean)
        self._log_spread = torch.where(varies, torch.lerp(self._log_spread, log_spread, _RATE), self._log_spread)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"varied": self._varied.tolist(), "mean": self._mean.tolist(), "log_spread": self._log_spread.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = (torch.tensor(state[name], dtype=torch.float32) for name in ("varied", "mean", "log_spread"))
        varied, mean, log_spread = found
        if not varied.shape == mean.shape == log_spread.shape:
            raise CheckpointError(
                "a damaged checkpoint: what it knows of the features of an observation is of "
                f"{len(varied)}, {len(mean)} and {len(log_spread)} features"
            )
        self._varied, self._mean, self._log_spread = varied, mean, log_spread


def _usual(between: BetweenUpdates) -> Tensor:  # (F,)
    return torch.maximum(between._log_spread.exp(), 1e-6 * between._mean.abs()).clamp(min=1e-30)


def _sample(rollout: RolloutBuffer, group: ProcessGroup) -> Tensor | None:  # (n, F)
    """Features that are no images, at some steps of some envs, one env after the other."""
    T, B = rollout.shape[0], group.n_envs(rollout.shape[1])
    times, envs = (np.linspace(0, n - 1, min(n, most)).round().astype(int) for n, most in ((T, _TIMES), (B, _ENVS)))
    seen = rollout.observations
    parts = list(seen.values()) if isinstance(seen, dict) else [seen]
    flat = [part for part in parts if part.is_floating_point() and part.ndim == 3]
    if not flat:
        return None
    features = torch.cat([group.columns(part[times])[:, envs] for part in flat], -1)  # (t, b, F)
    return features.transpose(0, 1).flatten(0, 1).float()
