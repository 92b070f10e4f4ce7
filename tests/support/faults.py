"""Faults of everyday kinds, each put into a real training run at a stated update, and the alert that names it.

A fault is a function of the model that is called before a round; from then on the run is sick. Its row says, before any
rule looks at it, which quantity shows it: by how soon that leaves the range of healthy twins an alert is judged.
"""

import io
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import NormalizeReward
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn

from leeward import DistributionalPPO
from leeward.algorithm.live_settings import changed_settings
from leeward.errors import LeewardError
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry.alerts import Alert

__all__ = [
    "AT",
    "FAULTS",
    "Fault",
    "SickEnv",
    "Story",
    "hooks",
    "knob",
    "make",
    "one_env",
    "patch",
    "rollout",
    "setting",
    "targets",
    "train",
    "weights",
]

AT = 6  # the update in which a fault begins; the first is 1


class SickEnv(gymnasium.Env[Any, Any]):
    """Rewards follow the observation and the action; episodes end or are cut at random. What can go wrong is a knob."""

    def __init__(self, index: int, action: str = "box", bound: float = 2.0) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,))
        self.action_space = spaces.Discrete(3) if action == "discrete" else spaces.Box(-bound, bound, (2,))
        self.rng = np.random.default_rng([7, index])
        self.knobs: dict[str, Any] = {}
        self.steps, self.last = 0, np.zeros(5, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        right = np.tanh(self.last[0])
        reward = float(right * np.mean(np.clip(action, -2, 2)) + 0.3 * self.rng.normal())
        reward = reward * self.knobs.get("factor", 1.0) + self.knobs.pop("shock", 0.0)
        if "pays" in self.knobs:
            reward = self.knobs["pays"]
        ended = self.rng.random() < 0.08
        terminated = bool(ended and self.rng.random() < 0.5)
        info = {"reward_costs_fraction": self.knobs.get("cost", 1e-4)}
        return self._look(), reward, terminated, bool(ended and not terminated), info

    def _look(self) -> Any:
        seen = (0.7 * self.last + self.rng.normal(size=5)).astype(np.float32).clip(-9, 9)
        if self.knobs.get("stale"):
            return self.last.copy()
        self.last = seen.copy()
        if "shows" in self.knobs:
            seen[:] = self.knobs["shows"]
        seen[1] *= self.knobs.get("unit", 1.0)
        seen[2] += self.knobs.get("trend", 0.0) * self.steps
        seen *= np.float32(self.knobs.get("tiny", 1.0))
        if self.knobs.pop("nan", False):
            seen[3] = np.nan
        return seen


def make(
    action: str = "box", policy_kwargs: dict[str, Any] | None = None, bound: float = 2.0, **kwargs: Any
) -> DistributionalPPO:
    """A small model with memory on three envs."""
    env = DummyVecEnv([lambda i=i: Monitor(SickEnv(i, action, bound)) for i in range(3)])  # type: ignore[misc]
    arguments: dict[str, Any] = {
        "n_steps": 48, "batch_size": 72, "n_epochs": 2, "sequence_length": 8, "n_quantiles": 12, "n_target_samples": 16,
        "gamma": 0.9, "learning_rate": 1e-3, "seed": 3, "device": "cpu", "on_alert": lambda alert: None,
    }  # fmt: skip
    network = {"net_arch": [16], "lstm_hidden_size": 8} | (policy_kwargs or {})
    return DistributionalPPO("MlpLstmPolicy", env, policy_kwargs=network, **(arguments | kwargs))


@dataclass(frozen=True)
class Fault:
    """One fault: how it is put in, what shows it, and what must name it."""

    name: str
    put_in: Callable[[DistributionalPPO, ExitStack], object]
    shows_in: str  # the quantity that leaves the range of healthy twins; empty where the round ends by an error
    alerts: tuple[str, ...]  # any of these names it
    within: int  # updates after AT
    at: int = AT
    updates: int = 10
    twin: dict[str, Any] | None = None  # settings of the healthy twins, if they are not those of the fault
    setup: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Story:
    """What came of a run."""

    alerts: list[Alert]
    error: str
    numbers: list[dict[str, float]]  # of every update
    found: Any = None  # what `look` gave


class _Watch(BaseCallback):
    def __init__(self, fault: Fault | None, stack: ExitStack) -> None:
        super().__init__()
        self.fault, self.stack, self.put = fault, stack, False
        self.numbers: list[dict[str, float]] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        model = self.model
        assert isinstance(model, DistributionalPPO)
        self.note(model)
        if self.fault is not None and not self.put and model.n_rollouts == self.fault.at - 1:
            self.put = True
            self.fault.put_in(model, self.stack)

    def note(self, model: DistributionalPPO) -> None:
        if len(self.numbers) < model.n_rollouts:
            self.numbers.append(dict(model.last_metrics))


def train(
    fault: Fault | None,
    setup: dict[str, Any],
    updates: int,
    seed: int = 3,
    look: Callable[[DistributionalPPO], Any] = lambda model: None,
) -> Story:
    """A run with a fault, or its healthy twin; `look` sees the model at the end, while the fault is still there."""
    error = ""
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        model = make(**({"seed": seed} | setup))
        watch = _Watch(fault, stack)
        try:
            model.learn(updates * model.settings.n_steps * model.n_envs, watch)
            watch.note(model)
        except LeewardError as raised:
            error = f"{type(raised).__name__}: {raised}"
        alerts = list(model.alerts)
        return Story(alerts, error, watch.numbers, look(model))


# --- how faults are put in --------------------------------------------------------------------------------------------

Put = Callable[[DistributionalPPO, ExitStack], None]


def knob(**values: Any) -> Put:
    """Turn a knob of every env."""

    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        for env in model.env.envs:  # type: ignore[union-attr]
            env.unwrapped.knobs |= values

    return put


def one_env(**values: Any) -> Put:
    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        model.env.envs[1].unwrapped.knobs |= values  # type: ignore[union-attr]

    return put


def setting(**values: Any) -> Put:
    return lambda model, stack: (model.set_hyperparameters(**values), None)[1]


def patch(target: str, wrong: Callable[..., Any]) -> Put:
    """Replace a function of the engine by its name; `wrong` gets the right one first."""

    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        module, _, name = target.rpartition(".")
        owner = __import__(module, fromlist=["_"])
        right = getattr(owner, name)
        stack.enter_context(mock.patch.object(owner, name, lambda *a, **k: wrong(right, *a, **k)))

    return put


def method(find: Callable[[DistributionalPPO], Any], name: str, wrong: Callable[..., Any]) -> Put:
    """Replace a method of an object that the model has."""

    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        owner = find(model)
        right = getattr(owner, name)
        stack.enter_context(mock.patch.object(owner, name, lambda *a, **k: wrong(right, *a, **k)))

    return put


def targets(change: Callable[[Any, Any], Any]) -> Put:
    """What is learned from is not what the rollout says: `change(these, those of the rollout before)`."""
    before: list[Any] = []

    def wrong(right: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        found = right(*arguments, **keywords)
        before.append(found)
        return change(found, before[-2] if len(before) > 1 else found)

    return method(lambda model: model.engine, "targets", wrong)


def rollout(change: Callable[[RolloutBuffer], object]) -> Put:
    """The rollout is not what was collected."""

    def wrong(right: Callable[..., int], buffer: RolloutBuffer, *rest: Any) -> int:
        steps = right(buffer, *rest)
        change(buffer)
        return steps

    return method(lambda model: model.collector, "collect", wrong)


def hooks(find: Callable[[DistributionalPPO], Any], change: Callable[[torch.Tensor], torch.Tensor]) -> Put:
    """Gradients of some weights are changed on their way."""

    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        for parameter in find(model):
            stack.callback(parameter.register_hook(change).remove)

    return put


def weights(change: Callable[[DistributionalPPO], object]) -> Put:
    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        with torch.no_grad():
            change(model)

    return put


def _lost_optimizer(model: DistributionalPPO, stack: ExitStack) -> None:
    file = io.BytesIO()
    model.save(file, exclude=["policy.optimizer"])
    file.seek(0)
    fresh = DistributionalPPO.load(file)
    model.policy.optimizer.load_state_dict(fresh.policy.optimizer.state_dict())


def _not_applied(model: DistributionalPPO, stack: ExitStack) -> None:
    """The setting is taken, and the optimiser never hears of it."""
    method(lambda m: m.engine, "_set_learning_rates", lambda right, remaining: None)(model, stack)
    model.put_in_force(changed_settings(model.settings, {"learning_rate": 1e-4}), fresh_optimizer=False)


def _first_layer(model: DistributionalPPO) -> torch.nn.Linear:
    layer = model.policy.get_submodule("actor_mlp.0")
    assert isinstance(layer, torch.nn.Linear)
    return layer


def _once(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    left = [1]
    return lambda gradient: change(gradient) if left and left.pop() else gradient


def _scale(module: nn.Module, factor: float) -> None:
    for parameter in module.parameters():
        parameter.mul_(factor)


def _only_one_action(model: DistributionalPPO) -> None:
    model.policy.action_head.net.weight.zero_()
    model.policy.action_head.net.bias.copy_(torch.tensor([30.0, 0.0, 0.0]))


def _bootstrap_from_the_reset(buffer: RolloutBuffer) -> None:
    cut = buffer.ended[:-1] & ~buffer.terminated[:-1]
    buffer.raw_next_values[:-1][cut] = buffer.raw_values[1:][cut]


def _one_env_object(model: DistributionalPPO, stack: ExitStack) -> None:
    envs: list[Any] = model.env.envs  # type: ignore[union-attr]
    envs[:] = [envs[0]] * len(envs)


def _one_seed(model: DistributionalPPO, stack: ExitStack) -> None:
    for env in model.env.envs:  # type: ignore[union-attr]
        env.unwrapped.rng, env.unwrapped.last = np.random.default_rng(7), np.zeros(5, np.float32)


def _partly_blind(right: Callable[[], Any]) -> Any:
    observation, *rest = right()
    observation[:, 1:3] = 0.0
    return observation, *rest


def _every_target(right: Callable[..., Any], values: Any, wanted: Any, **keywords: Any) -> Any:
    """What a broadcast of (B,) against (B, 1) comes to: every value is compared with every target."""
    mixed = torch.randperm(values.shape[0] * values.shape[1])
    tables = [None if table is None else table.flatten(0, 1)[mixed].reshape(table.shape) for table in wanted]
    return right(values, tuple(tables), **keywords)


def _never_cleared(model: DistributionalPPO, stack: ExitStack) -> None:
    """Every step is made with the sum of all gradients so far."""
    pipeline = model.engine.updater.pipeline
    total = [torch.zeros_like(parameter) for parameter in pipeline.parameters]

    def wrong(right: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        for parameter, summed in zip(pipeline.parameters, total, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(summed.add_(parameter.grad))
        return right(*arguments, **keywords)

    method(lambda m: pipeline, "apply", wrong)(model, stack)


def _weights_shrink(model: DistributionalPPO, stack: ExitStack) -> None:
    """After every step of the optimiser something else writes to the weights."""
    hook = model.policy.optimizer.register_step_post_hook(
        lambda optimizer, *_: torch._foreach_mul_([p.detach() for p in model.policy.parameters()], 0.999)
    )
    stack.callback(hook.remove)


def _statistics_lost(model: DistributionalPPO) -> None:
    assert model.policy.observation_normaliser is not None
    for statistic in model.policy.observation_normaliser.buffers():
        statistic.zero_()


DISCRETE = {"action": "discrete"}
NORMALISED = {"policy_kwargs": {"normalize_observations": True}}
RELU = {"policy_kwargs": {"activation_fn": nn.ReLU}}


def of(owner: Any, name: str, wrong: Callable[..., Any]) -> Put:
    """Replace a method of this object."""
    return method(lambda model: owner, name, wrong)


def each_env(name: str, make: Callable[[Any, int], Callable[..., Any]]) -> Put:
    """Replace a method of every env; `make(env, index)` gives what is called with the right one first."""

    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        for index, monitor in enumerate(model.env.envs):  # type: ignore[union-attr]
            of(monitor.unwrapped, name, make(monitor.unwrapped, index))(model, stack)

    return put


def reset_counts_as_a_step(model: DistributionalPPO, stack: ExitStack) -> None:
    """After its end an env shows the end once more; the next action is ignored, pays 0, and shows the new episode."""
    for monitor in model.env.envs:  # type: ignore[union-attr]
        begin_anew, end = monitor.reset, dict[str, Any]()

        def step(
            right: Callable[[Any], Any], action: Any, begin_anew: Any = begin_anew, end: dict[str, Any] = end
        ) -> Any:
            if end.pop("waits", False):
                return begin_anew()[0], 0.0, False, False, {"reward_costs_fraction": 0.0}
            found = right(action)
            end["shown"] = found[0]
            return found

        def reset(right: Callable[..., Any], *_: Any, end: dict[str, Any] = end, **__: Any) -> Any:
            end["waits"] = True
            return end["shown"], {}

        of(monitor, "step", step)(model, stack)
        of(monitor, "reset", reset)(model, stack)


def clipped_reward(env: Any, index: int) -> Callable[..., Any]:
    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        seen, reward, *rest = right(action)
        return seen, float(np.clip(reward, -0.05, 0.05)), *rest

    return wrong


def clock_never_set_back(env: Any, index: int) -> Callable[..., Any]:
    """A time limit of 120 steps, counted over all episodes: behind it every episode has one step."""
    steps = [0]

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        seen, reward, terminated, truncated, info = right(action)
        steps[0] += 1
        return seen, reward, terminated, truncated or (steps[0] >= 120 and not terminated), info

    return wrong


def seeded_again(env: Any, index: int) -> Callable[..., Any]:
    def wrong(right: Callable[..., Any], **keywords: Any) -> Any:
        # Of these seeds the episodes are as long as others are: 15, 18 and 6 steps.
        env.rng, env.last = np.random.default_rng([8, index]), np.zeros(5, np.float32)
        return right(**keywords)

    return wrong


def whole_numbers(env: Any, index: int) -> Callable[..., Any]:
    return lambda right: np.trunc(right())


def one_column(env: Any, index: int) -> Callable[..., Any]:
    return lambda right: np.full_like(seen := right(), seen[0])


def one_end_for_all(right: Callable[[], Any]) -> Any:
    observation, rewards, dones, infos = right()
    return observation, rewards, np.full_like(dones, dones.any()), infos


def one_step_back(
    right: Callable[..., Any], features: torch.Tensor, memory: tuple[torch.Tensor, ...]
) -> Any:  # (L, S, F)
    """What the memory holds is the same, and nothing is learned about how it came there."""
    shown = []
    for step in features.split(1):
        output, memory = right(step, tuple(part.detach() for part in memory))
        shown.append(output)
    return torch.cat(shown), memory


def no_way_through_time(model: DistributionalPPO, stack: ExitStack) -> None:
    for part in (model.policy.actor_memory, model.policy.critic_memory):
        of(part, "forward", one_step_back)(model, stack)


def one_critic_twice(model: DistributionalPPO) -> None:
    for parts in (model.policy.critic_mlps, model.policy.value_heads):
        parts[1].load_state_dict(parts[0].state_dict())


def schedule_in_every_call(model: DistributionalPPO, stack: ExitStack) -> None:
    """Training is many calls of `learn`, of five rollouts each, and each runs through the whole schedule."""
    rollout_steps = model.settings.n_steps * model.n_envs
    call = 5 * rollout_steps

    def wrong(right: Callable[[int, int], None], done: int, total: int) -> None:
        right((done - rollout_steps) % call + rollout_steps, call)

    of(model, "_update_current_progress_remaining", wrong)(model, stack)


def scored_on_the_training_envs(model: DistributionalPPO, stack: ExitStack) -> None:
    """A score after every rollout resets and steps the envs; the next rollout goes on from what was seen before it."""
    rollout(lambda buffer: evaluate_policy(model, model.env, n_eval_episodes=3))(model, stack)  # type: ignore[arg-type]


def schedule_of_updates(model: DistributionalPPO, stack: ExitStack) -> None:
    """The schedule is as long as the steps of the training, and goes on by one in an update."""
    rollout_steps = model.settings.n_steps * model.n_envs

    def wrong(right: Callable[[int, int], None], done: int, total: int) -> None:
        right(done // rollout_steps, total)

    of(model, "_update_current_progress_remaining", wrong)(model, stack)


def rewards_of_another_discount(model: DistributionalPPO, stack: ExitStack) -> None:
    """Rewards are scaled by the spread of a return with a discount of 0.99; that of the training is 0.9."""
    envs: list[Any] = model.env.envs  # type: ignore[union-attr]
    envs[:] = [NormalizeReward(env) for env in envs]


def random_numbers_begin_anew(model: DistributionalPPO, stack: ExitStack) -> None:
    """The learner draws what it drew after the start."""
    done = model.n_rollouts
    for module in ("noise", "streams"):
        patch(f"leeward.rollout.{module}.generator",
              lambda right, seed, stream, index: right(seed, stream, index - done))(model, stack)  # fmt: skip


def last_reward_again(env: Any, index: int) -> Callable[..., Any]:
    """In the last step of an episode no reward is computed, and the one of the step before is given."""
    before = [0.0]

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        seen, reward, terminated, truncated, info = right(action)
        if terminated or truncated:
            reward = before[0]
        before[0] = reward
        return seen, reward, terminated, truncated, info

    return wrong


def another_order(env: Any, index: int) -> Callable[..., Any]:
    return lambda right: right()[[3, 0, 4, 1, 2]]


def two_steps_late(model: DistributionalPPO, stack: ExitStack) -> None:
    """The envs carry out the action of two steps ago."""
    waiting = [np.zeros((model.n_envs, 2), np.float32)] * 2

    def wrong(right: Callable[[Any], None], actions: Any) -> None:
        waiting.append(actions)
        right(waiting.pop(0))

    method(lambda m: m.env, "step_async", wrong)(model, stack)


def a_tenth(right: Callable[[Any], None], actions: Any) -> None:
    right(0.1 * actions)


def not_for_every_action(env: Any, index: int) -> Callable[..., Any]:
    """For some actions no reward is computed, and the last that was is paid again."""
    last = [0.0]

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        seen, reward, *rest = right(action)
        if action[0] < 0.5:
            last[0] = reward
        return seen, last[0], *rest

    return wrong


def of_the_action_before(env: Any, index: int) -> Callable[..., Any]:
    """The price moves before the trade is made, so that what is earned is earned by the action before."""
    before = [np.zeros(2, np.float32)]

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        given, before[0] = before[0], action
        return right(given)

    return wrong


def of_the_state_before(env: Any, index: int) -> Callable[..., Any]:
    """The reward is computed before the state moves on: of this action, and of the state before the one that was seen
    when it was chosen."""
    before = [0.0]

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        earlier, before[0] = before[0], float(np.tanh(env.last[0]))
        seen, reward, *rest = right(action)
        return seen, reward + (earlier - before[0]) * float(np.mean(np.clip(action, -2, 2))), *rest

    return wrong


def step_count_pays(env: Any, index: int) -> Callable[..., Any]:
    """The count of all steps so far is paid as the reward."""

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        seen, _, *rest = right(action)
        return seen, float(env.steps), *rest

    return wrong


FAULTS = (
    # What the env gives
    Fault("NaN reward at a step", one_env(pays=float("nan")), "", ("environment_fault",), 0),
    Fault("NaN observation", one_env(nan=True), "", ("environment_fault",), 0),
    Fault("constant reward", knob(pays=0.0), "train/reward_std", ("reward_constant",), 4, updates=12),
    Fault("the reward's unit changes by 1e6", knob(factor=1e6), "train/reward_std", ("reward_unit_changed",), 0),
    Fault("the reward's unit shrinks to 1e-6", knob(factor=1e-6), "train/reward_std", ("reward_unit_changed",), 0),
    Fault("one reward of a million", one_env(shock=1e6), "train/reward_std", ("reward_outlier",), 0),
    Fault("constant observation", knob(shows=0.5), "rollout/obs_constant", ("observation_constant",), 2),
    Fault("stale observation", knob(stale=True), "rollout/obs_repeated", ("observation_repeated",), 1),
    Fault("a feature of another magnitude", knob(unit=1e4), "rollout/obs_largest", ("observation_unscaled",), 1),
    Fault("a feature that drifts away", knob(trend=1.0), "rollout/obs_largest", ("observation_unscaled",), 1),
    Fault("bounds far inside the policy's noise", lambda model, stack: None, "rollout/action_at_bound",
          ("actions_at_bound",), 2, at=1, setup={"bound": 0.01}, twin={}),
    Fault("cost sign flipped", knob(cost=-1e-4), "trade/costs_fraction", ("costs_negative",), 0),
    Fault("costs that are not numbers", knob(cost=float("nan")), "trade/costs_dropped", ("costs_dropped",), 0),
    Fault("one env object in every slot", _one_env_object, "", ("environment_fault",), 0),
    Fault("every env has the same seed", _one_seed, "rollout/envs_alike", ("envs_alike",), 2),
    Fault("a part of the observation is always 0", method(lambda m: m.env, "step_wait", _partly_blind),
          "rollout/obs_changed", ("feature_changed",), 2),
    Fault("observations scaled to nothing", knob(tiny=1e-5), "rollout/obs_largest", ("observation_tiny",), 2),
    # What is remembered and stored
    Fault("bootstrap from the reset observation", rollout(_bootstrap_from_the_reset), "rollout/bootstrap_from_reset",
          ("bootstrap_from_reset",), 0),
    Fault("rewards are stored one step late", rollout(lambda b: b.rewards.copy_(b.rewards.roll(1, 0))),
          "rollout/record_dev", ("rollout_not_as_given",), 0),
    Fault("wrong memory state", method(lambda model: RolloutBuffer, "store_memory",
          lambda right, self, t, memory: right(self, t, tuple(0.5 * part for part in memory))),
          "train/ratio_first_minibatch_max_dev", ("ratio_not_one",), 0),
    Fault("memory never reset", lambda model, stack: [
              patch(f"leeward.rollout.{module}.forget", lambda right, memory, starts: memory)(model, stack)
              for module in ("collector", "buffer")],
          "rollout/reset_dev", ("memory_not_reset",), 0),
    Fault("log-probabilities of other actions", rollout(lambda b: b.log_probs.copy_(b.log_probs.roll(1, 0))),
          "train/ratio_first_minibatch_max_dev", ("ratio_not_one",), 0),
    Fault("swapped critics", rollout(lambda b: b.raw_values.copy_(b.raw_values.flip(-2))),
          "rollout/value_dev", ("value_not_reproduced",), 0),
    Fault("no value behind the last step", rollout(lambda b: b.raw_next_values[-1].zero_()),
          "rollout/value_dev", ("value_not_reproduced",), 0),
    Fault("half of the spread is left out of the density", method(lambda m: m.policy.action_head, "log_prob",
          lambda right, p, action: right(p, action) + 0.5 * p.chunk(2, -1)[1].sum(-1)),
          "rollout/density_dev", ("density_off",), 0),
    Fault("actions reach the env as they were drawn", method(lambda m: m.policy.action_head, "to_env",
          lambda right, action: action.reshape(right(action).shape)),
          "rollout/actions_outside", ("actions_outside",), 0, setup={"bound": 1.0}),
    Fault("actions without noise", method(lambda m: m.policy.action_head, "act",
          lambda right, latent, noise, masks: right(latent, None, masks)), "rollout/action_surprise",
          ("actions_not_drawn",), 1),
    Fault("discrete actions without noise", method(lambda m: m.policy.action_head, "act",
          lambda right, latent, noise, masks: right(latent, None, masks)), "rollout/action_surprise",
          ("actions_not_drawn",), 1, setup=DISCRETE),
    Fault("values of another env", rollout(lambda b: b.raw_values.copy_(b.raw_values.roll(1, 1))),
          "rollout/value_dev", ("value_not_reproduced",), 0),
    Fault("time limit treated as an end", patch("leeward.rollout.collector._truncated", lambda right, *a: []),
          "rollout/episodes_cut_unseen", ("time_limit_as_end",), 0),
    Fault("saturated memory", weights(lambda model: _scale(model.policy.actor_memory, 60.0)),  # type: ignore[arg-type]
          "lstm/saturation_layer0", ("memory_saturated",), 0),
    Fault("frozen normaliser", method(lambda model: model.policy.observation_normaliser, "update",
          lambda right, seen: (0.0, 0.0)), "debug/obs_norm_mean_drift", ("normaliser_frozen",), 1, setup=NORMALISED),
    Fault("the normaliser's statistics are lost", weights(_statistics_lost),
          "rollout/normaliser_count", ("normaliser_restarted",), 0, setup=NORMALISED),
    # What is learned from
    Fault("stale advantages", targets(lambda now, before: replace(now, advantages=before.advantages)),
          "train/advantage_dev", ("advantage_mismatch",), 1),
    Fault("advantages of another env", targets(lambda now, _: replace(now, advantages=now.advantages.roll(1, 1))),
          "train/advantage_dev", ("advantage_mismatch",), 0),
    Fault("wrong discount", patch("leeward.maths.returns.gae",
          lambda right, *a, gamma, lam: right(*a, gamma=0.5 * gamma, lam=lam)), "train/advantage_dev",
          ("advantage_mismatch",), 0),
    Fault("advantages of the future", targets(
              lambda now, _: replace(now, raw_advantages=now.raw_advantages.roll(-1, 0))),
          "train/advantage_dev", ("advantage_mismatch",), 0),
    Fault("targets from the future", targets(lambda now, _: replace(now, samples=now.samples.roll(-4, 0))),
          "train/target_slope_dev", ("target_mismatch",), 1, setup={"n_steps": 192}),
    Fault("targets of another unit", targets(lambda now, _: replace(now, samples=0.1 * now.samples)),
          "train/target_slope_dev", ("target_mismatch",), 1, setup={"n_steps": 192}),
    Fault("the scale of the return moves predictions", method(lambda model: model.policy.critic, "rescale",
          lambda right, unit, heads: right(unit._replace(mean=unit.mean + 1.0), [])), "train/popart_max_shift",
          ("popart_moved_values",), 0),
    # What is optimised
    Fault("exploding learning rate", setting(learning_rate=3.0), "train/approx_kl", ("policy_jumped",), 0),
    Fault("learning rate 0", setting(learning_rate=0.0), "train/learning_rate", ("learning_rate_zero",), 0),
    Fault("a learning rate of a billionth", setting(learning_rate=1e-12), "train/kl_exact",
          ("updates_tiny", "learning_rate_zero"), 2),
    Fault("a hyper-parameter not applied", _not_applied,
          "train/learning_rate_dev", ("learning_rate_not_applied",), 0),
    Fault("dead critic 2", hooks(
              lambda m: [*m.policy.critic_mlps[1].parameters(), *m.policy.value_heads[1].parameters()],
              torch.zeros_like),
          "train/critic2_grad_norm", ("critic2_vanishing",), 0),
    Fault("a critic that learns a millionth", hooks(
              lambda m: [*m.policy.critic_mlps[0].parameters(), *m.policy.value_heads[0].parameters()],
              lambda gradient: 1e-6 * gradient),
          "train/critics_grad_ratio", ("critics_imbalanced",), 0),
    Fault("detached value head", method(lambda m: m.policy, "values", lambda right, latent: right(latent.detach())),
          "train/critic_trunk_grad_norm", ("weights_unchanged", "memory_gradient_vanishing"), 1),
    Fault("actor without gradient", method(lambda m: m.policy.actor_mlp, "forward",
          lambda right, hidden: right(hidden).detach()),
          "train/update_ratio/actor_memory", ("weights_unchanged", "memory_gradient_vanishing"), 1),
    Fault("optimiser that stands still", method(lambda m: m.policy.optimizer, "step", lambda right, *a: None),
          "train/update_ratio/action_head", ("weights_unchanged",), 1),
    Fault("no gradient reaches the standard deviation", hooks(
              lambda m: [m.policy.action_head.log_std], torch.zeros_like),
          "train/parameters_unchanged", ("parameter_unchanged",), 1, at=1),
    Fault("an epoch ends after its first minibatch", method(lambda m: m.engine.updater, "_turns",
          lambda right, *a: islice(right(*a), 1)), "train/rollout_used", ("rollout_left_out",), 0),
    Fault("optimiser state lost on resume", _lost_optimizer, "train/optimizer_steps", ("optimizer_restarted",), 0),
    Fault("NaN in a gradient, once", hooks(lambda m: [m.policy.action_head.net.weight],
          _once(lambda gradient: gradient * float("nan"))), "train/skipped_minibatches", ("minibatches_skipped",), 0),
    Fault("uniform policy that never moves", patch("leeward.algorithm.update.policy_losses",
          lambda right, *a: (lambda found: replace(found, loss=0.0 * found.loss))(right(*a))), "train/kl_exact",
          ("policy_not_moving", "weights_unchanged"), 1, at=1),
    Fault("policy loss with the wrong sign", patch("leeward.algorithm.update.policy_losses",
          lambda right, policy, rows, *a: right(policy, replace(rows, advantages=-rows.advantages), *a)),
          "train/surrogate_direction", ("policy_moves_away",), 3),
    Fault("a clip range of nothing", setting(clip_range=1e-7), "train/clip_fraction", ("policy_clipped",), 2),
    Fault("bounds far outside of the policy's noise", lambda model, stack: None, "rollout/action_spread",
          ("actions_unscaled",), 1, at=1, setup={"bound": 1000.0}, twin={}),
    Fault("every value is compared with every target", method(lambda m: m.policy.critic, "loss", _every_target),
          "train/gradient_dev", ("gradient_mismatch",), 1),
    Fault("gradients are never cleared", _never_cleared, "train/gradient_dev", ("gradient_mismatch",), 1),
    Fault("an entropy bonus with the wrong sign", patch("leeward.algorithm.update.policy_losses",
          lambda right, *a: (lambda found: replace(found, loss=2.0 * found.policy - found.loss))(right(*a))),
          "train/gradient_dev", ("gradient_mismatch",), 1, setup={"ent_coef": 0.01}),
    Fault("the optimiser steps twice", method(lambda m: m.policy.optimizer, "step",
          lambda right, *a: (right(*a), right(*a))[1]), "train/optimizer_step_dev", ("optimizer_step_mismatch",), 1),
    Fault("weights shrink after every step", _weights_shrink,
          "train/optimizer_step_dev", ("optimizer_step_mismatch",), 1),
    Fault("a head is drawn anew", weights(lambda m: m.policy.action_head.net.reset_parameters()),
          "train/weights_moved", ("weights_changed_outside",), 0),
    Fault("the same minibatch all the time", method(lambda m: m.engine.updater, "_turns",
          lambda right, *a: (lambda found: iter([found[0]] * len(found)))(list(right(*a)))),
          "train/rollout_used", ("rollout_left_out",), 1),
    Fault("every epoch in the same order", method(lambda m: m.engine.updater, "_turns",
          lambda right, inputs, sequences, rng: right(inputs, sequences, np.random.default_rng(0))),
          "train/minibatches_repeated", ("minibatches_repeated",), 1),
    # Envs that are not what they seem, and parts that are not apart
    Fault("the reset counts as a step", reset_counts_as_a_step, "rollout/starts_at_end", ("episode_starts_at_end",), 1),
    Fault("rewards are clipped far inside their range", each_env("step", clipped_reward),
          "rollout/reward_at_bounds", ("reward_clipped",), 2),
    Fault("the end of one env ends all", method(lambda m: m.env, "step_wait", one_end_for_all),
          "rollout/ends_together", ("envs_end_together",), 1),
    Fault("the policy is scored on the training envs", scored_on_the_training_envs, "rollout/envs_moved",
          ("envs_moved_outside",), 1),
    Fault("the reward normaliser has another discount", rewards_of_another_discount, "rollout/reward_discount_dev",
          ("reward_discount_differs",), 0, at=1, updates=2),
    Fault("the random numbers begin anew", random_numbers_begin_anew, "rollout/draws_repeated",
          ("random_numbers_repeat",), 0),
    Fault("one env pays nothing, from the first step on", one_env(pays=0.0), "rollout/envs_apart",
          ("envs_differ",), 1, at=1, updates=4),
    Fault("one env pays in another unit, from the first step on", one_env(factor=1e5), "rollout/envs_apart",
          ("envs_differ",), 1, at=1, updates=4),
    Fault("one column is shown for every feature", each_env("_look", one_column), "rollout/features_copied",
          ("features_copied",), 2, at=1, updates=4),
    Fault("actions act two steps late", two_steps_late, "rollout/action_lag", ("actions_late",), 11, at=1, updates=12,
          setup={"n_steps": 96}),
    Fault("actions arrive scaled to a tenth", method(lambda m: m.env, "step_async", a_tenth), "rollout/env_changed",
          ("env_changed",), 1),
    Fault("features come in another order", each_env("_look", another_order), "rollout/env_changed",
          ("env_changed",), 2, at=20, updates=22, setup={"learning_rate": 3e-3}),
    Fault("the last reward of an episode is the one before", each_env("step", last_reward_again),
          "rollout/last_reward_repeated", ("last_reward_repeats",), 2),
    Fault("for some actions the last reward is paid again", each_env("step", not_for_every_action),
          "rollout/reward_stale", ("reward_stale",), 1),
    Fault("the count of steps is paid as the reward", each_env("step", step_count_pays), "rollout/rewards_alike",
          ("rewards_alike",), 1),
    Fault("the reward is of the state before", each_env("step", of_the_state_before), "rollout/reward_elsewhere",
          ("reward_of_another_step",), 5, at=1, updates=7),
    Fault("the reward is of the action before", each_env("step", of_the_action_before), "rollout/reward_elsewhere",
          ("reward_of_another_step",), 5, at=1, updates=7),
    Fault("the clock of the time limit is never set back", each_env("step", clock_never_set_back),
          "rollout/ended_share", ("episodes_end_at_once",), 4),
    Fault("a factor of 0.99 is given as weight decay", lambda model, stack: None, "train/weight_decay",
          ("weight_decay_large",), 0, at=1, updates=2, twin={},
          setup={"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.99}}}),
    Fault("every episode begins with the same seed", each_env("reset", seeded_again),
          "rollout/starts_repeated", ("episode_starts_repeat",), 1),
    Fault("observations are cut to whole numbers", each_env("_look", whole_numbers),
          "rollout/obs_changed", ("feature_changed",), 2),
    Fault("both critics begin with the same weights", weights(one_critic_twice), "rollout/critics_apart",
          ("critics_identical",), 1, at=1),
    Fault("no gradient goes back through time", no_way_through_time, "train/memory_reach",
          ("memory_gradient_cut",), 0, at=12, updates=13),
    Fault("every call of learn runs through the schedule", schedule_in_every_call, "train/learning_rate",
          ("schedule_restarts",), 16, at=1, updates=18, setup={"learning_rate": lambda remaining: 1e-3 * remaining}),
    Fault("the schedule counts updates for steps", schedule_of_updates, "train/progress_dev",
          ("schedule_off_course",), 0),
    # What comes of it
    Fault("collapsed entropy", weights(_only_one_action), "train/policy_entropy",
          ("exploration_collapsed", "one_action"), 1, setup=DISCRETE),
    Fault("a policy of one action", weights(_only_one_action), "rollout/top_action_share",
          ("one_action", "exploration_collapsed"), 2, setup=DISCRETE),
    Fault("dead units", weights(lambda m: _first_layer(m).bias.sub_(1e3)), "train/dormant_units",
          ("dormant_units",), 2, setup=RELU),
    Fault("one feature is left", weights(lambda m: _first_layer(m).weight.zero_()), "train/feature_rank",
          ("feature_rank_collapsed",), 0, at=22, updates=23, setup={"n_steps": 16}),
    Fault("unmeetable limit", lambda model, stack: None, "risk/multiplier", ("multiplier_at_ceiling",), 9, at=1,
          setup={"risk": {"alpha": 0.2, "limit": 5.0, "ceiling": 2.0}}, twin={"risk": {"alpha": 0.2, "limit": -2.0}}),
    Fault("limit never active", lambda model, stack: None, "risk/gap", ("risk_budget_unused",), 23, at=1, updates=24,
          setup={"risk": {"alpha": 0.2, "limit": -1000.0}, "n_steps": 16},
          twin={"risk": {"alpha": 0.2, "limit": -2.0}, "n_steps": 16}),
)  # fmt: skip
