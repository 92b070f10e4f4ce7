"""How the envs answer, in real runs: an action shows at once or late, and what follows does so as before or not."""

import io
import math
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from leeward import DistributionalPPO
from leeward.algorithm.env_response import EnvResponse
from leeward.errors import CheckpointError
from leeward.networks.actor_critic import ActorCritic
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics

from ..support.faults import Fault, another_order, each_env, make, method, rollout, train
from ..support.replicas import as_several

LAG, CHANGED = metrics.ACTION_LAG.name, metrics.ENV_CHANGED.name


def late(steps: int) -> Any:
    """Envs that carry out the action of so many steps ago."""
    waiting: list[Any] = []

    def wrong(right: Any, actions: Any) -> None:
        if not waiting:
            waiting.extend([actions] * steps)
        waiting.append(actions)
        right(waiting.pop(0))

    return Fault("late", method(lambda m: m.env, "step_async", wrong), "", (), 0, at=1)


def collected() -> tuple[ActorCritic, RolloutBuffer]:
    """A policy and a rollout of 48 steps of three envs."""
    model, found = make(), list[RolloutBuffer]()
    with ExitStack() as stack:
        model.learn(48 * 3)
        rollout(found.append)(model, stack)
        model.learn(48 * 3, reset_num_timesteps=False)
    return model.policy, found[0]


def test_a_sound_run_answers_at_once_and_as_before_and_is_looked_at_less_often_later() -> None:
    numbers = train(None, {}, 65).numbers
    assert [k + 1 for k, now in enumerate(numbers) if LAG in now] == [*range(1, 33), 64]
    assert {now[LAG] for now in numbers if LAG in now} == {0.0}
    assert max(now[CHANGED] for now in numbers if CHANGED in now) < 0.3


@pytest.mark.parametrize("action", ["box", "discrete"])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_lag_is_the_number_of_steps_that_an_action_waits(steps: int, action: str) -> None:
    story = train(late(steps), {"action": action, "n_steps": 144}, 16)
    assert story.numbers[-1][LAG] == steps
    # Where positions alone are seen, a force shows one step late by itself.
    assert ("actions_late" in {alert.name for alert in story.alerts}) == (steps >= 2)


@pytest.mark.parametrize("late_by", [0, 1])
def test_a_reward_of_one_step_may_come_late_but_not_one_of_two(late_by: int) -> None:
    """Delayed as a whole it is the task's own; of this action and the state before it is nobody's."""
    policy, seen = collected()
    assert isinstance(seen.observations, torch.Tensor)
    seen.ended.zero_()
    rng, found = np.random.default_rng(0), []
    for mixed in [False] * 4 + [True] * 4:
        if len(found) % 4 == 0:
            response = EnvResponse()
        seen.observations.copy_(torch.as_tensor(rng.normal(size=seen.observations.shape)))
        seen.actions.copy_(torch.as_tensor(rng.normal(size=seen.actions.shape)))
        state, action = seen.observations[..., 0].roll(late_by, 0), seen.actions[..., 0].roll(late_by, 0)
        seen.rewards.copy_(state.roll(1, 0) * action if mixed else state * action)
        found.append(response.look(policy, seen)[metrics.REWARD_ELSEWHERE])
    assert max(found[:4]) == 0.0
    assert (found[-1] > 0.15) == (late_by == 0), "of two steps that are both gone nothing is known"


def test_what_a_policy_meets_elsewhere_is_no_other_rule() -> None:
    """The reward is |x|: on the left of 0 it follows by another line than on the right, where the rule is from."""
    policy, seen = collected()
    assert isinstance(seen.observations, torch.Tensor)
    rng, response, found = np.random.default_rng(0), EnvResponse(), []
    for place in [4.0] * 8 + [2.0, 0.0, -2.0, -4.0]:
        seen.observations.copy_(torch.as_tensor(rng.normal(size=seen.observations.shape)))
        seen.observations[..., 0] += place
        seen.rewards.copy_(seen.observations[..., 0].abs())
        found.append(response.look(policy, seen)[metrics.ENV_CHANGED])
    assert max(found) < 0.3


@pytest.mark.parametrize("level", [0.0, 10_000.0])
def test_the_other_sign_of_a_reward_is_another_rule_however_far_from_0_features_are(level: float) -> None:
    policy, seen = collected()
    assert isinstance(seen.observations, torch.Tensor)
    rng, response, found = np.random.default_rng(0), EnvResponse(), []
    for sign in [1.0] * 8 + [-1.0] * 2:
        seen.observations.copy_(torch.as_tensor(rng.normal(size=seen.observations.shape)))
        seen.rewards.copy_(sign * seen.observations[..., 0])
        seen.observations[..., 0] += level
        found.append(response.look(policy, seen)[metrics.ENV_CHANGED])
    assert max(found[:8]) < 0.1 and min(found[8:]) > 1.0


def test_an_env_that_shows_its_features_in_another_order_after_a_resume_is_told() -> None:
    model = make(learning_rate=3e-3)
    model.learn(14 * 144)
    file = io.BytesIO()
    model.save(file)
    for env, names in ((None, []), (each_env("_look", another_order), ["env_changed"])):
        file.seek(0)
        again = DistributionalPPO.load(file, model.env, force_reset=False, on_alert=lambda alert: None)
        with ExitStack() as stack:
            if env is not None:
                env(again, stack)
            again.learn(3 * 144, reset_num_timesteps=False)
        assert [alert.name for alert in again.alerts if alert.severity != "info"] == names


def test_large_observations_and_short_rollouts_are_not_looked_at() -> None:
    policy, seen = collected()
    seen.observations = torch.zeros(48, 3, 33)
    assert EnvResponse().look(policy, seen) == {}
    assert LAG not in train(None, {"n_steps": 8}, 2).numbers[-1]


def test_a_damaged_state_is_refused() -> None:
    policy, seen = collected()
    response = EnvResponse()
    response.look(policy, seen)
    state = response.state_dict()
    EnvResponse().load_state_dict(state)
    message = f"the rule by which its envs answered has {len(state['rule']) - 1} numbers for 6 columns"
    with pytest.raises(CheckpointError, match=re.escape(message)):
        response.load_state_dict(state | {"rule": state["rule"][1:]})
    with pytest.raises(CheckpointError, match=f"traces of actions {len(state['sums']) - 1} and"):
        response.load_state_dict(state | {"sums": state["sums"][1:], "squares": state["squares"][1:]})
    for wrong in (-1.0, math.nan):
        with pytest.raises(CheckpointError, match="are no sums of squares and products"):
            response.load_state_dict(state | {"moments": [wrong, *state["moments"][1:]]})
    for name, wrong in (
        ("known", -1), ("mixes", -1), ("more", math.nan), ("usual", [math.nan] * 6),
        ("squares", [math.inf] * len(state["sums"])),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match="expected counts from 0 on and finite numbers"):
            response.load_state_dict(state | {name: wrong})


def test_what_was_seen_of_actions_goes_on_after_a_resume(tmp_path: Path) -> None:
    def model() -> DistributionalPPO:
        return DistributionalPPO("MlpPolicy", gymnasium.make("Pendulum-v1"), n_steps=128, batch_size=64, seed=0)

    whole = model().learn(4 * 128)
    whole.save(tmp_path / "m")
    loaded = DistributionalPPO.load(tmp_path / "m")
    assert np.abs(whole.engine.response._sums).max() > 0.0
    assert loaded.engine.response.state_dict() == whole.engine.response.state_dict()
    assert np.array_equal(loaded.engine.response._sums, whole.engine.response._sums)


def test_of_several_processes_the_first_alone_remembers() -> None:
    """A checkpoint holds what the first one knows, so the others must not know more."""
    envs = [lambda: gymnasium.make("Pendulum-v1")] * 4
    settings = {"n_steps": 64, "batch_size": 64, "n_epochs": 1, "device": "cpu", "policy": "MlpPolicy"}
    first, other = as_several(2, envs, 3 * 256, **settings)
    assert first.engine.response.state_dict()["rule"]
    assert other.engine.response.state_dict() == EnvResponse().state_dict()
    assert metrics.ENV_CHANGED.name in first.last_metrics


def test_an_env_that_leaves_no_choice_has_no_answers_to_be_looked_at() -> None:
    class Pushed(gymnasium.ActionWrapper):
        action_space = spaces.Discrete(1)

        def action(self, action: Any) -> Any:
            return action

    model = DistributionalPPO("MlpPolicy", Pushed(gymnasium.make("CartPole-v1")), n_steps=128, batch_size=64, seed=0)
    model.learn(256)
    assert model.last_metrics and LAG not in model.last_metrics
