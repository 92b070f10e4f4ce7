"""Tells a test that saw the fault from code that could not run: a row with a name that does not exist proves nothing.

Such code fails any test that comes by, whether or not the test would see the fault that the row means.
"""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.mutants import Mutant

__all__ = ["Watch"]

_IN_WORDS = re.compile(r"\b(NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError): .*")


class Watch:
    """A pytest plugin: whether a test `failed`; `broken` says why the code of the row could not run, if it was that."""

    def __init__(self, mutant: Mutant, tree: Path) -> None:
        self.file, self.broken, self.failed = str(tree / mutant.file), "", False
        self.new_names = _attributes(mutant.fault) - _attributes(mutant.was)

    def pytest_exception_interact(self, call: Any) -> None:
        self.failed = True
        reasons = (self.reason(error) for error in _related(call.excinfo.value))
        self.broken = next((reason for reason in reasons if reason), "")

    def reason(self, error: BaseException) -> str:
        """Why this error is not a test's own, or nothing.

        A name that is missing counts, and an attribute only if the fault is what brings its name: that something is
        None where a test needs it may be just the fault. Another process tells of its errors in words.
        """
        if isinstance(error, SyntaxError):
            ours = error.filename == self.file
        elif isinstance(error, AttributeError):
            ours = error.name in self.new_names and self._raised_there(error)
        elif isinstance(error, NameError | ImportError):
            ours = self._raised_there(error)
        else:
            words = _IN_WORDS.search(str(error))
            return words[0] if words else ""
        return f"{type(error).__name__}: {error}" if ours else ""

    def _raised_there(self, error: BaseException) -> bool:
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        return last is not None and last.tb_frame.f_code.co_filename == self.file


def _attributes(code: str) -> set[str]:
    return {node.attr for node in ast.walk(ast.parse(textwrap.dedent(code))) if isinstance(node, ast.Attribute)}


def _related(error: BaseException | None) -> Iterator[BaseException]:
    """An error, those of its group, and those that it came from."""
    if error is None:
        return
    yield error
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _related(part)
    yield from _related(error.__cause__ or error.__context__)
