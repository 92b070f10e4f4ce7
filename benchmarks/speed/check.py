"""Has training become slow? CPU time of a round over that of its own bare network, taken in turns in one process.

    python benchmarks/speed/check.py        exits with 1 when a ratio is above its limit

The limits are wide: they catch a Python loop over envs or a table of all pairs of quantiles, not a few per cent.
"""

import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.speed.bare import BareNetwork
from benchmarks.speed.run import WORKLOADS, build

from leeward import DistributionalPPO

# The ratio depends on the machine too: with 128 quantiles the same code has 1.6 on one and 2.4 on another, whose matrix
# products are faster and whose search in sorted targets is not. A table of all pairs has more than 10.
LIMITS = {"64 envs": 2.5, "128 quantiles": 3.5, "no memory": 5.0}
ROUNDS = 3


def ratio(name: str) -> float:
    workload = WORKLOADS[name]
    model, twin = (build(DistributionalPPO, workload, **workload.settings) for _ in range(2))
    bare, size = BareNetwork(twin, workload.n_envs), workload.size
    ratios = []
    for turn in range(ROUNDS + 1):
        begin = time.process_time()
        model.learn(size, reset_num_timesteps=turn == 0)
        middle = time.process_time()
        bare.round()
        ratios.append((middle - begin) / (time.process_time() - middle))
    return statistics.median(ratios[1:])  # the first warms up


def main() -> None:
    torch.set_num_threads(1)
    slow = False
    for name, limit in LIMITS.items():
        found = ratio(name)
        slow |= found > limit
        print(f"{name}: {found:.2f} × the time of the bare network (at most {limit})", flush=True)
    sys.exit("training has become slow: run benchmarks/speed/flame.py to see where" if slow else 0)


if __name__ == "__main__":
    main()
