"""What every config model shares: frozen, no unknown keys, and one readable error."""

from collections.abc import Mapping
from typing import Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from leeward.errors import ConfigError, did_you_mean

__all__ = ["Frozen"]


class Frozen(BaseModel):
    """A config model: immutable, strict about keys. *Off* is `None`, never 0 or −1."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, arbitrary_types_allowed=False)

    @classmethod
    def read(cls, values: Mapping[str, Any], *, where: str) -> Self:
        """Validate `values`, or raise a ConfigError with one line per problem; `where` names the source."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            lines = [_line(cls, problem) for problem in error.errors()]
            raise ConfigError("\n".join(f"{where}: {line}" for line in lines)) from None


def _line(model: type[BaseModel], problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        owner = _model_at(model, problem["loc"][:-1])
        known = owner.model_fields if owner else ()
        return f"unknown key {path!r}; {did_you_mean(str(problem['loc'][-1]), known)}"
    return f"{path or 'value'}: {problem['msg']}, got {problem['input']!r}"


def _model_at(model: type[BaseModel], path: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model that owns the key at the end of `path`, through optional fields (`X | None`)."""
    owner: type[BaseModel] | None = model
    for part in path:
        if owner is None or part not in owner.model_fields:
            return None
        annotation = owner.model_fields[str(part)].annotation
        options = [annotation, *get_args(annotation)]
        owner = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)
    return owner
