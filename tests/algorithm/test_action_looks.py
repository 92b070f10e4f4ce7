"""Log-probabilities beside the formulas of their densities, and actions beside the space of the envs."""

from contextlib import ExitStack
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from leeward import DistributionalPPO
from leeward.algorithm.action_looks import share_outside
from leeward.telemetry import metrics

from ..support.faults import method

DEV, OUTSIDE = metrics.DENSITY_DEV.name, metrics.ACTIONS_OUTSIDE.name
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32))
# One row for each head; the second half of a row is of the constructor.
HEADS: dict[str, tuple[spaces.Space[Any], dict[str, Any]]] = {
    "one choice": (spaces.Discrete(4, start=2), {}),
    "several choices": (spaces.MultiDiscrete([3, 2]), {}),
    "switches": (spaces.MultiBinary(3), {}),
    "clipped": (BOX, {}),
    "squashed": (BOX, {"action_distribution": "squashed"}),
    "gSDE": (BOX, {"use_sde": True}),
    "squashed gSDE": (BOX, {"use_sde": True, "action_distribution": "squashed"}),
}


class Paid(gymnasium.Env[Any, Any]):
    """Pays by the action, so that the policy moves away from where it begins."""

    observation_space = spaces.Box(-3.0, 3.0, (2,))

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.action_space, self.rng = space, np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        return self._seen(), float(np.sum(action)), bool(self.rng.random() < 0.1), False, {}

    def _seen(self) -> Any:
        return self.rng.normal(size=2).clip(-3, 3).astype(np.float32)


def make(kind: str) -> DistributionalPPO:
    space, more = HEADS[kind]
    return DistributionalPPO(
        "MlpPolicy", Paid(space), n_steps=64, batch_size=32, n_epochs=8, learning_rate=1e-2, n_quantiles=12, seed=0,
        device="cpu", on_alert=lambda alert: None, policy_kwargs={"net_arch": [8]}, **more,
    )  # fmt: skip


@pytest.mark.parametrize("kind", HEADS)
def test_log_probabilities_of_every_head_are_those_of_its_density_after_it_has_learned(kind: str) -> None:
    model, seen = make(kind), []
    for _ in range(6):
        model.learn(64, reset_num_timesteps=False)
        seen.append(model.last_metrics)
    found = [numbers[DEV] for numbers in seen if DEV in numbers]
    assert len(found) == 3 and max(found) < 1e-5
    assert {numbers[OUTSIDE] for numbers in seen} == {0.0}


@pytest.mark.parametrize("kind", HEADS)
def test_a_thousandth_that_rollout_and_update_leave_out_alike_is_seen(kind: str) -> None:
    model = make(kind)
    with ExitStack() as stack:
        method(lambda m: m.policy.action_head, "log_prob", lambda right, *given: right(*given) + 1e-2)(model, stack)
        model.learn(2 * 64)
    assert "density_off" in {alert.name for alert in model.alerts}
    assert "ratio_not_one" not in {alert.name for alert in model.alerts}


@pytest.mark.parametrize(
    "space, actions, outside",
    [
        (BOX, [[1.0, 5.0], [1.1, 2.0], [-1.0, 0.0], [0.0, -0.1]], 0.25),  # 2 of 8 numbers
        (spaces.Box(-np.inf, np.inf, (1,)), [[1e9]], 0.0),
        (spaces.Box(-128, 127, (1,), np.int8), np.array([[-128], [127]], np.int8), 0.0),
        (spaces.Discrete(4, start=2), [2, 5, 6, 1], 0.5),
        (spaces.MultiDiscrete([3, 2]), [[2, 1], [2, 2]], 0.25),
        (spaces.MultiBinary(2), [[0, 1], [1, 2]], 0.25),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_space_does_not_hold_is_outside(space: Any, actions: Any, outside: float) -> None:
    assert share_outside(space, np.asarray(actions)) == outside
