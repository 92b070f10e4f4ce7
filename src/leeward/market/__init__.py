"""Market data: validated bars, causal features, scaling and splits."""

from leeward.market.bars import Bars
from leeward.market.market import Market, prepare
from leeward.market.problems import Problem
from leeward.market.scaling import Scaler
from leeward.market.sources import check, from_ccxt, from_frame, load
from leeward.market.splits import Split

__all__ = ["Bars", "Market", "Problem", "Scaler", "Split", "check", "from_ccxt", "from_frame", "load", "prepare"]
