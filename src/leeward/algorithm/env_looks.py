"""An examination of the envs over the first rollouts: are they of one kind, and do features differ from each other?

What comes later is compared with these (`feature_memory`); a fault that is there from the first step has nothing to be
compared with but the other envs of the vector and the other features of the same observation.
"""

import numpy as np

from leeward.algorithm.health_numbers import stride
from leeward.maths.nested import parts_of
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["EXAMINED", "env_looks"]

EXAMINED = 10  # updates; later a policy that has learned may leave one env alone
_TIMES, _ENVS, _FEATURES = 128, 32, 256  # of a rollout that are looked at
_FEW = 32  # steps of an env below which nothing is said of it
_STILL = 1e9  # what counts as apart: one value in an env, another at most steps of the others
_OWN = 4  # features below which copies are not counted


def env_looks(rollout: RolloutBuffer) -> Numbers:
    """Of the envs of this process that explore: those that act without noise may stand still where others move."""
    T, B = rollout.shape
    none = {metrics.ENVS_APART: 0.0, metrics.FEATURES_COPIED: 0.0}
    if T < _FEW:
        return none
    deployed = None if rollout.risk is None else rollout.risk.deployed
    envs = np.arange(B) if deployed is None else np.flatnonzero(~deployed.cpu().numpy())
    envs = envs[:: stride(len(envs), _ENVS)] if len(envs) else envs
    if len(envs) == 0:
        return none
    paid = rollout.rewards if rollout.original_rewards is None else rollout.original_rewards
    rewards = paid[:_TIMES, envs].cpu().numpy().astype(np.float64)[..., None]  # (t, b, 1)
    flat = [part for part in parts_of(rollout.observations) if part.is_floating_point() and part.ndim == 3]
    shown = [part[:_TIMES, envs, :_FEATURES].cpu().numpy() for part in flat]
    features = np.concatenate([rewards[..., :0], *shown], -1)[..., :_FEATURES]  # (t, b, F)
    return {
        metrics.ENVS_APART: _apart(np.concatenate((rewards, features), -1)),
        metrics.FEATURES_COPIED: _copied(features),
    }


def _apart(table: np.ndarray) -> float:  # (t, b, K)
    """How many times the spread of a column, the reward and then features, in one env is beyond that in the middle of
    all. Only of columns that have one value, or differ at most steps, in every env: events may be rare."""
    spread = table.std(0)  # (b, K)
    varies = (table[1:] != table[:-1]).mean(0) > 0.5
    still = (table == table[0]).all(0)
    unused = still & (table[0] == 0.0)  # (b, K): where envs are of several tasks, a feature that one of them has not
    unused[:, 0] = False  # but who pays nothing is not like the others
    found = 0.0
    for k in np.flatnonzero((varies | still).all(0) & varies.any(0) & ~unused.any(0)):
        if still[:, k].any():
            return _STILL
        # Of numbers as large as a clock's, float32 tells no spread.
        ordered = np.sort(np.maximum(spread[:, k], 1e-6 * np.abs(table[..., k]).max()))
        n = len(ordered)
        found = max(found, float(ordered[-1] / ordered[(n - 1) // 2]), float(ordered[n // 2] / ordered[0]))
    return found


def _copied(features: np.ndarray) -> float:  # (t, b, F)
    """Share of the features that are exact copies of another, of those that differ at most steps and are no counts."""
    varies = ((features[1:] != features[:-1]).mean((0, 1)) > 0.5) & ((features != np.rint(features)).mean((0, 1)) > 0.5)
    own = features[..., varies]
    n = own.shape[-1]
    return 0.0 if n < _OWN else 1.0 - len({own[..., k].tobytes() for k in range(n)}) / n
