"""What a member is told to do, and what came of it: plain data, as it stands in population.jsonl."""

import json
import math
import re
from dataclasses import asdict, dataclass, field
from typing import Any

from pydantic import TypeAdapter

from leeward.training.population.compare import Standing
from leeward.training.population.space import Settings

__all__ = ["Order", "Outcome", "folder_of", "place_of"]

_PLACE = r"members/\d{4,9}/checkpoints/\d{8,18}"


@dataclass(frozen=True)
class Order:
    """One interval of one member: where it starts, with which settings, and how far it goes."""

    member: int
    round: int  # the first is 0
    begins: int  # env steps of the member at its start
    steps: int  # and at its end
    updates: int  # the end in updates, which names its checkpoint
    requested: Settings
    start: str | None = None  # checkpoint, from the population's folder on; None: begin
    source: int | None = None  # the member whose checkpoint that is, when it is taken over
    changed: bool = False  # whether settings are to be put in force: of a take-over, or of a schedule

    @property
    def place(self) -> str:
        """Where its checkpoint goes, from the population's folder on."""
        return place_of(self.member, self.updates)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Any) -> "Order":
        """What `as_dict` gave; ValueError where it is of another kind, or leads out of the population's folder."""
        _ORDER.validate_json(json.dumps(values), strict=True)
        order = cls(**values)
        if min(order.member, order.round, order.begins, order.steps, order.updates) < 0:
            raise ValueError(f"numbers of an order are 0 or more, got {order!r:.200}")
        if order.start is not None and not re.fullmatch(_PLACE, order.start):
            raise ValueError(f"start must be the place of a checkpoint of a member, got {order.start!r:.80}")
        return order


@dataclass(frozen=True)
class Outcome:
    """What a member reports at the end of an interval."""

    step: int  # env steps
    value: float = math.nan  # score: the larger the better
    windows: tuple[float, ...] = ()
    began: Settings = field(default_factory=dict)  # what live objects said when settings had been put in force
    live: Settings = field(default_factory=dict)  # the same at the end; only a rollback changes it in between
    lr_applied: float | None = None  # of the optimiser in the first update
    lr_expected: float | None = None  # by the schedule that starts from the rate that was requested
    training_seconds: float = 0.0  # wall time inside rollouts and updates
    ended: str | None = None  # why it cannot go on: a health error, or too many crashes
    stopped: str | None = None  # a setting was not applied: its place stays empty

    @property
    def standing(self) -> Standing:
        return Standing(self.value, self.windows, ended=self.ended is not None)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: null."""
        plain = asdict(self)
        plain["value"] = _number(self.value)
        plain["windows"] = [_number(each) for each in self.windows]
        return plain

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Outcome":
        windows = tuple(math.nan if each is None else float(each) for each in values["windows"])
        value = math.nan if values["value"] is None else float(values["value"])
        found = values | {"value": value, "windows": windows}
        _OUTCOME.validate_json(json.dumps(found), strict=True)
        return cls(**found)


_ORDER, _OUTCOME = TypeAdapter(Order), TypeAdapter(Outcome)  # which check, and do not convert


def folder_of(member: int) -> str:
    """A member's run directory, from the population's folder on."""
    return f"members/{member:04d}"


def place_of(member: int, updates: int) -> str:
    return f"{folder_of(member)}/checkpoints/{updates:08d}"


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
