"""The observation normaliser: what it is by hand, that it stands still but for `update`, and that it travels."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from leeward.networks.observation_normaliser import ObservationNormaliser

SPACE = spaces.Box(-np.inf, np.inf, (2,))
FIRST = torch.tensor([[-1.0, 5.0], [1.0, 5.0]])  # mean 0 and std 1; the second feature never moves
SECOND = torch.tensor([[3.0, 5.0], [5.0, 5.0]])  # mean 4 and std 1; with the first: mean 2, variance 1 + 4 = 5


def test_observations_are_scaled_by_all_that_was_seen_and_cut_at_ten() -> None:
    normaliser = ObservationNormaliser(SPACE)
    seen = torch.tensor([[7.0, 5.5], [700.0, -700.0]])
    assert normaliser.fresh and torch.equal(normaliser(seen), seen)
    normaliser.update(FIRST)
    assert torch.equal(normaliser(seen), torch.tensor([[7.0, 0.5], [10.0, -10.0]]))
    normaliser.update(SECOND)
    assert normaliser(seen)[0].tolist() == pytest.approx([5.0 / math.sqrt(5.0), 0.5])


def test_looking_changes_nothing() -> None:
    normaliser = ObservationNormaliser(SPACE)
    normaliser.update(FIRST)
    before = {name: value.clone() for name, value in normaliser.state_dict().items()}
    normaliser(SECOND)
    assert all(torch.equal(value, before[name]) for name, value in normaliser.state_dict().items())


def test_it_travels_with_the_state_of_the_policy() -> None:
    normaliser, other = ObservationNormaliser(SPACE), ObservationNormaliser(SPACE)
    normaliser.update(FIRST)
    normaliser.update(SECOND)
    other.load_state_dict(normaliser.state_dict())
    assert torch.equal(other(FIRST), normaliser(FIRST))
    other.update(FIRST)
    normaliser.update(FIRST)
    assert torch.equal(other(SECOND), normaliser(SECOND))
