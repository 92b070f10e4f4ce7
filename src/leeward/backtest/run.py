"""A whole backtest of one split in one call: the agent, its baselines, its numbers, its files."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from leeward.backtest import baselines
from leeward.backtest.engine import Policy, run_policy, run_targets
from leeward.backtest.evaluation import evaluate
from leeward.backtest.files import write_backtest
from leeward.backtest.metrics import Metrics
from leeward.backtest.result import BacktestResult
from leeward.backtest.strategies import BASELINES, BEST_POLICY, BUY_AND_HOLD, CASH, VOLATILITY_TARGET
from leeward.backtest.wording import share
from leeward.config.trading import EnvConfig
from leeward.market import Market
from leeward.market.problems import limited

__all__ = ["Backtest", "run_backtest", "assumptions_of", "notes_of", "warnings_of"]

_INDEX_NOTE = "The NASDAQ Composite is a price index without dividends and not itself tradable."


@dataclass(frozen=True, eq=False)
class Backtest:
    """The agent and its baselines on one split."""

    agent: BacktestResult
    baselines: Mapping[str, BacktestResult]
    metrics: Metrics

    def write(self, folder: Path) -> None:
        """metrics.json, equity.csv, positions.csv, trades.csv and, with an outlook, outlook.npz."""
        write_backtest(folder, self.agent, self.baselines, self.metrics)


def run_backtest(
    policy: Policy,
    market: Market,
    config: EnvConfig,
    *,
    split: str,
    rng: np.random.Generator,
    alpha: float = 0.05,
    limit: float | None = None,
    seeds: int = 1,
    best: Policy | NDArray[np.float64] | None = None,
    beside: Mapping[str, Policy] | None = None,
    fingerprints: Mapping[str, str] | None = None,
    in_sample: str | None = None,
    openings: int | None = None,
    n_offsets: int = 1_000,
    n_draws: int = 2_000,
    progress: Callable[[str], None] = lambda text: None,
) -> Backtest:
    """Score `policy` on a split beside cash, buy and hold, volatility target and its own timing.

    `best` is the policy (or its targets (n, A)) that is known to be best on a control market; `beside` are further
    policies by name, such as the last checkpoint. The volatility target is fitted on train, to `limit`; without one, to
    the agent's own tail there. `in_sample` says which of the decisions the policy has learned from (empty: none), and
    `openings` how often sealed bars had been looked at: no edge is claimed on the former, and the latter is told.
    `progress` is told what is being done.
    """
    progress(f"the agent over {market.split(split).n_decisions} decisions")
    agent = run_policy(policy, market, config, split=split, alpha=alpha, fingerprints=fingerprints)
    progress("the baselines")
    others = {
        BUY_AND_HOLD: baselines.buy_and_hold(market, config, split=split),
        CASH: baselines.cash(market, config, split=split),
    }
    tail = limit
    if tail is None and "train" in market.splits:
        on_train = (
            agent
            if split == "train"
            else run_policy(policy, market, config, split="train", alpha=alpha, with_outlook=False)
        )
        tail = on_train.performance(alpha).cvar
    if tail is not None and tail < 0.0 and "train" in market.splits:  # an agent that never trades has no tail to match
        k = baselines.fit_volatility_target(tail, market, config, alpha=alpha)
        others[VOLATILITY_TARGET] = baselines.volatility_target(k, market, config, split=split)
    if best is not None:
        others[BEST_POLICY] = (
            run_targets(best, market, config, split=split, name=BEST_POLICY)
            if isinstance(best, np.ndarray)
            else run_policy(best, market, config, split=split, alpha=alpha, name=BEST_POLICY)
        )
    for name, other in (beside or {}).items():
        others[name] = run_policy(other, market, config, split=split, alpha=alpha, name=name, with_outlook=False)
    progress(f"its own timing, shifted {n_offsets} times")
    timing = baselines.timing_null(agent, market, config, rng=rng, n_offsets=n_offsets)
    order = [n for n in (*(beside or ()), *BASELINES) if n in others]
    metrics = evaluate(
        agent,
        {name: others[name] for name in order},
        alpha=alpha,
        limit=limit,
        assumptions=assumptions_of(config),
        rng=rng,
        timing=timing,
        seeds=seeds,
        notes=notes_of(market),
        warnings=warnings_of(market),
        in_sample=in_sample,
        openings=openings,
        n_draws=n_draws,
        progress=lambda drawn: progress(f"the bootstrap, {drawn} of {n_draws} draws"),
    )
    return Backtest(agent, {name: others[name] for name in order}, metrics)


def assumptions_of(config: EnvConfig) -> str:
    """Fills and costs in words."""
    costs = config.costs
    tiers = ", ".join(f"{bps:g} bp from {start:g}" for start, bps in costs.commission_tiers)
    charged = (
        (costs.commission_tiers, f"commission of {tiers}"),
        (not costs.commission_tiers and costs.commission_bps, f"{costs.commission_bps:g} bp commission"),
        (costs.per_unit, f"{costs.per_unit:g} per unit"),
        (costs.min_commission, f"at least {costs.min_commission:g} an order"),
        (costs.maker_share, f"{share(costs.maker_share)} filled as maker at {costs.maker_bps:g} bp"),
        (costs.assets, f"other costs for {', '.join(costs.assets)}"),
        (costs.half_spread_bps, f"{costs.half_spread_bps:g} bp half-spread"),
        (costs.fixed_fee, f"{costs.fixed_fee:g} per order"),
        (costs.impact_coef, f"square-root impact × {costs.impact_coef:g}"),
    )
    held = (
        (costs.cash_rate, f"{share(costs.cash_rate)} a year on cash"),
        (costs.debit_rate, f"{share(costs.debit_rate)} a year on debit"),
        (costs.funding_rate, f"{share(costs.funding_rate)} a year of funding"),
        (costs.borrow_rate if _may_short(config) else 0.0, f"{share(costs.borrow_rate)} a year on shorts"),
    )
    trading = [words for value, words in charged if value] or ["no trading costs"]
    return ", ".join(["fills at the next open", *trading, *(words for value, words in held if value)])


def _may_short(config: EnvConfig) -> bool:
    return (min(config.positions) if config.action == "positions" else config.min_weight) < 0.0


def notes_of(market: Market) -> tuple[str, ...]:
    """What a reader must know about the data."""
    notes = []
    if market.bars.source == "sample:nasdaq":
        notes.append(_INDEX_NOTE)
    if market.bars.extra:
        names = ", ".join(sorted(market.bars.extra))
        notes.append(f"Own features ({names}) are used as given: that they know no future is the user's word.")
    return tuple(notes)


def warnings_of(market: Market) -> tuple[str, ...]:
    """What the check of the bars warned of, as `leeward data check` says it."""
    return tuple(str(problem) for problem in limited(market.bars.problems) if problem.severity == "warning")
