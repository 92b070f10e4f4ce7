"""What is written from the models: `configs/reference.yaml`, and the tables of arguments in `docs/from-sb3.md`."""

import json
import re
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from leeward.config.run import PolicyConfig, RunConfig
from leeward.config.settings import Settings

__all__ = ["argument_table", "model_of", "policy_argument_table", "reference_yaml"]


def reference_yaml() -> str:
    """Every key with its default, unit and meaning."""
    lines = [
        "# Every key of a Leeward config, with its default. Generated from leeward.config; a test keeps it equal.",
        '# A number is written without quotes: 3e-4 is one; "3e-4" and true are none, and are refused.',
        "",
    ]
    return "\n".join([*lines, *_section(RunConfig, RunConfig(), 0)]) + "\n"


def _section(model: type[BaseModel], values: BaseModel | None, depth: int) -> list[str]:
    indent, lines = "  " * depth, []
    for name, field in _own_first(model):
        inner = model_of(field.annotation)
        value = getattr(values, name) if values is not None else field.default
        if inner is not None and isinstance(value, tuple):
            value = value[0]  # a list of one is written as that one
        if inner is None or value is None:
            lines.append(f"{indent}{name}: {_text(value)}  # {field.description}")
            if inner is not None:
                lines += [f"{indent}  # {line}" for line in _section(inner, None, 0)]
        else:
            meaning = field.description or (inner.__doc__ or "").strip().splitlines()[0]
            lines.append(f"{indent}{name}:  # {meaning}")
            lines += _section(inner, value, depth + 1)
    return lines


def _own_first(model: type[BaseModel]) -> list[tuple[str, FieldInfo]]:
    """What a section adds to the model it is built on comes before what it takes over."""
    return sorted(model.model_fields.items(), key=lambda item: item[0] not in model.__annotations__)


def _text(value: Any) -> str:
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True).removesuffix("...\n").strip()


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a key holds: itself, behind `None`, or in a list; names of one's own are no section."""
    if get_origin(annotation) is dict:
        return None
    options = [annotation, *get_args(annotation)]
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def argument_table(theirs: set[str]) -> str:
    """The constructor's arguments, but for `theirs`."""
    return _table({name: field for name, field in Settings.model_fields.items() if name not in theirs})


def policy_argument_table(theirs: set[str]) -> str:
    """The policy's arguments that neither `theirs` nor the constructor has. As policy arguments all of them are off."""
    known = theirs | Settings.model_fields.keys() | {"name"}
    own = {name: field for name, field in PolicyConfig.model_fields.items() if name not in known}
    return _table(own, defaults=dict.fromkeys(own, None) | {"normalize_observations": False})


def _table(fields: dict[str, FieldInfo], defaults: dict[str, Any] | None = None) -> str:
    lines = ["| argument | default | meaning |", "|---|---|---|"]
    for name, field in fields.items():
        value = field.default if defaults is None else defaults[name]
        is_off = value == () or isinstance(value, BaseModel)  # None in the constructor's signature
        default = repr(None if is_off else value).replace("'", '"')
        inner = model_of(field.annotation)
        keys = "" if inner is None else f" Keys: {', '.join(f'`{key}`' for key in inner.model_fields)}."
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        named = "" if not choices else f" One of {', '.join(f'`{json.dumps(choice)}`' for choice in choices)}."
        meaning = re.sub(r"docs/([\w/-]+\.md)", r"[\1](\1)", str(field.description))
        lines.append(f"| `{name}` | `{default}` | {meaning}.{named}{keys} |".replace("..", "."))
    return "\n".join(lines) + "\n"
