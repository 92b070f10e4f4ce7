"""Sequences for truncated back-propagation: no sequence holds an episode start after its first step.

Each env's T steps are cut every `sequence_length` steps and at every episode start. A sequence then starts either from
a stored memory or from zero, and one fused call runs a whole minibatch. Every real step is in exactly one sequence.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["Batch", "Sequences", "cut", "memory_times", "minibatches"]


class Sequences(NamedTuple):
    """n sequences: where they start and how many steps they have; the first `context` only warm the memory."""

    times: np.ndarray  # (n,)
    envs: np.ndarray  # (n,)
    lengths: np.ndarray  # (n,), context included
    context: np.ndarray  # (n,)


class Batch(NamedTuple):
    """One minibatch of S sequences, padded to L steps."""

    sequences: Tensor  # (S,), which
    rows: Tensor  # (L, S), index into the flattened (T·B) rollout; padding repeats the last real step
    mask: Tensor  # (L, S) bool, True = a real step that counts in the loss
    n_real: int


def memory_times(n_steps: int, sequence_length: int, burn_in: int) -> list[int]:
    """The times at which a sequence may need a stored memory."""
    return sorted({max(0, t - burn_in) for t in range(0, n_steps, sequence_length)})


def cut(starts: np.ndarray, sequence_length: int, burn_in: int = 0) -> Sequences:  # (T, B) bool
    """Cut every `sequence_length` steps and at episode starts; `burn_in` steps before a cut inside an episode are kept
    as context: they are run from their stored memory, and count in no loss."""
    T = len(starts)
    opens = starts.copy()
    opens[::sequence_length] = True
    env, time = np.nonzero(opens.T)  # by env, then by time
    last_of_env = np.append(env[1:] != env[:-1], True)
    following = np.where(last_of_env, T, np.append(time[1:], T))
    length = following - time
    if burn_in == 0:
        return Sequences(time, env, length, np.zeros_like(length))
    clock = np.arange(T)[:, None]
    episode_start = np.maximum.accumulate(np.where(starts, clock, 0), axis=0)  # start of the episode each step is in
    inside = ~starts[time, env]
    context = np.where(inside, np.minimum(burn_in, time - episode_start[time, env]), 0)
    return Sequences(time - context, env, length + context, context)


def minibatches(
    sequences: Sequences, n_envs: int, batch_size: float | None, rng: np.random.Generator, device: torch.device
) -> Iterator[Batch]:
    """Shuffled minibatches of whole sequences, each as near to `batch_size` real steps as they allow; None = all.

    The rollout is split into round(steps / batch_size) parts of nearly equal size, so that no small remainder is left.
    """
    order = rng.permutation(len(sequences.times))
    steps = np.cumsum((sequences.lengths - sequences.context)[order])
    total = int(steps[-1])
    parts = 1 if batch_size is None else max(1, round(total / batch_size))
    edges = np.searchsorted(steps, np.arange(1, parts) * (total / parts) - 1e-9) + 1
    lengths, context = sequences.lengths[order], sequences.context[order]
    clock = np.arange(lengths.max())[:, None]  # (L, 1)
    times = sequences.times[order] + np.minimum(clock, lengths - 1)  # (L, n)
    mask = torch.as_tensor((clock >= context) & (clock < lengths), device=device)
    rows = torch.as_tensor(times * n_envs + sequences.envs[order], device=device)
    which = torch.as_tensor(order, device=device)
    bounds = [0, *edges.tolist(), len(order)]
    for first, last in itertools.pairwise(bounds):
        if first < last:
            L = int(lengths[first:last].max())
            n_real = int(steps[last - 1] - (steps[first - 1] if first else 0))
            yield Batch(which[first:last], rows[:L, first:last], mask[:L, first:last], n_real)
