"""One checkpoint of a run: the model's own file, the env's state, and what the trainer must remember.

A directory is written beside its place and renamed into it, so that what is there is whole even after kill -9.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from leeward.algorithm.ppo import DistributionalPPO
from leeward.env.sb3 import TradingVecEnv

__all__ = ["load_model", "read_trainer_state", "restore_env", "write_checkpoint"]


def write_checkpoint(place: Path, model: DistributionalPPO, trainer: dict[str, Any]) -> None:
    """`place`/model.zip, env.safetensors, state.json."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    model.save(temporary / "model.zip")
    state = model.env_state()
    arrays = {key: np.ascontiguousarray(value) for key, value in state.items() if isinstance(value, np.ndarray)}
    save_file(arrays, temporary / "env.safetensors")
    plain = {key: value for key, value in state.items() if key not in arrays}
    (temporary / "state.json").write_text(json.dumps({"env": plain, "trainer": trainer}, indent=1), encoding="utf-8")
    old = place.with_name(f".{place.name}.old")
    if place.exists():
        os.replace(place, old)
    os.replace(temporary, place)
    shutil.rmtree(old, ignore_errors=True)


def load_model(place: Path, env: TradingVecEnv | None = None) -> DistributionalPPO:
    """The model, to predict with (no env) or to go on training where it stopped."""
    return DistributionalPPO.load(place / "model.zip", env=env, force_reset=env is None)


def restore_env(place: Path, env: TradingVecEnv) -> None:
    state = json.loads((place / "state.json").read_text(encoding="utf-8"))
    env.load_state_dict(load_file(place / "env.safetensors") | state["env"])


def read_trainer_state(place: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((place / "state.json").read_text(encoding="utf-8"))["trainer"]
    return state
