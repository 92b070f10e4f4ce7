"""Is a population better than random search at equal budget? The control market, four members, five seeds.

    python benchmarks/population/random_search.py --all            # runs what is not stored yet
    python benchmarks/population/random_search.py --table --write  # RESULTS_random_search.md from what is stored

Both begin with the same members and settings, as `leeward tune --compare random` has them; those of random search keep
theirs to the end. The best of each by the score on validation is an ordinary run, which is then backtested on
validation and, once, on test. Orders are carried out here, one after the other: what Ray would do, bit for bit.
"""

import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.stored import Row, Stored, command_line
from tests.support.populations import finish
from tests.support.score_comparison import interquartile_mean, interval, resampled

from leeward.backtest.judgement import share_of_best
from leeward.config.load import load_config
from leeward.training.population.best import write_best
from leeward.training.population.population import Mode, Population
from leeward.training.testing import backtest_run

HERE = pathlib.Path(__file__).parent
RESULTS = Stored(HERE / "results_random_search.jsonl")
CONTROL = HERE.parents[1] / "configs" / "control.yaml"
MODES: tuple[Mode, ...] = ("population", "random")
SPLITS = ("validation", "test")
SEEDS, MEMBERS, INTERVALS, STEPS = 5, 4, 6, 147456
SETTINGS = (
    f"ppo.total_steps={STEPS}", f"tune.interval={STEPS // INTERVALS}",
    "tune.space={ppo.learning_rate: {low: 1e-5, high: 1e-2, log: true}, ppo.clip_range: {values: [0.1, 0.2, 0.3]}, "
    "ppo.ent_coef: {low: 0, high: 0.02}, ppo.gamma: {low: 0.1, high: 0.99}, ppo.gae_lambda: {low: 0.5, high: 0.99}}",
)  # fmt: skip


def searched(mode: Mode, seed: int) -> Row:
    """The best of one search: its score, and its growth on each split as a share of that of the best policy."""
    with tempfile.TemporaryDirectory() as name:
        config = load_config(CONTROL, [*SETTINGS, f"seed={seed}"])
        population = finish(Population.create(pathlib.Path(name), config, MEMBERS, mode))
        best = write_best(population, trials=population.trials)
        market = best.market()
        shares = {split: share_of_best(backtest_run(best, market, split).metrics) for split in SPLITS}
        winner = population.winner
        settings = population.lineage(winner)[-1].requested
    return {"exploits": population.exploits, "score": winner.standing.value, "step": winner.step,
            "settings": settings, **shares}  # fmt: skip


def run_all() -> None:
    for seed in range(SEEDS):
        for mode in MODES:
            RESULTS.ensure(lambda mode=mode, seed=seed: searched(mode, seed), mode=mode, seed=seed)


def table() -> str:
    rows = {mode: [RESULTS.get(mode=mode, seed=seed) for seed in range(SEEDS)] for mode in MODES}
    lines = [
        "# A population beside random search",
        "",
        f"Written by `benchmarks/population/random_search.py --table --write`: the control market, {MEMBERS} members,",
        f"{INTERVALS} intervals, {STEPS:,} steps a member. A figure is the growth of the best member as a share of",
        "that of the best clipped-linear policy; the member is chosen by its score on validation. Both searches of a",
        "seed begin with the same members, so that a difference is of one seed; intervals are of resampled seeds.",
        "",
        "| seed | population, validation | random | population, test | random | take-overs | best at step | random |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for seed, (ours, theirs) in enumerate(zip(*rows.values(), strict=True)):
        shares = " | ".join(f"{row[split]:.1%}" for split in SPLITS for row in (ours, theirs))
        lines.append(f"| {seed} | {shares} | {ours['exploits']} | {ours['step']:,} | {theirs['step']:,} |")
    lines += ["", "| split | population | random | difference | 95 % interval |", "|---|---|---|---|---|"]
    verdicts = []
    for split in SPLITS:
        ours, theirs = (np.array([row[split] for row in rows[mode]]) for mode in MODES)
        low, high = interval(resampled(ours - theirs, np.random.default_rng(0)), 0.95)
        middle = [f"{float(interquartile_mean(each)):.1%}" for each in (ours, theirs, ours - theirs)]
        lines.append(f"| {split} | {' | '.join(middle)} | {low:+.1%} … {high:+.1%} |")
        verdict = "better" if low > 0.0 else "worse" if high < 0.0 else "no better"
        verdicts.append(f"{verdict} than random search on {split}")
    lines += ["", "Figures of a split are interquartile means over seeds. At this budget the population is"]
    lines += [f"{' and '.join(verdicts)}."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    command_line(__doc__, table, HERE / "RESULTS_random_search.md", {"all": run_all})
