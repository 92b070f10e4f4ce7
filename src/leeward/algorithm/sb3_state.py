"""What Stable-Baselines3 keeps of a run in attributes of its own: counters, and the last episodes."""

from collections import deque
from typing import TYPE_CHECKING, Any

from leeward.algorithm.manifest import decode, encode
from leeward.errors import CheckpointError

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = ["Counters", "Episodes"]

_COUNTERS = (
    "num_timesteps",
    "_total_timesteps",
    "_num_timesteps_at_start",
    "_n_updates",
    "_episode_num",
    "n_rollouts",
    "_current_progress_remaining",
    "stream_seed",
)


class Counters:
    """How far a model has come."""

    def __init__(self, model: "DistributionalPPO") -> None:
        self._model = model

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self._model, name) for name in _COUNTERS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in _COUNTERS:
            value = state[name]
            whole = name != "_current_progress_remaining"
            if (whole and type(value) is not int) or not 0 <= value < 2**64:
                raise CheckpointError(f"counters: {name} must be a number that counts, this file holds {value!r:.80}")
            setattr(self._model, name, value)


class Episodes:
    """The last episodes, of which rollout/ep_rew_mean is the mean."""

    def __init__(self, model: "DistributionalPPO") -> None:
        self._model = model

    def resize(self, size: int) -> None:
        """Keep the newest `size` from now on."""
        model = self._model
        model._stats_window_size = size
        for name in ("ep_info_buffer", "ep_success_buffer"):
            kept = getattr(model, name)
            if kept is not None and kept.maxlen != size:
                setattr(model, name, deque(kept, maxlen=size))

    def state_dict(self) -> dict[str, Any]:
        model = self._model
        return {"info": _plain(model.ep_info_buffer), "success": _plain(model.ep_success_buffer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        size = self._model.settings.stats_window_size
        for kind, is_one in (("info", _is_episode), ("success", _is_number)):
            for value in state[kind] or []:
                if not is_one(decode(value, {}, "episodes")):
                    raise CheckpointError(f"episodes: {kind} holds {value!r:.80}, which no episode of ours is")
        self._model.ep_info_buffer = _deque(state["info"], size)
        self._model.ep_success_buffer = _deque(state["success"], size)


def _is_episode(value: Any) -> bool:
    """What SB3's Monitor writes: the return, the length, and whatever else."""
    return isinstance(value, dict) and all(_is_number(value.get(key)) for key in ("r", "l"))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _plain(values: Any) -> list[Any] | None:
    return None if values is None else [encode(value) for value in values]


def _deque(values: list[Any] | None, size: int) -> Any:
    return None if values is None else deque((decode(value, {}, "episodes") for value in values), maxlen=size)
