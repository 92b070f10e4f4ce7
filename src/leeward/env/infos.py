"""Infos of a step as mappings over its arrays, made when somebody looks at them."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, overload

from leeward.env import kernel as k
from leeward.env.simulation import INFO_INDEX, Step

__all__ = ["Info", "Infos"]


class Info(MutableMapping[str, Any]):
    """The info of one env and step, read from the arrays of all envs when asked; what is set stays with this one."""

    __slots__ = ("_env", "_own", "_step")

    def __init__(self, step: Step, env: int, own: dict[str, Any]) -> None:
        self._step, self._env, self._own = step, env, own

    def __getitem__(self, key: str) -> Any:
        if key in self._own:
            return self._own[key]
        return float(self._step.info[INFO_INDEX[key], self._env])

    def __setitem__(self, key: str, value: Any) -> None:
        self._own[key] = value

    def __delitem__(self, key: str) -> None:
        del self._own[key]

    def __iter__(self) -> Iterator[str]:
        yield from k.INFO_NAMES
        yield from (key for key in self._own if key not in INFO_INDEX)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def get(self, key: str, default: Any = None) -> Any:
        # SB3 asks every info for "episode" every step: no exception on the way.
        return self[key] if key in INFO_INDEX or key in self._own else default

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))


class Infos(Sequence[Info]):
    """B infos, made when the first of them is looked at: a learner that reads `info_arrays` never pays for them."""

    __slots__ = ("_finished", "_made", "_step")

    def __init__(self, step: Step, finished: dict[int, dict[str, Any]]) -> None:
        self._step, self._finished = step, finished
        self._made: list[Info] | None = None

    def _all(self) -> list[Info]:
        if self._made is None:
            n_envs = len(self._step.rewards)
            self._made = [Info(self._step, env, self._finished.get(env) or {}) for env in range(n_envs)]
        return self._made

    def __len__(self) -> int:
        return len(self._step.rewards)

    def __iter__(self) -> Iterator[Info]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Info: ...
    @overload
    def __getitem__(self, index: slice) -> list[Info]: ...
    def __getitem__(self, index: int | slice) -> Info | list[Info]:
        return self._all()[index]
