"""Steps and resets of a VecEnv are counted, whoever asks for them, so that a collector sees those that are not its own.

Counted is the innermost VecEnv: somebody else may hold it without the wrappers that the collector steps it through.
"""

from collections.abc import Callable
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

__all__ = ["Moves", "moves_of"]


class Moves:
    """How often a VecEnv was stepped or reset."""

    __slots__ = ("count",)  # it is asked in every step

    def __init__(self) -> None:
        self.count = 0


class _Step:
    """`step_wait`, counted. It is no closure: a deep copy of a VecEnv must move itself, not the original."""

    __slots__ = ("method", "moves")

    def __init__(self, method: Callable[..., Any], moves: Moves) -> None:
        self.method, self.moves = method, moves

    def __call__(self) -> Any:
        self.moves.count += 1
        return self.method()


class _Reset(_Step):
    """`reset`, counted; that of a VecEnv of one's own may take arguments."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        self.moves.count += 1
        return self.method(*arguments, **keywords)


def moves_of(env: VecEnv) -> Moves:
    """The one count of the VecEnv under all wrappers; it begins when this is first asked."""
    base = env.unwrapped
    counted = vars(base).get("step_wait")
    if isinstance(counted, _Step):
        return counted.moves
    moves = Moves()
    vars(base).update(step_wait=_Step(base.step_wait, moves), reset=_Reset(base.reset, moves))
    return moves
