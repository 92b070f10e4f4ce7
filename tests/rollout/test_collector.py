"""The collector: noise by env, time limits with the env's own memory, one forward pass per step."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leeward import DistributionalPPO
from leeward.maths.nested import forget
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import Collector
from leeward.rollout.noise import rollout_noise
from leeward.rollout.sequences import memory_times

from ..support.models import build, collect, learn
from ..support.staggered_envs import staggered

TOGETHER = {
    "lstm": {},
    "gru, discrete": {"memory": "gru", "action": "discrete"},
    "no memory, multidiscrete": {"memory": None, "action": "multidiscrete"},
    "squashed, dict": {"observation": "dict", "action_distribution": "squashed"},
    "gsde": {"use_sde": True, "sde_sample_freq": 5},
    "categorical critic": {"critic": "categorical", "action": "multibinary"},
}


def room_for(model: DistributionalPPO) -> RolloutBuffer:
    """A buffer for the next rollout, with the memories that its sequences need."""
    assert model.collector is not None
    plan = model.engine.plan(None)
    times = memory_times(model.n_steps, plan.sequence_length, plan.burn_in)
    return model.collector.room(model.n_steps, times, None)


def rows_of_one_env(model: DistributionalPPO, env: int, observation: str, action: str) -> RolloutBuffer:
    """The first rollout of env number `env` by itself, with the weights of `model`."""
    alone = build(
        n_envs=1,
        observation=observation,
        action=action,
        memory=model.policy.cell,
        critic=model.critic,
        use_sde=model.use_sde,
        sde_sample_freq=model.sde_sample_freq,
        action_distribution=model.action_distribution,
        env=staggered(1, first=env, observation=observation, action=action),
    )
    alone.policy.load_state_dict(model.policy.state_dict())
    hold = max(model.sde_sample_freq, 0) if model.use_sde else None
    noise = rollout_noise(alone.policy, 3, 0, 23, 1, hold=hold, first_env=env)
    assert alone.env is not None
    alone.collector = Collector(alone.policy, alone.env)
    alone.collector.reset(alone.env.reset())
    buffer = room_for(alone)
    assert alone.collector.collect(buffer, noise, hold, lambda _: True)
    return buffer


@pytest.mark.parametrize("name", TOGETHER)
def test_envs_together_do_what_each_does_alone(name: str) -> None:
    settings: dict[str, Any] = TOGETHER[name]
    model = build(**settings)
    together = collect(model).rollout
    for env in range(3):
        alone = rows_of_one_env(model, env, settings.get("observation", "vector"), settings.get("action", "box"))
        assert torch.equal(alone.ended[:, 0], together.ended[:, env])
        assert_close(alone.actions[:, 0], together.actions[:, env], atol=1e-6, rtol=0)
        assert_close(alone.rewards[:, 0], together.rewards[:, env], atol=1e-5, rtol=0)
        assert_close(alone.log_probs[:, 0], together.log_probs[:, env], atol=1e-6, rtol=1e-6)
        assert_close(alone.raw_values[:, 0], together.raw_values[:, env], atol=1e-6, rtol=0)
        # Successors: the next row, the final observation behind a time limit, the last one behind the rollout.
        goes_on = ~together.terminated[:, env]
        assert_close(alone.raw_next_values[:, 0][goes_on], together.raw_next_values[:, env][goes_on], atol=1e-6, rtol=0)
    assert float(together.actions.to(torch.float64).std()) > 0.1


def test_each_env_has_noise_of_its_own_in_every_rollout() -> None:
    policy = build().policy
    noise = rollout_noise(policy, 3, 0, 23, 4, hold=None)
    assert noise.shape == (23, 4, 2)
    assert torch.equal(noise[:, 1:3], rollout_noise(policy, 3, 0, 23, 2, hold=None, first_env=1))
    others = [rollout_noise(policy, 3, 1, 23, 4, hold=None), rollout_noise(policy, 4, 0, 23, 4, hold=None)]
    for other in others:
        assert float((noise - other).abs().min()) > 0.0
    flat = noise.transpose(0, 1).flatten(1)
    assert float((torch.corrcoef(flat) - torch.eye(4)).abs().max()) < 0.5


@pytest.mark.parametrize(("hold", "draws"), [(None, 23), (0, 1), (4, 6)])
def test_gsde_draws_once_for_as_many_steps_as_noise_is_held(hold: int | None, draws: int) -> None:
    policy = build(use_sde=True).policy
    assert rollout_noise(policy, 3, 0, 23, 3, hold=hold).shape == (draws, 3, 7, 2)  # latent 7, two actions


@pytest.mark.parametrize("memory", ["lstm", "gru", None])
def test_a_time_limit_bootstraps_from_its_final_observation_fed_once_with_its_own_memory(memory: str | None) -> None:
    finals: dict[tuple[int, int], np.ndarray] = {}
    model = build(memory=memory, ends=0.3)
    model._setup_learn(10**9, None)
    assert model.collector is not None
    model.collector.reset(model._last_obs)
    buffer = room_for(model)

    def note(found: dict[str, Any]) -> bool:
        for env, info in enumerate(found["infos"]):
            if "terminal_observation" in info:
                finals[found["n_steps"] - 1, env] = info["terminal_observation"]
        return True

    noise = rollout_noise(model.policy, 3, 0, 23, 3, hold=None)
    assert model.collector.collect(buffer, noise, None, note)
    truncated = buffer.ended & ~buffer.terminated
    assert int(truncated.sum()) >= 4 and int(buffer.terminated.sum()) >= 4
    policy, checked = model.policy, 0
    assert isinstance(buffer.observations, Tensor)
    for env in range(3):
        state = policy.initial_memory(1)
        for t in range(23):
            if buffer.starts[t, env]:
                state = policy.initial_memory(1)
            with torch.no_grad():
                state = policy.latents(buffer.observations[t : t + 1, env : env + 1], state).memory
                if truncated[t, env]:
                    final = torch.as_tensor(finals[t, env])[None]
                    expected = policy.values(policy.critic_latent(final, state))[0]
                    assert_close(buffer.raw_next_values[t, env], expected, atol=1e-6, rtol=0)
                    checked += 1
                elif t < 22 and not buffer.ended[t, env]:
                    assert torch.equal(buffer.raw_next_values[t, env], buffer.raw_values[t + 1, env])
        if not buffer.ended[22, env]:
            last = torch.as_tensor(model.collector.observation)[env : env + 1]
            with torch.no_grad():
                expected = policy.values(policy.critic_latent(last, state))[0]
            assert_close(buffer.raw_next_values[22, env], expected, atol=1e-6, rtol=0)
    assert checked == int(truncated.sum())


def test_a_step_asks_the_network_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(ends=0.0)
    calls = []
    forward = type(model.policy).latents

    def counted(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        return forward(self, *arguments)

    monkeypatch.setattr(type(model.policy), "latents", counted)
    collect(model)
    assert len(calls) == 23 + 1  # one per step, and one look behind the last


def test_values_of_the_rollout_belong_to_the_same_pass_as_its_actions() -> None:
    model = build(learning_rate=1e-2)
    learn(model, 2)
    buffer = collect(model).rollout
    assert isinstance(buffer.observations, Tensor)
    # By hand, step by step, from the memory the rollout began with.
    state = tuple(part[0] for part in buffer.memories)
    noise = rollout_noise(model.policy, 3, model.n_rollouts, 23, 3, hold=None)
    for t in range(23):
        state = forget(state, buffer.starts[t])
        with torch.no_grad():
            step = model.policy.act(buffer.observations[t].clone(), state, noise[t])  # aligned as in the rollout
            values = model.policy.values(step.critic_latent)
            log_prob = model.policy.log_prob(step.action_parameters, step.action)
        assert torch.equal(step.action, buffer.actions[t])
        assert torch.equal(log_prob, buffer.log_probs[t])
        assert_close(values, buffer.raw_values[t], atol=1e-6, rtol=0)  # in the rollout, of all steps at once
        state = step.memory
