"""What the pages name is there: files, headings, places in the code, commands, options, keys, metrics."""

import ast
import importlib
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from leeward.cli.app import app
from leeward.config.load import load_config
from leeward.config.reference import model_of
from leeward.config.run import RunConfig
from leeward.telemetry import metrics

from ..support.pages import PAGES, ROOT, SOURCE, anchors, blocks, commands, defines, links, places, prose, rows, spans

LINKING = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "benchmarks").rglob("*.md"))]
# Without what a user makes: `runs` is there after the first training.
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"runs"}
PACKAGES = {path.name for path in SOURCE.iterdir() if path.is_dir()}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
TESTS = {path.name for path in (ROOT / "tests").rglob("test_*.py")}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


# --- links and places -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    lost = []
    for target in links(page):
        file, _, heading = target.partition("#")
        path = page.parent / file if file else page
        if not path.exists() or (heading and heading not in anchors(path)):
            lost.append(target)
    assert lost == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    found, left = set[Path](), [ROOT / "README.md"]
    while left:
        page = left.pop()
        found.add(page)
        here = {(page.parent / target.partition("#")[0]).resolve() for target in links(page)}
        left += [path for path in here if path.suffix == ".md" and path not in found]
    assert sorted(set(PAGES) - found) == []


IDEAS = """GAE, time-limit bootstrap, quantile loss, projection, twin minimum, value clips, PopArt, KL stop, AWR, UPGD,
observation normaliser, entropy plateau, gradient accumulation, variance scaling, CVaR multiplier, adversary, env costs,
splits, verdict, checkpoint"""


def test_the_readme_names_file_and_function_of_every_idea() -> None:
    table = rows(ROOT / "README.md", "Where each idea lives")
    ideas = [row[0] for row in table]
    missing = [word for word in re.split(r",\s+", IDEAS) if not any(idea.startswith(word) for idea in ideas)]
    assert missing == []
    for idea, code, page in table:
        found = places(code)
        assert len(found) == code.count("`") // 2 > 0, idea
        assert [place for place in found if not defines(*place)] == [], idea
        assert page.startswith("["), idea


@each_page
def test_every_place_in_the_code_that_a_page_names_is_there(page: Path) -> None:
    assert [place for place in places(prose(page)) if not defines(*place)] == []


def test_every_place_in_the_code_that_is_drawn_is_there() -> None:
    drawn = [
        place
        for block in blocks(ROOT / "docs" / "design.md", "text")
        for place in re.findall(r"([\w/]+\.py) +([A-Za-z_][\w.]*)", block.text)
    ]
    assert len(drawn) > 40 and [place for place in drawn if not defines(*place)] == []


def exists(path: str) -> bool:
    """A path from the root of the repository, or from the package; a test may be named by its file alone."""
    first, *rest = path.split("/")
    if not rest:
        return not path.startswith("test_") or path in TESTS
    if first in FOLDERS and (ROOT / path).exists():
        return True
    return (SOURCE / path).exists() if path.endswith((".py", "/")) else first not in FOLDERS


@each_page
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    words = [word for span in spans(page) for word in span.split() if re.fullmatch(r"\.?[\w-]+(/[\w.-]*)*", word)]
    words += [word for line in commands(page) for word in line if "/" in word and word.split("/")[0] in FOLDERS]
    ours = [word for word in words if word.split("/")[0] in FOLDERS | PACKAGES or word.startswith("test_")]
    assert [word for word in ours if not is_metric(word) and not exists(word)] == []


CLASSES = {
    node.name: f"{path.relative_to(SOURCE)}"
    for path in SOURCE.rglob("*.py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.ClassDef)
}


@each_page
def test_every_method_of_a_class_of_ours_that_a_page_names_is_there(page: Path) -> None:
    found = [match for span in spans(page) if (match := re.fullmatch(r"([A-Z]\w+)\.\w+(?=\(|$).*", span))]
    ours = [match[0].partition("(")[0] for match in found if match[1] in CLASSES]
    assert [name for name in ours if not defines(CLASSES[name.split(".")[0]], name)] == []


@each_page
def test_every_module_and_name_in_it_that_a_page_names_is_there(page: Path) -> None:
    assert [span for span in spans(page) if re.fullmatch(r"leeward(\.\w+)+", span) and not imports(span)] == []


def imports(name: str) -> bool:
    """Whether a name with dots leads to a module, or to something in one."""
    *parts, last = name.split(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        if not parts or not imports(".".join(parts)):
            return False
        return hasattr(importlib.import_module(".".join(parts)), last)
    return True


def test_every_page_that_code_and_configs_refer_to_is_there() -> None:
    folders = ("src", "tests", "tools", "benchmarks", "examples", "configs")
    files = [path for folder in folders for kind in ("*.py", "*.yaml") for path in (ROOT / folder).rglob(kind)]
    named = {
        (name_of(path), found)
        for path in files
        for found in re.findall(r"docs/[a-z0-9/-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named and sorted(pair for pair in named if not (ROOT / pair[1]).is_file()) == []


# --- commands ---------------------------------------------------------------------------------------------------------


def written(page: Path) -> Iterator[list[str]]:
    """Every command of a page, in blocks and in sentences; brackets around what may be left out are taken off."""
    yield from commands(page)
    for span in spans(page):
        if span.startswith("--set "):
            yield ["leeward", "train", *shlex.split(span)]
        words = span.replace("[", " ").replace("]", " ").split()
        if words and words[0] in ("leeward", "make", "python"):
            yield words


def options_of(words: list[str]) -> set[str]:
    """The options that a `leeward` command takes; an error where there is no such command."""
    command: Any = typer.main.get_command(app)
    for word in words:
        if not hasattr(command, "commands"):
            break
        if word.startswith("-"):
            continue
        assert word in command.commands, f"there is no command `leeward {' '.join(words)}`"
        command = command.commands[word]
    return {name for parameter in command.params for name in parameter.opts} | {"-h", "--help"}


@each_page
def test_every_leeward_command_of_a_page_exists_with_its_options(page: Path) -> None:
    for words in written(page):
        if words[0] == "leeward":
            given = {word.partition("=")[0] for word in words[1:] if word.startswith("-")}
            assert given <= options_of(words[1:]), words


@pytest.mark.parametrize("command", ["train", "backtest"])
def test_the_page_of_commands_lists_every_option(command: str) -> None:
    page = ROOT / "docs" / "cli.md"
    section = prose(page).split(f"\n## `leeward {command}`\n", 1)[1].split("\n## ", 1)[0]
    named = set(re.findall(r"`(--[a-z-]+)", section)) | set(
        re.findall(rf"`leeward {command} .*?(--[a-z]+)", prose(page))
    )
    assert {name for name in options_of([command]) if name.startswith("--")} == named | {"--help"}


@each_page
def test_every_setting_that_a_command_of_a_page_changes_is_a_key(page: Path) -> None:
    for words in written(page):
        given = [after for word, after in itertools.pairwise(words) if word == "--set" and "=" in after]
        load_config(None, [setting for setting in given if setting != "KEY=VALUE"])


@each_page
def test_every_make_target_and_script_of_a_page_is_there(page: Path) -> None:
    for first, *words in written(page):
        if first == "make":
            assert {word for word in words if re.fullmatch(r"[a-z]+", word)} <= TARGETS, words
        if first == "python" and words and words[0].endswith(".py"):
            script = (ROOT / words[0]).read_text(encoding="utf-8")
            assert [word for word in words if word.startswith("--") and f'"{word}"' not in script] == []


# --- keys and metrics -------------------------------------------------------------------------------------------------


def is_key(path: str) -> bool:
    """Whether a name with dots is a key of a config."""
    model: Any = RunConfig
    for part in path.split("."):
        if model is None or part not in model.model_fields:
            return False
        model = model_of(model.model_fields[part].annotation)
    return True


@each_page
def test_every_key_of_a_config_that_a_page_names_is_there(page: Path) -> None:
    found = [
        match[1] for span in spans(page) if (match := re.fullmatch(r"((?:data|env|ppo|risk)\.[\w.]+)(?:: .*)?", span))
    ]
    assert [key for key in found if not is_key(key)] == []


HEADS = {name.split("/")[0] for name in metrics.REGISTRY}


def is_metric(name: str) -> bool:
    """Whether a name is that of a metric, or with a star the start of some."""
    if name.endswith("*"):
        return any(known.startswith(name[:-1]) for known in metrics.REGISTRY)
    return metrics.find(name) is not None


@each_page
def test_every_metric_that_a_page_names_is_registered(page: Path) -> None:
    names = [span for span in spans(page) if span.split("/")[0] in HEADS and re.fullmatch(r"\w+(/[\w<>*]+)+", span)]
    assert [name for name in names if not is_metric(name)] == []
