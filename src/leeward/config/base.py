"""What every config model shares: frozen, no unknown keys, and one readable error."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Self, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from leeward.errors import ConfigError, did_you_mean

__all__ = ["Frozen"]

_LARGEST = 1e12


class Frozen(BaseModel):
    """A config model: immutable, strict about keys, finite numbers only. *Off* is `None`, never 0, −1 or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _plain_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        """NumPy's numbers are numbers; `true` is none, though Python counts with it, and neither is the text "1"."""
        plain = value.item() if isinstance(value, np.generic) else value
        name = str(info.field_name)
        numbers = plain if not _takes_numbers_alone(cls, name) else [*_flat(plain)]
        if _holds_bool(numbers) and not _takes_bool(cls, name):
            raise ValueError(f"expected a number or a text, got {_short(plain)}; true and false are neither")
        if _holds_text(plain) and _takes_numbers_alone(cls, name):
            raise ValueError(f"expected a number without quotes, got the text {_short(plain)}")
        if cls.model_fields[name].annotation is bool and not isinstance(plain, bool):
            raise ValueError(f"expected true or false, got {_short(plain)}")
        return plain

    @field_validator("*", mode="after")
    @classmethod
    def _no_absurd_numbers(cls, value: Any) -> Any:
        """What is that large was a slip of the pen, and would overflow or fill the memory much later."""
        parts = value if isinstance(value, tuple) else (value,)
        if any(isinstance(part, int | float) and abs(part) > _LARGEST for part in parts):
            raise ValueError(f"expected numbers of at most {_LARGEST:g}, got {_short(value)}")
        return value

    @classmethod
    def read(cls, values: Mapping[str, Any], *, where: str) -> Self:
        """Validate `values`, or raise a ConfigError with one line per problem; `where` names the source."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{where}: expected keys and values, got {type(values).__name__} {_short(values)}")
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            lines = [_line(cls, problem) for problem in error.errors()]
            raise ConfigError("\n".join(f"{where}: {line}" for line in lines)) from None


def _holds_bool(value: Any) -> bool:
    return isinstance(value, bool) or (isinstance(value, list | tuple) and any(map(_holds_bool, value)))


def _flat(value: Any) -> Iterator[Any]:
    """A value, or what a dict has in it at any depth, keys included."""
    for part in (*value, *value.values()) if isinstance(value, Mapping) else ():
        yield from _flat(part)
    if not isinstance(value, Mapping):
        yield value


def _holds_text(value: Any) -> bool:
    """Among the values, not the keys."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, str | bytes) or any(map(_holds_text, parts))


@cache
def _takes_numbers_alone(model: type[BaseModel], field: str) -> bool:
    values = model.model_fields[field].annotation
    while get_origin(values) is dict:
        values = get_args(values)[1]
    leaves = _leaves(values) - {type(None), Ellipsis}
    return bool(leaves) and leaves <= {int, float}


@cache
def _takes_bool(model: type[BaseModel], field: str) -> bool:
    return bool in _leaves(model.model_fields[field].annotation)


def _leaves(annotation: Any) -> set[Any]:
    if isinstance(annotation, list):  # the arguments of a callable, which is no number
        return {list}
    parts = get_args(annotation)
    parts = parts[:1] if get_origin(annotation) is Annotated else parts  # a range beside a type is no type
    return {annotation} if not parts else {leaf for part in parts for leaf in _leaves(part)}


def _line(model: type[BaseModel], problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            known = {key for owner in _owners(model, problem["loc"][:-1]) for key in owner.model_fields}
            return f"unknown key {path!r}; {did_you_mean(str(problem['loc'][-1]), known)}"
        case "missing":
            return f"{path}: this key is required"
        case "value_error":  # raised by a validator of ours, whose message already says what came
            message = problem["msg"].removeprefix("Value error, ")
            return f"{path}: {message}" if path else message
        case "int_from_float" | "int_type" | "int_parsing":
            return f"{path}: expected a whole number, got {_short(problem['input'])}"
    return f"{path or 'value'}: {problem['msg']}, got {_short(problem['input'])}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _owners(model: type[BaseModel], path: tuple[int | str, ...]) -> list[type[BaseModel]]:
    """The models that may own a key at the end of `path`, through `X | None`, lists, dicts and unions of models."""
    owners = [model]
    for part in path:
        below = [m for o in owners if part in o.model_fields for m in _models(o.model_fields[str(part)].annotation)]
        named = [owner for owner in owners if owner.__name__ == part]  # pydantic names the member of a union it tried
        # An index of a list or a key of a dict stays with the same models.
        owners = below or named or owners
    return owners


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
