"""The `health:` section: what a run does about its own alerts. The rules themselves are in `telemetry.rules`."""

from pydantic import Field, PositiveInt, field_validator

from leeward.config.base import Frozen
from leeward.errors import did_you_mean
from leeward.telemetry.rules import RULES

__all__ = ["Health", "RuleSettings"]


class RuleSettings(Frozen):
    """One health rule, changed."""

    threshold: float | None = Field(None, description="where it fires; None: as docs/metrics.md lists it")
    off: bool = Field(False, description="it never fires")


class Health(Frozen):
    """What a run does about its own health alerts; see docs/reading-a-run.md."""

    strict: bool = Field(False, description="an alert of severity error ends training, at the last good state")
    rollback: bool = Field(
        False, description="an alert of severity error returns to the last good state, with a smaller learning rate"
    )
    max_rollbacks: PositiveInt = Field(3, description="how often; the next error ends training")
    rollback_lr_factor: float = Field(
        0.5,
        gt=0,
        le=1,
        description="what the first rollback multiplies learning rates by, for a while; the n-th: n times",
    )
    rules: dict[str, RuleSettings] = Field({}, description="by name of a rule: {threshold: number, off: true}")

    @field_validator("rules")
    @classmethod
    def _rules_are_there(cls, rules: dict[str, RuleSettings]) -> dict[str, RuleSettings]:
        for name in rules:
            if name not in RULES:
                raise ValueError(f"there is no rule {name!r}; {did_you_mean(name, RULES)}")
        return rules

    @property
    def thresholds(self) -> dict[str, float]:
        """Those that were set."""
        return {name: each.threshold for name, each in self.rules.items() if each.threshold is not None}

    def threshold(self, name: str) -> float:
        """Where a rule fires: as it was set, or as the table of rules has it."""
        return self.thresholds.get(name, RULES[name].threshold)

    @property
    def off(self) -> frozenset[str]:
        return frozenset(name for name, each in self.rules.items() if each.off)
