"""metrics.json: every number of a backtest that is not a series. NaN in memory is null in the file."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from leeward.backtest.bootstrap import Interval

__all__ = [
    "Number",
    "Record",
    "IntervalMetrics",
    "StrategyMetrics",
    "TimingMetrics",
    "CalibrationMetrics",
    "Metrics",
]

Number = Annotated[float, BeforeValidator(lambda value: float("nan") if value is None else value)]


class Record(BaseModel):
    """Measured numbers, not settings: NaN is legal here (a flat line has no Sharpe ratio) and is null in JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="null")


class IntervalMetrics(Record):
    """A bootstrap interval of 90 %."""

    low: Number
    high: Number
    error: Number = Field(description="standard deviation over the draws")

    @classmethod
    def of(cls, interval: Interval) -> "IntervalMetrics":
        return cls(low=interval.low, high=interval.high, error=interval.error)

    def interval(self) -> Interval:
        return Interval(self.low, self.high, self.error)


class StrategyMetrics(Record):
    """The agent or one baseline."""

    performance: dict[str, Number] = Field(description="fields of Performance")
    activity: dict[str, Number] = Field(description="fields of Activity")
    costs: dict[str, Number] = Field(description="sum over the split, currency, per kind")
    intervals: dict[str, IntervalMetrics] = Field(description="per bootstrapped statistic")


class TimingMetrics(Record):
    """The agent's Sharpe ratio among those of its own targets at other times."""

    percentile: Number
    score: Number = Field(description="annualised Sharpe ratio of the agent")
    null: tuple[Number, ...] = Field(description="annualised Sharpe ratios of the shifted targets, sorted")


class CalibrationMetrics(Record):
    """Predicted tail of the next bar against what came."""

    bars: int
    breaches: int = Field(description="bars at or below the predicted VaR")
    coverage_error: Number = Field(description="mean absolute gap between level and coverage")
    kupiec_p: Number
    christoffersen_p: Number
    acerbi_szekely_z: Number
    acerbi_szekely_p: Number
    pit: tuple[Number, ...] = Field(description="histogram, 1 everywhere when calibrated")


class Metrics(Record):
    """One split of one run."""

    version: int = 1
    split: str
    assets: tuple[str, ...]
    start: str = Field(description="ISO time of the first decision, UTC")
    end: str = Field(description="ISO time of the last bar, UTC")
    bars: int
    bars_per_year: Number
    cash_rate: Number = Field(description="fraction a year")
    alpha: Number = Field(description="tail mass of the risk variable")
    limit: float | None = Field(description="on CVaR of the log-return of a bar; None: no limit")
    assumptions: str = Field(description="fills and costs in words")
    seeds: int = Field(1, description="seeds this result stands for")
    strategies: dict[str, StrategyMetrics] = Field(description="`agent` and every baseline")
    differences: dict[str, dict[str, IntervalMetrics]] = Field(description="baseline -> statistic: agent − baseline")
    timing: TimingMetrics | None = None
    calibration: CalibrationMetrics | None = None
    fingerprints: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = Field((), description="what a reader must know about the data")
    warnings: tuple[str, ...] = Field((), description="what the check of the bars warned of")
    in_sample: str | None = Field(
        None, description="which decisions the agent has learned from; empty: none; None: nobody compared them"
    )
    openings: int | None = Field(None, description="openings of these test bars, this one included; None: no test bars")
