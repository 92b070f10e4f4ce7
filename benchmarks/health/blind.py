"""More lists of faults from other people's bug reports, chosen and put in without a look at the rules: `unseen.py` runs
them. None was of a kind that stood in the gallery (`tests/support/faults.py`), or in a list before it, then.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import torch
from tests.support.faults import (
    Fault,
    clipped_reward,
    each_env,
    knob,
    method,
    no_way_through_time,
    of,
    one_critic_twice,
    one_end_for_all,
    patch,
    reset_counts_as_a_step,
    rollout,
    schedule_in_every_call,
    seeded_again,
    weights,
    whole_numbers,
)
from torch import Tensor, nn

from leeward import DistributionalPPO
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.sequences import Batch, Sequences

__all__ = ["FIFTH", "FOURTH"]


# --- what the envs give -----------------------------------------------------------------------------------------------


def running_total(env: Any, index: int) -> Callable[..., Any]:
    total = [0.0]

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        seen, reward, terminated, truncated, info = right(action)
        total[0] += reward
        paid = total[0]
        if terminated or truncated:
            total[0] = 0.0
        return seen, paid, terminated, truncated, info

    return wrong


# --- what is stored ---------------------------------------------------------------------------------------------------


def last_of_the_reshaped(buffer: RolloutBuffer) -> None:
    """(T, B) is taken for (B, T): the value behind the last row is of another step, where the episode goes on."""
    T, B = buffer.shape
    other = buffer.raw_values.flatten(0, 1).unflatten(0, (B, T))[:, -1]  # (B, C, N)
    goes_on = ~buffer.ended[-1]
    buffer.raw_next_values[-1, goes_on] = other[goes_on]


def not_emptied(model: DistributionalPPO, stack: ExitStack) -> None:
    """The first env's part of the rollout is still that of the rollout before, in every column."""
    before: list[list[Tensor]] = []

    def change(buffer: RolloutBuffer) -> None:
        columns = [value for field in fields(buffer) if isinstance(value := getattr(buffer, field.name), Tensor)]
        own = [column[:, 0] for column in columns if column.shape[:2] == buffer.shape]
        own += [part[:, :, 0] for part in buffer.memories]
        now = [column.clone() for column in own]
        for column, old in zip(own, before.pop() if before else now, strict=True):
            column.copy_(old)
        before.append(now)

    rollout(change)(model, stack)


def normaliser_moves_while_collecting(model: DistributionalPPO, stack: ExitStack) -> None:
    """Its statistics take in every step at once, so that the update reads other observations than the rollout did."""
    normaliser = model.policy.observation_normaliser
    assert normaliser is not None
    merge, moved = normaliser.update, [(0.0, 0.0)]

    def step(right: Callable[[], Any]) -> Any:
        observation, *rest = right()
        moved[0] = merge(torch.as_tensor(observation))
        return observation, *rest

    of(model.env, "step_wait", step)(model, stack)
    of(normaliser, "update", lambda right, seen: moved[0])(model, stack)


# --- what is learned, and how -----------------------------------------------------------------------------------------


def with_replacement(
    right: Callable[..., Iterator[Batch]], sequences: Sequences, n_envs: int, size: float | None, rng: Any, device: Any
) -> Iterator[Batch]:
    chosen = rng.integers(len(sequences.times), size=len(sequences.times))
    which = torch.as_tensor(chosen, device=device)
    for batch in right(Sequences(*(column[chosen] for column in sequences)), n_envs, size, rng, device):
        yield batch._replace(sequences=which[batch.sequences])


def never_below_zero(model: DistributionalPPO, stack: ExitStack) -> None:
    for head in model.policy.value_heads:
        of(head, "forward", lambda right, latent: right(latent).relu())(model, stack)


def fresh_value_heads(model: DistributionalPPO) -> None:
    for head in model.policy.value_head_list:
        nn.init.orthogonal_(head.weight)
        head.bias.copy_(model.policy.critic.initial_bias())


def clipped_around_another_unit(model: DistributionalPPO, stack: ExitStack) -> None:
    """New predictions are in the critics' unit, the old ones they are held to in that of the return."""
    knob(factor=20.0)(model, stack)
    critic = model.policy.critic

    def wrong(right: Callable[..., Any], raw: Tensor, old: Tensor, clip: Any) -> Any:
        mean, std = critic.unit
        return right(raw, old * std + mean, clip)

    of(critic, "hold_near", wrong)(model, stack)


def cleared_between_micro_batches(model: DistributionalPPO, stack: ExitStack) -> None:
    updater = model.engine.updater

    def wrong(right: Callable[..., Any], *arguments: Any) -> Any:
        for parameter in updater.pipeline.parameters:
            parameter.grad = None
        return right(*arguments)

    of(updater, "_pass", wrong)(model, stack)


ANY = ("–",)
NORMALISED = {"policy_kwargs": {"normalize_observations": True}}
FOURTH = (
    (Fault("the reset counts as a step", reset_counts_as_a_step, "", ANY, 30, updates=40), "Denys88/rl_games#362"),
    (Fault("rewards are clipped far inside their range", each_env("step", clipped_reward), "", ANY, 30, updates=40),
     "robocin/rSoccer#19"),
    (Fault("the critics end in a ReLU", never_below_zero, "", ANY, 30, at=1, updates=40), "openai/baselines#331"),
    (Fault("both critics begin with the same weights", weights(one_critic_twice), "", ANY, 30, at=1, updates=40),
     "EdanToledo/Stoix#72"),
    (Fault("minibatches are drawn with replacement", patch("leeward.algorithm.update.minibatches", with_replacement),
           "", ANY, 30, updates=40), "higgsfield-ai/higgsfield#7"),
    (Fault("the entropy bonus has the wrong sign", patch("leeward.algorithm.update.policy_losses",
           lambda right, policy, rows, found, terms: right(policy, rows, found,
                                                           replace(terms, ent_coef=-terms.ent_coef))),
           "", ANY, 50, updates=60, setup={"ent_coef": 0.05, "learning_rate": 3e-3}), "LuEE-C/PPO-Keras#4"),
    (Fault("every call of learn runs through the schedule", schedule_in_every_call, "", ANY, 30, at=1, updates=40,
           setup={"learning_rate": lambda remaining: 1e-3 * remaining}), "HumanCompatibleAI/imitation#262"),
    (Fault("the normaliser moves while a rollout is collected", normaliser_moves_while_collecting, "", ANY, 30,
           updates=40, setup=NORMALISED), "leggedrobotics/rsl_rl#225"),
    (Fault("the value behind the rollout is of another step", rollout(last_of_the_reshaped), "", ANY, 30, updates=40),
     "alshedivat/lola#12"),
    (Fault("no gradient goes back through time", no_way_through_time, "", ANY, 30, updates=40),
     "tensorforce/tensorforce#128"),
)  # fmt: skip
FIFTH = (
    (Fault("the end of one env ends all", method(lambda m: m.env, "step_wait", one_end_for_all), "", ANY, 30,
           updates=40), "Ericonaldo/ILSwiss#14"),
    (Fault("every episode begins with the same seed", each_env("reset", seeded_again), "", ANY, 30, updates=40),
     "weipu-zhang/STORM#8"),
    (Fault("the reward is the episode's total so far", each_env("step", running_total), "", ANY, 30, updates=40),
     "stanfordnmbl/osim-rl#43"),
    (Fault("observations are cut to whole numbers", each_env("_look", whole_numbers), "", ANY, 30, updates=40),
     "PufferAI/PufferLib#85"),
    (Fault("a part of the rollout is of the one before", not_emptied, "", ANY, 30, updates=40),
     "tensorflow/agents#227"),
    (Fault("the ratio is always 1", patch("leeward.algorithm.update.policy_losses",
           lambda right, policy, rows, found, terms: right(policy, replace(rows, log_probs=found.log_prob.detach()),
                                                           found, terms)),
           "", ANY, 30, updates=40), "tensorforce/tensorforce#312"),
    (Fault("values are clipped around old ones of another unit", clipped_around_another_unit, "", ANY, 30, at=1,
           updates=40, setup={"clip_range_vf": 0.2}), "instadeepai/Mava#805"),
    (Fault("gradients are cleared between micro-batches", cleared_between_micro_batches, "", ANY, 30, updates=40,
           setup={"micro_batch_size": 24}), "pytorch/torchtitan#3575"),
    (Fault("gradients are not clipped", method(lambda m: m.engine.updater.pipeline, "apply",
           lambda right, number, *, max_grad_norm: right(number, max_grad_norm=None)), "", ANY, 30, updates=40,
           setup={"max_grad_norm": 0.1}), "yandex-research/tabm#20"),
    (Fault("the value heads are fresh after a resume", weights(fresh_value_heads), "", ANY, 18, at=20, updates=40),
     "lqtrung1998/mwp_ReFT#26"),
)  # fmt: skip
