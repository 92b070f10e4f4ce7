"""binds='deployed': some envs show the policy as it will be used. They are measured, and teach it nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from leeward import DistributionalPPO
from leeward.algorithm.losses import Coefficients, gather, policy_losses
from leeward.config.learning import AWR, ValueClip
from leeward.maths import cvar
from leeward.rollout.sequences import cut, minibatches

from ..engine.worlds import build, collect, learn, ratio_deviation
from .worlds import Recorder, earning, recorded

ENVS, QUIET = 5, slice(3, None)  # 0.4 · 5: the last two envs
RISK = {"alpha": 0.41, "limit": 0.1, "binds": "deployed", "deployed_share": 0.4}
HEADS: dict[str, dict[str, Any]] = {
    "squashed": {},
    "gaussian": {"action_distribution": "gaussian"},
    "gsde": {"use_sde": True},
    "discrete": {"action": "discrete"},
    "multidiscrete": {"action": "multidiscrete"},
}


def deployed(action: str = "box", memory: str | None = "lstm", **kwargs: Any) -> DistributionalPPO:
    env = Recorder(earning(ENVS, action=action))
    return build(action=action, env=env, memory=memory, risk=RISK, **kwargs)


@pytest.mark.parametrize("head", HEADS)
def test_deployed_envs_take_the_most_likely_action_and_the_others_explore(head: str) -> None:
    model = collect(deployed(**HEADS[head]))
    buffer, policy = model.rollout_buffer, model.policy
    assert buffer is not None
    modes = policy.action_head.mode(buffer.action_parameters)
    same = (buffer.actions == modes).all(-1).numpy()  # (T, B)
    assert same[:, QUIET].all()
    assert not same[:, :3].all(0).any()
    taken = np.array(recorded(model).actions).reshape(*buffer.shape, -1)  # what the envs were given
    asked = np.stack([policy.action_head.to_env(row).numpy() for row in modes]).reshape(taken.shape)
    assert_array_equal(taken[:, QUIET], asked[:, QUIET])
    assert ratio_deviation(model) < 1e-4  # the update sees the actions that were taken


def test_deployed_envs_act_as_predict_does() -> None:
    model = collect(deployed(memory=None))
    seen = model.rollout_buffer.observations.numpy()
    for t in (0, 7):
        action, _ = model.predict(seen[t], deterministic=True)
        assert_allclose(recorded(model).actions[t][QUIET], action[QUIET], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_deployed_envs_contribute_nothing_to_the_policys_gradient(head: str) -> None:
    model = deployed(**HEADS[head])
    learn(model, 1)
    collect(model)
    buffer, policy = model.rollout_buffer, model.policy
    assert buffer is not None and model._targets is not None
    clip = ValueClip(mode="disable")
    weights = Coefficients(0.2, 0.5, 0.5, 0.01, 0.0, clip, kl_penalty=0.7, awr=AWR())
    sequences = cut(buffer.starts.numpy(), model.updater.sequence_length)
    batch = next(minibatches(sequences, ENVS, None, np.random.default_rng(0), torch.device("cpu")))
    times, envs = (torch.as_tensor(x)[batch.sequences] for x in (sequences.times, sequences.envs))
    memory = buffer.memory_before(times, envs)
    actor = [p for name in ("actor_memory", "actor_mlp", "action_head") for p in policy.parameter_groups()[name]]

    def gradient(advantages: torch.Tensor) -> list[torch.Tensor]:
        rows = gather(buffer, advantages, batch)
        evaluation = policy.evaluate(rows.observations, rows.actions, memory, rows.action_masks)
        return list(torch.autograd.grad(policy_losses(policy, rows, evaluation.actor, weights).loss, actor))

    advantages = model._targets.advantages.clone()
    assert (advantages[:, QUIET] == 0.0).all() and advantages[:, :3].std(correction=0) == pytest.approx(1.0)
    before = gradient(advantages)
    # Whatever these envs did, and however well it went.
    advantages[:, QUIET] = 50.0
    buffer.log_probs[:, QUIET] -= 0.1
    buffer.action_parameters[:, QUIET] += 0.3
    after = gradient(advantages)
    assert max(float(g.abs().max()) for g in before) > 1e-3
    for new, old in zip(after, before, strict=True):
        assert torch.equal(new, old)
    advantages[:, 0] += 1.0  # an exploring env does count
    assert not torch.equal(gradient(advantages)[-1], before[-1])


def test_the_tail_is_that_of_the_deployed_envs_alone() -> None:
    model = collect(deployed(n_steps=29))
    variable = torch.as_tensor(recorded(model).variable())
    metrics = model._targets.metrics
    assert metrics["risk/tail_samples"] == pytest.approx(0.41 * 29 * 2)
    assert metrics["risk/cvar_measured"] == pytest.approx(float(cvar.from_samples(variable[:, QUIET].flatten(), 0.41)))
    assert metrics["risk/cvar_measured"] != pytest.approx(float(cvar.from_samples(variable.flatten(), 0.41)), rel=1e-3)


@pytest.mark.parametrize(("n_envs", "share", "quiet"), [(2, 0.25, 1), (4, 0.25, 1), (6, 0.5, 3), (3, 0.99, 2)])
def test_the_share_is_rounded_and_leaves_at_least_one_env_on_either_side(n_envs: int, share: float, quiet: int) -> None:
    model = build(memory=None, n_envs=n_envs, risk=RISK | {"deployed_share": share})
    assert model.risk_control.deployed(n_envs).tolist() == [False] * (n_envs - quiet) + [True] * quiet


def test_the_pull_of_the_constraint_is_measured_on_exploring_envs() -> None:
    def pull(model: DistributionalPPO) -> float:
        model.train()
        return model.last_metrics["risk/grad_norm"]

    def fresh() -> DistributionalPPO:
        return collect(deployed(memory=None, batch_size=None))

    plain, loud = fresh(), fresh()
    loud._targets.risk.risk_part[:, QUIET] = 1e4
    assert pull(loud) == pull(plain) > 0.0


def test_what_is_told_of_the_policy_is_told_of_those_who_explore() -> None:
    model = deployed(memory=None, batch_size=None, n_epochs=1, learning_rate=0.0)
    learn(model, 1)
    buffer = model.rollout_buffer
    assert buffer is not None
    entropy = model.policy.action_head.entropy(buffer.action_parameters)[:, :3]
    assert model.last_metrics["train/policy_entropy"] == pytest.approx(float(entropy.mean()), rel=1e-5)


def test_the_kl_stop_is_not_diluted_by_envs_that_do_not_explore() -> None:
    def stopped(target: float) -> float:
        model = deployed(memory=None, batch_size=None, n_epochs=6, learning_rate=0.02, target_kl=target)
        learn(model, 1)
        return model.last_metrics["train/kl_stop_epoch"]

    model = deployed(memory=None, batch_size=None, n_epochs=2, learning_rate=0.02)
    learn(model, 1)
    # Two epochs, and none had moved before the first: the mean over both is half of the second one's.
    second = 2.0 * model.last_metrics["train/approx_kl"]
    assert second > 1e-4
    assert stopped(0.95 * second / 1.5) == 1.0  # 1.5: what a target may be exceeded by
    assert stopped(1.05 * second / 1.5) > 1.0


@pytest.mark.parametrize("binds", ["rollout", "deployed"])
def test_a_limit_on_another_policy_begins_to_measure_anew(binds: str, tmp_path: Path) -> None:
    before = {"rollout": "deployed", "deployed": "rollout"}[binds]
    model = build(memory=None, env=earning(ENVS), risk=RISK | {"binds": before})
    learn(model, 2)
    model.save(tmp_path / "model")
    other = DistributionalPPO.load(tmp_path / "model", model.env, risk=RISK | {"binds": binds})
    constraint = other.risk_control.constraints[0]
    assert constraint.multiplier == model.risk_control.constraints[0].multiplier
    assert constraint.tail is None and constraint.bound.samples is None
    other.learn(2 * other.n_steps * ENVS)
    assert constraint.tail is not None
