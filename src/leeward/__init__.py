"""Leeward: trading agents that know their own tail risk, and that say so when training goes wrong.

Importing this package registers the environment id `leeward/Trading-v0` and nothing else: the learning chain (torch,
Stable-Baselines3) and the trading chain (numba, pandas) are imported when one of their names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO as DistributionalPPO

__version__ = "0.1.0"
__all__ = ["DistributionalPPO", "__version__"]

_LAZY = {"DistributionalPPO": "leeward.algorithm.ppo"}
_PACKAGES = ("audit",)  # that can be reached as `leeward.NAME` without an import of their own


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _PACKAGES:
        return import_module(f"leeward.{name}")
    raise AttributeError(f"module 'leeward' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


gymnasium.register(id="leeward/Trading-v0", entry_point="leeward.env.trading_env:TradingEnv")
