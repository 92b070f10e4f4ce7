"""Numbers of one update, gathered as tensors and brought to the host in a single transfer."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

__all__ = ["REDUCTIONS", "Tally"]

# NumPy's, since they let NaN through.
REDUCTIONS: dict[str, Callable[[list[float]], np.floating]] = {"max": np.max, "min": np.min, "sum": np.sum}


class Tally:
    """Weighted means, maxima, minima and sums by metric name; nothing is synchronised before `read`."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[list[Tensor | float], list[float]]] = {}
        self._sums: dict[str, tuple[list[Tensor | float], list[float]]] = {}
        self._extremes: dict[str, tuple[str, list[Tensor | float]]] = {}

    def mean(self, weight: float, **metrics: Tensor | float) -> None:
        """Add to weighted means; keywords are metric names with `/` written as `__`."""
        for key, value in metrics.items():
            self.mean_of(key.replace("__", "/"), value, weight)

    def mean_of(self, name: str, value: Tensor | float, weight: float) -> None:
        _add(self._means, name, value, weight)

    def sum_of(self, name: str, value: Tensor | float, count: float) -> None:
        """`value` is a sum over `count` rows, and the metric the mean over all rows that were ever added."""
        _add(self._sums, name, value, count)

    def extreme(self, kind: str, name: str, value: Tensor | float) -> None:
        """`kind` is max, min or sum."""
        _, values = self._extremes.setdefault(name, (kind, []))
        values.append(value.detach() if isinstance(value, Tensor) else value)

    def kinds(self) -> dict[str, str]:
        """What is no mean: max, min or sum, by name."""
        return {name: kind for name, (kind, _) in self._extremes.items()}

    def read(self) -> dict[str, float]:
        """Everything as floats: one stack, one transfer."""
        series = {name: values for name, (values, _) in (self._means | self._sums).items()}
        series |= {name: values for name, (_, values) in self._extremes.items()}
        tensors = [value for values in series.values() for value in values if isinstance(value, Tensor)]
        # Counts are whole numbers; each `to` costs more than the stack of all.
        alike = [tensor if tensor.dtype == torch.float32 else tensor.to(torch.float32) for tensor in tensors]
        host = iter(torch.stack(alike).tolist() if alike else [])
        numbers = {
            name: [next(host) if isinstance(value, Tensor) else value for value in values]
            for name, values in series.items()
        }
        found = {name: float(np.average(numbers[name], weights=w)) for name, (_, w) in self._means.items()}
        found |= {name: float(np.sum(numbers[name]) / np.sum(n)) for name, (_, n) in self._sums.items()}
        return found | {name: float(REDUCTIONS[kind](numbers[name])) for name, (kind, _) in self._extremes.items()}


def _add(
    series: dict[str, tuple[list[Tensor | float], list[float]]], name: str, value: Tensor | float, weight: float
) -> None:
    values, weights = series.setdefault(name, ([], []))
    values.append(value.detach() if isinstance(value, Tensor) else value)
    weights.append(weight)
