"""Tiny runs on the synthetic market, through the command line or in this process."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest import mock

from leeward.cli import main
from leeward.config.load import load_config
from leeward.market import prepare
from leeward.training.run_dir import RunDir
from leeward.training.trainer import train

__all__ = ["TINY", "finish", "first_line", "leeward", "leeward_here", "settings", "train_here"]

TINY = (
    "data.n_bars=600",
    "ppo.total_steps=1920",  # 12 updates of 8 envs × 20 steps
    "ppo.n_envs=8",
    "ppo.n_steps=20",
    "ppo.batch_size=80",
    "ppo.n_epochs=2",
    "ppo.n_quantiles=12",
    "policy.lstm_hidden_size=8",
    "policy.net_arch=[8]",
    "env.episode_bars=30",
    "backtest.n_draws=50",
    "backtest.n_offsets=50",
    "checkpoint.every_updates=2",
    "validation.every_updates=3",
)


def leeward(*arguments, **options):
    """Start the command line as a process of its own."""
    return subprocess.Popen(
        [
            sys.executable,
            "-W",
            "error::UserWarning:leeward",
            "-c",
            # As in a terminal: tests that run in the background of a shell inherit that Ctrl-C is ignored.
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "import leeward.cli; leeward.cli.main()",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        **options,
    )


class _Captured(io.TextIOWrapper):
    """A stdout as a process has it: text above bytes."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="utf-8", newline="", write_through=True)

    def getvalue(self):
        return self.buffer.getvalue().decode()


def leeward_here(*arguments):
    """(exit code, stdout, stderr) of the command line in this process, which has imported all that it needs."""
    out, err, code = _Captured(), _Captured(), 0
    with mock.patch.object(sys, "argv", ["leeward", *arguments]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()


def first_line(process):
    """Wait for one line of stdout and read no further: `communicate` does not see what a file has read ahead."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(process.stdout.fileno(), 1)
        assert byte, f"stdout ended after {line!r}"
        line += byte
    return line.decode()


def finish(process):
    """(exit code, stdout, stderr) of a process."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def settings(*more):
    return [part for setting in (*TINY, *more) for part in ("--set", setting)]


def train_here(path, *more, market=None):
    """A tiny run in this process -> its directory and the market it was trained on."""
    config = load_config(None, [*TINY, "data.source=sample:synthetic", *more])
    run, market = RunDir.create(path, config), market or prepare(config.data)
    seen = []
    with run.locked():
        train(run, market, seen.append, resume=False)
    return run, market, seen
