"""Numbers of an update: weighted means and extremes, brought over at once."""

import math

import pytest
import torch

from leeward.telemetry.metrics import Combine, Metric
from leeward.telemetry.tally import Tally


def metric(combine: Combine) -> Metric:
    return Metric(f"some/{combine}", "–", "a number of minibatches", combine=combine)


MEAN, MAX, MIN, SUM = (metric(combine) for combine in ("mean", "max", "min", "sum"))


def test_means_are_weighted_and_extremes_are_not() -> None:
    tally = Tally()
    tally.add(MEAN, torch.tensor(2.0), 3.0)
    tally.add(MEAN, 6.0, 1.0)
    for value, weight in ((torch.tensor(-4.0), 3.0), (7.5, 1.0), (torch.tensor(1.0), 5.0)):
        for kind in (MAX, MIN, SUM):
            tally.add(kind, value, weight)
    # (3·2 + 1·6)/4 = 3; the sum −4 + 7.5 + 1 = 4.5
    assert tally.read() == {MEAN: 3.0, MAX: 7.5, MIN: -4.0, SUM: 4.5}


def test_a_total_becomes_the_mean_over_all_rows_that_were_added() -> None:
    tally = Tally()
    tally.add_totals((MEAN,), torch.tensor([6.0]), 4)
    tally.add_totals((MEAN,), torch.tensor([9.0]), 1)
    assert tally.read() == {MEAN: 3.0}  # 15 over 5 rows


def test_a_row_adds_one_value_to_each_of_its_metrics() -> None:
    tally = Tally()
    tally.add_row((MEAN, MAX), torch.tensor([2.0, 7.0]), 3.0)
    tally.add_row((MEAN, MAX), torch.tensor([6.0, -1.0]), 1.0)
    tally.add_row((SUM, MEAN), torch.tensor([5.0, 3.0]), 4.0)  # others, in another order
    tally.add(SUM, 0.5)
    # (3·2 + 1·6 + 4·3)/8 = 3
    assert tally.read() == {MEAN: 3.0, MAX: 7.0, SUM: 5.5}
    assert tally.weights() == {MEAN: 8.0, MAX: 4.0, SUM: 5.0}


@pytest.mark.parametrize("order", [(1.0, math.nan), (math.nan, 1.0)])
def test_a_number_that_is_not_one_is_not_hidden(order: tuple[float, float]) -> None:
    tally = Tally()
    for value in order:
        tally.add(MEAN, torch.tensor(value), 1.0)
        tally.add(MAX, torch.tensor(value))
        tally.add(MIN, value)
    found = tally.read()
    assert len(found) == 3 and all(math.isnan(value) for value in found.values())


def test_nothing_gathered_is_nothing_read() -> None:
    assert Tally().read() == {}


def test_gathering_keeps_no_graph() -> None:
    weight = torch.ones((), requires_grad=True)
    tally = Tally()
    tally.add(MEAN, 2.0 * weight, 1.0)
    tally.add_row((MAX,), 3.0 * weight.unsqueeze(0), 1.0)
    tally.add_totals((SUM,), 4.0 * weight.unsqueeze(0), 1.0)
    assert tally.read() == {MEAN: 2.0, MAX: 3.0, SUM: 4.0}
