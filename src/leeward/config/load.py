"""YAML in, `--set a.b=c` on top, one validated RunConfig out."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from leeward.config import yaml_text
from leeward.config.run import RunConfig
from leeward.errors import ConfigError

__all__ = ["dump_config", "load_config", "read_config", "written_config"]


def load_config(
    path: Path | None = None, settings: Iterable[str] = (), shortcuts: Mapping[str, Any] | None = None
) -> RunConfig:
    """Read a config file (the defaults without one); apply `shortcuts` (key.path -> value as it is), then `settings`,
    texts key.path=value with values in YAML.
    """
    where = "the defaults" if path is None else str(path)
    values: dict[str, Any] = {} if path is None else _sections(_content(path), where=where)
    for key, value in (shortcuts or {}).items():
        values = _with(values, key, value, where=f"{key}={value}")
    for setting in settings:
        values = _with(values, *_parsed(setting), where=f"--set {setting!r}")
    if shortcuts or settings:
        where = f"{path or 'the defaults'} and the command line"
    return RunConfig.read(values, where=where)


def read_config(path: Path) -> RunConfig:
    """The config that a run wrote, of this version or of an earlier one."""
    return written_config(_content(path), where=str(path))


def written_config(content: bytes, *, where: str) -> RunConfig:
    """What `dump_config` of this version or of an earlier one has made."""
    values = _sections(content, where=where)
    further = values.pop("further_risks", None)  # leeward 0.1.0 kept all limits but the first apart
    if further is not None and not isinstance(further, list):
        raise ConfigError(f"{where}: further_risks: expected a list of limits, got {further!r:.80}; restore the file")
    if further:
        values["risk"] = [values.get("risk", {}), *further]
    return RunConfig.read(values, where=where)


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise ConfigError(f"{path}: no such config file")
    return path.read_bytes()


def _sections(content: bytes, *, where: str) -> dict[str, Any]:
    loaded = yaml_text.read(content, where=f"{where}: ")
    if loaded is not None and not isinstance(loaded, dict):
        raise ConfigError(f"{where}: expected sections such as 'ppo:' and 'data:', got {type(loaded).__name__}")
    if not loaded:
        raise ConfigError(
            f"{where}: expected sections such as 'ppo:' and 'data:', the file says nothing; write what differs from "
            "the defaults, or give no config for all of them"
        )
    return loaded


def _parsed(setting: str) -> tuple[str, Any]:
    key, equals, text = setting.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set {setting!r}: expected KEY=VALUE, for example ppo.clip_range=0.1")
    return key, yaml_text.read(text.encode(errors="surrogateescape"), where=f"--set {setting!r:.80}: the value is ")


def _with(values: dict[str, Any], key: str, value: Any, *, where: str) -> dict[str, Any]:
    """A copy of `values` with one key set; a number in the path is a place in a list."""
    *sections, last = key.split(".")
    changed: Any = dict(values)
    here = changed
    for name in sections:
        inner = here.get(name) if isinstance(here, dict) else _entry(here, name, where)
        if inner is not None and not isinstance(inner, dict | list):
            raise ConfigError(f"{where}: {name!r} is a value, not a section")
        place = int(name) if isinstance(here, list) else name
        here[place] = list(inner) if isinstance(inner, list) else dict(inner or {})
        here = here[place]
    if isinstance(here, list):
        _entry(here, last, where)
    here[int(last) if isinstance(here, list) else last] = value
    return dict(changed)


def _entry(values: list[Any], place: str, where: str) -> Any:
    if not place.isdecimal() or int(place) >= len(values):
        raise ConfigError(f"{where}: {place!r} is no place in a list of {len(values)}; the first is 0")
    return values[int(place)]


def dump_config(config: RunConfig) -> str:
    """The whole config as YAML; `load_config` reads it back equal."""
    return yaml_text.write(config.model_dump(mode="json"))
