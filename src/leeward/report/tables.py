"""Tables of the report: numbers as a person reads them, with their units."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from leeward.backtest.files import StoredBacktest
from leeward.backtest.metrics import AGENT, Metrics

__all__ = [
    "Table",
    "summary_table",
    "full_table",
    "trades_table",
    "label",
    "percent",
    "fine_percent",
    "ratio",
    "count",
]

_NOT_DEFINED = "–"
_LABELS = {
    "agent": "Agent",
    "buy_and_hold": "Buy and hold",
    "volatility_target": "Volatility target",
    "cash": "Cash",
    "best_policy": "Best policy",
}
_MOST_TRADES = 10


@dataclass(frozen=True, slots=True)
class Table:
    """A heading row and rows of text; the first column names the row. `strong` rows are set in bold."""

    heading: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strong: frozenset[int] = frozenset()


def label(name: str) -> str:
    """A strategy's or field's name as a heading."""
    return _LABELS.get(name, name.replace("_", " ").capitalize())


def percent(value: float, digits: int = 1) -> str:
    return _signed(f"{100 * value:.{digits}f} %") if math.isfinite(value) else _NOT_DEFINED


def ratio(value: float) -> str:
    return _signed(f"{value:.2f}") if math.isfinite(value) else _NOT_DEFINED


def count(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ") if math.isfinite(value) else _NOT_DEFINED


def fine_percent(value: float) -> str:
    return percent(value, 2)


# field, heading, format; the order of the full table
_ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("total_return", "Total return", percent),
    ("cagr", "CAGR, a year", percent),
    ("volatility", "Volatility, a year", percent),
    ("sharpe", "Sharpe", ratio),
    ("sortino", "Sortino", ratio),
    ("calmar", "Calmar", ratio),
    ("omega", "Omega", ratio),
    ("max_drawdown", "Largest drawdown", percent),
    ("max_drawdown_bars", "Longest drawdown, bars", count),
    ("var", "VaR, one bar", fine_percent),
    ("cvar", "CVaR, one bar", fine_percent),
    ("skew", "Skew", ratio),
    ("kurtosis", "Excess kurtosis", ratio),
    ("tail_ratio", "Tail ratio", ratio),
    ("hit_rate", "Hit rate, bars", percent),
    ("profit_factor", "Profit factor, bars", ratio),
    ("exposure", "Exposure, mean", percent),
    ("turnover_per_year", "Turnover, × equity a year", ratio),
    ("trades", "Round trips", count),
    ("costs_per_year", "Costs, of equity a year", fine_percent),
    ("costs_total", "Costs, money", count),
    ("costs_of_gross_profit", "Costs, of gross profit", percent),
)
_SUMMARY = ("cagr", "sharpe", "cvar", "max_drawdown")
_SUMMARY_HEADINGS = {"cagr": "CAGR", "sharpe": "Sharpe", "cvar": "CVaR", "max_drawdown": "Drawdown"}
_FORMATS = {field: form for field, _, form in _ROWS}


def summary_table(metrics: Metrics) -> Table:
    """Four statistics per strategy, and the agent's intervals."""
    rows = []
    for name, strategy in metrics.strategies.items():
        rows.append((label(name), *(_FORMATS[field](strategy.performance[field]) for field in _SUMMARY)))
        if name == AGENT:
            between = strategy.intervals
            ends = [(_FORMATS[f](between[f].low), _FORMATS[f](between[f].high)) for f in _SUMMARY]
            rows.append(("90 % interval", *(_between(low, high) for low, high in ends)))
    return Table(("", *(_SUMMARY_HEADINGS[field] for field in _SUMMARY)), tuple(rows), frozenset({0}))


def full_table(metrics: Metrics) -> Table:
    """Every statistic, one row each, one column per strategy."""
    rows = []
    for field, heading, form in _ROWS:
        values = [(s.performance | s.activity)[field] for s in metrics.strategies.values()]
        rows.append((heading, *(form(value) for value in values)))
    return Table(("", *(label(name) for name in metrics.strategies)), tuple(rows))


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
        [fine_percent(value) for value in shown["return_fraction"].to_numpy(dtype=float)],
        [_signed(count(value)) for value in shown["pnl"].to_numpy(dtype=float)],
    )
    rows = zip(*columns, strict=True)
    return Table(("", "Entry", "Exit", "Bars", "Peak weight", "Return", "Profit, money"), tuple(rows))


def _between(low: str, high: str) -> str:
    return _NOT_DEFINED if _NOT_DEFINED in (low, high) else f"{low.removesuffix(' %')} … {high}"


def _signed(text: str) -> str:
    return text.replace("-", "−")
