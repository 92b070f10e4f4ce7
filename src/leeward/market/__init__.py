"""Market data: validated bars, causal features, scaling and splits."""

from leeward.market.bars import Bars
from leeward.market.leaks import with_feature
from leeward.market.market import Market, fit_scaler, prepare
from leeward.market.problems import Problem
from leeward.market.scaling import Scaler
from leeward.market.sources import check, from_ccxt, from_frame, load
from leeward.market.splits import Split

__all__ = [
    "Bars",
    "Market",
    "Problem",
    "Scaler",
    "Split",
    "check",
    "fit_scaler",
    "from_ccxt",
    "from_frame",
    "load",
    "prepare",
    "with_feature",
]
