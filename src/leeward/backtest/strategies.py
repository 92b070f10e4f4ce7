"""The strategies of a backtest: what each is called in files and in words, and how the report draws it.

The order is that of every table: the agent, other policies beside it, the baselines.
"""

from dataclasses import dataclass

__all__ = [
    "AGENT",
    "BASELINES",
    "BEST_POLICY",
    "BUY_AND_HOLD",
    "CASH",
    "LAST_CHECKPOINT",
    "STRATEGIES",
    "VOLATILITY_TARGET",
    "Strategy",
    "strategy_of",
]

AGENT, LAST_CHECKPOINT = "agent", "last_checkpoint"
BUY_AND_HOLD, VOLATILITY_TARGET, BEST_POLICY, CASH = "buy_and_hold", "volatility_target", "best_policy", "cash"
BASELINES = (BUY_AND_HOLD, VOLATILITY_TARGET, BEST_POLICY, CASH)


@dataclass(frozen=True, slots=True)
class Strategy:
    """One row of the table. The defaults draw a policy that has no row: any user may set one beside the agent."""

    name: str  # in metrics.json and equity.csv
    label: str  # in the middle of a sentence
    tone: str = "ink-3"  # a colour of the report's theme; the agent alone has the accent
    width: float = 1.2  # of its line, pixels
    dash: str = "solid"  # of its line, as plotly names it
    symbol: str = "circle"  # of its point, as plotly names it
    moves: bool = True  # False: it has no drawdown, tail or Sharpe ratio, and is drawn in the equity chart alone

    @property
    def heading(self) -> str:
        """The label where a line begins."""
        return self.label[0].upper() + self.label[1:]


STRATEGIES: dict[str, Strategy] = {
    row.name: row
    for row in (
        Strategy(AGENT, "agent", "accent", 2.4, "solid", "circle"),
        Strategy(LAST_CHECKPOINT, "last checkpoint"),
        Strategy(BUY_AND_HOLD, "buy and hold", "ink-2", 1.5, "solid", "square"),
        Strategy(VOLATILITY_TARGET, "volatility target", "ink-3", 1.5, "dash", "diamond"),
        Strategy(BEST_POLICY, "best policy", "ink-2", 1.5, "dashdot", "star"),
        Strategy(CASH, "cash", "ink-3", 1.0, "dot", moves=False),
    )
}


def strategy_of(name: str) -> Strategy:
    """The row of a strategy; a plain one for a name that has none."""
    return STRATEGIES.get(name) or Strategy(name, name.replace("_", " "))
