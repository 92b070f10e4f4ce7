"""What a limit is on: the step's return as the env tells it, else its reward; and limits that cannot be meant."""

import math
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from numpy.testing import assert_array_equal
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize

from leeward import DistributionalPPO
from leeward.algorithm import schedules
from leeward.config.learning import Risk
from leeward.env import RunningReturn, TradingEnv
from leeward.env.sb3 import RunningReturnVecEnv, TradingVecEnv
from leeward.errors import ArgumentError, ConfigError, EnvironmentFault
from leeward.market import Market

from ..support.models import build, collect, learn, recorded
from ..support.staggered_envs import Earning, Recorder, earning
from ..support.trading_panels import random_bars, small_market

ENVS = 3


def stored(env: VecEnv) -> tuple[np.ndarray, DistributionalPPO]:  # (T, B)
    model = build(memory=None, env=env, risk={"alpha": 0.5})
    risk = collect(model).rollout.risk
    assert risk is not None
    return risk.step_returns.numpy(), model


@pytest.mark.parametrize("normalised", [False, True])
def test_the_envs_step_return_comes_first_then_the_reward_before_vecnormalize(normalised: bool) -> None:
    for tells in (range(ENVS), ()):
        env: VecEnv = Recorder(earning(ENVS, tells=tells))
        found, model = stored(VecNormalize(env) if normalised else env)
        record = recorded(model)
        expected = np.array(record.told if tells else record.rewards)
        assert_array_equal(found, expected)
        assert np.isfinite(expected).all() and found.dtype == np.float64
        if normalised:
            assert np.abs(model.rollout_buffer.rewards.numpy() - np.array(record.rewards)).max() > 0.1


@pytest.mark.parametrize("silent", range(ENVS))
def test_a_step_return_that_some_envs_do_not_give_is_an_error_that_names_the_first_of_them(silent: int) -> None:
    env = earning(ENVS, tells=set(range(ENVS)) - {silent})
    message = rf"env {silent}, step 0 of the rollout: info\['step_return'\] is nan; .* in every env, or none in any"
    with pytest.raises(EnvironmentFault, match=message):
        stored(env)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_step_return_that_is_not_finite_is_refused(value: float) -> None:
    class Broken(Recorder):
        def step_wait(self) -> Any:
            observation, rewards, dones, infos = super().step_wait()
            if len(self.dones) == 5:
                infos[1]["step_return"] = value
            return observation, rewards, dones, infos

    with pytest.raises(EnvironmentFault, match=rf"env 1, step 4 of the rollout: info\['step_return'\] is {value}"):
        stored(Broken(earning(ENVS)))


@pytest.fixture(scope="module")
def market() -> Market:
    return small_market(random_bars(np.random.default_rng(3), n=150, n_assets=1))


class Earnings(Recorder):
    """Keeps the array of step returns of a trading env, whatever its reward is."""

    def step_wait(self) -> Any:
        found = self.venv.step_wait()
        self.told.append(np.array(self.venv.info_arrays["step_return"]))
        self.rewards.append(np.array(found[1]))
        return found


@pytest.mark.parametrize(
    "wrap", [lambda env: env, VecNormalize, RunningReturnVecEnv], ids=["", "normalised", "running"]
)
def test_a_trading_env_gives_the_log_return_of_the_bar_whatever_its_reward(wrap: Any, market: Market) -> None:
    env = Earnings(TradingVecEnv(market, ENVS, episode_bars=9, reward="differential_sharpe"))
    found, _ = stored(wrap(env))
    assert_array_equal(found, np.array(env.told))
    assert np.abs(np.array(env.rewards) - found).max() > 1e-3
    assert np.abs(found).max() > 1e-3


def test_a_limit_on_episodes_asks_for_the_running_return_in_the_observation() -> None:
    risk = {"measure": "episode_return", "limit": -1.0}
    with pytest.warns(UserWarning, match=r"cannot react to it; wrap the env in leeward\.env\.RunningReturn"):
        build(memory=None, env=earning(2), risk=risk)
    build(memory=None, env=RunningReturnVecEnv(earning(2)), risk=risk)
    build(memory=None, env=DummyVecEnv([lambda: RunningReturn(Earning(0))]), risk=risk)
    build(memory=None, env=earning(2), risk=risk | {"limit": None})


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("risk", "message"),
    [
        ({"alpha": 0.0}, r"risk\.0\.alpha: .*greater than 0, got 0"),
        ({"alpha": 1.5}, r"risk\.0\.alpha: .*less than or equal to 1, got 1.5"),
        ({"limit": math.nan}, r"risk\.0\.limit: .*finite number, got nan"),
        ({"limit": -math.inf}, r"risk\.0\.limit: .*finite number, got -inf"),
        ({"limt": -0.02}, r"unknown key 'risk\.0\.limt'; did you mean 'limit'"),
        ({"measure": "reward"}, r"risk\.0\.measure: .*'step_return' or 'episode_return'"),
        ([{"alpha": 0.1}, {"ceiling": 0.0}], r"risk\.1\.ceiling: .*greater than 0"),
        (-0.02, "risk: expected keys and values such as limit: -0.02, or a list of them, got -0.02"),
    ],
)
def test_a_wrong_setting_is_named_with_what_came(risk: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^DistributionalPPO: {message}"):
        build(memory=None, n_envs=1, risk=risk)


def trading_envs(market: Market) -> dict[str, VecEnv]:
    return {
        "ours": TradingVecEnv(market, 2),
        "ours, wrapped": VecNormalize(RunningReturnVecEnv(TradingVecEnv(market, 2))),
        "gymnasium's": DummyVecEnv([lambda: Monitor(TradingEnv(market))] * 2),
    }


@pytest.mark.parametrize(
    ("limit", "meant"),
    [(0.02, r"-0.02 \(-2 %\)"), (-5.0, r"-0.05 \(-5 %\)"), (2.0, r"-0.02 \(-2 %\)"), (-1.5, r"-0.015 \(-1.5 %\)")],
)
def test_a_limit_in_another_unit_is_refused_on_a_trading_env_with_what_was_meant(
    market: Market, limit: float, meant: str
) -> None:
    for env in trading_envs(market).values():
        with pytest.raises(ConfigError, match=rf"risk.limit is {limit:g}, .* log-return.*; did you mean {meant}\?"):
            build(memory=None, env=env, risk={"limit": limit})


@pytest.mark.parametrize("limit", [-1.0, -0.02, 0.0])
def test_a_limit_that_is_a_loss_is_taken_on_a_trading_env(market: Market, limit: float) -> None:
    for env in trading_envs(market).values():
        assert build(memory=None, env=env, risk={"limit": limit}).risk[0].limit == limit


@pytest.mark.parametrize("limit", [0.02, -5.0, 1e9])
def test_any_finite_limit_is_taken_on_another_env(limit: float) -> None:
    assert build(memory=None, n_envs=1, risk={"limit": limit}).risk[0].limit == limit


def test_the_deterministic_policy_cannot_be_measured_beside_an_exploring_one_on_a_single_env() -> None:
    message = "risk.binds 'deployed' needs at least 2 envs, .* got 1; pass more envs, or binds='rollout'"
    with pytest.raises(ArgumentError, match=message):
        build(memory=None, n_envs=1, risk={"limit": 0.0, "binds": "deployed"})


def test_bounded_actions_are_squashed_under_a_limit_only() -> None:
    def scheme(risk: Any) -> tuple[bool, float | None]:
        model = build(memory=None, n_envs=1, risk=risk)
        assert isinstance(model.action_space, spaces.Box)
        return model.policy.squash_output, schedules.exploration(model.settings, discrete=False)[1].std_scale_end

    assert scheme(None) == scheme({"alpha": 0.1}) == (False, None)
    assert scheme({"limit": -1.0}) == scheme({"cvar_weight": 0.5}) == (True, 0.05)
    assert scheme({"limit": -1.0, "std_scale_end": 0.3}) == (True, 0.3)
    assert Risk(limit=-1.0, binds="deployed").exploration_end == 0.5  # its tail has no noise in it
    model = learn(build(memory=None, n_envs=1, risk={"limit": -1.0, "alpha": 0.5}), 1)
    assert float(model.policy.action_head.log_scale) == pytest.approx(math.log(0.05))  # at the end of training


def test_discrete_actions_keep_exploring_under_a_limit() -> None:
    def bonus(action: str, risk: Any, **kwargs: Any) -> list[float]:
        """The weight of the entropy at the beginning, the middle and the end of training."""
        model = build(memory=None, n_envs=2, action=action, risk=risk, **kwargs)
        return [model.engine._coefficients(remaining, 2).ent_coef for remaining in (1.0, 0.5, 0.0)]

    assert bonus("discrete", {"limit": -1.0}) == bonus("discrete", {"cvar_weight": 0.5}) == [0.03, 0.015, 0.0]
    assert bonus("discrete", [{"limit": -1.0}, {"limit": -2.0, "ent_coef": 0.08}]) == [0.08, 0.04, 0.0]
    assert bonus("discrete", {"limit": -1.0, "ent_coef": 0.0}) == bonus("discrete", {"alpha": 0.1}) == [0.0, 0.0, 0.0]
    assert bonus("box", {"limit": -1.0}) == [0.0, 0.0, 0.0]  # whose noise fades by `std_scale_end`
    # What a user sets is left alone.
    assert bonus("discrete", {"limit": -1.0}, ent_coef=0.01) == [0.01, 0.01, 0.01]
    assert bonus("discrete", {"limit": -1.0}, entropy={"floor": 0.002}) == [0.002, 0.002, 0.002]


def test_a_constant_learning_rate_falls_under_a_limit_and_a_schedule_is_left_alone() -> None:
    def rates(risk: Any, rate: Any = 0.01, critic: Any = None) -> list[tuple[float, ...]]:
        """Of each group of the optimiser, in each of four updates."""
        model = build(
            memory=None, n_envs=2, n_steps=16, n_epochs=1, learning_rate=rate, critic_learning_rate=critic, risk=risk
        )
        found = []
        for done in range(4):
            model.engine.put_in_force(model.settings, 1.0 - done / 4)
            found.append(tuple(group["lr"] for group in model.policy.optimizer.param_groups))
        return found

    falling = [0.01, 0.00825, 0.0065, 0.00475]  # from 1 to 0.3 of it
    assert rates({"limit": -1.0}) == [(pytest.approx(each),) for each in falling]
    assert rates({"limit": -1.0}, critic=0.02) == [(pytest.approx(each), pytest.approx(2 * each)) for each in falling]
    assert rates({"alpha": 0.1}) == rates(None) == rates({"limit": -1.0, "lr_scale_end": None}) == [(0.01,)] * 4
    assert rates({"limit": -1.0}, rate=lambda remaining: 0.01) == [(0.01,)] * 4


def test_a_constant_clip_falls_where_a_limit_binds_the_deployed_policy_and_a_schedule_is_left_alone() -> None:
    def clips(risk: Any, clip: Any = 0.2) -> list[float]:
        model = build(memory=None, n_envs=2, n_steps=16, n_epochs=1, clip_range=clip, risk=risk)
        return [schedules.clip_range(model.settings, remaining) for remaining in (1.0, 0.5, 0.0)]

    deployed = {"limit": -1.0, "binds": "deployed"}
    assert clips(deployed) == pytest.approx([0.2, 0.13, 0.06])  # from 1 to 0.3 of it
    assert clips(deployed | {"clip_scale_end": 0.5}) == pytest.approx([0.2, 0.15, 0.1])
    assert clips([{"limit": -1.0}, deployed]) == clips(deployed)
    assert clips(deployed, clip=lambda remaining: 0.3) == [0.3] * 3
    # Where the noise of the actions falls, or nothing is limited, the clip stays.
    assert clips({"limit": -1.0}) == clips({"alpha": 0.1, "binds": "deployed"}) == clips(None) == [0.2] * 3


def test_an_update_has_the_clip_of_its_moment() -> None:
    risk = {"alpha": 1.0, "limit": -1.0, "binds": "deployed", "clip_scale_end": 0.5}
    model = build(memory=None, n_envs=2, n_steps=16, n_epochs=1, risk=risk)
    model.learn(64)
    assert model.last_metrics["train/clip_range"] == pytest.approx(0.1)  # nothing of the training is left
