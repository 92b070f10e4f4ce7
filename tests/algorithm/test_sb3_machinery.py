"""What Stable-Baselines3 offers around an algorithm works unchanged."""

import contextlib
import io
import tempfile
import time
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import KVWriter, Logger, configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack, VecNormalize, VecTransposeImage
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leeward import DistributionalPPO
from leeward.errors import ArgumentError

from ..support.small_models import build
from ..support.space_envs import ACTIONS, OBSERVATIONS, Masked, Restorable, World, vector

EXTRACTORS = {"vector": "Mlp", "double": "Mlp", "discrete": "Mlp", "image": "Cnn", "dict": "MultiInput"}


class Keep(BaseCallback):
    """Keeps a copy of what a callback sees."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []
        self.ends: list[dict[str, np.ndarray]] = []

    def _on_step(self) -> bool:
        self.steps.append(dict(self.locals))
        return True

    def _on_rollout_end(self) -> None:
        names = ("rewards", "values", "returns", "advantages", "log_probs", "actions", "episode_starts")
        buffer = self.model.rollout_buffer
        self.ends.append({name: torch.as_tensor(getattr(buffer, name)).numpy().copy() for name in names})


def weights(model: DistributionalPPO) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.policy.parameters()]


def numbers(model: DistributionalPPO) -> list[float]:
    return [float(p.detach().double().abs().sum()) for p in model.policy.parameters()]


# --- spaces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["Policy", "LstmPolicy"])
@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_every_observation_space_trains_and_predicts(observations, memory):
    model = build(f"{EXTRACTORS[observations]}{memory}", vector(lambda: World(observations)))
    before = weights(model)
    model.learn(64)
    assert any(not a.equal(b) for a, b in zip(before, weights(model), strict=True))
    one = World(observations)
    seen, _ = one.reset(seed=0)
    action, state = model.predict(seen, deterministic=True)
    assert one.action_space.contains(action)
    many = model.env.reset()
    actions, states = model.predict(many, episode_start=np.ones(2, dtype=bool))
    assert len(actions) == 2
    assert (state is None) == (memory == "Policy")
    if state is not None:
        assert [part.shape[1] for part in state] == [1] * 4
        assert [part.shape[1] for part in states] == [2] * 4


@pytest.mark.parametrize("memory", ["MlpPolicy", "MlpLstmPolicy"])
@pytest.mark.parametrize("actions", ACTIONS)
def test_every_action_space_trains_and_predicts_actions_of_the_space(actions, memory):
    model = build(memory, vector(lambda: World("vector", actions)), ent_coef=0.01)
    model.learn(64)  # World refuses an action that is not in its space
    mean, _ = evaluate_policy(model, vector(lambda: World("vector", actions)), n_eval_episodes=3, deterministic=False)
    assert np.isfinite(mean)


@pytest.mark.parametrize(
    "arguments",
    [
        {"use_sde": True},
        {"use_sde": True, "sde_sample_freq": 4},
        {"use_sde": True, "policy_kwargs": {"full_std": False, "use_expln": True, "log_std_init": -1.0}},
        {"use_sde": True, "policy_kwargs": {"squash_output": True}},
        {"action_distribution": "squashed"},
        {"action_distribution": "gaussian", "policy_kwargs": {"log_std_init": -0.5}},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_continuous_actions_of_every_kind_train(policy, arguments):
    model = build(policy, vector(lambda: World("vector", "box")), **arguments)
    model.learn(64)
    action, _ = model.predict(np.zeros(3, dtype=np.float32))
    assert model.action_space.contains(action)


def test_images_are_transposed_by_sb3_and_single_images_are_taken_channel_last():
    model = build("CnnPolicy", vector(lambda: World("image")))
    assert isinstance(model.env, VecTransposeImage)
    image = OBSERVATIONS["image"].sample()
    first = model.policy.predict(np.transpose(image, (2, 0, 1)), deterministic=True)[0]
    assert model.predict(image, deterministic=True)[0] == first


def test_frames_can_be_stacked():
    model = build("CnnPolicy", VecFrameStack(vector(lambda: World("image")), 3))
    model.learn(32)
    assert model.observation_space.shape == (3, 36, 36)


# --- envs -----------------------------------------------------------------------------------------------------------


def test_subprocesses_give_what_a_dummy_vec_env_gives():
    def make() -> Monitor:
        return Monitor(World("dict"))

    expected = build("MultiInputLstmPolicy", DummyVecEnv([make, make]))
    expected.learn(64)
    env = SubprocVecEnv([make, make], start_method="fork")
    try:
        model = build("MultiInputLstmPolicy", env)
        model.learn(64)
    finally:
        env.close()
    assert all(a.equal(b) for a, b in zip(weights(expected), weights(model), strict=True))


@pytest.mark.parametrize("kind", ["vector", "dict"])
def test_vecnormalize_trains_and_its_drift_is_logged(kind):
    keys = ["a"] if kind == "dict" else None
    env = VecNormalize(vector(lambda: World(kind)), norm_obs_keys=keys)
    model = build(f"{EXTRACTORS[kind]}LstmPolicy", env)
    drifts = []

    class Watch(BaseCallback):
        def _on_rollout_start(self) -> None:
            drifts.append(model.last_metrics.get("debug/vecnormalize_mean_drift"))

        def _on_step(self) -> bool:
            return True

    model.learn(96, callback=Watch())
    assert drifts[0] is None and drifts[1] > drifts[2] > 0.0, "the statistics settle"
    assert model.last_metrics["debug/vecnormalize_std_drift"] > 0.0
    assert model.get_vec_normalize_env() is env


def test_an_env_by_its_id_is_made():
    model = DistributionalPPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=32, n_epochs=1, device="cpu")
    model.learn(32)
    assert model.n_envs == 1 and model.num_timesteps == 32


@pytest.mark.parametrize(
    ("n_steps", "n_envs", "batch_size"), [(1, 1, 1), (7, 3, 5), (1, 5, 4), (13, 1, None), (5, 2, 7), (17, 2, 1)]
)
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_any_number_of_steps_envs_and_rows_is_legal_and_every_step_is_used_once(policy, n_steps, n_envs, batch_size):
    model = build(policy, vector(World, n_envs), n_steps=n_steps, batch_size=batch_size, n_epochs=1, sequence_length=4)
    model.learn(2 * n_steps * n_envs)
    assert model.num_timesteps == 2 * n_steps * n_envs
    assert model.n_rollouts == 2
    assert all(bool(torch.isfinite(p).all()) for p in model.policy.parameters())


def test_another_env_can_be_set_and_training_goes_on_from_its_reset():
    model = build("MlpLstmPolicy", vector())
    model.learn(32)
    other = vector()
    model.set_env(other)
    model.learn(32, reset_num_timesteps=False)
    assert model.get_env() is other and model.num_timesteps == 64
    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(vector(lambda: World("dict")))


def test_a_model_that_refused_an_env_still_takes_settings():
    model = build("MlpLstmPolicy", vector())
    with pytest.raises(ValueError, match="spaces do not match"):
        model.set_env(vector(lambda: World("dict")))
    model.n_epochs = 5
    assert model.n_epochs == 5


# --- callbacks ------------------------------------------------------------------------------------------------------


def test_callbacks_see_the_locals_of_sb3():
    for actions, kind in (("discrete", np.int64), ("box", np.float32)):
        keep = Keep()
        model = build("MlpLstmPolicy", vector(lambda a=actions: World("vector", a), 3))
        model.learn(48, callback=keep)
        assert len(keep.steps) == 16
        seen = keep.steps[4]
        assert {"self", "env", "n_steps", "total_timesteps", "rollout_buffer", "callback"} <= set(seen)
        assert (seen["n_steps"], seen["total_timesteps"], seen["env"]) == (5, 48, model.env)
        shape = ACTIONS[actions].shape
        assert seen["actions"].shape == seen["clipped_actions"].shape == (3, *shape)
        assert seen["actions"].dtype == seen["clipped_actions"].dtype == kind
        assert seen["rewards"].shape == seen["dones"].shape == (3,)
        assert seen["new_obs"].shape == (3, 3) and len(seen["infos"]) == 3
        if actions == "box":
            space = ACTIONS[actions]
            outside = [step["actions"] for step in keep.steps if not (step["actions"] == step["clipped_actions"]).all()]
            assert outside, "some action lay outside the bounds before the clip"
            assert all(space.contains(row) for step in keep.steps for row in step["clipped_actions"])


def test_the_rollout_buffer_is_readable_at_the_end_of_a_rollout():
    keep = Keep()
    model = build("MlpLstmPolicy", vector(n_envs=3))
    model.learn(96, callback=keep)
    assert len(keep.ends) == 2
    first = keep.ends[0]
    assert all(value.shape[:2] == (16, 3) for value in first.values())
    assert np.allclose(first["returns"], first["advantages"] + first["values"])
    assert np.array_equal(first["rewards"], np.stack([step["rewards"] for step in keep.steps[:16]]))
    assert first["episode_starts"][0].all()


def test_evaluation_checkpoints_and_an_early_stop_work_together(tmp_path):
    stop = StopTrainingOnRewardThreshold(reward_threshold=-100.0)
    evaluate = EvalCallback(
        vector(n_envs=1), callback_on_new_best=stop, best_model_save_path=str(tmp_path / "best"),
        log_path=str(tmp_path), eval_freq=10, n_eval_episodes=3,
    )  # fmt: skip
    check = CheckpointCallback(4, str(tmp_path / "often"), "m", save_vecnormalize=False)
    model = build("MlpLstmPolicy", vector())
    model.learn(1000, callback=CallbackList([check, evaluate]))
    assert model.num_timesteps == 20, "stopped by the threshold at the tenth step of two envs"
    assert sorted(f.name for f in (tmp_path / "often").iterdir()) == ["m_16_steps.zip", "m_8_steps.zip"]
    best = DistributionalPPO.load(tmp_path / "best" / "best_model", env=vector())
    assert best.num_timesteps == 20
    best.learn(32, reset_num_timesteps=False)
    assert best.num_timesteps == 52
    assert np.load(tmp_path / "evaluations.npz")["results"].shape == (1, 3)


def test_a_function_as_callback_can_stop_training():
    model = build("MlpPolicy", vector())
    model.learn(1000, callback=lambda local, _: local["n_steps"] < 3)
    assert model.num_timesteps == 6


@pytest.mark.filterwarnings("ignore:rich is experimental")
def test_the_progress_bar_is_sb3s():
    model = build("MlpPolicy", vector())
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        model.learn(32, progress_bar=True)
    assert model.num_timesteps == 32


def test_masked_evaluation_of_sb3_contrib_works():
    model = build("MlpLstmPolicy", vector(Masked))
    evaluate = MaskableEvalCallback(vector(Masked), eval_freq=8, n_eval_episodes=2, verbose=0)
    model.learn(64, callback=evaluate)
    assert np.isfinite(evaluate.last_mean_reward)
    mean, _ = evaluate_masked(model, vector(Masked), n_eval_episodes=4)  # Masked refuses what it forbids
    assert np.isfinite(mean)


# --- learn, log, schedules ------------------------------------------------------------------------------------------


def test_every_update_is_logged_under_sb3s_names_the_last_one_too(tmp_path):
    model = build("MlpLstmPolicy", vector(lambda: World("vector", "box")), tensorboard_log=str(tmp_path), verbose=0)
    model.learn(96, tb_log_name="first", log_interval=2)
    model.learn(32, tb_log_name="first", reset_num_timesteps=False)
    model.logger.close()
    assert [f.name for f in tmp_path.iterdir()] == ["first_1"], "reset_num_timesteps=False continues the same log"
    events = EventAccumulator(str(tmp_path / "first_1")).Reload()
    shared = {"rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/success_rate", "time/fps", "train/approx_kl"}
    shared |= {f"train/{n}" for n in ("clip_fraction", "clip_range", "entropy_loss", "explained_variance", "std")}
    shared |= {f"train/{n}" for n in ("learning_rate", "loss", "n_updates", "policy_gradient_loss", "value_loss")}
    assert shared <= set(events.Tags()["scalars"])
    # Files of one second are read in the order of their names, where the tenth comes before the ninth.
    found = sorted((e.step, e.value) for e in events.Scalars("train/n_updates"))
    assert found == [(64, 4.0), (96, 6.0), (128, 8.0)]


def test_the_time_that_has_passed_is_counted_in_whole_seconds():
    model = build("MlpPolicy", vector())
    model.set_logger(Logger(None, [shown := Shown()]))
    rounds = iter((0.0, 1.0, 0.0, 0.0))

    class Waits(BaseCallback):
        def _on_rollout_start(self) -> None:
            time.sleep(next(rounds))

        def _on_step(self) -> bool:
            return True

    model.learn(96, callback=Waits())
    first, *rest = (row["time/time_elapsed"] for row in shown.rows)
    assert isinstance(first, int) and all(each >= first + 1 for each in rest)


@pytest.mark.parametrize("jump", [-3600, 3600], ids=["back", "ahead"])
def test_a_clock_that_is_set_while_training_changes_no_duration(jump, monkeypatch):
    true, read = time.time_ns, [0]

    def set_again_and_again() -> int:
        read[0] += 1
        return true() + read[0] * jump * 10**9

    monkeypatch.setattr(time, "time_ns", set_again_and_again)
    monkeypatch.setattr(time, "time", lambda: set_again_and_again() / 1e9)
    model = build("MlpPolicy", vector())
    model.set_logger(Logger(None, [shown := Shown()]))
    model.learn(96)
    assert read[0] > 0 and len(shown.rows) == 3
    assert all(0 <= row["time/time_elapsed"] < 3600 and row["time/fps"] < 1e6 for row in shown.rows)


class Shown(KVWriter):
    """Keeps what is written."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        self.rows.append(dict(key_values))

    def close(self) -> None: ...


def test_learning_leaves_no_folder_of_a_logger_in_the_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = build("MlpPolicy", vector())
    model.learn(32)
    model.learn(32, reset_num_timesteps=False)
    assert not list(tmp_path.glob("SB3-*"))  # torch makes one folder for itself, once


def test_a_logger_that_is_set_stays(tmp_path):
    model = build("MlpPolicy", vector())
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(64)
    model.logger.close()
    header, *rows = (tmp_path / "progress.csv").read_text().splitlines()
    assert "train/value_loss" in header and len(rows) == 2


def test_the_table_on_the_console_shows_sb3s_rows():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        build("MlpPolicy", vector(), verbose=1).learn(32)
    assert "ep_rew_mean" in out.getvalue() and "explained_variance" in out.getvalue()


def test_only_the_last_episodes_count_in_the_mean():
    model = build("MlpPolicy", vector(), stats_window_size=3)
    model.learn(128)
    assert len(model.ep_info_buffer) == 3


def test_learning_rate_and_clip_ranges_follow_their_schedules():
    seen: list[tuple[float, float, float]] = []
    model = build(
        "MlpPolicy", vector(), learning_rate=LinearSchedule(1e-3, 0.0, 1.0), clip_range=lambda p: 0.1 + 0.1 * p,
        clip_range_vf=lambda p: 0.5 * p + 0.1,
    )  # fmt: skip

    class Watch(BaseCallback):
        def _on_rollout_start(self) -> None:
            m = model.last_metrics
            if m:
                seen.append((m["train/learning_rate"], m["train/clip_range"], m["train/clip_range_vf"]))

        def _on_step(self) -> bool:
            return True

    model.learn(128, callback=Watch())
    # progress after 32, 64, 96 of 128 steps: 0.75, 0.5, 0.25
    assert np.allclose(seen, [(7.5e-4, 0.175, 0.475), (5e-4, 0.15, 0.35), (2.5e-4, 0.125, 0.225)])
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.0


def test_learning_longer_is_counted_from_where_it_was():
    model = build("MlpPolicy", vector())
    model.learn(32)
    model.learn(32, reset_num_timesteps=False)
    assert model.num_timesteps == 64
    model.learn(32)
    assert model.num_timesteps == 32


def test_the_same_seed_gives_the_same_training_and_another_does_not():
    def run(seed: int) -> list[float]:
        model = build("MlpLstmPolicy", Restorable(), seed=seed)
        model.learn(96)
        return numbers(model)

    assert run(1) == run(1) != run(2)


def test_set_random_seed_restarts_exploration_and_sampling():
    model = build("MlpPolicy", vector(lambda: World("vector", "box")))
    seen = np.zeros((2, 3), dtype=np.float32)
    model.set_random_seed(11)
    first = model.predict(seen)[0]
    assert not np.array_equal(first, model.predict(seen)[0])
    model.set_random_seed(11)
    assert np.array_equal(first, model.predict(seen)[0])
    assert model.stream_seed == 11


# --- predict --------------------------------------------------------------------------------------------------------


def test_predict_carries_its_state_and_forgets_it_where_an_episode_starts():
    model = build("MlpLstmPolicy", vector(lambda: World("vector", "box")), policy_kwargs={"log_std_init": 0.0})
    rng = np.random.default_rng(0)
    with torch.no_grad():
        model.policy.action_head.net.weight.mul_(100.0)  # at its usual gain the memory hardly shows
    first, second = rng.standard_normal((2, 3)).astype(np.float32), rng.standard_normal((2, 3)).astype(np.float32)
    _, state = model.predict(first, episode_start=np.ones(2, dtype=bool), deterministic=True)
    carried, _ = model.predict(second, state=state, episode_start=np.array([False, True]), deterministic=True)
    fresh, _ = model.predict(second, deterministic=True)
    assert np.array_equal(carried[1], fresh[1])
    assert np.abs(carried[0] - fresh[0]).max() > 1e-4
    alone, _ = model.predict(
        second[0], state=tuple(part[:, :1] for part in state), episode_start=np.zeros(1), deterministic=True
    )
    assert np.allclose(alone, carried[0], atol=1e-6)


def test_predict_does_not_change_the_state_it_is_given():
    model = build("MlpLstmPolicy", vector())
    _, state = model.predict(np.ones((2, 3), dtype=np.float32))
    before = [part.copy() for part in state]
    model.predict(np.ones((2, 3), dtype=np.float32), state=state, episode_start=np.array([True, False]))
    model.predict_distribution(np.ones((2, 3), dtype=np.float32), state=state)
    assert all(np.array_equal(a, b) for a, b in zip(before, state, strict=True))


@pytest.mark.parametrize("actions", ["discrete", "shifted", "multi_discrete", "multi_binary"])
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_action_masks_hold_in_training_and_in_predict(policy, actions):
    model = build(policy, vector(lambda: Masked(actions), 3), ent_coef=0.1)
    model.learn(96)  # Masked refuses what it forbids
    assert model.last_metrics["train/ratio_first_minibatch_max_dev"] < 1e-5
    one = Masked(actions)
    seen, _ = one.reset(seed=1)
    state = None
    for _ in range(5):
        action, state = model.predict(seen, state=state, action_masks=one.action_masks())
        seen, *_ = one.step(action)
    many = np.stack([one.action_masks()] * 4)
    assert len(model.predict(np.zeros((4, 3), dtype=np.float32), action_masks=many)[0]) == 4


def test_a_mask_of_the_wrong_size_or_without_a_choice_is_refused():
    model = build("MlpPolicy", vector(lambda: Masked("multi_discrete")))
    seen = np.zeros(3, dtype=np.float32)
    with pytest.raises(ArgumentError, match=r"must have 5 entries per env.*got 4"):
        model.predict(seen, action_masks=np.ones(4))
    with pytest.raises(ArgumentError, match="no choice for action dimension 1"):
        model.predict(seen, action_masks=np.array([1, 1, 0, 0, 0]))


def test_parameters_travel_by_dict_and_by_file(tmp_path):
    model, other = build("MlpLstmPolicy", Restorable()), build("MlpLstmPolicy", Restorable(), seed=9)
    model.learn(96)
    other.learn(48)
    seen = np.ones((3, 3), dtype=np.float32)
    expected = model.predict_distribution(seen).quantiles
    model.save(tmp_path / "m")
    for source in (model.get_parameters(), tmp_path / "m", str(tmp_path / "m.zip")):
        fresh = build("MlpLstmPolicy", Restorable(), seed=4)
        fresh.set_parameters(source)
        assert np.array_equal(fresh.predict_distribution(seen).quantiles, expected)
        fresh.learn(48)
        # Its return statistics go on from the unit the weights came in, so the rescale moves no prediction.
        assert fresh.last_metrics["train/popart_max_shift"] < 1e-4 * fresh.last_metrics["train/ret_std"]
    other.set_parameters(model.get_parameters())
    assert numbers(other) == numbers(model)
    with pytest.raises(ValueError, match="do not match"):
        other.set_parameters({"policy": model.policy.state_dict()}, exact_match=True)
    other.set_parameters({"policy": model.policy.state_dict()}, exact_match=False)


def test_weights_before_any_rollout_take_their_empty_statistics_along():
    fresh, trained = build("MlpPolicy", Restorable()), build("MlpPolicy", Restorable())
    trained.learn(48)
    trained.set_parameters(fresh.get_parameters())
    trained.learn(48)
    assert trained.last_metrics["train/ret_std"] > 0 and np.isfinite(trained.last_metrics["train/value_loss"])


def test_the_device_is_taken_and_shown():
    model = build("MlpPolicy", vector(), device=torch.device("cpu"))
    assert model.device == model.policy.device == torch.device("cpu")


def test_predictions_without_memory_have_no_state_and_spaces_are_sb3s():
    model = build("MlpPolicy", vector())
    assert model.predict(np.zeros(3, dtype=np.float32))[1] is None
    with pytest.raises(ArgumentError, match="returns \\(observation, info\\)"):
        model.predict(World().reset())
    assert isinstance(model.action_space, spaces.Discrete)
