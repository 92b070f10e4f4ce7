"""From runs to numbers: the agent beside its baselines, beside luck and beside its own predictions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.backtest import calibration
from leeward.backtest.bootstrap import STATISTICS, Bootstrap, bootstrap
from leeward.backtest.metrics import (
    CalibrationMetrics,
    IntervalMetrics,
    Metrics,
    StrategyMetrics,
    TimingMetrics,
)
from leeward.backtest.result import COSTS, BacktestResult, Outlook
from leeward.backtest.strategies import AGENT
from leeward.errors import ArgumentError

Floats = NDArray[np.float64]

__all__ = ["TimingNull", "evaluate"]


@dataclass(frozen=True, eq=False)
class TimingNull:
    """Annualised Sharpe ratios: the agent's, and those of its own targets shifted in time (K,)."""

    score: float
    null: Floats

    @property
    def percentile(self) -> float:
        """Share of the null below the agent, ties by half; 50 when nothing can be told, as with constant targets."""
        usable = self.null[np.isfinite(self.null)]
        if not len(usable) or not np.isfinite(self.score):
            return 50.0
        tied = np.isclose(usable, self.score, rtol=1e-9, atol=1e-12)
        return float(100.0 * ((usable < self.score) & ~tied).mean() + 50.0 * tied.mean())


def evaluate(
    agent: BacktestResult,
    baselines: Mapping[str, BacktestResult],
    *,
    alpha: float,
    limit: float | None,
    assumptions: str,
    rng: np.random.Generator,
    timing: TimingNull | None = None,
    seeds: int = 1,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    in_sample: str | None = None,
    openings: int | None = None,
    n_draws: int = 2_000,
    progress: Callable[[int], None] = lambda drawn: None,
) -> Metrics:
    """All numbers of a split. `limit` is on CVaR_alpha of the log-return of one bar; `progress` is the bootstrap's."""
    if AGENT in baselines:
        raise ArgumentError(f"{AGENT!r} is the name of the policy under test; give that baseline another name")
    runs = {AGENT: agent, **baselines}
    drawn = bootstrap(
        {name: run.returns for name, run in runs.items()},
        bars_per_year=agent.bars_per_year,
        cash=agent.cash,
        alpha=alpha,
        rng=rng,
        n_draws=n_draws,
        progress=progress,
    )
    differences = {
        name: {s: IntervalMetrics.of(drawn.difference(AGENT, name, s)) for s in STATISTICS} for name in baselines
    }
    return Metrics(
        split=agent.split,
        assets=agent.assets,
        start=_stamp(agent.time[0]),
        end=_stamp(agent.time[-1]),
        bars=len(agent.step_returns),
        bars_per_year=agent.bars_per_year,
        cash_rate=agent.cash_rate,
        alpha=alpha,
        limit=limit,
        assumptions=assumptions,
        seeds=seeds,
        strategies={name: _strategy(name, run, drawn, alpha) for name, run in runs.items()},
        differences=differences,
        timing=None if timing is None else _timing(timing),
        calibration=_calibration(agent.outlook_step, agent.step_returns, alpha, rng),
        fingerprints=dict(agent.fingerprints),
        notes=tuple(notes),
        warnings=tuple(warnings),
        in_sample=in_sample,
        openings=openings,
    )


def _strategy(name: str, run: BacktestResult, drawn: Bootstrap, alpha: float) -> StrategyMetrics:
    return StrategyMetrics(
        performance=run.performance(alpha).as_dict(),
        activity=run.activity.as_dict(),
        costs={kind: float(run.costs[kind].sum()) for kind in COSTS},
        intervals={s: IntervalMetrics.of(drawn.interval(name, s)) for s in STATISTICS},
    )


def _timing(timing: TimingNull) -> TimingMetrics:
    null = tuple(float(value) for value in np.sort(timing.null))
    return TimingMetrics(percentile=timing.percentile, score=timing.score, null=null)


def _calibration(
    outlook: Outlook | None, outcomes: Floats, alpha: float, rng: np.random.Generator
) -> CalibrationMetrics | None:
    """Of the outlook for the next bar only: one bar ahead, in the unit of the limit, without overlap."""
    if outlook is None:
        return None
    breaches = outcomes <= outlook.var
    tail = _tail_test(outlook, outcomes, alpha, rng)
    ranks = calibration.pit(outlook.levels, outlook.quantiles, outcomes)
    return CalibrationMetrics(
        bars=len(outcomes),
        breaches=int(breaches.sum()),
        coverage_error=calibration.coverage_error(outlook.levels, outlook.quantiles, outcomes),
        kupiec_p=calibration.kupiec(breaches, alpha).p_value,
        christoffersen_p=calibration.christoffersen(breaches, alpha).p_value,
        acerbi_szekely_z=tail.statistic,
        acerbi_szekely_p=tail.p_value,
        pit=tuple(float(share) for share in calibration.pit_histogram(ranks)),
    )


def _tail_test(outlook: Outlook, outcomes: Floats, alpha: float, rng: np.random.Generator) -> calibration.Test:
    at_risk = outlook.cvar < 0.0  # bars spent in cash predict no loss, and Z₂ divides by the predicted one
    if not at_risk.any():
        return calibration.Test(float("nan"), float("nan"))
    return calibration.acerbi_szekely(
        outcomes[at_risk],
        outlook.quantiles[at_risk],
        outlook.weights,
        outlook.var[at_risk],
        outlook.cvar[at_risk],
        alpha=alpha,
        rng=rng,
    )


def _stamp(time: np.datetime64) -> str:
    return str(np.datetime_as_string(time, unit="s", timezone="UTC"))
