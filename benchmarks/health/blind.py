"""More lists of faults from other people's bug reports, chosen and put in without a look at the rules (the eighth: by
somebody who knew them, in the order of a search): `unseen.py` runs them. None was of a kind that stood in the gallery
(`tests/support/faults.py`), or in a list before it, then.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from tests.support.faults import (
    Fault,
    Put,
    another_order,
    clipped_reward,
    clock_never_set_back,
    each_env,
    knob,
    last_reward_again,
    method,
    no_way_through_time,
    not_for_every_action,
    of,
    of_the_action_before,
    of_the_state_before,
    one_critic_twice,
    one_end_for_all,
    one_env,
    patch,
    random_numbers_begin_anew,
    reset_counts_as_a_step,
    rewards_of_another_discount,
    rollout,
    schedule_in_every_call,
    schedule_of_updates,
    scored_on_the_training_envs,
    seeded_again,
    step_count_pays,
    targets,
    two_steps_late,
    weights,
    whole_numbers,
)
from torch import Tensor, nn

from leeward import DistributionalPPO
from leeward.algorithm.losses import ValueLosses
from leeward.algorithm.update import UpdateInputs
from leeward.maths.policy_loss import ratio
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import as_tensors
from leeward.rollout.sequences import Batch, Sequences

__all__ = ["EIGHTH", "FIFTH", "FOURTH", "NINTH", "SEVENTH", "SIXTH"]


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


def reward_to_come(env: Any, index: int) -> Callable[..., Any]:
    """The last feature is the part of the next reward that no one can know yet."""

    def wrong(right: Callable[[], Any]) -> Any:
        seen = right()
        seen[4] = copy.deepcopy(env.rng).normal()
        return seen

    return wrong


def last_frame_pays(env: Any, index: int) -> Callable[..., Any]:
    """An action is held for four frames, and of their rewards the last is paid instead of the sum."""

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        for _ in range(4):
            seen, reward, terminated, truncated, info = right(action)
            if terminated or truncated:
                break
        return seen, reward, terminated, truncated, info

    return wrong


def memory_along_the_batch(model: DistributionalPPO, stack: ExitStack) -> None:
    """The batch is taken for time: nothing goes from step to step, but from one env or sequence to the next."""

    def wrong(right: Callable[..., Any], features: Tensor, memory: tuple[Tensor, ...]) -> Any:  # (L, S, F)
        nothing = tuple(part.new_zeros(len(part), len(features), part.shape[-1]) for part in memory)
        output, _ = right(features.transpose(0, 1), nothing)
        return output.transpose(0, 1), memory

    for part in (model.policy.actor_memory, model.policy.critic_memory):
        of(part, "forward", wrong)(model, stack)


def epochs_inside(model: DistributionalPPO, stack: ExitStack) -> None:
    """The two loops are interchanged: a minibatch has all of its epochs before the next one has its first."""
    waiting: list[Batch] = []

    def wrong(
        right: Callable[..., Iterator[Batch]], inputs: UpdateInputs, sequences: Sequences, rng: Any
    ) -> Iterator[Batch]:
        batches = list(right(inputs, sequences, rng))
        if not waiting:
            waiting.extend(batch for batch in batches for _ in range(inputs.plan.n_epochs))
        for _ in batches:
            yield waiting.pop(0)

    of(model.engine.updater, "_turns", wrong)(model, stack)


def drawn_from_the_beginning(model: DistributionalPPO, stack: ExitStack) -> None:
    """After a resume the envs and the learner draw what they drew after the start."""
    random_numbers_begin_anew(model, stack)
    collector = model.collector
    assert model.env is not None and collector is not None
    for index, monitor in enumerate(model.env.envs):  # type: ignore[attr-defined]
        env = monitor.unwrapped
        env.rng, env.last = np.random.default_rng([7, index]), np.zeros(5, np.float32)
    collector.reset(model.env.reset())  # type: ignore[arg-type]


def policy_loss_through_the_value(
    right: Callable[..., ValueLosses], policy: Any, rows: Any, found: Any, *rest: Any
) -> Any:
    """The value in the surrogate's advantage has a gradient: 1 in every step, where the ratio is 1, so values fall."""
    losses = right(policy, rows, found, *rest)
    return replace(losses, loss=losses.loss + rows.real(found.values.mean((-2, -1))).sum())


def too_far_pays(env: Any, index: int) -> Callable[..., Any]:
    """(1 − (wanted − x))² instead of 1 − |wanted − x|: the farther beyond what is wanted, the better."""

    def wrong(right: Callable[[Any], Any], action: Any) -> Any:
        wanted, x = float(np.tanh(env.last[0])), float(np.mean(np.clip(action, -2, 2)))
        seen, _, *rest = right(action)
        return seen, (1.0 - (wanted - x)) ** 2, *rest

    return wrong


def of_the_first_env(right: Callable[..., Tensor], advantages: Tensor, mask: Any = None, **keywords: Any) -> Tensor:
    """Mean and spread are those of the first env alone."""
    first = advantages[:, :1]
    return (advantages - first.mean()) / first.std()


def shown_one_step_late(env: Any, index: int) -> Callable[..., Any]:
    """What is shown is the state of one step ago."""
    waiting = [np.zeros(5, np.float32)]

    def wrong(right: Callable[[], Any]) -> Any:
        waiting.append(right())
        return waiting.pop(0)

    return wrong


def in_random_order(right: Callable[..., Tensor], *columns: Tensor, **keywords: Any) -> Tensor:  # (T, B) each
    """The rollout comes in a random order of its steps, and advantages are added up along it."""
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(0))
    advantages = right(*(column[order] for column in columns), **keywords)
    return advantages[order.argsort()]


# --- a filter in front of every env -----------------------------------------------------------------------------------


class Filter:
    """`show(seen, fresh)` is what the agent sees; `fresh` after a reset."""

    fresh = False

    def __init__(self, env: Any) -> None:
        self.env = env

    def show(self, seen: np.ndarray, fresh: bool) -> np.ndarray:
        raise NotImplementedError


def shown_through(make_filter: Callable[[Any], Filter]) -> Put:
    """Observations pass a filter of each env, those that the envs showed before it was put in too."""

    def put(model: DistributionalPPO, stack: ExitStack) -> None:
        assert model.env is not None and model.collector is not None
        filters = [make_filter(monitor.unwrapped) for monitor in model.env.envs]  # type: ignore[attr-defined]

        def look(env: Any, index: int) -> Callable[..., Any]:
            mine = filters[index]

            def wrong(right: Callable[[], Any]) -> Any:
                fresh, mine.fresh = mine.fresh, False
                return np.asarray(mine.show(np.asarray(right(), np.float64), fresh), np.float32)

            return wrong

        def reset(env: Any, index: int) -> Callable[..., Any]:
            def wrong(right: Callable[..., Any], **keywords: Any) -> Any:
                filters[index].fresh = True
                return right(**keywords)

            return wrong

        first = np.array(model.collector.observation)
        for index, mine in enumerate(filters):
            first[index] = np.asarray(mine.show(first[index].astype(np.float64), True), np.float32)
        model.collector.observation = model._last_obs = first
        each_env("_look", look)(model, stack)
        each_env("reset", reset)(model, stack)

    return put


class Pixels(Filter):
    """Of 0..255 the factor is 2/255 − 1, where 1 was to be taken from the product."""

    def show(self, seen: np.ndarray, fresh: bool) -> np.ndarray:
        return (seen + 9.0) / 18.0 * 255.0 * (2.0 / 255.0 - 1.0)


class WholeFrame(Filter):
    """A column is shown less its mean over all of the data, bars to come included."""

    def show(self, seen: np.ndarray, fresh: bool) -> np.ndarray:
        if fresh or not hasattr(self, "mean"):
            self.mean = float(np.mean(self.frame(seen)))
        shown = seen.copy()
        shown[4] -= self.mean
        return shown

    def frame(self, seen: np.ndarray) -> list[float]:
        """The column of the episode that begins here, to its end; actions have no part in it."""
        rng, last, column = copy.deepcopy(self.env.rng), self.env.last.copy(), [float(seen[4])]
        while True:
            rng.normal()
            ended = rng.random() < 0.08
            if ended:
                rng.random()
            last = (0.7 * last + rng.normal(size=5)).astype(np.float32).clip(-9, 9)
            column.append(float(last[4]))
            if ended:
                return column


class PaddedStack(Filter):
    """After a reset the other places of a stack of frames are zeros."""

    def show(self, seen: np.ndarray, fresh: bool) -> np.ndarray:
        if fresh or not hasattr(self, "frames"):
            self.frames = deque([0.0] * 5, maxlen=5)
        self.frames.append(seen[0])
        return np.array(self.frames)


class SquareOut(Filter):
    """np.square(x, mean): the second argument is where the result goes, so that the running mean becomes the square."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.mean, self.var = np.zeros(5), np.ones(5)

    def show(self, seen: np.ndarray, fresh: bool) -> np.ndarray:
        self.mean = 0.999 * self.mean + 0.001 * seen
        self.var = 0.999 * self.var + 0.001 * np.square(seen, self.mean)
        return (seen - self.mean) / (np.sqrt(self.var) + 1e-8)


class OneObservation(Filter):
    """Running moments are taken over the features of one observation, as if they were a batch."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4

    def show(self, seen: np.ndarray, fresh: bool) -> np.ndarray:
        delta, total = seen.mean() - self.mean, self.count + 1.0
        squares = self.var * self.count + seen.var() + delta**2 * self.count / total
        self.mean, self.var, self.count = self.mean + delta / total, squares / total, total
        return np.clip((seen - self.mean) / np.sqrt(self.var + 1e-8), -10.0, 10.0)


def entropy_of_the_action(right: Callable[..., Any], policy: Any, rows: Any, found: Any, weights: Any) -> Any:
    """The entropy is −p(a) log p(a) of the action that was taken, and of no other."""
    losses = right(policy, rows, found, weights)
    taken = rows.real(-found.log_prob.exp() * found.log_prob).sum()
    return replace_in(losses, loss=losses.policy - weights.ent_coef * taken)


def replace_in(losses: Any, **values: Any) -> Any:
    return type(losses)(**({field.name: getattr(losses, field.name) for field in fields(losses)} | values))


def entropy_of_one_hot(right: Callable[..., Tensor], parameters: Tensor) -> Tensor:
    """The entropy is computed from the sampled action, one-hot, in place of log-probabilities: a constant."""
    one_hot = torch.zeros_like(parameters)
    one_hot[..., 0] = 1.0
    return right(one_hot.log_softmax(-1))


def ratio_is_a_matrix(right: Callable[..., Any], policy: Any, rows: Any, found: Any, weights: Any) -> Any:
    """(1, N) new log-probabilities less (N,) old ones are N × N ratios, a row weighed by one advantage."""
    losses = right(policy, rows, found, weights)
    new, old, advantages = found.log_prob[rows.mask], rows.log_probs[rows.mask], rows.advantages[rows.mask]
    ratios = (new[None, :] - old[:, None]).clamp(-20.0, 20.0).exp()
    held = ratios.clamp(1.0 - weights.clip_range, 1.0 + weights.clip_range)
    costs = -advantages[:, None]
    change = torch.maximum(costs * ratios, costs * held).mean() * len(new) - losses.surrogate
    return replace_in(
        losses, loss=losses.loss + change, policy=losses.policy + change, surrogate=losses.surrogate + change
    )


def half_log_std(right: Callable[..., Tensor], parameters: Tensor, action: Tensor) -> Tensor:
    return right(parameters, action) + 0.5 * parameters.chunk(2, -1)[1].sum(-1)


def not_clipped(right: Callable[..., Tensor], action: Tensor) -> Tensor:
    return action.reshape(right(action).shape)


NORMALISED = {"policy_kwargs": {"normalize_observations": True}}
DECAY = {"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.99}}, "learning_rate": 3e-3}


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
SEVENTH = (
    (Fault("the policy is scored on the training envs", scored_on_the_training_envs, "", ANY, 30, updates=40),
     "DLR-RM/stable-baselines3#1731"),
    (Fault("a feature shows the reward to come", each_env("_look", reward_to_come), "", ANY, 30, at=1, updates=40),
     "PacktPublishing/Tensorflow-2-Reinforcement-Learning-Cookbook#36"),
    (Fault("of four frames the last alone pays", each_env("step", last_frame_pays), "", ANY, 30, at=1, updates=40),
     "Unity-Technologies/ml-agents#46"),
    (Fault("the memory runs along the batch", memory_along_the_batch, "", ANY, 30, at=1, updates=40),
     "AndersonJo/dqn-pytorch#1"),
    (Fault("all epochs of a minibatch before the next one", epochs_inside, "", ANY, 30, updates=40),
     "zplizzi/pytorch-ppo#4"),
    (Fault("the reward normaliser has another discount", rewards_of_another_discount, "", ANY, 30, at=1, updates=40),
     "vwxyzjn/cleanrl#203"),
    (Fault("the schedule counts updates for steps", schedule_of_updates, "", ANY, 30, at=1, updates=40,
           setup={"learning_rate": lambda remaining: 1e-3 * remaining}), "agi-brain/xuance#135"),
    (Fault("all seeds begin anew after a resume", drawn_from_the_beginning, "", ANY, 18, at=20, updates=40),
     "DLR-RM/stable-baselines3#1643"),
    (Fault("actions act two steps late", two_steps_late, "", ANY, 30, at=1, updates=40), "MineDojo/MineDojo#103"),
    (Fault("the policy loss has a gradient through the value", patch("leeward.algorithm.update.value_losses",
           policy_loss_through_the_value), "", ANY, 30, updates=40), "keras-team/keras-io#194"),
)  # fmt: skip
EIGHTH = (
    (Fault("advantages are added up in a random order of the steps", patch("leeward.maths.returns.gae",
           in_random_order), "", ANY, 30, updates=40), "UoA-CARES/cares_reinforcement_learning#46"),
    (Fault("the count of steps is paid as the reward", each_env("step", step_count_pays), "", ANY, 30, at=1,
           updates=40), "seolhokim/Transportation-Routes-Optimization-by-RL#6"),
    (Fault("the reward is of the state before", each_env("step", of_the_state_before), "", ANY, 30, at=1, updates=40),
     "Farama-Foundation/Gymnasium#821"),
    (Fault("what is wanted may be left behind", each_env("step", too_far_pays), "", ANY, 30, at=1, updates=40),
     "simon-larsson/ballbeam-gym#2"),
    (Fault("for some actions the last reward is paid again", each_env("step", not_for_every_action), "", ANY, 30,
           at=1, updates=40), "mpSchrader/gym-sokoban#14"),
    (Fault("advantages have the mean and the spread of the first env", patch("leeward.maths.advantage.normalise",
           of_the_first_env), "", ANY, 30, updates=40), "ServiceNow/PipelineRL#54"),
    (Fault("value targets are the values themselves", targets(
           lambda now, _: replace(now, samples=now.values[..., None].expand_as(now.samples).clone())), "", ANY, 30,
           updates=40), "vwxyzjn/cleanrl#337"),
    (Fault("the reward is of the action before", each_env("step", of_the_action_before), "", ANY, 30, at=1,
           updates=40), "AI4Finance-Foundation/FinRL#1346"),
    (Fault("what is shown is of one step ago", each_env("_look", shown_one_step_late), "", ANY, 30, at=1, updates=40),
     "berendgort/FinRL_Crypto#6"),
    (Fault("an env whose account broke pays 25 in every step", one_env(pays=25.0), "", ANY, 30, updates=40),
     "TorchTrade/torchtrade#388"),
)  # fmt: skip
NINTH = (
    (Fault("the minus one goes to the factor", shown_through(Pixels), "", ANY, 30, at=1, updates=40),
     "PacktPublishing/Deep-Reinforcement-Learning-Hands-On-Second-Edition#33"),
    (Fault("a column is shown less its mean over all data", shown_through(WholeFrame), "", ANY, 30, at=1, updates=40),
     "freqtrade/freqtrade-strategies#285"),
    (Fault("entropy of the taken action alone", patch("leeward.algorithm.update.policy_losses", entropy_of_the_action),
           "", ANY, 30, updates=40, setup={"action": "discrete", "ent_coef": 0.01}), "noahfarr/rlx#3"),
    (Fault("entropy of the sampled one-hot", method(lambda m: m.policy.action_head, "entropy", entropy_of_one_hot), "",
           ANY, 30, updates=40, setup={"action": "discrete", "ent_coef": 0.005}), "Unity-Technologies/ml-agents#3607"),
    (Fault("the ratio is a matrix", patch("leeward.algorithm.update.policy_losses", ratio_is_a_matrix), "", ANY, 30,
           updates=40), "JuliaReinforcementLearning/ReinforcementLearningZoo.jl#169"),
    (Fault("half the log std in the density", method(lambda m: m.policy.action_head, "log_prob", half_log_std), "",
           ANY, 30, updates=40), "google-research/batch-ppo#13"),
    (Fault("frames before the reset are zeros", shown_through(PaddedStack), "", ANY, 30, at=1, updates=40),
     "Farama-Foundation/Gymnasium#829"),
    (Fault("actions reach the env unclipped", method(lambda m: m.policy.action_head, "to_env", not_clipped), "", ANY,
           30, updates=40, setup={"bound": 1.0}), "cogment/cogment-verse#102"),
    (Fault("the running mean is the square", shown_through(SquareOut), "", ANY, 30, at=1, updates=40),
     "tristandeleu/pytorch-maml-rl#14"),
    (Fault("one observation's features are the batch", shown_through(OneObservation), "", ANY, 30, at=1, updates=40),
     "vwxyzjn/cleanrl#18"),
)  # fmt: skip
