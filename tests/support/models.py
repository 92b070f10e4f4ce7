"""Small models on staggered envs, their rollouts, and what is read off them."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor, nn

from leeward import DistributionalPPO
from leeward.algorithm.losses import Coefficients, gather
from leeward.algorithm.ppo import Collected
from leeward.algorithm.return_scale import UnitChange
from leeward.config.learning import ValueClip
from leeward.networks.policy import DistributionalPolicy
from leeward.rollout.sequences import cut, minibatches

from .staggered_envs import Recorder, staggered

POLICIES = {"vector": "Mlp", "dict": "MultiInput", "image": "Cnn"}
SMALL: dict[str, Any] = {"net_arch": [7]}
SMALL_LSTM: dict[str, Any] = SMALL | {"lstm_hidden_size": 8}


def coefficients(clip: ValueClip, **changes: Any) -> Coefficients:
    """What weighs the losses of an update, in a test that computes them itself."""
    usual = {
        "clip_range": 0.2, "policy_weight": 1.0, "outlook_weight": 1.0, "value_weight": 0.5, "risk_weight": 0.5,
        "ent_coef": 0.01, "kappa": 0.0, "value_clip": clip, "kl_penalty": 0.5, "awr": None,
    }  # fmt: skip
    return Coefficients(**(usual | changes))


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


def collect(model: DistributionalPPO) -> Collected:
    """One rollout and its targets, without the update."""
    _, callback = model._setup_learn(10**9, None)
    assert model.collector is not None and model._last_obs is not None
    if not isinstance(model.collector.observation, np.ndarray):
        model.collector.reset(model._last_obs)
    collected = model.collect(callback)
    assert collected is not None
    return collected


def learn(model: DistributionalPPO, rollouts: int, callback: BaseCallback | None = None) -> DistributionalPPO:
    return model.learn(rollouts * model.n_steps * model.n_envs, callback)


def learn_seeing(model: DistributionalPPO, rollouts: int, see: Callable[[Collected], Any]) -> list[Any]:
    """What `see` says of each rollout and its targets, when nothing has been learned from them yet."""
    seen, train = [], model.train

    def looked_at(collected: Collected) -> None:
        seen.append(see(collected))
        train(collected)

    with mock.patch.object(model, "train", looked_at):
        learn(model, rollouts)
    return seen


def learn_keeping(model: DistributionalPPO, rollouts: int) -> tuple[Collected, UnitChange]:
    """What the last of so many updates learned from, and how it changed the critics' unit before."""
    changes, unit = [], model.engine.critic_unit
    follow = unit.follow

    def followed(*arguments: Any) -> UnitChange:
        changes.append(follow(*arguments))
        return changes[-1]

    with mock.patch.object(unit, "follow", followed):
        collected = learn_seeing(model, rollouts, lambda collected: collected)
    return collected[-1], changes[-1]


def evaluate_rollout(model: DistributionalPPO) -> dict[str, Tensor]:
    """Every row of the rollout through `evaluate` on its sequences: log_prob (T, B) and values (T, B, C, N)."""
    buffer, policy, plan = model.rollout_buffer, model.policy, model.engine.plan(None)
    assert buffer is not None
    sequences = cut(buffer.starts.numpy(), plan.sequence_length, plan.burn_in)
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


def recorded(model: DistributionalPPO) -> Recorder:
    env: Any = model.env
    while not isinstance(env, Recorder):
        env = env.venv
    return env
