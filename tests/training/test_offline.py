"""Nothing needs the network: a run trains, is tested and reported where every connection is refused."""

import subprocess
import sys

from ..support.tiny_runs import TINY

SCRIPT = """
import socket
def refuse(*_, **__):
    raise AssertionError("the network was asked")
socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
import tempfile
from pathlib import Path
from leeward.config.load import load_config
from leeward.market import prepare
from leeward.report import write_report
from leeward.training.run_dir import RunDir
from leeward.training.testing import backtest_run
from leeward.training.trainer import train
settings = {settings!r}
config = load_config(None, settings)
with tempfile.TemporaryDirectory() as folder:
    run, market = RunDir.create(Path(folder) / "run", config), prepare(config.data)
    train(run, market, lambda progress: None, resume=False)
    backtest_run(run, market, "validation").write(run.path / "backtest" / "validation")
    page = write_report(run.path).read_text()
assert "http" not in page.split("<body")[1].split("<script")[0]
try:
    socket.create_connection(("localhost", 9))
except AssertionError:
    print("offline")
"""


def test_a_run_is_trained_tested_and_reported_without_the_network():
    settings = [*TINY, "data.source=sample:synthetic", "ppo.total_steps=480"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{settings!r}", repr(settings))], capture_output=True, text=True
    )
    assert done.stdout == "offline\n", done.stderr[-2000:]
