"""The discount of a reward normaliser beside that of the training."""

from collections.abc import Callable
from typing import Any

import pytest
from gymnasium.wrappers import NormalizeReward
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from leeward import DistributionalPPO
from leeward.algorithm.env_looks import EXAMINED
from leeward.algorithm.reward_discount import discount_look
from leeward.telemetry.metrics import REWARD_DISCOUNT_DEV

from ..support.faults import SickEnv


def envs(wrap: Callable[[Any], Any] = lambda env: env) -> DummyVecEnv:
    return DummyVecEnv([lambda: wrap(SickEnv(0)), lambda: wrap(SickEnv(1))])


def learned(env: VecEnv, updates: int, **arguments: Any) -> DistributionalPPO:
    own: dict[str, Any] = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "seed": 3, "device": "cpu"}
    model = DistributionalPPO("MlpPolicy", env, on_alert=lambda alert: None, **(own | arguments))
    return model.learn(updates * 8 * 2)


def told(model: DistributionalPPO) -> list[int]:
    return [alert.update for alert in model.alerts if alert.name == "reward_discount_differs"]


@pytest.mark.parametrize(
    ("made", "gamma", "ratio"),
    [
        (lambda: VecNormalize(envs()), 0.9, 10.0),  # 1 / 0.01 against 1 / 0.1
        (lambda: VecNormalize(envs(), gamma=0.9), 0.98, 5.0),
        (lambda: VecFrameStack(VecMonitor(VecNormalize(envs(), gamma=0.5)), 2), 0.75, 2.0),
        (lambda: envs(lambda env: Monitor(NormalizeReward(Monitor(env), gamma=0.5))), 0.75, 2.0),
        (lambda: VecNormalize(envs(), gamma=1.0), 0.9, 1e5),
    ],
)
def test_a_normaliser_anywhere_in_the_chain_is_found(made: Callable[[], VecEnv], gamma: float, ratio: float) -> None:
    assert discount_look(made(), gamma) == {REWARD_DISCOUNT_DEV: pytest.approx(ratio)}


def test_one_that_leaves_rewards_alone_or_has_the_same_discount_is_sound() -> None:
    assert discount_look(VecNormalize(envs(), norm_reward=False), 0.9) == {}
    assert discount_look(envs(), 0.9) == {}
    assert discount_look(VecNormalize(envs(), gamma=0.95), 0.95) == {REWARD_DISCOUNT_DEV: 1.0}
    assert discount_look(VecNormalize(envs(), gamma=1.0), 1.0) == {REWARD_DISCOUNT_DEV: 1.0}


def test_it_is_told_once_at_the_start() -> None:
    model = learned(VecNormalize(envs()), EXAMINED + 2, gamma=0.9)
    assert told(model) == [1]
    assert REWARD_DISCOUNT_DEV.name not in model.last_metrics
    assert told(learned(VecNormalize(envs(), gamma=0.9), 2, gamma=0.9)) == []
