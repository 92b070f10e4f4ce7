"""Other people's tasks with the settings they published for them, word for word.

- RL-Zoo: `hyperparams/ppo.yml` and `hyperparams/ppo_lstm.yml` of DLR-RM/rl-baselines3-zoo at commit 22e3ff2 (2.8.0 and
  later). As there, `normalize` wraps the envs in VecNormalize with the algorithm's gamma, `lin_x` falls linearly from x
  to 0, and a velocity is hidden by a 0 in its place.
- sb3-contrib: `test_ppo_lstm_performance` in `tests/test_lstm.py` of Stable-Baselines-Team/stable-baselines3-contrib at
  commit 0ca7fdd: the test by which RecurrentPPO's own authors say that it learns.

An argument that a source leaves out has the default of the algorithm that the settings were made for. Leeward shares
these defaults, apart from PPO's batch size, which is therefore written out. `steps` below `published` is a budget that
was cut so that a run takes about ten minutes on one core.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import nn

__all__ = ["TASKS", "Task", "CHOOSING", "JUDGING", "OnlyPositions", "linear"]

PPO_BATCH = 64  # the default of SB3's PPO, where ppo.yml names none
FEW_SEEDS = range(5)


def linear(start: float) -> Callable[[float], float]:
    """RL-Zoo's `lin_`: from `start` to 0."""
    return lambda remaining: remaining * start


class OnlyPositions(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
    """CartPole as in sb3-contrib's test: the position and the angle, and no velocities."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.Box(-env.observation_space.high[[0, 2]], env.observation_space.high[[0, 2]])  # type: ignore[attr-defined]

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


class MaskedVelocities(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
    """RL-Zoo's NoVel tasks: the velocity is 0, whatever it is."""

    VELOCITIES = {"Pendulum-v1": [2], "MountainCarContinuous-v0": [1]}  # noqa: RUF012

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.mask = np.ones(env.observation_space.shape, dtype=np.float32)  # type: ignore[arg-type]
        self.mask[self.VELOCITIES[env.spec.id]] = 0.0  # type: ignore[union-attr]

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation * self.mask


@dataclass(frozen=True)
class Task:
    """What is learned, for how long and with which settings; `settings` are arguments of the algorithm."""

    env: str
    settings: dict[str, Any]
    n_envs: int
    steps: int
    published: int
    source: str
    normalize: bool = False
    policy: str = "MlpPolicy"
    wrapper: Any = None
    seeds: range = range(8)
    threshold: float | None = None  # a score above it passes the authors' own test
    normalize_kwargs: dict[str, Any] = field(default_factory=dict)
    package: str | None = None  # that holds the env, where gymnasium alone does not

    @property
    def recurrent(self) -> bool:
        return self.policy.endswith("LstmPolicy")

    def envs(self, seed: int, n_envs: int | None = None, *, time_limit: bool = True) -> VecEnv:
        if self.package == "popgym":
            importlib.import_module(self.package)  # which registers its envs
        without = {} if time_limit else {"max_episode_steps": -1}  # as gymnasium.make has it
        return make_vec_env(self.env, n_envs or self.n_envs, seed=seed, wrapper_class=self.wrapper, env_kwargs=without)

    def training(self, seed: int) -> VecEnv:
        envs = self.envs(seed)
        if not self.normalize:
            return envs
        return VecNormalize(envs, gamma=self.settings.get("gamma", 0.99), **self.normalize_kwargs)

    def testing(self, seed: int, n_envs: int, *, time_limit: bool = True) -> VecEnv:
        """Envs that no training sees; the reward is not normalised. Statistics are still to be brought over."""
        envs = self.envs(seed, n_envs, time_limit=time_limit)
        if not self.normalize:
            return envs
        return VecNormalize(envs, training=False, **(self.normalize_kwargs | {"norm_reward": False}))


# ppo_lstm.yml, PendulumNoVel-v1: policy_kwargs "dict(ortho_init=False, activation_fn=nn.ReLU, lstm_hidden_size=64,
#                                                     enable_critic_lstm=True, net_arch=dict(pi=[64], vf=[64]))"
RECURRENT_NET = {
    "ortho_init": False, "activation_fn": nn.ReLU, "lstm_hidden_size": 64, "enable_critic_lstm": True,
    "net_arch": {"pi": [64], "vf": [64]},
}  # fmt: skip
# ppo.yml, HalfCheetah-v4 and Hopper-v4: policy_kwargs "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.ReLU,
#                                                            net_arch=dict(pi=[256, 256], vf=[256, 256]))"
MUJOCO_NET = {
    "log_std_init": -2, "ortho_init": False, "activation_fn": nn.ReLU, "net_arch": {"pi": [256, 256], "vf": [256, 256]},
}  # fmt: skip
# sb3-contrib, test_ppo_lstm_performance: VecNormalize with its defaults, 8 envs, and
PERFORMANCE_TEST = {
    "n_steps": 128, "learning_rate": 0.0007, "batch_size": 256, "n_epochs": 10, "max_grad_norm": 1, "gae_lambda": 0.98,
    "policy_kwargs": {
        "net_arch": {"vf": [64], "pi": []}, "lstm_hidden_size": 64, "ortho_init": False, "enable_critic_lstm": True,
    },
}  # fmt: skip

# On these, settings of Leeward may be chosen.
CHOOSING: dict[str, Task] = {
    # ppo.yml, CartPole-v1: n_envs: 8, n_timesteps: 1e5, policy: MlpPolicy, and
    "cartpole": Task(
        env="CartPole-v1", n_envs=8, steps=100_000, published=100_000, source="RL-Zoo ppo",
        settings={
            "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
            "learning_rate": linear(0.001), "clip_range": linear(0.2),
        },
    ),
    # ppo.yml, Acrobot-v1: normalize: true, n_envs: 16, n_timesteps: 1e6, policy: MlpPolicy, and
    "acrobot": Task(
        env="Acrobot-v1", n_envs=16, steps=150_000, published=1_000_000, source="RL-Zoo ppo", normalize=True,
        settings={
            "n_steps": 256, "batch_size": PPO_BATCH, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0,
        },
    ),
    # ppo.yml, Pendulum-v1: n_envs: 4, n_timesteps: 1e5, policy: MlpPolicy, not normalised, and
    "pendulum": Task(
        env="Pendulum-v1", n_envs=4, steps=100_000, published=100_000, source="RL-Zoo ppo",
        settings={
            "n_steps": 1024, "batch_size": PPO_BATCH, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0,
            "learning_rate": 1e-3, "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
        },
    ),
    "performance_test": Task(
        env="CartPole-v1", n_envs=8, steps=50_000, published=50_000, source="sb3-contrib's test", normalize=True,
        policy="MlpLstmPolicy", wrapper=OnlyPositions, threshold=450.0, settings=PERFORMANCE_TEST, seeds=range(10),
    ),
}  # fmt: skip
# On these, nothing is chosen: they are run when everything is.
JUDGING: dict[str, Task] = {
    # ppo.yml, MountainCarContinuous-v0: normalize: true, n_envs: 1, n_timesteps: 20000, policy: MlpPolicy,
    # policy_kwargs: "dict(log_std_init=-3.29, ortho_init=False)", and (a rollout of 8 steps is one minibatch)
    "mountain_car": Task(
        env="MountainCarContinuous-v0", n_envs=1, steps=20_000, published=20_000, source="RL-Zoo ppo", normalize=True,
        settings={
            "batch_size": 256, "n_steps": 8, "gamma": 0.9999, "learning_rate": 7.77e-05, "ent_coef": 0.00429,
            "clip_range": 0.1, "n_epochs": 10, "gae_lambda": 0.9, "max_grad_norm": 5, "vf_coef": 0.19, "use_sde": True,
            "policy_kwargs": {"log_std_init": -3.29, "ortho_init": False},
        },
    ),
    # ppo.yml, LunarLander-v3 (and, before, -v2): n_envs: 16, n_timesteps: 1e6, policy: MlpPolicy, not normalised, and
    "lunar_lander": Task(
        env="LunarLander-v3", n_envs=16, steps=300_000, published=1_000_000, source="RL-Zoo ppo", seeds=FEW_SEEDS,
        package="box2d",
        settings={
            "n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01,
        },
    ),
    # ppo.yml, Hopper-v4: normalize: true, n_envs: 1, n_timesteps: 1e6, policy: MlpPolicy, and
    "hopper": Task(
        env="Hopper-v4", n_envs=1, steps=300_000, published=1_000_000, source="RL-Zoo ppo", normalize=True,
        seeds=FEW_SEEDS, package="mujoco",
        settings={
            "batch_size": 32, "n_steps": 512, "gamma": 0.999, "learning_rate": 9.80828e-05, "ent_coef": 0.00229519,
            "clip_range": 0.2, "n_epochs": 5, "gae_lambda": 0.99, "max_grad_norm": 0.7, "vf_coef": 0.835671,
            "policy_kwargs": MUJOCO_NET,
        },
    ),
    # ppo.yml, HalfCheetah-v4: normalize: true, n_envs: 1, n_timesteps: 1e6, policy: MlpPolicy, and
    "half_cheetah": Task(
        env="HalfCheetah-v4", n_envs=1, steps=300_000, published=1_000_000, source="RL-Zoo ppo", normalize=True,
        seeds=FEW_SEEDS, package="mujoco",
        settings={
            "batch_size": 64, "n_steps": 512, "gamma": 0.98, "learning_rate": 2.0633e-05, "ent_coef": 0.000401762,
            "clip_range": 0.1, "n_epochs": 20, "gae_lambda": 0.92, "max_grad_norm": 0.8, "vf_coef": 0.58096,
            "policy_kwargs": MUJOCO_NET,
        },
    ),
    # ppo_lstm.yml, PendulumNoVel-v1: normalize: True, n_envs: 4, n_timesteps: 1e5, policy: MlpLstmPolicy, and
    "pendulum_no_velocity": Task(
        env="Pendulum-v1", n_envs=4, steps=100_000, published=100_000, source="RL-Zoo ppo_lstm", normalize=True,
        policy="MlpLstmPolicy", wrapper=MaskedVelocities,
        settings={
            "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3,
            "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4, "policy_kwargs": RECURRENT_NET,
        },
    ),
    # ppo_lstm.yml, MountainCarContinuousNoVel-v0: normalize: true, n_envs: 8, n_timesteps: 3e5, policy: MlpLstmPolicy,
    # policy_kwargs: "dict(log_std_init=0.0, ortho_init=False, lstm_hidden_size=32, enable_critic_lstm=True,
    #                      net_arch=dict(pi=[64], vf=[64]))", and
    "mountain_car_no_velocity": Task(
        env="MountainCarContinuous-v0", n_envs=8, steps=100_000, published=300_000, source="RL-Zoo ppo_lstm",
        normalize=True, policy="MlpLstmPolicy", wrapper=MaskedVelocities,
        settings={
            "batch_size": 256, "n_steps": 1024, "gamma": 0.9999, "learning_rate": 7.77e-05, "ent_coef": 0.00429,
            "clip_range": 0.1, "n_epochs": 10, "gae_lambda": 0.9, "max_grad_norm": 5, "vf_coef": 0.19, "use_sde": True,
            "sde_sample_freq": 8,
            "policy_kwargs": {
                "log_std_init": 0.0, "ortho_init": False, "lstm_hidden_size": 32, "enable_critic_lstm": True,
                "net_arch": {"pi": [64], "vf": [64]},
            },
        },
    ),
    # POPGym's own settings are for 15 million steps, so the settings are those of sb3-contrib's test. Suits are not
    # numbers to be normalised.
    "repeat_previous": Task(
        env="popgym-RepeatPreviousEasy-v0", n_envs=8, steps=150_000, published=15_000_000, normalize=True,
        source="POPGym; settings of sb3-contrib's test", policy="MlpLstmPolicy", package="popgym",
        normalize_kwargs={"norm_obs": False}, settings=PERFORMANCE_TEST,
    ),
}  # fmt: skip
TASKS = CHOOSING | JUDGING
