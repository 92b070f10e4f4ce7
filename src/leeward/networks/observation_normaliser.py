"""The observation normaliser, which lives inside the policy and its checkpoint."""

from collections.abc import Iterator
from typing import cast

import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from torch import Tensor, nn

from leeward.maths.nested import Observation
from leeward.maths.normalisation import merge_moments

__all__ = ["ObservationNormaliser"]


class _Moments(nn.Module):
    """Running mean and variance of one Box, in float64."""

    count: Tensor
    mean: Tensor
    square_sum: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("square_sum", torch.zeros(shape, dtype=torch.float64))

    def std(self) -> Tensor:
        variance = self.square_sum / self.count.clamp(min=1.0)
        # A feature that never moved has no scale of its own; it is left in its own unit.
        return torch.where(variance > 1e-12, variance, torch.ones_like(variance)).sqrt()


class ObservationNormaliser(nn.Module):
    """(obs − mean)/std, clipped to ±10, for every Box that is not an image. Frozen but for `update`."""

    def __init__(self, space: spaces.Space[object], clip: float = 10.0) -> None:
        super().__init__()
        self.clip = clip
        boxes = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        self.moments = nn.ModuleDict(
            {
                key: _Moments(box.shape)
                for key, box in boxes.items()
                if isinstance(box, spaces.Box) and not is_image_space(box)
            }
        )

    def forward(self, observation: Observation) -> Observation:
        if isinstance(observation, dict):
            return {key: self._one(key, value) for key, value in observation.items()}
        return self._one("observation", observation)

    def _one(self, key: str, value: Tensor) -> Tensor:
        if key not in self.moments:
            return value
        moments = cast(_Moments, self.moments[key])
        if float(moments.count) == 0.0:
            return value
        scaled = (value - moments.mean.to(torch.float32)) / moments.std().to(torch.float32)
        return scaled.clamp(-self.clip, self.clip)

    def unit(self, key: str) -> Tensor | None:  # of the Box's shape
        """How much of the observation is 1 for the network; None where nothing is scaled (yet)."""
        if key not in self.moments:
            return None
        moments = cast(_Moments, self.moments[key])
        return None if float(moments.count) == 0.0 else moments.std().to(torch.float32)

    @property
    def fresh(self) -> bool:
        """Whether it has seen no observation yet."""
        return all(float(cast(_Moments, moments).count) == 0.0 for moments in self.moments.values())

    @property
    def count(self) -> float:
        """Observations it has seen; of several keys, of the one with the fewest."""
        return min((float(cast(_Moments, moments).count) for moments in self.moments.values()), default=0.0)

    def update(self, observation: Observation) -> tuple[float, float]:  # (n, ...)
        """Merge a rollout's observations; returns how far mean and std moved, in units of the new std (the largest)."""
        mean_drift = std_drift = 0.0
        for moments, value in self._pairs(observation):
            exact = value.to(torch.float64)
            mean = exact.mean(0)
            square_sum = (exact - mean).square().sum(0)
            seen = float(moments.count)
            old_mean, old_std = moments.mean.clone(), moments.std()
            count, merged, merged_square = merge_moments(
                seen, moments.mean, moments.square_sum, float(len(exact)), mean, square_sum
            )
            moments.count.fill_(count)
            moments.mean.copy_(merged)
            moments.square_sum.copy_(merged_square)
            if seen > 0:
                std = moments.std()
                mean_drift = max(mean_drift, float(((merged - old_mean) / std).abs().max()))
                std_drift = max(std_drift, float(((std - old_std) / std).abs().max()))
        return mean_drift, std_drift

    def _pairs(self, observation: Observation) -> Iterator[tuple[_Moments, Tensor]]:
        values = observation if isinstance(observation, dict) else {"observation": observation}
        return ((cast(_Moments, self.moments[key]), values[key]) for key in self.moments)
