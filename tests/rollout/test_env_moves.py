"""Steps and resets that a rollout did not ask for are seen, and only those."""

import copy
from typing import Any

import pytest
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecNormalize

from leeward import DistributionalPPO
from leeward.rollout.env_moves import moves_of
from leeward.telemetry import metrics

from ..support.faults import SickEnv

ROLLOUT = 16 * 2  # steps


def envs(kind: type[DummyVecEnv] | type[SubprocVecEnv] = DummyVecEnv) -> Any:
    return kind([lambda: SickEnv(0), lambda: SickEnv(1)])


def small(env: VecEnv, **arguments: Any) -> DistributionalPPO:
    own: dict[str, Any] = {"n_steps": 16, "batch_size": 32, "n_epochs": 1, "seed": 3, "device": "cpu"}
    return DistributionalPPO("MlpPolicy", env, on_alert=lambda alert: None, **(own | arguments))


def moved(model: DistributionalPPO) -> float:
    return model.last_metrics[metrics.ENVS_MOVED.name]


def told(model: DistributionalPPO) -> list[int]:
    return [alert.update for alert in model.alerts if alert.name == "envs_moved_outside"]


class Often(VecEnvWrapper):
    """Every step is made three times."""

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        found = self.venv.step_wait()
        for _ in range(2):
            self.venv.step_async(self.venv.action_space.sample()[None].repeat(self.num_envs, 0))
            found = self.venv.step_wait()
        return found


class Inside(BaseCallback):
    """Steps what it is given once, in the middle of the second rollout."""

    def __init__(self, env: VecEnv) -> None:
        super().__init__()
        self.env = env

    def _on_step(self) -> bool:
        if self.num_timesteps == ROLLOUT + 10:
            self.env.step(self.env.action_space.sample()[None].repeat(self.env.num_envs, 0))
        return True


@pytest.mark.parametrize("kind", [DummyVecEnv, SubprocVecEnv])
def test_a_score_on_the_training_envs_between_two_calls_of_learn_is_told_once(kind: Any) -> None:
    env = envs(kind)
    model = small(env).learn(ROLLOUT)
    assert moved(model) == 0.0
    evaluate_policy(model, env, n_eval_episodes=2, warn=False)
    model.learn(ROLLOUT, reset_num_timesteps=False)
    assert moved(model) > 1.0 and told(model) == [2]
    model.learn(ROLLOUT, reset_num_timesteps=False)
    assert moved(model) == 0.0 and told(model) == [2]
    env.close()


def test_one_step_inside_a_rollout_is_seen_under_the_wrappers_of_the_model() -> None:
    inner = envs()
    model = small(VecNormalize(inner, gamma=0.99)).learn(3 * ROLLOUT, Inside(inner))
    assert told(model) == [2]


def test_a_wrapper_may_step_the_envs_several_times_for_a_step() -> None:
    model = small(Often(envs())).learn(3 * ROLLOUT)
    assert moved(model) == 0.0 and told(model) == []


def test_envs_of_its_own_for_evaluation_and_another_start_are_no_surprise() -> None:
    """A plain EvalCallback, a second `learn` from the start, another env, and a round that is made again."""
    model = small(envs())
    watch = EvalCallback(envs(), n_eval_episodes=1, eval_freq=8, verbose=0, warn=False)
    model.learn(3 * ROLLOUT, watch)
    evaluate_policy(model, model.get_env(), n_eval_episodes=1, warn=False)  # type: ignore[arg-type]
    model.learn(ROLLOUT)
    model.set_env(envs())
    model.learn(ROLLOUT, reset_num_timesteps=False)
    model.begin_anew()
    model.learn(2 * ROLLOUT, reset_num_timesteps=False)
    assert moved(model) == 0.0 and told(model) == []


def test_a_deep_copy_of_a_vecenv_moves_itself() -> None:
    env = envs()
    moves = moves_of(env)
    env.reset()
    other = copy.deepcopy(env)
    before = [one.steps for one in env.envs]
    other.reset()
    other.step([[0.0, 0.0]] * 2)
    assert moves.count == 1 and [one.steps for one in env.envs] == before
    assert moves_of(other).count == 3 and moves_of(VecNormalize(env)) is moves
