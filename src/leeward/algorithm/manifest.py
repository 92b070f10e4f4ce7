"""Python values as JSON and back, without pickle: classes and schedules by importable name, from an allow-list.

A value that has no importable name (a closure, a lambda) becomes `{"$missing": ...}`: it never stops a save, and
whoever loads the file is told its name when it is needed.
"""

import importlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces
from pydantic import BaseModel
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from leeward.errors import CheckpointError

__all__ = ["ALLOWED", "Missing", "decode", "decode_space", "encode", "encode_space"]

# Roots a class may be imported from when a file names it; anything else must come through `custom_objects`.
ALLOWED = ("torch", "stable_baselines3", "sb3_contrib", "leeward", "gymnasium")


class Missing:
    """Stands for something that a file could only name."""

    def __init__(self, name: str) -> None:
        self.name = name


def encode(value: Any) -> Any:
    """JSON for numbers, strings, None, lists, tuples, dicts, config models, classes and schedules."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return {"$tuple": [encode(v) for v in value]} if isinstance(value, tuple) else [encode(v) for v in value]
    if isinstance(value, Mapping):
        return {"$dict": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, BaseModel):
        return {"$config": _name(type(value)), "values": value.model_dump(mode="json")}
    if isinstance(value, FloatSchedule):
        return encode(value.value_schedule)
    if isinstance(value, ConstantSchedule):
        return {"$schedule": "constant", "values": [value.val]}
    if isinstance(value, LinearSchedule):
        return {"$schedule": "linear", "values": [value.start, value.end, value.end_fraction]}
    name = _name(value)
    return {"$name": name} if name is not None else {"$missing": repr(value)}


def decode(value: Any, custom: Mapping[str, Any], key: str) -> Any:
    """The value back; `custom` overrides by argument name, and supplies what the allow-list does not."""
    if isinstance(value, list):
        return [decode(v, custom, key) for v in value]
    if not isinstance(value, dict):
        return value
    if "$tuple" in value:
        return tuple(decode(v, custom, key) for v in value["$tuple"])
    if "$dict" in value:
        return {decode(k, custom, key): decode(v, custom, str(k)) for k, v in value["$dict"]}
    if "$config" in value:
        return cast(type[BaseModel], _import(value["$config"])).model_validate(value["values"])
    if "$schedule" in value:
        return {"constant": ConstantSchedule, "linear": LinearSchedule}[value["$schedule"]](*value["values"])
    if "$name" in value:
        name: str = value["$name"]
        for alias in (key, name, name.rpartition(":")[2]):
            if alias in custom:
                return custom[alias]
        return _import(name) if name.split(".")[0].split(":")[0] in ALLOWED else Missing(name)
    if "$missing" in value:
        return custom[key] if key in custom else Missing(value["$missing"])
    raise CheckpointError(f"{key}: this file holds {value!r}, which this version of Leeward does not know")


def _name(value: Any) -> str | None:
    """`module:qualname`, if importing that gives this very object."""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        return None
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return f"{module}:{qualname}" if found is value else None


def _import(name: str) -> Any:
    module, _, qualname = name.partition(":")
    if module.split(".")[0] not in ALLOWED:
        raise CheckpointError(f"{name} is not on the list of importable classes {ALLOWED}; pass it by custom_objects=")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not isinstance(found, type):
        raise CheckpointError(f"{name} is not a class; a checkpoint may only name classes. Pass it by custom_objects=")
    return found


def encode_space(space: spaces.Space[Any]) -> dict[str, Any]:
    """A gymnasium space, exactly: bounds keep their dtype."""
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
        same = low.size > 0 and bool((low == low.flat[0]).all() and (high == high.flat[0]).all())
        bounds = (low.flat[:1], high.flat[:1]) if same else (low.ravel(), high.ravel())
        return {
            "kind": "Box",
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": [float(x) for x in bounds[0]],
            "high": [float(x) for x in bounds[1]],
        }
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.shape)}
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": [[key, encode_space(each)] for key, each in space.spaces.items()]}
    raise CheckpointError(
        f"cannot describe the space {space} in a checkpoint; known: Box, Discrete, MultiDiscrete, MultiBinary, Dict"
    )


def decode_space(data: dict[str, Any]) -> spaces.Space[Any]:
    kind = data["kind"]
    if kind == "Box":
        dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
        low, high = (
            np.broadcast_to(np.array(data[k]), shape) if len(data[k]) == 1 else np.array(data[k]).reshape(shape)
            for k in ("low", "high")
        )
        return spaces.Box(low.astype(dtype), high.astype(dtype), dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], start=data["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        return spaces.Dict({key: decode_space(each) for key, each in data["spaces"]})
    raise CheckpointError(f"this file holds a space of kind {kind!r}, which this version of Leeward does not know")
