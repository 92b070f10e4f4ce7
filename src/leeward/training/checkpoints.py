"""One checkpoint of a run: the model's own file, the env's state, and what the trainer must remember.

A directory is written beside its place and renamed into it, so that what is there is whole even after kill -9; and it
holds the SHA-256 of its files, so that one that is damaged later is not taken for a good one.
"""

import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.algorithm.ppo import DistributionalPPO
from leeward.durable import SUMS, read_checked, sums_of, write_folder
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import CheckpointError
from leeward.training.trade_metrics import Score

__all__ = [
    "check",
    "load_model",
    "model_file",
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
    state = model.processes.env_state()
    arrays = {key: np.ascontiguousarray(value) for key, value in state.items() if isinstance(value, np.ndarray)}
    plain = {key: value for key, value in state.items() if key not in arrays}
    rest = json.dumps({"env": plain, "trainer": trainer}, indent=1).encode()
    write_folder(place, {_MODEL: file.getvalue(), _ENV: save(arrays), _STATE: rest})


def model_file(place: Path) -> Path:
    """The model's own file of a checkpoint."""
    return place / _MODEL


def load_model(place: Path, env: TradingVecEnv | None = None) -> DistributionalPPO:
    """The model, to predict with (no env) or to go on training where it stopped."""
    check(place)
    return DistributionalPPO.load(place / _MODEL, env=env, force_reset=env is None)


def check(place: Path) -> None:
    """Every file of a checkpoint is what was written, or an error that names the one that is not."""
    for name in (_MODEL, _ENV, _STATE):
        read_checked(place / name)
    if sums_of(place) is None and read_checkpoint(place / _MODEL)[0]["written_as"] >= _SUMS_SINCE:
        raise CheckpointError(f"{place / SUMS}: missing; take an older checkpoint, or a copy")


def read_steps(place: Path) -> int:
    """Env steps that a checkpoint has behind it."""
    return int(read_checkpoint(place / _MODEL)[0]["state"]["counters"]["num_timesteps"])


def take_weights(model: DistributionalPPO, place: Path) -> None:
    """Begin with the weights of another checkpoint: its networks, its critics' unit and its normaliser."""
    try:
        model.policy.load_state_dict(load_model(place).policy.state_dict())
    except RuntimeError as error:
        raise CheckpointError(
            f"{place}: its network is another one ({' '.join(str(error).split())[:200]}); keep policy, features and "
            "assets as they were"
        ) from None


def restore_env(place: Path, env: TradingVecEnv) -> None:
    """The env goes on where it was when the checkpoint was written."""
    plain = _state(place).get("env")
    if not isinstance(plain, dict):
        raise CheckpointError(f"{place / _STATE}: env must be an object, got {plain!r:.80}; take an older checkpoint")
    try:
        arrays = load(read_checked(place / _ENV))
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{place / _ENV}: damaged ({error}); take an older checkpoint") from None
    env.load_state_dict(arrays | plain)


def read_trainer_state(place: Path) -> dict[str, Any]:
    """How many updates there were, and which was the best."""
    state = _state(place).get("trainer")
    if not isinstance(state, dict) or not _is_count(state.get("updates")) or not _is_best(state.get("best")):
        raise CheckpointError(f"{place / _STATE}: trainer holds {state!r:.80}; take an older checkpoint")
    return state


def _state(place: Path) -> dict[str, Any]:
    path = place / _STATE
    try:
        state = json.loads(read_checked(path))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged, not JSON ({error}); take an older checkpoint") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: damaged, expected an object; take an older checkpoint")
    return state


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_best(value: Any) -> bool:
    if value is None:
        return True
    names = {field.name for field in fields(Score)}
    score = value.get("score") if isinstance(value, dict) else None
    return (
        isinstance(score, dict) and score.keys() == names and all(type(each) in (int, float) for each in score.values())
    )
