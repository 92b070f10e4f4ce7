"""Benchmarks are found in one index, and their files are named alike in every folder."""

import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
INDEX = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
FOLDERS = sorted(path for path in BENCHMARKS.iterdir() if path.is_dir() and path.name != "__pycache__")
SCRIPTS = sorted(
    path for path in BENCHMARKS.glob("*/*.py") if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_a_page_is_named_after_the_script_that_writes_it(folder: Path) -> None:
    pages = {"RESULTS.md" if path.stem == "run" else f"RESULTS_{path.stem}.md" for path in folder.glob("*.py")}
    assert [path.name for path in folder.glob("*.md") if path.name not in pages] == []
    runs = {page.lower().replace(".md", ".jsonl") for page in pages}
    assert [path.name for path in folder.glob("*.jsonl") if path.name not in runs] == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_the_index_names_every_script_and_its_own_page(script: Path) -> None:
    name = f"{script.parent.name}/{script.name}"
    page = "RESULTS.md" if script.stem == "run" else f"RESULTS_{script.stem}.md"
    (row,) = [line for line in INDEX.splitlines() if f"| `{name}" in line]
    assert f"({script.parent.name}/{page})" in row or not (script.parent / page).exists()


def test_the_index_links_every_page_and_nothing_that_is_not_there() -> None:
    linked = re.findall(r"\]\(([^)]+)\)", INDEX)
    assert sorted(name for name in linked if name.endswith(".md")) == sorted(
        str(path.relative_to(BENCHMARKS)) for path in BENCHMARKS.glob("*/*.md")
    )
    assert [name for name in linked if not (BENCHMARKS / name).exists()] == []
