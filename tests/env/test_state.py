"""The state of envs comes from files: all of it is looked at before the compiled kernel, which trusts, reads it."""

import numpy as np
import pytest

from leeward.config.trading import DataConfig
from leeward.env import kernel as k
from leeward.env.sb3 import RunningReturnVecEnv, TradingVecEnv
from leeward.errors import CheckpointError
from leeward.market import prepare


@pytest.fixture(scope="module")
def env():
    market = prepare(DataConfig(source="sample:synthetic", n_bars=400, features=("return_1",)))
    made = TradingVecEnv(market, 3, episode_bars=20)
    made.reset()
    for _ in range(7):
        made.step(np.ones((3, 1), np.float32))
    return made


def test_a_state_of_its_own_is_taken(env):
    before = env.state_dict()
    env.load_state_dict(before)
    assert all(np.array_equal(before[name], env.state_dict()[name]) for name in ("book", "held", "clock", "ring"))


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("clock", k.BAR, 10**6), ("clock", k.BAR, -1), ("clock", k.BAR, 390), ("clock", k.END, 10**6),
        ("clock", k.TRADE_FROM, -(2**62)), ("clock", k.EPISODE, -1), ("clock", k.LENGTH, -3), ("clock", k.ENDED, 2),
        ("book", k.CASH, np.nan), ("book", k.EQUITY, 0.0), ("book", k.EQUITY, -1.0), ("book", k.PEAK, 0.0),
        ("held", 0, np.inf), ("ring", 0, -1.0), ("ring", 3, np.nan),
    ],
)  # fmt: skip
def test_what_no_account_can_have_is_refused_and_the_env_stays_as_it_was(name, column, value, env):
    before, state = env.state_dict(), env.state_dict()
    state[name][1, column] = value
    with pytest.raises(CheckpointError, match=rf"{name} of env 1 holds what no account can have"):
        env.load_state_dict(state)
    assert all(np.array_equal(before[each], env.state_dict()[each]) for each in ("book", "held", "clock", "ring"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rng", None),
        ("rng", {"seed": "3"}),
        ("rng", {"seed": 10**40}),
        ("auto", 1),
        ("started", None),
        ("next_seed", "x"),
    ],
)
def test_plain_values_of_another_kind_are_refused(key, value, env):
    with pytest.raises(CheckpointError, match="the state of the envs"):
        env.load_state_dict(env.state_dict() | {key: value})


def test_a_state_that_is_not_started_points_nowhere(env):
    """Its bar is read too, when somebody asks what the env shows."""
    state = env.state_dict() | {"started": False}
    with pytest.raises(CheckpointError, match="not started, and yet not all zero"):
        env.load_state_dict(state)
    fresh = TradingVecEnv(env.simulation.market, 3, episode_bars=20)
    fresh.load_state_dict(fresh.state_dict())


def test_envs_that_wait_at_their_end_are_in_one_window(env):
    simulation = TradingVecEnv(env.simulation.market, 3, episode_bars=20).simulation
    simulation.place(300, 320)
    state = simulation.state_dict()
    simulation.load_state_dict(state)
    state["clock"][1, [k.BAR, k.END]] = 399  # the last bar there is: a step of the others would lead this one beyond it
    with pytest.raises(CheckpointError, match="clock of env 1"):
        simulation.load_state_dict(state)


@pytest.mark.parametrize(("name", "value"), [("held", 1e300), ("book", 1e-300)])
def test_amounts_that_overflow_what_is_shown_are_refused(name, value, env):
    state = env.state_dict()
    state[name].reshape(3, -1)[1, 0 if name == "held" else k.EQUITY] = value
    with pytest.raises(CheckpointError, match="what env 1 owns cannot be shown"):
        env.load_state_dict(state)


@pytest.mark.parametrize("key", ["clock", "rng", "fingerprint"])
def test_a_state_that_lacks_something_is_refused(key, env):
    state = env.state_dict()
    del state[key]
    with pytest.raises(CheckpointError, match=f"lacks {key}"):
        env.load_state_dict(state)


def test_a_running_return_that_is_no_number_is_refused(env):
    wrapped = RunningReturnVecEnv(env)
    state = wrapped.state_dict()
    with pytest.raises(CheckpointError, match="totals must be 3 finite numbers"):
        wrapped.load_state_dict(state | {"totals": np.array([0.0, np.nan, 0.0])})
