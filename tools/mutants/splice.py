"""Finds the code of a row by its syntax and puts the fault in its place: layout and comments do not count."""

import ast
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Misplaced", "mutated"]

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Code = Sequence[ast.expr | ast.stmt]


class Misplaced(ValueError):
    """The code of a row is not there exactly once, or its fault cannot stand there."""


def mutated(source: str, where: str, was: str, fault: str) -> str:
    """`source` with the fault.

    `where` is the qualified name of a function, method or class, or "" for what stands outside of all of them. `was`
    and `fault` are two expressions, or else statements: one, or several that follow each other.
    """
    scopes = _scopes(source, where)
    if not scopes:
        raise Misplaced(f"there is no {where!r}")
    old, new = ast.parse(textwrap.dedent(was)).body, ast.parse(textwrap.dedent(fault)).body
    if not (old and new):
        raise Misplaced("there is no code; write `pass` for nothing")
    found, put, text = _statements(scopes, old), list[ast.expr | ast.stmt](new), textwrap.dedent(fault).strip()
    if isinstance(old[0], ast.Expr) and isinstance(new[0], ast.Expr) and len(old) == len(new) == 1:
        found, put = _expressions(scopes, old[0].value), [new[0].value]
        text = f"({text})"  # one operand, whatever stands beside it
    if len(found) != 1:
        raise Misplaced("not found" if not found else f"not unique: {len(found)} times")
    if [ast.dump(node) for node in found[0]] == [ast.dump(node) for node in put]:
        raise Misplaced("the fault is what is there")
    result = _replaced(source, found[0], text)
    wanted = [ast.dump(_Swap(found[0], put).visit(scope)) for scope in scopes]
    try:
        fits = [ast.dump(scope) for scope in _scopes(result, where)] == wanted
    except SyntaxError:
        fits = False
    if not fits:
        raise Misplaced("the fault cannot be written there")
    return result


def _scopes(source: str, where: str) -> list[ast.AST]:
    tree = ast.parse(source)
    return list(_named(tree, where.split("."))) if where else [tree]


def _definitions(scope: ast.AST) -> Iterator[ast.AST]:
    """The functions and classes that stand directly in `scope`, under a condition too."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, DEFINITIONS):
            yield child
        else:
            yield from _definitions(child)


def _named(scope: ast.AST, names: list[str]) -> Iterator[ast.AST]:
    """More than one where a name is defined again, as a property and its setter are."""
    for child in _definitions(scope):
        if child.name == names[0]:  # type: ignore[attr-defined]
            if names[1:]:
                yield from _named(child, names[1:])
            else:
                yield child


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """All of a function; of a class or a module what stands outside of their functions and classes."""
    if not isinstance(scope, ast.Module | ast.ClassDef):
        yield from ast.walk(scope)
        return
    waiting: list[ast.AST] = [scope]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, DEFINITIONS)]


def _expressions(scopes: Sequence[ast.AST], wanted: ast.expr) -> list[Code]:
    same = ast.dump(wanted)
    nodes = (node for scope in scopes for node in _inside(scope))
    return [[node] for node in nodes if isinstance(node, ast.expr) and ast.dump(node) == same]


def _statements(scopes: Sequence[ast.AST], wanted: list[ast.stmt]) -> list[Code]:
    same = [ast.dump(statement) for statement in wanted]
    found: list[Code] = []
    for node in (node for scope in scopes for node in _inside(scope)):
        for name in ("body", "orelse", "finalbody"):
            block: list[ast.stmt] = getattr(node, name, None) or []
            runs = len(block) - len(same) + 1 if isinstance(block, list) else 0  # a lambda's body is no block
            for first in range(runs):
                run = block[first : first + len(same)]
                if [ast.dump(statement) for statement in run] == same:
                    found.append(run)
    return found


def _replaced(source: str, run: Code, text: str) -> str:
    """Columns count bytes. Further lines of a statement are indented as its first is."""
    first, last = run[0], run[-1]
    assert last.end_lineno is not None and last.end_col_offset is not None
    lines = source.encode().splitlines(keepends=True)
    begin = sum(map(len, lines[: first.lineno - 1])) + first.col_offset
    end = sum(map(len, lines[: last.end_lineno - 1])) + last.end_col_offset
    code = text.replace("\n", "\n" + " " * first.col_offset) if isinstance(first, ast.stmt) else text
    whole = b"".join(lines)
    return (whole[:begin] + code.encode() + whole[end:]).decode()


class _Swap(ast.NodeTransformer):
    """The tree as it must be when the text has been replaced."""

    def __init__(self, old: Code, new: Code) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        if node is self.old[0]:
            return self.new[0] if isinstance(node, ast.expr) else list(self.new)
        return None if any(node is other for other in self.old[1:]) else self.generic_visit(node)
