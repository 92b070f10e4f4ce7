"""The policies as Stable-Baselines3 knows them: numpy in, numpy out, around the network of `actor_critic`."""

from typing import Any, Self

import numpy as np
import torch
from stable_baselines3.common.torch_layers import CombinedExtractor, NatureCNN
from torch import Tensor

from leeward.errors import ArgumentError, CheckpointError
from leeward.maths.nested import Memory, Observation, forget, rows_of
from leeward.networks.actor_critic import ActorCritic
from leeward.networks.outlook import Outlook

__all__ = [
    "CnnLstmPolicy",
    "CnnPolicy",
    "DistributionalPolicy",
    "MlpLstmPolicy",
    "MlpPolicy",
    "MultiInputLstmPolicy",
    "MultiInputPolicy",
]


class DistributionalPolicy(ActorCritic):
    """The network with the methods that Stable-Baselines3 calls."""

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        *,
        noise: np.random.Generator | None = None,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """The action, and the state to hand back at the next call: the actor's and the critic's memory, opaque.

        `noise` draws the exploration of a stochastic action.
        """
        tensors, single, memory = self.prepare(observation, state, episode_start)
        batch = len(rows_of(tensors))
        masks = None if action_masks is None else self.check_masks(np.asarray(action_masks).reshape(batch, -1))
        drawn = None
        if not deterministic:
            rng = np.random.default_rng() if noise is None else noise
            drawn = torch.as_tensor(self.draw_noise(rng, (batch,)), device=self.device)
        with torch.no_grad():
            step = self.act(tensors, memory, drawn, masks)
        action = step.env_action.cpu().numpy()
        after = tuple(part.cpu().numpy() for part in step.memory)
        return (action[0] if single else action), (after or None)

    def predict_distribution(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
    ) -> Outlook:
        """The distribution of the discounted return, and of the next step where a risk was given; `state` is read and
        not advanced."""
        tensors, _, memory = self.prepare(observation, state, episode_start)
        return self.outlook(tensors, memory)

    @torch.no_grad()
    def outlook(self, observation: Observation, memory: Memory) -> Outlook:  # (B, ...)
        """The same for tensors: what comes after an observation that follows `memory`."""
        latent = self.critic_latent(observation, memory)
        ahead = None if self.risk_heads is None else Outlook(self.risk_heads.step(latent))
        return Outlook(self.critic.merge(self.values(latent)), ahead)

    def prepare(
        self, observation: Any, state: tuple[np.ndarray, ...] | None, episode_start: np.ndarray | None
    ) -> tuple[Observation, bool, Memory]:
        """Tensors (B, ...) of what `predict` was given, whether it was a single observation, and the memory before
        it."""
        if self.training:  # walking all modules costs as much as the forward pass
            self.set_training_mode(False)
        if isinstance(observation, tuple):
            raise ArgumentError(
                "predict got a tuple: gymnasium's reset() returns (observation, info); pass the observation"
            )
        tensors, vectorised = self.obs_to_tensor(observation)
        batch = len(rows_of(tensors))
        memory = self.initial_memory(batch)
        if state is not None and memory:
            expected = [tuple(part.shape) for part in memory]
            got = [np.shape(part) for part in state]
            if got != expected:
                raise ArgumentError(f"state must be what predict returned, with shapes {expected}, got {got}")
            memory = tuple(torch.as_tensor(part, device=self.device) for part in state)
            if episode_start is not None:
                memory = forget(memory, torch.as_tensor(episode_start, dtype=torch.bool, device=self.device))
        return tensors, not vectorised, memory

    def check_masks(self, masks: np.ndarray) -> Tensor:  # (B, K) -> bool (B, K)
        """The masks as a tensor; each action dimension must be left at least one choice."""
        choices = self.action_head.choices
        if masks.shape[1] != sum(choices):
            raise ArgumentError(
                f"action masks must have {sum(choices)} entries per env, one per choice of {self.action_space}, "
                f"got {masks.shape[1]}"
            )
        allowed = masks.astype(bool)
        for number, part in enumerate(np.split(allowed, np.cumsum(choices)[:-1], axis=1)):
            if not part.any(1).all():
                env = int(np.flatnonzero(~part.any(1))[0])
                raise ArgumentError(f"env {env}: the action mask leaves no choice for action dimension {number}")
        return torch.as_tensor(allowed, device=self.device)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Noise for `shape` steps, of the kind the action head takes."""
        full = (*shape, *self.action_head.noise_shape)
        if self.action_head.noise_kind == "uniform":
            return rng.random(full, dtype=np.float32)
        return rng.standard_normal(full, dtype=np.float32)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        raise ArgumentError("call predict(): it takes and returns the memory, which _predict cannot")

    def save(self, path: str) -> None:
        raise CheckpointError("a policy is saved with its model: model.save(path) writes safetensors and a manifest")

    @classmethod
    def load(cls, path: str, device: torch.device | str = "auto") -> Self:
        raise CheckpointError(
            "a policy is loaded with its model: DistributionalPPO.load(path).policy; SB3's are pickles"
        )


class MlpPolicy(DistributionalPolicy):
    """No memory, flat observations."""


class MlpLstmPolicy(DistributionalPolicy):
    """Memory, flat observations; `policy_kwargs={"cell": "gru"}` for a GRU."""

    default_cell = "lstm"


class CnnPolicy(DistributionalPolicy):
    """No memory, images."""

    default_extractor = NatureCNN


class CnnLstmPolicy(CnnPolicy):
    """Memory, images."""

    default_cell = "lstm"


class MultiInputPolicy(DistributionalPolicy):
    """No memory, Dict observations."""

    default_extractor = CombinedExtractor


class MultiInputLstmPolicy(MultiInputPolicy):
    """Memory, Dict observations."""

    default_cell = "lstm"
