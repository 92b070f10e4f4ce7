"""Where the worker that trains leaves word for the process that started it all, and finds what that one wants."""

from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["Desk", "Word", "open_desk"]


class Word(NamedTuple):
    """What is said: `progress`, `alert`, `notice`, `warning`, `done`, `interrupted` or `error`."""

    kind: str
    content: Any


class Desk:
    """An actor beside the process that started it all, so that what was said outlives a worker or its node."""

    def __init__(self) -> None:
        self._words: list[Word] = []
        self._signal: int | None = None

    def leave(self, word: Word) -> int | None:
        """The signal that asked for an end, if one came."""
        self._words.append(word)
        return self._signal

    def take(self, signal: int | None) -> list[Word]:
        """What was said since the last time; `signal` is passed on."""
        self._signal = signal
        words, self._words = self._words, []
        return words


def open_desk() -> Any:
    """A desk on this node."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(Desk).options(num_cpus=0, scheduling_strategy=here).remote()
