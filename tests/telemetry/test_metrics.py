"""Every registered metric is emitted, is finite and moves where it should; nothing else is emitted."""

import math
import re
from collections import defaultdict
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.wrappers import NormalizeReward
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn

from leeward import DistributionalPPO
from leeward.optim import AdaptiveUPGD
from leeward.telemetry.metrics import REGISTRY, find
from leeward.telemetry.pages import metrics_page

from ..support.faults import FAULTS, random_numbers_begin_anew, reset_counts_as_a_step, train
from ..support.models import Look, build, learn
from ..support.staggered_envs import Staggered

ROOT = Path(__file__).parents[2]
ROLLOUTS = 9


class Keep(KVWriter):
    """A writer of SB3's logger that remembers."""

    def __init__(self) -> None:
        self.values: dict[str, list[float]] = defaultdict(list)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
        for name, value in key_values.items():
            self.values[name].append(float(value))

    def close(self) -> None: ...


class Moody(Staggered):
    """Rewards that can be made to lie far from 0, and those of the first env to be constant."""

    far = False
    factor = 1.0
    shock = 0.0  # once

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        reward = reward * self.factor + self.shock
        self.shock = 0.0
        if self.far:
            reward = 1000.0 if self.index == 0 else reward + 1000.0
        info["is_success"] = reward > 0.3
        return observation, reward, terminated, truncated, info

    def __init__(self, index: int, **kwargs: Any) -> None:
        super().__init__(index, **kwargs)
        self.index = index


def run(model: DistributionalPPO, mischief: Any) -> dict[str, list[float]]:
    keep = Keep()
    model.set_logger(Logger(None, [keep]))
    learn(model, ROLLOUTS, Look(mischief))
    return keep.values


def everything_on() -> dict[str, list[float]]:
    def maker(index: int) -> Any:
        return lambda: Monitor(Moody(index))

    plain = DummyVecEnv([maker(i) for i in range(3)])
    env = VecNormalize(plain, norm_reward=False)

    def move(far: bool) -> None:
        for one in plain.envs:
            one.unwrapped.far = far

    move(True)
    model = build(
        env=env,
        gamma=0.0,
        learning_rate=lambda remaining: 3e-3 * remaining + 1e-4,
        clip_range=lambda remaining: 0.1 + 0.1 * remaining,
        clip_range_vf=lambda remaining: 1e-4 + 1e-3 * remaining,
        normalize_advantage="per_env",
        ent_coef=0.02,
        entropy={"end": 0.0, "std_scale_end": 0.5},
        awr={},
        kl_penalty={},
        target_kl=0.02,
        max_consecutive_skips=50,
        critic_learning_rate=lambda remaining: 2e-3 * remaining + 1e-4,
        vgs={"warmup": 9, "strength": 0.01},
        adversary={"warmup": 1, "epsilon_end": 0.2, "value_weight": 0.1},
        policy_kwargs={"normalize_observations": True, "n_lstm_layers": 2, "optimizer_class": AdaptiveUPGD},
    )
    policy = model.policy
    with torch.no_grad():
        for memory in (policy.actor_memory, policy.critic_memory):
            assert memory is not None
            for p in memory.parameters():
                p.mul_(15.0)  # some hidden units saturate
    hooks: list[Any] = []

    def mischief(model: DistributionalPPO) -> None:
        k, buffer = model.n_rollouts, model.rollout_buffer
        assert buffer is not None
        move(False)
        for hook in hooks:
            hook.remove()
        hooks.clear()
        if k in (2, 3):  # one critic is cut off from its gradient
            dead = (*policy.critic_mlps[k - 2].parameters(), *policy.value_heads[k - 2].parameters())
            hooks.extend(p.register_hook(torch.zeros_like) for p in dead)
        if k == 7:  # one critic learns a millionth of what the other does
            weak = (*policy.critic_mlps[0].parameters(), *policy.value_heads[0].parameters())
            hooks.extend(p.register_hook(lambda gradient: 1e-6 * gradient) for p in weak)
        if k == 4:
            buffer.log_probs[2, 1], buffer.log_probs[3, 1] = math.nan, math.inf
        if k == 5:
            buffer.log_probs[2, 1] += 25.0
        if k == 6:
            for p in policy.action_head.net.parameters():
                nn.init.normal_(p)  # a jump the KL stop sees at once
        model.start_time -= 2_000_000_000  # two seconds went by

    return run(model, mischief)


def categorical_without_memory() -> dict[str, list[float]]:
    model = build(memory=None, critic="categorical", action="discrete", twin_critics=False)
    return run(model, lambda _: None)


def unshared_categorical_critic() -> dict[str, list[float]]:
    env = DummyVecEnv([lambda: Moody(0, observation="image"), lambda: Moody(1, observation="image")])
    kwargs = {"share_features_extractor": False, "enable_critic_lstm": False}
    model = build(policy_kwargs=kwargs, observation="image", env=env, n_steps=14, critic="categorical")

    def grow(model: DistributionalPPO) -> None:
        for one in env.envs:
            one.unwrapped.factor *= 2.0

    return run(model, grow)


def two_constraints() -> dict[str, list[float]]:
    """A thin tail of one step beside one of whole episodes; staggered episodes, an env that gives no step_return."""
    thin = {"alpha": 0.009, "limit": -0.1}
    few, unseen = "fewer than 10", "does not show what the episode"
    fragile = "below 0.01"
    with (
        pytest.warns(UserWarning, match=few),
        pytest.warns(UserWarning, match=unseen),
        pytest.warns(UserWarning, match=fragile),
    ):
        return run(build(risk=[thin, {"measure": "episode_return", "limit": 1.0}]), lambda _: None)


def plain_quantile_critic() -> dict[str, list[float]]:
    env = DummyVecEnv([lambda: Moody(0), lambda: Moody(1), lambda: Moody(2)])

    def pay_nothing_once(model: DistributionalPPO) -> None:
        for one in env.envs:
            one.unwrapped.factor = 0.0 if model.n_rollouts == 3 else 1.0
        if model.n_rollouts == 1:
            env.envs = [NormalizeReward(one, gamma=0.5) for one in env.envs]
        if model.n_rollouts == 2:
            env.envs = [NormalizeReward(one, gamma=0.25) for one in env.envs]
        if model.n_rollouts == 5:  # from now on every epoch is shuffled in the same way
            updater = model.engine.updater
            turns = updater._turns
            updater._turns = lambda inputs, cut, _: turns(inputs, cut, np.random.default_rng(0))  # type: ignore[method-assign]

    return run(build(memory=None, env=env), pay_nothing_once)


def one_return_far_outside() -> dict[str, list[float]]:
    """A thousandth of a rollout is not rare enough: σ grows with what lies outside."""
    env = DummyVecEnv([lambda: Moody(0), lambda: Moody(1)])
    model = build(memory=None, env=env, gamma=0.0, n_steps=6000, batch_size=6000, n_epochs=1)

    def once(model: DistributionalPPO) -> None:
        buffer = model.rollout_buffer
        assert buffer is not None
        env.envs[0].unwrapped.shock = 1e6

    keep = Keep()
    model.set_logger(Logger(None, [keep]))
    learn(model, 2, Look(once))
    return keep.values


def looked_at_closely() -> dict[str, list[float]]:
    """One thing after another goes wrong between a rollout and its update."""
    model = build(n_steps=200, ends=0.1, n_epochs=1, batch_size=300, n_target_samples=32)
    policy, turns = model.policy, model.engine.updater._turns

    def mischief(model: DistributionalPPO) -> None:
        k, buffer = model.n_rollouts, model.rollout_buffer
        assert buffer is not None and isinstance(buffer.observations, torch.Tensor)
        if k == 1:
            buffer.observations[:] = 0.5
        if k == 2:
            buffer.terminated |= buffer.ended
        if k == 3:
            buffer.rewards *= -1.0
        if k == 4:
            buffer.raw_values += 0.5
            buffer.observations[:] = buffer.observations[..., :1]
        if k == 5:
            buffer.action_parameters[buffer.starts] += 0.5
        if k == 6:
            model.collector.env.reset()
            policy.optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.param_groups[0].update(lr=1e-5))
        if k == 8:
            cut = buffer.ended[:-1] & ~buffer.terminated[:-1]
            buffer.raw_next_values[:-1][cut] = buffer.raw_values[1:][cut]
        if k == 9:
            model.engine.updater._turns = lambda *a: islice(turns(*a), 1)  # type: ignore[method-assign]
        if k == 10:
            model.engine.updater._turns = turns  # type: ignore[method-assign]
            buffer.rewards.clamp_(-0.05, 0.05)
            buffer.ended |= buffer.ended.any(1, keepdim=True)
            reset_counts_as_a_step(model, stack)
            random_numbers_begin_anew(model, stack)
        if k == 11:
            model._total_timesteps *= 2
        if k == 7:
            nn.init.zeros_(policy.actor_mlp[0].weight)
            nn.init.zeros_(policy.actor_mlp[0].bias)

    keep = Keep()
    model.set_logger(Logger(None, [keep]))
    with ExitStack() as stack:
        learn(model, 12, Look(mischief))
    return keep.values


def of_a_fault(name: str) -> dict[str, list[float]]:
    fault = next(fault for fault in FAULTS if fault.name == name)
    numbers = train(fault, fault.setup, fault.updates).numbers
    return {name: [update[name] for update in numbers if name in update] for name in numbers[-1]}


@pytest.fixture(scope="module")
def emitted() -> dict[str, dict[str, list[float]]]:
    return {
        "everything": everything_on(),
        "categorical": categorical_without_memory(),
        "unshared": unshared_categorical_critic(),
        "plain": plain_quantile_critic(),
        "constrained": two_constraints(),
        "shocked": one_return_far_outside(),
        "looked at": looked_at_closely(),
        "late": of_a_fault("actions act two steps late"),
        "repeated": of_a_fault("the last reward of an episode is the one before"),
        "alike": of_a_fault("the count of steps is paid as the reward"),
        "elsewhere": of_a_fault("the reward is of the state before"),
        "outside": of_a_fault("actions reach the env as they were drawn"),
    }


def pattern(name: str) -> re.Pattern[str]:
    return re.compile("^" + re.sub(r"<\w+>", "[^/]+", name) + "$")


def test_nothing_is_emitted_that_is_not_registered(emitted: dict[str, dict[str, list[float]]]) -> None:
    patterns = [pattern(name) for name in REGISTRY]
    names = {name for values in emitted.values() for name in values}
    # A second constraint reports under the names of the first, and its number.
    plain = {re.sub(r"^(risk/[^/]+)/[2-9]$", r"\1", name) for name in names}
    assert [name for name in sorted(plain) if not any(p.match(name) for p in patterns)] == []
    assert [name for name in sorted(names) if find(name) is None] == []


def test_a_second_constraint_reports_what_the_first_does_under_names_with_its_number(
    emitted: dict[str, dict[str, list[float]]],
) -> None:
    log = emitted["constrained"]
    second = {name.removesuffix("/2"): values for name, values in log.items() if name.endswith("/2")}
    # What is there once for all of them: predictions, and how hard they pull on the policy.
    once = {"risk/cvar_predicted", "risk/return_cvar_predicted", "risk/grad_norm"}
    assert set(second) == {name for name in log if name.startswith("risk/") and not name.endswith("/2")} - once
    for name, values in second.items():
        assert np.isfinite(values).all()
        assert find(f"{name}/2") is REGISTRY[name]
    assert any(len(set(values)) > 1 for values in second.values())


@pytest.mark.parametrize("name", [name for name in REGISTRY if not name.startswith(("trade/", "eval/", "population/"))])
def test_a_registered_metric_is_emitted_finite_and_takes_more_than_one_value(
    name: str, emitted: dict[str, dict[str, list[float]]]
) -> None:
    found = {
        (run, key): values for run, log in emitted.items() for key, values in log.items() if pattern(name).match(key)
    }
    assert found, "never emitted"
    for values in found.values():
        assert np.isfinite(values).all()
    if name not in ("risk/limit", "train/weight_decay", "time/time_elapsed"):  # settings, and whole seconds
        assert any(len(set(values)) > 1 for values in found.values()), found


def test_warnings_and_errors_are_silent_in_a_healthy_run(emitted: dict[str, dict[str, list[float]]]) -> None:
    quiet = [name for name in emitted["categorical"] if name.startswith(("warn/", "error/"))]
    assert len(quiet) >= 6
    for name in quiet:
        assert set(emitted["categorical"][name]) == {0.0}, name
    assert set(emitted["categorical"]["train/skipped_minibatches"]) == {0.0}


def test_a_metric_that_needs_a_setting_is_not_there_without_it(emitted: dict[str, dict[str, list[float]]]) -> None:
    plain = set(emitted["categorical"])
    for name, metric in REGISTRY.items():
        if metric.needs and metric.needs not in ("critic='categorical'", "discrete actions"):
            assert not any(pattern(name).match(key) for key in plain), name


def test_the_page_of_metrics_is_the_registry() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == metrics_page(), "generate docs/metrics.md anew from leeward.telemetry.pages.metrics_page()"
