"""Save and load: one zip of `tensors.safetensors` and `manifest.json`. Nothing is pickled or unpickled.

A save between two updates is exact: load, continue, and every number is the one an uninterrupted run would have had. A
save from inside a rollout (SB3's callbacks do that) resumes at the next rollout, and its manifest says `exact: false`.
So does a save of a run with n_jobs whose envs, in the other processes, cannot give their state.
"""

import io
import json
import os
import pathlib
import random
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import stable_baselines3
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.utils import check_for_correct_spaces, get_system_info
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

import leeward
from leeward.algorithm.manifest import Missing, decode, decode_space, encode, encode_space, find_missing
from leeward.algorithm.return_scale import ReturnScale
from leeward.errors import ArgumentError, CheckpointError
from leeward.rollout.standing import Standing

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = [
    "ARGUMENTS",
    "load",
    "pack_rng",
    "read_checkpoint",
    "refuse_training",
    "restore",
    "save",
    "set_parameters",
    "unpack_rng",
]

Model = TypeVar("Model", bound="DistributionalPPO")
FORMAT, VERSION = "leeward-checkpoint", 2
Path = str | pathlib.Path | io.BufferedIOBase
Rngs = list[tuple[dict[str, Any], dict[str, Tensor]]]  # of the processes after the first: what `pack_rng` gives

ARGUMENTS = (
    "learning_rate", "n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range", "clip_range_vf",
    "normalize_advantage", "ent_coef", "vf_coef", "max_grad_norm", "use_sde", "sde_sample_freq", "target_kl",
    "tensorboard_log", "policy_kwargs", "verbose", "seed", "critic", "n_quantiles", "levels", "n_atoms", "kappa",
    "twin_critics", "value_targets", "n_target_samples", "sequence_length", "burn_in", "refresh_memory",
    "micro_batch_size", "action_distribution", "max_consecutive_skips", "value_clip", "entropy", "kl_penalty", "awr",
    "critic_learning_rate", "vgs", "risk", "adversary", "n_jobs",
)  # fmt: skip
_ALWAYS_THERE = ("exact", "policy", "arguments", "stats_window_size", "observation_space", "action_space", "n_envs",
                 "counters", "state", "episodes", "extra")  # fmt: skip
# What zipfile, json and safetensors raise on a file that is damaged or is something else.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, KeyError, UnicodeDecodeError, json.JSONDecodeError, SafetensorError,
               EOFError, NotImplementedError, RuntimeError, OSError)  # fmt: skip
_COUNTERS = ("num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "_n_updates", "_episode_num", "n_rollouts",
             "_current_progress_remaining", "stream_seed")  # fmt: skip


def save(
    model: "DistributionalPPO", path: Path, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
) -> None:
    """Write the model to `path` (`.zip` is appended as SB3 does) or a file object, atomically.

    `exclude` leaves out constructor arguments (their defaults apply on load), or the sections `policy.optimizer`, `rng`
    and `rollout`; `include` names further attributes of the model that are plain data.
    """
    left_out = set(exclude or ()) - set(include or ())
    tensors: dict[str, Tensor] = {f"policy/{name}": value for name, value in model.policy.state_dict().items()}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "versions": {"leeward": leeward.__version__, "torch": torch.__version__, "numpy": np.__version__,
                     "stable_baselines3": stable_baselines3.__version__, "python": sys.version.split()[0]},
        "exact": model.resumes_exactly,
        "policy": encode(model.policy_class),
        "arguments": {name: _encode_argument(model, name) for name in ARGUMENTS if name not in left_out},
        "stats_window_size": model._stats_window_size,
        "observation_space": encode_space(model.observation_space),
        "action_space": encode_space(model.action_space),
        "n_envs": model.peers.n_envs(model.n_envs),
        "counters": {name: getattr(model, name) for name in _COUNTERS},
        "state": model.state(),
        "episodes": {"info": _plain(model.ep_info_buffer), "success": _plain(model.ep_success_buffer)},
        "extra": {name: encode(getattr(model, name)) for name in include or () if name not in ARGUMENTS},
    }  # fmt: skip
    if "policy.optimizer" not in left_out:
        manifest["optimizer"] = _pack_optimizer(model.policy.optimizer, tensors)
    if model.variance_scaler is not None:
        tensors |= {f"vgs/{name}": value for name, value in model.variance_scaler.state_dict().items()}
    if "rng" not in left_out:
        manifest["rng"] = pack_rng(tensors)
        manifest["rng_of_jobs"] = _pack_rngs(model.rng_of_jobs(), tensors)
    standing = None if "rollout" in left_out else model.standing()
    if standing is not None:
        manifest["rollout"] = _pack_rollout(standing, tensors)
    if isinstance(model._vec_normalize_env, VecNormalize):
        manifest["vecnormalize"] = _pack_vecnormalize(model._vec_normalize_env, tensors)
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
    arguments = {name: decode(value, custom, name) for name, value in manifest["arguments"].items()}
    arguments |= {name: custom[name] for name in custom if name in ARGUMENTS} | kwargs
    policy = decode(manifest["policy"], custom, "policy_class")
    if isinstance(policy, Missing):
        raise CheckpointError(
            f"the policy class {policy.name} is not ours; pass custom_objects={{'policy_class': ...}}"
        )
    missing = {name: value.name for name, value in arguments.items() if isinstance(value, Missing)}
    # A schedule that could only be named is replaced by a constant: predictions do not need it, training asks for it.
    arguments |= dict.fromkeys(missing, 0.1)
    _refuse_missing(arguments.get("policy_kwargs", {}))
    model = cls(
        policy,
        None,
        device=device,
        stats_window_size=manifest["stats_window_size"],
        _init_setup_model=False,
        **arguments,
    )
    model.missing_arguments = missing
    model.observation_space = custom.get("observation_space") or decode_space(manifest["observation_space"])
    model.action_space = custom.get("action_space") or decode_space(manifest["action_space"])
    model.n_envs = manifest["n_envs"]
    if env is not None:
        wrapped = cls._wrap_env(env, model.verbose)
        check_for_correct_spaces(wrapped, model.observation_space, model.action_space)
        model.env, model.n_envs = wrapped, wrapped.num_envs
        model._vec_normalize_env = stable_baselines3.common.vec_env.unwrap_vec_normalize(wrapped)
    model._setup_model()
    restore(model, manifest, tensors)
    for name, value in manifest["extra"].items():
        setattr(model, name, decode(value, custom, name))
    if "vecnormalize" in manifest and isinstance(model._vec_normalize_env, VecNormalize):
        _unpack_vecnormalize(model._vec_normalize_env, manifest["vecnormalize"], tensors)
    if not force_reset and model.collector is not None and "rollout" in manifest:
        _unpack_rollout(model, manifest, tensors)
        if "rng" in manifest:
            unpack_rng(manifest["rng"], tensors)
            model.saved_rng_of_jobs = _unpack_rngs(manifest.get("rng_of_jobs", []), tensors)
    return model


def restore(model: "DistributionalPPO", manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Everything training has learned and counted, into a model with the same arguments; envs and randomness stay."""
    try:
        model.policy.load_state_dict(_policy_tensors(tensors))
    except RuntimeError as error:
        raise CheckpointError(f"the weights do not fit the network that the arguments describe: {error}") from None
    for name in _COUNTERS:
        setattr(model, name, manifest["counters"][name])
    model.load_state(manifest["state"])
    model.ep_info_buffer = _deque(manifest["episodes"]["info"], model._stats_window_size)
    model.ep_success_buffer = _deque(manifest["episodes"]["success"], model._stats_window_size)
    if "optimizer" in manifest:
        _load_optimizer(model.policy.optimizer, _unpack_optimizer(manifest["optimizer"], tensors))
    scaling = {name.removeprefix("vgs/"): tensor for name, tensor in tensors.items() if name.startswith("vgs/")}
    if scaling and model.variance_scaler is not None:
        model.variance_scaler.load_state_dict(scaling)


def set_parameters(
    model: "DistributionalPPO",
    load_path_or_dict: Any,
    exact_match: bool = True,
    device: torch.device | str = "auto",
) -> None:
    """Weights and optimiser from a checkpoint of ours, or from what `get_parameters` returned."""
    if not isinstance(load_path_or_dict, dict):
        manifest, tensors = read_checkpoint(load_path_or_dict)
        load_path_or_dict = {"policy": _policy_tensors(tensors)}
        if "optimizer" in manifest:
            load_path_or_dict["policy.optimizer"] = _unpack_optimizer(manifest["optimizer"], tensors)
    BaseAlgorithm.set_parameters(model, load_path_or_dict, exact_match, device)
    _adopt_scale(model)


def _adopt_scale(model: "DistributionalPPO") -> None:
    """The units of the heads came with their weights; the statistics of returns and costs go on from them."""
    units = [(model.critic_scale.returns, float(model.policy.return_mean), float(model.policy.return_std))]
    if model.risk_control is not None:
        units += model.risk_control.units()
    for scale, mean, std in units:
        if std == 0.0:  # weights that have not seen a rollout
            scale.load_state_dict(ReturnScale().state_dict())
        elif (mean, std) != (scale.mean, scale.std):
            scale.load_state_dict({"rollouts": max(scale.rollouts, 1), "mean": mean, "variance": std * std, "std": std})


def _policy_tensors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("policy/"): t for name, t in tensors.items() if name.startswith("policy/")}


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Manifest and tensors of a file, or a CheckpointError that says what is wrong with it."""
    name = path if isinstance(path, str | pathlib.Path) else "<file object>"
    if isinstance(path, str | pathlib.Path):
        file = pathlib.Path(path)
        if not file.exists() and file.suffix == "":
            file = file.with_suffix(".zip")
        if not file.is_file():
            raise CheckpointError(f"{file}: no such file")
        path = io.BytesIO(file.read_bytes())
    try:
        with zipfile.ZipFile(path) as archive:
            if "manifest.json" not in archive.namelist() and "pytorch_variables.pth" in archive.namelist():
                raise CheckpointError(
                    f"{name}: a file of Stable-Baselines3, which holds pickles and is not read; "
                    "train with Leeward, or load it with the class that wrote it"
                )
            manifest = json.loads(archive.read("manifest.json"))
            tensors = load_tensors(archive.read("tensors.safetensors"))
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{name}: not a Leeward checkpoint, or a damaged one ({type(error).__name__}: {error})"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{name}: not a Leeward checkpoint: its manifest does not say {FORMAT!r}")
    if manifest.get("version") != VERSION:
        raise CheckpointError(f"{name}: expected {FORMAT} version {VERSION}, got {manifest.get('version')!r}")
    lacking = [key for key in _ALWAYS_THERE if key not in manifest]
    if lacking:
        raise CheckpointError(f"{name}: a damaged checkpoint: its manifest lacks {', '.join(lacking)}")
    return manifest, tensors


def _write(path: Path, manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    # Cloned, because safetensors refuses tensors that share memory, as the two names of a shared extractor do.
    blob = save_tensors({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()})
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest, indent=1))
        archive.writestr("tensors.safetensors", blob)
    if not isinstance(path, str | pathlib.Path):
        path.write(buffer.getvalue())
        return
    file = pathlib.Path(path)
    if file.suffix == "":
        file = file.with_suffix(".zip")
    file.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target and of the user's own mode; the old file stays whole until the new one is on the disk.
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as out:
            out.write(buffer.getvalue())
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


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
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        raise CheckpointError(
            f"the optimiser's state does not fit: {error}; a critic_learning_rate makes two groups, None makes one. "
            "Load with what it was saved with, or save with exclude=['policy.optimizer'] to start the optimiser afresh"
        ) from None


def pack_rng(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The global generators of this process: dropout draws from them, and envs may."""
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  the env or an extractor may use it
    tensors["rng/torch"] = torch.get_rng_state()
    tensors["rng/numpy"] = torch.as_tensor(np.asarray(keys, dtype=np.int64))
    return {"python": encode(random.getstate()), "numpy": [kind, *rest]}


def unpack_rng(packed: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """What `pack_rng` took, back into the global generators."""
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


def _pack_rollout(standing: Standing, tensors: dict[str, Tensor]) -> dict[str, Any]:
    observation = standing.observation
    keys = list(observation) if isinstance(observation, dict) else None
    for key, value in observation.items() if isinstance(observation, dict) else [("", observation)]:
        tensors[f"rollout/observation/{key}"] = torch.as_tensor(np.ascontiguousarray(value))
    tensors["rollout/starts"] = torch.as_tensor(standing.starts)
    for i, part in enumerate(standing.memory):
        tensors[f"rollout/memory/{i}"] = part
    return {"keys": keys, "memory": len(standing.memory)}


def _unpack_rollout(model: "DistributionalPPO", manifest: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    packed, collector = manifest["rollout"], model.collector
    assert collector is not None
    if model.n_envs != manifest["n_envs"]:
        raise CheckpointError(
            f"force_reset=False continues {manifest['n_envs']} envs, but the env given has {model.n_envs}; "
            "pass the same number, or force_reset=True"
        )
    if packed["keys"] is None:
        collector.observation = tensors["rollout/observation/"].numpy()
    else:
        collector.observation = {key: tensors[f"rollout/observation/{key}"].numpy() for key in packed["keys"]}
    collector.starts = tensors["rollout/starts"].numpy()
    collector.memory = tuple(tensors[f"rollout/memory/{i}"].to(model.device) for i in range(packed["memory"]))
    model._last_obs = collector.observation
    model._last_episode_starts = collector.starts


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


def _plain(values: Any) -> list[Any] | None:
    return None if values is None else [encode(value) for value in values]


def _deque(values: list[Any] | None, size: int) -> Any:
    return None if values is None else deque((decode(value, {}, "episodes") for value in values), maxlen=size)


def refuse_training(missing: Mapping[str, str]) -> None:
    """Training needs every schedule; predictions do not."""
    if missing:
        names = ", ".join(f"{name} ({value})" for name, value in missing.items())
        raise ArgumentError(
            f"the checkpoint could only name {names}; load it again with custom_objects={{...}} to train"
        )
