"""Tiny runs, through the command line or in this process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leeward.config.load import load_config
from leeward.market import prepare
from leeward.training.run_dir import RunDir
from leeward.training.trainer import train

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


def finish(process):
    """(exit code, stdout, stderr) of a process."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def settings(*more):
    return [part for setting in (*TINY, *more) for part in ("--set", setting)]


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A finished tiny run on the synthetic market."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    code, _, err = finish(
        leeward("train", "--data", "sample:synthetic", "--run-dir", str(path), "--quiet", *settings())
    )
    assert code == 0, err
    return path


def train_here(path, *more, market=None):
    """A tiny run in this process -> its directory and the market it was trained on."""
    config = load_config(None, [*TINY, "data.source=sample:synthetic", *more])
    run, market = RunDir.create(path, config), market or prepare(config.data)
    seen = []
    with run.locked():
        train(run, market, seen.append, resume=False)
    return run, market, seen
