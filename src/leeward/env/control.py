"""The best clipped-linear policy of a market with a planted signal: what a learner is measured against."""

from dataclasses import dataclass

import numpy as np

from leeward.config.trading import EnvConfig
from leeward.env.replay import replay_targets
from leeward.env.simulation import Simulation
from leeward.errors import DataError
from leeward.market import Market
from leeward.market.bars import FloatArray

__all__ = ["ClippedLinear", "best_clipped_linear", "clipped_linear_growth"]

SIGNAL = "feature_signal"
# Slope in weights per standard deviation of the signal (the last is nearly a step), and the signal at which the weight
# is in the middle of its range.
_SLOPES = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 50.0])
_CENTRES = np.array([-1.0, -0.6, -0.3, -0.15, 0.0, 0.15, 0.3, 0.6, 1.0])


@dataclass(frozen=True)
class ClippedLinear:
    """weight = clip(middle + slope · (signal − centre), low, high); `growth` is its log-growth where it was fitted."""

    slope: float
    centre: float
    low: float
    high: float
    growth: float

    def targets(self, signal: FloatArray) -> FloatArray:
        middle = 0.5 * (self.low + self.high)
        return np.clip(middle + self.slope * (signal - self.centre), self.low, self.high)


def best_clipped_linear(market: Market, config: EnvConfig | None = None, *, split: str = "train") -> ClippedLinear:
    """The member of the family with the highest log-growth on a split, after all costs: a grid through the kernel."""
    config = config or EnvConfig()
    low = max(config.min_weight, -config.account.gross_limit)
    high = min(config.max_weight, config.account.gross_limit)
    family = [ClippedLinear(float(s), float(c), low, high, 0.0) for s in _SLOPES for c in _CENTRES]
    growth = _growth(market, config, family, split)
    best = int(growth.argmax())
    return ClippedLinear(family[best].slope, family[best].centre, low, high, float(growth[best]))


def clipped_linear_growth(market: Market, config: EnvConfig | None, policy: ClippedLinear, *, split: str) -> float:
    """Log-growth of one policy on a split, after all costs."""
    return float(_growth(market, config or EnvConfig(), [policy], split)[0])


def _growth(market: Market, config: EnvConfig, family: list[ClippedLinear], split: str) -> FloatArray:
    """(policies,) sum of step returns."""
    if SIGNAL not in market.bars.extra or len(market.bars.assets) != 1:
        raise DataError(f"{market.bars.source}: expected one asset with a column {SIGNAL}, as in sample:control")
    bounds = market.split(split)
    signal = market.bars.extra[SIGNAL][bounds.start : bounds.end - 1, 0]  # (T,)
    targets = np.stack([policy.targets(signal) for policy in family], axis=1)[:, :, None]  # (T, policies, 1)
    run = replay_targets(Simulation(market, config, n_envs=len(family)), targets, split)
    return np.asarray(run.info["step_return"].sum(axis=0))
