"""Python values as JSON and back, without pickle: classes by name, from an allow-list of modules that are loaded.

Reading a file imports nothing: a folder called `sb3_contrib` beside it would else run. A value that has no importable
name (a closure, a lambda) becomes `{"$missing": ...}`: it never stops a save, and whoever loads the file is told its
name when it is needed.
"""

import math
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule, LinearSchedule

from leeward.config.base import Frozen
from leeward.errors import CheckpointError

__all__ = ["ALLOWED", "Missing", "check_kind", "decode", "decode_space", "encode", "encode_space", "find_missing"]

# Where a class may come from when a file names it, and what it must be. Everything a file names is later called, with
# arguments that stand in the same file, so anything else must come through `custom_objects`.
ALLOWED = ("torch.nn.modules", "torch.optim", "stable_baselines3", "sb3_contrib", "leeward")
_KINDS = (torch.nn.Module, torch.optim.Optimizer)
_LARGEST_SPACE = 1 << 24  # numbers of an observation or action: a file gives the shape alone, and the bounds are made


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
    if isinstance(value, pathlib.PurePath):
        return str(value)
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
        return _config(value["$config"], value["values"])
    if "$schedule" in value:
        return {"constant": ConstantSchedule, "linear": LinearSchedule}[value["$schedule"]](*value["values"])
    if "$name" in value:
        name: str = value["$name"]
        for alias in (key, name, name.rpartition(":")[2]):
            if alias in custom:
                return custom[alias]
        found = _find(name)
        return found if isinstance(found, type) and issubclass(found, _KINDS) else Missing(name)
    if "$missing" in value:
        return custom[key] if key in custom else Missing(value["$missing"])
    raise CheckpointError(f"{key}: this file holds {value!r}, which this version of Leeward does not know")


def find_missing(value: Any, path: str) -> Iterator[tuple[str, Missing]]:
    """Everything inside a decoded value that the file could only name, with the key it stands under."""
    if isinstance(value, Missing):
        yield path, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from find_missing(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from find_missing(each, path)


def _name(value: Any) -> str | None:
    """`module:qualname`, if that leads to this very object in a module that is loaded; saving imports nothing."""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or "<" in qualname:
        return None
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return f"{module}:{qualname}" if found is value else None


def _find(name: Any) -> Any:
    """What a file names, or None if it may not name that.

    Only a thing that is *defined* under this name counts: without that, a name could lead through a module of the list
    to whatever that module itself has imported. Nothing is imported, which `getattr` of a module could do.
    """
    if not isinstance(name, str):
        return None
    module, _, qualname = name.partition(":")
    if not f"{module}.".startswith(tuple(f"{allowed}." for allowed in ALLOWED)):
        return None
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = vars(found).get(part) if hasattr(found, "__dict__") else None
    return found if isinstance(found, type) and _name(found) == name else None


def _config(name: str, values: Any) -> Frozen:
    found = _find(name)
    if not (isinstance(found, type) and issubclass(found, Frozen)):
        raise CheckpointError(f"{name} is not a config of this version of Leeward")
    return found.read(values, where=name)


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
            "low": bounds[0].tolist(),
            "high": bounds[1].tolist(),
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


def decode_space(data: dict[str, Any], room: int = _LARGEST_SPACE) -> spaces.Space[Any]:
    """The space back, if it has no more numbers than there is `room` for; the parts of a Dict share it."""
    kind = data["kind"]
    if kind == "Box":
        dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
        if dtype.kind not in "biuf" or not all(type(n) is int and n >= 0 for n in shape):
            raise CheckpointError(f"this file holds a Box of {dtype} and shape {shape}; expected numbers and sizes")
        if math.prod(shape) > room:
            raise CheckpointError(f"this file holds a Box of shape {shape}, more than {_LARGEST_SPACE:,} numbers")
        low, high = (np.array(data[k], dtype=dtype) for k in ("low", "high"))
        if len(low) == 1:
            return spaces.Box(np.full(shape, low[0], dtype), np.full(shape, high[0], dtype), dtype=dtype.type)
        return spaces.Box(low.reshape(shape), high.reshape(shape), dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], start=data["start"])
    if kind == "MultiBinary":
        if math.prod(np.ravel(data["n"]).tolist()) > room:
            raise CheckpointError(f"this file holds a MultiBinary of {data['n']}, more than {_LARGEST_SPACE:,} numbers")
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        parts = {}
        for key, each in data["spaces"]:
            parts[key] = decode_space(each, room)
            room -= _n_numbers(parts[key])
        return spaces.Dict(parts)
    raise CheckpointError(f"this file holds a space of kind {kind!r}, which this version of Leeward does not know")


def _n_numbers(space: spaces.Space[Any]) -> int:
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else ()
    return sum(map(_n_numbers, parts)) + math.prod(space.shape or ())


def check_kind(where: str, ours: Any, saved: Any) -> None:
    """A state of a file has the kinds of values that its owner's has: numbers, texts, lists, keys; None is not known.

    Which keys there must be is the owner's to say, who may know files of earlier versions.
    """
    if saved is None:
        return
    if ours is None:
        fits = not isinstance(saved, bool | str)
    elif isinstance(ours, bool | str | list | dict):
        fits = isinstance(saved, type(ours))
    else:
        fits = _is_number(saved)
    if not fits:
        raise CheckpointError(f"{where}: expected a value like {ours!r:.80}, this file holds {saved!r:.80}")
    if isinstance(ours, dict):
        for key in ours.keys() & saved.keys():
            check_kind(f"{where}.{key}", ours[key], saved[key])
    elif isinstance(ours, list) and ours and all(isinstance(each, dict) or _is_number(each) for each in ours):
        for value in saved:
            check_kind(where, ours[0], value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
