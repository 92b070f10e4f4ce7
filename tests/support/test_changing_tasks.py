"""Tasks that change: what is best is known, and does not stay."""

from itertools import pairwise

import numpy as np
import pytest
from torch import eye, ones

from .changing_tasks import TASKS, ChangingMarket, play
from .plasticity import effective_rank, updates_to_recover


@pytest.mark.parametrize("name", TASKS)
def test_the_best_policy_earns_in_its_phase_and_little_after_a_change(name):
    task, other = TASKS[name](seed=3), TASKS[name](seed=3)
    task.begin(0)
    other.begin(1)
    best, _ = play(task.best, task.testing(128))
    stale, _ = play(other.best, task.testing(128))
    assert best > (0.9 if name == "permuted" else 0.002)
    assert stale < 0.5 * best


@pytest.mark.parametrize("name", TASKS)
def test_a_phase_is_the_same_for_every_learner(name):
    shown = []
    for _ in range(2):
        task = TASKS[name](seed=3)
        task.begin(5)
        shown.append((task.training(8).reset(), task.testing(8).reset()))
    np.testing.assert_array_equal(shown[0][0], shown[1][0])
    np.testing.assert_array_equal(shown[0][1], shown[1][1])
    assert not np.array_equal(shown[0][0], shown[0][1])


def test_after_every_change_another_signal_speaks():
    task, carriers = ChangingMarket(seed=0), []
    for phase in range(6):
        task.begin(phase)
        carriers.append(task.carrier)
    assert all(before != now for before, now in pairwise(carriers))


def test_effective_rank_counts_equal_directions():
    assert effective_rank(eye(7, 5)) == pytest.approx(5.0)  # five singular values of 1
    assert effective_rank(ones(7, 5)) == pytest.approx(1.0)


def test_a_change_that_is_never_recovered_from_costs_the_whole_phase():
    scores = np.full((2, 10), 0.1)
    scores[0, 3:] = 0.9  # at the fourth update
    assert updates_to_recover(scores, 0.8) == (4 + 10) / 2
