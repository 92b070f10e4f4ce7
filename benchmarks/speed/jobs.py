"""Training speed by number of processes: `n_jobs` 1 and 2 (or more), wall clock, the workload of run.py.

    python benchmarks/speed/jobs.py [--jobs 1 2] [--rounds 5] [--envs 16 64 256] [--write]

One process has a thread per core, torch's default, and several have one thread each. The numbers of processes take
turns; the figure is the median of the rounds, each of three rollouts and their updates, after one to warm up, in which
the processes are started. The minibatch grows with the envs, so that every row has eight minibatches per epoch.
Processes wait for each other, so other work on the machine slows them down: the table says what the load was before.
"""

import argparse
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.speed.run import Workload, build

from leeward import DistributionalPPO

ROLLOUTS = 3


def measure(n_envs: int, lstm: int, jobs: list[int], rounds: int) -> dict[int, float]:
    """Steps per second, by number of processes."""
    workload = Workload(n_envs, lstm)
    models = {n: build(DistributionalPPO, workload, n_jobs=n) for n in jobs}
    steps = ROLLOUTS * workload.size
    seconds: dict[int, list[float]] = {n: [] for n in jobs}
    for turn in range(rounds + 1):
        for n, model in models.items():
            begin = time.perf_counter()
            model.learn(steps, reset_num_timesteps=turn == 0)
            seconds[n].append(time.perf_counter() - begin)
    for model in models.values():
        model.processes.stop()
    return {n: steps / statistics.median(each[1:]) for n, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--lstm", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    arguments = parser.parse_args()
    head = [f"n_jobs {n}" for n in arguments.jobs]
    lines = [
        "# Training speed by number of processes",
        "",
        f"`python benchmarks/speed/jobs.py --write`: env steps per second of wall time, {os.cpu_count()} cores; load "
        f"average before: {os.getloadavg()[0]:.1f}.",
        "",
        f"| envs | LSTM | {' | '.join(head)} | ratio |",
        f"|---|---|{'---|' * (len(head) + 1)}",
    ]
    for lstm in arguments.lstm:
        for n_envs in arguments.envs:
            speed = measure(n_envs, lstm, arguments.jobs, arguments.rounds)
            figures = " | ".join(f"{each:,.0f}" for each in speed.values())
            ratio = speed[arguments.jobs[-1]] / speed[arguments.jobs[0]]
            lines.append(f"| {n_envs} | {lstm} | {figures} | {ratio:.2f} × |")
    table = "\n".join([*lines, ""])
    print(table)
    if arguments.write:
        pathlib.Path(__file__).with_name("RESULTS_jobs.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
