"""What every config model shares: frozen, no unknown keys, and one readable error."""

from collections.abc import Iterator, Mapping
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from leeward.errors import ConfigError, did_you_mean

__all__ = ["Frozen"]


class Frozen(BaseModel):
    """A config model: immutable, strict about keys, finite numbers only. *Off* is `None`, never 0, −1 or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

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
