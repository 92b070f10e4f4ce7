"""What health rules look at in the rewards of a rollout: do they repeat each other, in time or from env to env?"""

import numpy as np

from leeward.algorithm.health_numbers import stride
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["reward_looks"]

_TIMES, _ENVS = 128, 8  # of which rewards are compared with the one before and with those of other envs
_REWARDS = 512  # that are looked at, of those within episodes
_ENDS = 3  # of episodes, from which on it is told whether their rewards repeat
_REPEATS = 0.1  # share of rewards that are the one before, from which on repetition says nothing
_STALE, _TURNS = 5, 4  # rewards that are paid again, from which on it is told; how often each may come in the mean
_SMALL, _STEPS = 3.0, 2  # times the smallest change: on a grid many are so small, and must be so much fewer than none


def reward_looks(rollout: RolloutBuffer) -> Numbers:
    """Of the envs of this process."""
    ended = rollout.ended.cpu().numpy()
    return {
        metrics.LAST_REWARD_REPEATED: _last_repeated(rollout, ended),
        metrics.REWARD_STALE: _stale(rollout, ended),
        metrics.REWARDS_ALIKE: _alike(rollout, ended),
    }


def _last_repeated(rollout: RolloutBuffer, ended: np.ndarray) -> float:  # (T, B) bool
    """Share of the ends that pay exactly what the step before did, if others do not."""
    times, envs = np.nonzero(ended[1:])
    longer = ~ended[times, envs]  # than one step
    times, envs = times[longer], envs[longer]
    if len(times) < _ENDS:
        return 0.0
    paid = (rollout.rewards if rollout.original_rewards is None else rollout.original_rewards).cpu().numpy()
    some = paid[: 1 + stride(_REWARDS, paid.shape[1])]
    inside = ~ended[: len(some)][1:] & ~ended[: len(some)][:-1]
    if not inside.any() or (some[1:] == some[:-1])[inside].mean() >= _REPEATS:
        return 0.0
    return float((paid[times + 1, envs] == paid[times, envs]).mean())


def _stale(rollout: RolloutBuffer, ended: np.ndarray) -> float:  # (T, B) bool
    """Share of the steps that pay exactly what the one before did, if what they pay comes at no other time: an env that
    stands still pays the same for long, and a reward of few values pays each of them again. On a grid, that of rounding
    or of float32 far from 0, a reward that changes slowly stays as often as it moves by the smallest step."""
    paid = _some_rewards(rollout)
    goes_on = ~ended[: len(paid) - 1, : paid.shape[1]]
    changes = np.abs(np.diff(paid.astype(np.float64), axis=0))
    same = (changes == 0.0) & goes_on
    values = np.unique(paid[1:][same])
    if len(values) < _STALE or np.count_nonzero(np.isin(paid, values)) > _TURNS * len(values):
        return 0.0
    moved = changes[(changes > 0.0) & goes_on]
    if not len(moved) or np.count_nonzero(same) <= _STEPS * np.count_nonzero(moved <= _SMALL * moved.min()):
        return 0.0
    return float(same.mean())


def _alike(rollout: RolloutBuffer, ended: np.ndarray) -> float:  # (T, B) bool
    """Share of the envs that pay what the first one does, step by step, if that changes at most steps, and the envs do
    not end together, as those of several players in one game do."""
    paid, counts = _some_rewards(rollout), ended.sum(1)
    apart = bool(((counts > 0) & (counts < ended.shape[1])).any())
    if min(paid.shape) < 2 or not apart or (paid[1:, 0] != paid[:-1, 0]).mean() <= 0.5:
        return 0.0
    return float((paid[:, 1:] == paid[:, :1]).all(0).mean())


def _some_rewards(rollout: RolloutBuffer) -> np.ndarray:  # (t, b)
    paid = rollout.rewards if rollout.original_rewards is None else rollout.original_rewards
    some: np.ndarray = paid[:_TIMES, :_ENVS].cpu().numpy()
    return some
