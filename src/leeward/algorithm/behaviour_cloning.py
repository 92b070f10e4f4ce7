"""A warm start: the actor learns to act as a dataset does, by maximum likelihood. Critics and noise are left alone."""

import math
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from leeward.errors import ArgumentError, NonFiniteUpdate, ShapeError
from leeward.maths.nested import Memory, Observation, map_observation
from leeward.networks.actor_critic import ActorCritic
from leeward.rollout import streams
from leeward.rollout.sequences import Batch, Sequences, minibatches

__all__ = ["clone"]

# How widely to explore is for `learn` to find out: a likelihood would shrink it to nothing on a consistent dataset.
_LEARNS = ("extractor", "actor_extractor", "actor_memory", "actor_mlp", "action_head")


def clone(
    policy: ActorCritic,
    observations: np.ndarray | dict[str, np.ndarray],  # (n, ...)
    actions: np.ndarray,  # (n, ...), as the env takes them
    episode_starts: np.ndarray | None,  # (n,)
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    sequence_length: int,
    max_grad_norm: float | None,
    seed: int,
) -> list[float]:
    """Minimise −ln π(a|s), mean over steps; returns its mean in each epoch.

    A policy with memory reads whole episodes in order: each sequence starts from the memory that the policy, as it is
    at the start of the epoch, has there. The optimiser is an Adam of its own, so that PPO's starts afresh.
    """
    for name, value in (("epochs", epochs), ("batch_size", batch_size)):
        if not isinstance(value, int) or value < 1:
            raise ArgumentError(f"pretrain: {name} must be a whole number of at least 1, got {value!r}")
    if not (math.isfinite(learning_rate) and learning_rate > 0.0):
        raise ArgumentError(f"pretrain: learning_rate must be positive, got {learning_rate}")
    seen, n = _check_observations(policy, observations)
    wanted = _check_actions(policy, actions, n)
    sequences, places = _sequences(_check_starts(episode_starts, n), sequence_length)
    if policy.observation_normaliser is not None and policy.observation_normaliser.fresh:
        policy.observation_normaliser.update(seen)  # else the first update of `learn` would move what was learned
    groups = policy.parameter_groups()
    parameters = [p for name in _LEARNS for p in groups.get(name, [])]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    losses = []
    for epoch in range(epochs):
        memory = _memories(policy, seen, sequences.times, places, sequence_length)
        policy.set_training_mode(True)
        rng, total = streams.generator(seed, streams.CLONING, epoch), 0.0
        for batch in minibatches(sequences, 1, batch_size, rng, policy.device):
            loss = _loss(policy, seen, wanted, batch, memory)
            if not bool(torch.isfinite(loss)):
                raise NonFiniteUpdate(f"pretrain, epoch {epoch}: the loss is {float(loss)}; lower learning_rate")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            if max_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
            optimizer.step()
            total += float(loss.detach()) * batch.n_real
        losses.append(total / n)
    policy.zero_grad(set_to_none=True)  # parts that do not learn here may have been given a gradient
    policy.set_training_mode(False)
    return losses


def _pick(table: Tensor, rows: Tensor) -> Tensor:  # (n, ...), (L, S) -> (L, S, ...)
    return table[rows]


def _loss(policy: ActorCritic, seen: Observation, wanted: Tensor, batch: Batch, memory: Memory) -> Tensor:
    start = tuple(part.index_select(1, batch.sequences) for part in memory)
    parameters = policy.action_parameters(map_observation(partial(_pick, rows=batch.rows), seen), start)
    log_prob = policy.action_head.log_prob(parameters, _pick(wanted, batch.rows))
    return -log_prob[batch.mask].mean()


def _sequences(starts: np.ndarray, length: int) -> tuple[Sequences, np.ndarray]:
    """Each episode cut every `length` steps from its own start, so that only its last sequence may be shorter; and
    the place of each sequence in its episode, (n,)."""
    opens = np.flatnonzero(starts)
    cuts = [np.arange(begin, end, length) for begin, end in zip(opens, np.append(opens[1:], len(starts)), strict=True)]
    times, places = np.concatenate(cuts), np.concatenate([np.arange(len(cut)) for cut in cuts])
    zeros = np.zeros_like(times)
    return Sequences(times, zeros, np.append(times[1:], len(starts)) - times, zeros), places


@torch.no_grad()
def _memories(policy: ActorCritic, seen: Observation, times: np.ndarray, places: np.ndarray, length: int) -> Memory:
    """The memory before each sequence, each (layers, sequences, H): all episodes side by side, cut after cut."""
    memory = policy.initial_memory(len(times))
    if not memory:
        return memory
    policy.set_training_mode(False)
    for place in range(1, int(places.max()) + 1):
        here = np.flatnonzero(places == place)
        before = here - 1  # the same episode's, and whole
        rows = torch.as_tensor(times[before] + np.arange(length)[:, None], device=policy.device)  # (L, S)
        run = map_observation(partial(_pick, rows=rows), seen)
        after = policy.latents(run, tuple(part[:, before] for part in memory)).memory
        for part, new in zip(memory, after, strict=True):
            part[:, here] = new
    return memory


def _check_observations(policy: ActorCritic, observations: Any) -> tuple[Observation, int]:
    """Tensors (n, ...) of the observations, and n."""
    space = policy.observation_space
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    if isinstance(space, spaces.Dict) != isinstance(observations, dict):
        raise ArgumentError(f"pretrain: observations must be as {space} has them, got {type(observations).__name__}")
    given = observations if isinstance(observations, dict) else {"": observations}
    if set(given) != set(parts):
        raise ArgumentError(f"pretrain: observations need the keys {sorted(parts)}, got {sorted(given)}")
    lengths = {key: len(np.asarray(value)) for key, value in given.items()}
    n = next(iter(lengths.values()))
    if n == 0 or set(lengths.values()) != {n}:
        raise ShapeError(
            f"pretrain: observations need the same number of rows, at least 1, in each part, got {lengths}"
        )
    tensors = {}
    for key, part in parts.items():
        array = np.asarray(given[key])
        name = f"observations[{key!r}]" if key else "observations"
        if array.shape[1:] != part.shape:
            raise ShapeError(
                f"pretrain: {name} must be (n, {', '.join(map(str, part.shape or ()))}), got {array.shape}"
            )
        _check_finite(name, array)
        tensors[key] = torch.tensor(array.astype(part.dtype), device=policy.device)
    return (tensors if isinstance(space, spaces.Dict) else tensors[""]), n


def _check_actions(policy: ActorCritic, actions: Any, n: int) -> Tensor:
    """The actions in the head's own form, (n, A)."""
    space, array = policy.action_space, np.asarray(actions)
    shape = (n, *(space.shape or ()))
    if array.shape != shape:
        raise ShapeError(
            f"pretrain: actions must be {shape}, one per observation as {space} has them, got {array.shape}"
        )
    _check_finite("actions", array)
    low, high = _bounds(space)
    outside = ((array < low) | (array > high)).reshape(n, -1).any(1)
    if outside.any():
        row = int(np.flatnonzero(outside)[0])
        raise ArgumentError(f"pretrain: action {array[row]} in row {row} is outside {space}; clip or shift it first")
    return policy.action_head.from_env(torch.as_tensor(array, device=policy.device))


def _bounds(space: spaces.Space[Any]) -> tuple[Any, Any]:
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    size = space.nvec if isinstance(space, spaces.MultiDiscrete) else cast(spaces.Discrete, space).n
    start = cast("spaces.Discrete | spaces.MultiDiscrete", space).start
    return start, start + size - 1


def _check_starts(episode_starts: Any, n: int) -> np.ndarray:  # (n,) bool
    if episode_starts is None:
        starts = np.zeros(n, dtype=bool)
    else:
        starts = np.array(episode_starts, dtype=bool)  # a copy; SB3's are floats
        if starts.shape != (n,):
            raise ShapeError(f"pretrain: episode_starts must be ({n},), one per observation, got {starts.shape}")
    starts[0] = True
    return starts


def _check_finite(name: str, array: np.ndarray) -> None:
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.flatnonzero(~np.isfinite(array).reshape(len(array), -1).all(1))[0])
        raise ArgumentError(f"pretrain: {name} must be finite, got {array[row]} in row {row}")
