"""Rewards that repeat each other, on a real rollout."""

from contextlib import ExitStack

import pytest

from leeward.algorithm.reward_looks import reward_looks
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics

from ..support.faults import make, rollout


@pytest.fixture
def real() -> RolloutBuffer:
    """48 steps of three envs, of which some episodes end."""
    model, found = make(), list[RolloutBuffer]()
    with ExitStack() as stack:
        rollout(found.append)(model, stack)
        model.learn(48 * 3)
    return found[0]


def repeat_at_ends(real: RolloutBuffer) -> None:
    ends = real.ended[1:] & ~real.ended[:-1]
    assert int(ends.sum()) >= 5
    real.rewards[1:][ends] = real.rewards[:-1][ends]


def test_last_rewards_that_repeat_are_counted(real: RolloutBuffer) -> None:
    assert reward_looks(real)[metrics.LAST_REWARD_REPEATED] == 0.0
    repeat_at_ends(real)
    assert reward_looks(real)[metrics.LAST_REWARD_REPEATED] == 1.0


def test_rewards_that_repeat_anywhere_may_repeat_at_ends(real: RolloutBuffer) -> None:
    real.rewards.round_()
    repeat_at_ends(real)
    assert reward_looks(real)[metrics.LAST_REWARD_REPEATED] == 0.0


def pay_some_again(real: RolloutBuffer) -> None:
    real.rewards[1::4] = real.rewards[::4]


def test_stale_rewards_are_counted(real: RolloutBuffer) -> None:
    assert reward_looks(real)[metrics.REWARD_STALE] == 0.0
    pay_some_again(real)
    real.ended.zero_()
    assert reward_looks(real)[metrics.REWARD_STALE] == pytest.approx(12 / 47)  # of 48 steps every fourth is paid again


def test_rewards_of_few_values_and_envs_that_stand_still_are_not_stale(real: RolloutBuffer) -> None:
    real.ended.zero_()
    pay_some_again(real)
    moved = real.rewards.clone()
    real.rewards.copy_((2.0 * moved).round())
    assert reward_looks(real)[metrics.REWARD_STALE] == 0.0
    for k in range(6):
        real.rewards[8 * k : 8 * k + 8] = moved[8 * k]
    assert reward_looks(real)[metrics.REWARD_STALE] == 0.0


def test_envs_that_pay_alike_are_counted_but_not_players_of_one_game(real: RolloutBuffer) -> None:
    assert reward_looks(real)[metrics.REWARDS_ALIKE] == 0.0
    real.rewards[:] = real.rewards[:, :1]
    assert reward_looks(real)[metrics.REWARDS_ALIKE] == 1.0
    ends = real.ended.clone()
    real.ended[:] = ends.any(1, keepdim=True)
    assert reward_looks(real)[metrics.REWARDS_ALIKE] == 0.0
    real.ended.copy_(ends)
    real.rewards.fill_(1.0)
    assert reward_looks(real)[metrics.REWARDS_ALIKE] == 0.0


def test_of_two_ends_nothing_is_said(real: RolloutBuffer) -> None:
    repeat_at_ends(real)
    times, envs = real.ended[5:].nonzero(as_tuple=True)
    real.ended.zero_()
    real.ended[times[:2] + 5, envs[:2]] = True
    assert reward_looks(real)[metrics.LAST_REWARD_REPEATED] == 0.0


def test_of_one_step_nothing_is_said(real: RolloutBuffer) -> None:
    real.rewards, real.ended = real.rewards[:1], real.ended[:1]
    real.ended[0, 1] = True
    assert set(reward_looks(real).values()) == {0.0}
