"""The optimisers and the scaler inside a real DistributionalPPO: rates, names, noise, order of the stages."""

import inspect
from typing import Any, get_args

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv

from leeward import DistributionalPPO
from leeward.algorithm import schedules
from leeward.config.learning import _OPTIMIZERS, VGS, Optimizer
from leeward.config.load import load_config
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import ArgumentError, CheckpointError, ConfigError
from leeward.market import prepare
from leeward.optim import UPGD, UPGDW, AdaptiveUPGD, VarianceScaler
from leeward.optim.build import OPTIMIZERS, build_optimizer
from leeward.training.trainer import make_model


class Walk(gymnasium.Env[Any, Any]):
    """Random observations, the reward is the action, an episode is five steps."""

    observation_space = spaces.Box(-9.0, 9.0, (3,))
    action_space = spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self.np_random.normal(size=3).astype(np.float32), float(action.mean()), self.age >= 5, False, {}


ROLLOUT = 16 * 2


def build(**arguments: Any) -> DistributionalPPO:
    kwargs = {"net_arch": [6], "lstm_hidden_size": 4} | arguments.pop("policy_kwargs", {})
    settings = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "n_quantiles": 9, "seed": 3, "device": "cpu"}
    env = DummyVecEnv([Walk, Walk])
    return DistributionalPPO("MlpLstmPolicy", env, policy_kwargs=kwargs, **(settings | arguments))


class Keep(KVWriter):
    """A writer of SB3's logger that remembers."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        self.rows.append(dict(key_values))

    def close(self) -> None: ...


def rates(model: DistributionalPPO) -> list[float]:
    return [group["lr"] for group in model.policy.optimizer.param_groups]


def moved(model: DistributionalPPO, rollouts: int = 1) -> set[str]:
    """The parts of the network that learning changes."""
    parts = model.policy.parameter_groups()
    before = {name: [p.detach().clone() for p in part] for name, part in parts.items()}
    model.learn(rollouts * ROLLOUT)
    return {name for name, part in parts.items() if not all(map(torch.equal, part, before[name]))}


# --- optimisers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [UPGD, UPGDW, AdaptiveUPGD])
def test_a_model_learns_with_each_and_its_noise_follows_from_the_seed(cls):
    def end(seed: int, **arguments: Any) -> dict[str, torch.Tensor]:
        kwargs = {"optimizer_class": cls, "optimizer_kwargs": {"sigma": 0.5}}
        model = build(policy_kwargs=kwargs, **arguments)
        model.stream_seed = seed  # of our own streams alone: the network starts the same
        torch.manual_seed(seed)
        model.learn(2 * ROLLOUT)
        assert {"upgd/utility_max", "upgd/gate_mean", "upgd/noise_rms"} <= set(model.last_metrics)
        assert model.last_metrics["upgd/noise_rms"] > 0.0
        return model.policy.state_dict()

    one, same = end(5), end(5)
    assert all(torch.equal(one[name], same[name]) for name in one)


def test_the_noise_of_each_update_is_its_own():
    model = build(policy_kwargs={"optimizer_class": AdaptiveUPGD})
    starts = []
    for _ in range(2):
        model.learn(ROLLOUT, reset_num_timesteps=False)
        starts.append(model.policy.optimizer.generator.initial_seed())
    assert len(set(starts)) == 2
    other = build(policy_kwargs={"optimizer_class": AdaptiveUPGD}, seed=4)
    other.learn(ROLLOUT)
    assert other.policy.optimizer.generator.initial_seed() not in starts


def test_a_generator_of_the_users_own_is_refused():
    kwargs = {"optimizer_class": UPGD, "optimizer_kwargs": {"generator": torch.Generator()}}
    with pytest.raises(ArgumentError, match="leave `generator` out"):
        build(policy_kwargs=kwargs)


def test_adams_epsilon_is_that_of_stable_baselines3_in_every_optimiser_that_has_one():
    for cls in (torch.optim.Adam, torch.optim.AdamW, AdaptiveUPGD, UPGDW):
        assert build(policy_kwargs={"optimizer_class": cls}).policy.optimizer.defaults["eps"] == 1e-5
    kwargs = {"optimizer_class": AdaptiveUPGD, "optimizer_kwargs": {"eps": 1e-3}}
    assert build(policy_kwargs=kwargs).policy.optimizer.defaults["eps"] == 1e-3


@pytest.mark.parametrize("cls", [torch.optim.Adam, torch.optim.AdamW])
def test_torchs_adam_takes_its_fused_step_unless_another_is_asked_for(cls):
    def built(**settings):
        weights = [torch.nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
        return build_optimizer([{"params": weights, "lr": 0.1}], cls, settings)

    default = built()
    assert type(default) is cls and default.param_groups[0]["fused"] is True
    for weight in default.param_groups[0]["params"]:
        weight.grad = torch.ones_like(weight)
    default.step()  # of a step's size whatever the dtype
    assert all(float(w.detach().max()) == pytest.approx(0.9, abs=2e-3) for w in default.param_groups[0]["params"])
    for settings in ({"foreach": True}, {"fused": False}, {"differentiable": True}):
        assert not built(**settings).param_groups[0]["fused"]


def test_every_name_of_the_config_is_an_optimiser_and_its_settings_are_its_arguments():
    names = get_args(Optimizer.model_fields["name"].annotation)
    assert set(names) == set(OPTIMIZERS) == set(_OPTIMIZERS)
    settings = set(Optimizer.model_fields) - {"name"}
    for name, cls in OPTIMIZERS.items():
        assert _OPTIMIZERS[name] == settings & set(inspect.signature(cls).parameters), name


def test_a_setting_of_another_optimiser_is_named():
    with pytest.raises(ConfigError, match="adam has no sigma; it takes betas, eps, weight_decay"):
        load_config(None, ["ppo.optimizer.sigma=0.1"])
    config = load_config(
        None, ["ppo.optimizer.name=upgdw", "ppo.optimizer.sigma=0.1", "ppo.optimizer.betas=[0.8, 0.9]"]
    )
    assert config.ppo.optimizer.settings() == {"sigma": 0.1, "betas": (0.8, 0.9)}


def test_a_config_builds_the_optimiser_the_scaler_and_the_rates_it_names():
    chosen = ["ppo.optimizer.name=adaptive_upgd", "ppo.optimizer.sigma=0.2", "ppo.vgs.strength=0.5"]
    more = ["data.source=sample:synthetic", "data.n_bars=600", "ppo.n_envs=8", "ppo.critic_learning_rate=5e-4"]
    config = load_config(None, [*chosen, *more])
    env = TradingVecEnv(prepare(config.data), config.ppo.n_envs, config=config.env, seed=0)
    model = make_model(config, env)
    optimizer = model.policy.optimizer
    assert type(optimizer) is AdaptiveUPGD
    assert [group["sigma"] for group in optimizer.param_groups] == [0.2, 0.2]
    assert rates(model) == [1e-3, 5e-4]
    assert schedules.learning_rates(model.settings, 0.5) == pytest.approx([5e-4, 2.5e-4])
    assert model.engine.variance_scaler.strength == 0.5
    default = make_model(load_config(None, more[:3]), env)
    assert type(default.policy.optimizer) is torch.optim.Adam
    assert default.engine.variance_scaler is None and len(rates(default)) == 1


# --- two learning rates ---------------------------------------------------------------------------------------------


def test_one_rate_is_one_group_and_two_are_two_that_cover_every_parameter_once():
    assert rates(build(learning_rate=1e-3)) == [1e-3]
    model = build(learning_rate=1e-3, critic_learning_rate=5e-4)
    assert rates(model) == [1e-3, 5e-4]
    actor, critic = (group["params"] for group in model.policy.optimizer.param_groups)
    assert {id(p) for p in actor + critic} == {id(p) for p in model.policy.parameters()}
    assert len(actor) + len(critic) == len(list(model.policy.parameters()))
    parts = model.policy.parameter_groups()
    assert {id(p) for p in critic} == {id(p) for name in parts if name.startswith("critic") for p in parts[name]}


def test_each_rate_moves_its_own_side():
    actor = {"actor_memory", "actor_mlp", "action_head", "log_std"}
    # The head's bias also follows the return scale, which is no step of the optimiser.
    assert actor <= moved(build(learning_rate=1e-2, critic_learning_rate=0.0))
    assert not {"critic_memory", "critic1_mlp", "critic2_mlp"} & moved(
        build(learning_rate=1e-2, critic_learning_rate=0.0)
    )
    assert not actor & moved(build(learning_rate=0.0, critic_learning_rate=1e-2))
    assert {"critic_memory", "critic1_mlp"} <= moved(build(learning_rate=0.0, critic_learning_rate=1e-2))


def test_equal_rates_learn_what_one_rate_learns():
    one, two = build(learning_rate=1e-3), build(learning_rate=1e-3, critic_learning_rate=1e-3)
    one.learn(2 * ROLLOUT)
    two.learn(2 * ROLLOUT)
    for (name, a), b in zip(one.policy.named_parameters(), two.policy.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5, msg=name)


def test_both_schedules_run_and_are_read_back_from_the_optimiser():
    model = build(learning_rate=LinearSchedule(1e-2, 0.0, 1.0), critic_learning_rate=lambda remaining: 4e-3 * remaining)
    model.learn(4 * ROLLOUT)
    assert rates(model) == [0.0, 0.0]
    model = build(learning_rate=1e-2, critic_learning_rate=lambda remaining: 4e-3 * remaining)
    keep = Keep()
    model.set_logger(Logger(None, [keep]))
    model.learn(4 * ROLLOUT)
    assert [row["train/critic_learning_rate"] for row in keep.rows] == pytest.approx([3e-3, 2e-3, 1e-3, 0.0])
    assert {row["train/learning_rate"] for row in keep.rows} == {1e-2}
    assert "train/critic_learning_rate" not in build().learn(ROLLOUT).last_metrics


def test_a_file_with_one_rate_is_not_loaded_into_two(tmp_path):
    build().learn(ROLLOUT).save(tmp_path / "m")
    with pytest.raises(CheckpointError, match="a critic_learning_rate makes two groups, None makes one"):
        DistributionalPPO.load(tmp_path / "m", critic_learning_rate=1e-4)


# --- gradient scaling -----------------------------------------------------------------------------------------------


def test_the_arguments_of_the_config_are_those_of_the_scaler():
    own = {n: p.default for n, p in inspect.signature(VarianceScaler).parameters.items() if n != "parameters"}
    assert VGS().model_dump() == own


def test_gradients_are_measured_raw_then_scaled_then_clipped():
    model = build(vgs={"warmup": 0, "strength": 1e9, "floor": 0.25}, max_grad_norm=1e-3)
    model.learn(2 * ROLLOUT)
    metrics = model.last_metrics
    assert metrics["vgs/warmup_active"] == 0.0
    assert metrics["vgs/scaling_factor"] == pytest.approx(0.25, rel=1e-6)
    assert metrics["train/grad_norm_pre_clip"] == pytest.approx(0.25 * metrics["train/grad_norm_raw"], rel=1e-5)
    for half in ("actor", "critic"):
        assert metrics[f"train/grad_norm_post_clip/{half}"] == pytest.approx(1e-3, rel=1e-2)


def test_without_strength_or_in_warm_up_the_scaler_changes_no_weight():
    plain = build().learn(2 * ROLLOUT).policy.state_dict()
    for vgs in ({"strength": 0.0, "warmup": 0}, {"warmup": 1000}):
        scaled = build(vgs=vgs).learn(2 * ROLLOUT).policy.state_dict()
        assert all(torch.equal(plain[name], scaled[name]) for name in plain)


def test_an_unknown_key_is_named():
    with pytest.raises(ConfigError, match=r"unknown key 'vgs.strenght'; did you mean 'strength'\?"):
        build(vgs={"strenght": 1.0})
