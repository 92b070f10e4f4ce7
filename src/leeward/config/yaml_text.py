"""YAML as configs use it: plain values, each key once, no references that could blow it up, and not without end.

Numbers and truth values are those of YAML 1.2: 3e-4 is a number, 010 is ten and not eight, 1:30 a text, and so is off,
false in YAML 1.1. Only 1_000 is more than YAML 1.2 has.
"""

import re
from typing import Any

import yaml

from leeward.errors import ConfigError, one_line

__all__ = ["read", "write"]

_LARGEST, _DEEPEST = 1 << 20, 20  # bytes, levels; the reference has 10 kB and 4
_MOST_VALUES = 20_000  # keys and values: some seconds; costs of a thousand assets have as many
_INT = re.compile(r"^(?:[-+]?[0-9]+(?:_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+)$")
_BASES = {"0o": 8, "0x": 16}  # by how a number begins
_FLOAT = re.compile(
    r"^(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_NUMBERS = {"tag:yaml.org,2002:int": _INT, "tag:yaml.org,2002:float": _FLOAT}
_TRUTH = ("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"))


def _plain_values(theirs: Any) -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """How texts without quotes are told from numbers and truth values, by the first sign: without the base 60 of YAML
    1.1, which takes minutes to read, and without its yes, no, on and off, which are names here."""
    ours = {**_NUMBERS, _TRUTH[0]: _TRUTH[1]}
    kept = {first: [rule for rule in rules if rule[0] not in ours] for first, rules in theirs.items()}
    numbers = {first: [*kept.get(first, []), *_NUMBERS.items()] for first in "-+.0123456789"}
    return kept | numbers | {first: [*kept.get(first, []), _TRUTH] for first in "tTfF"}


class _Dumper(yaml.SafeDumper):
    """SafeDumper that puts quotes round what the reader below would take for a number."""

    yaml_implicit_resolvers = _plain_values(yaml.SafeDumper.yaml_implicit_resolvers)


class _Loader(yaml.SafeLoader):
    """SafeLoader, without what a config never needs."""

    yaml_implicit_resolvers = _plain_values(yaml.SafeLoader.yaml_implicit_resolvers)
    depth, values = 0, 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "references (*name) are not read", self.get_mark())
        self.values += 1
        if self.values > _MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, f"more than {_MOST_VALUES:,} values", self.get_mark())
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


def _number(loader: _Loader, node: Any) -> Any:
    """A number that is tagged as one: by the same rule."""
    if not _NUMBERS[node.tag].fullmatch(str(node.value)):
        raise yaml.constructor.ConstructorError(None, None, f"{node.value!r:.40} is no number", node.start_mark)
    if node.tag.endswith("float"):
        return loader.construct_yaml_float(node)
    return int(node.value, _BASES.get(node.value[:2], 10))


for _tag in _NUMBERS:
    _Loader.add_constructor(_tag, _number)


def write(values: Any) -> str:
    """YAML that `read` reads back equal."""
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


def read(content: bytes, *, where: str) -> Any:
    """The value of a YAML text, or one line that says what is wrong with it."""
    if len(content) > _LARGEST:
        raise ConfigError(f"{where}too long: {len(content):,} bytes, a config has at most {_LARGEST:,}")
    try:
        return yaml.load(content.decode("utf-8-sig"), _Loader)
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError, AttributeError) as error:
        raise ConfigError(f"{where}not YAML: {one_line(error)}") from None
