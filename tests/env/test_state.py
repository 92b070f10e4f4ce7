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
