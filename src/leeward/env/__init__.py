"""The trading environment: one kernel, and gymnasium's and Stable-Baselines3's views of it.

`leeward.env.sb3` (TradingVecEnv, RunningReturnVecEnv) is imported by itself, since it imports Stable-Baselines3 and
with it torch.
"""

from leeward.env.control import ClippedLinear, best_clipped_linear, clipped_linear_growth
from leeward.env.replay import Replay, replay, replay_targets
from leeward.env.running_return import RunningReturn
from leeward.env.simulation import Simulation, Step
from leeward.env.trading_env import TradingEnv
from leeward.env.vector import TradingVectorEnv

__all__ = [
    "ClippedLinear",
    "Replay",
    "RunningReturn",
    "Simulation",
    "Step",
    "TradingEnv",
    "TradingVectorEnv",
    "best_clipped_linear",
    "clipped_linear_growth",
    "replay",
    "replay_targets",
]
