"""Can an agent learn what can be learned, and only that? NASDAQ daily, validation split, five seeds.

    python benchmarks/trading/learnability.py [--seeds 0 1 2 3 4] [--write]

known     ln(close/open) of the *next* bar is a feature. It is what a position filled at the next open earns until the
          close, so "target = its sign" (long or short, same costs) is a rule that no honest market allows. The agent
          must reach 60 % of the rule's log-growth with every seed.
shuffled  the same feature, shuffled in time: it looks the same and knows nothing. The Sharpe ratio of the agent among
          those of its own positions at other times must lie below the 95th percentile for at least 4 of 5 seeds.

What is scored is the last checkpoint, never one that was chosen on validation. `--write` stores
RESULTS_learnability.md.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from leeward.backtest import run_policy, run_targets
from leeward.backtest.baselines import timing_null
from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.market import Bars, Market, load, prepare
from leeward.training.checkpoints import load_model
from leeward.training.run_dir import RunDir
from leeward.training.trainer import train

HERE = Path(__file__).parent
NEXT = "feature_next"
SETTINGS = (
    "data.source=sample:nasdaq",
    "env.action=positions",
    "env.positions=[-1.0, 0.0, 1.0]",
    "policy.name=MlpPolicy",
    "ppo.total_steps=200000",
    "ppo.batch_size=2048",
    "ppo.gamma=0.5",
    "validation.every_updates=1000",
    "checkpoint.every_updates=1000",
)


def with_feature(bars: Bars, *, shuffle: int | None) -> Bars:
    """The bars with what the next one will do as a feature of each; shuffled in time by this seed, if there is one."""
    moves = np.log(bars.close / bars.open)  # (n, 1)
    following = np.concatenate([moves[1:], np.zeros((1, 1))])
    if shuffle is not None:
        following = np.random.default_rng([shuffle, 11]).permutation(following, axis=0)
    return replace(bars, extra={NEXT: following})


def trained(config: RunConfig, market: Market) -> tuple[float, float, float]:
    """Log-growth of the agent and of the rule on validation, and the agent's timing percentile."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunDir.create(Path(folder) / "run", config)
        train(run, market, lambda progress: None, resume=False)
        agent = run_policy(
            load_model(run.checkpoint_list()[-1]),
            market,
            config.env,
            split="validation",
            alpha=0.05,
            with_outlook=False,
        )
    window = market.split("validation")
    signs = np.sign(market.bars.extra[NEXT][window.start : window.end - 1])
    rule = run_targets(signs, market, config.env, split="validation", name="rule")
    timing = timing_null(agent, market, config.env, rng=np.random.default_rng(config.seed))
    return float(agent.step_returns.sum()), float(rule.step_returns.sum()), timing.percentile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    bars = load("sample:nasdaq")
    shares, percentiles, rows = [], [], []
    for seed in options.seeds:
        config = load_config(None, SETTINGS, {"seed": seed})
        begin = time.perf_counter()
        growth, best, _ = trained(config, prepare(config.data, bars=with_feature(bars, shuffle=None)))
        shuffled, _, percentile = trained(config, prepare(config.data, bars=with_feature(bars, shuffle=seed)))
        shares.append(growth / best)
        percentiles.append(percentile)
        rows.append(
            f"| {seed} | {growth:.2f} | {best:.2f} | {shares[-1]:.0%} | {shuffled:+.2f} | {percentile:.0f} "
            f"| {time.perf_counter() - begin:.0f} |"
        )
        print(rows[-1], flush=True)
    below = sum(percentile < 95 for percentile in percentiles)
    table = [
        "# Learnability",
        "",
        "`python benchmarks/trading/learnability.py --write`: NASDAQ daily, validation split, default costs, the last "
        "checkpoint of 200,000 steps. Log-growth over the split.",
        "",
        "| seed | known: agent | known: rule | share | shuffled: agent | shuffled: timing percentile | seconds |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Smallest share {min(shares):.0%} (needed: 60 %). Timing percentile below 95 for {below} of {len(rows)} seeds "
        "(needed: 4 of 5).",
    ]
    print(table[-1])
    if options.write:
        HERE.joinpath("RESULTS_learnability.md").write_text("\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
