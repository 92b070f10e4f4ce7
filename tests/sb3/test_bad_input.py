"""One clear error: before training starts, or at the very step it happens, naming env and step."""

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib.ppo_recurrent.policies import MlpLstmPolicy as TheirPolicy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from leeward import DistributionalPPO
from leeward.errors import ArgumentError, ConfigError, EnvironmentFault

from .worlds import Masked, Restorable, World, build, vector


class Faulty(World):
    """Gives what no learner can use, at one step of one kind."""

    def __init__(self, observations: str, where: str, at: int = 0, value: float = np.nan) -> None:
        super().__init__(observations)
        self.where, self.at, self.value, self.count = where, at, value, 0

    def _look(self) -> Any:
        seen = super()._look()
        if self.where == "observation" and self.count == self.at:
            part = seen["a"] if isinstance(seen, dict) else seen
            part.flat[1] = self.value
        return seen

    def step(self, action: Any) -> Any:
        self.count += 1
        seen, reward, terminated, truncated, info = super().step(action)
        if self.where == "reward" and self.count == self.at:
            reward = self.value
        return seen, reward, terminated, truncated, info


class FaultyEnd(World):
    """The final observation of an episode that is cut is not finite."""

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        if truncated:
            seen[2] = np.inf
        return seen, reward, terminated, truncated, info


def fleet(*worlds: World) -> DummyVecEnv:
    return DummyVecEnv([lambda world=world: world for world in worlds])


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize(
    ("observations", "where", "at", "message"),
    [
        ("vector", "observation", 0, r"env 1, reset: observation holds (nan|inf) at flat index 1"),
        ("vector", "observation", 3, r"env 1, step 2 of the rollout: observation holds (nan|inf) at flat index 1"),
        ("double", "observation", 2, r"env 1, step 1 of the rollout: observation holds (nan|inf) at flat index 1"),
        ("dict", "observation", 0, r"env 1, reset: observation \(key 'a'\) holds (nan|inf) at flat index 1"),
        ("dict", "observation", 5, r"env 1, step 4 of the rollout: observation \(key 'a'\) holds (nan|inf)"),
        ("vector", "reward", 4, r"env 1, step 3 of the rollout: reward (nan|inf)"),
    ],
)
def test_what_is_not_finite_is_named_by_env_and_step(observations, where, at, message, normalised):
    policy = "MultiInputLstmPolicy" if observations == "dict" else "MlpLstmPolicy"
    for value in (np.nan,) if normalised else (np.nan, np.inf):
        env: Any = fleet(World(observations), Faulty(observations, where, at, value))
        if normalised:
            env = VecNormalize(env, norm_obs_keys=["a"] if observations == "dict" else None)
        with pytest.raises(EnvironmentFault, match=message):
            build(policy, env).learn(64)


def test_a_final_observation_that_is_not_finite_is_named():
    # Its episode 0 ends at step 7; episode 1 is cut after 5 more, at step 11 of the rollout counted from 0. The others
    # begin with the cut one, so that at step 11 the only row with a final observation is that of env 2.
    first, second = World(), World()
    first.episodes = second.episodes = 1
    message = r"env 2, step 11 of the rollout, final observation: observation holds inf at flat index 2"
    with pytest.raises(EnvironmentFault, match=message):
        build("MlpLstmPolicy", fleet(first, second, FaultyEnd())).learn(64)


def test_a_cut_without_a_final_observation_is_named():
    class Forgetful(Restorable):
        def step_wait(self) -> Any:
            seen, rewards, dones, infos = super().step_wait()
            return seen, rewards, dones, [{k: v for k, v in i.items() if k != "terminal_observation"} for i in infos]

    with pytest.raises(EnvironmentFault, match=r"env \d, step \d+ of the rollout: .*terminal_observation.* is missing"):
        build("MlpPolicy", Forgetful()).learn(96)


def test_an_env_that_leaves_no_action_is_named():
    class Stuck(Masked):
        def action_masks(self) -> np.ndarray:
            return np.zeros(3, dtype=bool) if self.steps == 2 else np.ones(3, dtype=bool)

        def step(self, action: Any) -> Any:
            return World.step(self, action)

    with pytest.raises(EnvironmentFault, match="step 2 of the rollout: env 0: the action mask leaves no choice"):
        build("MlpPolicy", vector(Stuck)).learn(32)


class Odd(World):
    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.action_space = space


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), AssertionError, "only supports"),
        (spaces.Tuple((spaces.Discrete(2),)), AssertionError, "only supports"),
        (spaces.MultiDiscrete([[2, 3], [2, 3]]), EnvironmentFault, "need one axis"),
        (spaces.MultiBinary([2, 2]), EnvironmentFault, "need one axis"),
        (spaces.Box(-np.inf, np.inf, (2,)), AssertionError, "finite"),
    ],
    ids=str,
)
def test_an_action_space_that_is_not_supported_is_refused_before_training(space, error, message):
    with pytest.raises(error, match=message):
        build("MlpPolicy", DummyVecEnv([lambda: Odd(space)]))


def test_a_policy_of_another_library_is_refused():
    with pytest.raises(ArgumentError, match=r"sb3_contrib\..*is of another library; use one of MlpPolicy"):
        DistributionalPPO(TheirPolicy, vector())
    with pytest.raises(ArgumentError, match="unknown policy 'MlpLstmPolcy'; did you mean 'MlpLstmPolicy'"):
        DistributionalPPO("MlpLstmPolcy", vector())


def test_a_model_without_an_env_says_what_it_needs():
    with pytest.raises(ArgumentError, match="a new model needs an env"):
        DistributionalPPO("MlpPolicy", None)


def test_an_unknown_keyword_is_refused():
    with pytest.raises(TypeError, match="n_stepz"):
        DistributionalPPO("MlpPolicy", vector(), n_stepz=3)
    with pytest.raises(TypeError, match="lstm_size"):
        DistributionalPPO("MlpLstmPolicy", vector(), policy_kwargs={"lstm_size": 3})


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("value_clip", {"mod": "mean_only"}, "value_clip: unknown key 'mod'; did you mean 'mode'"),
        ("value_clip", {"mode": "both"}, "value_clip: mode"),
        ("value_clip", {"radius": 0.0}, "value_clip: radius"),
        ("entropy", {"flor": 0.1}, "did you mean 'floor'"),
        ("entropy", {"end": 0.0, "floor": 0.1}, "end 0.0 lies below the floor 0.1"),
        ("kl_penalty", {"target": -1}, "kl_penalty: target"),
        ("awr", {"beta": float("inf")}, "awr: beta"),
        ("awr", 3, "awr must be a dict or None, got 3"),
        ("target_kl", -0.1, "target_kl"),
    ],
)
def test_an_unknown_key_or_a_bad_value_in_a_dict_is_explained(name, values, message):
    with pytest.raises(ConfigError, match=message):
        build("MlpPolicy", vector(), **{name: values})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_steps": 0}, "n_steps must be a whole number of at least 1, got 0"),
        ({"n_steps": 12.5}, "n_steps must be a whole number of at least 1, got 12.5"),
        ({"n_epochs": -1}, "n_epochs"),
        ({"batch_size": 0}, "batch_size"),
        ({"sequence_length": 0}, "sequence_length"),
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"burn_in": -1}, "burn_in"),
        ({"gamma": 1.5}, r"gamma must lie in \[0, 1\], got 1.5"),
        ({"gae_lambda": -0.1}, "gae_lambda"),
        ({"kappa": -1.0}, "kappa"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be positive, or None"),
        ({"clip_range_vf": 0.0}, "clip_range_vf must be positive, or None"),
        ({"critic": "quantiles"}, "unknown critic 'quantiles'; did you mean 'quantile'"),
        ({"levels": "tails"}, "did you mean 'tail'"),
        ({"value_targets": "scaler"}, "did you mean 'scalar'"),
        ({"action_distribution": "squash"}, "did you mean 'squashed'"),
        ({"normalize_advantage": "globl"}, "did you mean 'global'"),
        ({"critic": "categorical", "value_clip": {"mode": "per_quantile"}}, "does not exist for a categorical critic"),
        ({"critic": "categorical", "n_atoms": 2}, "at least 3 atoms"),
        ({"n_quantiles": 0}, "n"),
        ({"policy_kwargs": {"cell": "lstmm"}}, "did you mean 'lstm'"),
        ({"policy_kwargs": {"shared_lstm": True}}, "needs enable_critic_lstm=False"),
        ({"policy_kwargs": {"squash_output": True}}, "goes with use_sde=True"),
        ({"policy_kwargs": {"lstm_kwargs": {"bidirectional": True}}}, "cannot look ahead"),
    ],
    ids=str,
)
def test_a_bad_argument_is_explained(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        build("MlpLstmPolicy", vector(), **arguments)


def test_a_batch_larger_than_the_rollout_is_the_rollout_with_one_warning():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = build("MlpLstmPolicy", vector(), batch_size=1000, n_epochs=3)
        model.learn(64)
    assert [str(w.message) for w in seen] == [
        "batch_size 1000 is larger than a rollout of 16 steps × 2 envs = 32; the whole rollout is one minibatch"
    ]
    assert model.policy.optimizer.state_dict()["state"][0]["step"] == 2 * 3, "one step per epoch"


def test_a_state_that_predict_did_not_return_is_refused():
    model = build("MlpLstmPolicy", vector())
    seen = np.zeros((2, 3), dtype=np.float32)
    _, state = model.predict(seen)
    with pytest.raises(ArgumentError, match=r"state must be what predict returned, with shapes .* got"):
        model.predict(seen[0], state=state)
    with pytest.raises(ValueError, match="Unexpected observation shape"):
        model.predict(np.zeros(4, dtype=np.float32))
