"""Is the warm-up of the memory before a split long enough for what it decides afterwards?"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from leeward.algorithm.ppo import DistributionalPPO
from leeward.audit.checks import CannotRun
from leeward.audit.findings import Fault
from leeward.config.run import RunConfig
from leeward.env import Simulation
from leeward.env.actions import make_actions
from leeward.market import Market

__all__ = ["warm_up_is_enough"]

_LONGER = 256  # bars of warm-up beside which the run's own is compared
_DECISIONS = 40  # that are compared, the first ones of validation
_DRIFT = 0.05  # of the equity: the mean difference of targets that matters


def warm_up_is_enough(agent: DistributionalPPO, market: Market, config: RunConfig) -> Iterator[Fault]:
    """The first decisions of validation, after the warm-up that a backtest gives and after a much longer one."""
    if agent.policy.cell is None:
        raise CannotRun("the policy has no memory to warm up")
    window = market.split("validation")
    own, longer = window.start - window.warmup, min(window.start, window.start - window.warmup + _LONGER)
    decided = [_decisions(agent, market, config, window.start, bars) for bars in (own, longer)]
    drift = float(np.abs(decided[0] - decided[1]).mean())
    first = float(np.abs(decided[0][0] - decided[1][0]).sum())
    if drift > _DRIFT:
        yield Fault(
            "medium",
            "The memory is not warm when the split begins",
            f"After the {own} bars of warm-up that a backtest gives, the first {len(decided[0])} targets on validation "
            f"differ by {drift:.3f} of the equity on average from those after {longer} bars (the first by "
            f"{first:.3f}): "
            "what it decides still depends on when it was switched on.",
            f"Set data.splits.embargo_bars to {longer} or more; live, show it that many bars before the first "
            "decision.",
        )


def _decisions(agent: DistributionalPPO, market: Market, config: RunConfig, start: int, warm_up: int) -> np.ndarray:
    """(n, A) targets of the first decisions, after so many bars with a flat account."""
    end = min(start + _DECISIONS + 1, market.split("validation").end)
    simulation = Simulation(market, config.env, n_envs=1, split="validation")
    to_targets = make_actions(config.env, simulation.n_assets).targets
    seen = simulation.place(start - warm_up, end, trade_from=start)
    state: Any = None
    first, targets = np.ones(1, dtype=bool), []
    for _ in range(warm_up + end - start - 1):
        action, state = agent.predict(seen, state=state, episode_start=first, deterministic=True)
        first = np.zeros(1, dtype=bool)
        targets.append(to_targets(np.asarray(action)))
        seen = simulation.step(targets[-1]).observations
    return np.concatenate(targets)[warm_up:]
