"""The discount by which a reward normaliser adds up the returns whose spread it divides rewards by.

Where it is another one than that of the training, returns have a spread far from 1, whatever the normaliser says.
"""

from collections.abc import Iterator

from gymnasium import Wrapper
from gymnasium.wrappers import NormalizeReward
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["discount_look"]

_ENDLESS = 1e-6  # what 1 − γ counts as, at least


def discount_look(env: VecEnv, gamma: float) -> Numbers:
    """How many times as long, or as short, a normaliser looks ahead as the training with its γ; nothing without one."""
    wanted = max(1.0 - gamma, _ENDLESS)
    found = [max(1.0 - each, _ENDLESS) / wanted for each in _discounts(env)]
    return {metrics.REWARD_DISCOUNT_DEV: max(max(each, 1.0 / each) for each in found)} if found else {}


def _discounts(env: VecEnv) -> Iterator[float]:
    """Of SB3's normalisers among the wrappers, and of gymnasium's around envs of this process."""
    while isinstance(env, VecEnvWrapper):
        if isinstance(env, VecNormalize) and env.norm_reward:
            yield env.gamma
        env = env.venv
    if not isinstance(env, DummyVecEnv):
        return
    for each in env.envs:
        while isinstance(each, Wrapper):
            if isinstance(each, NormalizeReward):
                yield each.gamma
            each = each.env
