"""What is learned does not depend on the unit of the reward. Powers of two are exact, so every action is the same."""

from typing import Any

import numpy as np
import pytest

from leeward import DistributionalPPO

from ..support.models import build, learn_seeing
from ..support.staggered_envs import earning, staggered

UNITS = {"small": 2.0**-10, "large": 2.0**10}
CASES: dict[str, dict[str, Any]] = {
    "memory": {},
    "no memory": {"memory": None},
    "categorical": {"critic": "categorical"},
    "scalar": {"critic": "scalar", "value_targets": "scalar"},
    "value clip": {"clip_range_vf": 0.2},
    "kappa": {"kappa": 1.0},
    "shared extractor": {"memory": None, "observation": "image"},
    "discrete": {"action": "discrete", "ent_coef": 0.01},
    "kl stop": {"target_kl": 1e-3},
}


def actions(model: DistributionalPPO, rollouts: int = 4) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    learn_seeing(model, rollouts, lambda collected: found.append(collected.rollout.actions.numpy().copy()))
    return found


def in_unit(unit: float, case: dict[str, Any], learning_rate: float = 1e-2) -> DistributionalPPO:
    spaces = {name: case[name] for name in ("observation", "action") if name in case}
    return build(env=staggered(3, unit=unit, shift=-1.5, **spaces), learning_rate=learning_rate, **case)


@pytest.mark.parametrize("name", CASES)
def test_every_action_is_the_same_in_another_unit(name: str) -> None:
    usual = actions(in_unit(1.0, CASES[name]))
    # What was learned shows in the last rollouts: with a learning rate of 0 they would be other ones.
    still = actions(in_unit(1.0, CASES[name], learning_rate=1e-12))
    assert not np.array_equal(still[-1], usual[-1])
    for unit in UNITS.values():
        for ours, theirs in zip(actions(in_unit(unit, CASES[name])), usual, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
@pytest.mark.parametrize("measure", ["step_return", "episode_return"])
@pytest.mark.parametrize("binds", ["rollout", "deployed"])
def test_every_action_is_the_same_when_the_limit_is_in_that_unit_too(measure: str, binds: str) -> None:
    def with_limit(unit: float) -> list[np.ndarray]:
        risk = {"limit": -0.5 * unit, "alpha": 0.2, "measure": measure, "binds": binds, "warmup": 0}
        env = earning(3, unit=unit, tells=[])  # the risk variable is the reward
        model = build(env=env, learning_rate=1e-2, risk=risk)
        found = actions(model)
        assert model.engine.risk_control.constraints[0].multiplier > 0.0
        return found

    usual = with_limit(1.0)
    for unit in UNITS.values():
        for ours, theirs in zip(with_limit(unit), usual, strict=True):
            np.testing.assert_array_equal(ours, theirs)
