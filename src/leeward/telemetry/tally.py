"""Numbers of one update, gathered as tensors and brought to the host together at its end."""

import itertools
from collections.abc import Callable, Iterator
from operator import itemgetter

import numpy as np
import torch
from torch import Tensor

from leeward.telemetry.metrics import Metric, Numbers

__all__ = ["REDUCTIONS", "Tally"]

# NumPy's, since they let NaN through.
REDUCTIONS: dict[str, Callable[[list[float]], np.floating]] = {"max": np.max, "min": np.min, "sum": np.sum}
_Series = dict[Metric, tuple[list[float], list[float]]]  # values and weights
_Row = tuple[tuple[Metric, ...], Tensor, float]


class Tally:
    """Gathers metrics over minibatches, each in the way it says; nothing is synchronised before `read`."""

    def __init__(self) -> None:
        self._single: list[tuple[Metric, Tensor | float, float]] = []
        self._rows: list[_Row] = []
        self._totals: list[_Row] = []

    def add(self, metric: Metric, value: Tensor | float, weight: float = 1.0) -> None:
        """One value; `weight` counts where the metric is a mean."""
        self._single.append((metric, value.detach() if isinstance(value, Tensor) else value, weight))

    def add_row(self, metrics: tuple[Metric, ...], values: Tensor, weight: float) -> None:  # (n,)
        """One value of each metric: for every minibatch, one entry instead of n."""
        self._rows.append((metrics, values.detach(), weight))

    def add_totals(self, metrics: tuple[Metric, ...], totals: Tensor, count: float) -> None:  # (n,)
        """`totals` are sums over `count` rows; a metric becomes the mean over all rows that were ever added."""
        self._totals.append((metrics, totals.detach(), count))

    def read(self) -> Numbers:
        """Everything as floats."""
        values = _columns(self._rows)
        for metric, value, weight in self._host():
            _append(values, metric, [value], [weight])
        found = {metric: _reduced(metric, *series) for metric, series in values.items()}
        totals = _columns(self._totals).items()
        return found | {metric: float(np.sum(sums) / np.sum(counts)) for metric, (sums, counts) in totals}

    def weights(self) -> Numbers:
        """How much each metric was weighed with in all: rows, where it is a mean over rows."""
        found: dict[Metric, float] = {}
        for metrics, same in itertools.groupby(itertools.chain(self._rows, self._totals), key=itemgetter(0)):
            weight = sum(each for _, _, each in same)
            for metric in metrics:
                found[metric] = found.get(metric, 0.0) + weight
        for metric, _, weight in self._single:
            found[metric] = found.get(metric, 0.0) + weight
        return found

    def _host(self) -> Iterator[tuple[Metric, float, float]]:
        """The single values, by one stack and one transfer."""
        tensors = [value for _, value, _ in self._single if isinstance(value, Tensor)]
        # Counts are whole numbers; each `to` costs more than the stack of all.
        alike = [tensor if tensor.dtype == torch.float32 else tensor.to(torch.float32) for tensor in tensors]
        host = iter(torch.stack(alike).tolist() if alike else [])
        for metric, value, weight in self._single:
            yield metric, next(host) if isinstance(value, Tensor) else value, weight


def _columns(rows: list[_Row]) -> _Series:
    found: _Series = {}
    for metrics, same in itertools.groupby(rows, key=itemgetter(0)):
        _, values, weights = zip(*same, strict=True)
        for metric, column in zip(metrics, torch.stack(values).T.tolist(), strict=True):
            _append(found, metric, column, list(weights))
    return found


def _append(series: _Series, metric: Metric, values: list[float], weights: list[float]) -> None:
    own, counts = series.setdefault(metric, ([], []))
    own += values
    counts += weights


def _reduced(metric: Metric, values: list[float], weights: list[float]) -> float:
    if metric.combine == "mean":
        return float(np.average(values, weights=weights))
    return float(REDUCTIONS[metric.combine](values))
