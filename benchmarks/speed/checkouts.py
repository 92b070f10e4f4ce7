"""Is this checkout slower than another one? Rounds of training in processes that take turns.

    python benchmarks/speed/checkouts.py OTHER [--pairs 3] [--rounds 5]       OTHER: the root of the other checkout

Each process trains one workload with the package of one checkout, on as many threads as there are cores; the other
checkout's follows at once, so that both meet the same machine. The figure is the median over pairs of this checkout's
median round over the other's, with its range. Both get the same env, this checkout's.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKLOADS = {"64 envs": 64, "no memory": None}
N_ENVS, N_STEPS = 64, 128


def one(workload: str, rounds: int) -> None:
    """In a process of its own: seconds of each round after the first."""
    sys.path.insert(0, str(ROOT))
    from benchmarks.speed.bars import BatchedBars

    from leeward import DistributionalPPO

    lstm = WORKLOADS[workload]
    network = {"net_arch": [64, 64]} | ({} if lstm is None else {"lstm_hidden_size": lstm})
    model = DistributionalPPO(
        "MlpPolicy" if lstm is None else "MlpLstmPolicy",
        BatchedBars(N_ENVS),
        n_steps=N_STEPS,
        batch_size=1024,
        n_epochs=4,
        seed=0,
        device="cpu",
        policy_kwargs=network,
    )
    seconds = []
    for turn in range(rounds + 1):
        begin = time.perf_counter()
        model.learn(N_ENVS * N_STEPS, reset_num_timesteps=turn == 0)
        seconds.append(time.perf_counter() - begin)
    print(json.dumps(seconds[1:]))


def rounds_of(checkout: pathlib.Path, workload: str, rounds: int) -> float:
    command = [sys.executable, __file__, "--one", workload, "--rounds", str(rounds)]
    path = os.environ | {"PYTHONPATH": str(checkout / "src")}
    done = subprocess.run(command, env=path, capture_output=True, text=True, check=True)
    return statistics.median(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", nargs="?", type=pathlib.Path)
    parser.add_argument("--one", choices=list(WORKLOADS), help=argparse.SUPPRESS)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.one:
        one(options.one, options.rounds)
        return
    print("| workload | this over the other | range | seconds a round, this and the other |\n|---|---|---|---|")
    for workload in WORKLOADS:
        pairs = []
        for turn in range(options.pairs):
            both = (ROOT, options.other.resolve())
            order = both if turn % 2 == 0 else both[::-1]
            found = {checkout: rounds_of(checkout, workload, options.rounds) for checkout in order}
            pairs.append((found[both[0]], found[both[1]]))
        ratios = [mine / theirs for mine, theirs in pairs]
        mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        spread = f"{min(ratios):.3f} … {max(ratios):.3f}"
        print(f"| {workload} | {statistics.median(ratios):.3f} | {spread} | {mine:.3f}, {theirs:.3f} |", flush=True)


if __name__ == "__main__":
    main()
