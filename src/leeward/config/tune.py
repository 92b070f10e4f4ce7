"""What a population or a sweep searches: which settings, inside which bounds. `tune:` and `gym:` of a config."""

import json
import math
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveInt, field_validator, model_validator

from leeward.config.base import Frozen
from leeward.errors import did_you_mean

__all__ = ["SEARCHABLE", "Dimension", "GymConfig", "ScoreName", "TuneConfig", "is_whole", "put", "setting_of"]

ScoreName = Literal["growth", "sharpe", "sortino", "cvar_adjusted", "growth_within_limit"]

# Numbers that act from the next update on and leave the network as it is.
_OF_THE_LEARNER = (
    "learning_rate", "critic_learning_rate", "batch_size", "n_epochs", "gamma", "gae_lambda", "clip_range",
    "clip_range_vf", "ent_coef", "vf_coef", "max_grad_norm", "target_kl", "vgs.strength",
    "adversary.epsilon", "adversary.kl_weight", "adversary.value_weight",
)  # fmt: skip
_OF_A_LIMIT = ("learning_rate", "proportional", "derivative", "margin")
SEARCHABLE = tuple([f"ppo.{name}" for name in _OF_THE_LEARNER] + [f"risk.{name}" for name in _OF_A_LIMIT])


class GymConfig(Frozen):
    """An env of Gymnasium instead of a market: it replaces `data` and `env`."""

    id: str = Field("CartPole-v1", min_length=1, description="name under which Gymnasium knows the env")
    kwargs: dict[str, Any] = Field(default={}, description="arguments of the env")

    @field_validator("kwargs")
    @classmethod
    def _come_back_equal(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        """What config.yaml of the run cannot hold would be something else when it is read: infinity becomes null."""
        try:
            kept = json.loads(json.dumps(kwargs, allow_nan=False)) == kwargs
        except (TypeError, ValueError):
            kept = False
        if not kept:
            raise ValueError(f"expected texts, finite numbers, true, false, null, lists and keys, got {kwargs!r:.200}")
        return kwargs


class Dimension(Frozen):
    """Where one setting is searched: between two bounds, or among values."""

    low: int | float | None = Field(None, description="least value")
    high: int | float | None = Field(None, description="largest value")
    log: bool = Field(False, description="drawn and moved by factors, not by differences")
    values: tuple[int | float, ...] | None = Field(None, min_length=2, description="all there is, instead of bounds")

    @model_validator(mode="after")
    def _bounds_or_values(self) -> "Dimension":
        if (self.values is None) == (self.low is None and self.high is None):
            raise ValueError("expected low and high, or values: either the one or the other")
        if self.values is not None:
            if self.log:
                raise ValueError("log goes with low and high, and values are given")
            if list(self.values) != sorted(set(self.values)):
                raise ValueError(f"values must rise, each once, got {list(self.values)}")
            return self
        if self.low is None or self.high is None:
            raise ValueError(f"low and high go together, got {self.low} and {self.high}")
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs a low above 0, got {self.low}")
        return self

    @property
    def ends(self) -> tuple[int | float, ...]:
        """What must be allowed, so that everything searched is."""
        if self.values is not None:
            return self.values
        assert self.low is not None and self.high is not None
        return self.low, self.high

    def at(self, share: float) -> float:
        """The value at a share of the way from the lowest (0) to the highest (1)."""
        if self.values is not None:
            return self.values[min(int(share * len(self.values)), len(self.values) - 1)]
        low, high = self.ends
        if self.log:
            return min(max(math.exp(math.log(low) + share * math.log(high / low)), low), high)
        return min(max(low + share * (high - low), low), high)

    def share_of(self, value: float) -> float:
        """Where a value lies between the lowest and the highest; of one of `values`, the middle of its part."""
        if self.values is not None:
            return (self.values.index(value) + 0.5) / len(self.values)
        low, high = self.ends
        return math.log(value / low) / math.log(high / low) if self.log else (value - low) / (high - low)


class TuneConfig(Frozen):
    """A population that trains side by side and takes over what works; see docs/population.md."""

    interval: PositiveInt | None = Field(
        None, description="env steps of each member between two comparisons; None: a twentieth of ppo.total_steps"
    )
    optimizer_strategy: Literal["copy", "reset"] = Field(
        "copy", description="what becomes of the optimiser when weights are taken over"
    )
    margin: NonNegativeFloat = Field(
        1.0, description="standard errors by which another member must lead before it is taken over; 0: always"
    )
    score: ScoreName | None = Field(
        None, description="by what members are compared on validation; None: by what `validation` selects"
    )
    space: dict[str, Dimension] = Field(
        default={},
        description="setting: {low, high, log} or {values}; ppo.learning_rate: {low: 1e-5, high: 1e-2, log: true}",
    )

    schedule: dict[int, dict[str, int | float]] = Field(
        default={},
        description="env step: {setting: value} from there on; best/schedule.yaml of a population, for `tune --replay`",
    )

    @field_validator("schedule")
    @classmethod
    def _turns_rise_from_the_start(
        cls, schedule: dict[int, dict[str, int | float]]
    ) -> dict[int, dict[str, int | float]]:
        if schedule and ([*schedule] != sorted(schedule) or 0 not in schedule):
            raise ValueError(f"steps begin at 0 and rise, got {[*schedule]}")
        for key in {key for turn in schedule.values() for key in turn}:
            if setting_of(key) is None:
                raise ValueError(f"{key!r} cannot change while training; {did_you_mean(key, SEARCHABLE)}")
        return schedule

    @field_validator("space")
    @classmethod
    def _known_settings(cls, space: dict[str, Dimension]) -> dict[str, Dimension]:
        known = [setting_of(key) for key in space]
        for key, setting in zip(space, known, strict=True):
            if setting is None:
                raise ValueError(f"{key!r} cannot be searched; {did_you_mean(key, SEARCHABLE)}")
            if known.count(setting) > 1:
                raise ValueError(f"{key!r} is named twice: risk.0 and risk are the same limit")
        return space


def setting_of(key: str) -> str | None:
    """The name that `set_hyperparameters` knows a key of a config by; None of a key that cannot be searched.

    `risk` is the first limit, as a config with one limit has it; `risk.1` the second.
    """
    section, _, rest = key.partition(".")
    if section == "ppo":
        return rest if rest in _OF_THE_LEARNER else None
    place, dot, field = rest.partition(".")
    if section == "risk" and dot and place.isdecimal():
        return f"risk.{int(place)}.{field}" if field in _OF_A_LIMIT else None
    return f"risk.0.{rest}" if section == "risk" and rest in _OF_A_LIMIT else None


def is_whole(key: str) -> bool:
    """Whether a setting that can be searched is a whole number."""
    return key in ("ppo.batch_size", "ppo.n_epochs")


def put(model: Any, path: list[str], value: Any, *, where: str) -> Any:
    """A config, or a part of one, with the field at the end of `path` set and all of it checked again."""
    name, *rest = path
    if isinstance(model, tuple):
        if not name.isdecimal() or int(name) >= len(model):
            raise ValueError(f"{where}: {name!r} is no place in a list of {len(model)}; the first is 0")
        place = int(name)
        return (*model[:place], put(model[place], rest, value, where=where), *model[place + 1 :])
    if model is None:
        raise ValueError(f"{where}: its section is off; give it keys, then it can be searched")
    fields = {each: getattr(model, each) for each in type(model).model_fields}
    inner = put(fields[name], rest, value, where=where) if rest else value
    return type(model).read({**fields, name: inner}, where=where)
