"""Run directories for the report: one with everything in it, made by a real backtest, and pieces to take away."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from leeward.backtest.robustness import RobustnessCurve, write_curve
from leeward.backtest.run import run_backtest
from leeward.config.trading import DataConfig, EnvConfig
from leeward.market import Market, prepare

LEVELS = np.array([0.02, 0.04, 0.25, 0.5, 0.75, 0.95])
NORMAL = np.array([-2.05, -1.75, -0.67, 0.0, 0.67, 1.64])


class Foretelling:
    """Long when the signal is up, and sure that the next bar is normal with a standard deviation of half a percent."""

    def __init__(self, market: Market) -> None:
        self.column = market.feature_names.index("feature_signal")

    def predict(self, observation, state=None, episode_start=None, deterministic=True):
        return np.clip(observation[:, [self.column]], 0.0, 1.0), state

    def predict_distribution(self, observation, state=None, episode_start=None):
        n = len(observation)
        step = self._normal(0.005, n)
        outlook = self._normal(0.05, n)
        outlook.step = step
        return outlook

    @staticmethod
    def _normal(std: float, n: int) -> SimpleNamespace:
        return SimpleNamespace(
            levels=LEVELS,
            quantiles=np.tile(std * NORMAL, (n, 1)),
            mean=np.zeros(n),
            step=None,
            var=lambda alpha: np.full(n, -1.645 * std),
            cvar=lambda alpha: np.full(n, -2.063 * std),
        )


class Silent(Foretelling):
    """The same without a distribution."""

    predict_distribution = None


@pytest.fixture(scope="session")
def market() -> Market:
    return prepare(DataConfig(source="sample:control", n_bars=2400, features=("return_1",)))


@pytest.fixture(scope="session")
def whole_run(market, tmp_path_factory) -> Path:
    """A run with every file a run can have."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    best = np.ones((market.split("test").n_decisions, 1))
    for split in ("train", "test"):
        options = {"rng": np.random.default_rng(0), "limit": -0.02, "n_offsets": 40, "n_draws": 20}
        if split == "test":
            options["best"] = best
        run_backtest(Foretelling(market), market, EnvConfig(), split=split, **options).write(
            folder / "backtest" / split
        )
    rows = ["time/total_timesteps,train/approx_kl,risk/cvar_measured,train/never_seen"]
    rows += [f"{1024 * i},{0.01 / i},{-0.03 + 0.001 * i}," for i in range(1, 6)]
    (folder / "progress.csv").write_text("\n".join(rows) + "\n")
    (folder / "config.yaml").write_text("risk:\n  limit: -0.02\n")
    (folder / "run.json").write_text(json.dumps({"seed": 7, "leeward": "0.1.0"}))
    alert = {"severity": "warn", "metric": "risk/gap", "message": "gap > 0", "cause": "tight", "remedy": "train on"}
    (folder / "alerts.jsonl").write_text(json.dumps(alert) + "\n")
    scores = {"random": (0.4, 0.35), "critic": (0.4, 0.3), "mad": (0.4, -0.1)}
    curve = RobustnessCurve(split="test", score="growth", norm="linf", steps=10, epsilons=(0.0, 0.1), scores=scores)
    write_curve(folder / "backtest" / "test", curve)
    return folder


@pytest.fixture
def run_copy(whole_run, tmp_path) -> Path:
    """A run directory of one's own, to break."""
    return Path(shutil.copytree(whole_run, tmp_path / "whole"))


@pytest.fixture(scope="session")
def bare_run(market, tmp_path_factory) -> Path:
    """The least a report can be made of: one split, no limit, no outlook, no logs."""
    folder = tmp_path_factory.mktemp("runs") / "bare"
    options = {"rng": np.random.default_rng(0), "n_offsets": 40, "n_draws": 20}
    run_backtest(Silent(market), market, EnvConfig(), split="validation", **options).write(
        folder / "backtest" / "validation"
    )
    return folder
