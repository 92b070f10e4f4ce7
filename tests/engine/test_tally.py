"""Numbers of an update: weighted means and extremes, brought over at once."""

import math

import pytest
import torch

from leeward.telemetry.tally import Tally


def test_means_are_weighted_and_extremes_are_not() -> None:
    tally = Tally()
    tally.mean(3.0, train__loss=torch.tensor(2.0))
    tally.mean(1.0, train__loss=6.0)
    for value in (torch.tensor(-4.0), 7.5, torch.tensor(1.0)):
        for kind in ("max", "min", "sum"):
            tally.extreme(kind, kind, value)
    # (3·2 + 1·6)/4 = 3; the sum −4 + 7.5 + 1 = 4.5
    assert tally.read() == {"train/loss": 3.0, "max": 7.5, "min": -4.0, "sum": 4.5}


@pytest.mark.parametrize("order", [(1.0, math.nan), (math.nan, 1.0)])
def test_a_number_that_is_not_one_is_not_hidden(order: tuple[float, float]) -> None:
    tally = Tally()
    for value in order:
        tally.mean_of("mean", torch.tensor(value), 1.0)
        tally.extreme("max", "largest", torch.tensor(value))
        tally.extreme("min", "smallest", value)
    assert all(math.isnan(value) for value in tally.read().values())


def test_nothing_gathered_is_nothing_read() -> None:
    assert Tally().read() == {}


def test_gathering_keeps_no_graph() -> None:
    weight = torch.ones((), requires_grad=True)
    tally = Tally()
    tally.mean_of("loss", 2.0 * weight, 1.0)
    assert tally.read() == {"loss": 2.0}
