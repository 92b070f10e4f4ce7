"""What the features of an observation have been like so far, to see whether one of them is suddenly another."""

from typing import Any

import numpy as np

from leeward.algorithm.health_numbers import stride
from leeward.algorithm.parallel.process_group import ProcessGroup
from leeward.errors import CheckpointError
from leeward.maths.nested import parts_of
from leeward.rollout.buffer import RolloutBuffer

__all__ = ["FeatureMemory"]

_TIMES, _ENVS = 32, 8  # of a rollout that are looked at
_KNOWN = 3  # updates in which a feature has varied, after which it must go on to
_RATE = 0.2  # by which what is usual follows what is seen
_STILL = 1e9  # what a feature that varied and has one value now counts as
_TINY = 1e-30
_NAMES = ("varied", "mean", "log_spread", "broken")


class FeatureMemory:
    """Owns mean and spread that are usual for each feature, of the envs of all processes."""

    def __init__(self) -> None:
        # (F,) each: updates in which a feature was different at most steps, and in which it was no whole number at
        # most; and what is usual for it.
        self._varied = self._mean = self._log_spread = self._broken = np.empty(0)

    def look(self, rollout: RolloutBuffer, group: ProcessGroup) -> float:
        """How many times the mean or the spread of a feature is beyond what is usual for it; only of those that differ
        at most steps, since an event may be rare and a choice may come to be made always."""
        features = _sample(rollout, group)
        if features is None or len(features) < 2:
            return 0.0
        mean, spread = features.mean(0), features.std(0)
        varies = (features[1:] != features[:-1]).sum(0) > 0.5 * (len(features) - 1)
        log_spread = np.log(spread.clip(min=_TINY))
        whole = (features == np.rint(features)).sum(0) / len(features)
        if self._varied.shape != varies.shape:
            self._varied, self._mean, self._log_spread = varies.astype(float), mean, log_spread
            self._broken = (whole < 0.5).astype(float)
            return 0.0
        # Of numbers as large as a clock's, float32 tells no spread.
        usual = np.maximum(np.exp(self._log_spread), 1e-6 * np.abs(self._mean)).clip(min=_TINY)
        beyond = np.maximum(np.exp(log_spread - self._log_spread), np.abs(mean - self._mean) / usual)
        beyond[~varies] = 0.0
        still = ~varies
        still[still] = (features[:, still] == features[0, still]).all(0)
        beyond[still] = _STILL
        beyond[(self._broken >= _KNOWN) & (whole == 1.0)] = _STILL
        found = float(beyond[self._varied >= _KNOWN].max(initial=0.0))
        self._varied, self._broken = self._varied + varies, self._broken + (whole < 0.5)
        rate = _RATE * varies
        self._mean = self._mean + rate * (mean - self._mean)
        self._log_spread = self._log_spread + rate * (log_spread - self._log_spread)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, f"_{name}").tolist() for name in _NAMES}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        found = [np.array(state[name], float) for name in _NAMES]
        if len({each.shape for each in found}) > 1:
            raise CheckpointError(
                "a damaged checkpoint: what it knows of the features of an observation is of "
                f"{', '.join(str(each.size) for each in found)} features"
            )
        self._varied, self._mean, self._log_spread, self._broken = found


def _sample(rollout: RolloutBuffer, group: ProcessGroup) -> np.ndarray | None:  # (n, F) float64
    """Features that are no images, at some steps of some envs, one env after the other."""
    T, B = rollout.shape[0], group.n_envs(rollout.shape[1])
    k, n = stride(T, _TIMES), stride(B, _ENVS)
    flat = [part for part in parts_of(rollout.observations) if part.is_floating_point() and part.ndim == 3]
    if not flat:
        return None
    features = [group.columns(part[::k])[:, ::n].cpu().numpy() for part in flat]
    return np.concatenate(features, -1).swapaxes(0, 1).reshape(-1, sum(part.shape[-1] for part in flat)).astype(float)
