"""Numbers as they are shown: unit, minus sign, and a dash for what is not defined."""

import math
import re
from pathlib import Path

from leeward.backtest.wording import count, number, percent, share, span

SOURCE = Path(__file__).parents[2] / "src" / "leeward"


def test_a_fraction_is_shown_in_percent_with_a_real_minus_sign():
    assert [percent(0.0123), percent(-0.5, 1)] == ["1.23 %", "−50.0 %"]
    assert [percent(0.931, 0), percent(0.0)] == ["93 %", "0.00 %"]


def test_signed_numbers_carry_their_sign_and_zero_has_none():
    shown = [percent(0.123, 1, signed=True), percent(-0.5, 1, signed=True), percent(0.0, 1, signed=True)]
    assert shown == ["+12.3 %", "−50.0 %", "0 %"]
    assert [number(1.0, signed=True), number(-0.5, signed=True), number(0.0, signed=True)] == ["+1.00", "−0.50", "0"]
    assert [number(-0.5), number(12.345, 1), number(0.0)] == ["−0.50", "12.3", "0.00"]


def test_what_is_not_finite_is_a_dash():
    for value in (math.nan, math.inf, -math.inf):
        assert [percent(value), percent(value, signed=True), number(value), count(value)] == ["–"] * 4


def test_counts_have_their_thousands_apart():
    assert [count(12), count(1234567.4), count(-9876.0)] == ["12", "1 234 567", "−9 876"]


def test_a_share_has_as_many_digits_as_it_needs():
    assert [share(0.05), share(0.025), share(0.07), share(0.5), share(0.0)] == ["5 %", "2.5 %", "7 %", "50 %", "0 %"]


def test_a_time_is_told_as_somebody_would_say_it():
    assert [span(0.4), span(89.0), span(90.0), span(5399.0), span(180_000.0)] == [
        "0 s",
        "89 s",
        "2 min",
        "90 min",
        "50.0 h",
    ]


def test_nobody_else_writes_percent_by_hand():
    # f"{x:.1%}" has no space and a hyphen for a minus, f"{100 * x:.1f} %" is a second formatter
    by_hand = re.compile(r'\{[^{}"]*:[^{}]*%\}|\{100(\.0)? \* [^{}]*\} ?%')
    found = [
        f"{path.relative_to(SOURCE)}:{i}: {line.strip()}"
        for package in ("backtest", "cli", "report", "training")
        for path in sorted((SOURCE / package).rglob("*.py"))
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if by_hand.search(line) and "hovertemplate" not in line and path.name != "wording.py"
    ]
    assert found == []
