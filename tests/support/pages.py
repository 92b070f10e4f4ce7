"""The Markdown pages of the repository and what stands in them: headings, links, tables, code."""

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "PAGES",
    "ROOT",
    "SOURCE",
    "Block",
    "anchors",
    "blocks",
    "commands",
    "defines",
    "links",
    "places",
    "prose",
    "rows",
    "spans",
]

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "leeward"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```(\w*)\s*$")
_PLACE = re.compile(r"([\w/]+\.py): ([\w.]+)")


class Block(NamedTuple):
    """A fenced block of code: the line of its first line, the word behind the fence, and what is inside."""

    line: int
    language: str
    text: str


@cache
def _parts(page: Path) -> tuple[tuple[Block, ...], str]:
    """The blocks of a page, and the rest of it with as many lines."""
    found, rest, inside = list[Block](), list[str](), None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = _FENCE.match(line)
        if fence and inside is None:
            inside = (number + 1, fence[1], list[str]())
        elif fence:
            assert inside is not None
            found.append(Block(inside[0], inside[1], "".join(f"{text}\n" for text in inside[2])))
            inside = None
        elif inside is not None:
            inside[2].append(line)
        rest.append("" if fence or inside is not None else line)
    assert inside is None, f"{page.name}: a block that begins in line {number} has no end"
    return tuple(found), "\n".join(rest)


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page, in their order; all of them if no language is named."""
    return [block for block in _parts(page)[0] if not languages or block.language in languages]


def commands(page: Path) -> list[list[str]]:
    """The words of every command in the shell blocks of a page; what `.venv/bin` holds is named without it."""
    lines = [line for block in blocks(page, "sh") for line in block.text.replace("\\\n", " ").splitlines()]
    split = [shlex.split(line, comments=True) for line in lines]
    return [[words[0].removeprefix(".venv/bin/"), *words[1:]] for words in split if words]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _parts(page)[1]


def spans(page: Path) -> list[str]:
    """The pieces of code inside the sentences and tables of a page."""
    return [found.replace("\\|", "|") for found in re.findall(r"`([^`\n]+)`", prose(page))]


def links(page: Path) -> list[str]:
    """Where a page's links and pictures lead, but for addresses on the network."""
    found = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))
    return [target for target in found if not target.startswith(("https:", "http:", "mailto:"))]


def anchors(page: Path) -> set[str]:
    """What a link may name behind a `#`: each heading in small letters, without punctuation, with - for spaces."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of every row of the tables under a heading, without the rows that name the columns."""
    section = prose(page).split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = section.splitlines()
    return [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("| ") and not following.startswith("|---")
    ]


def places(text: str) -> list[tuple[str, str]]:
    """Every `file.py: function` or `file.py: Class.method` in a text."""
    return [(found[1], found[2]) for span in re.findall(r"`([^`]+)`", text) if (found := _PLACE.fullmatch(span))]


def defines(file: str, name: str) -> bool:
    """Whether a file of the package defines a function, class, method or constant of this name."""
    path = SOURCE / file
    if not path.is_file():
        return False
    body: list[ast.stmt] = ast.parse(path.read_text(encoding="utf-8")).body
    for part in name.split("."):
        found = [node for node in body if part in _names(node)]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return True


def _names(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))
