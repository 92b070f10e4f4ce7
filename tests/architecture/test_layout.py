"""Where tests live: beside the package they test; what they share is in `tests/support`; none needs a benchmark."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {path.name for path in (ROOT / "src" / "leeward").iterdir() if path.is_dir()}
SUPPORT = {p.stem: p for p in (ROOT / "tests" / "support").glob("*.py") if not p.name.startswith("test_")}
# The files that build or drive a model, or run a command. All others hold envs, panels and arithmetic by hand; they are
# also used beside other versions of the package, of which they may know the configs and the trading chain alone.
DRIVES = {"models", "small_models", "cue_training", "replicas", "populations", "tiny_runs", "faults"}
TRADING = ("leeward.config", "leeward.market", "leeward.env")


def modules(path: Path) -> Iterator[str]:
    """What a file imports, at any depth; a relative import is written out from `tests` on."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = path.relative_to(ROOT).parts[: -node.level] if node.level else ()
            yield ".".join((*above, *filter(None, [node.module])))


def imports(folder: str) -> list[tuple[str, str]]:
    return [(str(path.relative_to(ROOT)), name) for path in (ROOT / folder).rglob("*.py") for name in modules(path)]


def test_a_folder_of_tests_is_a_package_or_says_what_it_holds() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    assert {str(folder) for folder in folders} - PACKAGES == {"architecture", "support", "faults"}


def test_no_test_imports_a_benchmark() -> None:
    assert [pair for pair in imports("tests") if pair[1].split(".")[0] == "benchmarks"] == []


def test_tests_import_from_each_other_what_is_in_support_alone() -> None:
    ours = [(place, name) for place, name in imports("tests") if name.startswith("tests.")]
    assert ours and [pair for pair in ours if not pair[1].startswith("tests.support.")] == []


def test_benchmarks_import_from_tests_what_is_in_support_alone() -> None:
    ours = [(place, name) for place, name in imports("benchmarks") if name.split(".")[0] == "tests"]
    assert ours and [pair for pair in ours if not pair[1].startswith("tests.support.")] == []


@pytest.mark.parametrize("name", sorted(SUPPORT.keys() - DRIVES))
def test_envs_and_arithmetic_by_hand_know_nothing_of_the_engine(name: str) -> None:
    found = list(modules(SUPPORT[name]))
    ours = [module for module in found if module.split(".")[0] == "leeward"]
    assert [module for module in ours if not module.startswith(TRADING)] == []
    assert not DRIVES & {module.removeprefix("tests.support.") for module in found}


def test_the_files_that_drive_a_model_are_there() -> None:
    assert SUPPORT.keys() >= DRIVES
