"""Training speed: Leeward, its peers and its own bare network, interleaved in one process.

    python benchmarks/speed/run.py [--workloads NAME ...] [--processes 3] [--rounds 5] [--write]

Where nothing else is said 128 steps per rollout and 4 epochs of eight minibatches (a batch of 1,024 with 64 envs); net
[64, 64], float32, on an env that costs next to nothing (bars.py). Leeward as it comes: twin quantile critics,
distributional targets, all metrics. Leeward and its peers have one thread, and a thread per core; `PPO on segments`
backpropagates over the whole rollout.

The systems of a workload take turns, each one rollout and its update, after one to warm up, which is left out; those
that take longer than 20 s for a round have two. A figure is the median of the rounds, and of several fresh processes
the median (smallest … largest): where memory happens to lie is worth 10 % to a process. Workloads beyond 64 envs or
LSTM 64 have one process. The table says what the load of the machine was before. Wall time.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.speed.bare import BareNetwork
from benchmarks.speed.bars import BatchedBars
from benchmarks.speed.segments import SegmentPPO

from leeward import DistributionalPPO

HERE = pathlib.Path(__file__).parent
CORES = os.cpu_count() or 1
N_EPOCHS, NET = 4, [64, 64]
SLOW = 20.0  # seconds: what takes longer for a round is measured in two rounds


@dataclass(frozen=True)
class Workload:
    """What is trained."""

    n_envs: int = 64
    lstm: int | None = 64  # None: no memory
    n_steps: int = 128
    minibatches: int = 8
    shared: bool = False  # one LSTM for actor and critics
    settings: dict[str, Any] = field(default_factory=dict)  # of Leeward alone
    beside_itself: bool = False  # what the settings cost, against Leeward as it comes instead of its peers

    @property
    def size(self) -> int:
        """Steps of a rollout, of all envs."""
        return self.n_envs * self.n_steps

    @property
    def batch_size(self) -> int:
        return self.size // self.minibatches

    @property
    def large(self) -> bool:
        return self.n_envs > 64 or (self.lstm or 0) > 64


WORKLOADS = {
    "16 envs": Workload(16),
    "64 envs": Workload(64),
    "256 envs": Workload(256),
    "1024 envs": Workload(1024),
    "LSTM 256": Workload(lstm=256),
    "one shared LSTM": Workload(shared=True),
    "128 quantiles": Workload(settings={"n_quantiles": 128}, beside_itself=True),
    "categorical, 51 atoms": Workload(settings={"critic": "categorical"}, beside_itself=True),
    "one critic": Workload(settings={"twin_critics": False}),
    "no memory": Workload(lstm=None),
    "no memory, 16 envs × 256, batch 64": Workload(16, lstm=None, n_steps=256, minibatches=64),
    "no memory, 1 env × 2048, batch 64": Workload(1, lstm=None, n_steps=2048, minibatches=32),
}


class System:
    """Something with `collect` (in Stable-Baselines3: `collect_rollouts`) and `train`, and how long they took."""

    def __init__(self, owner: Any, threads: int, round_: Callable[[], Any]) -> None:
        self.threads, self.round = threads, round_
        self.seconds: dict[str, list[float]] = {"training": [], "rollout": [], "update": []}
        self._watch(owner, "collect" if hasattr(owner, "collect") else "collect_rollouts", "rollout")
        self._watch(owner, "train", "update")

    def _watch(self, owner: Any, method: str, phase: str) -> None:
        plain = getattr(owner, method)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            begin = time.perf_counter()
            try:
                return plain(*arguments, **keywords)
            finally:
                self.seconds[phase].append(time.perf_counter() - begin)

        setattr(owner, method, timed)

    def run(self) -> float:
        torch.set_num_threads(self.threads)
        begin = time.perf_counter()
        self.round()
        self.seconds["training"].append(time.perf_counter() - begin)
        return self.seconds["training"][-1]

    def medians(self) -> dict[str, float]:
        return {phase: statistics.median(seconds[1:]) for phase, seconds in self.seconds.items()}


def build(kind: type[Any], workload: Workload, **more: Any) -> Any:
    network: dict[str, Any] = {"net_arch": NET}
    if workload.lstm is not None:
        network |= {"lstm_hidden_size": workload.lstm, "shared_lstm": workload.shared}
        network |= {"enable_critic_lstm": not workload.shared}
    return kind(
        "MlpPolicy" if workload.lstm is None else "MlpLstmPolicy",
        BatchedBars(workload.n_envs),
        n_steps=workload.n_steps,
        batch_size=workload.batch_size,
        n_epochs=N_EPOCHS,
        seed=0,
        device="cpu",
        policy_kwargs=network,
        **more,
    )


def model_system(kind: type[Any], workload: Workload, threads: int, **more: Any) -> System:
    model, first = build(kind, workload, **more), iter([True])
    return System(model, threads, lambda: model.learn(workload.size, reset_num_timesteps=next(first, False)))


def plain_system(plain: BareNetwork | SegmentPPO, threads: int = CORES) -> System:
    return System(plain, threads, plain.round)


def systems_of(workload: Workload) -> dict[str, System]:
    """Leeward, its bare network, and its peers or Leeward as it comes."""
    own = workload.settings
    found = {"leeward": model_system(DistributionalPPO, workload, CORES, **own)}
    found["bare network"] = plain_system(BareNetwork(build(DistributionalPPO, workload, **own), workload.n_envs))
    if workload.beside_itself:
        return found | {"leeward as it comes": model_system(DistributionalPPO, workload, CORES)}
    name, peer = ("PPO", PPO) if workload.lstm is None else ("RecurrentPPO", RecurrentPPO)
    if CORES > 1:
        found["leeward, 1 thread"] = model_system(DistributionalPPO, workload, 1, **own)
    for threads in sorted({1, CORES}):
        told = "1 thread" if threads == 1 else f"{threads} threads"
        found[f"{name}, {told}"] = model_system(peer, workload, threads)
        if workload.shared and workload.lstm is not None:
            sizes = {"n_steps": workload.n_steps, "batch_size": workload.batch_size, "n_epochs": N_EPOCHS}
            found[f"PPO on segments, {told}"] = plain_system(
                SegmentPPO(BatchedBars(workload.n_envs), **sizes, lstm=workload.lstm, net=NET), threads
            )
    return found


def measure(name: str, rounds: int) -> dict[str, dict[str, float]]:
    """Seconds of each phase of a round, by system, in this process."""
    systems = systems_of(WORKLOADS[name])
    for turn in range(rounds + 1):
        for system in systems.values():
            if turn < 3 or system.seconds["training"][0] < SLOW:
                system.run()
    return {key: system.medians() for key, system in systems.items()}


def measure_apart(name: str, processes: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    command = [sys.executable, __file__, "--workloads", name, "--processes", "0", "--rounds", str(rounds)]
    found = []
    for _ in range(processes):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def lines_of(name: str, runs: list[dict[str, dict[str, float]]]) -> list[str]:
    size, lines = WORKLOADS[name].size, []
    for system in runs[0]:
        cells = [f"{statistics.median(size / run[system][phase] for run in runs):,.0f}" for phase in runs[0][system]]
        ratios = [run[system]["training"] / run["leeward"]["training"] for run in runs]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} … {max(ratios):.2f})"
        lines.append(f"| {name} | {system} | {' | '.join(cells)} | {spread} |")
    return lines


def plot(found: dict[str, list[dict[str, dict[str, float]]]]) -> str:
    """Bars of training steps per second, by workload and system, as SVG."""
    rows = [
        (name, system, statistics.median(WORKLOADS[name].size / run[system]["training"] for run in runs))
        for name, runs in found.items()
        for system in runs[0]
    ]
    top, parts, y = max(speed for *_, speed in rows), [], 10
    previous = None
    for name, system, speed in rows:
        if name != previous:
            y += 14
            parts.append(f'<text x="8" y="{y + 11}" font-weight="bold">{name}</text>')
            previous = name
        colour = "#2a6f97" if system.startswith("leeward") else "#999"
        parts.append(f'<text x="330" y="{y + 11}" text-anchor="end">{system}</text>')
        parts.append(f'<rect x="340" y="{y}" width="{400 * speed / top:.1f}" height="13" fill="{colour}"/>')
        parts.append(f'<text x="{346 + 400 * speed / top:.1f}" y="{y + 11}">{speed:,.0f}</text>')
        y += 17
    style = "<style>text { font: 12px sans-serif }</style>"
    size = f'width="840" height="{y + 12}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(parts)}</svg>\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="*", default=list(WORKLOADS), choices=list(WORKLOADS))
    parser.add_argument("--processes", type=int, default=3, help="0: measure in this one, and print JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="store table and plot beside this script")
    arguments = parser.parse_args()
    if arguments.processes == 0:
        print(json.dumps(measure(arguments.workloads[0], arguments.rounds)))
        return
    load = os.getloadavg()[0]
    lines = [
        "# Training speed",
        "",
        f"`python benchmarks/speed/run.py --write`: env steps per second of wall time, {CORES} cores, "
        f"{arguments.rounds} rounds in each of {arguments.processes} processes (large workloads: one); load average "
        f"before: {load:.1f}. Leeward and its bare network have {CORES} threads where nothing else is said. The last "
        "column is the time of a round over Leeward's of the same process: above 1, Leeward is faster.",
        "",
        "| workload | system | training | rollout alone | update alone | time over Leeward's |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    found = {}
    for name in arguments.workloads:
        processes = 1 if WORKLOADS[name].large else arguments.processes
        found[name] = measure_apart(name, processes, arguments.rounds)
        lines += lines_of(name, found[name])
        print("\n".join(lines_of(name, found[name])), flush=True)
        if arguments.write:  # after each, so that an end before the last one loses nothing
            (HERE / "RESULTS.md").write_text("\n".join([*lines, "", "![](speed.svg)", ""]), encoding="utf-8")
            (HERE / "speed.svg").write_text(plot(found), encoding="utf-8")


if __name__ == "__main__":
    main()
