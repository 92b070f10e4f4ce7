"""A tiny run on bars of a file, backtested on two splits, that the tests of this folder share."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from ..support.tiny_runs import leeward_here, settings


@pytest.fixture(scope="session")
def bars_file(tmp_path_factory) -> Path:
    """A market of 1000 days, with volume."""
    rng = np.random.default_rng(5)
    close = 100.0 * np.exp(np.cumsum(rng.normal(0.0003, 0.01, 1000)))
    opens = np.concatenate([[100.0], close[:-1]]) * np.exp(rng.normal(0.0, 0.002, 1000))
    frame = pd.DataFrame(
        {
            "time": pd.date_range("2001-01-01", periods=1000, freq="D"),
            "open": opens,
            "high": np.maximum(opens, close) * 1.002,
            "low": np.minimum(opens, close) * 0.998,
            "close": close,
            "volume": rng.integers(900_000, 1_100_000, 1000),
        }
    )
    path = tmp_path_factory.mktemp("data") / "bars.csv"
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def finished(bars_file, tmp_path_factory) -> Path:
    """A finished run with a limit; train and validation are backtested, the test split is sealed."""
    path = tmp_path_factory.mktemp("runs") / "finished"
    own = [
        part for part in settings("risk.limit=-0.002", "risk.alpha=0.1", "ppo.learning_rate=0.01") if part != "--set"
    ]
    changes = [f"--set={setting}" for setting in own if "n_bars" not in setting]  # a file has as many as it has
    code, _, err = leeward_here("train", "--data", str(bars_file), "--run-dir", str(path), "--quiet", *changes)
    assert code == 0, err
    code, _, err = leeward_here("backtest", str(path), "--split", "train", "--quiet")
    assert code == 0, err
    return path


@pytest.fixture
def run_copy(finished, tmp_path) -> Path:
    """A run of one's own, to break."""
    return Path(shutil.copytree(finished, tmp_path / "runs" / "copy"))
