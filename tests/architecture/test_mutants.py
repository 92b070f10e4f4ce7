"""The table of mutants fits the code it mutates; `make mutants` then shows that each is killed."""

import ast
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tools.mutants import Mutant, table
from tools.mutants.splice import Misplaced, mutated
from tools.mutants.verdict import Watch

ROOT = Path(__file__).parents[2]
LESSONS = ROOT / "docs" / "lessons.md"
# Rows of docs/lessons.md, sections 1 to 7, each of which is a fault in code that some mutant must put back. Ids that
# share a row there are one lesson, and a mutant of any of them will do.
LESSONS_WITH_A_MUTANT = (
    # Returns, advantages, bootstrapping
    "A-math2 B-gae E-gae", "A8", "A2", "A9", "B-fix3 B-test4 C2 D2", "E-V1", "E-area2", "A-FP3", "N3", "N4", "N11",
    # Policy objective
    "B-ppo E-V3", "A6", "B1", "A12 B-fix5", "B-perf1", "A5 A-test3", "B4", "C5 D5", "B-fix4 E-AWR", "B3",
    # Value distribution
    "A-math3 E-quantile", "F2", "A1", "A4 A-FP1 B-fix2 B5 E-V5", "A-math1", "B2 E-V2", "E-V5c B-perf2", "A-FP2",
    "C7 D7", "E1", "C3 D3", "C1 D4", "N1",
    # Risk
    "A3 A-test2 B-fix1", "G4", "A10 C6 D6 E2", "D6", "E-rec2", "G3", "G6",
    # Gradient pipeline and optimisers
    "D1 D8", "E-area3", "N6", "A7 E-good2", "H4",
    # Population and robustness; telemetry
    "C4", "N7", "B-metrics C-metrics D9 E-prod", "A11", "N9",
)  # fmt: skip
LESSONS_WITHOUT = {
    "N8": "populations are not built yet",
    "C-lessons": "it is about how claims are proved, and no fault in code",
}
SOURCE = '''
LIMIT = 3


class Account:
    fee = 1 + 2

    def pay(self, price, units):  # a comment that says λ
        """What is paid."""
        total = (price +
                 self.fee) * units  # both
        if total > LIMIT:
            total = total - 1
            self.paid = total
        return self.book(total, "long")

    @property
    def rate(self):
        return 1

    @rate.setter
    def rate(self, value):
        self.kept = value


def pay(price):
    def twice(x):
        return x + x

    return twice(price) + fee(price)
'''


@pytest.mark.parametrize(
    ("where", "was", "fault", "line"),
    [
        ("Account.pay", "total - 1", "total", "total = (total)"),
        ("Account.pay", "total>LIMIT", "False", "if (False):"),
        ("Account.pay", "total = (price + self.fee) * units", "total = 0", "total = 0  # both"),
        ("Account.pay", "self.book(total, 'long')", "self.book(0, 'long')", "return (self.book(0, 'long'))"),
        ("Account.pay", "price + self.fee", "price - self.fee", "total = ((price - self.fee)) * units  # both"),
        ("Account", "fee = 1 + 2", "fee = 0", "fee = 0"),
        ("Account.rate", "self.kept = value", "pass", "pass"),
        ("", "LIMIT = 3", "LIMIT = 4", "LIMIT = 4"),
        ("pay.twice", "x + x", "x * x", "return (x * x)"),
        ("pay", "x + x", "x", "return (x)"),
    ],
)
def test_code_is_found_by_its_syntax_and_replaced_alone(where: str, was: str, fault: str, line: str) -> None:
    lines = mutated(SOURCE, where, was, fault).splitlines()
    assert [new.strip() for new in lines if new not in SOURCE.splitlines()] == [line]


def test_an_operand_stays_one_operand() -> None:
    # 3 * x - 1 would be another product.
    text = mutated("def f(x):\n    return 3 * g(x)\n", "f", "g(x)", "x - 1")
    assert text == "def f(x):\n    return 3 * (x - 1)\n"


def test_several_statements_take_the_place_of_several() -> None:
    was = "total = total - 1\nself.paid = total"
    text = mutated(SOURCE, "Account.pay", was, "if total:\n    total = 0\nself.paid = 0")
    block = "        if total > LIMIT:\n            if total:\n                total = 0\n            self.paid = 0\n"
    assert block in text


@pytest.mark.parametrize(
    ("where", "was", "fault", "message"),
    [
        ("Account.pay", "total + 1", "0", "not found"),
        ("", "total - 1", "0", "not found"),  # it stands in a function
        ("Account", "total - 1", "0", "not found"),
        ("pay", "x", "0", "not unique: 2 times"),
        ("Account.sell", "total", "0", "there is no 'Account.sell'"),
        ("Account.pay", "total - 1", "total  -  1", "the fault is what is there"),
        ("Account.pay", "total - 1", "", "there is no code"),
    ],
)
def test_code_that_is_not_there_once_is_refused(where: str, was: str, fault: str, message: str) -> None:
    with pytest.raises(Misplaced, match=message):
        mutated(SOURCE, where, was, fault)


def test_a_fault_that_cannot_be_written_in_its_place_is_refused() -> None:
    with pytest.raises(Misplaced, match="cannot be written there"):
        mutated("def f(x):\n    if x: return 1\n", "f", "return 1", "if x:\n    return 2\nreturn 1")


@pytest.mark.parametrize(
    ("fault", "call", "broken"),
    [
        ("return price", "assert pay(1, None) == 2", ""),  # a test that sees the fault
        ("return prise", "pay(1, None)", "NameError: name 'prise' is not defined"),
        ("total = total + 1\nreturn total", "pay(1, None)", "UnboundLocalError: cannot access local variable 'total'"),
        ("from math import fee\nreturn fee", "pay(1, None)", "ImportError: cannot import name 'fee' from 'math'"),
        ("return book.fees", "pay(1, 'book')", "AttributeError: 'str' object has no attribute 'fees'"),
        ("return book.fee + 1", "pay(1, None)", ""),  # `fee` was there before; that nothing has it is the fault
        ("return price", "other(1)", ""),  # a name that is missing elsewhere
        ("return prise", "in_a_group()", "NameError: name 'prise' is not defined"),
        ("return prise", "hidden()", "NameError: name 'prise' is not defined"),
        ("return price", "in_words()", "NameError: name 'prise' is not defined"),
    ],
)
def test_code_that_cannot_run_is_told_from_a_fault_that_a_test_sees(fault: str, call: str, broken: str) -> None:
    source = "def pay(price, book):\n    return price + book.fee\n"
    mutant = Mutant("m", "src/account.py", "pay", "return price + book.fee", fault, ("tests/a.py",))
    watch = Watch(mutant, Path("/tree"))
    names: dict[str, Any] = {}
    exec(compile(mutated(source, mutant.where, mutant.was, mutant.fault), "/tree/src/account.py", "exec"), names)

    def in_a_group() -> None:
        try:
            names["pay"](1, None)
        except NameError as error:
            raise ExceptionGroup("several", [ValueError("one"), error]) from None

    def hidden() -> None:
        try:
            names["pay"](1, None)
        except NameError as error:
            raise ValueError("wrong") from error

    def in_words() -> None:
        raise ValueError("worker 1 stopped: NameError: name 'prise' is not defined")

    names |= {"in_a_group": in_a_group, "hidden": hidden, "in_words": in_words, "other": lambda x: missing}  # noqa: F821
    with pytest.raises(Exception) as raised:
        exec(call, names)
    watch.pytest_exception_interact(SimpleNamespace(excinfo=raised))
    assert watch.broken.startswith(broken) and bool(watch.broken) == bool(broken)


def test_no_two_mutants_share_an_id() -> None:
    ids = [mutant.id for mutant in table()]
    assert len(ids) == len(set(ids))


def finding(name: str) -> str | None:
    """The id of a lesson at the start of a mutant's name."""
    found = re.match(r"([A-Z]-\w+|[A-Z]\d+)(?=\s)", name)
    return found and found[1]


@pytest.mark.parametrize(
    ("name", "id"),
    [
        ("A1 padded rows count", "A1"),
        ("E-V5c a clip that acts is not told", "E-V5c"),
        ("A-math2 carry without lambda", "A-math2"),
        ("Z₂ divides by the value at risk", None),
        ("CVaR counts its last observation whole", None),
        ("C3", None),
    ],
)
def test_a_lesson_is_told_by_the_first_word(name: str, id: str | None) -> None:
    assert finding(name) == id


@pytest.mark.parametrize("ids", LESSONS_WITH_A_MUTANT)
def test_a_lesson_that_is_a_fault_in_code_has_a_mutant(ids: str) -> None:
    assert set(ids.split()) & {finding(mutant.id) for mutant in table()}


def test_every_lesson_has_a_mutant_or_a_reason_to_have_none() -> None:
    page = LESSONS.read_text(encoding="utf-8").partition("\n## 8.")[0]
    rows = [cells[1] for line in page.splitlines() if len(cells := line.split(" | ")[0].split("| ")) == 2]
    lessons = {" ".join(row.split(", ")) for row in rows if row != "id"}
    assert lessons == {*LESSONS_WITH_A_MUTANT, *LESSONS_WITHOUT}


def test_every_lesson_that_a_mutant_names_is_on_the_page() -> None:
    words = set(re.findall(r"[\w-]+", LESSONS.read_text(encoding="utf-8")))
    assert {found for mutant in table() if (found := finding(mutant.id)) is not None} - words == set()


@pytest.mark.parametrize("mutant", table(), ids=lambda mutant: mutant.id)
def test_a_mutant_changes_code_that_is_there_once_and_names_tests_that_exist(mutant: Mutant) -> None:
    mutated((ROOT / mutant.file).read_text(encoding="utf-8"), mutant.where, mutant.was, mutant.fault)
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).exists() and (not name or name.partition("[")[0] in functions(ROOT / path)), test


@cache
def functions(path: Path) -> set[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}
