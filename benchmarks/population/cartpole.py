"""Does a population find the learning rate? CartPole, nine fixed rates × five seeds, then five populations of four.

    python benchmarks/population/cartpole.py            # runs what is not stored yet, into results_cartpole.jsonl
    python benchmarks/population/cartpole.py --write    # RESULTS_cartpole.md from what is stored

A fixed rate is judged by the score (mean return of 20 deterministic episodes on other seeds) at the end of a run, a
population by the rate of its best member. Orders are carried out here, one after the other: what Ray would do, bit for
bit.
"""

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path

from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.training.population.member import carry_out
from leeward.training.population.population import Population

HERE = Path(__file__).parent
STORED, PAGE = HERE / "results_cartpole.jsonl", HERE / "RESULTS_cartpole.md"
LOW, HIGH, SEEDS, MEMBERS = 1e-4, 3e-2, 5, 4
RATES = [LOW * (HIGH / LOW) ** (i / 8) for i in range(9)]
RATE = "ppo.learning_rate"
SETTINGS = (
    "gym.id=CartPole-v1", "policy.name=MlpPolicy", "policy.net_arch=[32]", "ppo.n_envs=8", "ppo.n_steps=32",
    "ppo.batch_size=64", "ppo.n_epochs=4", "ppo.gamma=0.98", "ppo.n_quantiles=12", "ppo.total_steps=15360",
    "ppo.learning_rate_schedule=constant",
)  # fmt: skip


def config_of(seed: int, interval: int) -> RunConfig:
    space = f"tune.space={{{RATE}: {{low: {LOW}, high: {HIGH}, log: true}}}}"
    return load_config(None, [*SETTINGS, f"seed={seed}", f"tune.interval={interval}", space])


def fixed(rate: float, seed: int) -> dict[str, object]:
    """One run with one rate, through the same code: a member that is compared with nobody."""
    with tempfile.TemporaryDirectory() as name:
        population = Population.create(Path(name), config_of(seed, 15360), 1, "random")
        (order,) = population.pending
        config = population.config_of(0, {RATE: rate})
        outcome = carry_out(Path(name), config, type(order)(**(order.as_dict() | {"requested": {RATE: rate}})))
    return {"kind": "fixed", "rate": rate, "seed": seed, "score": outcome.value, "ended": outcome.ended}


def population(seed: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as name:
        found = Population.create(Path(name), config_of(seed, 15360 // 20), MEMBERS, "population")
        while found.pending:
            order = found.pending[0]
            found.report(order, carry_out(Path(name), found.config_of(order.member, order.requested), order))
        best = found.best
        assert best is not None
        lineage = [order.requested[RATE] for order in found.lineage(best)]
        last = {member: (outcome.live[RATE], outcome.value) for member, outcome in found.outcomes.items()}
    return {"kind": "population", "seed": seed, "rate": lineage[-1], "score": best.standing.value, "step": best.step,
            "rounds": len(found.rounds), "exploits": found.exploits, "rates": lineage, "last": last}  # fmt: skip


def stored() -> list[dict[str, object]]:
    return [json.loads(line) for line in STORED.read_text().splitlines()] if STORED.is_file() else []


def page() -> str:
    rows = stored()
    scores = {
        rate: [r["score"] for r in rows if r["kind"] == "fixed" and math.isclose(r["rate"], rate)] for rate in RATES
    }
    means = {rate: statistics.mean(found) for rate, found in scores.items() if found}
    best = max(means, key=means.__getitem__)
    middle = statistics.median(means.values())
    lines = [
        "# CartPole: does a population find the learning rate?",
        "",
        "Written by `benchmarks/population/cartpole.py --write`. 15,360 steps, constant rate. A fixed rate has the",
        "mean of the last scores of its seeds; a score is the mean return of 20 deterministic episodes on other seeds.",
        "",
        "| fixed rate | mean score | seeds |",
        "|---|---|---|",
        *(f"| {rate:.2e}{' (best)' * (rate == best)} | {mean:.0f} | {', '.join(f'{s:.0f}' for s in scores[rate])} |"
          for rate, mean in means.items()),
        "",
        f"The median fixed choice has {middle:.0f}.",
        "",
        "| population, seed | its best | its rate | over the best fixed rate | take-overs | above the median |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    found = [row for row in rows if row["kind"] == "population"]
    for row in found:
        ratio = row["rate"] / best
        lines.append(f"| {row['seed']} | {row['score']:.0f} | {row['rate']:.2e} | {ratio:.2f} | {row['exploits']} | "
                     f"{'yes' if row['score'] > middle else 'no'} |")  # fmt: skip
    near = sum(0.5 <= row["rate"] / best <= 2.0 for row in found)
    lines += ["", f"Within a factor of two of the best fixed rate: {near} of {len(found)} populations."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="the page, from what is stored")
    if parser.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
        return
    known = stored()
    have = {
        (row["kind"], round(math.log(row["rate"]), 6) if row["kind"] == "fixed" else 0, row["seed"]) for row in known
    }
    jobs = [("fixed", rate, seed) for seed in range(SEEDS) for rate in RATES] + [
        ("population", 1.0, s) for s in range(SEEDS)
    ]
    for kind, rate, seed in jobs:
        if (kind, round(math.log(rate), 6), seed) in have:
            continue
        row = fixed(rate, seed) if kind == "fixed" else population(seed)
        with STORED.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)


if __name__ == "__main__":
    main()
