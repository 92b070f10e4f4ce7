"""The three faces of the simulation: gymnasium, gymnasium vector and Stable-Baselines3."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3 import PPO
from stable_baselines3.common.env_checker import check_env as sb3_check_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

import leeward
from leeward.config.trading import EnvConfig
from leeward.env import RunningReturn, Simulation, TradingEnv, TradingVectorEnv
from leeward.env.sb3 import RunningReturnVecEnv, TradingVecEnv
from leeward.errors import ArgumentError, CheckpointError, ConfigError, EnvironmentFault

from ..support.trading_panels import random_bars, small_market

assert leeward.__version__  # importing leeward registers the id


@pytest.fixture(scope="module")
def market():
    return small_market(random_bars(np.random.default_rng(0), n=131, n_assets=3, missing=0.05))


@pytest.fixture(scope="module")
def single_asset():
    return small_market(random_bars(np.random.default_rng(1), n=97, n_assets=1))


SETTINGS = [{"min_weight": -1.0}, {"action": "positions"}, {"min_weight": -1.0, "reward": "differential_sharpe"}]


@pytest.mark.parametrize("settings", SETTINGS)
def test_both_env_checkers_are_content(market, single_asset, settings):
    for data in (market, single_asset):
        env = gymnasium.make("leeward/Trading-v0", data=data, **settings).unwrapped
        check_env(env)
        sb3_check_env(env)


def test_the_id_makes_an_env_with_and_without_settings(single_asset):
    env = gymnasium.make("leeward/Trading-v0")
    assert env.action_space == gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    assert len(env.unwrapped.observation_names) == env.observation_space.shape[0]
    env = gymnasium.make("leeward/Trading-v0", data=single_asset, action="positions", positions=[-1.0, 0.0, 1.0, 0.5])
    assert env.action_space == gymnasium.spaces.Discrete(4)


def test_a_wrong_setting_is_named():
    with pytest.raises(ConfigError, match="unknown key 'episode_bar'; did you mean 'episode_bars'"):
        TradingEnv("sample:nasdaq", episode_bar=3)


def test_positions_of_several_assets_are_multidiscrete(market):
    env = TradingEnv(market, action="positions", positions=(-0.5, 0.0))
    assert env.action_space == gymnasium.spaces.MultiDiscrete([2, 2, 2])
    assert env.actions.targets(np.array([0, 1, 0])).tolist() == [[-0.5, 0.0, -0.5]]
    with pytest.raises(EnvironmentFault, match=r"0 … 1, got -1"):
        env.actions.targets(np.array([0, -1, 0]))


def test_an_action_that_is_not_finite_is_refused_and_a_large_one_is_cut(market):
    env = TradingEnv(market)
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="finite weights"):
        env.step(np.array([0.1, np.nan, 0.0], dtype=np.float32))
    assert env.actions.targets(np.array([3.0, -2.0, 0.5])).tolist() == [[1.0, 0.0, 0.5]]


def test_an_episode_has_its_length_and_then_wants_a_reset(single_asset):
    env = TradingEnv(single_asset, episode_bars=11)
    env.reset(seed=2)
    ends = [env.step(np.array([0.5]))[3] for _ in range(11)]
    assert ends == [False] * 10 + [True]
    with pytest.raises(EnvironmentFault, match="after the end of the window"):
        env.step(np.array([0.5]))


def test_the_vec_env_equals_single_envs_in_the_same_windows(market):
    n_envs = 5
    vec = TradingVecEnv(market, n_envs, episode_bars=17, seed=4, min_weight=-1.0)
    observations = vec.reset()
    rng = np.random.default_rng(3)
    singles, ended = [], 0
    for i in range(n_envs):
        singles.append(TradingEnv(market, episode_bars=17, min_weight=-1.0))
        _place(singles[i], vec, i)
    for _ in range(60):
        actions = rng.uniform(-1.2, 1.2, (n_envs, 3)).astype(np.float32)
        observations, rewards, dones, infos = vec.step(actions)
        for i, env in enumerate(singles):
            observation, reward, terminated, truncated, info = env.step(actions[i])
            assert (terminated or truncated) == dones[i]
            assert rewards[i] == np.float32(reward)
            assert {key: infos[i][key] for key in info} == info
            assert all(vec.info_arrays[key][i] == info[key] for key in info)
            if dones[i]:
                ended += 1
                np.testing.assert_array_equal(infos[i]["terminal_observation"], observation)
                assert infos[i]["TimeLimit.truncated"] == truncated
                assert infos[i]["episode"]["l"] == info["episode_length"]
                observation = _place(env, vec, i)
            np.testing.assert_array_equal(observations[i], observation)
    assert ended >= 10


def _place(env, vec, i):
    clock = vec.simulation.clock[i]
    return env.reset(options={"start": int(clock[0]), "end": int(clock[1]) + 1})[0]


def test_ruin_is_no_time_limit():
    # Three times long where a bar moves by 30 %: most episodes of 20 bars end by a margin call.
    market = small_market(random_bars(np.random.default_rng(2), n=150, n_assets=1, volatility=0.3))
    vec = TradingVecEnv(market, 4, episode_bars=20, max_weight=3.0, account={"gross_limit": 3.0})
    vec.reset()
    cut = []
    for _ in range(60):
        _, _, dones, infos = vec.step(np.full((4, 1), 3.0, np.float32))
        for i in np.flatnonzero(dones):
            ruined = bool(vec.info_arrays["terminated"][i])
            assert infos[i]["TimeLimit.truncated"] is not ruined
            cut.append(ruined)
    assert cut.count(True) >= 10


def test_the_vector_env_equals_the_vec_env(market):
    vec = TradingVecEnv(market, 4, episode_bars=9, stagger=False)
    vector = TradingVectorEnv(market, 4, episode_bars=9)
    vec.seed(8)
    np.testing.assert_array_equal(vec.reset(), vector.reset(seed=8)[0])
    rng = np.random.default_rng(0)
    for _ in range(25):
        actions = rng.random((4, 3)).astype(np.float32)
        observations, rewards, dones, infos = vec.step(actions)
        others = vector.step(actions)
        np.testing.assert_array_equal(observations, others[0])
        np.testing.assert_array_equal(rewards, others[1].astype(np.float32))
        np.testing.assert_array_equal(dones, others[2] | others[3])
        if dones.any():
            i = int(np.argmax(dones))
            np.testing.assert_array_equal(infos[i]["terminal_observation"], others[4]["final_obs"][i])
            assert others[4]["final_info"]["equity"][i] == infos[i]["equity"]


def test_each_env_draws_from_a_stream_of_its_own(market):
    starts = []
    for n_envs, first in ((6, 0), (2, 4)):
        vec = TradingVecEnv(market, n_envs, seed=9, first_env=first, episode_bars=5)
        vec.reset()
        starts.append(vec.simulation.bar.copy())
    np.testing.assert_array_equal(starts[0][4:], starts[1])  # a shard sees the windows it would see in the whole
    assert len(set(starts[0].tolist())) > 1


def test_staggered_envs_do_not_end_in_step(market):
    vec = TradingVecEnv(market, 16, episode_bars=20, seed=1)
    vec.reset()
    ended = [int(vec.step(np.zeros((16, 3), np.float32))[2].sum()) for _ in range(60)]
    assert max(ended) <= 6
    assert sum(ended) >= 32


def test_a_saved_state_continues_bit_for_bit_in_the_middle_of_episodes(market):
    rng = np.random.default_rng(2)
    actions = rng.random((70, 4, 3)).astype(np.float32)
    one = RunningReturnVecEnv(TradingVecEnv(market, 4, episode_bars=13, seed=5, drawdown_bars=4))
    one.reset()
    for action in actions[:20]:
        last = one.step(action)[0]
    state = one.state_dict()
    other = RunningReturnVecEnv(TradingVecEnv(market, 4, episode_bars=13, seed=77, drawdown_bars=4))
    other.load_state_dict(state)
    np.testing.assert_array_equal(other.observe(), last)
    for action in actions[20:]:
        for x, y in zip(one.step(action)[:3], other.step(action)[:3], strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_state_of_other_bars_or_another_shape_is_refused(market, single_asset):
    state = TradingVecEnv(market, 2).state_dict()
    with pytest.raises(CheckpointError, match="other bars"):
        TradingVecEnv(single_asset, 2).load_state_dict(state)
    with pytest.raises(CheckpointError, match="number of envs"):
        TradingVecEnv(market, 3).load_state_dict(state)


def test_sb3_wrappers_work_on_the_lazy_infos(market):
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        vec = VecNormalize(VecMonitor(TradingVecEnv(market, 3, episode_bars=7)))
    vec.reset()
    episodes = 0
    for _ in range(30):
        _, _, dones, infos = vec.step(np.zeros((3, 3), np.float32))
        for i in np.flatnonzero(dones):
            episodes += 1
            assert infos[i]["episode"]["l"] <= 7
            assert infos[i]["terminal_observation"].shape == vec.observation_space.shape
            assert dict(infos[i])["equity"] > 0
    assert episodes >= 9


def test_only_market_features_are_attackable(market):
    env = TradingEnv(market)
    names = np.array(env.observation_names)
    assert sorted(set(names[env.attackable])) == sorted(
        f"asset{a}/{name}" for a in range(3) for name in ("return_1", "intraday")
    )
    assert names[-1] == "drawdown"
    free = env.attackable.tolist()
    assert TradingVecEnv(market, 2).get_attr("attackable")[1].tolist() == free
    assert TradingVectorEnv(market, 2).attackable.tolist() == free


def test_the_running_return_is_not_attackable(market):
    free = [*TradingEnv(market).attackable.tolist(), False]
    assert RunningReturn(TradingEnv(market)).attackable.tolist() == free
    vec = RunningReturnVecEnv(TradingVecEnv(market, 2))
    assert VecNormalize(vec).get_attr("attackable")[0].tolist() == free
    assert len(free) == vec.observation_space.shape[0]
    assert vec.get_attr("risk_unit") == ["log-return"] * 2


def test_the_running_return_is_the_sum_of_step_returns(single_asset):
    env = RunningReturn(TradingEnv(single_asset, episode_bars=6))
    observation, _ = env.reset(seed=1)
    assert env.observation_space.shape == (observation.shape[0],) and observation[-1] == 0.0
    total = 0.0
    for _ in range(6):
        observation, _, _, _, info = env.step(np.array([0.7], np.float32))
        total += info["step_return"]
        assert observation[-1] == np.float32(total)
    assert env.reset()[0][-1] == 0.0
    with pytest.raises(ArgumentError, match="flat Box"):
        RunningReturn(gymnasium.make("FrozenLake-v1"))


def test_the_running_return_of_many_envs_starts_anew_with_each_episode(single_asset):
    vec = RunningReturnVecEnv(TradingVecEnv(single_asset, 3, episode_bars=7, seed=2))
    assert (vec.reset()[:, -1] == 0.0).all()
    totals, ended = np.zeros(3), 0
    for _ in range(25):
        observations, _, dones, infos = vec.step(np.full((3, 1), 0.7, np.float32))
        totals += [info["step_return"] for info in infos]
        for env in np.flatnonzero(dones):
            assert infos[env]["terminal_observation"][-1] == np.float32(totals[env])
            ended += 1
        totals[dones] = 0.0
        np.testing.assert_array_equal(observations[:, -1], totals.astype(np.float32))
    assert ended >= 9


def test_warm_up_is_flat_and_a_split_is_never_left(market):
    simulation = Simulation(market, EnvConfig(costs={"cash_rate": 0.1}))
    split = market.splits["validation"]
    simulation.place_on_split("validation")
    targets = np.full((1, 3), 0.3)
    while simulation.bar[0] < split.start:
        step = simulation.step(targets)
        assert step["equity"][0] == 1_000_000.0 and step["n_trades"][0] == 0.0
    for _ in range(split.n_decisions):
        step = simulation.step(targets)
    assert step.truncated[0] and simulation.bar[0] == split.end - 1
    with pytest.raises(ArgumentError, match="a window needs"):
        simulation.place(5, 6)


def test_differential_sharpe_follows_its_equation():
    # Prior: A = 0, B = 0.01² = 1e-4, η = 1/10. First return r: D = (B r - 0) / B^1.5 = r / 0.01.
    # Then A = r/10, B = 1e-4 + (r² - 1e-4)/10.
    market = small_market(random_bars(np.random.default_rng(4), n=50, n_assets=1))
    env = TradingEnv(market, reward="differential_sharpe", sharpe_memory_bars=10.0)
    env.reset(seed=0)
    first = env.step(np.array([1.0], np.float32))
    second = env.step(np.array([1.0], np.float32))
    r, s = first[4]["step_return"], second[4]["step_return"]
    assert first[1] == pytest.approx(r / 0.01)
    a, b = r / 10, 1e-4 + (r * r - 1e-4) / 10
    assert second[1] == pytest.approx((b * (s - a) - 0.5 * a * (s * s - b)) / (b - a * a) ** 1.5)


def test_an_episode_remembers_nothing_of_the_one_before(single_asset):
    # Long and short in turns, so that some episodes end above their start and some below.
    used = TradingEnv(single_asset, drawdown_bars=5, min_weight=-1.0)
    gained = 0
    for episode, start in enumerate(range(3, 73, 5)):
        fresh = TradingEnv(single_asset, drawdown_bars=5, min_weight=-1.0)
        window = {"start": start, "end": start + 12}
        np.testing.assert_array_equal(used.reset(options=window)[0], fresh.reset(options=window)[0])
        action = np.array([(-1.0) ** episode], np.float32)
        for _ in range(11):
            observation, _, _, _, info = used.step(action)
            np.testing.assert_array_equal(observation, fresh.step(action)[0])
        gained += info["equity"] > 1_000_000.0
    assert 3 <= gained <= 11


def test_drawdown_is_measured_over_a_rolling_window():
    market = small_market(random_bars(np.random.default_rng(8), n=90, n_assets=1))
    env = TradingEnv(market, drawdown_bars=5)
    env.reset(options={"start": 1, "end": 80})
    equity = [1_000_000.0]
    for _ in range(60):
        observation, _, ended, _, info = env.step(np.array([1.0], np.float32))
        assert not ended
        equity.append(info["equity"])
        assert observation[-1] == pytest.approx(equity[-1] / max(equity[-5:]) - 1.0, abs=1e-6)


def test_sb3_trains_and_evaluates_on_it(single_asset):
    model = PPO(
        "MlpPolicy", TradingVecEnv(single_asset, 3, episode_bars=9), n_steps=16, batch_size=48, n_epochs=1, seed=0
    )
    model.learn(96)
    assert model.ep_info_buffer is not None and len(model.ep_info_buffer) >= 6
    mean, _ = evaluate_policy(model, TradingVecEnv(single_asset, 2, episode_bars=9), n_eval_episodes=4)
    assert np.isfinite(mean)
