"""Whether a step's gradient reaches the memory before it: asked of policies of every kind."""

from contextlib import ExitStack

import pytest
from tests.support.faults import make, method

from leeward.telemetry import metrics

APART = {"enable_critic_lstm": False, "shared_lstm": False}  # critics that see the observation alone
SHARED = {"enable_critic_lstm": False, "shared_lstm": True}


def rounds(model, updates: int) -> list[float]:
    """`train/memory_reach` of the updates that look at it."""
    found = []
    for _ in range(updates):
        model.learn(model.settings.n_steps * model.n_envs, reset_num_timesteps=False)
        found += [value for key, value in model.last_metrics.items() if key == metrics.MEMORY_REACH.name]
    return found


@pytest.mark.parametrize("network", [{}, APART, SHARED], ids=["own", "none", "shared"])
def test_a_memory_that_is_whole_is_not_called_cut_whatever_critics_read(network):
    model = make(policy_kwargs=network)
    (reach,) = rounds(model, 3)
    assert reach > 0.01
    assert "memory_gradient_cut" not in {alert.name for alert in model.alerts}


def test_an_actor_that_is_cut_off_altogether_is_named_and_stops_nothing():
    model = make()
    with ExitStack() as stack:
        method(lambda m: m.policy.actor_mlp, "forward", lambda right, hidden: right(hidden).detach())(model, stack)
        assert rounds(model, 3) == [0.0]
    assert "memory_gradient_cut" in {alert.name for alert in model.alerts}
