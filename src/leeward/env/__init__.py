"""The trading environment: one kernel, and gymnasium's and Stable-Baselines3's views of it.

`leeward.env.sb3` (TradingVecEnv) is imported by itself, since it imports Stable-Baselines3 and with it torch.
"""

from leeward.env.simulation import Simulation, Step
from leeward.env.trading_env import TradingEnv

__all__ = ["Simulation", "Step", "TradingEnv"]
