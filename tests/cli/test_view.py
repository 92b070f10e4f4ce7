"""What is shown while training runs."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console

from leeward.cli.view import JsonLines, LiveView, PlainLines, Silent, percent, percent_2, ratio, say
from leeward.training.trade_metrics import Score
from leeward.training.trainer import Progress

EXPLORING = Score(growth=-0.031, sharpe=-0.17, max_drawdown=-0.327, cvar=-0.0274)
FLAT = Score(growth=0.0, sharpe=math.nan, max_drawdown=0.0, cvar=0.0)
HALFWAY = Progress(
    steps=50_000,
    total_steps=100_000,
    seconds=10.0,
    steps_per_second=5_000.0,
    metrics={"trade/sharpe": -0.17, "train/value_loss": math.nan},
    exploring=EXPLORING,
    validation=FLAT,
    best=None,
    stopping=False,
)


def console(width=100):
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def shown(view, where, *updates):
    with view:
        for progress in updates:
            view.update(progress)
    return where.file.getvalue()


def test_plain_lines_come_once_every_tenth_of_the_run():
    where = console()
    steps = [replace(HALFWAY, steps=1_000 * i) for i in range(1, 101)]
    lines = shown(PlainLines(where), where, *steps).splitlines()
    assert [line.split(" of ")[0].strip() for line in lines] == ["1,000", *(f"{10 * i},000" for i in range(1, 11))]


def test_a_plain_line_is_one_line_however_narrow_the_log_is():
    where = console(width=20)
    assert shown(PlainLines(where), where, HALFWAY) == (
        " 50,000 of 100,000 steps | 5,000 steps/s, 0:00:10 left"
        " | exploring: growth −3.1 % a year, Sharpe −0.17, drawdown −32.7 %, CVaR of a bar −2.74 %"
        " | validation: growth 0 % a year, Sharpe –, drawdown 0 %, CVaR of a bar 0 %\n"
    )


@pytest.mark.parametrize("width", [80, 100, 200])
def test_the_live_view_shows_bar_speed_time_left_and_aligned_numbers(width):
    where = console(width)
    best = Score(growth=0.1, sharpe=1.0, max_drawdown=-0.1, cvar=-0.01)
    text = shown(LiveView(where), where, replace(HALFWAY, best=best))
    lines = [line.rstrip() for line in text.splitlines()]
    assert " 50,000 of 100,000 steps  5,000 steps/s, 0:00:10 left" in lines[0]
    assert lines[2].split() == ["growth", "a", "year", "Sharpe", "drawdown", "CVaR", "of", "a", "bar"]
    assert [line.split("  ")[0].strip() for line in lines[3:6]] == ["exploring", "validation", "best so far"]
    assert len({len(line) for line in lines[2:6]}) == 1, "numbers end under their headings"
    assert max(map(len, lines)) <= 80


def test_the_live_view_says_that_it_is_stopping():
    where = console()
    assert "stopping after this update" in shown(LiveView(where), where, replace(HALFWAY, stopping=True))


def test_json_lines_hold_null_for_what_is_not_a_number(capsys):
    with JsonLines() as view:
        view.update(HALFWAY)
        view.write({"run": "runs/a", "validation": {"sharpe": math.inf}})
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == {"trade/sharpe": -0.17, "train/value_loss": None}
    assert second == {"run": "runs/a", "validation": {"sharpe": None}}


def test_silence_is_silent(capsys):
    with Silent() as view:
        view.update(HALFWAY)
    assert capsys.readouterr() == ("", "")


def test_numbers_carry_their_sign_and_unit():
    assert [percent(0.123), percent(-0.5), percent(0.0), percent(math.nan)] == ["+12.3 %", "−50.0 %", "0 %", "–"]
    assert [percent_2(-0.01234), ratio(1.0), ratio(-0.5), ratio(math.inf)] == ["−1.23 %", "+1.00", "−0.50", "–"]


def test_what_is_said_is_not_wrapped_nor_taken_for_markup():
    where = console(width=10)
    say(where, "leeward train --resume runs/[bold]x")
    assert where.file.getvalue() == "leeward train --resume runs/[bold]x\n"
