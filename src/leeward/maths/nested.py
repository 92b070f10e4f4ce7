"""Tensors that come in groups: the observation of a Dict space, and the memory of a recurrent network."""

from collections.abc import Callable

from torch import Tensor

__all__ = ["Memory", "Observation", "as_sequence", "forget", "map_observation", "parts_of", "rows_of"]

Observation = Tensor | dict[str, Tensor]
Memory = tuple[Tensor, ...]  # each (layers, B, H): (h, c) of an LSTM, (h,) of a GRU, () without memory


def map_observation(function: Callable[[Tensor], Tensor], observation: Observation) -> Observation:
    """Apply `function` to the tensor, or to each tensor of a Dict observation."""
    if isinstance(observation, dict):
        return {key: function(value) for key, value in observation.items()}
    return function(observation)


def parts_of(observation: Observation) -> list[Tensor]:
    """The tensor, or those of a Dict observation."""
    return list(observation.values()) if isinstance(observation, dict) else [observation]


def as_sequence(observation: Observation) -> Observation:  # (B, ...) -> (1, B, ...)
    """One step of B envs as sequences of length 1."""
    return map_observation(lambda value: value.unsqueeze(0), observation)


def rows_of(observation: Observation) -> Tensor:
    """The first tensor of an observation, whose leading axes are those of all."""
    return next(iter(observation.values())) if isinstance(observation, dict) else observation


def forget(memory: Memory, starts: Tensor) -> Memory:  # each (layers, B, H), bool (B,)
    """The memory with every env that starts an episode set back to zero. The only reset there is."""
    return tuple(part.masked_fill(starts[None, :, None], 0.0) for part in memory)
