"""What a user would do instead of a limit: SB3's PPO or RecurrentPPO, kept inside the same tail by other means.

    python benchmarks/trading/instead.py --all [--markets control,nasdaq] [--seeds 5]     what is missing, in order
    python benchmarks/trading/instead.py --table [--write]                                the table of all stored runs

Every agent trades the same bars through the same env, positions and costs, with the same settings and number of steps;
the checkpoint that counts is the one with the best growth on validation. Leeward has its limit. The others have none,
and a peer's rewards are normalised by VecNormalize, as its users do; they are kept inside by

cap         no position is larger than c
volatility  a position is multiplied by min(1, k/σ), σ the volatility of `leeward.backtest.baselines`
penalty     the reward is r − β r², β of a grid; the β of PPO is RecurrentPPO's too

c, k and β are chosen on validation: c and k so that the tail there is the limit, β as the one that grows most of those
whose tail is within the limit, or the one that comes nearest. `growth` is the log-growth a year on the test bars, and
`tail` the CVaR of a bar there over the limit. As tails differ, `at the limit` is the growth of the same positions times
the one number that brings the tail on test to the limit: what a unit of risk earned.
"""

import argparse
import pathlib
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnvWrapper, VecNormalize

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.stored import Row, Stored, median_and_range

from leeward.backtest import run_policy, run_targets
from leeward.backtest.baselines import ewma_volatility
from leeward.backtest.result import BacktestResult
from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.env.sb3 import TradingVecEnv
from leeward.market import Market, prepare
from leeward.training.checkpoints import load_model
from leeward.training.run_dir import RunDir
from leeward.training.trainer import train

Floats = NDArray[np.float64]

HERE = pathlib.Path(__file__).parent
RESULTS, PAGE = HERE / "results_instead.jsonl", HERE / "RESULTS_instead.md"
# Half of what the worst 5 % of bars cost somebody who is always invested: as configs/demo.yaml has it.
MARKETS = {"control": ("control.yaml", -0.01), "nasdaq": ("demo.yaml", -0.02)}
ALPHA = 0.05
PENALTIES = (0.5, 1.5, 5.0, 15.0)
PEERS: dict[str, tuple[type[BaseAlgorithm], str]] = {
    "PPO": (PPO, "MlpPolicy"),
    "RecurrentPPO": (RecurrentPPO, "MlpLstmPolicy"),
}
SHARED = ("n_steps", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range", "ent_coef", "vf_coef")
LEVERAGE = 8.0  # the most that positions are multiplied by when tails are made equal


def settings_of(market: str, seed: int) -> RunConfig:
    file, limit = MARKETS[market]
    return load_config(HERE.parents[1] / "configs" / file, [f"risk.limit={limit}"], {"seed": seed})


# --- training --------------------------------------------------------------------------------------------------------


class Penalised(VecEnvWrapper):
    """The reward r as r − β r²."""

    def __init__(self, venv: Any, weight: float) -> None:
        super().__init__(venv)
        self.weight = weight

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        observations, rewards, dones, infos = self.venv.step_wait()
        return observations, rewards - self.weight * rewards**2, dones, infos


class KeepBest(BaseCallback):
    """Keeps the weights that grow most on validation, scored as often as Leeward scores its own."""

    def __init__(self, config: RunConfig, market: Market) -> None:
        super().__init__()
        self.config, self.market = config, market
        ppo = config.ppo
        self.turn = config.validation.turn(-(-ppo.total_steps // (ppo.n_envs * ppo.n_steps)))
        self.rollouts, self.best = 0, (-np.inf, dict[str, torch.Tensor]())

    def score(self) -> None:
        growth = growth_of(played(self.model, self.config, self.market, "validation"))
        if growth > self.best[0]:
            weights = {name: value.clone() for name, value in self.model.policy.state_dict().items()}
            self.best = (growth, weights)

    def _on_rollout_start(self) -> None:
        if self.rollouts and self.rollouts % self.turn == 0:
            self.score()
        self.rollouts += 1

    def _on_training_end(self) -> None:
        self.score()
        self.model.policy.load_state_dict(self.best[1])

    def _on_step(self) -> bool:
        return True


def peer(name: str, config: RunConfig, market: Market, penalty: float) -> BaseAlgorithm:
    algorithm, policy = PEERS[name]
    ppo = config.ppo
    env = TradingVecEnv(market, ppo.n_envs, config=config.env, seed=config.seed)
    normalised = VecNormalize(Penalised(env, penalty), norm_obs=False, gamma=ppo.gamma)
    shared = {key: getattr(ppo, key) for key in SHARED}
    model = algorithm(policy, normalised, learning_rate=ppo.learning_rate, seed=config.seed, device="cpu", **shared)  # type: ignore[call-arg]
    return model.learn(ppo.total_steps, callback=KeepBest(config, market))


def leeward(config: RunConfig, market: Market) -> BaseAlgorithm:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir.create(pathlib.Path(folder) / "run", config)
        train(run, market, lambda progress: None, resume=False)
        return load_model(run.best_checkpoint(), None)


# --- playing ---------------------------------------------------------------------------------------------------------


def played(model: Any, config: RunConfig, market: Market, split: str) -> BacktestResult:
    return run_policy(model, market, config.env, split=split, alpha=ALPHA, with_outlook=False)


def growth_of(result: BacktestResult) -> float:
    """Log-growth a year."""
    return float(result.step_returns.mean() * result.bars_per_year)


def tail_of(result: BacktestResult) -> float:
    return result.performance(ALPHA).cvar


def multiplied(targets: Floats, config: RunConfig, market: Market, split: str) -> BacktestResult:
    """Positions, (n, A), as they are; leverage is no obstacle here."""
    env = config.env.model_copy(update={"max_weight": LEVERAGE})
    return run_targets(targets, market, env, split=split, name="multiplied")


def at_tail(
    change: Callable[[float], Floats], limit: float, play: Callable[[Floats], BacktestResult], high: float
) -> float:
    """The largest x in (0, high] with which the tail of `change(x)` is within the limit, by halving."""
    if tail_of(play(change(high))) >= limit:
        return high
    low = 0.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if tail_of(play(change(middle))) >= limit else (low, middle)
    return low


class Overlay:
    """Positions of one model on validation and test, and what `cap` and `volatility` make of them."""

    def __init__(self, model: Any, config: RunConfig, market: Market) -> None:
        self.config, self.market = config, market
        self.targets = {split: played(model, config, market, split).targets for split in ("validation", "test")}
        sigma = ewma_volatility(market.bars)
        self.sigma = {
            split: sigma[(window := market.split(split)).start : window.start + window.n_decisions]
            for split in ("validation", "test")
        }

    def cap(self, split: str, c: float) -> Floats:
        return np.clip(self.targets[split], -c, c)

    def volatility(self, split: str, k: float) -> Floats:
        return self.targets[split] * np.minimum(1.0, k / self.sigma[split])

    def tuned(self, kind: str, limit: float) -> Floats:
        """Positions on test, with the one number found on validation."""
        change = getattr(self, kind)
        high = 1.0 if kind == "cap" else float(np.nanmax(self.sigma["validation"]))
        found = at_tail(lambda x: change("validation", x), limit, lambda t: self.play(t, "validation"), high)
        return np.asarray(change("test", found))

    def play(self, targets: Floats, split: str) -> BacktestResult:
        return multiplied(targets, self.config, self.market, split)


def judged(targets: Floats, config: RunConfig, market: Market, limit: float) -> Row:
    """Growth and tail on test, and the growth of the same positions when their tail is the limit."""
    result = multiplied(targets, config, market, "test")
    most = LEVERAGE / max(float(np.abs(targets).max()), 1e-9)
    factor = at_tail(lambda x: x * targets, limit, lambda t: multiplied(t, config, market, "test"), min(most, LEVERAGE))
    return {
        "growth": round(growth_of(result), 4),
        "tail": round(tail_of(result) / limit, 3),
        "at_limit": round(growth_of(multiplied(factor * targets, config, market, "test")), 4),
    }


# --- runs and table --------------------------------------------------------------------------------------------------


def run_leeward(name: str, seed: int) -> Row:
    config = settings_of(name, seed)
    market, limit = prepare(config.data), MARKETS[name][1]
    model = leeward(config, market)
    return {"ways": {"limit": judged(played(model, config, market, "test").targets, config, market, limit)}}


def run_peer(system: str, name: str, seed: int, stored: Stored) -> Row:
    config = settings_of(name, seed)
    market, limit = prepare(config.data), MARKETS[name][1]
    plain = Overlay(peer(system, config, market, 0.0), config, market)
    ways = {"nothing": judged(plain.targets["test"], config, market, limit)}
    for kind in ("cap", "volatility"):
        ways[kind] = judged(plain.tuned(kind, limit), config, market, limit)
    grid = PENALTIES if system == "PPO" else [stored.get(market=name, system="PPO", seed=seed)["penalty"]]
    found = []
    for penalty in grid:
        model = peer(system, config, market, penalty)
        on_validation = played(model, config, market, "validation")
        within = tail_of(on_validation) >= limit
        order = (within, growth_of(on_validation) if within else tail_of(on_validation))
        found.append((order, penalty, played(model, config, market, "test").targets))
    _, penalty, targets = max(found, key=lambda each: each[0])
    ways["penalty"] = judged(targets, config, market, limit)
    return {"penalty": penalty, "ways": ways}


def table(rows: list[Row]) -> str:
    lines = ["# Growth at the same tail", "", "`python benchmarks/trading/instead.py --table --write`", ""]
    lines += (__doc__ or "").split("\n\n", 2)[2].strip().splitlines()
    for market, (_, limit) in MARKETS.items():
        lines += ["", f"## {market}, limit {limit:.2%} a bar", ""]
        lines += ["| system | kept inside by | seeds | growth | tail / limit | growth at the limit | by seed |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for system in ("Leeward", *PEERS):
            own = sorted((r for r in rows if (r["market"], r["system"]) == (market, system)), key=lambda r: r["seed"])
            for way in own[0]["ways"] if own else ():
                each = [row["ways"][way] for row in own]
                numbers = [
                    median_and_range((row[key] for row in each), form)
                    for key, form in (("growth", ".1%"), ("tail", ".2f"), ("at_limit", ".1%"))
                ]
                by_seed = ", ".join(f"{row['at_limit']:.1%}" for row in each)
                lines.append(f"| {system} | {way} | {len(each)} | {' | '.join(numbers)} | {by_seed} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markets", default=",".join(MARKETS))
    parser.add_argument("--systems", default="Leeward,PPO,RecurrentPPO")
    parser.add_argument("--seeds", type=int, default=5, help="the first so many")
    for name in ("all", "table", "write"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    stored = Stored(RESULTS)
    if options.all:
        for system in options.systems.split(","):
            for market in options.markets.split(","):
                for seed in range(options.seeds):
                    make = (
                        partial(run_leeward, market, seed)
                        if system == "Leeward"
                        else partial(run_peer, system, market, seed, stored)
                    )
                    stored.ensure(make, market=market, system=system, seed=seed)
    if options.table:
        print(table(stored.rows))
        if options.write:
            PAGE.write_text(table(stored.rows), encoding="utf-8")


if __name__ == "__main__":
    main()
