"""Checkpoints made to do harm: to run code, to fill the memory, to replace parts of a model, or to load nonsense."""

import io
import json
import os
import random
import subprocess
import sys
import textwrap
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from stable_baselines3.common.vec_env import VecNormalize

from leeward import DistributionalPPO
from leeward.algorithm.checkpoint import read_checkpoint
from leeward.algorithm.manifest import decode_space
from leeward.errors import CheckpointError, LeewardError

from ..support.small_models import build
from ..support.space_envs import Restorable


@pytest.fixture(scope="module")
def whole() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Manifest and tensors of a small model with every owner, in the order of their names (a file has any)."""
    model = build(
        "MlpLstmPolicy",
        Restorable(3, "box"),
        entropy={"end": 0.0},
        kl_penalty={"target": 0.01},
        risk={"alpha": 0.4, "limit": 0.9},
        adversary={"warmup": 1},
        vgs={"warmup": 2},
    )
    model.learn(96)
    model.note = [1, 2]
    file = io.BytesIO()
    model.save(file, include=["note"])
    with zipfile.ZipFile(file) as archive:
        tensors = load_tensors(archive.read("tensors.safetensors"))
        return json.loads(archive.read("manifest.json")), dict(sorted(tensors.items()))


def packed(manifest: Any, tensors: dict[str, torch.Tensor] | bytes, **options: Any) -> io.BytesIO:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **options) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("tensors.safetensors", tensors if isinstance(tensors, bytes) else save_tensors(tensors))
    file.seek(0)
    return file


def copied(manifest: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(manifest))
    return found


# --- code -------------------------------------------------------------------------------------------------------------

PLANTED = "sb3_contrib.planted:Planted"
PLACES = {
    "policy": lambda m: m.update(policy={"$name": PLANTED}),
    "argument": lambda m: m["arguments"].update(learning_rate={"$name": PLANTED}),
    "config": lambda m: m["arguments"].update(entropy={"$config": PLANTED, "values": {}}),
    "network": lambda m: m["arguments"].update(policy_kwargs={"$dict": [["activation_fn", {"$name": PLANTED}]]}),
    "optimiser": lambda m: m["optimizer"]["groups"].append({"$name": PLANTED}),
    "extra": lambda m: m["extra"].update(other={"$name": PLANTED}),
}


def test_a_package_planted_beside_a_file_is_not_imported_from_any_place_where_a_name_may_stand(whole, tmp_path):
    manifest, tensors = whole
    planted, witness = tmp_path / "sb3_contrib", tmp_path / "witness"
    planted.mkdir()
    for name in ("__init__.py", "planted.py"):
        (planted / name).write_text(f"import pathlib; pathlib.Path({str(witness)!r}).touch()\nclass Planted: ...\n")
    for name, change in PLACES.items():
        changed = copied(manifest)
        change(changed)
        (tmp_path / f"{name}.zip").write_bytes(packed(changed, tensors).getvalue())
    script = f"""
        from leeward import DistributionalPPO
        from leeward.errors import LeewardError
        for name in {list(PLACES)}:
            try:
                DistributionalPPO.load(name, device="cpu")
            except LeewardError:
                pass
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", textwrap.dedent(script)]
    subprocess.run(command, cwd=tmp_path, check=True, env=environment)
    assert not witness.exists()
    command[-1] = "import sb3_contrib.planted"
    subprocess.run(command, cwd=tmp_path, check=True, env=environment)
    assert witness.exists(), "the trap works"


@pytest.mark.parametrize("name", ["predict", "policy", "_setup_model", "save", "__class__", "num_timesteps", "logger"])
def test_a_file_adds_attributes_and_replaces_none(name, whole):
    manifest = copied(whole[0])
    manifest["extra"] = {name: 3}
    with pytest.raises(CheckpointError, match="is an attribute of the model itself"):
        DistributionalPPO.load(packed(manifest, whole[1]))


def test_what_a_file_could_not_bring_back_is_not_saved(whole, tmp_path):
    model = DistributionalPPO.load(packed(*whole))
    assert model.note == [1, 2]
    with pytest.raises(CheckpointError, match="'predict' is an attribute"):
        model.save(tmp_path / "m", include=["predict"])
    assert not list(tmp_path.iterdir())


def test_a_file_does_not_decide_where_a_log_is_written(whole, tmp_path):
    manifest = copied(whole[0])
    manifest["arguments"]["tensorboard_log"] = str(tmp_path / "elsewhere")
    model = DistributionalPPO.load(packed(manifest, whole[1]), env=Restorable(3, "box"))
    assert model.tensorboard_log is None
    model.learn(48, reset_num_timesteps=False)
    assert not list(tmp_path.iterdir())
    own = DistributionalPPO.load(packed(manifest, whole[1]), tensorboard_log=str(tmp_path / "mine"))
    assert own.tensorboard_log == str(tmp_path / "mine")


# --- memory -----------------------------------------------------------------------------------------------------------


def set_network(**kwargs: Any) -> Any:
    def change(manifest: dict[str, Any]) -> None:
        pairs = dict(manifest["arguments"]["policy_kwargs"]["$dict"]) | kwargs
        manifest["arguments"]["policy_kwargs"] = {"$dict": [list(pair) for pair in pairs.items()]}

    return change


BOX = {"kind": "Box", "dtype": "float32", "low": [0.0], "high": [1.0]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (set_network(lstm_hidden_size=10**6), "describes a network with a tensor of"),
        (set_network(net_arch=[10**9]), "describes a network with a tensor of"),
        (lambda m: m.update(observation_space=BOX | {"shape": [10**6]}), "describes a network with a tensor of"),
        (lambda m: m.update(observation_space=BOX | {"shape": [10**6, 10**6]}), "more than 16,777,216 numbers"),
        (lambda m: m.update(observation_space={"kind": "MultiBinary", "n": 10**12}), "more than 16,777,216 numbers"),
        (lambda m: m.update(observation_space={"kind": "Discrete", "n": 10**10, "start": 0}), "a network with"),
        (lambda m: m.update(n_envs=10**12), "n_envs: expected 1 to"),
        (set_network(net_arch=[1] * 1000), "describes a network of more tensors than"),
    ],
    ids=["memory", "width", "wide observation", "huge Box", "huge MultiBinary", "huge Discrete", "envs", "layers"],
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_anything_is_made(change, words, whole):
    manifest = copied(whole[0])
    change(manifest)
    with pytest.raises(CheckpointError, match=words):
        DistributionalPPO.load(packed(manifest, whole[1]))


def test_what_would_expand_stands_twice_or_does_not_belong_there_is_refused(whole):
    manifest, tensors = whole
    with pytest.raises(CheckpointError, match=r"manifest\.json is compressed"):
        read_checkpoint(packed(manifest, tensors, compression=zipfile.ZIP_DEFLATED))
    for name in ("../../evil.py", "tensors.safetensors", "manifest.json"):
        file = packed(manifest, tensors)
        with zipfile.ZipFile(file, "a") as archive, warnings.catch_warnings(action="ignore"):
            archive.writestr(name, b"x")
        with pytest.raises(CheckpointError, match="not one each of"):
            read_checkpoint(file)
    with pytest.raises(CheckpointError, match=r"manifest\.json says that it has 16,777,2\d\d bytes"):
        read_checkpoint(packed("x" * (1 << 24), tensors))
    text = json.dumps(manifest).replace('"exact"', '"n_envs": 1, "exact"', 1)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("manifest.json", text)
        archive.writestr("tensors.safetensors", save_tensors(tensors))
    with pytest.raises(CheckpointError, match="a key stands twice"):
        read_checkpoint(file)


# --- nonsense ---------------------------------------------------------------------------------------------------------


def test_moments_of_another_shape_and_weights_that_are_no_numbers_are_refused(whole):
    manifest, tensors = whole
    place = next(name for name, tensor in tensors.items() if name.endswith("exp_avg") and len(set(tensor.shape)) == 2)
    with pytest.raises(CheckpointError, match=r"exp_avg of parameter \d+ has shape"):
        DistributionalPPO.load(packed(manifest, tensors | {place: tensors[place].T.contiguous()}))
    place = next(name for name in tensors if name.startswith("policy/") and name.endswith("weight"))
    broken = tensors[place].clone()
    broken.view(-1)[1] = float("nan")
    with pytest.raises(CheckpointError, match="holds what is not a finite number"):
        DistributionalPPO.load(packed(manifest, tensors | {place: broken}))


@pytest.mark.parametrize(
    "kind", [torch.float64, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str
)
@pytest.mark.parametrize("ending", ["weight", "exp_avg"])
def test_weights_and_moments_of_another_kind_are_refused_and_not_cast(ending, kind, whole):
    manifest, tensors = whole
    places = {tuple(tensor.shape): name for name, tensor in tensors.items() if name.endswith(ending)}
    assert ending == "weight" or (1,) in places, "one number alone, which is no count of steps"
    for place in places.values():
        with pytest.raises(CheckpointError, match=str(kind)):
            DistributionalPPO.load(packed(manifest, tensors | {place: tensors[place].to(kind)}))


@pytest.mark.parametrize("place", [10**6, -5, 625, 1.5, True, None], ids=str)
def test_a_place_outside_numpys_generator_is_refused_before_anything_is_drawn_from_it(place, whole):
    manifest = copied(whole[0])
    manifest["rng"]["numpy"][1] = place
    before = random.getstate()
    with pytest.raises(CheckpointError, match=r"NumPy's place is 0 to 624, this file holds"):
        DistributionalPPO.load(packed(manifest, whole[1]), env=Restorable(3, "box"), force_reset=False)
    assert random.getstate() == before, "no generator is touched"


@pytest.mark.parametrize(
    ("kind", "value"), [("info", 3), ("info", {"$dict": [["r", 1.0]]}), ("success", "<b>")], ids=str
)
def test_episodes_that_nothing_of_ours_counted_are_refused(kind, value, whole):
    manifest = copied(whole[0])
    manifest["state"]["episodes"][kind] = [value]
    with pytest.raises(CheckpointError, match=rf"episodes: {kind} holds .*, which no episode of ours is"):
        DistributionalPPO.load(packed(manifest, whole[1]))


@pytest.mark.parametrize(
    ("field", "change"),
    [("mean", lambda t: t[:1]), ("var", lambda t: t.float()), ("mean", lambda t: t * float("nan"))],
    ids=["shape", "kind", "nan"],
)
def test_statistics_of_vecnormalize_that_do_not_fit_are_refused(field, change):
    env = VecNormalize(Restorable(3, "box"))
    model = build("MlpPolicy", env).learn(48)
    file = io.BytesIO()
    model.save(file)
    with zipfile.ZipFile(file) as archive:
        manifest, tensors = json.loads(archive.read("manifest.json")), load_tensors(archive.read("tensors.safetensors"))
    name = f"vecnormalize/observation/{field}"
    before = env.obs_rms.mean.copy()
    with pytest.raises(CheckpointError, match=f"VecNormalize: {field} of observation has shape"):
        DistributionalPPO.load(packed(manifest, tensors | {name: change(tensors[name]).contiguous()}), env=env)
    assert (env.obs_rms.mean == before).all()


def test_a_rollout_of_other_shapes_is_refused(whole):
    manifest, tensors = whole
    for name in ("rollout/memory/0", "rollout/observation/", "rollout/starts"):
        wrong = tensors[name].repeat_interleave(2, dim=-1)
        with pytest.raises(CheckpointError, match="the rollout of this file does not fit"):
            DistributionalPPO.load(
                packed(manifest, tensors | {name: wrong}), env=Restorable(3, "box"), force_reset=False
            )


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    for key, each in items:
        yield from leaves(each, (*path, key))


def put(manifest: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = copied(manifest)
    here = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return dict(changed)


NONSENSE = ("nonsense", -(10**30), None, [], {"$tuple": 3}, True)


def test_a_manifest_with_nonsense_anywhere_loads_or_is_an_error_of_ours(whole):
    manifest, tensors = whole
    blob = save_tensors(tensors)
    paths = [path for path in leaves(manifest) if path and path[0] != "rng"]
    refused = 0
    for number, path in enumerate(paths[:: max(1, len(paths) // 60)]):
        file = packed(put(manifest, path, NONSENSE[number % len(NONSENSE)]), blob)
        try:
            model = DistributionalPPO.load(file, env=Restorable(3, "box"), force_reset=False, device="cpu")
        except LeewardError as error:
            refused += 1
            assert str(error)
        else:
            assert isinstance(model, DistributionalPPO)
    assert refused > 20


def test_a_file_of_format_3_predicts_what_it_predicted_and_goes_on():
    files = Path(__file__).parents[1] / "support" / "files" / "format_3"
    told = json.loads((files / "memory.json").read_text())
    manifest, _ = read_checkpoint(files / "memory.zip")
    assert (manifest["written_as"], manifest["version"]) == (3, 4)
    model = DistributionalPPO.load(files / "memory.zip", device="cpu")
    outlook = model.predict_distribution(torch.tensor(told["observation"]).numpy())
    torch.testing.assert_close(torch.tensor(outlook.quantiles).float(), torch.tensor(told["quantiles"]))
    assert json.loads(json.dumps(model.owners()["counters"].state_dict())) == told["state"]["counters"]


@pytest.mark.parametrize("deep", [False, True])
def test_the_parts_of_a_space_are_bounded_together(deep):
    """Each is made whole in memory, so that sixty of them, each just small enough, would fill it."""
    part = {"kind": "Box", "dtype": "uint8", "shape": [1 << 23], "low": [0], "high": [1]}
    half = {"kind": "Dict", "spaces": [["a", part]]} if deep else part
    with pytest.raises(CheckpointError, match="more than 16,777,216 numbers"):
        decode_space({"kind": "Dict", "spaces": [["a", half], ["b", half], ["c", half]]})
