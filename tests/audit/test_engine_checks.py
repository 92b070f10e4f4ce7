"""Each check of the learner passes on a healthy model, and finds a fault that is put into the learner."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecNormalize

import leeward
from leeward import DistributionalPPO, audit
from leeward.algorithm import checkpoint, losses
from leeward.algorithm.return_scale import ReturnScale
from leeward.audit.checks import Parts, run_checks
from leeward.audit.engine import CHECKS, MAKERS
from leeward.audit.engine.twins import Twins, twins_of
from leeward.audit.findings import Audit
from leeward.maths import advantage, cvar, quantile_sorted, returns
from leeward.networks.action_distributions import GaussianHead
from leeward.networks.actor_critic import ActorCritic
from leeward.networks.value_heads import LinearCritic
from leeward.optim.pipeline import GradientPipeline
from leeward.rollout import collector
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import Collector

from ..support.models import build, learn
from ..support.staggered_envs import Staggered, staggered

BY_NAME = {check.name: check for check in CHECKS}
# The exploration of a limit does not fade: after so few rollouts every ratio would be clipped.
RISK = [{"alpha": 0.4, "limit": 0.0, "std_scale_end": 1.0}]
MODELS: dict[str, dict[str, Any]] = {
    "lstm, limit": {"risk": RISK, "ent_coef": 0.01, "n_envs": 9},
    "no memory, categorical": {"memory": None, "critic": "categorical", "action": "discrete", "ent_coef": 0.01},
    "dict, scalar, two limits": {
        "observation": "dict",
        "critic": "scalar",
        "n_envs": 4,
        "risk": [
            {"alpha": 0.4, "limit": -9.0, "binds": "deployed"},
            {"alpha": 0.3, "measure": "episode_return", "cvar_weight": 0.5},
        ],
    },
    "image, shared memory": {
        "observation": "image",
        "burn_in": 3,
        "policy_kwargs": {"shared_lstm": True, "enable_critic_lstm": False},
    },
    "gsde, scalar targets": {"use_sde": True, "action_distribution": "gaussian", "value_targets": "scalar"},
}


@pytest.fixture(scope="module")
def model() -> DistributionalPPO:
    """Trained for three rollouts, in the middle of its envs' episodes."""
    return learn(build(**MODELS["lstm, limit"], n_atoms=51), 3)


def look(model: DistributionalPPO, *names: str, twins: Twins | None = None) -> Audit:
    """Some checks of a model."""
    makers = MAKERS | {"twins": lambda parts: twins or twins_of(model, None), "model": lambda parts: model}
    return run_checks([BY_NAME[name] for name in names], Parts(makers))


# --- healthy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trained", [False, True], ids=["new", "trained"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.filterwarnings("ignore:risk.*:UserWarning")
def test_a_healthy_model_passes(kind: str, trained: bool) -> None:
    model = build(**MODELS[kind])
    if trained:
        learn(model, 2)
    found = audit.model(model)
    assert [finding for finding in found.findings if finding.check != "idle_settings"] == []
    assert [each.check for each in found.not_run] == ([] if MODELS[kind].get("risk") else ["tail"])


class Borrowing(Staggered):
    """It draws from the generator that everybody shares."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward + random.random(), terminated, truncated, info


def test_to_look_at_a_model_changes_nothing() -> None:
    model, twin = (build(risk=RISK, env=DummyVecEnv([lambda: Borrowing(0), lambda: Borrowing(1)])) for _ in range(2))
    for each in (model, twin):
        random.seed(0)
        learn(each, 1)
    drawn, other = torch.random.get_rng_state(), random.getstate()
    assert "determinism" in audit.model(model).passed
    assert torch.equal(torch.random.get_rng_state(), drawn) and random.getstate() == other
    for each in (model, twin):
        random.setstate(other)
        each.learn(2 * each.n_steps * each.n_envs, reset_num_timesteps=False)
    for name, value in model.policy.state_dict().items():
        assert torch.equal(value, twin.policy.state_dict()[name]), name


def test_rewards_that_are_normalised_are_priced_in_their_own_unit() -> None:
    model = learn(build(risk=RISK, env=VecNormalize(staggered(4))), 2)
    assert look(model, "rollout", "advantages", "normalisation", "targets").findings == ()


def make_env(index: int) -> Callable[[], Staggered]:
    return lambda: Staggered(index)


def test_envs_that_cannot_be_copied_are_a_reason_and_others_can_be_given() -> None:
    env = SubprocVecEnv([make_env(0), make_env(1)], start_method="fork")
    try:
        model = build(env=env)
        found = audit.model(model)
        given = audit.model(model, env=staggered(2))
        learn(model, 1)  # the processes are still there
    finally:
        env.close()
    assert found.findings and {finding.check for finding in found.findings} == {"idle_settings"}
    assert len(found.not_run) == len(CHECKS) - 2  # idle settings and alerts need no env
    assert all("its env cannot be copied" in each.why and "pass env=" in each.why for each in found.not_run)
    assert [each.check for each in given.not_run] == ["tail"]


def test_the_audit_is_reached_from_the_package_itself() -> None:
    assert leeward.__getattr__("audit").model is audit.model


def test_a_model_without_an_env_says_so(model: DistributionalPPO) -> None:
    alone = copy.copy(model)
    alone.__dict__["env"] = None
    found = audit.model(alone)
    assert {each.why for each in found.not_run} == {"this model has no env; pass env= to see it act"}


# --- faults -----------------------------------------------------------------------------------------------------------


def over_ends(rewards, values, next_values, terminated, ended, *, gamma, lam):
    """Advantages of the next episode leak back over a time limit."""
    return GAE(rewards, values, next_values, terminated, terminated, gamma=gamma, lam=lam)


def wrong_discount(*args, gamma, **kwargs):
    return TARGETS(*args, gamma=0.9 * gamma, **kwargs)


def towards_the_mean(rewards, quantiles, levels, weights, *rest, **kwargs):
    """Bootstrapping from a mean, which takes the spread of all that comes after."""
    mean = (quantiles * weights).sum(-1, keepdim=True)
    return TARGETS(rewards, mean.expand_as(quantiles).contiguous(), levels, weights, *rest, **kwargs)


def a_step_late(*args, **kwargs):
    return TARGETS(*args, **kwargs).roll(-1, 0)


def of_another_env(*args, **kwargs):
    return NORMALISE(*args, **kwargs).roll(1, 1)


def winsorised(samples, alpha):
    return CVAR(samples.clamp(min=float(samples.quantile(0.1))), alpha)


def shown_twice(self, envs, infos, memory, t):
    """The final observation goes through the memory two times."""
    seen = collector.as_tensors(np.stack([infos[env]["terminal_observation"] for env in envs]), self.policy.device)
    own = tuple(part[:, envs] for part in memory)
    return self.policy.critic_latent(seen, self.policy.latents(seen[None], own).memory)


def without_reset(self, times, envs):
    """Sequences start from the memory of the episode before."""
    slots = torch.tensor([self.memory_slots[int(t) - int(t) % 6] for t in times])
    return tuple(part[slots, :, envs].transpose(0, 1).contiguous() for part in self.memories)


def second_head_detached(self, latent):
    first, second = (head(mlp(latent)) for mlp, head in zip(self.critic_mlps, self.value_heads, strict=True))
    return torch.stack([first, second.detach() + 0.0 * first], -2)


def actor_detached(self, latent, hidden, action, masks):
    return EVALUATE(self, latent.detach(), hidden, action, masks)


def unit_alone(self, unit, heads):
    self.set_unit(unit)


def spread_forgotten(self, state):
    LOAD_SCALE(self, {**state, "std": 1.0})


def unclipped(log_ratio, advantages, *, clip_range):
    return -advantages * log_ratio.exp()


def weighed_alike(raw, targets, levels, *, kappa):
    return HUBER(raw, targets, torch.full_like(levels, 0.5), kappa=kappa)


def never_applied(self, number, *, max_grad_norm):
    """The pipeline forgets the last tensor of the network, which the second critic or a head owns."""
    self.parameters[-1].grad = None
    return APPLY(self, number, max_grad_norm=max_grad_norm)


GAE, TARGETS, NORMALISE, CVAR = returns.gae, returns.distributional_targets, advantage.normalise, cvar.from_samples
EVALUATE, LOAD_SCALE, APPLY = ActorCritic._evaluate_latent, ReturnScale.load_state_dict, GradientPipeline.apply
HUBER, SURROGATE, ENTROPY = (
    quantile_sorted.sorted_huber_loss,
    losses.policy_loss.clipped_surrogate,
    GaussianHead.joint_entropy,
)
# check, where, what, and what is said
FAULTS: dict[str, tuple[str, Any, str, Any, str]] = {
    "time limit treated as an end": ("rollout", collector, "_truncated", lambda *_: [], "hold the terminations"),
    "memory never reset": ("network", collector, "forget", lambda memory, starts: memory, "The log-probabilities"),
    "final observation shown twice": ("network", Collector, "_look_at_finals", shown_twice, "values of successors"),
    "memory of the episode before": ("ratio", RolloutBuffer, "memory_before", without_reset, "not 1 before"),
    "advantages over a time limit": ("advantages", returns, "gae", over_ends, "The advantages are not"),
    "not normalised": ("normalisation", advantage, "normalise", lambda a, *_, **__: a, "normalised advantages"),
    "advantages of another env": ("normalisation", advantage, "normalise", of_another_env, "normalised advantages"),
    "tail winsorised": ("tail", cvar, "from_samples", winsorised, "not the mean of the worst"),
    "wrong discount": ("targets", returns, "distributional_targets", wrong_discount, "not samples of the return"),
    "targets from the future": ("targets", returns, "distributional_targets", a_step_late, "not samples of the"),
    "bootstrap from the mean": ("targets", returns, "distributional_targets", towards_the_mean, "another spread"),
    "ratio not clipped": ("losses", losses.policy_loss, "clipped_surrogate", unclipped, "The policy loss is not"),
    "entropy of the wrong sign": (
        "losses", GaussianHead, "joint_entropy", lambda self, parameters: -ENTROPY(self, parameters), "entropy bonus",
    ),
    "levels all alike": ("losses", quantile_sorted, "sorted_huber_loss", weighed_alike, "loss of critic 1"),
    "second value head detached": ("gradients", ActorCritic, "values", second_head_detached, "does not reach critic2"),
    "actor without a gradient": ("gradients", ActorCritic, "_evaluate_latent", actor_detached, "reach actor_mlp"),
    "unit without the heads": ("unit", LinearCritic, "rescale", unit_alone, "Predictions move"),
    "statistics lost on load": ("checkpoint", ReturnScale, "load_state_dict", spread_forgotten, "differ: returns"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_learner_is_found(model: DistributionalPPO, fault: str) -> None:
    check, where, name, wrong, words = FAULTS[fault]
    if fault == "entropy of the wrong sign":  # of the plain Gaussian head, whose entropy is one line
        model = learn(build(ent_coef=0.01, action_distribution="gaussian"), 1)
    assert look(model, check).passed == (check,)
    with mock.patch.object(where, name, wrong):
        found = look(model, check)
    assert [finding.severity for finding in found.findings][:1] == ["critical"], found
    assert any(words in f"{finding.title} {finding.detail}" for finding in found.findings), found.findings


@contextmanager
def changed(model: DistributionalPPO, change: Callable[[DistributionalPPO], None]) -> Iterator[Twins]:
    """Copies to each of which something was done."""
    plain = twins_of(model, None)

    def make() -> DistributionalPPO:
        twin = plain.model()
        change(twin)
        return twin

    yield Twins(make, plain.env, plain.file)


def frozen(twin: DistributionalPPO) -> None:
    """A part that is left out of every step."""
    groups = twin.policy.optimizer.param_groups
    left_out = {id(p) for p in twin.policy.parameter_groups()["critic2_mlp"]}
    for group in groups:
        group["params"] = [p for p in group["params"] if id(p) not in left_out]


def same_critics(twin: DistributionalPPO) -> None:
    for part in (twin.policy.critic_mlps, twin.policy.value_heads):
        part[1].load_state_dict(part[0].state_dict())


def lopsided(twin: DistributionalPPO) -> None:
    """The second critic hardly moves."""
    hook = [p.register_hook(lambda grad: grad * 1e-30) for p in twin.policy.parameter_groups()["critic2_mlp"]]
    assert hook


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (frozen, "An update does not move critic2_mlp"),
        (same_critics, "The second critic is a copy of the first"),
        (lambda twin: twin.set_hyperparameters(learning_rate=0.0), "The learning rate is 0"),
    ],
    ids=["left out of the optimiser", "twins that are one", "learning rate 0"],
)
def test_a_part_that_does_not_learn_is_found(model: DistributionalPPO, change: Any, words: str) -> None:
    assert look(model, "learning").passed == ("learning",)
    with changed(model, change) as twins:
        found = look(model, "learning", twins=twins)
    assert any(words in finding.title for finding in found.findings), found


def test_critics_that_do_not_learn_alike_are_found() -> None:
    # Plain gradient descent: Adam would divide a small gradient by itself.
    kwargs = {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {}}
    model = learn(build(policy_kwargs=kwargs, learning_rate=0.03), 1)
    assert look(model, "learning").passed == ("learning",)

    def small(twin: DistributionalPPO) -> None:
        for p in twin.policy.parameter_groups()["critic2_mlp"]:
            p.register_hook(lambda grad: grad * 1e-3)

    with changed(model, small) as twins:
        found = look(model, "learning", twins=twins)
    assert [finding.title for finding in found.findings] == ["The critics do not learn alike"]


class Failing(Staggered):
    """A reward that is no number, in the fifth step."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        seen, reward, *rest = super().step(action)
        return (seen, float("nan") if self.steps >= 5 else reward, *rest)  # type: ignore[return-value]


def test_an_env_that_fails_is_told_once_as_something_critical() -> None:
    model = build(env=DummyVecEnv([lambda: Failing(0), lambda: Staggered(1)]))
    found = look(model, "ratio", "advantages", "losses")
    assert [(each.check, each.severity, each.title) for each in found.findings] == [
        ("ratio", "critical", "Training cannot go on from here")
    ]
    assert "env 0, step 4 of the rollout: reward nan" in found.findings[0].detail
    assert [each.check for each in found.not_run] == ["advantages", "losses"]


@pytest.mark.parametrize(
    ("rate", "title"), [(3.0, "An update throws the policy away"), (1e-12, "An update hardly moves the policy")]
)
def test_steps_of_the_wrong_length_are_found(rate: float, title: str) -> None:
    model = learn(build(max_grad_norm=None), 1)
    with changed(model, lambda twin: twin.set_hyperparameters(learning_rate=rate)) as twins:
        assert title in [finding.title for finding in look(model, "learning", twins=twins).findings]


class Shown(Staggered):
    """Another observation instead of its own."""

    def __init__(self, index: int, show: Callable[[Any], Any]) -> None:
        super().__init__(index)
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,))
        self.show = show

    def _look(self) -> Any:
        return self.show(super()._look()).astype(np.float32)


@pytest.mark.parametrize(
    ("show", "title"),
    [
        (lambda seen: 0.0 * seen + 3.0, "The observation never changes"),
        (
            lambda seen: seen * np.array([1, 1, 1, 1e5, 1]),
            "A number of the observation is of another order of magnitude",
        ),
        (lambda seen: seen, None),
    ],
    ids=["constant", "huge", "as it is"],
)
def test_observations_that_say_nothing_are_found(show: Any, title: str | None) -> None:
    model = build(env=DummyVecEnv([lambda: Shown(0, show), lambda: Shown(1, show)]))
    found = look(model, "observations")
    assert [finding.title for finding in found.findings] == ([] if title is None else [title])
    if title is not None and "magnitude" in title:
        assert "Number 3 has mean" in found.findings[0].detail
        normalised = build(env=model.env, policy_kwargs={"normalize_observations": True})
        assert look(normalised, "observations").passed == ("observations",)


@pytest.mark.parametrize("action", ["box", "discrete"])
def test_a_policy_that_always_does_the_same_is_found(action: str) -> None:
    model = build(action=action, n_envs=4)
    assert look(model, "actions").passed == ("actions",)

    def decided(twin: DistributionalPPO) -> None:
        with torch.no_grad():
            twin.policy.action_head.net.weight.zero_()
            twin.policy.action_head.net.bias[0] = 50.0
            if action == "box":
                twin.policy.action_head.net.bias.fill_(50.0)

    with changed(model, decided) as twins:
        assert look(model, "actions", twins=twins).findings[0].title == "The policy always does the same"


def test_weights_that_are_not_a_number_end_in_a_finding(model: DistributionalPPO) -> None:
    def spoil(twin: DistributionalPPO) -> None:
        with torch.no_grad():
            twin.policy.action_head.net.weight.fill_(float("nan"))

    with changed(model, spoil) as twins:
        found = look(model, "rollout", "learning", "determinism", twins=twins)
    assert not set(found.passed)


class Restless(Staggered):
    """Its rewards come from a generator that nobody can copy or seed."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        seen, reward, terminated, truncated, info = super().step(action)
        return seen, reward + float(np.random.default_rng().normal()), terminated, truncated, info


def test_an_env_that_is_not_a_function_of_its_state_is_found() -> None:
    model = learn(build(env=DummyVecEnv([lambda: Restless(0), lambda: Restless(1)])), 1)
    found = look(model, "rollout", "determinism")
    assert {finding.check for finding in found.findings} == {"rollout", "determinism"}
    assert "does not hold the rewards" in found.findings[0].title
    assert "already the rewards of the rollouts differ" in found.findings[1].detail


def test_rewards_that_never_differ_leave_nothing_to_learn() -> None:
    model = build(env=staggered(2, unit=0.0))
    found = look(model, "gradients")
    assert [finding.title for finding in found.findings] == ["There is nothing to learn for the policy"]


def test_a_schedule_that_a_file_can_only_name_is_told() -> None:
    model = build(learning_rate=lambda remaining: 1e-3 * remaining)
    found = look(model, "checkpoint", "determinism")
    assert [finding.title for finding in found.findings] == ["A file can only name learning_rate"]
    assert found.findings[0].severity == "low" and found.passed == ("determinism",)


def test_a_file_that_forgets_the_optimiser_is_found(model: DistributionalPPO) -> None:
    with mock.patch.object(checkpoint, "_load_optimizer", lambda *args: None):
        found = look(model, "checkpoint")
    assert "optimizer" in found.findings[0].detail


def test_settings_that_nobody_reads_are_named() -> None:
    model = build(memory=None, n_atoms=51, micro_batch_size=64, sde_sample_freq=4)
    titles = {finding.title for finding in look(model, "idle_settings").findings}
    assert titles == {
        "sequence_length is set and nobody reads it",
        "sde_sample_freq is set and nobody reads it",
        "micro_batch_size does nothing",
    }
    assert look(build(n_atoms=51), "idle_settings").passed == ("idle_settings",)
