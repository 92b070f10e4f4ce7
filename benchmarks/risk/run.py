"""Does the constraint do what it says? Training against closed forms, five seeds each.

    python benchmarks/risk/run.py --row gaussian_50 --seed 0      one run, one line of JSON in results.jsonl
    python benchmarks/risk/run.py --all [--jobs 2]                what is missing of all rows and seeds 0 to 4
    python benchmarks/risk/run.py --table [--write]               the table of all stored runs

Every agent has default settings apart from `risk=`, gamma and the number of steps (rows with another critic, other
targets or memory say so in their name). A limit is a share of the tail that the unconstrained optimum has. The tail of
an agent is measured on a million fresh steps of the policy that the limit binds.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tests.support.risk_markets import (
    CrashEnv,
    CrashMarket,
    EpisodeEnv,
    EpisodeMarket,
    GaussianEnv,
    GaussianMarket,
    PairEnv,
    PairMarket,
    RegimeEnv,
    RegimeMarket,
    WalkEnv,
    WalkMarket,
)

from leeward import DistributionalPPO
from leeward.maths import cvar

HERE = pathlib.Path(__file__).parent
RESULTS = HERE / "results.jsonl"
SEEDS = range(5)
ALPHA = 0.05
# A crash of 1 % is seen only in larger rollouts, and an episode is one outcome in 20 steps.
N_ENVS, N_ENVS_CRASH, N_ENVS_EPISODES = 16, 128, 64


NOTES = """
Settings were fixed on seeds 10 and 11 and the simulation (RESULTS_controller.md). Two earlier sets had been run on the
seeds below: k_p 2, k_i 0.2 with 32 envs held the limits of 30 and 50 % and ended 6 to 9 % too careful at 80 %; the
present set without a margin held all but the crash, whose worst seed ended 11.5 % beyond its limit. With the margin,
regimes with memory had 200,000 steps at first and a median tail of 0.947 (seeds 0.939 to 0.986), episodes 16 envs and a
median position of 0.421 (0.32 to 0.51). `seconds` is wall time, two runs at a time on two cores, most beside other work
and with slower code of the same bits; the last 25 runs (walks, crash_free, gaussian_150) had the machine to themselves.

Rows run with the present controller and clip: crash_50_deployed, gaussian_50_deployed, gaussian_50 and crash_50. All
others were made before the multiplier's growth was relative to the widest gap. `clip_scale_end` was chosen on seeds 10
and 11 of crash_50_deployed. Without it the worst seed of that row was 1.24 with growth relative to the unit, and 1.20
of two seeds with the present controller. crash_50 had held its position (median 0.483 of five seeds, made by earlier
code in other respects too) and is too careful now (0.447 of three).

- `position`, `first`, `second`: what the deterministic policy holds, beside the closed form's `optimum`;
- `tail`: CVaR of a million fresh steps of the policy that the limit binds, divided by the limit; above 1 it is broken;
- `predicted`: predicted CVaR divided by the closed form's, one step ahead (walk: of the discounted return);
- `multiplier`, `swing`: mean over the last quarter of training, and standard deviation divided by it;
- `coverage_gap`: mean distance of a predicted quantile's level from its true probability;
- `share_of_told`: return in %, from the best constant position (0) to a player who is told the regime (100)."""


@dataclass(frozen=True)
class Row:
    """One line of the table: how to train, and what to read off the trained agent."""

    train: Callable[[int, list[float]], DistributionalPPO]
    judge: Callable[[DistributionalPPO, int], dict[str, Any]]


def learn(
    env: Any, seed: int, steps: int, multipliers: list[float], policy: str = "MlpPolicy", **settings: Any
) -> DistributionalPPO:
    model = DistributionalPPO(policy, env, seed=seed, **settings)

    def keep(values: dict[str, Any], _: dict[str, Any]) -> bool:
        if model.engine.risk_control is not None and values["n_steps"] == 1:
            multipliers.append(model.engine.risk_control.constraints[0].multiplier)
        return True

    return model.learn(steps, callback=keep)


def fresh_tail(model: DistributionalPPO, env: Any, *, deterministic: bool, steps: int = 1000) -> tuple[float, float]:
    """CVaR and mean of one step's reward over steps × envs, from fresh episodes."""
    observation, state, starts = env.reset(), None, np.ones(env.num_envs, bool)
    rewards = []
    for _ in range(steps):
        action, state = model.predict(observation, state, starts, deterministic=deterministic)
        observation, reward, starts, _ = env.step(action)
        rewards.append(reward)
    outcomes = torch.as_tensor(np.concatenate(rewards), dtype=torch.float64)
    return float(cvar.from_samples(outcomes, ALPHA)), float(outcomes.mean())


def settled(multipliers: list[float]) -> dict[str, float]:
    """The last quarter of a multiplier's path."""
    last = np.array(multipliers[-len(multipliers) // 4 :])
    return {"multiplier": float(last.mean()), "swing": float(last.std() / max(last.mean(), 1e-12))}


def constant(
    market: Any, env_class: Any, share: float | None, *, binds: str = "rollout", steps: int, n_envs: int = N_ENVS
) -> Row:
    """One asset and a constant observation: the whole policy is one position."""
    limit = None if share is None else share * market.tail
    paths: dict[int, list[float]] = {}

    def train(seed: int, multipliers: list[float]) -> DistributionalPPO:
        paths[seed] = multipliers
        risk = {"alpha": ALPHA, "limit": limit, "binds": binds}
        return learn(env_class(market, n_envs, seed=seed), seed, steps, multipliers, gamma=0.0, risk=risk)

    def judge(model: DistributionalPPO, seed: int) -> dict[str, Any]:
        here = np.ones((1, 1), np.float32)
        position = float(model.predict(here, deterministic=True)[0][0, 0])
        optimum = 1.0 if limit is None else market.optimal_position(limit)
        tail, _ = fresh_tail(model, env_class(market, 1000, seed=10_000 + seed), deterministic=binds == "deployed")
        predicted = float(model.predict_distribution(here).step.cvar(ALPHA)[0])
        found = {
            "position": position,
            "optimum": optimum,
            "predicted": predicted / float(market.cvar(position)),
            **settled(paths[seed]),
            "path": [round(value, 4) for value in paths[seed]],
        }
        return found if limit is None else found | {"tail": tail / limit}

    return Row(train, judge)


def episodes(share: float, steps: int) -> Row:
    market = EpisodeMarket()
    limit = share * market.tail

    def train(seed: int, multipliers: list[float]) -> DistributionalPPO:
        risk = {"measure": "episode_return", "alpha": ALPHA, "limit": limit}
        return learn(EpisodeEnv(market, N_ENVS_EPISODES, seed=seed), seed, steps, multipliers, gamma=1.0, risk=risk)

    def judge(model: DistributionalPPO, seed: int) -> dict[str, Any]:
        left = np.arange(1, market.length + 1, dtype=np.float32)[:, None] / market.length
        positions = model.predict(left, deterministic=True)[0][:, 0]
        return {"position": float(positions.mean()), "optimum": market.optimal_position(limit)}

    return Row(train, judge)


def pair(share: float, steps: int) -> Row:
    market = PairMarket()
    limit = share * market.tail

    def train(seed: int, multipliers: list[float]) -> DistributionalPPO:
        risk = {"alpha": ALPHA, "limit": limit}
        return learn(PairEnv(market, N_ENVS, seed=seed), seed, steps, multipliers, gamma=0.0, risk=risk)

    def judge(model: DistributionalPPO, seed: int) -> dict[str, Any]:
        weights = model.predict(np.ones((1, 1), np.float32), deterministic=True)[0][0]
        best = market.optimal_weights(limit)
        tail, _ = fresh_tail(model, PairEnv(market, 1000, seed=10_000 + seed), deterministic=False)
        return {
            "first": float(weights[0]), "first_optimum": float(best[0]), "second": float(weights[1]),
            "second_optimum": float(best[1]), "tail": tail / limit,
            "return": float(market.mean(weights) / market.mean(best)),
        }  # fmt: skip

    return Row(train, judge)


def walk(steps: int, **settings: Any) -> Row:
    market = WalkMarket()

    def train(seed: int, multipliers: list[float]) -> DistributionalPPO:
        return learn(WalkEnv(market, N_ENVS, seed=seed), seed, steps, multipliers, gamma=market.gamma, **settings)

    def judge(model: DistributionalPPO, seed: int) -> dict[str, Any]:
        rng = np.random.default_rng(10_000 + seed)
        seen = rng.standard_normal((4000, 1)).astype(np.float32)  # the stationary distribution
        outlook = model.predict_distribution(seen)
        x = market.state(seen)
        coverage = market.cdf(x[:, None], outlook.quantiles).mean(0)
        return {
            "predicted": float((outlook.cvar(ALPHA) / market.cvar(x, ALPHA)).mean()),
            "coverage_gap": float(np.abs(coverage - outlook.levels).mean()),
        }

    return Row(train, judge)


def regimes(policy: str, share: float, steps: int, **settings: Any) -> Row:
    market = RegimeMarket()
    limit = share * market.tail

    def train(seed: int, multipliers: list[float]) -> DistributionalPPO:
        risk = {"alpha": ALPHA, "limit": limit}
        env = RegimeEnv(market, N_ENVS, seed=seed)
        return learn(env, seed, steps, multipliers, policy, gamma=0.0, risk=risk, **settings)

    def judge(model: DistributionalPPO, seed: int) -> dict[str, Any]:
        env = RegimeEnv(market, 1000, seed=10_000 + seed, staggered=False)
        tail, mean = fresh_tail(model, env, deterministic=False)
        return {"tail": tail / limit, "share_of_told": 100.0 * market.share_of_told(mean, tail)}

    return Row(train, judge)


GAUSSIAN, CRASH = GaussianMarket(), CrashMarket()
ROWS: dict[str, Row] = {
    "gaussian_30": constant(GAUSSIAN, GaussianEnv, 0.3, steps=300_000),
    "gaussian_50": constant(GAUSSIAN, GaussianEnv, 0.5, steps=300_000),
    "gaussian_80": constant(GAUSSIAN, GaussianEnv, 0.8, steps=300_000),
    "crash_50": constant(CRASH, CrashEnv, 0.5, steps=400_000, n_envs=N_ENVS_CRASH),
    "walk": walk(200_000),
    "walk_categorical": walk(200_000, critic="categorical"),
    "pair_50": pair(0.5, steps=300_000),
    "episode_50": episodes(0.5, steps=300_000),
    "regimes_memoryless": regimes("MlpPolicy", 0.4, steps=200_000),
    "regimes_lstm": regimes("MlpLstmPolicy", 0.4, steps=300_000, policy_kwargs={"lstm_hidden_size": 32}),
    "gaussian_150": constant(GAUSSIAN, GaussianEnv, 1.5, steps=150_000),
    "crash_free": constant(CRASH, CrashEnv, None, steps=150_000),
    "gaussian_50_deployed": constant(GAUSSIAN, GaussianEnv, 0.5, binds="deployed", steps=300_000),
    "crash_50_deployed": constant(CRASH, CrashEnv, 0.5, binds="deployed", steps=400_000, n_envs=N_ENVS_CRASH),
    "walk_scalar_targets": walk(200_000, value_targets="scalar"),
}


def run(name: str, seed: int) -> None:
    torch.set_num_threads(1)
    begin, multipliers = time.perf_counter(), []
    model = ROWS[name].train(seed, multipliers)
    seconds = time.perf_counter() - begin
    line = {"row": name, "seed": seed, **ROWS[name].judge(model, seed), "seconds": round(seconds)}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print({key: round(value, 4) if isinstance(value, float) else value for key, value in line.items() if key != "path"})


def stored() -> dict[str, dict[int, dict[str, Any]]]:
    found: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in ROWS}
    for line in RESULTS.read_text().splitlines() if RESULTS.exists() else []:
        each = json.loads(line)
        found[each["row"]][each["seed"]] = each
    return found


def run_all(jobs: int) -> None:
    there = stored()
    todo = [(name, seed) for name in ROWS for seed in SEEDS if seed not in there[name]]
    running: list[subprocess.Popen[bytes]] = []
    for name, seed in todo:
        while len(running) >= jobs:
            running = [process for process in running if process.poll() is None]
            time.sleep(0.5)
        running.append(subprocess.Popen([sys.executable, __file__, "--row", name, "--seed", str(seed)]))
    for process in running:
        process.wait()


def table() -> str:
    lines = ["| row | figure | median | by seed |", "|---|---|---|---|"]
    for name, seeds in stored().items():
        keys = [key for key in next(iter(seeds.values()), {}) if key not in ("row", "seed", "path")]
        for key in keys:
            values = [seeds[seed][key] for seed in sorted(seeds)]
            each = ", ".join(f"{value:.3g}" for value in values)
            lines.append(f"| {name} | {key} | {statistics.median(values):.4g} | {each} |")
    return "\n".join(lines)


def plot(names: tuple[str, ...]) -> str:
    """The multipliers of all stored seeds over training, one row of the table beside the other, as SVG."""
    width, height, margin = 300, 180, 30
    parts = []
    for place, name in enumerate(names):
        paths = [each["path"] for each in stored()[name].values()]
        top = max([value for path in paths for value in path], default=0.0) or 1.0
        left = place * (width + margin) + margin
        parts.append(f'<text x="{left}" y="16">{name}: 0 to {top:.3g}</text>')
        parts.append(f'<rect x="{left}" y="{margin}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>')
        for path in paths:
            points = " ".join(
                f"{left + width * i / max(len(path) - 1, 1):.1f},{margin + height * (1 - value / top):.1f}"
                for i, value in enumerate(path)
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="#2a6f97" stroke-width="1"/>')
    size = f'width="{len(names) * (width + margin) + margin}" height="{height + 2 * margin}"'
    style = "<style>text { font: 12px sans-serif }</style>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{style}{"".join(parts)}</svg>\n'


def write() -> None:
    text = [
        "# The constraint against closed forms",
        "",
        "`python benchmarks/risk/run.py --table --write`. Rows and seeds that are missing have not been run yet.",
        NOTES,
        "",
    ]
    (HERE / "RESULTS.md").write_text("\n".join([*text, table(), "", "![](multipliers.svg)", ""]), encoding="utf-8")
    rows = ("gaussian_30", "gaussian_50", "gaussian_80", "gaussian_150", "crash_50")
    (HERE / "multipliers.svg").write_text(plot(rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", choices=list(ROWS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--write", action="store_true", help="store the table and a plot of the multipliers")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
        if arguments.write:
            write()
    elif arguments.all:
        run_all(arguments.jobs)
    else:
        run(arguments.row, arguments.seed)


if __name__ == "__main__":
    main()
