"""What the benchmarks drew can be looked at."""

import pathlib
from xml.etree import ElementTree

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DRAWINGS = sorted((ROOT / "benchmarks").rglob("*.svg"))


@pytest.mark.parametrize("path", DRAWINGS, ids=lambda path: path.name)
def test_a_stored_drawing_is_whole(path: pathlib.Path) -> None:
    assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_every_drawing_that_a_page_shows_is_there() -> None:
    shown = [
        page.parent / name
        for folder in ("benchmarks", "docs")
        for page in (ROOT / folder).rglob("*.md")
        for name in _pictures(page.read_text(encoding="utf-8"))
    ]
    assert shown and not [path for path in shown if not path.exists()]


def _pictures(text: str) -> list[str]:
    return [part.split(")", 1)[0] for part in text.split("](")[1:] if part.split(")", 1)[0].endswith(".svg")]
