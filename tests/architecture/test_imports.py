"""The arrows of the architecture, read from the source; a package that does not exist yet has nothing to break."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "leeward"

EVERYONE = {"errors", "config", "telemetry", "durable"}
# package: the packages an arrow leads to; what those reach is reached too.
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "durable": {"errors"},
    "telemetry": {"errors"},
    "config": {"errors", "telemetry"},
    "maths": {"errors"},
    "networks": {"maths"} | EVERYONE,
    "optim": {"maths"} | EVERYONE,
    "rollout": {"maths"} | EVERYONE,
    "algorithm": {"networks", "rollout", "optim"} | EVERYONE,
    "market": EVERYONE,
    "env": {"market"},
    "backtest": {"env", "maths"},
    "report": {"backtest"},
    "training": {"algorithm", "backtest"},
    "audit": {"training"},
    "cli": {"training", "audit", "report"},
}
# third-party package: the only places that may import it.
TORCH_FREE = ("market", "env")
RAY_ONLY = ("training/population", "training/distributed")
TRADING_EXTRA = {"pandas", "plotly", "jinja2", "arch"}
# What `leeward.audit.model` needs is there without the extra: these parts of the audit know the learning chain alone.
AUDIT_CORE = ("audit/__init__.py", "audit/findings.py", "audit/checks.py", "audit/engine/")
# The demonstration prints a table, and is a script; what is compiled is so in files of its own.
COMPILED = ("maths/quantile_compiled.py", "maths/tanh_layers.py")
BESIDE_TORCH = {("maths/__main__.py", "rich")} | {(file, name) for file in COMPILED for name in ("numba", "numpy")}
CORE = ("errors", "durable", "config", "telemetry", "maths", "networks", "optim", "rollout", "algorithm")


def reach(package: str) -> set[str]:
    found: set[str] = {package}
    frontier = [package]
    while frontier:
        for target in ARROWS[frontier.pop()] - found:
            found.add(target)
            frontier.append(target)
    return found


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Every module a file imports, at any depth and behind any condition, with its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports of our own in full"
            # `from leeward import x` may name a package, `from leeward.x import y` a module.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def complaints(root: Path) -> list[str]:
    """What the files below `root` import against the rules."""
    found = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        package = place.parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        if package not in ARROWS:
            found.append(f"{place}: package {package!r} is not in the architecture")
            continue
        for line, module in imported(path):
            top, *rest = module.split(".")
            if why := _forbidden(place, package, top, rest):
                found.append(f"{place}:{line}: {package} must not import {module}: {why}")
    return found


def _forbidden(place: Path, package: str, top: str, rest: list[str]) -> str | None:
    where = place.as_posix()
    if top == "leeward":
        if where.startswith(AUDIT_CORE) and rest and rest[0] not in CORE and not _in_audit_core(rest):
            return "the model part of an audit installs without the extra [trading]"
        return None if not rest or rest[0] == "__version__" or rest[0] in reach(package) else "no arrow leads there"
    if package == "maths" and top != "torch" and top not in sys.stdlib_module_names:
        return None if (where, top) in BESIDE_TORCH else "equations need torch and nothing else"
    if package in TORCH_FREE and top in {"torch", "stable_baselines3", "sb3_contrib"} and where != "env/sb3.py":
        return "the trading chain runs without torch; the adapter is env/sb3.py"
    if top == "ray" and not where.startswith(RAY_ONLY):
        return f"ray stays in {' and '.join(RAY_ONLY)}"
    if package in CORE and top in TRADING_EXTRA:
        return "the core installs without the extra [trading]"
    return None


def _in_audit_core(rest: list[str]) -> bool:
    return rest[0] == "audit" and rest[1:2] in (["findings"], ["checks"], ["engine"])


def test_imports_follow_the_arrows():
    assert complaints(SOURCE) == []


def test_the_two_chains_do_not_know_each_other():
    assert not reach("algorithm") & {"market", "env", "backtest", "report"}
    assert not reach("backtest") & {"networks", "rollout", "optim", "algorithm", "training"}


@pytest.mark.parametrize(
    ("place", "source", "complaint"),
    [
        ("maths/cvar.py", "import numpy as np", "must not import numpy: equations need torch"),
        (
            "maths/cvar.py",
            "from leeward.config.base import Frozen",
            "must not import leeward.config.base.Frozen: no arrow",
        ),
        ("env/kernel.py", "def f():\n    import torch", "env/kernel.py:2: env must not import torch"),
        ("market/bars.py", "from stable_baselines3.common import vec_env", "market must not import stable_baselines3"),
        ("env/trading_env.py", "from leeward.algorithm.ppo import DistributionalPPO", "no arrow leads there"),
        ("algorithm/ppo.py", "from leeward import env", "algorithm must not import leeward.env"),
        ("training/trainer.py", "import ray.tune", "ray stays in training/population"),
        ("optim/clip.py", "import pandas as pd", r"installs without the extra \[trading\]"),
        ("audit/engine/state.py", "from leeward.training.run_dir import RunDir", r"without the extra \[trading\]"),
        ("audit/engine/state.py", "from leeward.audit.run import ledger", r"without the extra \[trading\]"),
        ("report/build.py", "from leeward.audit.findings import Audit", "no arrow leads there"),
        ("helpers/misc.py", "", "package 'helpers' is not in the architecture"),
    ],
)
def test_an_import_against_the_arrows_is_seen(tmp_path, place, source, complaint):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    found = complaints(tmp_path)
    assert len(found) == 1
    assert re.search(complaint, found[0]), found


def test_the_adapter_and_the_population_may_import_what_others_may_not(tmp_path):
    for place, source in (("env/sb3.py", "import torch"), ("training/population/tune.py", "import ray")):
        path = tmp_path / place
        path.parent.mkdir(parents=True)
        path.write_text(source, encoding="utf-8")
    assert complaints(tmp_path) == []


def test_importing_leeward_loads_neither_chain():
    heavy = ("torch", "stable_baselines3", "numba", "pandas", "ray", "plotly", "matplotlib")
    script = f"import sys, leeward; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
