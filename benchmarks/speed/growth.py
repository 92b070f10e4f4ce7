"""Does anything grow faster than it must? Peak memory and time over the size of the task, each in a process of its own.

    python benchmarks/speed/growth.py [--axes NAME ...] [--write]

Engine: one axis at a time away from 64 envs × 128 steps, LSTM 64, 32 quantiles, on an env that costs next to nothing.
Market: Parquet files of minute bars with 20 features, read, prepared and trained on for rollouts of 64 envs.
`growth` is the slope on log-log scales between the last two sizes: 1 is linear, below 1 is less. Memory is the peak of
the process above what it held after its imports; time is CPU time, of torch one thread, the median of three rounds.
"""

import argparse
import json
import math
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

if TYPE_CHECKING:  # each size counts its own imports
    from leeward import DistributionalPPO
    from leeward.market import Market

HERE = pathlib.Path(__file__).parent
N_ENVS, N_STEPS = 64, 128
AXES: dict[str, list[int]] = {
    "envs": [16, 64, 256, 1024],
    "steps": [32, 128, 512, 2048],
    "LSTM": [32, 64, 128, 256, 512],
    "quantiles": [16, 32, 128, 512],
    "assets": [1, 3, 10, 30],
    "bars": [10_000, 100_000, 1_000_000, 10_000_000],
}


def engine(axis: str, size: int) -> dict[str, float]:
    """One rollout and its update, after one to warm up."""
    from benchmarks.speed.bars import BatchedBars

    from leeward import DistributionalPPO

    before = _peak()
    n_envs = size if axis == "envs" else N_ENVS
    n_steps = size if axis == "steps" else N_STEPS
    model = DistributionalPPO(
        "MlpLstmPolicy",
        BatchedBars(n_envs),
        n_steps=n_steps,
        batch_size=n_envs * n_steps // 8,
        n_epochs=4,
        n_quantiles=size if axis == "quantiles" else 32,
        policy_kwargs={"lstm_hidden_size": size if axis == "LSTM" else 64},
        seed=0,
    )
    return {"us_per_step": _microseconds(model, n_envs * n_steps), "mb": _peak() - before}


def _microseconds(model: "DistributionalPPO", steps: int) -> float:
    """CPU time of a step in a round of `steps`, after one to warm up."""
    rounds = []
    for turn in range(4):
        begin = time.process_time()
        model.learn(steps, reset_num_timesteps=turn == 0)
        rounds.append(time.process_time() - begin)
    return 1e6 * statistics.median(rounds[1:]) / steps


def trading(n_bars: int, n_assets: int) -> dict[str, float]:
    """Read and prepare a file, then one rollout and its update."""
    from leeward import DistributionalPPO
    from leeward.env.sb3 import TradingVecEnv
    from leeward.market import prepare

    def read(bars: int) -> "Market":
        with tempfile.TemporaryDirectory() as folder:
            # Written by another process: what it takes to make the file is not what it takes to read it.
            subprocess.run([sys.executable, __file__, "--make", folder, str(bars), str(n_assets)], check=True)
            begin = time.process_time()
            market = prepare(bars=pathlib.Path(folder) / "bars.parquet")
            seconds.append(time.process_time() - begin)
            return market

    seconds: list[float] = []
    read(1000)  # imports and compiles
    before = _peak()
    market = read(n_bars)
    prepared = _peak() - before
    model = DistributionalPPO(
        "MlpLstmPolicy",
        TradingVecEnv(market, N_ENVS),
        batch_size=1024,
        n_epochs=4,
        policy_kwargs={"lstm_hidden_size": 64},
        seed=0,
    )
    return {
        "us_per_bar": 1e6 * seconds[-1] / (n_bars * n_assets),
        "mb_prepared": prepared,
        "us_per_step": _microseconds(model, N_ENVS * N_STEPS),
        "mb": _peak() - before,
    }


def make(folder: str, n_bars: int, n_assets: int) -> None:
    """Minute bars of random walks, as one line per bar and asset, with features of their own up to 20."""
    import numpy as np
    import pandas as pd

    from leeward.market.features import FEATURES

    rng = np.random.default_rng(0)
    tables = []
    for asset in range(n_assets):
        close = 100.0 * np.exp(np.cumsum(1e-4 * rng.standard_normal(n_bars)))
        opening = np.append(100.0, close[:-1])
        table = {
            "time": np.datetime64("2000-01-03", "ns") + np.arange(n_bars) * np.timedelta64(60, "s"),
            "open": opening, "high": np.maximum(opening, close) * 1.0001, "low": np.minimum(opening, close) * 0.9999,
            "close": close, "volume": rng.integers(1, 1000, n_bars).astype(float),
        }  # fmt: skip
        if n_assets > 1:
            table["tic"] = np.full(n_bars, f"A{asset:02d}")
        table |= {f"feature_{i}": rng.standard_normal(n_bars) for i in range(20 - len(FEATURES))}
        tables.append(pd.DataFrame(table))
    pd.concat(tables).to_parquet(pathlib.Path(folder) / "bars.parquet")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0  # MiB


def measure(axis: str, size: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    if axis == "bars":
        return trading(size, 1)
    if axis == "assets":
        return trading(10_000, size)
    return engine(axis, size)


def lines_of(axis: str, found: dict[int, dict[str, float]]) -> list[str]:
    sizes = list(found)
    lines = []
    for key in found[sizes[0]]:
        # Per step or per bar: the whole grows one power faster along the axes that add steps or bars.
        total = 1.0 if key == "us_per_bar" or (key == "us_per_step" and axis in ("envs", "steps")) else 0.0
        last, previous = found[sizes[-1]][key], found[sizes[-2]][key]
        growth = total + math.log(last / previous) / math.log(sizes[-1] / sizes[-2])
        by_size = ", ".join(_short(found[size][key]) for size in sizes)
        lines.append(f"| {axis} {', '.join(f'{size:,}' for size in sizes)} | {UNITS[key]} | {by_size} | {growth:.2f} |")
    return lines


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


UNITS = {
    "us_per_step": "µs per env step",
    "mb": "MiB, all",
    "us_per_bar": "µs per bar read",
    "mb_prepared": "MiB, read and prepared",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--axes", nargs="*", default=list(AXES), choices=list(AXES))
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.make[0], int(arguments.make[1]), int(arguments.make[2]))
        return
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    lines = [
        "# Growth",
        "",
        "`python benchmarks/speed/growth.py --write`: CPU time of one thread and peak memory, by size; each size in a "
        "process of its own. `growth` is the power of the size that the total follows between the last two sizes.",
        "",
        "| axis | what | by size | growth |",
        "|---|---|---|---|",
    ]
    for axis in arguments.axes:
        found = {}
        for size in AXES[axis]:
            command = [sys.executable, __file__, "--one", axis, str(size)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[size] = json.loads(done.stdout.splitlines()[-1])
            print(axis, size, found[size], flush=True)
        lines += lines_of(axis, found)
        if arguments.write:  # after each, so that an end before the last one loses nothing
            (HERE / "RESULTS_growth.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
