"""Run a command in this process and look at what it printed and how it ended."""

import sys
from types import SimpleNamespace

import pytest

from leeward.cli import main


@pytest.fixture
def leeward(monkeypatch, capsys, tmp_path):
    """leeward(*arguments) -> code, out, err; the working directory is `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["leeward", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code or 0, out=out, err=err)

    return run
