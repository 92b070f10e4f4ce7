"""A tear sheet for anything: a hand-written rule, any model with `predict`, a table of weights, somebody's returns."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.backtest.engine import Policy
from leeward.backtest.evaluation import evaluate
from leeward.backtest.files import write_backtest
from leeward.backtest.result import COSTS, BacktestResult
from leeward.backtest.run import run_backtest
from leeward.backtest.strategies import AGENT, BUY_AND_HOLD, CASH
from leeward.config.trading import EnvConfig
from leeward.env.trading_env import Data, as_market
from leeward.errors import ArgumentError
from leeward.market import Market
from leeward.market.bars import JULIAN_YEAR_SECONDS
from leeward.market.splits import Split
from leeward.report.build import write_report

__all__ = ["tear_sheet"]

Floats = NDArray[np.float64]
_UNKNOWN = "Nobody has said which of these bars it was made or chosen on (`unseen_from` does)"


def tear_sheet(
    subject: "Policy | pd.Series[float] | pd.DataFrame",
    bars: "Data | pd.Series[float] | None" = None,
    *,
    path: Path | str = "tear_sheet.html",
    name: str = "strategy",
    config: EnvConfig | None = None,
    unseen_from: str | None = None,
    alpha: float = 0.05,
    limit: float | None = None,
    n_draws: int = 2_000,
    n_offsets: int = 1_000,
    seed: int = 0,
) -> Path:
    """Write one HTML file about `subject`, and return its path.

    - simple returns, a Series indexed by time: `bars` may be the returns of a benchmark in the same form;
    - target weights, a DataFrame indexed by time with a column per asset, decided at the close of their bar; a bar
      without a row keeps the target before it: `bars` are what they trade;
    - a policy, anything with `predict`: `bars` or a prepared market are what it trades. A `predict` with arguments
      named `time` or `assets` is given the time of the bar it has seen and the names of the assets.

    An edge is judged only on decisions from the day `unseen_from` on: on all others nobody knows what was learned.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / name
        if isinstance(subject, pd.Series):
            _of_returns(subject, bars, run, alpha=alpha, limit=limit, n_draws=n_draws, seed=seed)
        else:
            market = _market(bars, unseen_from)
            table = subject if isinstance(subject, pd.DataFrame) else None
            policy: Any = subject if table is None else _Weights(table, market)
            found = run_backtest(
                policy,
                market,
                config or (EnvConfig() if table is None else _room_for(table)),
                split="whole",
                rng=np.random.default_rng(seed),
                alpha=alpha,
                limit=limit,
                in_sample=_UNKNOWN if unseen_from is None else "",
                n_offsets=n_offsets,
                n_draws=n_draws,
            )
            found.write(run / "backtest" / "whole")
        return write_report(run, path=Path(path))


class _Weights:
    """A table of target weights as a policy."""

    def __init__(self, weights: pd.DataFrame, market: Market) -> None:
        missing = [str(asset) for asset in market.bars.assets if asset not in weights.columns]
        if missing:
            raise ArgumentError(f"weights have no column for {', '.join(missing)}; the columns are asset names")
        index = pd.DatetimeIndex(weights.index)
        plain = index if index.tz is None else index.tz_convert(None)
        table = weights[list(market.bars.assets)].set_axis(plain).sort_index()
        self._table = table.reindex(pd.DatetimeIndex(market.bars.time), method="ffill").fillna(0.0)

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        time: np.datetime64,
    ) -> tuple[Floats, Any]:
        return self._table.loc[pd.Timestamp(time)].to_numpy(np.float64)[None], state


def _room_for(weights: pd.DataFrame) -> EnvConfig:
    """The default env, wide enough for these weights."""
    values = weights.to_numpy(np.float64)
    gross = float(np.nansum(np.abs(values), axis=1).max(initial=0.0))
    low, high = float(np.nanmin(values, initial=0.0)), float(np.nanmax(values, initial=1.0))
    account = EnvConfig().account.model_copy(update={"gross_limit": max(1.0, gross)})
    return EnvConfig(min_weight=low, max_weight=high, account=account)


def _market(bars: Any, unseen_from: str | None) -> Market:
    if bars is None or isinstance(bars, pd.Series):
        raise ArgumentError("weights and policies trade something: give `bars`, a file, a frame or a prepared market")
    market = as_market(bars)
    n, look_back = len(market.bars), market.look_back
    start = look_back
    if unseen_from is not None:
        start = max(look_back, int(np.searchsorted(market.bars.time, np.datetime64(unseen_from))))
    window = Split("whole", max(0, start - look_back), start, n)
    if window.n_decisions < 2:
        raise ArgumentError(
            f"{market.bars.source}: fewer than two decisions are left of {n} bars from {unseen_from} on"
        )
    return replace(market, splits=dict(market.splits) | {"whole": window})


def _of_returns(
    returns: "pd.Series[float]",
    benchmark: Any,
    run: Path,
    *,
    alpha: float,
    limit: float | None,
    n_draws: int,
    seed: int,
) -> None:
    if benchmark is not None and not isinstance(benchmark, pd.Series):
        raise ArgumentError("beside returns, `bars` are the returns of a benchmark: a Series with the same index")
    agent = _held(AGENT, returns)
    others: Mapping[str, BacktestResult] = {CASH: _held(CASH, returns * 0.0)}
    if benchmark is not None:
        if not benchmark.index.equals(returns.index):
            raise ArgumentError("the benchmark needs the index of the returns; reindex it first")
        others = {BUY_AND_HOLD: _held(BUY_AND_HOLD, benchmark), **others}
    metrics = evaluate(
        agent,
        others,
        alpha=alpha,
        limit=limit,
        assumptions="returns as given, whatever costs are in them",
        rng=np.random.default_rng(seed),
        n_draws=n_draws,
        in_sample=_UNKNOWN,
        notes=("Returns as given: positions, costs and fills are not known.",),
    )
    write_backtest(run / "backtest" / "whole", agent, others, metrics)


def _held(name: str, returns: "pd.Series[float]") -> BacktestResult:
    """Returns as an account that holds one thing, whose price they are."""
    values = returns.to_numpy(np.float64)
    if len(values) < 3 or not np.isfinite(values).all() or (values <= -1.0).any():
        raise ArgumentError("a tear sheet needs at least three finite simple returns above −1")
    index = pd.DatetimeIndex(returns.index)
    time = (index if index.tz is None else index.tz_convert(None)).to_numpy().astype("datetime64[ns]")
    time = np.concatenate([[time[0] - (time[1] - time[0])], time])
    years = float((time[-1] - time[0]).astype(np.int64)) * 1e-9 / JULIAN_YEAR_SECONDS
    equity = np.concatenate([[1.0], np.cumprod(1.0 + values)]) * 1e6
    n, price = len(values), equity[1:, None] / 1e4
    ones = np.ones((n, 1))
    return BacktestResult(
        name=name,
        split="whole",
        assets=(str(returns.name or "returns"),),
        time=time,
        equity=equity,
        step_returns=np.log1p(values),
        targets=ones,
        weights=ones,
        units=1e4 * ones,
        fills=np.vstack([[equity[0] / 1e4], price[:-1]]),
        closes=price,
        costs={kind: np.zeros(n) for kind in COSTS},
        turnover=np.zeros(n),
        bars_per_year=n / years,
    )
