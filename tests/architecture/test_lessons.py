"""Every lesson that is cited is on the page, and every place the page names is there."""

import re
from pathlib import Path

import pytest
from tools.mutants import table

from ..support.pages import ROOT, defines, places, prose

PAGE = ROOT / "docs" / "lessons.md"
LESSONS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
    for line in prose(PAGE).splitlines()
    if re.match(r"\| [A-Z]", line)
]
IDS = {name for row in LESSONS for name in row[0].split(", ")}
AN_ID = r"[A-Z](?:-[A-Za-z]+\d*[a-z]?|\d+)"


def cited(text: str) -> set[str]:
    """The ids behind each mention of the page."""
    found = re.findall(rf"lessons\.md,? ((?:{AN_ID}(?:, )?)+)", text)
    return {name for names in found for name in re.findall(AN_ID, names)}


@pytest.mark.parametrize("row", LESSONS, ids=lambda row: row[0])
def test_a_lesson_has_an_id_a_sentence_a_place_that_exists_and_a_proof(row: list[str]) -> None:
    ids, lesson, code, proof = row
    assert all(re.fullmatch(AN_ID, name) for name in ids.split(", "))
    assert lesson.endswith(".") and proof
    found = places(code)
    assert found and [place for place in found if not defines(*place)] == []


def test_only_one_id_has_two_lessons() -> None:
    every = [name for row in LESSONS for name in row[0].split(", ")]
    assert {name for name in every if every.count(name) > 1} == {"D6"}  # the estimator, and the atom that it splits


def test_every_id_that_is_cited_is_on_the_page() -> None:
    files = [
        path
        for folder in ("src", "tests", "tools", "benchmarks", "docs")
        for kind in ("*.py", "*.md")
        for path in (ROOT / folder).rglob(kind)
        if path != Path(__file__)
    ]
    found = {name for path in files for name in cited(path.read_text(encoding="utf-8"))}
    assert found and sorted(found - IDS) == []


def test_a_citation_is_seen() -> None:
    assert cited("(docs/lessons.md, A-FP2)") == {"A-FP2"}
    assert cited("docs/lessons.md C7, N3: why") == {"C7", "N3"}


def test_a_mutant_named_after_a_lesson_is_named_after_one_that_is_there() -> None:
    first = {mutant.id.split()[0] for mutant in table()}
    named = {word for word in first if re.fullmatch(AN_ID, word)}
    assert named and sorted(named - IDS) == []
