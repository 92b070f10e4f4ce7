"""What a file holds, what may not be in it, and what happens to one that is damaged."""

import inspect
import io
import json
import os
import pickle
import pickletools
import random
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch
from gymnasium import spaces
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from leeward import DistributionalPPO
from leeward.algorithm import checkpoint
from leeward.algorithm.checkpoint import ARGUMENTS, read_checkpoint
from leeward.algorithm.manifest import Missing, decode, decode_space, encode_space
from leeward.errors import ArgumentError, CheckpointError
from leeward.networks.policy import MlpPolicy

from ..support.small_models import build, small
from ..support.space_envs import ACTIONS, OBSERVATIONS, Restorable, World, vector

SEEN = np.linspace(-1, 1, 3, dtype=np.float32)


class OwnExtractor(FlattenExtractor):
    def __init__(self, observation_space: Any, activation: type[nn.Module] = nn.Tanh) -> None:
        super().__init__(observation_space)
        self.activation = activation()


class OwnActivation(nn.ReLU): ...


class OwnPolicy(MlpPolicy): ...


def own_schedule(progress: float) -> float:
    return 1e-4 * progress


@pytest.fixture
def saved(tmp_path) -> Path:
    model = build("MlpLstmPolicy", Restorable())
    model.learn(48)
    model.save(tmp_path / "model")
    return tmp_path / "model.zip"


def rewrite(file: Path, change: Any) -> Path:
    """The same file with another manifest."""
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(parts["manifest.json"])
    parts["manifest.json"] = json.dumps(change(manifest) or manifest).encode()
    other = file.with_name("other.zip")
    with zipfile.ZipFile(other, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return other


def set_argument(name: str, value: Any) -> Any:
    def change(manifest: dict[str, Any]) -> None:
        manifest["arguments"][name] = value

    return change


def is_pickle(blob: bytes) -> bool:
    """Whether some pickle machine would run through the whole of it."""
    try:
        return any(op.name == "STOP" for op, _, _ in pickletools.genops(blob))
    except ValueError:
        return False


# --- what is in a file ----------------------------------------------------------------------------------------------


def test_a_file_holds_safetensors_and_json_and_no_pickle(saved):
    assert is_pickle(pickle.dumps({"a": 1})), "the check knows a pickle when it sees one"
    with zipfile.ZipFile(saved) as archive:
        assert sorted(archive.namelist()) == ["manifest.json", "tensors.safetensors"]
        manifest, blob = archive.read("manifest.json"), archive.read("tensors.safetensors")
    assert not is_pickle(manifest) and not is_pickle(blob)
    assert json.loads(manifest)["format"] == "leeward-checkpoint"
    assert "policy/critic.std" in load_tensors(blob)


def test_neither_saving_nor_loading_touches_pickle(tmp_path, monkeypatch):
    model = build("MlpLstmPolicy", vector())
    model.learn(32)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a pickle was made or read")

    for owner, names in (
        (pickle, ("dump", "dumps", "load", "loads", "Pickler", "Unpickler")),
        (torch, ("save", "load")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, refuse)
    model.save(tmp_path / "m")
    loaded = DistributionalPPO.load(tmp_path / "m", env=vector())
    loaded.set_parameters(tmp_path / "m")
    assert np.array_equal(loaded.predict(SEEN, deterministic=True)[0], model.predict(SEEN, deterministic=True)[0])


def test_a_policy_alone_is_neither_saved_nor_loaded_as_a_pickle(tmp_path):
    model = build("MlpPolicy", vector())
    with pytest.raises(CheckpointError, match=r"model\.save"):
        model.policy.save(str(tmp_path / "p"))
    with pytest.raises(CheckpointError, match="is loaded with its model"):
        MlpPolicy.load(str(tmp_path / "p"))


def test_a_file_holds_every_argument_but_those_that_load_gives_itself():
    # By load's own arguments and keys; and a file does not decide where a log is written.
    given = {"policy", "env", "device", "_init_setup_model", "tensorboard_log", "on_alert"}
    assert set(inspect.signature(DistributionalPPO).parameters) - given == set(ARGUMENTS)


def test_every_argument_comes_back():
    changed: dict[str, Any] = {
        "learning_rate": LinearSchedule(1e-3, 1e-4, 0.5), "n_steps": 9, "batch_size": None, "n_epochs": 3, "gamma": 0.9,
        "gae_lambda": 0.8, "clip_range": 0.3, "clip_range_vf": 0.4, "normalize_advantage": "per_env", "ent_coef": 0.01,
        "vf_coef": 0.7, "max_grad_norm": None, "use_sde": True, "sde_sample_freq": 2, "target_kl": 0.05,
        "stats_window_size": 7,
        "verbose": 0, "seed": 5, "critic": "quantile", "n_quantiles": 24,
        "levels": "uniform", "n_atoms": 21, "kappa": 0.5, "twin_critics": False, "value_targets": "scalar",
        "n_target_samples": 8, "sequence_length": 3, "burn_in": 1, "refresh_memory": True, "micro_batch_size": 4,
        "action_distribution": "gaussian", "max_consecutive_skips": 3,
        "value_clip": {"mode": "per_quantile", "radius": 0.1}, "entropy": {"end": 0.0}, "kl_penalty": {"target": 0.02},
        "awr": {"coef": 0.2}, "critic_learning_rate": 2e-4, "vgs": {"mode": "norm", "warmup": 7},
        "risk": [{"limit": -0.5}, {"alpha": 0.1}], "adversary": {"warmup": 3}, "n_jobs": 2,
        "health": {"strict": True, "rules": {"plateau": {"off": True}}},
        "policy_kwargs": small(activation_fn=nn.ELU, net_arch={"pi": [4], "vf": [5]}, features_extractor_kwargs={}),
    }  # fmt: skip
    assert set(changed) == set(ARGUMENTS), "an argument that is saved is an argument that is compared"
    model = DistributionalPPO("MlpLstmPolicy", [lambda: World("vector", "box")] * 2, device="cpu", **changed)
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    loaded = DistributionalPPO.load(file, device="cpu")
    assert type(loaded.policy) is type(model.policy)
    for name in ARGUMENTS:
        if name == "learning_rate":
            assert [loaded.lr_schedule(p) for p in (1.0, 0.7, 0.0)] == [model.lr_schedule(p) for p in (1.0, 0.7, 0.0)]
        else:
            assert getattr(loaded, name) == getattr(model, name), name


def test_every_owner_of_a_state_comes_back(tmp_path):
    arguments: dict[str, Any] = {
        "entropy": {"end": 0.0}, "kl_penalty": {"target": 10.0}, "risk": {"alpha": 0.4, "limit": 0.9},
        "adversary": {"warmup": 1}, "stats_window_size": 5, "n_steps": 32,
    }  # fmt: skip
    model = build("MlpLstmPolicy", Restorable(3, "box"), **arguments)
    model.learn(288)
    model.engine.updater.pipeline.guard.consecutive = 4
    model.save(tmp_path / "m")
    kept = {name: owner.state_dict() for name, owner in model.owners().items()}
    names = {"returns", "entropy", "kl_penalty", "finite_guard", "risk", "adversary", "counters", "episodes", "health"}
    names |= {"features", "response", "draws"}
    assert kept.keys() == read_checkpoint(tmp_path / "m")[0]["state"].keys() == names
    fresh = build("MlpLstmPolicy", Restorable(3, "box"), **arguments).owners()
    assert not [name for name in names if fresh[name].state_dict() == kept[name]], "each has moved"
    loaded = DistributionalPPO.load(tmp_path / "m")
    assert {name: owner.state_dict() for name, owner in loaded.owners().items()} == kept
    assert len(loaded.ep_info_buffer) == loaded.ep_info_buffer.maxlen == 5


@pytest.mark.parametrize("space", [*OBSERVATIONS.values(), *ACTIONS.values(),
                                   spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64), spaces.MultiBinary([2, 3]),
                                   spaces.Box(np.float64([0.1, -np.inf]), np.float64([0.2, 1 / 3]), dtype=np.float64)],
                         ids=str)  # fmt: skip
def test_spaces_come_back_exactly(space):
    again = decode_space(json.loads(json.dumps(encode_space(space))))
    assert again == space
    assert again.dtype == space.dtype


# --- names, as SB3 ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "written"), [("m", "m.zip"), ("m.zip", "m.zip"), ("m.v1", "m.v1"), ("new/folder/m", "new/folder/m.zip")]
)
def test_the_suffix_is_appended_where_there_is_none(given, written, tmp_path):
    model = build("MlpPolicy", vector())
    model.save(str(tmp_path / given))
    assert (tmp_path / written).is_file()
    for path in (str(tmp_path / given), tmp_path / written):
        assert DistributionalPPO.load(path).n_steps == 16


def test_a_file_has_the_mode_the_user_asked_the_system_for(tmp_path):
    before = os.umask(0o027)
    try:
        build("MlpPolicy", vector()).save(tmp_path / "m")
    finally:
        os.umask(before)
    assert (tmp_path / "m.zip").stat().st_mode & 0o777 == 0o640


def test_file_objects_are_written_and_read(tmp_path):
    model = build("MlpPolicy", vector())
    with (tmp_path / "x").open("wb") as out:
        model.save(out)
    with (tmp_path / "x").open("rb") as back:
        loaded = DistributionalPPO.load(back)
    assert np.array_equal(loaded.predict(SEEN, deterministic=True)[0], model.predict(SEEN, deterministic=True)[0])


def test_without_an_env_it_predicts_and_takes_one_later(saved):
    loaded = DistributionalPPO.load(saved)
    assert loaded.get_env() is None
    loaded.predict(SEEN)
    with pytest.raises(ArgumentError, match="call set_env"):
        loaded.learn(48)
    loaded.set_env(Restorable())
    loaded.learn(48, reset_num_timesteps=False)
    assert loaded.num_timesteps == 96


def test_an_env_with_other_spaces_is_refused(saved):
    with pytest.raises(ArgumentError, match=r"not like the one it was saved with\. .* spaces do not match"):
        DistributionalPPO.load(saved, env=vector(lambda: World("dict")))


def test_system_information_is_printed_when_asked(saved, capsys):
    DistributionalPPO.load(saved, print_system_info=True)
    assert "Stable-Baselines3" in capsys.readouterr().out


def test_arguments_can_be_replaced_on_loading(saved):
    loaded = DistributionalPPO.load(saved, env=Restorable(), custom_objects={"clip_range": 0.05}, learning_rate=1e-5)
    assert loaded.clip_range == 0.05
    loaded.learn(48, reset_num_timesteps=False)
    assert loaded.policy.optimizer.param_groups[0]["lr"] == 1e-5


def test_parts_can_be_left_out_and_plain_attributes_added(tmp_path):
    model = build("MlpLstmPolicy", Restorable(), gamma=0.5)
    model.learn(48)
    model.note = {"why": ("a", 1)}
    model.save(tmp_path / "m", exclude=["policy.optimizer", "rng", "rollout", "gamma"], include=["note"])
    manifest, tensors = read_checkpoint(tmp_path / "m")
    assert {"optimizer", "rng", "rollout"} & set(manifest) == set()
    assert {name.split("/")[0] for name in tensors} == {"policy"}
    loaded = DistributionalPPO.load(tmp_path / "m")
    assert loaded.gamma == 0.99 and loaded.note == {"why": ("a", 1)}
    assert loaded.policy.optimizer.state_dict()["state"] == {}
    model.save(tmp_path / "m", exclude=["gamma"], include=["gamma"])
    assert DistributionalPPO.load(tmp_path / "m").gamma == 0.5


@pytest.mark.parametrize("kwargs", [{}, {"fused": False}, {"foreach": True}, {"amsgrad": True}], ids=str)
def test_the_optimiser_comes_back_bit_for_bit(kwargs, tmp_path):
    model = build("MlpPolicy", vector(), policy_kwargs={"optimizer_kwargs": kwargs})
    model.learn(64)
    model.save(tmp_path / "m")
    a = model.policy.optimizer.state_dict()
    b = DistributionalPPO.load(tmp_path / "m").policy.optimizer.state_dict()
    assert a["param_groups"] == b["param_groups"]
    assert a["param_groups"][0]["fused"] is (True if kwargs in ({}, {"amsgrad": True}) else kwargs.get("fused"))
    for index, entry in a["state"].items():
        assert set(entry) == set(b["state"][index])
        for key, value in entry.items():
            assert value.dtype == b["state"][index][key].dtype and torch.equal(value, b["state"][index][key])


# --- classes and schedules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "schedule", [lambda progress: 1e-4 * progress, partial(pow, 0.1), own_schedule], ids=["closure", "partial", "named"]
)
def test_a_schedule_without_a_name_we_may_import_stops_neither_save_nor_predict_but_training_asks(schedule, tmp_path):
    model = build("MlpPolicy", vector(), learning_rate=schedule, clip_range=lambda _: 0.2)
    model.save(tmp_path / "m")
    loaded = DistributionalPPO.load(tmp_path / "m", env=vector())
    assert np.array_equal(loaded.predict(SEEN, deterministic=True)[0], model.predict(SEEN, deterministic=True)[0])
    with pytest.raises(ArgumentError, match=r"learning_rate \(.*clip_range \(.*custom_objects"):
        loaded.learn(32)
    whole = DistributionalPPO.load(
        tmp_path / "m", env=vector(), custom_objects={"learning_rate": schedule, "clip_range": 0.1}
    )
    whole.learn(32)
    assert whole.last_metrics["train/learning_rate"] == schedule(0.0)
    loaded.save(tmp_path / "again")  # what was missing stays missing, and is not silently a number
    with pytest.raises(ArgumentError, match="learning_rate"):
        DistributionalPPO.load(tmp_path / "again", env=vector()).learn(32)


def test_a_function_of_a_module_that_cannot_be_imported_stops_no_save(tmp_path):
    def schedule(progress: float) -> float:
        return 1e-4

    schedule.__module__, schedule.__qualname__ = "notebook_that_is_gone", "schedule"
    build("MlpPolicy", vector(), learning_rate=schedule).save(tmp_path / "m")
    assert DistributionalPPO.load(tmp_path / "m").missing_arguments.keys() == {"learning_rate"}


@pytest.mark.parametrize(
    ("kwargs", "key"),
    [
        ({"features_extractor_class": OwnExtractor}, "features_extractor_class"),
        ({"activation_fn": OwnActivation}, "activation_fn"),
        (
            {"features_extractor_class": OwnExtractor, "features_extractor_kwargs": {"activation": OwnActivation}},
            "activation",
        ),
    ],
    ids=["extractor", "activation", "nested"],
)
def test_classes_of_ones_own_are_handed_over_by_the_loader(kwargs, key, tmp_path):
    model = build("MlpPolicy", vector(), policy_kwargs=kwargs)
    model.save(tmp_path / "m")
    by_key = {"features_extractor_class": OwnExtractor} | {key: OwnActivation if "activation" in key else OwnExtractor}
    missing = {k: v for k, v in by_key.items() if k != key}
    with pytest.raises(CheckpointError, match=rf"{key} is .*Own.*custom_objects"):
        DistributionalPPO.load(tmp_path / "m", custom_objects=missing)
    loaded = DistributionalPPO.load(tmp_path / "m", custom_objects=by_key)
    assert np.array_equal(loaded.predict(SEEN, deterministic=True)[0], model.predict(SEEN, deterministic=True)[0])


def test_a_policy_class_of_ones_own_is_handed_over_by_the_loader(tmp_path):
    model = DistributionalPPO(OwnPolicy, vector(), n_steps=16, batch_size=16, device="cpu")
    model.save(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"OwnPolicy is not ours.*policy_class"):
        DistributionalPPO.load(tmp_path / "m")
    loaded = DistributionalPPO.load(tmp_path / "m", custom_objects={"policy_class": OwnPolicy})
    assert type(loaded.policy) is OwnPolicy


def test_classes_of_torch_and_sb3_are_found_by_name(tmp_path):
    kwargs = {
        "activation_fn": nn.ReLU,
        "optimizer_class": torch.optim.RMSprop,
        "features_extractor_class": FlattenExtractor,
    }
    build("MlpPolicy", vector(), policy_kwargs=kwargs).save(tmp_path / "m")
    loaded = DistributionalPPO.load(tmp_path / "m")
    assert type(loaded.policy.optimizer) is torch.optim.RMSprop
    assert loaded.policy_kwargs["activation_fn"] is nn.ReLU


# --- files that are not to be trusted ---------------------------------------------------------------------------------

EVIL = [
    "os:system",
    "subprocess:Popen",
    "torch.utils.cpp_extension:subprocess.Popen",  # through a module that is on the list
    "torch.utils.cpp_extension:BuildExtension",  # a class of torch, but no network
    "torch.hub:load",
    "stable_baselines3.common.vec_env:SubprocVecEnv",
    "gymnasium:make",
    "builtins:eval",
    "leeward.maths.__main__:main",
    "torch.no_such_module:Thing",
    "torch.nn:",
    ":",
    "",
]


@pytest.mark.parametrize("name", EVIL)
def test_a_file_cannot_have_anything_called_that_it_names(name, saved, tmp_path):
    witness = tmp_path / "witness"

    def poison(manifest: dict[str, Any]) -> None:
        # The keys of a Dict space are what a class called with that space would see when it iterates.
        command = ["sh", "-c", f"touch {witness}"]
        manifest["observation_space"] = {"kind": "Dict", "spaces": [[c, {"kind": "Discrete", "n": 2, "start": 0}]
                                                                     for c in command]}  # fmt: skip
        manifest["arguments"]["policy_kwargs"] = {"$dict": [["features_extractor_class", {"$name": name}]]}

    with pytest.raises(CheckpointError, match="which a file may not name"):
        DistributionalPPO.load(rewrite(saved, poison))
    assert not witness.exists()
    with pytest.raises(CheckpointError, match="is not ours"):
        DistributionalPPO.load(rewrite(saved, lambda m: m.update(policy={"$name": name})))
    with pytest.raises(CheckpointError, match="is not a config"):
        DistributionalPPO.load(rewrite(saved, set_argument("entropy", {"$config": name, "values": {}})))
    assert (
        "learning_rate"
        in DistributionalPPO.load(rewrite(saved, set_argument("learning_rate", {"$name": name}))).missing_arguments
    )


def test_a_name_counts_only_where_the_thing_is_defined():
    def named(name: str) -> Any:
        return decode({"$name": name}, {}, "activation_fn")

    assert named("torch.nn.modules.activation:Tanh") is nn.Tanh
    for detour in ("torch.nn:Tanh", "stable_baselines3.common.policies:nn.Tanh", "torch:nn.modules.activation.Tanh"):
        assert isinstance(named(detour), Missing), detour


def test_a_policy_class_that_is_a_network_but_no_policy_is_refused(saved):
    with pytest.raises(ArgumentError, match="of another library"):
        DistributionalPPO.load(rewrite(saved, lambda m: m.update(policy={"$name": "torch.nn.modules.linear:Linear"})))


class Bomb:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.target}",)


def test_pickles_are_never_run(tmp_path):
    witness = tmp_path / "witness"
    bomb = pickle.dumps(Bomb(str(witness)))
    (tmp_path / "bare.zip").write_bytes(bomb)
    with zipfile.ZipFile(tmp_path / "wrapped.zip", "w") as archive:
        archive.writestr("manifest.json", bomb)
        archive.writestr("tensors.safetensors", bomb)
    with zipfile.ZipFile(tmp_path / "like_sb3.zip", "w") as archive:
        archive.writestr("data", bomb)
        archive.writestr("pytorch_variables.pth", bomb)
        archive.writestr("policy.pth", bomb)
    for name in ("bare", "wrapped", "like_sb3"):
        with pytest.raises(CheckpointError, match=name):
            DistributionalPPO.load(tmp_path / name)
    assert not witness.exists()


def test_a_file_of_stable_baselines3_is_named_as_such(tmp_path):
    sb3_contrib.RecurrentPPO("MlpLstmPolicy", vector(), device="cpu", policy_kwargs=small()).save(tmp_path / "m")
    with pytest.raises(CheckpointError, match="a file of Stable-Baselines3, which holds pickles and is not read"):
        DistributionalPPO.load(tmp_path / "m")
    with pytest.raises(CheckpointError, match="a file of Stable-Baselines3"):
        build("MlpPolicy", vector()).set_parameters(tmp_path / "m")


def test_a_file_cut_short_or_with_a_flipped_byte_is_an_error_and_nothing_else(saved, tmp_path):
    whole = saved.read_bytes()
    rng = random.Random(0)
    broken = tmp_path / "broken.zip"
    for length in [0, 1, 10, *sorted(rng.sample(range(len(whole)), 20)), len(whole) - 1]:
        broken.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"broken\.zip"):
            read_checkpoint(broken)
    found = 0
    for place in rng.sample(range(len(whole)), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        broken.write_bytes(bytes(damaged))
        try:
            read_checkpoint(broken)  # a byte of a zip's dates and such may change unseen
        except CheckpointError:
            found += 1
    assert found >= 55


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=99), "expected leeward-checkpoint version 4 or an earlier one, got 99"),
        (lambda m: m.update(format="other"), "not a Leeward checkpoint"),
        (lambda m: [1, 2], "not a Leeward checkpoint"),
        (lambda m: m.pop("state") and None, "its manifest lacks state"),
        (lambda m: m.pop("n_envs") and None, "its manifest lacks n_envs"),
        (lambda m: m["action_space"].update(n=7), "the weights do not fit"),
        (lambda m: m["action_space"].update(kind="Graph"), "space of kind 'Graph'"),
        (set_argument("gamma", {"$what": 1}), "does not know"),
        (set_argument("n_quantiles", 16), "the weights do not fit"),
    ],
    ids=["version", "format", "list", "lacks state", "lacks envs", "misfit", "space", "unknown tag", "other network"],
)
def test_a_manifest_that_does_not_fit_is_explained(change, message, saved):
    with pytest.raises(CheckpointError, match=message):
        DistributionalPPO.load(rewrite(saved, change))


@pytest.mark.parametrize("owner", ["counters", "returns", "entropy", "finite_guard", "episodes"])
def test_a_manifest_without_a_state_that_every_model_has_is_refused(owner, saved):
    with pytest.raises(CheckpointError, match=f"lacks .*{owner}"):
        DistributionalPPO.load(rewrite(saved, lambda m: m["state"].pop(owner) and None))


def test_a_path_without_a_file_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"nothing\.zip: no such file"):
        DistributionalPPO.load(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="no such file"):
        DistributionalPPO.load(tmp_path)


# --- files of leeward 0.1.0 -------------------------------------------------------------------------------------------


def as_version_2(manifest: dict[str, Any], tensors: dict[str, torch.Tensor], tail_alpha: float = 0.05) -> io.BytesIO:
    """A file of today as leeward 0.1.0 wrote it: units beside the critics, no levels, counters beside the state."""
    state, arguments = manifest["state"], manifest["arguments"]
    state["consecutive_skips"] = state.pop("finite_guard")["consecutive"]
    manifest |= {"version": 2, "counters": state.pop("counters"), "episodes": state.pop("episodes")}
    manifest["stats_window_size"] = arguments.pop("stats_window_size")
    if tail_alpha != 0.05:
        arguments["policy_kwargs"]["$dict"].append(["tail_alpha", tail_alpha])
    old = {}
    for name, tensor in tensors.items():
        if not name.endswith((".levels", ".weights")):
            place = name.replace("policy/critic.", "policy/return_").replace("step_critic.", "step_")
            old[place if place.endswith(("_mean", "_std")) else name] = tensor
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("tensors.safetensors", save_tensors(old))
    file.seek(0)
    return file


def test_a_file_that_leeward_010_wrote_predicts_and_goes_on():
    # 12 quantiles with tail_alpha=0.2, risk={"alpha": 0.1, "limit": 0.9}, 96 steps on three envs of Restorable. The
    # numbers are those that version printed; the levels follow from tail_alpha, which is no argument any more.
    file = Path(__file__).parents[1] / "support" / "files" / "format_2" / "with_env.zip"
    with zipfile.ZipFile(file) as archive:
        assert json.loads(archive.read("manifest.json"))["version"] == 2
    model = DistributionalPPO.load(file, env=Restorable(3, "box"), force_reset=False)
    outlook = model.predict_distribution(SEEN)
    assert outlook.levels[[0, 7, 11]] == pytest.approx([0.00397101, 0.19602899, 0.94445455], rel=1e-5)
    assert outlook.quantiles[0, [0, 5, 11]] == pytest.approx([-1.82849669, 1.02859735, 5.64017391], rel=1e-4)
    assert outlook.cvar(0.2)[0] == pytest.approx(0.37828529, rel=1e-4)
    assert outlook.step.quantiles[0, [0, 16, 31]] == pytest.approx([-0.86051089, 0.26083273, 1.76306462], rel=1e-4)
    assert model.predict(SEEN, deterministic=True)[0] == pytest.approx([-0.00119637, 1.0048203], rel=1e-3)
    critic, ahead = model.policy.critic, model.policy.risk_heads.step_critic
    assert critic.unit == pytest.approx((2.093090797929714, 2.1209793444474263), rel=1e-12)
    assert ahead.unit == pytest.approx((0.516786270425655, 0.3795772560786228), rel=1e-12)
    assert model.engine.risk_control.constraints[0].multiplier == 5.016622759055985
    assert (model.num_timesteps, model.n_rollouts, model.stream_seed) == (96, 2, 3)
    assert len(model.ep_info_buffer) == model.ep_info_buffer.maxlen == model.stats_window_size == 7
    again = io.BytesIO()
    model.save(again)
    again.seek(0)
    assert np.array_equal(DistributionalPPO.load(again).predict_distribution(SEEN).quantiles, outlook.quantiles)
    model.learn(48, reset_num_timesteps=False)
    assert model.num_timesteps == 144
    other = DistributionalPPO(
        "MlpLstmPolicy", Restorable(3, "box"), n_steps=16, batch_size=16, device="cpu", n_quantiles=12,
        risk={"alpha": 0.1, "limit": 0.9}, policy_kwargs={"net_arch": [4], "lstm_hidden_size": 4},
    )  # fmt: skip
    other.set_parameters(file)
    assert np.array_equal(other.predict_distribution(SEEN).quantiles, outlook.quantiles)


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
@pytest.mark.parametrize(
    ("arguments", "tail_alpha"),
    [
        ({}, 0.05),
        ({"levels": "uniform", "n_quantiles": 5, "twin_critics": False}, 0.05),
        ({"critic": "categorical", "n_atoms": 11}, 0.05),
        ({"critic": "scalar"}, 0.05),
        ({"vgs": {"warmup": 4}, "kl_penalty": {"target": 0.01}}, 0.05),
        ({"risk": [{"alpha": 0.7, "limit": 0.9}, {"measure": "episode_return", "alpha": 0.3}]}, 0.3),
    ],
    ids=str,
)
def test_every_critic_of_an_earlier_version_is_read(arguments, tail_alpha, tmp_path):
    model = build("MlpLstmPolicy", Restorable(), **arguments)
    model.learn(48)
    model.save(tmp_path / "m")
    loaded = DistributionalPPO.load(as_version_2(*read_checkpoint(tmp_path / "m"), tail_alpha), device="cpu")
    now, then = model.policy.state_dict(), loaded.policy.state_dict()
    assert now.keys() == then.keys() and all(torch.equal(now[name], then[name]) for name in now)
    assert {name: owner.state_dict() for name, owner in loaded.owners().items()} == {
        name: owner.state_dict() for name, owner in model.owners().items()
    }
    assert np.array_equal(loaded.predict_distribution(SEEN).quantiles, model.predict_distribution(SEEN).quantiles)
    assert "tail_alpha" not in loaded.policy_kwargs


def test_a_damaged_file_of_an_earlier_version_is_named(saved):
    manifest, tensors = read_checkpoint(saved)
    whole = as_version_2(manifest, tensors)
    del manifest["counters"]
    with zipfile.ZipFile(whole) as archive:
        blob = archive.read("tensors.safetensors")
    broken = io.BytesIO()
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("tensors.safetensors", blob)
    with pytest.raises(CheckpointError, match="a damaged checkpoint: its manifest lacks 'counters'"):
        read_checkpoint(broken)


def test_a_class_that_an_earlier_file_names_is_found_by_its_name(tmp_path):
    build("MlpPolicy", vector(), policy_kwargs={"features_extractor_class": OwnExtractor}).save(tmp_path / "m")
    file = as_version_2(*read_checkpoint(tmp_path / "m"))
    assert DistributionalPPO.load(file, custom_objects={"OwnExtractor": OwnExtractor}).policy is not None


@pytest.mark.parametrize("name", ["critic", "n_quantiles", "levels"])
def test_an_earlier_file_may_leave_arguments_out(name, tmp_path):
    build("MlpPolicy", vector()).save(tmp_path / "m", exclude=[name])
    assert DistributionalPPO.load(as_version_2(*read_checkpoint(tmp_path / "m"))).n_steps == 16


# --- writing ----------------------------------------------------------------------------------------------------------


def test_a_write_that_fails_leaves_the_old_file_whole_and_nothing_beside_it(saved, monkeypatch):
    before = saved.read_bytes()
    model = DistributionalPPO.load(saved, env=Restorable())
    model.learn(48, reset_num_timesteps=False)

    def fail(*_: Any) -> None:
        raise OSError("the power went out")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="the power went out"):
            model.save(saved)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="the power went out"):
            model.save(saved)
    assert saved.read_bytes() == before
    assert [file.name for file in saved.parent.iterdir()] == ["model.zip"]
    model.save(saved)
    assert DistributionalPPO.load(saved).num_timesteps == 96


def test_a_file_that_could_not_be_read_again_is_not_written(tmp_path, monkeypatch):
    model = build("MlpPolicy", Restorable())
    monkeypatch.setattr(checkpoint, "_LARGEST_MANIFEST", 5_000)
    with pytest.raises(CheckpointError, match=r"not written: .* bytes, and no more than 5,000 are read again"):
        model.save(tmp_path / "model")
    assert not list(tmp_path.iterdir())
