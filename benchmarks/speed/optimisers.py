"""What a step of each optimiser costs, and what gradient scaling adds to an update.

    python benchmarks/speed/optimisers.py [--rounds 60] [--write]

Optimisers: one million weights, float32, one thread, noise included, against `torch.optim.AdamW(foreach=True)`; in a
few large tensors and in many small ones. They take turns step by step in one process, each on its own network, so that
all of them find a cold cache. A large block is freed first: the allocator then keeps memory, which AdamW asks for in
every step and the utility optimisers do not; without that AdamW is up to twice as slow.
Gradient scaling: updates of `DistributionalPPO` on the workload of `run.py`, with and without, in turns.
Figures are medians of CPU time.
"""

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.speed.run import WORKLOADS, build
from tests.support.models import learn_seeing

from leeward import DistributionalPPO
from leeward.optim import UPGD, UPGDW, AdaptiveUPGD

LAYOUTS = {"4 layers of 512": (512, 4), "64 layers of 128": (128, 64)}
OPTIMISERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW(foreach=True)": lambda weights: torch.optim.AdamW(weights, foreach=True),
    "UPGD": UPGD,
    "UPGDW": UPGDW,
    "AdaptiveUPGD": AdaptiveUPGD,
}
SCALERS: dict[str, dict[str, Any] | None] = {
    "off": None,
    "element": {"warmup": 0},
    "norm": {"warmup": 0, "mode": "norm"},
}


def network(width: int, layers: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    weights = [p for _ in range(layers) for p in nn.Linear(width, width).parameters()]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator) * 0.01
    return weights


def step_times(width: int, layers: int, rounds: int) -> dict[str, float]:
    """Milliseconds of one step."""
    optimisers = {name: make(network(width, layers)) for name, make in OPTIMISERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in optimisers}
    for turn in range(rounds + 5):
        for name, optimiser in optimisers.items():
            begin = time.process_time()
            optimiser.step()
            if turn >= 5:
                seconds[name].append(time.process_time() - begin)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def update_times(rounds: int) -> dict[str, float]:
    """Milliseconds of one update (4 epochs of 8 minibatches) on a rollout that is already there."""
    workload = WORKLOADS["64 envs"]
    models = {name: build(DistributionalPPO, workload, vgs=vgs) for name, vgs in SCALERS.items()}
    rollouts = {name: learn_seeing(model, 1, lambda collected: collected)[-1] for name, model in models.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds):
        for name, model in models.items():
            begin = time.process_time()
            model.train(rollouts[name])
            seconds[name].append(time.process_time() - begin)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    large = torch.zeros(7_000_000)  # 28 MB: below the largest block that glibc always gives back at once
    del large
    lines = [
        "# What a step costs",
        "",
        "`python benchmarks/speed/optimisers.py --write`: CPU time of one step on a million weights, noise included.",
        "",
        "| weights in | optimiser | ms | × AdamW |",
        "|---|---|---|---|",
    ]
    for layout, (width, layers) in LAYOUTS.items():
        times = step_times(width, layers, arguments.rounds)
        base = times["AdamW(foreach=True)"]
        lines += [f"| {layout} | {name} | {ms:.2f} | {ms / base:.2f} |" for name, ms in times.items()]
    times = update_times(max(arguments.rounds // 3, 3))
    lines += ["", "An update of `DistributionalPPO` (LSTM 64, 64 envs × 128 steps, 4 epochs), by `vgs` mode:", ""]
    lines += ["| vgs | ms | overhead |", "|---|---|---|"]
    lines += [f"| {name} | {ms:.0f} | {100 * (ms / times['off'] - 1):+.1f} % |" for name, ms in times.items()]
    table = "\n".join([*lines, ""])
    print(table)
    if arguments.write:
        pathlib.Path(__file__).with_name("RESULTS_optimisers.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
