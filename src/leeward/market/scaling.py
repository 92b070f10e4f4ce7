"""Scaling of features: mean and standard deviation of the train split, pooled over assets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leeward.errors import CheckpointError, DataError
from leeward.market.bars import FloatArray

__all__ = ["Scaler", "fit_column"]

# A feature that does not move on train has no scale: it becomes 0, not noise divided by itself.
_LEAST_RELATIVE_STD = 1e-9


@dataclass(frozen=True, eq=False)
class Scaler:
    """What was fitted on train, as plain arrays: it travels with a checkpoint and is applied to any later bars."""

    names: tuple[str, ...]
    mean: FloatArray  # (F,)
    std: FloatArray  # (F,), 1 where the feature is constant on train
    clip: float | None  # train standard deviations

    def apply(self, index: int, raw: FloatArray) -> NDArray[np.float32]:
        """Scaled values of one feature, same shape; invalid ones (NaN) become 0, the train mean."""
        scaled = (raw - self.mean[index]) / self.std[index]
        if self.clip is not None:
            scaled = np.clip(scaled, -self.clip, self.clip)
        return np.asarray(np.nan_to_num(scaled, nan=0.0), dtype=np.float32)

    def difference(self, other: "Scaler", *, tolerance: float = 0.0) -> str | None:
        """What sets `other` apart, in words; None when nothing does by more than `tolerance` standard deviations."""
        if self.names != other.names:
            return f"the features are {', '.join(other.names)}, not {', '.join(self.names)}"
        if self.clip != other.clip:
            return f"values are clipped at {other.clip}, not {self.clip}"
        room = tolerance * self.std
        far = (np.abs(other.mean - self.mean) > room) | (np.abs(other.std - self.std) > room)  # (F,)
        if not far.any():
            return None
        f = int(np.argmax(far))
        return (
            f"{self.names[f]} has mean {other.mean[f]!s} and standard deviation {other.std[f]!s}, "
            f"not {self.mean[f]!s} and {self.std[f]!s}"
        )

    def state_dict(self) -> dict[str, Any]:
        return {"names": list(self.names), "mean": self.mean.copy(), "std": self.std.copy(), "clip": self.clip}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Scaler":
        names = tuple(str(name) for name in state["names"])
        mean, std = (np.asarray(state[key], dtype=np.float64) for key in ("mean", "std"))
        if mean.shape != (len(names),) or std.shape != (len(names),) or not (std > 0.0).all():
            raise CheckpointError(
                f"scaler state: expected mean and std > 0 of {len(names)} features, got {mean.shape}, {std.shape}"
            )
        return cls(names, mean, std, None if state["clip"] is None else float(state["clip"]))


def fit_column(raw_train: FloatArray, name: str, *, source: str) -> tuple[float, float]:
    """Mean and standard deviation of one feature over the valid values (any shape) of the train split."""
    valid = raw_train[np.isfinite(raw_train)]
    if len(valid) == 0:
        raise DataError(
            f"{source}: feature {name} has no valid value in the train split (no volume? too few bars?); "
            "leave it out of data.features"
        )
    mean, std = float(valid.mean()), float(valid.std())
    if std <= _LEAST_RELATIVE_STD * max(1.0, abs(mean)):
        return mean, 1.0
    return mean, std
