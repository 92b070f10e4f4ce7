"""Training speed by number of processes: `n_jobs` 1 and 2 (or more), wall clock, the workload of recurrent.py.

    python benchmarks/speed/jobs.py [--jobs 1 2] [--rounds 5] [--envs 16 64 256] [--write]

The numbers of processes take turns; the figure is the median of the rounds, each of three rollouts and their updates,
after one to warm up, in which the processes are started. The minibatch grows with the envs, so that every row has
eight minibatches per epoch. Processes wait for each other, so other work on the machine slows several of them down more
than one. The table says what the load was before: wall times of several processes mean something only when it was near
0. `busy`, wall time over CPU time of the plain run, tells whether at least one core was free. On a busy machine the
ratio by CPU time of the first process, all its threads, is the better guess at what an idle one gives.
"""

import argparse
import os
import pathlib
import statistics
import time
from dataclasses import dataclass, field

import torch

from leeward import DistributionalPPO

try:
    from recurrent import N_STEPS, BatchedBars
except ImportError:  # as a module: python -m benchmarks.speed.jobs
    from benchmarks.speed.recurrent import N_STEPS, BatchedBars

ROLLOUTS = 3


@dataclass(frozen=True)
class Speed:
    """Seconds of each round."""

    steps: int
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # of the first process

    @property
    def by_wall(self) -> float:
        return self.steps / statistics.median(self.wall)

    @property
    def by_cpu(self) -> float:
        return self.steps / statistics.median(self.cpu)


def measure(n_envs: int, lstm: int, jobs: list[int], rounds: int) -> dict[int, Speed]:
    """By number of processes."""
    models = {
        n: DistributionalPPO(
            "MlpLstmPolicy", BatchedBars(n_envs), n_steps=N_STEPS, batch_size=16 * n_envs, n_epochs=4, seed=0,
            device="cpu", policy_kwargs={"lstm_hidden_size": lstm, "net_arch": [64, 64]}, n_jobs=n,
        )
        for n in jobs
    }  # fmt: skip
    found = {n: Speed(ROLLOUTS * n_envs * N_STEPS) for n in jobs}
    for turn in range(rounds + 1):
        for n, model in models.items():
            wall, cpu = time.perf_counter(), time.process_time()
            model.learn(found[n].steps, reset_num_timesteps=turn == 0)
            if turn:
                found[n].wall.append(time.perf_counter() - wall)
                found[n].cpu.append(time.process_time() - cpu)
    for model in models.values():
        model.dismiss()
    return found


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
        f"{os.cpu_count()} cores; load average before: {os.getloadavg()[0]:.1f}. Unless that is near 0, only the ratio "
        "by CPU time of the first process tells.",
        "",
        f"| envs | LSTM | {' | '.join(head)} | ratio | ratio by CPU time | busy |",
        f"|---|---|{'---|' * (len(head) + 3)}",
    ]
    for lstm in arguments.lstm:
        for n_envs in arguments.envs:
            speed = measure(n_envs, lstm, arguments.jobs, arguments.rounds)
            one, most = speed[arguments.jobs[0]], speed[arguments.jobs[-1]]
            figures = " | ".join(f"{each.by_wall:,.0f}" for each in speed.values())
            ratios = f"{most.by_wall / one.by_wall:.2f} × | {most.by_cpu / one.by_cpu:.2f} ×"
            lines.append(f"| {n_envs} | {lstm} | {figures} | {ratios} | {one.by_cpu / one.by_wall:.2f} |")
    table = "\n".join([*lines, ""])
    print(table)
    if arguments.write:
        pathlib.Path(__file__).with_name("JOBS.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
