"""YAML in, `--set a.b=c` on top, one validated RunConfig out; and the commented reference file."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

from leeward.config.run import RunConfig
from leeward.errors import ConfigError

__all__ = ["dump_config", "load_config", "reference_yaml"]


def load_config(
    path: Path | None = None, settings: Iterable[str] = (), shortcuts: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a config file (the defaults without one); apply `shortcuts` (key.path -> value as it is), then `settings`,
    texts key.path=value with values in YAML.
    """
    values: dict[str, Any] = {}
    where = "the defaults"
    if path is not None:
        where = str(path)
        if not path.is_file():
            raise ConfigError(f"{path}: no such config file")
        try:
            loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
        if loaded is not None and not isinstance(loaded, dict):
            raise ConfigError(f"{path}: expected sections such as 'ppo:' and 'data:', got {type(loaded).__name__}")
        values = loaded or {}
    for key, value in (shortcuts or {}).items():
        values = _with(values, key, value, where=f"{key}={value}")
    for setting in settings:
        values = _with(values, *_parsed(setting), where=f"--set {setting!r}")
    if shortcuts or settings:
        where = f"{path or 'the defaults'} and the command line"
    return RunConfig.read(values, where=where)


def _parsed(setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {setting!r}: expected KEY=VALUE, for example ppo.clip_range=0.1")
    try:
        return key, yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {setting!r}: the value is not YAML: {' '.join(str(error).split())}") from None


def _with(values: dict[str, Any], key: str, value: Any, *, where: str) -> dict[str, Any]:
    *sections, last = key.split(".")
    changed = dict(values)
    here = changed
    for name in sections:
        inner = here.get(name)
        if inner is not None and not isinstance(inner, dict):
            raise ConfigError(f"{where}: {name!r} is a value, not a section")
        here[name] = dict(inner or {})
        here = here[name]
    here[last] = value
    return changed


def dump_config(config: RunConfig) -> str:
    """The whole config as YAML; `load_config` reads it back equal."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def reference_yaml() -> str:
    """Every key with its default, unit and meaning: `configs/reference.yaml`."""
    lines = [
        "# Every key of a Leeward config, with its default. Generated from leeward.config; a test keeps it equal.",
        "",
    ]
    return "\n".join([*lines, *_section(RunConfig, RunConfig(), 0)]) + "\n"


def _section(model: type[BaseModel], values: BaseModel | None, depth: int) -> list[str]:
    indent, lines = "  " * depth, []
    for name, field in model.model_fields.items():
        inner = _model_of(field.annotation)
        value = getattr(values, name) if values is not None else field.default
        if inner is None or value is None:
            text = (
                yaml.safe_dump(_plain(value), default_flow_style=True, allow_unicode=True).removesuffix("...\n").strip()
            )
            lines.append(f"{indent}{name}: {text}  # {field.description}")
            if inner is not None:
                lines += [f"{indent}  # {line}" for line in _section(inner, None, 0)]
        else:
            lines.append(f"{indent}{name}:  # {(inner.__doc__ or '').strip().splitlines()[0]}")
            lines += _section(inner, value, depth + 1)
    return lines


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if get_origin(annotation) is tuple:  # of sections: written as a list
        return None
    options = [annotation, *get_args(annotation)]
    return next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), None)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
