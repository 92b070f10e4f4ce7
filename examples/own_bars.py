"""Your own bars: from a CSV to a trained, tested and reported agent.

    python examples/own_bars.py bars.csv [--steps 100000] [--limit -0.02] [--open-test]

The command line does the same (`leeward train --data bars.csv`); this is how to do it from Python. Without a file it
writes a synthetic one first, so that it runs as it stands. The test split stays sealed unless you ask for it.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from leeward.backtest import judge
from leeward.config.load import load_config
from leeward.market import check, load, prepare
from leeward.report import write_report
from leeward.training.run_dir import RunDir
from leeward.training.testing import Examination, backtest_run
from leeward.training.trainer import Progress, train


def write_synthetic_bars(path: Path) -> None:
    """A CSV such as yours might be: one line per bar, and a feature of your own making (`feature_*`)."""
    bars = load("sample:synthetic")
    frame = pd.DataFrame({name: getattr(bars, name)[:, 0] for name in ("open", "high", "low", "close", "volume")})
    frame["feature_trend"] = np.log(frame["close"]).diff(10)  # known at the close of its bar: no future in it
    frame.insert(0, "time", bars.time)
    frame.to_csv(path, index=False)


def show(progress: Progress) -> None:
    if progress.validation is not None:
        score = progress.validation
        print(f"{progress.steps:>9,} steps: validation Sharpe {score.sharpe:+.2f}, CVaR of a bar {score.cvar:.2%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bars", type=Path, nargs="?", default=Path("runs/synthetic.csv"))
    parser.add_argument("--run-dir", type=Path, default=Path("runs/own-bars"))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--limit", type=float, help="on the mean of the worst 5 %% of bars, a log-return such as -0.02")
    parser.add_argument("--open-test", action="store_true")
    options = parser.parse_args()

    if not options.bars.exists():
        options.bars.parent.mkdir(parents=True, exist_ok=True)
        write_synthetic_bars(options.bars)

    # 1. What is wrong with these bars? (`prepare` raises on errors; this also shows the warnings.)
    for problem in check(options.bars):
        print(problem)

    # 2. One config for everything; configs/reference.yaml lists the keys.
    config = load_config(
        None,
        ["env.action=positions", "policy.name=MlpPolicy", "ppo.gamma=0.5"],
        {"data.source": str(options.bars), "ppo.total_steps": options.steps, "risk.limit": options.limit},
    )
    market = prepare(config.data)
    for name, split in market.splits.items():
        print(f"{name}: {split.n_bars} bars from {market.bars.time[split.start]}")

    # 3. Train, and backtest the checkpoint that did best on validation.
    run = RunDir.create(options.run_dir, config)
    with run.locked():
        train(run, market, show, resume=False)
        results = {"validation": backtest_run(run, market, "validation")}
        if options.open_test:
            examination = Examination(run, market, "test")  # from here on it stands in run.json
            if examination.opening is not None:
                print(f"The same test bars were opened {examination.opening.earlier} times before.")
            results["test"] = examination.backtest()
        for name, result in results.items():
            result.write(run.path / "backtest" / name)
        report = write_report(run.path)

    # 4. What it is worth.
    for verdict in judge({name: result.metrics for name, result in results.items()}):
        print(verdict.line)
    print(f"Report: {report}")


if __name__ == "__main__":
    main()
