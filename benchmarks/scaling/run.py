"""What a round of training costs, part by part, and what two workers make of two cores.

    tools/alone.sh python benchmarks/scaling/run.py [--updates 8] [--turns 2] [--write]

Needs the extra `ray`. Parts are CPU time of one thread, which other work on the machine changes little; the table of
workers is wall time, since they wait for each other, and the kinds of launch take turns: see the load before believing
it. model.py reads what is stored here.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import torch
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from torch.distributed import HashStore, ProcessGroupGloo

from leeward.algorithm.parallel.process_group import finish
from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.market import Market, prepare
from leeward.training.checkpoints import write_checkpoint
from leeward.training.run_dir import RunDir
from leeward.training.tasks import task_of
from leeward.training.trainer import make_model, pick_up, train

HERE = pathlib.Path(__file__).parent
COMMON = (
    "data.source=sample:synthetic", "ppo.total_steps=100000000", "validation.every_updates=1000000",
    "checkpoint.every_updates=1000000",
)  # fmt: skip
WORKLOADS = {
    "env-bound": (
        "ppo.n_envs=512", "ppo.n_steps=64", "ppo.n_epochs=1", "ppo.batch_size=32768", "policy.lstm_hidden_size=8",
        "policy.net_arch=[8]", "ppo.n_quantiles=12",
    ),
    "update-bound": ("ppo.n_envs=64", "ppo.n_steps=128", "ppo.n_epochs=10", "ppo.batch_size=1024"),
}  # fmt: skip


def parts(config: RunConfig, market: Market) -> dict[str, float]:
    """Seconds of CPU and bytes of one round, one process and one thread."""
    torch.set_num_threads(1)
    task = task_of(config, market)
    model = make_model(config, task.env(config.seed))
    model.set_logger(Logger(folder=None, output_formats=[]))
    callback = CallbackList([])
    model.learn(config.ppo.n_envs * config.ppo.n_steps)  # compiled, and warm
    callback.init_callback(model)
    found: dict[str, list[float]] = {"rollout": [], "update": [], "checkpoint": [], "take over": []}
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder) / "checkpoint"
        for _ in range(5):
            began = time.process_time()
            collected = model.collect(callback)
            assert collected is not None
            found["rollout"].append(time.process_time() - began)
            found["update"].append(_cpu(lambda collected=collected: model.train(collected)))
            found["checkpoint"].append(_cpu(lambda: write_checkpoint(place, model, {"best": None, "updates": 1})))
            found["take over"].append(_cpu(lambda: pick_up(place, task, config)))
        size = sum(path.stat().st_size for path in place.iterdir())
    parameters = sum(each.numel() for each in model.policy.parameters())
    steps = config.ppo.n_envs * config.ppo.n_steps
    minibatches = config.ppo.n_epochs * -(-steps // (config.ppo.batch_size or steps))
    return {name: statistics.median(each) for name, each in found.items()} | {
        "steps": steps,
        "parameters": parameters,
        "messages": minibatches,
        "message bytes": 4 * parameters,
        "checkpoint bytes": size,
    }


def _cpu(act: Callable[[], Any]) -> float:
    began = time.process_time()
    act()
    return time.process_time() - began


def sums(sizes: list[int]) -> dict[str, float]:
    """Seconds of wall time for two processes, played by threads, to add up so many bytes over the loopback."""
    store = HashStore()

    def play(rank: int) -> dict[str, float]:
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=60)
        group, seconds = ProcessGroupGloo(store, rank, 2, options), {}
        for size in sizes:
            tensor, times = torch.ones(size // 4), []
            for _ in range(100):
                began = time.perf_counter()
                finish(group.allreduce([tensor]), rank, 2)
                times.append(time.perf_counter() - began)
            seconds[str(size)] = statistics.median(times)
        return seconds

    with ThreadPoolExecutor(2) as pool:
        return next(iter(pool.map(play, range(2))))


class _Enough(Exception):
    """So many updates were measured."""


def durations(launch: str, config: RunConfig, market: Market, updates: int) -> list[float]:
    """Seconds of wall time from update to update."""
    config = config.model_copy(update={"ppo": config.ppo.model_copy(update={"n_jobs": 1 if launch == "plain" else 2})})
    seconds: list[float] = []

    def show(progress: Any) -> None:
        seconds.append(progress.seconds)
        if len(seconds) > updates:
            raise _Enough

    with tempfile.TemporaryDirectory() as folder:
        run = RunDir.create(pathlib.Path(folder) / "run", config)
        torch.set_num_threads(2)
        with run.locked():
            try:
                if launch == "--workers 2":
                    from leeward.training.distributed.workers import train_with_workers

                    run.bind(market)
                    train_with_workers(run, 2, None, show, resume=False, notice=print, tell=print)
                else:
                    train(run, market, show, resume=False)
            except _Enough:
                pass
    return [after - before for before, after in pairwise(seconds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="store the results beside this script")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    stored: dict[str, Any] = {"load": load, "cores": os.cpu_count(), "parts": {}, "speed": {}, "durations": {}}
    for name, settings in WORKLOADS.items():
        config = load_config(None, [*COMMON, *settings])
        market = prepare(config.data)
        stored["parts"][name] = parts(config, market)
        seconds: dict[str, list[float]] = {"plain": [], "--jobs 2": [], "--workers 2": []}
        for _ in range(arguments.turns):
            for launch, found in seconds.items():
                found += durations(launch, config, market, arguments.updates)
        steps = config.ppo.n_envs * config.ppo.n_steps
        stored["speed"][name] = {launch: steps / statistics.median(found) for launch, found in seconds.items()}
        stored["durations"][name] = seconds["plain"]
    sizes = sorted({int(each["message bytes"]) for each in stored["parts"].values()} | {1_000, 1_000_000})
    stored["sums"] = sums(sizes)
    text = page(stored)
    print(text)
    if arguments.write:
        (HERE / "results.json").write_text(json.dumps(stored, indent=1) + "\n")
        (HERE / "RESULTS.md").write_text(text)


def page(stored: dict[str, Any]) -> str:
    lines = [
        "# What a round costs, and two workers on two cores",
        "",
        f"`tools/alone.sh python benchmarks/scaling/run.py --write`: {stored['cores']} cores; load average before: "
        f"{stored['load']:.1f}. Parts are CPU milliseconds of one thread.",
        "",
        "| workload | steps | rollout | update | messages | bytes each | checkpoint | bytes | take over |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, each in stored["parts"].items():
        cells = [f"{each['steps']:,}", *(f"{1e3 * each[part]:.0f} ms" for part in ("rollout", "update"))]
        cells += [f"{each['messages']}", f"{each['message bytes']:,}", f"{1e3 * each['checkpoint']:.0f} ms"]
        cells += [f"{each['checkpoint bytes']:,}", f"{1e3 * each['take over']:.0f} ms"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "Two processes add up gradients over the loopback (wall time, median of 100):", ""]
    lines += ["| bytes | ms |", "|---|---|"]
    lines += [f"| {int(size):,} | {1e3 * seconds:.2f} |" for size, seconds in stored["sums"].items()]
    lines += [
        "",
        "Env steps per second of wall time. On a busy machine two processes get a larger share of its cores than one,",
        "so believe ratios only where the load before was small:",
        "",
    ]
    lines += ["| workload | plain | --jobs 2 | --workers 2 | workers over plain |", "|---|---|---|---|---|"]
    for name, each in stored["speed"].items():
        speeds = " | ".join(f"{each[launch]:,.0f}" for launch in ("plain", "--jobs 2", "--workers 2"))
        lines.append(f"| {name} | {speeds} | {each['--workers 2'] / each['plain']:.2f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
