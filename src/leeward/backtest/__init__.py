"""Out-of-sample evidence: run a policy over a split, measure it, set it beside baselines and beside luck."""

from leeward.backtest.engine import Policy, run_policy, run_targets
from leeward.backtest.files import StoredBacktest, read_backtest, write_backtest
from leeward.backtest.judgement import judge
from leeward.backtest.metrics import Metrics
from leeward.backtest.performance import Activity, Performance, performance_of
from leeward.backtest.result import BacktestResult, Outlook
from leeward.backtest.run import Backtest, run_backtest
from leeward.backtest.verdict import Outcome, Verdict

__all__ = [
    "Activity",
    "Backtest",
    "BacktestResult",
    "Metrics",
    "Outcome",
    "Outlook",
    "Performance",
    "Policy",
    "StoredBacktest",
    "Verdict",
    "judge",
    "performance_of",
    "read_backtest",
    "run_backtest",
    "run_policy",
    "run_targets",
    "write_backtest",
]
