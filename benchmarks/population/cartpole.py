"""Does a population find the learning rate? CartPole, nine fixed rates × five seeds, then five populations of four.

    python benchmarks/population/cartpole.py --all            # runs what is not stored yet, into results_cartpole.jsonl
    python benchmarks/population/cartpole.py --table --write  # RESULTS_cartpole.md from what is stored

A run has 20 intervals, and a score after each: the mean return of 20 deterministic episodes on other seeds. It is
judged by the mean of its 20 scores, the area under its curve: most rates come to 500 in the end, and what differs is
how soon, and whether they stay there. The best fixed rate has the best mean over its seeds.

A member of a population is judged in the same way, along the line of members that it took over from: 20 intervals, each
with a score and a rate. The best member is the one with the largest mean, and its rate is the median of its 20: the
rate of the last interval may be a step that was never judged. Bounds were set by fixed runs on two other seeds, so that
the best rate lies between them; all this was decided before a population was run.

Orders are carried out here, one after the other: what Ray would do, bit for bit.
"""

import math
import pathlib
import statistics
import sys
import tempfile
from dataclasses import replace

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.stored import Row, Stored, command_line
from tests.support.populations import finish

from leeward.config.load import load_config
from leeward.training.population.population import Mode, Population

HERE = pathlib.Path(__file__).parent
RESULTS = Stored(HERE / "results_cartpole.jsonl")
LOW, HIGH, SEEDS, MEMBERS, INTERVALS = 1e-3, 1.0, 5, 4, 20
RATES = [float(f"{LOW * (HIGH / LOW) ** (i / 8):.3g}") for i in range(9)]
RATE, STEPS = "ppo.learning_rate", 15360
SETTINGS = (
    "gym.id=CartPole-v1", "policy.name=MlpPolicy", "policy.net_arch=[32]", "ppo.n_envs=8", "ppo.n_steps=32",
    "ppo.batch_size=64", "ppo.n_epochs=4", "ppo.gamma=0.98", "ppo.n_quantiles=12", f"ppo.total_steps={STEPS}",
    "ppo.learning_rate_schedule=constant", f"tune.interval={STEPS // INTERVALS}",
)  # fmt: skip


def carried_out(mode: Mode, members: int, *more: str) -> tuple[Population, dict[tuple[int, int], float]]:
    """All orders of a population, and the score of each member and round."""
    with tempfile.TemporaryDirectory() as name:
        config = load_config(None, [*SETTINGS, *more])
        found = finish(Population.create(pathlib.Path(name), config, members, mode))
    told = [event for event in found.log.events if event["event"] == "interval"]
    return found, {(event["member"], event["round"]): event["outcome"]["value"] for event in told}


def fixed(rate: float, seed: int) -> Row:
    """One run with one rate, through the same code: the replay of a schedule without turns."""
    _, scores = carried_out("replay", 1, f"seed={seed}", f"tune.schedule={{0: {{{RATE}: {rate}}}}}")
    return {"scores": [*scores.values()]}


def population(seed: int) -> Row:
    """Rates and scores along the line of every member of the last round, and what `leeward tune` calls the best."""
    space = f"tune.space={{{RATE}: {{low: {LOW}, high: {HIGH}, log: true}}}}"
    found, scores = carried_out("population", MEMBERS, f"seed={seed}", space)
    winner = found.winner
    lines = []
    for member in found.orders:
        line = found.lineage(replace(winner, member=member, round=found.round))
        lines.append({"rates": [order.requested[RATE] for order in line],
                      "scores": [scores[order.member, order.round] for order in line]})  # fmt: skip
    last = found.lineage(winner)[-1].requested[RATE]
    return {"exploits": found.exploits, "lines": lines, "winner": {"rate": last, "score": winner.standing.value}}


def run_all() -> None:
    for seed in range(SEEDS):
        for rate in RATES:
            RESULTS.ensure(lambda rate=rate, seed=seed: fixed(rate, seed), kind="fixed", rate=rate, seed=seed)
    for seed in range(SEEDS):
        RESULTS.ensure(lambda seed=seed: population(seed), kind="population", seed=seed)


def table() -> str:
    areas = {rate: [statistics.mean(RESULTS.get(kind="fixed", rate=rate, seed=seed)["scores"]) for seed in range(SEEDS)]
             for rate in RATES}  # fmt: skip
    means = {rate: statistics.mean(found) for rate, found in areas.items()}
    best, middle = max(means, key=means.__getitem__), statistics.median(means.values())
    error = math.sqrt(statistics.mean(statistics.variance(found) for found in areas.values()) / SEEDS)
    near = [rate for rate in RATES if means[best] - means[rate] <= 2.0 * math.sqrt(2.0) * error]
    lines = [
        "# CartPole: does a population find the learning rate?",
        "",
        f"Written by `benchmarks/population/cartpole.py --table --write`. {STEPS:,} steps in {INTERVALS} intervals,",
        "constant rate. A score is the mean return of 20 deterministic episodes on other seeds, and a run is judged by",
        "the mean of its scores, one after each interval. A member of a population is judged in the same way along the",
        "line of members that it took over from; the best has the largest mean, and its rate is the median over its",
        "intervals. All this was decided before a population was run; `best/` is what `leeward tune` would give.",
        "",
        "| fixed rate | mean | seeds | after the last interval |",
        "|---|---|---|---|",
    ]
    for rate in RATES:
        last = statistics.mean(RESULTS.get(kind="fixed", rate=rate, seed=s)["scores"][-1] for s in range(SEEDS))
        lines.append(f"| {rate:.2e}{' (best)' * (rate == best)} | {means[rate]:.0f} | "
                     f"{', '.join(f'{area:.0f}' for area in areas[rate])} | {last:.0f} |")  # fmt: skip
    lines += [
        "",
        f"The median fixed choice has {middle:.0f}. The standard error of a mean is {error:.0f}, and means range from "
        f"{min(means.values()):.0f} to {means[best]:.0f}.",
        f"Within two standard errors of a difference of the best: {', '.join(f'{rate:.2e}' for rate in near)}.",
        "",
        "| population, seed | mean of its best | its rate | over the best fixed rate | within 2 × | above the median | "
        "take-overs | rate of `best/` | score of `best/` |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    within = above = 0
    for seed in range(SEEDS):
        row = RESULTS.get(kind="population", seed=seed)
        line = max(row["lines"], key=lambda line: statistics.mean(line["scores"]))
        area, rate = statistics.mean(line["scores"]), statistics.median(line["rates"])
        is_near, is_above = 0.5 <= rate / best <= 2.0, area > middle
        within, above = within + is_near, above + is_above
        yes = ["yes" if each else "no" for each in (is_near, is_above)]
        lines.append(f"| {seed} | {area:.0f} | {rate:.2e} | {rate / best:.2f} | {yes[0]} | {yes[1]} | "
                     f"{row['exploits']} | {row['winner']['rate']:.2e} | {row['winner']['score']:.0f} |")  # fmt: skip
    lines += ["", f"Within a factor of two of the best fixed rate: {within} of {SEEDS} populations; above the median "
              f"fixed choice: {above} of {SEEDS}."]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    command_line(__doc__, table, HERE / "RESULTS_cartpole.md", {"all": run_all})
