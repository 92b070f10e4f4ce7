"""The scheduler of a population with up to 1,000 members, without training: how its overhead grows.

    python benchmarks/scaling/simulate.py [--members 10 100 1000] [--write]

Every decision is made by the population's own code and every event is written as in a real run. What is made up are the
scores, and the durations: each update of a member lasts as long as one that run.py has recorded, and an interval is the
sum of them, so that members differ as real ones do. Members have a place each. Two overheads are counted: the driver's
CPU time for each interval of each member, and the time for which places stand empty, because a round ends with its
slowest member.
"""

import argparse
import heapq
import json
import pathlib
import sys
import tempfile
import time
from dataclasses import dataclass

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import numpy as np

from leeward.config.load import load_config
from leeward.training.population.orders import Outcome
from leeward.training.population.population import Population

HERE = pathlib.Path(__file__).parent
ROUNDS, INTERVAL = 5, 60.0  # comparisons, and seconds between two
SETTINGS = (
    "ppo.total_steps=320000", "tune.interval=64000", "tune.margin=1.0", "ppo.n_envs=64", "ppo.n_steps=100",
    "tune.space={ppo.learning_rate: {low: 1.0e-5, high: 1.0e-2, log: true}, ppo.gamma: {low: 0.8, high: 0.99}}",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What one simulated population cost."""

    members: int
    driver: float  # seconds of CPU, all of it
    empty: float  # share of the places' time in which nobody trained
    takeovers: int
    log: int  # bytes of population.jsonl

    @property
    def per_interval(self) -> float:
        """Seconds of the driver's CPU for an interval of one member."""
        return self.driver / (ROUNDS * self.members)


def simulate(members: int, recorded: list[float]) -> Found:
    rng = np.random.default_rng(members)
    mean = float(np.mean(recorded))
    updates = max(1, round(INTERVAL / mean))
    clock = trained = 0.0
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        population = Population.create(pathlib.Path(folder), load_config(None, SETTINGS), members, "population")
        drawing = 0.0  # CPU time of this script's own draws
        while True:
            before = time.process_time()
            lengths = rng.choice(recorded, size=(members, updates)).sum(axis=1)  # (members,) seconds
            ends = [(clock + float(length), order) for length, order in zip(lengths, population.pending, strict=True)]
            heap = [(end, order.member, order) for end, order in ends]
            heapq.heapify(heap)
            drawing += time.process_time() - before
            round_began = clock
            while heap:
                clock, _, order = heapq.heappop(heap)
                windows = tuple(rng.normal(np.log10(order.requested["ppo.learning_rate"]), 1.0, size=8).tolist())
                trained += clock - round_began
                outcome = Outcome(
                    order.steps, float(np.median(windows)), windows, began=order.requested, live=order.requested
                )
                population.report(order, outcome, clock - round_began)
            if population.is_finished:
                break
        driver = time.process_time() - began - drawing
        log = (pathlib.Path(folder) / "population.jsonl").stat().st_size
    return Found(members, driver, 1.0 - trained / (clock * members), population.exploits, log)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[10, 30, 100, 300, 1000])
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    arguments = parser.parse_args()
    recorded = json.loads((HERE / "results.json").read_text())["durations"]["update-bound"]
    lines = [
        "# The scheduler of a population, simulated",
        "",
        f"`python benchmarks/scaling/simulate.py --write`: {ROUNDS} rounds of {INTERVAL:.0f} seconds; updates last as "
        f"long as {len(recorded)} recorded ones ({np.mean(recorded):.2f} ± {np.std(recorded):.2f} s).",
        "",
        "| members | driver's CPU per interval of a member | driver busy | places empty | take-overs | log |",
        "|---|---|---|---|---|---|",
    ]
    for members in arguments.members:
        found = simulate(members, recorded)
        lines.append(
            f"| {members:,} | {1e3 * found.per_interval:.2f} ms | {found.driver / ROUNDS / INTERVAL:.2%} of one core | "
            f"{found.empty:.1%} | {found.takeovers:,} | {found.log / 1e6:.1f} MB |"
        )
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        (HERE / "RESULTS_simulate.md").write_text(text)


if __name__ == "__main__":
    main()
