"""What a policy predicts of its decisions in a backtest, asked for many of them at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leeward.backtest import calibration
from leeward.backtest.result import Outlook
from leeward.errors import ArgumentError

Floats = NDArray[np.float64]

__all__ = ["Foresight"]

_AT_ONCE = 4096  # decisions, whose memories are kept until they are asked about
_ALONE = 2  # decisions at the start that are asked about one by one
_ROUNDING = 1e-3  # of the largest number predicted: many rows are multiplied in another order than one
_PARTS = ("levels", "quantiles", "mean", "var", "cvar")
_Decision = tuple[Any, Any, Any]  # observation (1, D), state, episode_start (1,)


class Foresight:
    """Collects what was seen before each decision; `read` gives the distributions that `predict_distribution` saw."""

    def __init__(self, predict_distribution: Callable[..., Any], alpha: float) -> None:
        self._predict_distribution, self._alpha = predict_distribution, alpha
        self._waiting: list[_Decision] = []
        self._alone: tuple[_Decision, Outlook] | None = None  # a decision, and what was said of it alone
        self._returns: list[Outlook] = []
        self._steps: list[Outlook] = []

    def add(self, observation: Any, state: Any, episode_start: Any) -> None:
        """A decision with the memory before it, which the policy may write over as soon as it has decided."""
        side_by_side = _is_of_arrays(state)
        own = tuple(part.copy() for part in state) if side_by_side else state
        if self._waiting and (len(self._waiting) == _AT_ONCE or side_by_side != _is_of_arrays(self._waiting[-1][1])):
            self._ask()
        decision = (np.array(observation), own, np.array(episode_start))
        self._waiting.append(decision)
        # At once: what is no array cannot be kept, and a first answer that is wrong need not wait for thousands.
        can_wait = side_by_side or state is None
        if len(self._returns) < _ALONE or not can_wait:
            self._ask()
            self._alone = (decision, self._returns[-1]) if can_wait else None

    def read(self) -> tuple[Outlook | None, Outlook | None]:
        """Of the discounted return and of the next step, a row for each decision; None of what is not predicted."""
        if self._waiting:
            self._ask()
        return _joined(self._returns), _joined(self._steps)

    def _ask(self) -> None:
        if len(self._waiting) > 1 and self._alone is not None:
            self._ask_again(*self._alone)
        observations, states, starts = zip(*self._waiting, strict=True)
        state = states[0]
        if len(states) > 1 and state is not None:
            state = tuple(np.concatenate(parts, axis=1) for parts in zip(*states, strict=True))
        found = self._predict_distribution(
            np.concatenate(observations), state=state, episode_start=np.concatenate(starts)
        )
        self._returns.append(_outlook(found, len(states), self._alpha))
        step = getattr(found, "step", None)
        if step is not None:
            self._steps.append(_outlook(step, len(states), self._alpha))
        self._waiting.clear()

    def _ask_again(self, decision: _Decision, said: Outlook) -> None:
        """Of a policy that keeps its memory or its clock in itself, what it says now is not what it said then."""
        observation, state, episode_start = decision
        again = _outlook(
            self._predict_distribution(observation, state=state, episode_start=episode_start), 1, self._alpha
        )
        size = np.abs(said.quantiles).max()
        if not np.allclose(again.quantiles, said.quantiles, rtol=0.0, atol=_ROUNDING * size, equal_nan=True):
            raise ArgumentError(
                "predict_distribution must give the same for the same observation, state and episode_start, whenever "
                f"it is asked; asked again of one decision it gave a mean of {again.mean[0]:.4g} instead of "
                f"{said.mean[0]:.4g}. Keep what the policy remembers in `state`, as predict does"
            )


def _is_of_arrays(state: Any) -> bool:
    """Whether states can stand side by side, as those of several envs do: (layers, envs, ...) each."""
    return isinstance(state, tuple) and all(isinstance(part, np.ndarray) and part.ndim > 1 for part in state)


def _outlook(found: Any, n: int, alpha: float) -> Outlook:
    expected = f"levels (N,), quantiles ({n}, N), mean ({n},), var(alpha) and cvar(alpha) for {n} observations"
    missing = [part for part in _PARTS if not hasattr(found, part)]
    if missing:
        raise ArgumentError(
            f"predict_distribution must give {expected}, got a {type(found).__name__} without {', '.join(missing)}"
        )
    levels, weights = _array(found.levels).reshape(-1), getattr(found, "weights", None)
    rows = {
        "quantiles": _array(found.quantiles),
        "var": _array(found.var(alpha)),
        "cvar": _array(found.cvar(alpha)),
        "mean": _array(found.mean),
    }
    shapes = {name: (n, len(levels)) if name == "quantiles" else (n,) for name in rows}
    wrong = [f"{name} {rows[name].shape}" for name, shape in shapes.items() if rows[name].shape != shape]
    if wrong:
        raise ArgumentError(f"predict_distribution must give {expected}, got {', '.join(wrong)}")
    # An offer: a grid that is denser in the tail knows its own weights.
    own = calibration.step_weights(levels) if weights is None else _array(weights).reshape(-1)
    return Outlook(levels=levels, weights=own, **rows)


def _joined(parts: list[Outlook]) -> Outlook | None:
    if not parts:
        return None
    rows = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in ("quantiles", "var", "cvar", "mean")
    }
    return Outlook(levels=parts[0].levels, weights=parts[0].weights, **rows)


def _array(values: Any) -> Floats:
    return np.asarray(values, dtype=np.float64)
