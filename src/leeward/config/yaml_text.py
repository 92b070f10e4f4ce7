"""YAML as configs use it: plain values, each key once, no references that could blow it up, and not without end."""

from typing import Any

import yaml

from leeward.errors import ConfigError

__all__ = ["read"]

_LARGEST, _DEEPEST = 1 << 20, 20  # bytes, levels; the reference has 10 kB and 4


class _Loader(yaml.SafeLoader):
    """SafeLoader, without what a config never needs."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "references (*name) are not read", self.get_mark())
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml.composer.ComposerError(None, None, f"more than {_DEEPEST} levels", self.get_mark())
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value:
            name = str(key.value)  # a key that is a list is refused by SafeLoader
            if name in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {name!r} stands twice", key.start_mark)
            seen.add(name)
        return super().construct_mapping(node, deep)


def read(content: bytes, *, where: str) -> Any:
    """The value of a YAML text, or one line that says what is wrong with it."""
    if len(content) > _LARGEST:
        raise ConfigError(f"{where}too long: {len(content):,} bytes, a config has at most {_LARGEST:,}")
    try:
        return yaml.load(content.decode("utf-8-sig"), _Loader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, AttributeError) as error:
        raise ConfigError(f"{where}not YAML: {' '.join(str(error).split())[:300]}") from None
