"""One more list of faults from other people's bug reports, chosen and put in without a look at the rules.

Each row has the form of the lists in `unseen.py` and `blind.py`. None is of a kind that stands in the gallery
(`tests/support/faults.py`) or in one of those lists.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from tests.support.faults import Fault, Put, method, patch, rollout
from torch import Tensor

from leeward import DistributionalPPO
from leeward.maths.policy_loss import ratio
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import as_tensors
from leeward.rollout.sequences import Batch, Sequences

__all__ = ["SIXTH"]


def each_env(name: str, make: Callable[[Any], Callable[..., Any]]) -> Put:
    """Replace a method of every env; `make(env)` gives what is called with the right one first."""

    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        for monitor in model.env.envs:  # type: ignore[union-attr]
            env = monitor.unwrapped
            method(lambda _, env=env: env, name, make(env))(model, stack)  # type: ignore[misc]

    return put


# --- what the envs give -----------------------------------------------------------------------------------------------


def last_reward_again(env: Any) -> Callable[..., Any]:
    """In the last step of an episode no reward is computed, and the one of the step before is given."""
    before = [0.0]

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        seen, reward, terminated, truncated, info = right(action)
        if terminated or truncated:
            reward = before[0]
        before[0] = reward
        return seen, reward, terminated, truncated, info

    return wrong


def clock_never_set_back(env: Any) -> Callable[..., Any]:
    """A time limit of 120 steps, counted over all episodes: behind it every episode has one step."""
    steps = [0]

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        seen, reward, terminated, truncated, info = right(action)
        steps[0] += 1
        return seen, reward, terminated, truncated or (steps[0] >= 120 and not terminated), info

    return wrong


def another_order(env: Any) -> Callable[..., Any]:
    return lambda right: right()[[3, 0, 4, 1, 2]]


# --- what is remembered -----------------------------------------------------------------------------------------------


def successors_with_the_memory_before(model: DistributionalPPO, stack: ExitStack) -> None:
    """The value of what follows a step is computed from the memory before that step, as the step's own value is."""
    policy, given = model.policy, list[tuple[Tensor, ...]]()

    def act(right: Callable[..., Any], observation: Any, memory: tuple[Tensor, ...], *rest: Any) -> Any:
        given.append(memory)
        return right(observation, memory, *rest)

    def change(buffer: RolloutBuffer) -> None:
        assert isinstance(buffer.observations, Tensor) and model.collector is not None
        behind = as_tensors(model.collector.observation, policy.device)
        assert isinstance(behind, Tensor)
        following = torch.cat((buffer.observations[1:], behind[None]))  # (T, B, F)
        with torch.no_grad():
            for t, memory in enumerate(given[-len(following) :]):
                goes_on = ~buffer.ended[t]
                values = policy.values(policy.critic_latent(following[t], memory))  # (B, C, N)
                buffer.raw_next_values[t, goes_on] = values[goes_on]
        given.clear()

    method(lambda m: policy, "act", act)(model, stack)
    rollout(change)(model, stack)


def steps_in_any_order(
    right: Callable[..., Iterator[Batch]], sequences: Sequences, n_envs: int, size: float | None, rng: Any, device: Any
) -> Iterator[Batch]:
    """Steps are shuffled one by one, so that the memory reads the steps of a sequence in any order."""
    for batch in right(sequences, n_envs, size, rng, device):
        rows = batch.rows.clone()
        for column in range(rows.shape[1]):
            real = batch.mask[:, column].nonzero()[:, 0]
            rows[real, column] = batch.rows[real[torch.as_tensor(rng.permutation(len(real)))], column]
        yield batch._replace(rows=rows)


def spread_of_the_last_alone(
    right: Callable[..., Any], count: float, mean: Tensor, square_sum: Tensor, *other: Any
) -> Any:
    """The sum of squares is overwritten, and divided by the count of all: the spread falls to 0 like 1/√n."""
    return right(count, mean, torch.zeros_like(square_sum), *other)


# --- what is learned, and how -----------------------------------------------------------------------------------------


def least_ratio_first(
    right: Callable[..., Tensor], log_ratio: Tensor, advantages: Tensor, *, clip_range: float
) -> Tensor:  # (L, S)
    """The minimum is of the two ratios, before the advantage with its sign is multiplied."""
    r = ratio(log_ratio)
    return -torch.minimum(r, r.clamp(1.0 - clip_range, 1.0 + clip_range)) * advantages


def levels_of_the_targets(model: DistributionalPPO, stack: ExitStack) -> None:
    """Levels are broadcast along the targets, of which there are as many, instead of along the predictions."""
    critic = model.policy.critic

    def wrong(right: Callable[..., Tensor], raw: Tensor, targets: Any, *, kappa: float) -> Tensor:  # (L, S, C, N)
        ordered = targets[0].reshape(*raw.shape[:2], 1, 1, -1)  # (L, S, 1, 1, M)
        errors = ordered - raw.unsqueeze(-1)  # (L, S, C, N, M)
        levels: Any = critic.levels
        return ((levels.to(raw.dtype) - (errors < 0.0).to(raw.dtype)) * errors).mean((-2, -1))

    method(lambda m: critic, "loss", wrong)(model, stack)


def weights_of_half_precision(model: DistributionalPPO, stack: ExitStack) -> None:
    """There is no exact copy of the weights: after each step they are rounded to bfloat16."""

    def wrong(right: Callable[..., Any], *arguments: Any) -> Any:
        found = right(*arguments)
        with torch.no_grad():
            for parameter in model.policy.parameters():
                parameter.copy_(parameter.bfloat16())
        return found

    method(lambda m: m.policy.optimizer, "step", wrong)(model, stack)


ANY = ("–",)
NORMALISED = {"policy_kwargs": {"normalize_observations": True}}
DECAY = {"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.99}}, "learning_rate": 3e-3}
SIXTH = (
    (Fault("the last reward of an episode is the one before", each_env("step", last_reward_again), "", ANY, 30,
           updates=40), "AI4Finance-Foundation/FinRL#1228"),
    (Fault("the clock of the time limit is never set back", each_env("step", clock_never_set_back), "", ANY, 30,
           updates=40), "Farama-Foundation/Gymnasium#885"),
    (Fault("successors are valued with the memory before", successors_with_the_memory_before, "", ANY, 30, updates=40),
     "seungeunrho/minimalRL#17"),
    (Fault("the steps of a sequence are shuffled", patch("leeward.algorithm.update.minibatches", steps_in_any_order),
           "", ANY, 30, updates=40), "ray-project/ray#2996"),
    (Fault("the normaliser's spread is overwritten", patch("leeward.networks.observation_normaliser.merge_moments",
           spread_of_the_last_alone), "", ANY, 30, at=1, updates=40, setup=NORMALISED), "akanazawa/fpo#13"),
    (Fault("the minimum is taken before the advantage is multiplied", patch(
           "leeward.maths.policy_loss.clipped_surrogate", least_ratio_first), "", ANY, 30, updates=40,
           setup={"n_epochs": 8, "learning_rate": 3e-3}), "takuseno/ppo#3"),
    (Fault("quantile levels lie along the targets", levels_of_the_targets, "", ANY, 30, at=1, updates=40,
           setup={"n_target_samples": 12}), "BY571/QR-DQN#1"),
    (Fault("weights are held in half precision", weights_of_half_precision, "", ANY, 30, at=1, updates=40,
           setup={"learning_rate": 1e-4}), "vllm-project/speculators#765"),
    (Fault("weight decay of 0.99, meant as a factor", lambda model, stack: None, "", ANY, 30, at=1, updates=40,
           setup=DECAY, twin={"learning_rate": 3e-3}), "rlworkgroup/garage#961"),
    (Fault("features come in another order after a resume", each_env("_look", another_order), "", ANY, 18, at=20,
           updates=40, setup={"learning_rate": 3e-3}), "hill-a/stable-baselines#709"),
)  # fmt: skip
