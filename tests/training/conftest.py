"""A finished tiny run that the tests of this folder share."""

from pathlib import Path

import pytest

from leeward.config.load import load_config
from leeward.market import prepare
from leeward.training.run_dir import RunDir

from ..support.tiny_runs import TINY, leeward_here, settings


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A finished tiny run on the synthetic market."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    code, _, err = leeward_here("train", "--data", "sample:synthetic", "--run-dir", str(path), "--quiet", *settings())
    assert code == 0, err
    return path


@pytest.fixture
def begun(tmp_path):
    """A run that knows its bars and has not learned anything yet, and those bars."""
    config = load_config(None, [*TINY, "data.source=sample:synthetic"])
    run, market = RunDir.create(tmp_path / "runs" / "begun", config), prepare(config.data)
    run.bind(market)
    return run, market
