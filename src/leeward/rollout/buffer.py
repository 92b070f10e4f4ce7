"""The rollout: what was seen and done, time first, with the memory *before* the steps from which sequences start."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from leeward.maths.nested import Memory, Observation, forget, map_observation, rows_of
from leeward.rollout.types import RolloutSizes

__all__ = ["RiskColumns", "RolloutBuffer"]


@dataclass
class RiskColumns:
    """What a constraint needs of each step."""

    step_returns: Tensor  # (T, B) float64, before any normalisation
    costs: Tensor  # (T, B, K), predicted cost-to-go
    next_costs: Tensor  # (T, B, K), of each step's own successor; only read where the step is not terminated
    deployed: Tensor | None = None  # (B,) bool: envs that act without noise and teach the policy nothing


@dataclass
class RolloutBuffer:
    """One rollout of T steps and B envs. After `collect` it is full, and nothing is written into it; `with_targets`
    gives it the names under which Stable-Baselines3 shows advantages, returns and values to callbacks."""

    observations: Observation  # (T, B, ...)
    actions: Tensor  # (T, B, A), in the action head's own form
    action_parameters: Tensor  # (T, B, P)
    action_masks: Tensor | None  # (T, B, K) bool
    log_probs: Tensor  # (T, B)
    raw_values: Tensor  # (T, B, C, N)
    raw_next_values: Tensor  # (T, B, C, N), of each step's own successor; only read where the step is not terminated
    rewards: Tensor  # (T, B)
    risk: "RiskColumns | None"  # with a constraint
    starts: Tensor  # (T, B) bool: the observation of this step is the first of an episode
    terminated: Tensor  # (T, B) bool
    ended: Tensor  # (T, B) bool: terminated or truncated
    memory_slots: dict[int, int]  # time -> slot in `memories`
    memories: Memory  # each (slots, layers, B, H)
    original_rewards: Tensor | None = None  # (T, B) float64, before a VecNormalize; None without one
    cost_fractions: np.ndarray | None = None  # (T, B) float64, info["reward_costs_fraction"] of an env that gives it
    values: Tensor = field(default_factory=lambda: torch.empty(0))  # (T, B), pessimistic
    advantages: Tensor = field(default_factory=lambda: torch.empty(0))  # (T, B), raw
    returns: Tensor = field(default_factory=lambda: torch.empty(0))  # (T, B)

    @property
    def episode_starts(self) -> np.ndarray:
        """SB3's name for `starts`."""
        return self.starts.cpu().numpy().astype(np.float32)

    @property
    def shape(self) -> tuple[int, int]:
        T, B = self.rewards.shape
        return T, B

    @classmethod
    def empty(
        cls,
        n_steps: int,
        first_observation: Observation,  # (B, ...)
        memory: Memory,
        sizes: RolloutSizes,
        *,
        masked: bool,
        memory_times: Sequence[int],
        device: torch.device,
    ) -> "RolloutBuffer":
        """Room for a rollout; allocated once and written over."""
        rows = (n_steps, len(rows_of(first_observation)))

        def room(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((*rows, *shape), dtype=dtype, device=device)

        return cls(
            observations=map_observation(
                lambda value: torch.zeros((n_steps, *value.shape), dtype=value.dtype, device=device), first_observation
            ),
            actions=room(sizes.action),
            action_parameters=room(sizes.parameters),
            action_masks=room(sizes.masks, dtype=torch.bool) if masked else None,
            log_probs=room(),
            raw_values=room(*sizes.values),
            raw_next_values=room(*sizes.values),
            rewards=room(),
            risk=None
            if sizes.constraints == 0
            else RiskColumns(room(dtype=torch.float64), room(sizes.constraints), room(sizes.constraints)),
            starts=room(dtype=torch.bool),
            terminated=room(dtype=torch.bool),
            ended=room(dtype=torch.bool),
            memory_slots={time: slot for slot, time in enumerate(memory_times)},
            memories=tuple(torch.zeros((len(memory_times), *part.shape), device=device) for part in memory),
        )

    def with_targets(self, values: Tensor, advantages: Tensor) -> "RolloutBuffer":  # (T, B) each
        """The same rollout, with what Stable-Baselines3's callbacks look for."""
        return replace(self, values=values, advantages=advantages, returns=advantages + values)

    def store_observation(self, t: int, observation: Observation) -> None:
        if isinstance(self.observations, dict):
            assert isinstance(observation, dict)
            for key, value in observation.items():
                self.observations[key][t] = value
        else:
            assert isinstance(observation, Tensor)
            self.observations[t] = observation

    def store_memory(self, t: int, memory: Memory) -> None:
        """Keep the memory before step t, if a sequence can start there."""
        slot = self.memory_slots.get(t)
        if slot is not None:
            for stored, part in zip(self.memories, memory, strict=True):
                stored[slot] = part

    def memory_before(self, times: Tensor, envs: Tensor) -> Memory:  # (S,), (S,) -> each (layers, S, H)
        """The memory from which sequences at (times, envs) start: stored, or zero at the start of an episode."""
        if not self.memories:
            return ()
        starts = self.starts[times, envs]
        slots = torch.tensor(
            [0 if start else self.memory_slots[t] for t, start in zip(times.tolist(), starts.tolist(), strict=True)],
            device=starts.device,
        )
        gathered = tuple(part[slots, :, envs].transpose(0, 1).contiguous() for part in self.memories)
        return forget(gathered, starts)
