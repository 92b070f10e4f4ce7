"""Small envs with staggered episodes, and the models that are trained on them. All axis sizes differ."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from leeward import DistributionalPPO
from leeward.algorithm.losses import gather
from leeward.networks.policy import DistributionalPolicy
from leeward.rollout.sequences import cut, minibatches

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "vector": spaces.Box(-9.0, 9.0, (5,)),
    "dict": spaces.Dict({"place": spaces.Box(-9.0, 9.0, (4,)), "phase": spaces.Discrete(6)}),
    "image": spaces.Box(0, 255, (1, 36, 36), np.uint8),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "multidiscrete": spaces.MultiDiscrete([2, 4]),
    "multibinary": spaces.MultiBinary(2),
    "box": spaces.Box(-2.0, 3.0, (2,)),
}
POLICIES = {"vector": "Mlp", "dict": "MultiInput", "image": "Cnn"}
SMALL: dict[str, Any] = {"net_arch": [7]}
SMALL_LSTM: dict[str, Any] = SMALL | {"lstm_hidden_size": 8}


class Staggered(gymnasium.Env[Any, Any]):
    """Random observations and rewards that depend on them and on the action; episodes end at random, in both ways."""

    def __init__(self, index: int, observation: str = "vector", action: str = "box", ends: float = 0.2) -> None:
        self.observation_space, self.action_space = OBSERVATIONS[observation], ACTIONS[action]
        self.kind, self.ends = observation, ends
        self.rng = np.random.default_rng([11, index])

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(self.level + 0.3 * np.mean(action) + self.rng.normal())
        ended = self.rng.random() < self.ends
        terminated = ended and self.rng.random() < 0.5
        return self._look(), reward, bool(terminated), bool(ended and not terminated), {}

    def _look(self) -> Any:
        self.level = self.rng.normal()
        if self.kind == "image":
            return self.rng.integers(0, 256, (1, 36, 36)).astype(np.uint8)
        vector = (self.level + self.rng.normal(size=5)).astype(np.float32).clip(-9, 9)
        if self.kind == "dict":
            return {"place": vector[:4], "phase": int(self.rng.integers(6))}
        return vector


def staggered(n_envs: int, *, first: int = 0, **kwargs: Any) -> DummyVecEnv:
    def maker(index: int) -> Callable[[], Staggered]:
        return lambda: Staggered(index, **kwargs)

    return DummyVecEnv([maker(index) for index in range(first, first + n_envs)])


def build(
    *,
    memory: str | None = "lstm",
    observation: str = "vector",
    action: str = "box",
    n_envs: int = 3,
    ends: float = 0.2,
    env: DummyVecEnv | None = None,
    policy_kwargs: dict[str, Any] | None = None,
    gain: float = 1.0,
    **kwargs: Any,
) -> DistributionalPPO:
    """A small model with its action head redrawn at `gain`: at the usual 0.01 a wrong memory hardly shows."""
    settings: dict[str, Any] = SMALL_LSTM | {"cell": memory} if memory else dict(SMALL)
    if observation == "image":
        settings["features_extractor_kwargs"] = {"features_dim": 16}
    settings |= policy_kwargs or {}
    arguments: dict[str, Any] = {
        "n_steps": 23,
        "batch_size": 20,
        "n_epochs": 2,
        "sequence_length": 6,
        "n_quantiles": 9,
        "n_atoms": 11,
        "n_target_samples": 4,
        "seed": 3,
        "device": "cpu",
    }
    model = DistributionalPPO(
        POLICIES[observation] + ("LstmPolicy" if memory else "Policy"),
        env if env is not None else staggered(n_envs, observation=observation, action=action, ends=ends),
        policy_kwargs=settings,
        **(arguments | kwargs),
    )
    nn.init.orthogonal_(model.policy.action_head.net.weight, gain)
    return model


class Look(BaseCallback):
    """Calls `see(model)` after every rollout, when nothing has been learned from it yet."""

    def __init__(self, see: Callable[[DistributionalPPO], Any]) -> None:
        super().__init__()
        self.see, self.seen = see, []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        assert isinstance(self.model, DistributionalPPO)
        self.seen.append(self.see(self.model))


def collect(model: DistributionalPPO) -> DistributionalPPO:
    """One rollout and its targets, without the update."""
    _, callback = model._setup_learn(10**9, None)
    assert model.collector is not None and model._last_obs is not None
    if not isinstance(model.collector.observation, np.ndarray):
        model.collector.reset(model._last_obs)
    assert model.collect_rollouts(callback)
    return model


def learn(model: DistributionalPPO, rollouts: int, callback: BaseCallback | None = None) -> DistributionalPPO:
    return model.learn(rollouts * model.n_steps * model.n_envs, callback)


def evaluate_rollout(model: DistributionalPPO) -> dict[str, Tensor]:
    """Every row of the rollout through `evaluate` on its sequences: log_prob (T, B) and values (T, B, C, N)."""
    buffer, policy, updater = model.rollout_buffer, model.policy, model.updater
    assert buffer is not None
    sequences = cut(buffer.starts.numpy(), updater.sequence_length, updater.burn_in)
    log_prob = torch.full_like(buffer.log_probs.flatten(), torch.nan)
    values = torch.full_like(buffer.raw_values.flatten(0, 1), torch.nan)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        for batch in minibatches(sequences, buffer.shape[1], 17, rng, torch.device("cpu")):
            rows = gather(buffer, torch.zeros_like(buffer.rewards), batch)
            chosen = batch.sequences.numpy()
            times, envs = (torch.as_tensor(x[chosen]) for x in (sequences.times, sequences.envs))
            found = policy.evaluate(
                rows.observations, rows.actions, buffer.memory_before(times, envs), rows.action_masks
            )
            index = batch.rows[batch.mask]
            assert torch.isnan(log_prob[index]).all()  # no row comes twice
            log_prob[index], values[index] = found.actor.log_prob[batch.mask], found.critic.values[batch.mask]
    assert torch.isfinite(log_prob).all()  # and none is left out
    return {"log_prob": log_prob.reshape(buffer.shape), "values": values.reshape(buffer.raw_values.shape)}


def ratio_deviation(model: DistributionalPPO) -> float:
    """max |ratio − 1| over every row of the rollout, under the present weights."""
    assert model.rollout_buffer is not None
    return float((evaluate_rollout(model)["log_prob"] - model.rollout_buffer.log_probs).expm1().abs().max())


def parameters_of(policy: DistributionalPolicy) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in policy.named_parameters()}


def largest_gap(before: dict[str, Tensor], after: dict[str, Tensor]) -> float:
    return max(float((before[name] - after[name]).abs().max()) for name in before)
