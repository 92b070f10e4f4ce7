"""Fingerprints of the random numbers of rollouts, to see whether they begin anew."""

from collections import deque
from hashlib import blake2b
from typing import Any

from torch import Tensor

from leeward.errors import CheckpointError

__all__ = ["DrawMemory", "fingerprint"]

_FIRST, _LAST = 32, 64  # rollouts that are remembered: those that a seed begins with, and those before a resume
_DRAWS = 16  # numbers that a fingerprint is made of
_FEW = 4  # numbers, of some 23 random bits each, below which two rollouts may begin alike by chance
_BYTES = 6


def fingerprint(noise: Tensor) -> int | None:  # (T', B, ...)
    """Of the exploration noise, whatever the policy makes of it; None of one that is too small to be told apart."""
    begins = noise.flatten()[:_DRAWS]
    if len(begins) < _FEW:
        return None
    return int.from_bytes(blake2b(begins.cpu().numpy().tobytes(), digest_size=_BYTES).digest())


class DrawMemory:
    """Owns the fingerprints of the first rollouts and of the last."""

    def __init__(self) -> None:
        self._first: list[int] = []
        self._last: deque[int] = deque(maxlen=_LAST)

    def look(self, found: int | None) -> float:
        """1 if a rollout that was learned from had the same; 0 where there is none."""
        if found is None:
            return 0.0
        again = found in self._first or found in self._last
        if len(self._first) < _FIRST:
            self._first.append(found)
        else:
            self._last.append(found)
        return float(again)

    def state_dict(self) -> dict[str, Any]:
        return {"first": list(self._first), "last": list(self._last)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        first, last = state["first"], state["last"]
        wrong = [each for each in (*first, *last) if type(each) is not int or not 0 <= each < 256**_BYTES]
        if wrong:
            raise CheckpointError(
                f"a damaged checkpoint: of random numbers it remembers {wrong[0]!r:.80}, expected a whole number"
            )
        if len(first) > _FIRST or len(last) > _LAST:
            raise CheckpointError(
                f"a damaged checkpoint: it remembers random numbers of {len(first)} and {len(last)} rollouts, expected "
                f"{_FIRST} and {_LAST} at most"
            )
        self._first, self._last = list(first), deque(last, maxlen=_LAST)
