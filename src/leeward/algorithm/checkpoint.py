"""Save and load: one zip of `tensors.safetensors` and `manifest.json`. Nothing is pickled or unpickled.

A save between two updates is exact: load, continue, and every number is the one an uninterrupted run would have had. A
save from inside a rollout (SB3's callbacks do that) resumes at the next rollout, and its manifest says `exact: false`.
So does a save of a run with n_jobs whose envs, in the other processes, cannot give their state.
"""

import io
import json
import pathlib
import random
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import stable_baselines3
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from stable_baselines3.common.utils import check_for_correct_spaces, get_system_info
from stable_baselines3.common.vec_env import VecNormalize, unwrap_vec_normalize
from torch import Tensor

import leeward
from leeward.algorithm.bounded_build import bounded_build
from leeward.algorithm.manifest import (
    Missing,
    check_kind,
    decode,
    decode_space,
    encode,
    encode_space,
    find_missing,
)
from leeward.config.settings import Settings
from leeward.durable import write_atomically
from leeward.errors import ArgumentError, CheckpointError, LeewardError, one_line
from leeward.maths import quantile
from leeward.rollout.rollout_state import RolloutState

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = [
    "ARGUMENTS",
    "Owner",
    "load",
    "pack_rng",
    "parameters_of",
    "read_checkpoint",
    "refuse_training",
    "restore",
    "restore_normaliser",
    "save",
    "unpack_rng",
]

Model = TypeVar("Model", bound="DistributionalPPO")
FORMAT, VERSION = "leeward-checkpoint", 4
Path = str | pathlib.Path | io.BufferedIOBase
Rngs = list[tuple[dict[str, Any], dict[str, Tensor]]]  # of the processes after the first: what `pack_rng` gives

# The constructor's arguments that a file keeps: the settings, and those of Python's own that are plain data. Where a
# log is written is decided by who trains, not by a file.
ARGUMENTS = (*Settings.model_fields, "policy_kwargs", "verbose", "seed")
_ALWAYS_THERE = ("exact", "policy", "arguments", "observation_space", "action_space", "n_envs", "state", "extra")
_ALWAYS_OWNED = ("returns", "entropy", "finite_guard", "counters", "episodes")
_PARTS = ("manifest.json", "tensors.safetensors")
_LARGEST_MANIFEST = 1 << 24  # bytes: text becomes twenty times as much in memory
_MOST_ENVS = 1 << 20
_NUMPY_WORDS = 624  # of a Mersenne twister
# What zipfile, json and safetensors raise on a file that is damaged or is something else.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, struct.error, SafetensorError, KeyError, ValueError, EOFError,
               IndexError, RuntimeError, OverflowError, MemoryError, OSError)  # fmt: skip
# What decoding, building and restoring raise when a manifest says something that no file of ours does.
_NONSENSE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, AssertionError,
             MemoryError)  # fmt: skip


class Owner(Protocol):
    """A part of a model with a state of its own, as plain data."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Any) -> None: ...


def save(
    model: "DistributionalPPO", path: Path, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
) -> None:
    """Write the model to `path` (`.zip` is appended as SB3 does) or a file object, atomically.

    `exclude` leaves out constructor arguments (their defaults apply on load), or the sections `policy.optimizer`, `rng`
    and `rollout`; `include` names further attributes of the model that are plain data.
    """
    left_out, added = set(exclude or ()) - set(include or ()), [name for name in include or () if name not in ARGUMENTS]
    for name in added:
        _refuse_reserved(type(model), name)
    tensors: dict[str, Tensor] = {f"policy/{name}": value for name, value in model.policy.state_dict().items()}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "versions": {"leeward": leeward.__version__, "torch": torch.__version__, "numpy": np.__version__,
                     "stable_baselines3": stable_baselines3.__version__, "python": sys.version.split()[0]},
        "exact": model.resumes_exactly,
        "policy": encode(model.policy_class),
        "arguments": {name: _encode_argument(model, name) for name in ARGUMENTS if name not in left_out},
        "observation_space": encode_space(model.observation_space),
        "action_space": encode_space(model.action_space),
        "n_envs": model.processes.n_envs,
        "state": {name: owner.state_dict() for name, owner in model.owners().items()},
        "extra": {name: encode(getattr(model, name)) for name in added},
    }  # fmt: skip
    if "policy.optimizer" not in left_out:
        manifest["optimizer"] = _pack_optimizer(model.policy.optimizer, tensors)
    if (scaler := model.engine.variance_scaler) is not None:
        tensors |= {f"vgs/{name}": value for name, value in scaler.state_dict().items()}
    if "rng" not in left_out:
        manifest["rng"] = pack_rng(tensors)
        manifest["rng_of_jobs"] = _pack_rngs(model.processes.rngs(), tensors)
    state = None if "rollout" in left_out else model.processes.rollout_state()
    if state is not None:
        manifest["rollout"] = _pack_rollout(state, tensors)
    if (normaliser := model.get_vec_normalize_env()) is not None:
        manifest["vecnormalize"] = _pack_vecnormalize(normaliser, tensors)
    _write(path, manifest, tensors)


def _encode_argument(model: "DistributionalPPO", name: str) -> Any:
    # What a file could only name stays named: the number that stands in for it must not be taken for it.
    lost = model.missing_arguments.get(name)
    return encode(getattr(model, name)) if lost is None else {"$missing": lost}


def load(
    cls: "type[Model]",
    path: Path,
    env: Any = None,
    device: torch.device | str = "auto",
    custom_objects: Mapping[str, Any] | None = None,
    print_system_info: bool = False,
    force_reset: bool = True,
    **kwargs: Any,
) -> "Model":
    """Read a model. `custom_objects` replaces arguments, or supplies classes and schedules the file can only name.

    With an env and `force_reset=False` the rollout goes on where it was; the env's own state is the caller's to
    restore.
    """
    manifest, tensors = read_checkpoint(path)
    if print_system_info:
        get_system_info(print_info=True)
    custom = dict(custom_objects or {})
    with _nonsense_refused(path):
        model = _unbuilt(cls, manifest, device, custom, kwargs)
    if env is not None:
        wrapped = cls._wrap_env(env, model.verbose)
        try:
            check_for_correct_spaces(wrapped, model.observation_space, model.action_space)
        except ValueError as error:
            raise ArgumentError(f"{path}: this env is not like the one it was saved with. {error}") from None
        model.env, model.n_envs = wrapped, wrapped.num_envs
        model._vec_normalize_env = unwrap_vec_normalize(wrapped)
    with _nonsense_refused(path):
        with bounded_build(sum(tensor.numel() for tensor in tensors.values()), len(tensors)):
            model._setup_model()
        restore(model, manifest, tensors)
        for name, value in manifest["extra"].items():
            _refuse_reserved(model, name)
            setattr(model, name, decode(value, custom, name))
        restore_normaliser(model, manifest, tensors)
        if not force_reset and model.collector is not None and "rollout" in manifest:
            model.resume_from(_unpack_rollout(model, manifest, tensors))
            if "rng" in manifest:
                unpack_rng(manifest["rng"], tensors)
                model.processes.saved_rngs = _unpack_rngs(manifest.get("rng_of_jobs", []), tensors)
    return model


def _unbuilt(
    cls: "type[Model]",
    manifest: dict[str, Any],
    device: torch.device | str,
    custom: dict[str, Any],
    given: dict[str, Any],
) -> "Model":
    """A model of the file's arguments and spaces, without its network."""
    stored = {name: value for name, value in manifest["arguments"].items() if name != "tensorboard_log"}
    arguments = {name: decode(value, custom, name) for name, value in stored.items()}
    arguments |= {name: custom[name] for name in custom if name in ARGUMENTS} | given
    policy = decode(manifest["policy"], custom, "policy_class")
    if isinstance(policy, Missing):
        raise CheckpointError(
            f"the policy class {policy.name} is not ours; pass custom_objects={{'policy_class': ...}}"
        )
    missing = {name: value.name for name, value in arguments.items() if isinstance(value, Missing)}
    # A schedule that could only be named is replaced by a constant: predictions do not need it, training asks for it.
    arguments |= dict.fromkeys(missing, 0.1)
    _refuse_missing(arguments.get("policy_kwargs", {}))
    model = cls(policy, None, device=device, _init_setup_model=False, **arguments)
    model.missing_arguments = missing
    model.observation_space = custom.get("observation_space") or decode_space(manifest["observation_space"])
    model.action_space = custom.get("action_space") or decode_space(manifest["action_space"])
    n_envs = manifest["n_envs"]
    if type(n_envs) is not int or not 1 <= n_envs <= _MOST_ENVS:
        raise CheckpointError(f"n_envs: expected 1 to {_MOST_ENVS:,}, this file holds {n_envs!r}")
    model.n_envs = n_envs
    return model


def _refuse_reserved(owner: Any, name: str) -> None:
    """A file adds attributes to a model, and replaces none that the model or its class has."""
    if not isinstance(name, str) or name.startswith("_") or hasattr(owner, name) or hasattr(type(owner), name):
        raise CheckpointError(f"include: {name!r} is an attribute of the model itself; choose a name of your own")


@contextmanager
def _nonsense_refused(path: Path) -> Iterator[None]:
    """What a manifest's values break on the way is an error of the file, which is named; its cause stays attached."""
    try:
        yield
    except LeewardError:
        raise
    except _NONSENSE as error:
        raise CheckpointError(
            f"{_name_of(path)}: a damaged checkpoint, or one whose parts do not fit together "
            f"({type(error).__name__}: {one_line(error)})"
        ) from error


def _name_of(path: Path) -> object:
    return path if isinstance(path, str | pathlib.Path) else getattr(path, "name", "<file object>")


def restore(model: "DistributionalPPO", manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Everything training has learned and counted, into a model with the same arguments; envs and randomness stay."""
    weights, own = _policy_tensors(tensors), model.policy.state_dict()
    for name in weights.keys() & own.keys():
        if not _widens(weights[name].dtype, own[name].dtype):  # torch would cast it
            raise CheckpointError(
                f"the weights do not fit the network: {name} is of {weights[name].dtype}, expected {own[name].dtype}"
            )
    try:
        model.policy.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"the weights do not fit the network that the arguments describe: {one_line(error)}"
        ) from None
    model.engine.weights.forget()
    lacking = [name for name in _ALWAYS_OWNED if name not in manifest["state"]]
    if lacking:
        raise CheckpointError(f"a damaged checkpoint: its state lacks {', '.join(lacking)}")
    for name, owner in model.owners().items():
        if (state := manifest["state"].get(name)) is not None:  # else it was off when the file was written
            check_kind(f"state {name}", owner.state_dict(), state)
            owner.load_state_dict(state)
    if "optimizer" in manifest:
        _load_optimizer(model.policy.optimizer, _unpack_optimizer(manifest["optimizer"], tensors))
    scaling = {name.removeprefix("vgs/"): tensor for name, tensor in tensors.items() if name.startswith("vgs/")}
    if scaling and (scaler := model.engine.variance_scaler) is not None:
        scaler.load_state_dict(scaling)


def restore_normaliser(model: "DistributionalPPO", manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """The statistics of SB3's VecNormalize, if the file has some and the env is wrapped in one."""
    normaliser = model.get_vec_normalize_env()
    if "vecnormalize" in manifest and normaliser is not None:
        _unpack_vecnormalize(normaliser, manifest["vecnormalize"], tensors)


def _widens(saved: torch.dtype, own: torch.dtype) -> bool:
    """The same kind, or floats that fit exactly: the support of a categorical critic had 32 bits before format 4."""
    floats = saved.is_floating_point and own.is_floating_point
    return saved == own or (floats and torch.promote_types(saved, own) == own)


def parameters_of(path_or_parameters: Any) -> dict[str, Any]:
    """What SB3's `set_parameters` takes, from a checkpoint of ours, or as `get_parameters` returned it."""
    if isinstance(path_or_parameters, dict):
        return path_or_parameters
    manifest, tensors = read_checkpoint(path_or_parameters)
    parameters: dict[str, Any] = {"policy": _policy_tensors(tensors)}
    if "optimizer" in manifest:
        parameters["policy.optimizer"] = _unpack_optimizer(manifest["optimizer"], tensors)
    return parameters


def _policy_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("policy/"): t for name, t in tensors.items() if name.startswith("policy/")}


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Manifest and tensors of a file, or a CheckpointError that says what is wrong with it."""
    name = _name_of(path)
    try:
        if isinstance(path, str | pathlib.Path):
            file = pathlib.Path(path)
            if not file.exists() and file.suffix == "":
                file = file.with_suffix(".zip")
            if not file.is_file():
                raise CheckpointError(f"{file}: no such file")
            with file.open("rb") as opened:
                parts = _parts(opened, name)
        else:
            parts = _parts(path, name)
        manifest = json.loads(parts["manifest.json"], object_pairs_hook=_without_duplicates)
        tensors = load_tensors(parts["tensors.safetensors"])
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{name}: not a Leeward checkpoint, or a damaged one ({type(error).__name__}: {one_line(error)})"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{name}: not a Leeward checkpoint: its manifest does not say {FORMAT!r}")
    written_as = manifest.get("version")
    if written_as not in range(2, VERSION + 1) or isinstance(written_as, bool):
        raise CheckpointError(f"{name}: expected {FORMAT} version {VERSION} or an earlier one, got {written_as!r}")
    if written_as == 2:
        with _nonsense_refused(path):
            _from_version_2(manifest, tensors, name)
    manifest |= {"version": VERSION, "written_as": written_as}
    lacking = [key for key in _ALWAYS_THERE if key not in manifest]
    if lacking:
        raise CheckpointError(f"{name}: a damaged checkpoint: its manifest lacks {', '.join(lacking)}")
    _check_tensors(tensors, name)
    return manifest, tensors


def _parts(file: Any, name: object) -> dict[str, bytes]:
    """The two entries of the zip. Ours are stored as they are: what would expand is refused before it does."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        found = sorted(entry.filename for entry in entries)
        if "manifest.json" not in found and "pytorch_variables.pth" in found:
            raise CheckpointError(
                f"{name}: a file of Stable-Baselines3, which holds pickles and is not read; "
                "train with Leeward, or load it with the class that wrote it"
            )
        if found != sorted(_PARTS):
            shown = ", ".join(repr(each) for each in found[:5])
            raise CheckpointError(f"{name}: not a Leeward checkpoint: it holds {shown}, not one each of {_PARTS}")
        length = file.seek(0, io.SEEK_END)
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise CheckpointError(f"{name}: {entry.filename} is compressed; Leeward's are not, zip it with -0")
            if entry.file_size > length or (entry.filename == "manifest.json" and entry.file_size > _LARGEST_MANIFEST):
                raise CheckpointError(f"{name}: {entry.filename} says that it has {entry.file_size:,} bytes")
        return {part: archive.read(part) for part in _PARTS}


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key stands twice in the manifest")
    return values


def _check_tensors(tensors: dict[str, Tensor], name: object) -> None:
    """Weights and moments are finite numbers: nothing of ours writes others, and what they predict would be none."""
    for key, tensor in tensors.items():
        if not key.startswith(("policy/", "optimizer/", "vgs/")):
            continue
        if tensor.is_complex() or (tensor.is_floating_point() and tensor.itemsize < 2):  # of which torch knows no NaN
            raise CheckpointError(f"{name}: {key} is of {tensor.dtype}, which no network of ours has")
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{name}: {key} holds what is not a finite number; take an older checkpoint")


def _from_version_2(manifest: dict[str, Any], tensors: dict[str, Tensor], name: Any) -> None:
    """A file of leeward 0.1.0: critics keep their own unit and levels now, and what SB3 counts is an owner's state."""
    try:
        arguments, state = manifest["arguments"], manifest["state"]
        arguments["stats_window_size"] = manifest.pop("stats_window_size")
        state["finite_guard"] = {"consecutive": state.pop("consecutive_skips")}
        state["counters"], state["episodes"] = manifest.pop("counters"), manifest.pop("episodes")
        kwargs = (arguments.get("policy_kwargs") or {}).get("$dict", [])
        tail_alpha = next((value for key, value in kwargs if key == "tail_alpha"), 0.05)
        kwargs[:] = [pair for pair in kwargs if pair[0] != "tail_alpha"]
        for old, new in (("return", "critic"), ("risk_heads.step", "risk_heads.step_critic")):
            for field in ("mean", "std"):
                if (key := f"policy/{old}_{field}") in tensors:
                    tensors[f"policy/{new}.{field}"] = tensors.pop(key)
        critic, n, levels = (
            arguments.get(key, Settings.model_fields[key].default) for key in ("critic", "n_quantiles", "levels")
        )
        if critic == "quantile":
            tail = levels == "tail"
            _add_levels(tensors, "critic", quantile.tail_levels(n, tail_alpha) if tail else quantile.uniform_levels(n))
        if "policy/risk_heads.step_head.bias" in tensors:
            risks = decode(arguments["risk"], {}, "risk")
            n = len(tensors["policy/risk_heads.step_head.bias"])
            _add_levels(tensors, "risk_heads.step_critic", quantile.tail_levels(n, min(risks[0].alpha, 0.5)))
    except KeyError as error:
        raise CheckpointError(f"{name}: a damaged checkpoint: its manifest lacks {error}") from None


def _add_levels(tensors: dict[str, Tensor], critic: str, grid: tuple[Tensor, Tensor]) -> None:
    for field, values in zip(("levels", "weights"), grid, strict=True):
        tensors[f"policy/{critic}.{field}"] = values.to(torch.float32)


def _write(path: Path, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    # Cloned, because safetensors refuses tensors that share memory, as the two names of a shared extractor do.
    blob = save_tensors({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()})
    buffer, told = io.BytesIO(), json.dumps(manifest, indent=1)
    if len(told) > _LARGEST_MANIFEST:  # ASCII, so that these are its bytes
        raise CheckpointError(
            f"{_name_of(path)}: not written: what it says beside its tensors takes {len(told):,} bytes, and no more "
            f"than {_LARGEST_MANIFEST:,} are read again; outcomes of the last rollouts under risk= take most of it: "
            "use fewer steps a rollout (n_envs × n_steps)"
        )
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", told)
        archive.writestr("tensors.safetensors", blob)
    if not isinstance(path, str | pathlib.Path):
        path.write(buffer.getvalue())
        return
    file = pathlib.Path(path)
    if file.suffix == "":
        file = file.with_suffix(".zip")
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, buffer.getvalue())


def _pack_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> dict[str, Any]:
    state = optimizer.state_dict()
    plain: dict[str, dict[str, Any]] = {}
    for index, entry in state["state"].items():
        plain[str(index)] = {}
        for key, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{index}/{key}"] = value
            else:
                plain[str(index)][key] = encode(value)
    return {"groups": [encode(group) for group in state["param_groups"]], "plain": plain}


def _unpack_optimizer(packed: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {
        int(index): {key: decode(value, {}, key) for key, value in entry.items()}
        for index, entry in packed["plain"].items()
    }
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/", 2)
            state.setdefault(int(index), {})[key] = tensor
    return {"state": state, "param_groups": [decode(group, {}, "optimizer") for group in packed["groups"]]}


def _load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if len(state["param_groups"]) != len(optimizer.param_groups):  # before shapes, which then differ too
        raise _other_groups(f"{len(state['param_groups'])} groups of parameters, not {len(optimizer.param_groups)}")
    for index, entry in state["state"].items():
        parameter = parameters[index] if 0 <= index < len(parameters) else None
        for key, value in entry.items():
            if isinstance(value, Tensor) and not _is_moment_of(value, parameter):
                raise CheckpointError(
                    f"the optimiser's state does not fit: {key} of parameter {index} has shape {tuple(value.shape)} "
                    f"and {value.dtype}, the parameter "
                    f"{None if parameter is None else (tuple(parameter.shape), parameter.dtype)}"
                )
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        raise _other_groups(str(error)) from None


def _other_groups(what: str) -> CheckpointError:
    return CheckpointError(
        f"the optimiser's state does not fit: {what}; a critic_learning_rate makes two groups, None makes one. "
        "Load with what it was saved with, or save with exclude=['policy.optimizer'] to start the optimiser afresh"
    )


def _is_moment_of(value: Tensor, parameter: Tensor | None) -> bool:
    """A count without axes, or one per weight, of its kind; a factored moment has 1 where it is alike along an axis."""
    if parameter is None or value.ndim == 0:
        return parameter is not None
    return (
        value.dtype == parameter.dtype
        and value.ndim == parameter.ndim
        and all(a in (1, b) for a, b in zip(value.shape, parameter.shape, strict=True))
    )


def pack_rng(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The global generators of this process: dropout draws from them, and envs may."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  the env or an extractor may use it
    tensors["rng/torch"] = torch.get_rng_state()
    tensors["rng/numpy"] = torch.as_tensor(np.asarray(keys, dtype=np.int64))
    return {"python": encode(random.getstate()), "numpy": [kind, *rest]}


def unpack_rng(packed: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """What `pack_rng` took, back into the global generators."""
    place = packed["numpy"][1]
    if type(place) is not int or not 0 <= place <= _NUMPY_WORDS:  # NumPy does not look, and would read other memory
        raise CheckpointError(f"rng: NumPy's place is 0 to {_NUMPY_WORDS}, this file holds {place!r:.80}")
    random.setstate(decode(packed["python"], {}, "python"))
    kind, *rest = packed["numpy"]
    np.random.set_state((kind, tensors["rng/numpy"].numpy().astype(np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(tensors["rng/torch"])


def _pack_rngs(packed: Rngs, tensors: dict[str, Tensor]) -> list[dict[str, Any]]:
    for rank, (_, own) in enumerate(packed, start=1):
        tensors |= {f"{name}/{rank}": tensor for name, tensor in own.items()}
    return [plain for plain, _ in packed]


def _unpack_rngs(packed: list[dict[str, Any]], tensors: dict[str, Tensor]) -> Rngs:
    names = ("rng/torch", "rng/numpy")
    return [(plain, {name: tensors[f"{name}/{i}"] for name in names}) for i, plain in enumerate(packed, start=1)]


def _pack_rollout(state: RolloutState, tensors: dict[str, Tensor]) -> dict[str, Any]:
    observation = state.observation
    keys = list(observation) if isinstance(observation, dict) else None
    for key, value in observation.items() if isinstance(observation, dict) else [("", observation)]:
        tensors[f"rollout/observation/{key}"] = torch.as_tensor(np.ascontiguousarray(value))
    tensors["rollout/starts"] = torch.as_tensor(state.starts)
    for i, part in enumerate(state.memory):
        tensors[f"rollout/memory/{i}"] = part
    return {"keys": keys, "memory": len(state.memory)}


def _unpack_rollout(model: "DistributionalPPO", manifest: dict[str, Any], tensors: dict[str, Tensor]) -> RolloutState:
    packed = manifest["rollout"]
    if model.n_envs != manifest["n_envs"]:
        raise CheckpointError(
            f"force_reset=False continues {manifest['n_envs']} envs, but the env given has {model.n_envs}; "
            "pass the same number, or force_reset=True"
        )
    observation: Any = {key: tensors[f"rollout/observation/{key}"].numpy() for key in packed["keys"] or [""]}
    memory = tuple(tensors[f"rollout/memory/{i}"].to(model.device) for i in range(packed["memory"]))
    seen = observation[""] if packed["keys"] is None else observation
    state = RolloutState(seen, tensors["rollout/starts"].numpy(), memory)
    _check_rollout(model, state)
    return state


def _check_rollout(model: "DistributionalPPO", state: RolloutState) -> None:
    """What is taken over has the shapes of what these envs give and this network remembers."""
    assert model.collector is not None and model.env is not None
    space: Any = model.env.observation_space
    parts = space.spaces if isinstance(state.observation, dict) else {"": space}
    seen: Any = state.observation if isinstance(state.observation, dict) else {"": state.observation}
    came = {key: (value.shape, value.dtype) for key, value in seen.items()}
    expected = {key: ((model.n_envs, *each.shape), each.dtype) for key, each in parts.items()}
    kept, fresh = ([tuple(part.shape) for part in memory] for memory in (state.memory, model.collector.memory))
    starts = (state.starts.shape, state.starts.dtype) == ((model.n_envs,), np.dtype(bool))
    if came != expected or kept != fresh or not starts:
        raise CheckpointError(
            f"the rollout of this file does not fit: observations {came}, expected {expected}; memory {kept}, expected "
            f"{fresh}"
        )


def _pack_vecnormalize(env: VecNormalize, tensors: dict[str, Tensor]) -> dict[str, Any]:
    statistics: dict[str, Any] = {"returns": env.ret_rms}
    observations: Any = env.obs_rms if env.norm_obs else {}  # one per key of a Dict space
    if isinstance(observations, dict):
        statistics |= {f"observation/{key}": rms for key, rms in observations.items()}
    else:
        statistics["observation"] = observations
    for name, rms in statistics.items():
        for field in ("mean", "var", "count"):
            tensors[f"vecnormalize/{name}/{field}"] = torch.as_tensor(np.asarray(getattr(rms, field)))
    tensors["vecnormalize/running"] = torch.as_tensor(np.asarray(env.returns))
    return {"names": list(statistics)}


def _unpack_vecnormalize(env: VecNormalize, packed: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    for name in packed["names"]:
        kind, _, key = name.partition("/")
        if kind == "observation" and not env.norm_obs:
            continue
        rms: Any = env.ret_rms if kind == "returns" else env.obs_rms
        if isinstance(rms, dict) != bool(key) or (key and key not in rms):
            raise CheckpointError(
                f"the file holds VecNormalize statistics of {name!r}, which the env given does not normalise"
            )
        rms = rms[key] if key else rms
        for field in ("mean", "var", "count"):
            value = tensors[f"vecnormalize/{name}/{field}"].numpy()
            own = np.asarray(getattr(rms, field))
            if (value.shape, value.dtype) != (own.shape, own.dtype) or not np.isfinite(value).all():
                raise CheckpointError(
                    f"VecNormalize: {field} of {name} has shape {value.shape} and {value.dtype}, expected finite "
                    f"numbers of {own.shape} and {own.dtype}"
                )
            setattr(rms, field, float(value) if field == "count" else value)
    running = tensors["vecnormalize/running"].numpy()
    if running.shape == env.returns.shape:
        env.returns = running


def _refuse_missing(policy_kwargs: Any) -> None:
    for name, value in find_missing(policy_kwargs, "policy_kwargs"):
        raise CheckpointError(
            f"policy_kwargs: {name} is {value.name}, which a file may not name; "
            f"pass it by custom_objects={{{name!r}: ...}}"
        )


def refuse_training(missing: Mapping[str, str]) -> None:
    """Training needs every schedule; predictions do not."""
    if missing:
        names = ", ".join(f"{name} ({value})" for name, value in missing.items())
        raise ArgumentError(
            f"the checkpoint could only name {names}; load it again with custom_objects={{...}} to train"
        )
