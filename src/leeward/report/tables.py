"""Tables of the report: numbers as a person reads them, with their units."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.backtest import statistics
from leeward.backtest.files import StoredBacktest
from leeward.backtest.metrics import Metrics
from leeward.backtest.strategies import AGENT, strategy_of
from leeward.backtest.wording import NOT_DEFINED, count, number, percent, share

__all__ = [
    "Table",
    "summary_table",
    "full_table",
    "tails_table",
    "trades_table",
]

_MOST_TRADES = 10


@dataclass(frozen=True, slots=True)
class Table:
    """A heading row and rows of text; the first column names the row. `strong` rows are set in bold."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str
    strong: frozenset[int] = frozenset()


_percent_1 = partial(percent, digits=1)

# field, heading, format; the order of the full table
_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("total_return", "Total return", _percent_1),
    ("cagr", "CAGR, a year", _percent_1),
    ("volatility", "Volatility, a year", _percent_1),
    ("sharpe", "Sharpe", number),
    ("sortino", "Sortino", number),
    ("calmar", "Calmar", number),
    ("omega", "Omega", number),
    ("max_drawdown", "Largest drawdown", _percent_1),
    ("max_drawdown_bars", "Longest drawdown, bars", count),
    ("var", "VaR, one bar", percent),
    ("cvar", "CVaR, one bar", percent),
    ("skew", "Skew", number),
    ("kurtosis", "Excess kurtosis", number),
    ("tail_ratio", "Tail ratio", number),
    ("hit_rate", "Hit rate, bars", _percent_1),
    ("profit_factor", "Profit factor, bars", number),
    ("exposure", "Exposure, mean", _percent_1),
    ("turnover_per_year", "Turnover, × equity a year", number),
    ("trades", "Round trips", count),
    ("costs_per_year", "Costs, of equity a year", percent),
    ("costs_total", "Costs, money", count),
    ("costs_of_gross_profit", "Costs, of gross profit", _percent_1),
)
_SUMMARY = ("cagr", "sharpe", "cvar", "max_drawdown")
_SUMMARY_HEADINGS = {"cagr": "CAGR", "sharpe": "Sharpe", "cvar": "CVaR", "max_drawdown": "Drawdown"}
_FORMATS = {field: form for field, _, form in _ROWS}


def summary_table(metrics: Metrics) -> Table:
    """Four statistics per strategy, and the agent's intervals."""
    rows = []
    for name, strategy in metrics.strategies.items():
        rows.append((strategy_of(name).heading, *(_FORMATS[field](strategy.performance[field]) for field in _SUMMARY)))
        if name == AGENT:
            between = strategy.intervals
            ends = [(_FORMATS[f](between[f].low), _FORMATS[f](between[f].high)) for f in _SUMMARY]
            rows.append(("90 % interval", *(_between(low, high) for low, high in ends)))
    heading = ("", *(_SUMMARY_HEADINGS[field] for field in _SUMMARY))
    return Table(heading, tuple(rows), "In short", frozenset({0}))


def full_table(metrics: Metrics) -> Table:
    """Every statistic, one row each, one column per strategy."""
    rows = []
    for field, heading, form in _ROWS:
        values = [(s.performance | s.activity)[field] for s in metrics.strategies.values()]
        rows.append((heading, *(form(value) for value in values)))
    return Table(("", *(strategy_of(name).heading for name in metrics.strategies)), tuple(rows), "Every statistic")


def tails_table(stored: StoredBacktest) -> Table | None:
    """The tail of a bar, of a day and of a month; a period of which there are too few for a tail is left out."""
    metrics = stored.metrics
    names = [name for name in metrics.strategies if strategy_of(name).moves]
    rows = []
    for period, code in (("Bar", None), ("Day", "D"), ("Month", "M")):
        found = {name: _period_returns(stored, name, code) for name in names}
        n = len(found[names[0]])
        if n * metrics.alpha < 1.0 or (code and n >= metrics.bars):
            continue
        tails = [percent(float(statistics.cvar(values, alpha=metrics.alpha))) for values in found.values()]
        rows.append((f"{period} ({count(n)})", *tails))
    if len(rows) < 2:
        return None
    title = f"Mean log-return of the worst {share(metrics.alpha)}, by period"
    return Table(("", *(strategy_of(name).heading for name in names)), tuple(rows), title)


def _period_returns(stored: StoredBacktest, name: str, code: str | None) -> NDArray[np.float64]:
    logs = pd.Series(np.log(stored.equity[name].to_numpy()), index=pd.DatetimeIndex(stored.time))
    if code is None:
        return np.diff(logs.to_numpy())
    last = logs.groupby(pd.DatetimeIndex(logs.index).to_period(code)).last()
    return np.diff(last.to_numpy(), prepend=logs.iloc[0])


def trades_table(stored: StoredBacktest) -> Table | None:
    """The trades that made and lost most."""
    trades = stored.trades
    if trades.empty:
        return None
    ordered = trades.sort_values("pnl", ascending=False, kind="stable")
    shown = ordered if len(ordered) <= _MOST_TRADES else pd.concat([ordered.head(5), ordered.tail(5)])
    columns = (
        [f"{asset}, {side}" for asset, side in zip(shown["asset"], shown["side"], strict=True)],
        list(shown["entry_time"].dt.strftime("%Y-%m-%d")),
        list(shown["exit_time"].dt.strftime("%Y-%m-%d").where(shown["is_open"] == 0, "open")),
        [count(value) for value in shown["bars"].to_numpy(dtype=float)],
        [percent(value, 0) for value in shown["peak_weight"].to_numpy(dtype=float)],
        [percent(value) for value in shown["return_fraction"].to_numpy(dtype=float)],
        [count(value) for value in shown["pnl"].to_numpy(dtype=float)],
    )
    rows = zip(*columns, strict=True)
    heading = ("", "Entry", "Exit", "Bars", "Peak weight", "Return", "Profit, money")
    few = len(ordered) <= _MOST_TRADES
    return Table(heading, tuple(rows), "Every round trip" if few else "The five round trips that made and lost most")


def _between(low: str, high: str) -> str:
    return NOT_DEFINED if NOT_DEFINED in (low, high) else f"{low.removesuffix(' %')} … {high}"
