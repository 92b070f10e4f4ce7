"""Numbers of one update, gathered as tensors and brought to the host in a single transfer."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from leeward.telemetry.metrics import Metric, Numbers

__all__ = ["REDUCTIONS", "Tally"]

# NumPy's, since they let NaN through.
REDUCTIONS: dict[str, Callable[[list[float]], np.floating]] = {"max": np.max, "min": np.min, "sum": np.sum}
_Series = tuple[list[Tensor | float], list[float]]


class Tally:
    """Gathers metrics over minibatches, each in the way it says; nothing is synchronised before `read`."""

    def __init__(self) -> None:
        self._values: dict[Metric, _Series] = {}
        self._totals: dict[Metric, _Series] = {}

    def add(self, metric: Metric, value: Tensor | float, weight: float = 1.0) -> None:
        """One value; `weight` counts where the metric is a mean."""
        _append(self._values, metric, value, weight)

    def add_total(self, metric: Metric, total: Tensor | float, count: float) -> None:
        """`total` is a sum over `count` rows; the metric becomes the mean over all rows that were ever added."""
        _append(self._totals, metric, total, count)

    def read(self) -> Numbers:
        """Everything as floats: one stack, one transfer."""
        series = self._values | self._totals
        tensors = [value for values, _ in series.values() for value in values if isinstance(value, Tensor)]
        # Counts are whole numbers; each `to` costs more than the stack of all.
        alike = [tensor if tensor.dtype == torch.float32 else tensor.to(torch.float32) for tensor in tensors]
        host = iter(torch.stack(alike).tolist() if alike else [])
        numbers = {
            metric: [next(host) if isinstance(value, Tensor) else value for value in values]
            for metric, (values, _) in series.items()
        }
        found = {metric: _reduced(metric, numbers[metric], weights) for metric, (_, weights) in self._values.items()}
        return found | {
            metric: float(np.sum(numbers[metric]) / np.sum(counts)) for metric, (_, counts) in self._totals.items()
        }

    def weights(self) -> Numbers:
        """How much each metric was weighed with in all: rows, where it is a mean over rows."""
        return {metric: float(np.sum(counts)) for metric, (_, counts) in (self._values | self._totals).items()}


def _reduced(metric: Metric, values: list[float], weights: list[float]) -> float:
    if metric.combine == "mean":
        return float(np.average(values, weights=weights))
    return float(REDUCTIONS[metric.combine](values))


def _append(series: dict[Metric, _Series], metric: Metric, value: Tensor | float, weight: float) -> None:
    values, weights = series.setdefault(metric, ([], []))
    values.append(value.detach() if isinstance(value, Tensor) else value)
    weights.append(weight)
