"""Does Leeward learn at least as well as what it replaces? Other people's tasks with their published settings.

    python benchmarks/learning/run.py --system peer --task cartpole --seed 0      one run, one line in results.jsonl
    python benchmarks/learning/run.py --all peer [--tasks cartpole,hopper]        what is missing, in order
    python benchmarks/learning/run.py --table [--write]                           the tables; --write: RESULTS.md
    ... --system leeward --as "leeward 0.1.0"                                     store the runs under another name

The peer is SB3's PPO, or sb3_contrib's RecurrentPPO for a policy with memory. Both systems get the same arguments
(`tasks.py`); whatever only Leeward has stays at its default. The score of a run is the mean of 50 deterministic
episodes with the final weights, on envs whose seeds no training has; observations are normalised there as at the end
of training, rewards are not. `seconds` are of CPU time, for training alone. Compared by `score_comparison`.

Beside the package and its `dev` extra, the tasks need mujoco 3.3.7, Box2D 2.3.10 and popgym 1.0.7.
"""

import argparse
import pathlib
import platform
import statistics
import sys
import time
from importlib.metadata import version

import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.learning.tasks import CHOOSING, JUDGING, TASKS, Task
from benchmarks.stored import Row, Stored
from tests.support.score_comparison import (
    Interval,
    difference,
    interquartile_mean,
    interval,
    passes,
    pooled_difference,
    unit,
)

from leeward import DistributionalPPO

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results.jsonl"
SYSTEMS = ("peer", "leeward")
EPISODES, TESTING_ENVS = 50, 10
INTRODUCTION = (
    "Scores are means of 50 deterministic episodes with the final weights; IQM is their interquartile mean over seeds.",
    "Intervals of the difference come from 10,000 resamples of the seeds. A spread is the standard deviation of the",
    "peer's scores, at least 5 % of their size; pooled rows are means over tasks in this unit. Settings are those that",
    "others published (`tasks.py`); where `steps` is below `published`, the budget was cut. A pass is a score above",
    "450, the threshold of sb3-contrib's own test: the peer's first, then the other's.",
)
PACKAGES = ("torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib")


def versions(task: Task) -> dict[str, str]:
    packages = (*PACKAGES, "leeward", *([task.package] if task.package else []))
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def train(system: str, task: Task, seed: int, steps: int | None = None) -> BaseAlgorithm:
    peer = RecurrentPPO if task.recurrent else PPO
    algorithm = DistributionalPPO if system == "leeward" else peer
    model = algorithm(task.policy, task.training(seed), seed=seed, device="cpu", **task.settings)
    return model.learn(steps or task.steps)


def score(model: BaseAlgorithm, task: Task, seed: int, episodes: int = EPISODES) -> tuple[float, float]:
    """Mean and standard deviation of the returns of episodes that training has not seen."""
    envs = task.testing(10_000 + 100 * seed, TESTING_ENVS)
    if isinstance(envs, VecNormalize):
        training = model.get_env()
        assert training is not None
        sync_envs_normalization(training, envs)
    mean, spread = evaluate_policy(model, envs, n_eval_episodes=episodes, deterministic=True)
    return float(mean), float(spread)  # type: ignore[arg-type]


def run(system: str, name: str, seed: int) -> Row:
    task = TASKS[name]
    begin = time.process_time()
    model = train(system, task, seed)
    seconds = time.process_time() - begin
    mean, spread = score(model, task, seed)
    return {
        "score": round(mean, 4), "spread": round(spread, 4), "seconds": round(seconds, 1), "steps": task.steps,
        "versions": versions(task),
    }  # fmt: skip


def form(value: float) -> str:
    """Four figures at most."""
    return f"{value:.{max(0, 3 - len(str(int(abs(value)))))}f}"


def between(limits: Interval) -> str:
    return f"{form(limits[0])} … {form(limits[1])}"


def names(rows: list[Row]) -> list[str]:
    """Of the stored systems that are not the peer: Leeward as it is, then what is stored under other names."""
    return sorted({row["system"] for row in rows} - {"peer"}, key=lambda name: (name != "leeward", name))


def table(rows: list[Row]) -> str:
    scores = {
        name: {
            system: [row["score"] for row in sorted(rows, key=lambda row: row["seed"])
                     if (row["task"], row["system"]) == (name, system)]
            for system in ("peer", *names(rows))
        }
        for name in TASKS
    }  # fmt: skip
    lines = ["# Learning", "", "`python benchmarks/learning/run.py --table --write`", "", *INTRODUCTION]
    for system in names(rows):
        lines += ["", f"## {system} and the peer", "", *compared(system, scores)]
    lines += ["", "## All scores", "", "| task | steps | published | system | IQM | CPU seconds | scores by seed |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for name, task in TASKS.items():
        for system, found in scores[name].items():
            if found:
                seconds = [row["seconds"] for row in rows if (row["task"], row["system"]) == (name, system)]
                middle = form(interquartile_mean(found).item())
                lines.append(
                    f"| {name} | {task.steps:,} | {task.published:,} | {system} | {middle} "
                    f"| {statistics.median(seconds):.0f} | {', '.join(form(value) for value in found)} |"
                )
    return "\n".join([*lines, ""])


def compared(system: str, scores: dict[str, dict[str, list[float]]]) -> list[str]:
    """The difference for each task, and pooled."""
    rng = np.random.default_rng(0)
    lines = ["| task | peer | " + system + " | difference | 95 % | 99 % | in spreads of the peer | passes |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    both = [name for name, found in scores.items() if len(found["peer"]) > 1 and len(found[system]) > 1]
    for name in both:
        ours, theirs, threshold = scores[name][system], scores[name]["peer"], TASKS[name].threshold
        estimate, draws = difference(ours, theirs, rng)
        passed = (
            ""
            if threshold is None
            else " and ".join(f"{passes(found, threshold)} of {len(found)}" for found in (theirs, ours))
        )
        means = [form(interquartile_mean(found).item()) for found in (theirs, ours)]
        lines.append(
            f"| {name} | {means[0]} | {means[1]} | {form(estimate)} | {between(interval(draws, 0.95))} "
            f"| {between(interval(draws, 0.99))} | {estimate / unit(theirs):+.2f} | {passed} |"
        )
    for group, members in (("choosing", CHOOSING), ("judging", JUDGING), ("all", TASKS)):
        chosen = [name for name in both if name in members]
        if chosen:
            ours, theirs = ({name: scores[name][which] for name in chosen} for which in (system, "peer"))
            estimate, draws = pooled_difference(ours, theirs, rng)
            limits = [f"{low:+.2f} … {high:+.2f}" for low, high in (interval(draws, 0.95), interval(draws, 0.99))]
            lines.append(
                f"| **{group}**, {len(chosen)} of {len(members)} tasks | | | | {limits[0]} | {limits[1]} "
                f"| {estimate:+.2f} | |"
            )
    return lines


def options(description: str | None) -> argparse.ArgumentParser:
    """What every table of stored runs can be asked for."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", choices=SYSTEMS, help="make what is missing of this system")
    parser.add_argument("--tasks", help="names, separated by commas; none = all")
    parser.add_argument("--seeds", type=int, help="the first so many seeds of each")
    parser.add_argument("--as", dest="name", help="store the runs under this name")
    parser.add_argument("--table", action="store_true", help="print the tables of all stored runs")
    parser.add_argument("--write", action="store_true", help="with --table: also store them beside the script")
    return parser


def show(arguments: argparse.Namespace, text: str, page: pathlib.Path) -> None:
    if arguments.table:
        print(text)
        if arguments.write:
            page.write_text(text, encoding="utf-8")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--system", choices=SYSTEMS)
    parser.add_argument("--task", choices=list(TASKS))
    parser.add_argument("--seed", type=int)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    stored = Stored(RESULTS)

    def ensure(system: str, task: str, seed: int) -> None:
        stored.ensure(lambda: run(system, task, seed), task=task, system=arguments.name or system, seed=seed)

    if arguments.system:
        if arguments.task is None or arguments.seed is None:
            parser.error("--system needs --task and --seed")
        ensure(arguments.system, arguments.task, arguments.seed)
    if arguments.all:
        for name in arguments.tasks.split(",") if arguments.tasks else TASKS:
            for seed in list(TASKS[name].seeds)[: arguments.seeds]:
                ensure(arguments.all, name, seed)
    show(arguments, table(stored.rows), HERE / "RESULTS.md")


if __name__ == "__main__":
    main()
