"""What a run is scored by: windows of a market, episodes of an env of Gymnasium."""

import json
import math
import sysconfig
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from stable_baselines3.common.vec_env import DummyVecEnv

from leeward.algorithm.parallel.env_shards import EnvList
from leeward.backtest import statistics
from leeward.backtest.baselines import buy_and_hold, cash
from leeward.config.load import load_config
from leeward.config.tune import GymConfig
from leeward.errors import ConfigError, EnvironmentFault
from leeward.market import prepare
from leeward.training import tasks
from leeward.training.gym_envs import check_gym
from leeward.training.run_dir import RunDir
from leeward.training.tasks import GymTask, _median, _windows, score_name
from leeward.training.trainer import make_model, pick_up

from ..support.tiny_runs import TINY, leeward_here
from ..support.walk_envs import Walk

GYM = (
    "gym.id=CartPole-v1", "policy.name=MlpPolicy", "policy.net_arch=[8]", "ppo.n_envs=2", "ppo.n_steps=16",
    "ppo.batch_size=32", "ppo.n_epochs=1", "ppo.n_quantiles=12", "ppo.total_steps=96", "validation.every_updates=1",
    "checkpoint.every_updates=1",
)  # fmt: skip


def settings(*more):
    return [part for setting in (*GYM, *more) for part in ("--set", setting)]


def result_of(*more):
    config = load_config(None, [*TINY, "data.source=sample:synthetic", *more])
    market = prepare(config.data)
    return config, buy_and_hold(market, config.env, split="validation")


def test_windows_follow_each_other_and_their_growth_adds_up_to_that_of_the_split():
    config, result = result_of()
    windows = _windows(result, config)
    sizes = [len(part) for part in np.array_split(result.step_returns, 8)]
    total = sum(window * size for window, size in zip(windows, sizes, strict=True)) / sum(sizes)
    assert len(windows) == 8
    assert total == pytest.approx(result.step_returns.mean() * result.bars_per_year)
    first = result.step_returns[: sizes[0]]
    assert windows[0] == pytest.approx(first.mean() * result.bars_per_year)


def test_a_tail_beyond_the_limit_costs_what_it_lacks_on_every_bar():
    config, result = result_of()
    tail = float(statistics.cvar(result.step_returns, alpha=0.05))
    inside = load_config(None, [*TINY, f"risk.limit={tail - 0.001}"])
    beyond = load_config(None, [*TINY, f"risk.limit={tail + 0.001}"])
    assert _windows(result, inside) == _windows(result, config)
    lost = np.subtract(_windows(result, config), _windows(result, beyond))
    assert lost == pytest.approx(0.001 * result.bars_per_year)


@pytest.mark.parametrize("name", ["sharpe", "sortino", "cvar_adjusted"])
def test_the_mean_of_the_windows_is_the_score_of_the_split(name):
    config, result = result_of(f"tune.score={name}", "env.costs.cash_rate=0.02")
    sizes = [len(part) for part in np.array_split(result.step_returns, 8)]
    excess = result.step_returns - np.log1p(result.cash)
    known = {
        "sharpe": statistics.sharpe(result.returns, bars_per_year=result.bars_per_year, cash=result.cash),
        "sortino": statistics.sortino(result.returns, bars_per_year=result.bars_per_year, cash=result.cash),
        "cvar_adjusted": excess.mean() / -statistics.cvar(result.step_returns, alpha=0.05),
    }
    assert np.average(_windows(result, config), weights=sizes) == pytest.approx(float(known[name]))


def test_an_account_that_never_moves_has_no_score_over_its_risk():
    config = load_config(None, [*TINY, "data.source=sample:synthetic", "tune.score=sharpe"])
    result = cash(prepare(config.data), config.env, split="validation")
    assert np.isnan(_windows(result, config)).all()


def test_members_are_compared_by_what_validation_selects_by():
    def name(*more):
        return score_name(load_config(None, more))

    assert name() == "growth" and name("risk.limit=-0.02") == "growth_within_limit"
    assert name("validation.score=sharpe", "risk.limit=-0.02") == "sharpe"
    assert name("tune.score=sortino", "risk.limit=-0.02") == "sortino"


def test_a_window_without_a_score_is_worse_than_any_other():
    assert _median((1.0, 2.0, math.nan)) == 1.0  # −∞, 1, 2
    assert math.isnan(_median((math.nan, math.nan, 2.0)))


def test_a_gym_env_is_trained_scored_and_gone_on_with(tmp_path):
    path = str(tmp_path / "run")
    code, out, err = leeward_here("train", "--run-dir", path, *settings())
    assert (code, err) == (0, "")
    assert "the mean return of 20 deterministic episodes" in out and "There is no market" in out
    assert [place.name for place in RunDir(tmp_path / "run").checkpoint_list()] == ["00000002", "00000003"]
    code, out, err = leeward_here("train", "--resume", path, "--steps", "160", "--json")
    assert code == 0 and "its episodes begin anew" in err
    *rows, last = [json.loads(line) for line in out.splitlines()]
    assert [row["time/total_timesteps"] for row in rows if "alert" not in row] == [128, 160]
    assert "eval/mean_reward" in rows[-1]
    assert last["best"]["score"]["mean_return"] > 0
    for command in ("backtest", "report"):
        code, out, err = leeward_here(command, path)
        assert (code, out, len(err.splitlines())) == (1, "", 1)
        assert "an env of Gymnasium: there is no market" in err


def test_an_unknown_env_is_named_before_a_directory_is_made(tmp_path):
    code, _, err = leeward_here("train", "--run-dir", str(tmp_path / "run"), "--set", "gym.id=CartPol-v1")
    assert code == 1 and "Gymnasium knows no 'CartPol-v1'; did you mean 'CartPole-v1'?" in err
    assert not (tmp_path / "run").exists()


def test_the_score_of_a_gym_env_is_of_whole_episodes_on_seeds_that_training_does_not_have(monkeypatch):
    task = GymTask(load_config(None, GYM))
    model = make_model(task.config, task.env(0))
    scored = task.score(model)
    assert len(scored.windows) == 20 and scored.value == pytest.approx(np.mean(scored.windows))
    assert scored == task.score(model), "the same episodes again"
    # CartPole pays 1 a step: a return is a length, and both are counted once, up to the first end.
    assert scored.value == scored.numbers[next(metric for metric in scored.numbers if "length" in metric.name)]
    assert max(scored.windows) <= 500
    seeds = []
    monkeypatch.setattr(EnvList, "seed", lambda envs, seed=None: seeds.append(seed) or DummyVecEnv.seed(envs, seed))
    task.score(model)
    assert seeds == [2**32] and task.config.seed < 2**32 - task.config.ppo.n_envs


def test_a_gym_run_goes_on_with_other_episodes_than_it_began_with(tmp_path):
    path = tmp_path / "run"
    assert leeward_here("train", "--run-dir", str(path), *settings(), "--quiet")[0] == 0
    config, place = RunDir(path).config(), RunDir(path).checkpoint_list()[-1]
    task = GymTask(config)
    model, state = pick_up(place, task, config)
    again, _ = pick_up(place, task, config)
    assert state["updates"] == 3 and model.num_timesteps == 96
    assert np.array_equal(model.env.reset(), again.env.reset())
    assert not np.array_equal(task.env(config.seed).reset(), again.env.reset())


def trained_on(text, folder):
    """(exit code, stdout, stderr) of training by a config of this text."""
    (folder / "config.yaml").write_text(text)
    return leeward_here("train", str(folder / "config.yaml"), "--run-dir", str(folder / "run"), *settings()[2:])


def test_a_config_runs_no_module_that_merely_lies_there(tmp_path, monkeypatch):
    (tmp_path / "planted.py").write_text("raise SystemExit('planted code was run')")
    (tmp_path / "spread").mkdir()  # a package without __init__, which may be spread over folders
    (tmp_path / "spread" / "planted.py").write_text("raise SystemExit('planted code was run')")
    monkeypatch.syspath_prepend(tmp_path)  # as a notebook, or `python -m`, has the current directory
    for module in ("planted", "spread.planted"):
        code, _, err = trained_on(f"gym: {{id: '{module}:Thing-v0'}}", tmp_path)
        assert code == 1 and "which is not of an installed package" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_module_of_an_installed_package_is_imported_for_its_envs(tmp_path, monkeypatch):
    (tmp_path / "of_a_package.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('OfAPackage-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=20)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))  # as if it were installed there
    code, _, err = trained_on("gym: {id: 'of_a_package:OfAPackage-v0'}", tmp_path)
    assert code == 0, err
    assert GymTask(RunDir.open(tmp_path / "run").config()).make().spec.id == "OfAPackage-v0"


@pytest.mark.parametrize(
    ("gym", "words"),
    [
        ("{id: ':CartPole-v1'}", "'' is no name of a module"),
        ("{id: '..x:CartPole-v1'}", "'..x' is no name of a module"),
        ("{id: 'a:b:CartPole-v1'}", "'a:b' is no name of a module"),
        ("{id: 'nowhere.at_all:CartPole-v1'}", "no module 'nowhere' is installed"),
        ("{id: CartPole-v1, kwargs: {nope: 1}}", "cannot be made with {'nope': 1} (TypeError"),
        ("{id: CartPole-v1, kwargs: {id: x}}", "cannot be made with {'id': 'x'} (TypeError"),
        ("{id: Pendulum-v1, kwargs: {g: abc}}", "cannot be stepped with {'g': 'abc'} (TypeError"),
        ("{id: CartPole-v1, kwargs: {max_episode_steps: 0}}", "(ValueError: Expect the `max_episode_steps`"),
        ("{id: Blackjack-v1}", "Blackjack-v1 observes Tuple; expected one of Box"),
    ],
)
def test_an_env_that_cannot_be_made_is_one_line_and_leaves_nothing_behind(gym, words, tmp_path):
    code, _, err = trained_on(f"gym: {gym}", tmp_path)
    assert code == 1 and words in err and len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


class Narrow(Walk):
    """Of many actions it allows one."""

    def __init__(self, space, legal, flat):
        super().__init__(0)
        self.action_space, self.legal, self.flat = space, legal, flat

    def action_masks(self):
        mask = np.zeros(50, bool)
        mask[self.flat] = True
        return mask

    def step(self, action):
        if np.any(action != self.legal):
            raise ValueError("an illegal move")
        return super().step(action)


NARROW = {
    "one choice": (spaces.Discrete(50, start=5), 35, [30]),
    "several": (spaces.MultiDiscrete([20, 30]), [7, 9], [7, 29]),  # the second choice stands behind the first 20
}


@pytest.mark.parametrize("kind", NARROW)
def test_an_env_that_raises_on_what_it_masks_is_asked_what_it_allows(kind, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Narrow-v0", EnvSpec("Narrow-v0", partial(Narrow, *NARROW[kind])))
    check_gym(GymConfig(id="Narrow-v0"))
    monkeypatch.delattr(Narrow, "action_masks")
    with pytest.raises(ConfigError, match=r"Narrow-v0 cannot be stepped with \{\} \(ValueError: an illegal move\)"):
        check_gym(GymConfig(id="Narrow-v0"))


def test_an_episode_without_an_end_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(tasks, "_LONGEST_EPISODE", 30)
    endless = [*GYM[1:], "gym.id=Pendulum-v1", "gym.kwargs={max_episode_steps: -1}"]
    config = load_config(None, endless)
    task = GymTask(config)
    with pytest.raises(EnvironmentFault, match=r"not ended after 30 steps.*max_episode_steps"):
        task.score(make_model(config, task.env(0)))
