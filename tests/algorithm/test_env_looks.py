"""The examination of the envs over the first rollouts, on real ones."""

import warnings
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from leeward.algorithm.env_looks import EXAMINED, env_looks
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics

from ..support.faults import make, rollout, train


def collected(**settings: Any) -> RolloutBuffer:
    """A rollout of 48 steps of three envs."""
    model, found = make(**settings), list[RolloutBuffer]()
    with ExitStack() as stack:
        model.learn(48 * 3)
        rollout(found.append)(model, stack)
        model.learn(48 * 3, reset_num_timesteps=False)
    return found[0]


@pytest.fixture
def real() -> RolloutBuffer:
    return collected()


def test_sound_envs_are_of_one_kind_and_are_examined_at_the_start_alone() -> None:
    numbers = train(None, {}, EXAMINED + 1).numbers
    for update in numbers[:EXAMINED]:
        assert 1.0 <= update[metrics.ENVS_APART.name] < 3.0
        assert update[metrics.FEATURES_COPIED.name] == 0.0
    assert metrics.ENVS_APART.name not in numbers[EXAMINED]


def test_an_env_that_stands_still_in_one_feature_is_apart(real: RolloutBuffer) -> None:
    assert isinstance(real.observations, torch.Tensor)
    real.observations[:, 2, 4] = 0.25
    assert env_looks(real)[metrics.ENVS_APART] == 1e9


def test_an_env_whose_feature_is_a_thousandth_of_the_others_is_apart(real: RolloutBuffer) -> None:
    assert isinstance(real.observations, torch.Tensor)
    real.observations[:, 1, 3] *= 1e-4
    assert 3e3 < env_looks(real)[metrics.ENVS_APART] < 3e4


def test_rare_events_are_not_compared(real: RolloutBuffer) -> None:
    """A goal that one env alone has reached, once."""
    real.rewards.zero_()
    real.rewards[7, 1] = 1.0
    assert env_looks(real)[metrics.ENVS_APART] < 3.0


def test_an_env_that_acts_without_noise_may_stand_still() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # three envs are few for a tail
        found = collected(risk={"alpha": 0.2, "limit": -2.0, "binds": "deployed"})
    assert found.risk is not None and found.risk.deployed is not None and isinstance(found.observations, torch.Tensor)
    still = int(found.risk.deployed.nonzero()[0])
    found.observations[:, still, 4] = 0.25
    assert env_looks(found)[metrics.ENVS_APART] < 3.0


def test_copies_are_counted_but_whole_numbers_may_be_alike(real: RolloutBuffer) -> None:
    assert isinstance(real.observations, torch.Tensor)
    real.observations[..., 1:4] = real.observations[..., :1]
    assert env_looks(real)[metrics.FEATURES_COPIED] == pytest.approx(0.6)  # 2 of 5 are their own
    real.observations.round_()
    assert env_looks(real)[metrics.FEATURES_COPIED] == 0.0
