"""What the rollout asks of a policy: nothing of its insides, one pass through its memory per step."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from leeward.maths.nested import Memory, Observation

__all__ = ["RolloutPolicy", "RolloutSizes", "RolloutStep"]


class RolloutSizes(NamedTuple):
    """How much room a step takes in the buffer."""

    action: int
    parameters: int
    values: tuple[int, int]  # (C, N)
    masks: int  # entries of an action mask
    constraints: int


class RolloutStep(Protocol):
    """What one step gives for B envs."""

    @property
    def action(self) -> Tensor: ...  # (B, A), the form that is stored and learned from
    @property
    def env_action(self) -> Tensor: ...  # (B, ...), what the env takes
    @property
    def action_parameters(self) -> Tensor: ...  # (B, P)
    @property
    def critic_latent(self) -> Tensor: ...  # (B, H), for `values` and `costs`
    @property
    def memory(self) -> Memory: ...  # after the step


class RolloutPolicy(Protocol):
    """A policy that can be stepped, looked into without stepping, asked for values of many steps, and given noise."""

    @property
    def device(self) -> torch.device: ...
    @property
    def rollout_sizes(self) -> tuple[int, int, tuple[int, int], int, int]: ...  # as `RolloutSizes`
    @property
    def takes_action_masks(self) -> bool: ...
    def check_masks(self, masks: np.ndarray[Any, Any]) -> Tensor: ...
    def initial_memory(self, batch: int) -> Memory: ...
    def act(
        self,
        observation: Observation,
        memory: Memory,
        noise: Tensor | None,
        action_masks: Tensor | None = None,
        deployed: Tensor | None = None,
    ) -> RolloutStep: ...
    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor: ...
    def critic_latent(self, observation: Observation, memory: Memory) -> Tensor: ...
    def values(self, critic_latent: Tensor) -> Tensor: ...
    def costs(self, critic_latent: Tensor) -> Tensor | None: ...
    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, Any]: ...
    def set_training_mode(self, mode: bool) -> None: ...
