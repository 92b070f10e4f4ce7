"""Envs that are odd and sound: rules that look for faults of envs have nothing to say of them."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from leeward import DistributionalPPO

OF_ENVS = {
    "actions_late", "env_changed", "envs_differ", "features_copied", "last_reward_repeats", "reward_of_another_step",
    "reward_stale", "rewards_alike",
}  # fmt: skip


class Sound(gymnasium.Env[Any, Any]):
    """`moves` gives the reward of a step, `shows` what is seen; episodes have `length` steps, the same for all envs."""

    features, length = 2, 200
    epochs = 1  # of the agent in an update

    def __init__(self, index: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (self.features,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,))
        self.index, self.rng = index, np.random.default_rng(100 + index)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.steps = 0
        self.begins()
        return np.asarray(self.shows(), np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        reward = float(self.moves(float(action[0])))
        return np.asarray(self.shows(), np.float32), reward, False, self.steps >= self.length, {}

    def begins(self) -> None: ...

    def shows(self) -> Any: ...

    def moves(self, action: float) -> Any: ...


class Rounded(Sound):
    """A point mass that is paid by its distance, in hundredths: a reward that moves slowly is often the one before."""

    def begins(self) -> None:
        self.x, self.v = self.rng.uniform(-5, 5), 0.0

    def shows(self) -> Any:
        return [self.x, self.v]

    def moves(self, action: float) -> Any:
        self.v = 0.95 * self.v + 0.05 * action
        self.x += 0.2 * self.v
        return -round(abs(self.x), 2)


class Account(Sound):
    """Paid is the account itself, some million, where float32 has steps of a sixteenth."""

    def begins(self) -> None:
        self.account, self.held = 1e6, 0.0

    def shows(self) -> Any:
        return [self.account / 1e6, self.held]

    def moves(self, action: float) -> Any:
        self.held = action
        self.account += 0.5 * self.held * self.rng.normal()
        return self.account


class Carry(Sound):
    """Position times rate is paid, both are seen, and an action is the position from the next step on."""

    def begins(self) -> None:
        self.held, self.rate = 0.0, self.rng.normal()

    def shows(self) -> Any:
        return [self.held, self.rate]

    def moves(self, action: float) -> Any:
        paid = self.held * self.rate
        self.held, self.rate = action, 0.5 * self.rate + 0.8 * self.rng.normal()
        return paid + 0.1 * self.rng.normal()


class Regimes(Sound):
    """A price in calm and in wild hours: what follows by one rule in the mean follows by none in a calm one."""

    features, length = 3, 60

    def begins(self) -> None:
        self.price, self.held, self.vol = 30_000.0, 0.0, 0.001

    def shows(self) -> Any:
        return [self.price, 1000 * self.vol, self.held]

    def moves(self, action: float) -> Any:
        if self.rng.random() < 0.02:
            self.vol = float(self.rng.choice([0.0001, 0.001, 0.005]))
        before, self.held = self.price, action
        self.price *= np.exp(self.vol * self.rng.normal())
        return self.held * (self.price - before) / 100


class Block(Sound):
    """A block that moves when it is pushed: within an episode most stays as it is, and the next one is another."""

    features, length = 4, 400

    def begins(self) -> None:
        self.x, self.block = self.rng.uniform(-1, 1, 2)

    def shows(self) -> Any:
        return [self.x, self.block, self.x - self.block, self.steps / self.length]

    def moves(self, action: float) -> Any:
        self.x = np.clip(self.x + 0.1 * action, -2, 2)
        if abs(self.x - self.block) < 0.1:
            self.block = np.clip(self.block + 0.1 * np.sign(action), -2, 2)
        return -abs(self.block) - 0.1 * abs(self.x - self.block)


class OneGoalOrTwo(Sound):
    """Envs of two tasks: what only one of them has is 0 in the other."""

    features = 3

    def begins(self) -> None:
        self.x, self.goal = self.rng.normal(size=2), 0.0

    def shows(self) -> Any:
        return [*self.x, self.goal]

    def moves(self, action: float) -> Any:
        self.goal = self.rng.normal() * (self.index % 2)
        self.x = 0.9 * self.x + 0.1 * action + 0.1 * self.rng.normal(size=2)
        return -abs(self.x[0])


class Sticky(Sound):
    """One of four actions is the one before, as in Atari: near its goal most of what happens is chance."""

    length, epochs = 50, 4

    def begins(self) -> None:
        self.x = self.done = 0.0

    def shows(self) -> Any:
        return [self.x, self.steps / self.length]

    def moves(self, action: float) -> Any:
        if self.rng.random() >= 0.25:
            self.done = action
        self.x = 0.9 * self.x + 0.3 * self.done
        return -abs(self.x - 1.0)


# How many updates an env is watched, and by how many agents: long where only some of its hours are odd.
WATCHED = [(Rounded, 10, 1), (Account, 10, 1), (Carry, 10, 1), (OneGoalOrTwo, 10, 1)]
WATCHED += [(kind, 32, seed) for kind in (Regimes, Block) for seed in (1, 3)]
WATCHED += [(Sticky, 34, seed) for seed in (0, 2, 3)]


@pytest.mark.parametrize("kind, updates, seed", WATCHED, ids=[f"{kind.__name__}-{seed}" for kind, _, seed in WATCHED])
def test_nothing_is_said_of_envs_that_are_sound(kind: type[Sound], updates: int, seed: int) -> None:
    env = DummyVecEnv([lambda i=i: Monitor(kind(i)) for i in range(4)])  # type: ignore[misc]
    model = DistributionalPPO(
        "MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=kind.epochs, n_quantiles=12, n_target_samples=8,
        seed=seed, device="cpu", on_alert=lambda alert: None, policy_kwargs={"net_arch": [32]},
    )  # fmt: skip
    model.learn(updates * 64 * 4)
    assert [alert for alert in model.alerts if alert.name in OF_ENVS] == []
