"""Numbers of one update, gathered as tensors and brought to the host in a single transfer."""

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Tally"]

_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"max": torch.amax, "min": torch.amin, "sum": torch.sum}


class Tally:
    """Weighted means, maxima, minima and sums by metric name; nothing is synchronised before `read`."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[list[Tensor | float], list[float]]] = {}
        self._extremes: dict[str, tuple[str, list[Tensor | float]]] = {}

    def mean(self, weight: float, **metrics: Tensor | float) -> None:
        """Add to weighted means; keywords are metric names with `/` written as `__`."""
        for key, value in metrics.items():
            self.mean_of(key.replace("__", "/"), value, weight)

    def mean_of(self, name: str, value: Tensor | float, weight: float) -> None:
        values, weights = self._means.setdefault(name, ([], []))
        values.append(value.detach() if isinstance(value, Tensor) else value)
        weights.append(weight)

    def extreme(self, kind: str, name: str, value: Tensor | float) -> None:
        """`kind` is max, min or sum."""
        _, values = self._extremes.setdefault(name, (kind, []))
        values.append(value.detach() if isinstance(value, Tensor) else value)

    def read(self) -> dict[str, float]:
        """Everything as floats: one stack, one transfer."""
        reduced: dict[str, Tensor] = {}
        for name, (values, weights) in self._means.items():
            share = torch.tensor(weights, dtype=torch.float64)
            reduced[name] = (_stack(values) * share).sum() / share.sum()
        for name, (kind, values) in self._extremes.items():
            reduced[name] = _REDUCTIONS[kind](_stack(values))
        if not reduced:
            return {}
        return dict(zip(reduced, torch.stack(list(reduced.values())).tolist(), strict=True))


def _stack(values: list[Tensor | float]) -> Tensor:
    tensors = [value if isinstance(value, Tensor) else torch.tensor(value) for value in values]
    return torch.stack([tensor.to(torch.float64).reshape(()) for tensor in tensors]).cpu()
