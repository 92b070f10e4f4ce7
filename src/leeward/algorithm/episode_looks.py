"""What health rules look at in the rewards and episodes of a rollout: rewards at bounds, ends and starts alike."""

import numpy as np

from leeward.algorithm.health_numbers import stride
from leeward.maths.nested import map_observation, parts_of
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["episode_looks"]

_REWARDS = 512  # that are looked at
_BETWEEN = 3  # rewards that are neither the lowest nor the highest, from which on it is told whether they repeat
_ENDS = 3  # steps with an end from which on it is told whether ends come together
_STARTS = 32  # that are compared


def episode_looks(rollout: RolloutBuffer) -> Numbers:
    """Of the envs of this process."""
    ended = rollout.ended.cpu().numpy()
    numbers = {
        metrics.REWARD_AT_BOUNDS: _at_bounds(rollout),
        metrics.ENDS_TOGETHER: _together(ended),
        metrics.ENDED_SHARE: float(ended.mean()),
    }
    repeated = _repeated(rollout)
    return numbers if repeated is None else numbers | {metrics.STARTS_REPEATED: repeated}


def _at_bounds(rollout: RolloutBuffer) -> float:
    """The smaller share of the rewards that are exactly the lowest, or the highest, if those between hardly repeat."""
    table = rollout.rewards if rollout.original_rewards is None else rollout.original_rewards
    rewards = table.flatten()[:: stride(table.numel(), _REWARDS)].cpu().numpy()
    low, high = rewards == rewards.min(), rewards == rewards.max()
    share = float(min(low.mean(), high.mean()))
    if share * len(rewards) < 2.0:
        return 0.0
    between = rewards[~low & ~high]
    return share if len(np.unique(between)) >= max(_BETWEEN, 0.9 * len(between)) else 0.0


def _together(ended: np.ndarray) -> float:  # (T, B) bool
    """1 if whenever an episode ends all do, at uneven intervals: a time limit is the same for all of them."""
    counts = ended.sum(1)
    times = np.flatnonzero(counts)
    if ended.shape[1] < 2 or len(times) < _ENDS or (counts[times] < ended.shape[1]).any():
        return 0.0
    return float(len(set(np.diff(times).tolist())) > 1)


def _repeated(rollout: RolloutBuffer) -> float | None:
    """Share of first observations that are those of an earlier episode of the same env; None if there is no second."""
    times, envs = (place.cpu() for place in rollout.starts.nonzero(as_tuple=True))
    if len(times) < 2:
        return None
    times, envs = times[:_STARTS], envs[:_STARTS]
    first = map_observation(lambda x: x[times, envs].cpu(), rollout.observations)
    parts = [part.numpy() for part in parts_of(first)]
    seen: dict[int, set[bytes]] = {}
    again = []
    for i, env in enumerate(envs.tolist()):
        shown, earlier = b"".join(part[i].tobytes() for part in parts), seen.setdefault(env, set())
        if earlier:
            again.append(shown in earlier)
        earlier.add(shown)
    return sum(again) / len(again) if again else None
