"""binds='deployed': some envs show the policy as it will be used. They are measured, and teach it nothing."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from numpy.testing import assert_allclose, assert_array_equal
from stable_baselines3.common.env_util import make_vec_env

from leeward import DistributionalPPO
from leeward.algorithm import kl_stop
from leeward.algorithm.losses import Coefficients, gather, policy_losses
from leeward.algorithm.risk_constraint import RiskControl
from leeward.config.learning import AWR, ValueClip
from leeward.maths import cvar, policy_loss
from leeward.rollout.sequences import cut, minibatches
from leeward.telemetry import metrics

from ..support.models import build, collect, learn, ratio_deviation, recorded
from ..support.staggered_envs import Recorder, earning

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
    model = deployed(**HEADS[head])
    buffer, policy = collect(model).rollout, model.policy
    modes = policy.action_head.mode(buffer.action_parameters)
    same = (buffer.actions == modes).all(-1).numpy()  # (T, B)
    assert same[:, QUIET].all()
    assert not same[:, :3].all(0).any()
    taken = np.array(recorded(model).actions).reshape(*buffer.shape, -1)  # what the envs were given
    asked = np.stack([policy.action_head.to_env(row).numpy() for row in modes]).reshape(taken.shape)
    assert_array_equal(taken[:, QUIET], asked[:, QUIET])
    assert ratio_deviation(model) < 1e-4  # the update sees the actions that were taken


def test_deployed_envs_act_as_predict_does() -> None:
    model = deployed(memory=None)
    seen = collect(model).rollout.observations.numpy()
    for t in (0, 7):
        action, _ = model.predict(seen[t], deterministic=True)
        assert_allclose(recorded(model).actions[t][QUIET], action[QUIET], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", HEADS)
def test_deployed_envs_contribute_nothing_to_the_policys_gradient(head: str) -> None:
    model = deployed(**HEADS[head])
    learn(model, 1)
    collected = collect(model)
    buffer, policy = collected.rollout, model.policy
    clip = ValueClip(mode="disable")
    weights = Coefficients(0.2, 2.0, 2.0, 0.5, 0.5, 0.01, 0.0, clip, kl_penalty=0.7, awr=AWR())
    sequences = cut(buffer.starts.numpy(), model.engine.plan(None).sequence_length)
    batch = next(minibatches(sequences, ENVS, None, np.random.default_rng(0), torch.device("cpu")))
    times, envs = (torch.as_tensor(x)[batch.sequences] for x in (sequences.times, sequences.envs))
    memory = buffer.memory_before(times, envs)
    actor = [p for name in ("actor_memory", "actor_mlp", "action_head") for p in policy.parameter_groups()[name]]

    def gradient(advantages: torch.Tensor) -> list[torch.Tensor]:
        rows = gather(buffer, advantages, batch)
        evaluation = policy.evaluate(rows.observations, rows.actions, memory, rows.action_masks)
        return list(torch.autograd.grad(policy_losses(policy, rows, evaluation.actor, weights).loss, actor))

    advantages = collected.targets.advantages.clone()
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
    model = deployed(n_steps=29)
    numbers = collect(model).targets.numbers
    variable = torch.as_tensor(recorded(model).variable())
    assert numbers[metrics.RISK_TAIL_SAMPLES] == pytest.approx(0.41 * 29 * 2)
    measured = numbers[metrics.RISK_CVAR_MEASURED]
    assert measured == pytest.approx(float(cvar.from_samples(variable[:, QUIET].flatten(), 0.41)))
    assert measured != pytest.approx(float(cvar.from_samples(variable.flatten(), 0.41)), rel=1e-3)


@pytest.mark.parametrize(("n_envs", "share", "quiet"), [(2, 0.25, 1), (4, 0.25, 1), (6, 0.5, 3), (3, 0.99, 2)])
def test_the_share_is_rounded_and_leaves_at_least_one_env_on_either_side(n_envs: int, share: float, quiet: int) -> None:
    model = build(memory=None, n_envs=n_envs, n_steps=29, risk=RISK | {"deployed_share": share})
    expected = [False] * (n_envs - quiet) + [True] * quiet
    assert RiskControl.deployed(n_envs, model.risk).tolist() == expected
    assert collect(model).rollout.risk.deployed.tolist() == expected


def test_the_pull_of_the_constraint_is_measured_on_exploring_envs() -> None:
    def pull(quiet: float | None) -> float:
        """With another part of the constraint in the advantages of envs that do not explore."""
        model = deployed(memory=None, batch_size=None)
        collected = collect(model)
        if quiet is not None:
            collected.targets.risk.risk_part[:, QUIET] = quiet
        model.train(collected)
        return model.last_metrics["risk/grad_norm"]

    assert pull(1e4) == pull(None) > 0.0


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
    constraint = other.engine.risk_control.constraints[0]
    assert constraint.multiplier == model.engine.risk_control.constraints[0].multiplier
    assert constraint.tail is None and constraint.bound.samples is None
    other.learn(2 * other.n_steps * ENVS)
    assert constraint.tail is not None


def test_the_policy_learns_a_mean_over_the_steps_that_explore() -> None:
    model = deployed(batch_size=None, max_grad_norm=None, n_epochs=1, ent_coef=0.02)
    learn(model, 1)
    collected = collect(model)
    buffer, policy = collected.rollout, model.policy
    sequences = cut(buffer.starts.numpy(), model.engine.plan(None).sequence_length)
    batch = next(minibatches(sequences, ENVS, None, np.random.default_rng(0), torch.device("cpu")))
    times, envs = (torch.as_tensor(x)[batch.sequences] for x in (sequences.times, sequences.envs))
    rows = gather(buffer, collected.targets.advantages, batch)
    found = policy.evaluate(rows.observations, rows.actions, buffer.memory_before(times, envs)).actor
    log_ratio = (found.log_prob - rows.log_probs)[rows.learned]
    surrogate = policy_loss.clipped_surrogate(log_ratio, rows.advantages[rows.learned], clip_range=0.2)
    entropy = policy.action_head.joint_entropy(found.action_parameters)[rows.learned]
    head = list(policy.action_head.parameters())
    expected = torch.autograd.grad(surrogate.mean() - 0.02 * entropy.mean(), head)
    model.train(collected)  # its one minibatch leaves its gradients
    for parameter, gradient in zip(head, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    assert int(rows.learned.sum()) == 3 * 23


def test_micro_batches_stop_at_the_kl_at_which_the_whole_minibatch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    # Micro-batches hold whole sequences, so some have few steps that explore, or none.
    def distances(micro_batch_size: int | None) -> list[float]:
        seen: list[float] = []
        monkeypatch.setattr(kl_stop, "stops", lambda kl, target: bool(seen.append(kl)))
        learn(deployed(target_kl=1.0, learning_rate=3e-3, batch_size=40, micro_batch_size=micro_batch_size), 2)
        return seen

    whole = distances(None)
    assert len(whole) > 8 and max(whole) > 5e-4
    for size in (7, 13):
        assert_allclose(distances(size), whole, rtol=1e-3, atol=1e-7)


def test_deployed_envs_are_not_taken_for_envs_without_a_spread() -> None:
    numbers = collect(deployed(normalize_advantage="per_env")).targets.numbers
    assert numbers[metrics.WARN_ADVANTAGES_STD_BELOW_FLOOR] == 0.0


class NoisyStake(gymnasium.Env[Any, Any]):
    """One step: earns the action, which exploring makes very uncertain, and a little luck."""

    observation_space = spaces.Box(-1.0, 1.0, (1,))
    action_space = spaces.Box(-9.0, 9.0, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        earned = float(action[0]) + 0.2 * float(self.np_random.standard_normal())
        return np.ones(1, np.float32), earned, True, False, {}


@pytest.mark.parametrize("critic", ["quantile", "categorical"])
def test_the_outlook_is_of_the_policy_as_it_will_be_used(critic: str) -> None:
    model = DistributionalPPO(
        "MlpPolicy",
        make_vec_env(NoisyStake, 8, seed=0),
        n_steps=64,
        batch_size=None,
        critic=critic,
        action_distribution="gaussian",
        learning_rate=1e-12,  # the policy stays
        critic_learning_rate=1e-2,
        risk={"limit": -100.0, "binds": "deployed", "std_scale_end": 1.0, "lr_scale_end": 1.0},
        policy_kwargs={"net_arch": []},
        seed=0,
        device="cpu",
    )
    model.learn(40 * 8 * 64)
    outlook = model.predict_distribution(np.ones((1, 1), np.float32))
    taken = float(model.predict(np.ones((1, 1), np.float32), deterministic=True)[0][0, 0])
    # Exploring, the spread is 1.02; deployed it is 0.2. Two thirds of all outcomes lie within one of them.
    for shown in (outlook, outlook.step):
        low, high = (float(shown.var(level)[0]) for level in (0.16, 0.84))
        assert (low + high) / 2 == pytest.approx(taken, abs=0.15)
        assert high - low == pytest.approx(0.4, abs=0.25)  # an atom is 0.2 wide
