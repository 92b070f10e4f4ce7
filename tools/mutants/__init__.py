"""Known faults, each put back into a copy of the tree to see a test fail: `python -m tools.mutants [WORD ...]`.

One table per package; a new row is one line in its file, a new package one file and its name in `TABLES`.
"""

from dataclasses import dataclass

__all__ = ["TABLES", "Mutant", "row", "table"]

TABLES = ("maths", "engine", "optim", "risk", "adversary", "parallel")


@dataclass(frozen=True)
class Mutant:
    """One fault: in `file`, `was` (found exactly once) becomes `fault`; one of `tests` must then fail."""

    id: str  # the row of the findings, or a name of our own; unique
    file: str  # from the root of the repository
    was: str
    fault: str
    tests: tuple[str, ...]  # pytest arguments; keep them few, since each row pays for them


def row(name: str, file: str, was: str, fault: str, *tests: str) -> Mutant:
    """A fault in `file` of the package, without its ending; tests are named from `tests/` on."""
    return Mutant(name, f"src/leeward/{file}.py", was, fault, tuple(f"tests/{test}" for test in tests))


def table() -> list[Mutant]:
    """Every row of every package's table."""
    from importlib import import_module

    return [row for name in TABLES for row in import_module(f"tools.mutants.{name}").MUTANTS]
