"""What is shown while training runs."""

import fcntl
import io
import json
import math
import os
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace

import pytest
from rich.console import Console

from leeward.cli.view import JsonLines, LiveView, PlainLines, Silent, say
from leeward.training.trade_metrics import Score
from leeward.training.trainer import Progress

EXPLORING = Score(growth=math.log1p(-0.031), sharpe=-0.17, max_drawdown=-0.327, cvar=-0.0274)
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


WRITER = """
import io, signal, sys
from leeward.cli.view import JsonLines
signal.signal(signal.SIGUSR1, lambda *_: print("interrupted", file=sys.stderr))
for unbuffered in (False, True):
    if unbuffered:  # as PYTHONUNBUFFERED=1 makes it
        sys.stdout = io.TextIOWrapper(open(1, "wb", buffering=0, closefd=False), write_through=True)
    print("ready", file=sys.stderr)
    for number in range(20):
        JsonLines.write({"number": number, "filler": "x" * 6000})
"""


def test_json_lines_stay_whole_when_a_signal_comes_while_the_reader_is_slow():
    """One process for both kinds of stdout, since most of its time is that of its imports."""
    # By its path it finds the code that this process tests.
    environment = os.environ | {"PYTHONUNBUFFERED": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", WRITER], env=environment, **pipes) as writer:
        for _ in ("buffered", "unbuffered"):
            assert writer.stderr.readline() == b"ready\n"
            waiting = -1
            while waiting < (waiting := _bytes_waiting(writer.stdout)):  # until the pipe takes no more
                time.sleep(0.2)
            writer.send_signal(signal.SIGUSR1)
            assert writer.stderr.readline() == b"interrupted\n"
            assert [json.loads(writer.stdout.readline())["number"] for _ in range(20)] == list(range(20))
        assert writer.stdout.read() == b""
    assert writer.returncode == 0


def _bytes_waiting(pipe):
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]


def test_silence_is_silent(capsys):
    with Silent() as view:
        view.update(HALFWAY)
    assert capsys.readouterr() == ("", "")


def test_what_is_said_is_not_wrapped_nor_taken_for_markup():
    where = console(width=10)
    say(where, "leeward train --resume runs/[bold]x")
    assert where.file.getvalue() == "leeward train --resume runs/[bold]x\n"
