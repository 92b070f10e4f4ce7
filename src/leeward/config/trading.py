"""Config of the trading chain: which bars, which features and splits, which costs, which environment."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from leeward.config.base import Frozen

__all__ = ["AccountConfig", "CostsConfig", "DataConfig", "EnvConfig", "SplitsConfig"]

Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


class SplitsConfig(Frozen):
    """Splits by time. What train and validation leave over is the test split."""

    train: Fraction = Field(default=0.65, description="share of the bars, the first ones")
    validation: Fraction = Field(default=0.15, description="share of the bars, after train")
    embargo_bars: NonNegativeInt | None = Field(
        default=None,
        description="bars before each split that belong to none; None: the longest look-back of the features",
    )

    @model_validator(mode="after")
    def _leave_a_test_split(self) -> "SplitsConfig":
        if self.train + self.validation >= 1.0:
            raise ValueError(
                f"train + validation must leave bars for the test split, got {self.train} + {self.validation}"
            )
        return self


class DataConfig(Frozen):
    """Which bars, and how they become observations."""

    source: str = Field(
        default="sample:nasdaq",
        description="a CSV or Parquet file, a directory of such files (one per asset), or sample:NAME",
    )
    stamp: Literal["open", "close"] = Field(
        default="open", description="whether a bar's time is that of its open or its close"
    )
    time_zone: str = Field(default="UTC", description="IANA zone of times that carry none")
    adjust: bool = Field(
        default=True, description="multiply prices by Adj Close / Close (and divide volume) where there is one"
    )
    allow_gaps: bool = Field(default=False, description="a gap in time is a warning, not an error")
    features: tuple[str, ...] | None = Field(
        default=None,
        description="names of built-in features; None: every default one these bars support; feature_* always join",
    )
    feature_clip: PositiveFloat | None = Field(
        default=10.0, description="scaled features are cut at ± this many train std"
    )
    splits: SplitsConfig = SplitsConfig()
    n_bars: PositiveInt | None = Field(
        default=None, description="length of a synthetic sample, bars; None: the sample's own"
    )
    seed: NonNegativeInt = Field(default=0, description="seed of a synthetic sample")


class CostsConfig(Frozen):
    """What trading and holding cost. All of it is on by default."""

    commission_bps: NonNegativeFloat = Field(default=1.0, description="basis points of the traded notional")
    half_spread_bps: NonNegativeFloat = Field(default=1.0, description="basis points of the traded notional")
    fixed_fee: NonNegativeFloat = Field(default=0.0, description="money per order")
    impact_coef: NonNegativeFloat = Field(
        default=0.5, description="impact as a fraction of the notional: coef · σ · sqrt(units traded / V)"
    )
    cash_rate: NonNegativeFloat = Field(default=0.0, description="fraction a year (actual/365) earned on positive cash")
    debit_rate: NonNegativeFloat = Field(default=0.05, description="fraction a year (actual/365) paid on negative cash")
    borrow_rate: NonNegativeFloat = Field(
        default=0.03, description="fraction a year (actual/365) paid on the value held short"
    )


class AccountConfig(Frozen):
    """The account and its limits."""

    initial_equity: PositiveFloat = Field(default=1_000_000.0, description="money at the start of every episode")
    gross_limit: PositiveFloat = Field(
        default=1.0, description="largest sum of |target weights|; larger targets are scaled down"
    )
    rebalance_band: NonNegativeFloat = Field(
        default=0.0, description="a change of weight smaller than this is not traded"
    )
    maintenance: NonNegativeFloat = Field(default=0.25, description="margin call when equity < this × gross exposure")
    ruin: Fraction = Field(
        default=0.01, description="fraction of the initial equity at which an account ends, and its floor"
    )


class EnvConfig(Frozen):
    """The trading environment."""

    action: Literal["weights", "positions"] = Field(
        default="weights", description="Box of weights, or a discrete choice"
    )
    min_weight: float = Field(
        default=0.0, description="lowest target weight of an asset, fraction of equity (−1: fully short)"
    )
    max_weight: float = Field(default=1.0, description="highest target weight of an asset, fraction of equity")
    positions: tuple[float, ...] = Field(
        default=(0.0, 0.5, 1.0),
        min_length=2,
        description="target weights a discrete action picks from, fractions of equity",
    )
    reward: Literal["log_return", "differential_sharpe"] = Field(
        default="log_return", description="step_return of the bar, or the differential Sharpe ratio of it (no unit)"
    )
    sharpe_memory_bars: PositiveFloat = Field(
        default=250.0, description="time constant of the differential Sharpe ratio, bars"
    )
    sharpe_prior_std: PositiveFloat = Field(
        default=0.01, description="volatility per bar the differential Sharpe starts from"
    )
    episode_bars: PositiveInt | None = Field(
        default=512, description="decisions in one episode, each from a random start; None: the whole split"
    )
    drawdown_bars: PositiveInt = Field(
        default=64, description="rolling window of the drawdown in the observation, bars"
    )
    account: AccountConfig = AccountConfig()
    costs: CostsConfig = CostsConfig()

    @model_validator(mode="after")
    def _weights_in_order(self) -> "EnvConfig":
        if not self.min_weight < self.max_weight:
            raise ValueError(f"min_weight must be below max_weight, got {self.min_weight} and {self.max_weight}")
        return self
