"""What does a population cost beside the training inside it? Real Ray, two members on the control market.

    tools/alone.sh .venv/bin/python benchmarks/population/overhead.py --write

A round is the time from its orders to its comparison; what of it is not training of the slower member is overhead:
reading a checkpoint, the score on validation, writing, Ray. The first round, in which processes start and bars are
read, is shown apart.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from leeward.config.load import load_config
from leeward.training.population.orders import Order, Outcome
from leeward.training.population.places import run_on_ray
from leeward.training.population.population import Population

PAGE = Path(__file__).parent / "RESULTS_overhead.md"
CONTROL = Path(__file__).parents[2] / "configs" / "control.yaml"
MEMBERS, ROUNDS = 2, 3


def rounds_of(interval: int) -> list[tuple[float, float]]:
    """(seconds of the round, training seconds of its slower member) for each round."""
    space = "tune.space={ppo.learning_rate: {low: 1e-4, high: 1e-2, log: true}}"
    settings = [f"tune.interval={interval}", f"ppo.total_steps={interval * ROUNDS}", "tune.margin=0", space]
    found: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as name:
        population = Population.create(Path(name), load_config(CONTROL, settings), MEMBERS, "population")
        began, trained = time.monotonic(), dict[int, float]()

        def reported(order: Order, outcome: Outcome) -> None:
            nonlocal began
            trained[order.member] = outcome.training_seconds
            if len(trained) == MEMBERS:
                found.append((time.monotonic() - began, max(trained.values())))
                began = time.monotonic()
                trained.clear()

        run_on_ray(population, address=None, reported=reported)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interval", type=int, default=983040, help="env steps; about a minute of training")
    parser.add_argument("--write", action="store_true", help="the page")
    options = parser.parse_args()
    found = rounds_of(options.interval)
    later = [(whole - training, training) for whole, training in found[1:]]
    overhead, training = (statistics.median(column) for column in zip(*later, strict=True))
    lines = [
        "# What does a population cost beside its training?",
        "",
        f"Written by `benchmarks/population/overhead.py --interval {options.interval} --write`: {MEMBERS} members on",
        "the control market, real Ray, on a machine that others use too; both columns suffer from that alike.",
        "",
        "| round | seconds | training of the slower member | overhead |",
        "|---|---|---|---|",
        *(f"| {i} | {whole:.1f} | {inside:.1f} | {whole - inside:.1f} s, {(whole - inside) / inside:.1%} |"
          for i, (whole, inside) in enumerate(found)),
        "",
        f"After the first round the median overhead is {overhead:.1f} s beside {training:.1f} s of training: "
        f"{overhead / training:.1%}.",
    ]  # fmt: skip
    print("\n".join(lines))
    if options.write:
        PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
