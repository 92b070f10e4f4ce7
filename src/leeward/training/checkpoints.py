"""One checkpoint of a run: the model's own file, the env's state, and what the trainer must remember.

A directory is written beside its place and renamed into it, so that what is there is whole even after kill -9; and it
holds the SHA-256 of its files, so that one that is damaged later is not taken for a good one.
"""

import io
import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from stable_baselines3.common.vec_env import VecEnv

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.algorithm.ppo import DistributionalPPO
from leeward.durable import SUMS, read_folder, read_json, write_folder
from leeward.errors import CheckpointError
from leeward.training.trade_metrics import EpisodeScore, Score

__all__ = [
    "Files",
    "copy_checkpoint",
    "load_model",
    "model_file",
    "newest_steps",
    "read_files",
    "read_steps",
    "read_trainer_state",
    "restore_env",
    "take_weights",
    "write_checkpoint",
]

_MODEL, _ENV, _STATE = "model.zip", "env.safetensors", "state.json"
_SUMS_SINCE = 4  # the format whose directories have sums


def write_checkpoint(place: Path, model: DistributionalPPO, trainer: dict[str, Any]) -> None:
    """`place`/model.zip, env.safetensors, state.json and their sums."""
    file = io.BytesIO()
    model.save(file)
    # Of an env without a state of its own nothing is kept: a run that goes on begins new episodes.
    state = model.processes.env_state() if hasattr(model.env, "state_dict") else {}
    arrays = {key: np.ascontiguousarray(value) for key, value in state.items() if isinstance(value, np.ndarray)}
    plain = {key: value for key, value in state.items() if key not in arrays}
    rest = json.dumps({"env": plain, "trainer": trainer}, indent=1).encode()
    write_folder(place, {_MODEL: file.getvalue(), _ENV: save(arrays), _STATE: rest})


def model_file(place: Path) -> Path:
    """The model's own file of a checkpoint."""
    return place / _MODEL


def copy_checkpoint(source: Path, place: Path) -> None:
    """The same checkpoint at another place, if it is whole."""
    files = read_files(source)
    write_folder(place, {_MODEL: files.model, _ENV: files.env, _STATE: files.state})


class Files(NamedTuple):
    """A checkpoint as it was read, once: what was checked is what is loaded."""

    place: Path
    model: bytes
    env: bytes
    state: bytes


class _Named(io.BytesIO):
    """Bytes that errors call by the name of their file."""

    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__(content)
        self.name = path


def read_files(place: Path) -> Files:
    """Every file of a checkpoint, if it is what was written, or an error that names the one that is not."""
    found, has_sums = read_folder(place, (_MODEL, _ENV, _STATE))
    files = Files(place, found[_MODEL], found[_ENV], found[_STATE])
    if not has_sums and read_checkpoint(_Named(files.model, place / _MODEL))[0]["written_as"] >= _SUMS_SINCE:
        raise CheckpointError(f"{place / SUMS}: missing; take an older checkpoint, or a copy")
    return files


def load_model(place: Path | Files, env: VecEnv | None = None, *, anew: bool = False) -> DistributionalPPO:
    """The model, to predict with (no env) or to go on training: where it stopped, or `anew` with new episodes."""
    files = _files(place)
    return DistributionalPPO.load(_Named(files.model, files.place / _MODEL), env=env, force_reset=anew or env is None)


def read_steps(place: Path) -> int:
    """Env steps that a checkpoint has behind it."""
    files = read_files(place)
    state = read_checkpoint(_Named(files.model, place / _MODEL))[0]["state"]
    counters = state.get("counters") if isinstance(state, dict) else None
    steps = counters.get("num_timesteps") if isinstance(counters, dict) else None
    if type(steps) is not int or steps < 0:
        raise CheckpointError(f"{place / _MODEL}: counters hold {steps!r:.80} steps; take an older checkpoint")
    return steps


def newest_steps(places: Iterable[Path]) -> int:
    """Env steps behind the newest checkpoint that is whole, of these from the oldest on; 0 without one."""
    for place in reversed(list(places)):
        try:
            return read_steps(place)
        except CheckpointError:
            continue  # training names it, and passes it over too
    return 0


def take_weights(model: DistributionalPPO, place: Path) -> None:
    """Begin with the weights of another checkpoint: its networks, its critics' unit and its normaliser."""
    try:
        model.policy.load_state_dict(load_model(place).policy.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            f"{place}: its network is another one ({' '.join(str(error).split())[:200]}); keep policy, features and "
            "assets as they were"
        ) from None


def restore_env(place: Path | Files, env: Any) -> None:
    """The env, which has a state, goes on where it was when the checkpoint was written."""
    files = _files(place)
    plain = _state(files).get("env")
    if not isinstance(plain, dict):
        path = files.place / _STATE
        raise CheckpointError(f"{path}: env must be an object, got {plain!r:.80}; take an older checkpoint")
    try:
        arrays = load(files.env)
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{files.place / _ENV}: damaged ({error}); take an older checkpoint") from None
    env.load_state_dict(arrays | plain)


def read_trainer_state(place: Path | Files) -> dict[str, Any]:
    """How many updates there were, and which was the best."""
    files = _files(place)
    state = _state(files).get("trainer")
    if not isinstance(state, dict) or not _is_count(state.get("updates")) or not _is_best(state.get("best")):
        raise CheckpointError(f"{files.place / _STATE}: trainer holds {state!r:.80}; take an older checkpoint")
    return state


def _files(place: Path | Files) -> Files:
    return place if isinstance(place, Files) else read_files(place)


def _state(files: Files) -> dict[str, Any]:
    return read_json(files.place / _STATE, files.state)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_best(value: Any) -> bool:
    if value is None:
        return True
    kinds = [{field.name for field in fields(kind)} for kind in (Score, EpisodeScore)]
    score = value.get("score") if isinstance(value, dict) else None
    return (
        isinstance(score, dict) and score.keys() in kinds and all(type(each) in (int, float) for each in score.values())
    )
