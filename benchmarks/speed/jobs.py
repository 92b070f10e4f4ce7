"""Training speed by number of processes: `n_jobs` 1 and 2 (or more), wall clock, the workload of recurrent.py.

    python benchmarks/speed/jobs.py [--jobs 1 2] [--rounds 5] [--envs 16 64 256] [--write]

The numbers of processes take turns; the figure is the median of the rounds, each of three rollouts and their updates,
after one to warm up, in which the processes are started. The minibatch grows with the envs, so that every row has
eight minibatches per epoch. Processes wait for each other, so other work on the machine slows several of them down more
than one: `busy` is wall time over CPU time of the plain run, and figures with more than 1.05 say little.
"""

import argparse
import os
import pathlib
import statistics
import time

import torch

from leeward import DistributionalPPO

try:
    from recurrent import N_STEPS, BatchedBars
except ImportError:  # as a module: python -m benchmarks.speed.jobs
    from benchmarks.speed.recurrent import N_STEPS, BatchedBars

ROLLOUTS = 3


def measure(n_envs: int, lstm: int, jobs: list[int], rounds: int) -> tuple[dict[int, float], float]:
    """Env steps per second of wall time, by number of processes; and how busy the machine was with other things."""
    models = {
        n: DistributionalPPO(
            "MlpLstmPolicy", BatchedBars(n_envs), n_steps=N_STEPS, batch_size=16 * n_envs, n_epochs=4, seed=0,
            device="cpu", policy_kwargs={"lstm_hidden_size": lstm, "net_arch": [64, 64]}, n_jobs=n,
        )
        for n in jobs
    }  # fmt: skip
    steps = ROLLOUTS * n_envs * N_STEPS
    seconds: dict[int, list[float]] = {n: [] for n in jobs}
    busy = []
    for turn in range(rounds + 1):
        for n, model in models.items():
            begin, cpu = time.perf_counter(), time.process_time()
            model.learn(steps, reset_num_timesteps=turn == 0)
            if turn:
                seconds[n].append(time.perf_counter() - begin)
                if n == 1:
                    busy.append(seconds[n][-1] / (time.process_time() - cpu))
    for model in models.values():
        model.dismiss()
    speed = {n: steps / statistics.median(values) for n, values in seconds.items()}
    return speed, statistics.median(busy) if busy else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--envs", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--lstm", type=int, nargs="+", default=[64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    head = [f"n_jobs {n}" for n in arguments.jobs]
    lines = [
        "# Training speed by number of processes",
        "",
        f"`python benchmarks/speed/jobs.py --write`: env steps per second of wall time, one thread per process, on "
        f"{os.cpu_count()} cores.",
        "",
        f"| envs | LSTM | {' | '.join(head)} | ratio | busy |",
        f"|---|---|{'---|' * (len(head) + 2)}",
    ]
    for lstm in arguments.lstm:
        for n_envs in arguments.envs:
            speed, busy = measure(n_envs, lstm, arguments.jobs, arguments.rounds)
            figures = " | ".join(f"{speed[n]:,.0f}" for n in arguments.jobs)
            ratio = speed[arguments.jobs[-1]] / speed[arguments.jobs[0]]
            lines.append(f"| {n_envs} | {lstm} | {figures} | {ratio:.2f} × | {busy:.2f} |")
    table = "\n".join([*lines, ""])
    print(table)
    if arguments.write:
        pathlib.Path(__file__).with_name("JOBS.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
