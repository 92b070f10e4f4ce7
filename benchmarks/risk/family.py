"""Is a limit kept on problems nobody tuned? Small ones with exact answers, drawn at random.

    python benchmarks/risk/family.py --half choosing --all [--seeds 3]     what is missing, in order
    python benchmarks/risk/family.py --half judging --all
    python benchmarks/risk/family.py --table [--write]                     the table of all stored runs

The problems are those of `tests/support/limit_problems.py`. Every agent has default settings apart from `risk=`, gamma
(1 where the episode ends, 0.99 where a time limit cuts it) and the budget. Constants of the controller may be chosen on
problems with even numbers; those with odd ones judge.

- `score`: mean return of the policy that the limit binds, 0 for the safest policy, 1 for the best one within the limit
- `excess`: how far its tail misses the limit, in standard deviations of X; above 0.05 the limit counts as broken
- `said`: what the end of training announced of the limit: broken, doubtful, or nothing
"""

import argparse
import pathlib
import statistics
import sys
import warnings

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.stored import Row, Stored
from tests.support.limit_problems import KINDS, Problem, ProblemEnv, draw

from leeward import DistributionalPPO
from leeward.maths import cvar

HERE = pathlib.Path(__file__).parent
RESULTS, PAGE = HERE / "results_family.jsonl", HERE / "RESULTS_family.md"
HALVES = {"choosing": (0, 2), "judging": (1, 3)}
STEPS, N_ENVS = 500_000, 8
EPISODES, FRESH_STEPS = 20_000, 1_000_000
KEPT = 0.05
MEASURES = {"steps": "step_return", "episodes": "episode_return"}


def problems(half: str) -> list[str]:
    """Their names: kind, measure, number."""
    return [
        f"{kind}_{short}_{number}"
        for number in HALVES[half]
        for kind, (_, measures) in KINDS.items()
        for short, measure in MEASURES.items()
        if measure in measures
    ]


def problem_of(name: str) -> Problem:
    kind, short, number = name.split("_")
    return draw(kind, MEASURES[short], int(number))


def outcomes(model: DistributionalPPO, problem: Problem, seed: int, n_envs: int = 1000) -> tuple[float, float]:
    """Mean return and tail of fresh episodes of the policy as it explores."""
    env = ProblemEnv(problem, n_envs, seed=10_000 + seed, staggered=False)
    observation, running = env.reset(), np.zeros(n_envs)
    episodes, steps = list[float](), list[np.ndarray]()
    of_steps = problem.measure == "step_return"
    while len(episodes) < EPISODES or (of_steps and len(steps) * n_envs < FRESH_STEPS):
        action, _ = model.predict(observation)
        observation, rewards, dones, _ = env.step(action)
        running += rewards
        steps.append(rewards)
        episodes += running[dones].tolist()
        running[dones] = 0.0
    samples = np.concatenate(steps) if of_steps else np.array(episodes)
    tail = cvar.from_samples(torch.as_tensor(samples, dtype=torch.float64), problem.alpha)
    return float(np.mean(episodes)), float(tail)


def run(name: str, seed: int) -> Row:
    problem = problem_of(name)
    risk = {"measure": problem.measure, "alpha": problem.alpha, "limit": problem.limit * problem.scale}
    gamma = 0.99 if problem.table.truncates else 1.0
    model = DistributionalPPO(
        "MlpPolicy", ProblemEnv(problem, N_ENVS, seed=seed), seed=seed, device="cpu", gamma=gamma, risk=risk
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.learn(STEPS)
    mean, tail = outcomes(model, problem, seed)
    return {
        "score": round(problem.score(mean), 4), "excess": round(problem.excess(tail), 4), "steps": STEPS,
        "said": said([str(each.message) for each in caught]),
    }  # fmt: skip


def said(messages: list[str]) -> str:
    """What a user is told of the limit at the end of training."""
    words = {"is broken by": "broken", "may be broken by": "doubtful"}
    return next((word for part, word in words.items() if any(part in each for each in messages)), "")


def table(rows: list[Row]) -> str:
    lines = ["# Limits on problems nobody tuned", "", "`python benchmarks/risk/family.py --table --write`", ""]
    lines += [line.strip() for line in (__doc__ or "").splitlines() if line.startswith("- ")]
    for half in HALVES:
        found = [row for row in rows if row["problem"] in problems(half)]
        if not found:
            continue
        lines += ["", f"## {half}", "", "| problem | score by seed | excess by seed |", "|---|---|---|"]
        for name in problems(half):
            own = sorted((row for row in found if row["problem"] == name), key=lambda row: row["seed"])
            if own:
                scores = ", ".join(f"{row['score']:.2f}" for row in own)
                lines.append(f"| {name} | {scores} | " + ", ".join(f"{row['excess']:+.3f}" for row in own) + " |")
        broken = [row for row in found if row["excess"] > KEPT]
        kept, middle = 1 - len(broken) / len(found), statistics.median(row["score"] for row in found)
        told, doubted = (sum(row["said"] == word for row in broken) for word in ("broken", "doubtful"))
        without_reason = sum(row["said"] != "" for row in found) - told - doubted
        lines += [
            "",
            f"{len(found)} runs: kept within {KEPT:.0%} of std X in {kept:.0%}, median score {middle:.3f}. Of "
            f"{len(broken)} broken limits {told} were announced as broken and {doubted} as doubtful; of the others "
            f"{without_reason} were.",
        ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=list(HALVES), default="choosing")
    parser.add_argument("--problems", help="names, separated by commas; none = all of the half")
    parser.add_argument("--seeds", type=int, default=3, help="the first so many seeds of each")
    for name in ("all", "table", "write"):
        parser.add_argument(f"--{name}", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    stored = Stored(RESULTS)
    if arguments.all:
        for name in arguments.problems.split(",") if arguments.problems else problems(arguments.half):
            for seed in range(arguments.seeds):
                stored.ensure(lambda name=name, seed=seed: run(name, seed), problem=name, seed=seed)  # type: ignore[misc]
    if arguments.table:
        print(table(stored.rows))
        if arguments.write:
            PAGE.write_text(table(stored.rows), encoding="utf-8")


if __name__ == "__main__":
    main()
