"""Does the unit of the reward change what is learned? It must not: the best policy is the same in any unit.

    python benchmarks/learning/units.py --all peer [--tasks bandit,acrobot] [--seeds 4]     what is missing, in order
    python benchmarks/learning/units.py --table [--write]                                   the table, also stored
    ... --all leeward --as "leeward 0.1.0"                                                  under another name

- `bandit`: one step, four numbers from N(0, 1); the right action is the sign of the first of them and earns +1, the
  other -1, plus noise of 0.5. SB3's PPO settings but for 32 rollouts of 8 envs with 32 steps, minibatches of 64.
  Rewards × 1, × 1e-4, × 1e3, × 1e5, and shifted by 100 times their spread. Score: the share of right actions, drawn
  from the policy for 20,000 fresh observations.
- `acrobot` and `pendulum`: RL-Zoo's settings (`tasks.py`), with observations normalised where they are there, and
  rewards never, since that would take the unit away. Rewards × 1e-3, × 1, × 1e3. Score: the mean return of 50
  deterministic episodes with the final weights, in the original unit. Budgets are cut to 102,400 and 61,440 steps.

Seeds 0 to 7. Intervals are of the difference to the same system with rewards × 1 (`tests/support/score_comparison.py`).
"""

import dataclasses
import pathlib
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.wrappers import TransformReward
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.learning.run import between, form, names, options, score, show, train, versions
from benchmarks.learning.tasks import TASKS
from benchmarks.stored import Row, Stored
from tests.support.score_comparison import difference, interquartile_mean, interval

from leeward import DistributionalPPO

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results_units.jsonl"
SEEDS = range(8)
NOISE = 0.5
SPREAD = (1.0 + NOISE**2) ** 0.5  # of the bandit's reward, while actions are random
N_ENVS, N_STEPS, ROLLOUTS = 8, 32, 32
STEPS = {"acrobot": 102_400, "pendulum": 61_440}


class Unit(NamedTuple):
    factor: float
    shift: float = 0.0

    def __call__(self, reward: Any) -> float:
        return self.factor * float(reward) + self.shift


ORIGINAL = "× 1"
SCALED = {"× 1e-3": Unit(1e-3), ORIGINAL: Unit(1.0), "× 1e3": Unit(1e3)}
UNITS: dict[str, dict[str, Unit]] = {
    "bandit": {
        ORIGINAL: Unit(1.0), "× 1e-4": Unit(1e-4), "× 1e3": Unit(1e3), "× 1e5": Unit(1e5),
        "+ 100 spreads": Unit(1.0, 100.0 * SPREAD),
    },
    "acrobot": SCALED,
    "pendulum": SCALED,
}  # fmt: skip


class Bandit(gymnasium.Env[Any, Any]):
    """One step: action 1 is right if the first number is positive, action 0 otherwise."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen = self.np_random.standard_normal(4, dtype=np.float32)
        return self.seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = bool(action) == bool(self.seen[0] > 0)
        return self.seen, (1.0 if right else -1.0) + NOISE * float(self.np_random.standard_normal()), True, False, {}


def in_unit(unit: Unit, env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return TransformReward(env, unit)


def bandit(system: str, unit: Unit, seed: int) -> float:
    """The share of right actions after training."""
    algorithm = DistributionalPPO if system == "leeward" else PPO
    envs = make_vec_env(Bandit, N_ENVS, seed=seed, wrapper_class=partial(in_unit, unit))  # type: ignore[arg-type]
    model = algorithm("MlpPolicy", envs, n_steps=N_STEPS, batch_size=64, seed=seed, device="cpu")
    model.learn(ROLLOUTS * N_ENVS * N_STEPS)
    seen = np.random.default_rng(10_000 + seed).standard_normal((20_000, 4), dtype=np.float32)
    chosen, _ = model.predict(seen, deterministic=False)
    return float(np.mean(chosen == (seen[:, 0] > 0)))


def control(name: str, system: str, unit: Unit, seed: int) -> float:
    """The mean return in the original unit after training in another one."""
    task = dataclasses.replace(TASKS[name], normalize_kwargs={"norm_reward": False})
    model = train(system, dataclasses.replace(task, wrapper=partial(in_unit, unit)), seed, STEPS[name])
    return score(model, task, seed)[0]


def run(name: str, system: str, unit: Unit, seed: int) -> Row:
    begin = time.process_time()
    found = bandit(system, unit, seed) if name == "bandit" else control(name, system, unit, seed)
    return {
        "score": round(found, 4), "seconds": round(time.process_time() - begin, 1),
        "versions": versions(TASKS["cartpole"]),
    }  # fmt: skip


def table(rows: list[Row]) -> str:
    rng = np.random.default_rng(0)
    lines = [
        "# Units", "", "`python benchmarks/learning/units.py --table --write`", "",
        "The unit of the reward must not change what is learned. Scores: the share of right actions for the bandit,",
        "the return in the original unit for the others; IQM is the interquartile mean over seeds, intervals are of",
        "its difference to the same system with rewards × 1.", "",
        "| task | system | unit | IQM | seeds | difference to × 1 | 95 % | 99 % | scores by seed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for name, units in UNITS.items():
        for system in ("peer", *names(rows)):
            scores = {
                unit: [row["score"] for row in sorted(rows, key=lambda row: row["seed"])
                       if (row["task"], row["system"], row["unit"]) == (name, system, unit)]
                for unit in units
            }  # fmt: skip
            for unit, found in scores.items():
                if not found:
                    continue
                compared = "| | |"
                if unit != ORIGINAL and scores[ORIGINAL]:
                    estimate, draws = difference(found, scores[ORIGINAL], rng)
                    compared = " | ".join(
                        [f"| {form(estimate)}", between(interval(draws, 0.95)), between(interval(draws, 0.99))]
                    )
                each = ", ".join(form(value) for value in found)
                middle = form(interquartile_mean(found).item())
                lines.append(f"| {name} | {system} | {unit} | {middle} | {len(found)} {compared} | {each} |")
    return "\n".join([*lines, ""])


def main() -> None:
    arguments = options(__doc__).parse_args()
    torch.set_num_threads(1)
    stored = Stored(RESULTS)
    if arguments.all:
        system = arguments.all
        for name in arguments.tasks.split(",") if arguments.tasks else UNITS:
            for seed in SEEDS[: arguments.seeds]:
                for label, unit in UNITS[name].items():
                    stored.ensure(
                        partial(run, name, system, unit, seed),
                        task=name, unit=label, system=arguments.name or system, seed=seed,
                    )  # fmt: skip
    show(arguments, table(stored.rows), HERE / "RESULTS_units.md")


if __name__ == "__main__":
    main()
