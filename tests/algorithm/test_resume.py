"""Save, load and go on: every number is the one an uninterrupted run would have had."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize

from leeward import DistributionalPPO
from leeward.algorithm.checkpoint import read_checkpoint
from leeward.errors import CheckpointError
from leeward.optim import AdaptiveUPGD

from ..support.small_models import build, states
from ..support.space_envs import Restorable, World, vector

STEPS = 16 * 3  # one rollout of three envs

FULL: dict[str, Any] = {
    "policy": "MlpLstmPolicy",
    "ent_coef": 0.02,
    "entropy": {"end": 0.002, "floor": 0.001, "schedule": "cosine", "plateau_updates": 2, "plateau_slope": 10.0},
    "kl_penalty": {"target": 1e-6},
    "learning_rate": lambda progress: 1e-3 * progress,
    "clip_range_vf": 0.3,
    "awr": {"coef": 0.1},
    "policy_kwargs": {"normalize_observations": True, "n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.3}},
}
CASES: dict[str, dict[str, Any]] = {
    "everything on": FULL,
    "categorical": {"policy": "MlpLstmPolicy", "critic": "categorical", "clip_range_vf": 0.2, "n_atoms": 11},
    "scalar, GRU": {"policy": "MlpLstmPolicy", "critic": "scalar", "policy_kwargs": {"cell": "gru"}},
    "gSDE, squashed": {
        "policy": "MlpLstmPolicy",
        "actions": "box",
        "use_sde": True,
        "sde_sample_freq": 5,
        "policy_kwargs": {"squash_output": True},
        "entropy": {"std_scale_end": 0.5},
    },
    "no memory, SGD": {
        "policy": "MlpPolicy",
        "policy_kwargs": {"optimizer_class": torch.optim.SGD, "optimizer_kwargs": {"momentum": 0.9}},
    },
    "AdaptiveUPGD, gradient scaling, two rates": {
        "policy": "MlpLstmPolicy",
        "policy_kwargs": {"optimizer_class": AdaptiveUPGD, "optimizer_kwargs": {"sigma": 0.3}},
        "vgs": {"warmup": 4, "strength": 1.0, "beta": 0.9},
        "critic_learning_rate": LinearSchedule(2e-3, 1e-3, 0.7),
    },
    "two constraints": {
        "policy": "MlpLstmPolicy",
        "actions": "box",
        "risk": [
            {"alpha": 0.4, "limit": 0.9, "binds": "deployed", "deployed_share": 0.3},
            {"measure": "episode_return", "alpha": 0.9, "limit": 9.0, "controller": "dual", "cvar_weight": 0.1},
        ],
    },
    "adversary": {
        "policy": "MlpLstmPolicy",
        "actions": "box",
        "adversary": {"method": "sgld", "norm": "l2", "epsilon_end": 0.3, "warmup": 1, "value_weight": 0.2},
        "policy_kwargs": {"normalize_observations": True},
    },
    "burn-in": {"policy": "MlpLstmPolicy", "sequence_length": 4, "burn_in": 2, "refresh_memory": True},
}


class Rows(KVWriter):
    """Keeps everything that is written, by step."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, Any]] = {}

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        self.rows[step] = {name: value for name, value in key_values.items() if not name.startswith("time/")}

    def close(self) -> None: ...


def make(case: dict[str, Any], env: Any) -> DistributionalPPO:
    arguments = {key: value for key, value in case.items() if key != "actions"}
    return build(arguments.pop("policy"), env, n_steps=16, **arguments)


def world(case: dict[str, Any]) -> tuple[Restorable, VecNormalize]:
    walk = Restorable(3, case.get("actions", "discrete"))
    return walk, VecNormalize(walk, gamma=0.9)


def everything(model: DistributionalPPO) -> dict[str, Any]:
    """All state that training has, flat, for a comparison bit by bit."""
    found: dict[str, Any] = {f"policy/{k}": v for k, v in model.policy.state_dict().items()}
    for index, entry in model.policy.optimizer.state_dict()["state"].items():
        found |= {f"optimizer/{index}/{key}": value for key, value in entry.items()}
    found |= {"state": states(model), "n_rollouts": model.n_rollouts, "num_timesteps": model.num_timesteps}
    found |= {"torch rng": torch.get_rng_state()}
    if model.engine.variance_scaler is not None:
        found |= {f"vgs/{name}": value for name, value in model.engine.variance_scaler.state_dict().items()}
    env = model.get_vec_normalize_env()
    if env is not None:
        for name, rms in (("obs", env.obs_rms), ("returns", env.ret_rms)):
            found |= {f"{name}/mean": np.array(rms.mean), f"{name}/var": np.array(rms.var), f"{name}/n": rms.count}
    found |= {f"memory/{i}": part for i, part in enumerate(model.collector.memory)}
    return copy.deepcopy(found | {"observation": model.collector.observation})


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else a == b


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
@pytest.mark.parametrize("name", CASES)
def test_a_run_that_was_stopped_equals_one_that_was_not_bit_for_bit(name, tmp_path):
    case, total = CASES[name], 5 * STEPS
    rows, resumed_rows = Rows(), Rows()

    _, env = world(case)
    whole = make(case, env)
    whole.set_logger(Logger(None, [rows]))
    whole.learn(total)
    expected = everything(whole)

    walk, env = world(case)
    stopped = make(case, env)
    # The schedules know the whole length; the run is stopped after two rollouts by a killed process, so to speak.
    stopped.set_logger(Logger(None, [Rows()]))
    saved: dict[str, Any] = {}

    class Kill(BaseCallback):
        def _on_rollout_start(self) -> None:
            if stopped.n_rollouts == 2:
                stopped.save(tmp_path / "model")
                saved.update(walk.state())
                raise KeyboardInterrupt

        def _on_step(self) -> bool:
            return True

    with pytest.raises(KeyboardInterrupt):
        stopped.learn(total, callback=Kill())
    torch.manual_seed(99)  # another process would not have the same state
    assert read_checkpoint(tmp_path / "model")[0]["exact"] is True

    walk, env = world(case)
    custom = {"learning_rate": case["learning_rate"]} if callable(case.get("learning_rate")) else None
    resumed = DistributionalPPO.load(tmp_path / "model", env, "cpu", custom, force_reset=False)
    walk.restore(saved)
    resumed.set_logger(Logger(None, [resumed_rows]))
    resumed.learn(total - resumed.num_timesteps, reset_num_timesteps=False)

    found = everything(resumed)
    assert set(found) == set(expected)
    assert [key for key in expected if not same(expected[key], found[key])] == []
    assert sorted(resumed_rows.rows) == [3 * STEPS, 4 * STEPS, 5 * STEPS]
    for step, row in resumed_rows.rows.items():
        assert row == rows.rows[step], step
        assert len(row) > 40


def test_every_part_of_the_state_moves_in_these_runs():
    """Otherwise the comparison above would prove little."""
    _, env = world(FULL)
    model = make(FULL, env)
    model.learn(3 * STEPS)
    before = everything(model)
    model.learn(2 * STEPS, reset_num_timesteps=False)
    after = everything(model)
    still = {key for key in before if same(before[key], after[key])}
    levels = {"policy/critic.levels", "policy/critic.weights"}  # of the quantiles, which stay where they are
    assert still <= {"policy/action_head.log_scale"} | levels, still
    assert states(model)["entropy"]["decay_from"] is not None
    assert model.engine.kl_controller.coefficient != model.kl_penalty.initial


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
def test_every_part_of_a_constraint_moves_in_these_runs():
    _, env = world(CASES["two constraints"])
    model = make(CASES["two constraints"], env)
    model.learn(3 * STEPS)
    before = states(model)["risk"]
    model.learn(2 * STEPS, reset_num_timesteps=False)
    after = states(model)["risk"]
    for old, new in zip(before["constraints"], after["constraints"], strict=True):
        dual = {"integral", "previous_gap"} if new["integral"] == 0.0 else {"running"}
        alike = {"learning"} if new["learning"] is None else set()  # who is limited learns
        assert {key for key in old if same(old[key], new[key])} - {"best"} == {"warned"} | dual | alike
    assert before["cost_scales"] != after["cost_scales"] and before["step_scale"] != after["step_scale"]


def test_a_save_from_inside_a_rollout_says_so_and_resumes_at_the_next_rollout(tmp_path):
    model = build("MlpLstmPolicy", Restorable(2))
    model.learn(64, callback=CheckpointCallback(11, str(tmp_path), "m"))
    manifest, _ = read_checkpoint(tmp_path / "m_44_steps.zip")
    assert manifest["exact"] is False
    loaded = DistributionalPPO.load(tmp_path / "m_44_steps", Restorable(2), force_reset=False)
    assert not np.array_equal(loaded.collector.memory[0], np.zeros_like(loaded.collector.memory[0]))
    assert (loaded.num_timesteps, loaded.n_rollouts) == (44, 1)
    loaded.learn(32, reset_num_timesteps=False)
    assert (loaded.num_timesteps, loaded.n_rollouts) == (76, 2)
    model.save(tmp_path / "end")
    assert read_checkpoint(tmp_path / "end")[0]["exact"] is True


def test_evaluating_in_the_middle_changes_no_bit_of_the_training():
    class Meddle(BaseCallback):
        def _on_step(self) -> bool:
            model = self.model
            seen = np.ones((2, 3), dtype=np.float32)
            model.predict(seen, deterministic=False)
            model.predict_distribution(seen)
            return True

    def run(callback: Any) -> dict[str, Any]:
        env = VecNormalize(vector())
        model = build("MlpLstmPolicy", env, policy_kwargs={"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.3}})
        model.learn(96, callback=callback)
        return everything(model)

    quiet = run(None)
    watched = VecNormalize(vector(n_envs=2), training=False)
    noisy = run([EvalCallback(watched, eval_freq=5, n_eval_episodes=2, deterministic=False, verbose=0), Meddle()])
    assert [key for key in quiet if not same(quiet[key], noisy[key])] == []


def test_a_save_changes_no_bit_of_the_training(tmp_path):
    def run(callback: Any) -> dict[str, Any]:
        _, env = world(FULL)
        model = make(FULL, env)
        model.learn(2 * STEPS, callback=callback)
        return everything(model)

    quiet, noisy = run(None), run(CheckpointCallback(3, str(tmp_path), save_vecnormalize=True))
    assert [key for key in quiet if not same(quiet[key], noisy[key])] == []


def test_another_number_of_envs_can_take_over_but_not_continue_a_rollout(tmp_path):
    model = build("MlpLstmPolicy", VecNormalize(Restorable(3)))
    model.learn(STEPS)
    model.save(tmp_path / "m")
    wider = VecNormalize(Restorable(5))
    loaded = DistributionalPPO.load(tmp_path / "m", wider)
    assert np.array_equal(wider.obs_rms.mean, model.get_vec_normalize_env().obs_rms.mean)
    loaded.learn(5 * 16, reset_num_timesteps=False)
    assert loaded.num_timesteps == STEPS + 80
    with pytest.raises(CheckpointError, match="continues 3 envs, but the env given has 5"):
        DistributionalPPO.load(tmp_path / "m", VecNormalize(Restorable(5)), force_reset=False)


def test_statistics_of_other_observations_are_refused(tmp_path):
    model = build("MultiInputPolicy", VecNormalize(vector(lambda: World("dict")), norm_obs_keys=["a"]))
    model.learn(32)
    model.save(tmp_path / "m")
    plain = VecNormalize(vector(lambda: World("dict")), norm_obs=False)
    DistributionalPPO.load(tmp_path / "m", plain)
    DistributionalPPO.load(tmp_path / "m", vector(lambda: World("dict")))
    manifest, _ = read_checkpoint(tmp_path / "m")
    assert manifest["vecnormalize"]["names"] == ["returns", "observation/a"]
