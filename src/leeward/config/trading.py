"""Config of the trading chain: which bars, which features and splits, which costs, which environment."""

from datetime import date
from difflib import get_close_matches
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from leeward.config.base import Frozen

__all__ = ["AccountConfig", "AssetCosts", "CostsConfig", "DataConfig", "EnvConfig", "OrderCosts", "SplitsConfig"]

_COLUMNS = ("time", "asset", "open", "high", "low", "close", "volume", "adj_close")
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]


class SplitsConfig(Frozen):
    """Splits by time, by shares or by dates. What train and validation leave over is the test split."""

    train: Fraction = Field(default=0.65, description="share of the bars, the first ones")
    validation: Fraction = Field(default=0.15, description="share of the bars, after train")
    validation_from: date | None = Field(
        default=None, description="first day (UTC) of validation and of its embargo, instead of the shares"
    )
    test_from: date | None = Field(default=None, description="first day (UTC) of test and of its embargo")
    embargo_bars: NonNegativeInt | None = Field(
        default=None,
        description="bars before each split that belong to none; None: the longest look-back of the features",
    )

    @model_validator(mode="after")
    def _leave_a_test_split(self) -> "SplitsConfig":
        if (self.validation_from is None) != (self.test_from is None):
            raise ValueError("validation_from and test_from go together, instead of the shares train and validation")
        if self.validation_from is not None and self.test_from is not None and self.validation_from >= self.test_from:
            raise ValueError(
                f"validation_from must be before test_from, got {self.validation_from} and {self.test_from}"
            )
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
    columns: dict[str, str] = Field(
        default={},
        description="name of a column in the file: what it is (time, asset, open, high, low, close, volume, adj_close, "
        "feature_NAME)",
    )
    assets: dict[str, str | None] = Field(
        default={}, description="name of an asset in the file: the name to use, or null to leave it out"
    )
    adjust: bool = Field(
        default=True, description="multiply prices by Adj Close / Close (and divide volume) where there is one"
    )
    dividends: Literal["auto", "adjusted", "raw"] = Field(
        default="auto",
        description="what prices beside a Dividends column are, where there is no Adj Close; auto: raw where a split "
        "shows that they are",
    )
    allow_gaps: bool = Field(default=False, description="a gap in time is a warning, not an error")
    features: tuple[str, ...] | None = Field(
        default=None,
        description="names of built-in features; None: every default one these bars support; feature_* always join",
    )
    feature_clip: PositiveFloat | None = Field(
        default=10.0, le=1e6, description="scaled features are cut at ± this many train std"
    )
    splits: SplitsConfig = SplitsConfig()
    n_bars: PositiveInt | None = Field(
        default=None, le=100_000_000, description="length of a synthetic sample, bars; None: the sample's own"
    )
    seed: int = Field(default=0, ge=0, lt=2**32, description="seed of a synthetic sample")

    @field_validator("columns")
    @classmethod
    def _known_columns(cls, columns: dict[str, str]) -> dict[str, str]:
        for name, meaning in columns.items():
            if meaning not in _COLUMNS and not meaning.startswith("feature_"):
                raise ValueError(f"{name!r} cannot be {meaning!r}; expected {', '.join(_COLUMNS)} or feature_NAME")
        return columns

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a directory of zones, such as America
            near = get_close_matches(zone, sorted(available_timezones()), n=1)
            like = f"did you mean {near[0]!r}?" if near else "expected an IANA name such as 'America/New_York'"
            raise ValueError(f"no time zone {zone!r}; {like}") from None
        return zone


class OrderCosts(Frozen):
    """What an order costs beyond basis points, and what a position costs, as brokers and exchanges have it."""

    per_unit: NonNegativeFloat = Field(default=0.0, description="money per unit (share, contract) traded")
    min_commission: NonNegativeFloat = Field(default=0.0, description="money, the least commission of an order")
    max_commission_bps: PositiveFloat | None = Field(
        default=None, description="basis points of the traded notional, the most commission of an order"
    )
    commission_tiers: tuple[tuple[NonNegativeFloat, NonNegativeFloat], ...] = Field(
        default=(),
        max_length=4,
        description="(money from which on, basis points) of an order, instead of commission_bps; a part pays its own",
    )
    maker_bps: float = Field(default=0.0, description="basis points on what is filled as maker; negative: a rebate")
    maker_share: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="fraction of an order that is filled as maker, which pays no half-spread",
    )
    funding_rate: float = Field(
        default=0.0, description="fraction a year (actual/365) that a long position pays a short one: perpetuals"
    )
    lot_size: NonNegativeFloat = Field(
        default=0.0, description="units are whole multiples of this, rounded towards 0; 0: any fraction"
    )
    min_order: NonNegativeFloat = Field(
        default=0.0, description="money, the smallest order; a smaller one is left out unless it closes a position"
    )

    @field_validator("commission_tiers")
    @classmethod
    def _tiers_from_zero(cls, tiers: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
        starts = [start for start, _ in tiers]
        if tiers and (starts[0] != 0.0 or starts != sorted(set(starts))):
            raise ValueError(f"commission_tiers begin at 0 and rise, got {starts}")
        return tiers


class AssetCosts(OrderCosts):
    """Costs of one asset; what is not given is as for all others."""

    commission_bps: NonNegativeFloat = Field(default=0.0, description="basis points of the traded notional")
    half_spread_bps: NonNegativeFloat = Field(default=0.0, description="basis points of the traded notional")
    fixed_fee: NonNegativeFloat = Field(default=0.0, description="money per order")
    impact_coef: NonNegativeFloat = Field(default=0.0, description="see env.costs.impact_coef")
    borrow_rate: NonNegativeFloat = Field(default=0.0, description="fraction a year on the value held short")


class CostsConfig(OrderCosts):
    """What trading and holding cost. Commission, spread, impact and interest are on by default."""

    commission_bps: NonNegativeFloat = Field(default=1.0, le=10_000, description="basis points of the traded notional")
    half_spread_bps: NonNegativeFloat = Field(default=1.0, le=10_000, description="basis points of the traded notional")
    fixed_fee: NonNegativeFloat = Field(default=0.0, description="money per order")
    impact_coef: NonNegativeFloat = Field(
        default=0.5, le=1_000, description="impact as a fraction of the notional: coef · σ · sqrt(units traded / V)"
    )
    cash_rate: NonNegativeFloat = Field(
        default=0.0, le=10, description="fraction a year (actual/365) earned on positive cash"
    )
    debit_rate: NonNegativeFloat = Field(
        default=0.05, le=10, description="fraction a year (actual/365) paid on negative cash"
    )
    borrow_rate: NonNegativeFloat = Field(
        default=0.03, le=10, description="fraction a year (actual/365) paid on the value held short"
    )
    assets: dict[str, AssetCosts] = Field(
        default={}, description="costs of single assets by name, of which only what differs must be given"
    )

    def of(self, asset: str) -> AssetCosts:
        """All costs of one asset."""
        own = self.assets.get(asset)
        given = {} if own is None else own.model_dump(exclude_unset=True)
        return AssetCosts(**{name: given.get(name, getattr(self, name)) for name in AssetCosts.model_fields})


class AccountConfig(Frozen):
    """The account and its limits."""

    initial_equity: PositiveFloat = Field(default=1_000_000.0, description="money at the start of every episode")
    gross_limit: PositiveFloat = Field(
        default=1.0, le=1_000, description="largest sum of |target weights|; larger targets are scaled down"
    )
    net_limit: NonNegativeFloat | None = Field(
        default=None, description="largest |sum of target weights|; the longer side is scaled down to it"
    )
    turnover_limit: PositiveFloat | None = Field(
        default=None, description="largest sum of |changes of weight| a bar; all changes are scaled down to it"
    )
    weight_limits: dict[str, tuple[float, float]] = Field(
        default={}, description="lowest and highest target weight of single assets by name"
    )
    rebalance_band: NonNegativeFloat = Field(
        default=0.0, description="a change of weight smaller than this is not traded"
    )
    maintenance: NonNegativeFloat = Field(
        default=0.25, le=1, description="margin call when equity < this × gross exposure"
    )
    ruin: Fraction = Field(
        default=0.01, description="fraction of the initial equity at which an account ends, and its floor"
    )

    @field_validator("weight_limits")
    @classmethod
    def _limits_in_order(cls, limits: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
        for name, (low, high) in limits.items():
            if not low <= high:
                raise ValueError(f"{name}: the lowest weight must not be above the highest, got {low} and {high}")
        return limits


class EnvConfig(Frozen):
    """The trading environment."""

    action: Literal["weights", "positions"] = Field(
        default="weights", description="Box of weights, or a discrete choice"
    )
    min_weight: float = Field(
        default=0.0,
        ge=-1_000,
        le=1_000,
        description="lowest target weight of an asset, fraction of equity (−1: fully short)",
    )
    max_weight: float = Field(
        default=1.0, ge=-1_000, le=1_000, description="highest target weight of an asset, fraction of equity"
    )
    positions: tuple[Annotated[float, Field(ge=-1_000, le=1_000)], ...] = Field(
        default=(0.0, 0.5, 1.0),
        min_length=2,
        description="target weights a discrete action picks from, fractions of equity",
    )
    reward: Literal["log_return", "differential_sharpe"] = Field(
        default="log_return", description="step_return of the bar, or the differential Sharpe ratio of it (no unit)"
    )
    sharpe_memory_bars: PositiveFloat = Field(
        default=250.0, ge=1, description="time constant of the differential Sharpe ratio, bars"
    )
    sharpe_prior_std: PositiveFloat = Field(
        default=0.01, ge=1e-9, le=1e3, description="volatility per bar the differential Sharpe starts from"
    )
    episode_bars: PositiveInt | None = Field(
        default=512, description="decisions in one episode, each from a random start; None: the whole split"
    )
    drawdown_bars: PositiveInt = Field(
        default=64, le=1_000_000, description="rolling window of the drawdown in the observation, bars"
    )
    account: AccountConfig = AccountConfig()
    costs: CostsConfig = CostsConfig()

    @model_validator(mode="after")
    def _weights_in_order(self) -> "EnvConfig":
        if not self.min_weight < self.max_weight:
            raise ValueError(f"min_weight must be below max_weight, got {self.min_weight} and {self.max_weight}")
        return self
