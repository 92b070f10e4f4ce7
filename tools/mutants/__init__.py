"""Known faults, each put back into a copy of the tree to see a test fail: `python -m tools.mutants [WORD ...]`.

One table per package; a new row is one line in its file, a new package one file and its name in `TABLES`.
"""

from dataclasses import dataclass

__all__ = ["TABLES", "Mutant", "row", "table"]

TABLES = (
    "maths", "engine", "optim", "risk", "adversary", "parallel", "population",
    "monitors", "health", "settings", "critics", "env", "market", "backtest", "training", "config", "durable",
    "audit",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One fault: in `where` of `file`, `was` (there exactly once) becomes `fault`; one of `tests` must then fail."""

    id: str  # the row of the findings, or a name of our own; unique
    file: str  # from the root of the repository
    where: str  # qualified name of a function, method or class; "" for what stands outside of them
    was: str  # an expression or statements; compared as syntax, so that layout and comments do not count
    fault: str  # of the same kind; `pass` for nothing
    tests: tuple[str, ...]  # pytest arguments; keep them few and narrow, since each row pays for them


def row(name: str, place: str, was: str, fault: str, *tests: str) -> Mutant:
    """`place` is "file:qualified.name", the file from the package on and without its ending; tests from `tests/` on."""
    file, _, where = place.partition(":")
    return Mutant(name, f"src/leeward/{file}.py", where, was, fault, tuple(f"tests/{test}" for test in tests))


def table() -> list[Mutant]:
    """Every row of every package's table."""
    from importlib import import_module

    return [row for name in TABLES for row in import_module(f"tools.mutants.{name}").MUTANTS]
