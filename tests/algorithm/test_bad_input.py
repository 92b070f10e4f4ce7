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

from ..support.small_models import build
from ..support.space_envs import Masked, Restorable, World, vector


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
    def __init__(self, space: spaces.Space[Any] | None = None, seen: spaces.Space[Any] | None = None) -> None:
        super().__init__()
        self.action_space = self.action_space if space is None else space
        self.observation_space = self.observation_space if seen is None else seen


@pytest.mark.parametrize(
    ("space", "error", "message"),
    [
        (spaces.Dict({"a": spaces.Discrete(2)}), ArgumentError, "the action space is Dict.*expected Box, Discrete"),
        (spaces.Tuple((spaces.Discrete(2),)), ArgumentError, "the action space is Tuple.*flatten it in a wrapper"),
        (spaces.MultiDiscrete([[2, 3], [2, 3]]), EnvironmentFault, "need one axis"),
        (spaces.MultiBinary([2, 2]), EnvironmentFault, "need one axis"),
        (spaces.Box(-np.inf, np.inf, (2,)), AssertionError, "finite"),
    ],
    ids=str,
)
def test_an_action_space_that_is_not_supported_is_refused_before_training(space, error, message):
    with pytest.raises(error, match=message):
        build("MlpPolicy", DummyVecEnv([lambda: Odd(space)]))


@pytest.mark.parametrize("policy", ["MlpPolicy", "MultiInputLstmPolicy"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(3))),
        spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Tuple((spaces.Discrete(3),))}),
        spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(3)})}),
        spaces.Text(5),
    ],
    ids=str,
)
def test_an_observation_space_that_is_not_supported_is_refused_before_training(space, policy):
    words = rf"the observation space is {type(space).__name__}.*a Dict of these; turn a Tuple into a Dict"
    with pytest.raises(ArgumentError, match=words):
        build(policy, Odd(seen=space))


def test_a_tuple_is_refused_of_envs_in_a_list_too():
    space = spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.Discrete(3)))
    with pytest.raises(ArgumentError, match="the observation space is Tuple"):
        build("MlpPolicy", [lambda: Odd(seen=space)] * 2)


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


NO_BOOL = "expected a number or a text, got True; true and false are neither"
NO_RATE = "expected a number of at least 0, or in Python a function of the remaining progress, got"
NO_WIDTH = "expected a positive number, or in Python a function of the remaining progress, got"
MODES = "'disable', 'mean_only', 'mean_and_variance' or 'per_quantile'"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("value_clip", {"mod": "mean_only"}, "unknown key 'value_clip.mod'; did you mean 'mode'?"),
        ("value_clip", {"mode": "both"}, f"value_clip.mode: Input should be {MODES}, got 'both'"),
        ("value_clip", {"radius": 0.0}, "value_clip.radius: Input should be greater than 0, got 0.0"),
        ("entropy", {"flor": 0.1}, "unknown key 'entropy.flor'; did you mean 'floor'?"),
        ("entropy", {"end": 0.0, "floor": 0.1}, "entropy: end 0.0 lies below the floor 0.1"),
        ("kl_penalty", {"target": -1}, "kl_penalty.target: Input should be greater than 0, got -1"),
        ("awr", {"beta": float("inf")}, "awr.beta: Input should be a finite number, got inf"),
        ("awr", 3, "awr: Input should be a valid dictionary or instance of AWR, got 3"),
        ("target_kl", -0.1, "target_kl: Input should be greater than 0, got -0.1"),
        ("risk", {"alpha": 2}, "risk.0.alpha: Input should be less than or equal to 1, got 2"),
        ("risk", [{"limit": -0.1}, {"alhpa": 0.1}], "unknown key 'risk.1.alhpa'; did you mean 'alpha'?"),
        ("risk", {"limit": True}, f"risk.0.limit: {NO_BOOL}"),
        ("risk", "tail", "risk: expected keys and values such as limit: -0.02, or a list of them, got 'tail'"),
    ],
)
def test_an_unknown_key_or_a_bad_value_in_a_dict_is_explained(name, values, message):
    with pytest.raises(ConfigError) as raised:
        build("MlpPolicy", vector(), **{name: values})
    assert str(raised.value) == f"DistributionalPPO: {message}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_steps": 0}, "n_steps: Input should be greater than 0, got 0"),
        ({"n_steps": 12.5}, "n_steps: expected a whole number, got 12.5"),
        ({"n_steps": True}, f"n_steps: {NO_BOOL}"),
        ({"n_epochs": -1}, "n_epochs: Input should be greater than 0, got -1"),
        ({"batch_size": 0}, "batch_size: Input should be greater than 0, got 0"),
        ({"sequence_length": 0}, "sequence_length: Input should be greater than 0, got 0"),
        ({"micro_batch_size": 0}, "micro_batch_size: Input should be greater than 0, got 0"),
        ({"burn_in": -1}, "burn_in: Input should be greater than or equal to 0, got -1"),
        ({"gamma": 1.5}, "gamma: Input should be less than or equal to 1, got 1.5"),
        ({"gamma": True}, f"gamma: {NO_BOOL}"),
        ({"gamma": float("nan")}, "gamma: Input should be a finite number, got nan"),
        ({"gae_lambda": -0.1}, "gae_lambda: Input should be greater than or equal to 0, got -0.1"),
        ({"ent_coef": float("inf")}, "ent_coef: Input should be a finite number, got inf"),
        ({"kappa": -1.0}, "kappa: Input should be greater than or equal to 0, got -1.0"),
        ({"max_grad_norm": 0.0}, "max_grad_norm: Input should be greater than 0, got 0.0"),
        ({"learning_rate": float("nan")}, f"learning_rate: {NO_RATE} nan"),
        ({"learning_rate": -1e-3}, f"learning_rate: {NO_RATE} -0.001"),
        ({"critic_learning_rate": "fast"}, f"critic_learning_rate: {NO_RATE} 'fast'"),
        ({"clip_range": float("inf")}, f"clip_range: {NO_WIDTH} inf"),
        ({"clip_range_vf": 0.0}, f"clip_range_vf: {NO_WIDTH} 0.0"),
        ({"sde_sample_freq": -2}, "sde_sample_freq: Input should be greater than or equal to -1, got -2"),
        ({"stats_window_size": 0}, "stats_window_size: Input should be greater than 0, got 0"),
        ({"max_consecutive_skips": 0}, "max_consecutive_skips: Input should be greater than 0, got 0"),
        ({"critic": "quantiles"}, "critic: Input should be 'quantile', 'categorical' or 'scalar', got 'quantiles'"),
        ({"levels": "tails"}, "levels: Input should be 'tail' or 'uniform', got 'tails'"),
        ({"value_targets": "scaler"}, "value_targets: Input should be 'distributional' or 'scalar', got 'scaler'"),
        (
            {"action_distribution": "squash"},
            "action_distribution: Input should be 'auto', 'gaussian' or 'squashed', got 'squash'",
        ),
        (
            {"critic": "categorical", "value_clip": {"mode": "per_quantile"}},
            "value_clip.mode per_quantile does not exist for a categorical critic; use mean_only",
        ),
        ({"critic": "categorical", "n_atoms": 2}, "n_atoms: Input should be greater than or equal to 3, got 2"),
        ({"n_quantiles": 0}, "n_quantiles: Input should be greater than 0, got 0"),
    ],
    ids=str,
)
def test_a_bad_argument_is_explained(arguments, message):
    with pytest.raises(ConfigError) as raised:
        build("MlpLstmPolicy", vector(), **arguments)
    assert str(raised.value) == f"DistributionalPPO: {message}"


@pytest.mark.parametrize("name", ["learning_rate", "critic_learning_rate", "clip_range", "clip_range_vf"])
def test_true_is_no_rate(name):
    with pytest.raises(ConfigError, match=f"DistributionalPPO: {name}: .*got True"):
        build("MlpLstmPolicy", vector(), **{name: True})


def test_a_wrong_way_to_normalise_advantages_is_told_the_known_ones():
    with pytest.raises(
        ConfigError, match=r"normalize_advantage: expected true, false, 'global', 'per_env' or 'none', got 'globl'"
    ):
        build("MlpLstmPolicy", vector(), normalize_advantage="globl")


def test_every_bad_argument_has_its_own_line():
    with pytest.raises(ConfigError) as raised:
        build("MlpLstmPolicy", vector(), n_steps=0, critic="quantiles", entropy={"flor": 0.1})
    assert str(raised.value).splitlines() == [
        "DistributionalPPO: n_steps: Input should be greater than 0, got 0",
        "DistributionalPPO: critic: Input should be 'quantile', 'categorical' or 'scalar', got 'quantiles'",
        "DistributionalPPO: unknown key 'entropy.flor'; did you mean 'floor'?",
    ]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"cell": "lstmm"}, "did you mean 'lstm'"),
        ({"shared_lstm": True}, "needs enable_critic_lstm=False"),
        ({"squash_output": True}, "goes with use_sde=True"),
        ({"lstm_kwargs": {"bidirectional": True}}, "cannot look ahead"),
    ],
    ids=str,
)
def test_a_bad_policy_argument_is_explained(kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        build("MlpLstmPolicy", vector(), policy_kwargs=kwargs)


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


@pytest.mark.parametrize("env", ["CartPole-v1", 42, print], ids=str)
def test_what_is_no_env_is_refused_in_words(env):
    model = build("MlpPolicy", vector())
    with pytest.raises(ValueError, match="not a Gymnasium environment"):
        model.set_env(env)
