"""Settings of a live model: what may change, and how a change is put together and checked.

A change is a new frozen `Settings`; the engine reads it at every update, so that there is one place where a value is.
"""

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from stable_baselines3.common.utils import FloatSchedule

from leeward.config.base import Frozen
from leeward.config.settings import Settings, is_structural
from leeward.errors import ArgumentError, ConfigError, did_you_mean

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = ["Fixed", "Live", "LiveSchedule", "changed_settings", "read_setting", "warn_of_thin_tails"]

_WHERE = "DistributionalPPO"
_FRAGILE_ALPHA = 0.01


def changed_settings(now: Settings, values: Mapping[str, Any]) -> Settings:
    """`now` with some values changed, checked as the constructor checks them.

    A key is the name of an argument, or leads by dots to a field of one: "risk.0.learning_rate". An argument's value
    is what the constructor takes.
    """
    wanted = {name: getattr(now, name) for name in type(now).model_fields}
    for key, value in values.items():
        name, *path = key.split(".")
        if name not in wanted:
            raise ArgumentError(f"{key}: there is no such setting; {did_you_mean(name, wanted)}")
        wanted[name] = _with(wanted[name], path, value, key)
    after = Settings.read(wanted, where=_WHERE)
    _refuse_structural(now, after)
    return after


def warn_of_thin_tails(settings: Settings) -> None:
    """A tail that is measured or predicted on next to nothing is a guess."""
    for each in settings.risk:
        if each.alpha < _FRAGILE_ALPHA:
            warnings.warn(
                f"risk.alpha {each.alpha:g} is below {_FRAGILE_ALPHA:g}: the tail rests on very few outcomes and its "
                "gradient is noisy; a larger alpha, or many more steps per rollout, holds a limit better",
                stacklevel=5,
            )
    alphas = [each.alpha for each in settings.risk]
    uniform = settings.critic == "quantile" and settings.levels == "uniform"
    if uniform and alphas and min(alphas) * settings.n_quantiles < 1.0:
        warnings.warn(
            f"alpha · n_quantiles = {min(alphas):g} · {settings.n_quantiles} is below 1: no uniform level lies in the "
            "tail, and predicted tails are too mild; use levels='tail', or more quantiles",
            stacklevel=5,
        )


def read_setting(settings: Any, key: str) -> Any:
    """The value that a key with dots leads to, in settings, a part of them, or a tuple of parts."""
    found = settings
    for part in key.split("."):
        found = found[int(part)] if isinstance(found, tuple) else getattr(found, part)
    return found


def _with(old: Any, path: list[str], value: Any, key: str) -> Any:
    """`old` with the field at the end of `path` replaced."""
    if not path:
        return value
    part, *rest = path
    if isinstance(old, tuple):
        if not part.isdecimal() or int(part) >= len(old):
            raise ArgumentError(f"{key}: {part!r} is no place in a list of {len(old)}; the first is 0")
        return tuple(_with(each, rest, value, key) if i == int(part) else each for i, each in enumerate(old))
    if isinstance(old, _Changed):
        fields = old
    elif isinstance(old, Frozen):
        fields = _Changed({name: getattr(old, name) for name in type(old).model_fields})
    else:
        raise ArgumentError(f"{key}: it is {old!r} now and has no fields; set it as a whole, by a dict or a number")
    if part not in fields:
        raise ArgumentError(f"{key}: there is no such field; {did_you_mean(part, fields)}")
    return _Changed(fields | {part: _with(fields[part], rest, value, key)})


class _Changed(dict[str, Any]):
    """The fields of a section of which one is another already; a second one may follow."""


def _refuse_structural(now: Settings, after: Settings) -> None:
    """Some settings decide what the network and its optimiser are made of, and stay what they are."""
    fixed = [
        name
        for name, field in type(now).model_fields.items()
        if is_structural(field) and getattr(now, name) != getattr(after, name)
    ]
    if (now.critic_learning_rate is None) != (after.critic_learning_rate is None):
        fixed.append("critic_learning_rate (None or a rate)")  # the optimiser has one group of weights, or two
    shapes = [[(each.measure, each.binds) for each in settings.risk] for settings in (now, after)]
    if shapes[0] != shapes[1]:
        fixed.append("risk (how many, their measure and whom they bind)")
    if now.vgs is not None and after.vgs is not None and now.vgs.mode != after.vgs.mode:
        fixed.append("vgs.mode")
    if fixed:
        raise ConfigError(
            f"{_list(fixed)} cannot change on a live model: the network, its optimiser or what was measured so far "
            "depends on it; build a new model"
        )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)


class Live:
    """A setting as an attribute of a model: read from its settings, and changed there for all who use it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, model: "DistributionalPPO | None", owner: type) -> Any:
        return self if model is None else getattr(model.settings, self.name)

    def __set__(self, model: "DistributionalPPO", value: Any) -> None:
        if model.is_built:  # before, SB3's constructor sets what the settings already say
            model.set_hyperparameters(**{self.name: value})


class LiveSchedule(Live):
    """The same as a function of the remaining progress, whatever was given."""

    def __get__(self, model: "DistributionalPPO | None", owner: type) -> Any:
        return self if model is None else FloatSchedule(super().__get__(model, owner))


class Fixed:
    """An argument that an assignment cannot change; it says what can."""

    def __init__(self, name: str, instead: str) -> None:
        self.name, self.instead = name, instead

    def __get__(self, model: "DistributionalPPO | None", owner: type) -> Any:
        if model is None:
            return self
        try:
            return model.__dict__[self.name]
        except KeyError:
            raise AttributeError(f"{owner.__name__} has no {self.name!r} yet") from None

    def __set__(self, model: "DistributionalPPO", value: Any) -> None:
        if model.is_built:
            raise ArgumentError(f"{self.name} of a live model cannot be assigned; {self.instead}")
        model.__dict__[self.name] = value
