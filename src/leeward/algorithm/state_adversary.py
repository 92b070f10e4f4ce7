"""The state adversary: how far a small change of the observation can move the policy, and a loss against it.

SA-PPO (Zhang et al. 2020, arXiv:2003.08938): an attack looks for δ in a ball around each observation, and
KL(π(.|s) ‖ π(.|s + δ)) on the same rows is added to the loss. docs/ideas/state-adversary.md has the details.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from leeward.algorithm.losses import Coefficients, Losses, Rows
from leeward.config.learning import Adversary
from leeward.errors import ArgumentError, ShapeError, TrainingDiverged, did_you_mean
from leeward.maths import perturbation, schedules
from leeward.maths.nested import Memory, Observation, as_sequence, rows_of
from leeward.networks.policy import DistributionalPolicy
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Metric

__all__ = ["Attack", "AttackSurface", "AttackedFeatures", "StateAdversary"]

_PLAIN = "observation"  # the key of an observation that is no Dict
_PIXEL = 255.0


class AttackedFeatures:
    """The attacked part of an observation as one vector of F features, in the unit in which the network sees them.

    That unit is what the policy's own normaliser divides by, 255 for an image whose pixels the policy scales to [0, 1],
    and 1 otherwise (an env or a VecNormalize has then scaled already).
    """

    def __init__(
        self,
        policy: DistributionalPolicy,
        *,
        keys: tuple[str, ...] | None = None,
        scale: Any = None,
        mask: Any = None,
    ) -> None:
        self.policy = policy
        space = policy.observation_space
        self.boxes = _attacked_boxes(space, keys)
        self.size = sum(int(np.prod(box.shape)) for box in self.boxes.values())
        # On the host until used: the policy may still be moved to its device.
        self.scale = None if scale is None else torch.as_tensor(self._vector("scale", scale, np.float32))
        self.mask: Tensor | None = None
        if mask is not None:
            self.allow("adversary.mask", mask)

    def allow(self, where: str, allowed: Any) -> None:
        """Attack only what is True in `allowed`: an array of the observation's shape, or one per key."""
        found = self._vector(where, allowed, np.bool_)
        if not found.any():
            raise ArgumentError(f"{where} allows no feature, so there is nothing to attack; switch the adversary off")
        self.mask = torch.as_tensor(found, device=self.policy.device)

    def add(self, observation: Observation, delta: Tensor) -> Observation:  # (..., *shape), (..., F)
        """The observation with δ on its attacked features; where δ is 0 nothing changes."""
        given = observation if isinstance(observation, dict) else {_PLAIN: observation}
        moved = dict(given)
        device = delta.device
        scaled = delta if self.scale is None else delta * self.scale.to(device)
        for (key, box), part in zip(self.boxes.items(), scaled.split(self._sizes(), -1), strict=True):
            shaped = part.unflatten(-1, box.shape)
            unit = self._unit(key, box)
            step = shaped if unit is None else shaped * unit
            value = given[key]
            # In the precision of the observation, so that a feature that is left alone keeps every bit.
            moved[key] = value + step.to(value.dtype) if value.is_floating_point() else value.to(step.dtype) + step
        return moved if isinstance(observation, dict) else moved[_PLAIN]

    def _sizes(self) -> list[int]:
        return [int(np.prod(box.shape)) for box in self.boxes.values()]

    def _unit(self, key: str, box: spaces.Box) -> Tensor | float | None:
        if is_image_space(box):
            return _PIXEL if self.policy.normalize_images else None
        normaliser = self.policy.observation_normaliser
        return None if normaliser is None else normaliser.unit(key)

    def _vector(self, where: str, values: Any, dtype: type[np.generic]) -> np.ndarray:
        """One array of the attacked features, (F,), from an array of the observation's shape or one per key."""
        if not isinstance(values, Mapping):
            if len(self.boxes) != 1:
                raise ArgumentError(
                    f"{where} must be a dict of {', '.join(self.boxes)}, since more than one part is attacked, "
                    f"got {type(values).__name__}"
                )
            values = dict.fromkeys(self.boxes, values)
        missing = [key for key in self.boxes if key not in values]
        if missing:
            raise ArgumentError(f"{where} lacks {', '.join(missing)}; it needs one entry per attacked part")
        parts = []
        for key, box in self.boxes.items():
            part = np.asarray(values[key])
            if part.size != np.prod(box.shape) or (part.ndim > 1 and part.shape != box.shape):
                name = "" if key == _PLAIN else f" of {key!r}"
                raise ShapeError(
                    f"{where}{name} needs one entry per feature, {box.shape}, got {part.shape}; "
                    "a wrapper that changes the observation needs adversary.mask"
                )
            if dtype is np.bool_ and part.dtype != np.bool_:
                raise ArgumentError(f"{where} must hold True and False, got {part.dtype}")
            parts.append(part.astype(dtype).ravel())
        return np.concatenate(parts)


def _attacked_boxes(space: spaces.Space[Any], keys: tuple[str, ...] | None) -> dict[str, spaces.Box]:
    """The parts of the observation that numbers can be added to, in the order of the space."""
    if not isinstance(space, spaces.Dict):
        if keys is not None:
            raise ArgumentError(f"adversary.keys names parts of a Dict observation, but this one is {space}")
        if not _is_movable(space):
            raise ArgumentError(
                f"an adversary adds small numbers to observations, and {space} has none that mean anything; "
                "it takes a Box of floats, or an image"
            )
        assert isinstance(space, spaces.Box)
        return {_PLAIN: space}
    for key in keys or ():
        if key not in space.spaces:
            raise ArgumentError(f"adversary.keys: no part {key!r}; {did_you_mean(key, list(space.spaces))}")
        if not _is_movable(space[key]):
            raise ArgumentError(
                f"adversary.keys: {key!r} is {space[key]}; only a Box of floats or an image has a slope"
            )
    if keys is None:
        chosen = [key for key, part in space.items() if _is_movable(part) and not is_image_space(part)]
    else:
        chosen = [key for key in space.spaces if key in keys]
    if not chosen:
        raise ArgumentError(f"no part of {space} is a Box of floats, so there is nothing to attack by default")
    return {key: part for key in chosen if isinstance(part := space[key], spaces.Box)}


def _is_movable(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and (np.issubdtype(space.dtype, np.floating) or is_image_space(space))


@contextmanager
def _steady(policy: DistributionalPolicy) -> Iterator[None]:
    """Without dropout, or a clean and a perturbed row would differ by their dropout; cuDNN's memories cannot give
    gradients in that mode."""
    learning = policy.training
    if learning:  # walking all modules costs as much as the forward pass of one step
        policy.set_training_mode(False)
    try:
        with torch.backends.cudnn.flags(enabled=False):
            yield
    finally:
        if learning:
            policy.set_training_mode(True)


class StateAdversary:
    """Owns the count of its updates and the moment from which its radius grows."""

    def __init__(self, policy: DistributionalPolicy, config: Adversary) -> None:
        self.policy, self.config = policy, config
        self.features = AttackedFeatures(policy, keys=config.keys, scale=config.scale, mask=config.mask)
        self.updates = 0
        self.grows_from: float | None = None  # progress at the first update after the warm-up

    def spare(self, env: VecEnv) -> None:
        """Leave alone what the env does not mark as `attackable`, unless a mask was given."""
        if self.config.mask is not None or not env.has_attr("attackable"):
            return
        self.features.allow("the env's attribute `attackable`", env.get_attr("attackable", indices=[0])[0])

    def epsilon(self, progress: float) -> float:
        """The radius: the constant it starts from, then growing to its end if there is one. `progress` is in [0, 1]."""
        config = self.config
        if config.epsilon_end is None or self.grows_from is None or self.grows_from >= 1.0:
            return config.epsilon
        share = (progress - self.grows_from) / (1.0 - self.grows_from)
        return schedules.BY_NAME[config.epsilon_schedule](max(share, 0.0), config.epsilon, config.epsilon_end)

    def begin(self, n_rows: int, progress: float, generator: torch.Generator, number: int) -> "Attack | None":
        """The attack of the next update, on that many rows; None while it warms up. Every call counts as an update."""
        self.updates += 1
        if self.updates <= self.config.warmup:
            return None
        if self.grows_from is None:
            self.grows_from = progress
        epsilon, features = self.epsilon(progress), self.features
        starts = perturbation.random_in_ball(
            (n_rows, features.size),
            epsilon=epsilon,
            ball=self.config.norm,
            mask=features.mask,
            generator=generator,
        )
        return Attack(self.policy, self.config, features, epsilon, starts, generator, number)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "grows_from": self.grows_from}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates, self.grows_from = state["updates"], state["grows_from"]


@dataclass
class Attack:
    """The adversary in one update: a fixed radius, and one random start for each row of the rollout.

    Rows keep their start through the epochs, whatever minibatch or micro-batch they are in.
    """

    policy: DistributionalPolicy
    config: Adversary
    features: AttackedFeatures
    epsilon: float
    starts: Tensor  # (T·B, F)
    generator: torch.Generator
    number: int  # of the update, for messages
    reached: bool = False  # a gradient of the robust KL has been seen in this update

    def harden(self, losses: Losses, rows: Rows, memory: Memory, weights: Coefficients) -> Losses:
        """The losses with the robust KL and, if it is on, the critics' shift; both sums over real steps."""
        with _steady(self.policy):
            robust, measured = self.robust_kl(rows, memory)
            term = self.config.kl_weight * robust
            policy = replace(losses.policy, loss=losses.policy.loss + term, policy=losses.policy.policy + term)
            value = losses.value
            if self.config.value_weight is not None:
                shift = self.value_shift(rows, memory)
                # In the unit in which vf_coef weighs a squared error.
                unit = weights.value_weight / self.policy.critic.squared_error_units
                value = replace(value, loss=value.loss + self.config.value_weight * unit * shift)
                measured[metrics.ADVERSARY_VALUE_SHIFT] = shift.detach()
        return Losses(policy, value, measured)

    def robust_kl(self, rows: Rows, memory: Memory) -> tuple[Tensor, dict[Metric, Tensor]]:
        """Σ KL(π(.|s) ‖ π(.|s + δ)): the clean side is a constant, the perturbed one learns."""
        policy = self.policy
        clean = policy.action_parameters(rows.observations, memory, rows.action_masks).detach()  # (L, S, P)

        def divergence(delta: Tensor) -> Tensor:  # (L, S, F) -> (L, S)
            moved = self.features.add(rows.observations, delta)
            return policy.action_head.kl(clean, policy.action_parameters(moved, memory, rows.action_masks))

        found = self._search(divergence, rows)
        robust = _total(divergence(found.delta), rows)
        self._demand_gradient(robust)
        size = perturbation.size_in_ball(found.delta, ball=self.config.norm)
        return robust, {
            metrics.ADVERSARY_ROBUST_KL: robust.detach(),
            metrics.ADVERSARY_DELTA_NORM: _total(size, rows),
            metrics.ADVERSARY_OBJECTIVE_GAIN: robust.detach() - _total(found.start, rows),
        }

    def value_shift(self, rows: Rows, memory: Memory) -> Tensor:
        """Σ distance between the critics' distributions at s and at s + δ, δ sought for the critics' own sake."""
        policy = self.policy
        clean = policy.values(policy.latents(rows.observations, memory).critic).detach()  # (L, S, C, N)

        def shift(delta: Tensor, *, through_shared_memory: bool) -> Tensor:  # (L, S, F) -> (L, S)
            moved = self.features.add(rows.observations, delta)
            latents = policy.latents(moved, memory, through_shared_memory=through_shared_memory)
            return policy.critic.distance(clean, policy.values(latents.critic))

        found = self._search(lambda delta: shift(delta, through_shared_memory=True), rows)
        return _total(shift(found.delta, through_shared_memory=False), rows)

    def _search(self, objective: Callable[[Tensor], Tensor], rows: Rows) -> perturbation.Ascent:
        config = self.config
        start = self.starts.index_select(0, rows.index).unflatten(0, rows.mask.shape)  # (L, S, F)
        share = 2.5 / config.steps if config.step_size is None else config.step_size
        return perturbation.ascend(
            # Padding is not attacked; context before a sequence is, since the memory comes from it.
            lambda delta: objective(delta).masked_fill(~rows.mask, 0.0),
            start,
            method=config.method,
            steps=config.steps,
            step=share * self.epsilon,
            epsilon=self.epsilon,
            ball=config.norm,
            mask=self.features.mask,
            noise=config.noise,
            generator=self.generator,
        )

    def _demand_gradient(self, robust: Tensor) -> None:
        """A robust KL that teaches nothing is a fault that no loss curve shows."""
        if self.reached:
            return
        slopes: tuple[Tensor | None, ...] = ()
        if robust.requires_grad:
            head = list(self.policy.action_head.parameters())
            slopes = torch.autograd.grad(robust, head, retain_graph=True, allow_unused=True)
        if not any(slope is not None and bool(slope.any()) for slope in slopes):
            value = float(robust.detach())
            raise TrainingDiverged(
                f"update {self.number}: the adversary is on, but its robust KL ({value:.3g}) has no gradient on the "
                f"actor at epsilon {self.epsilon:g}; the policy does not read the attacked features (look at "
                "adversary.mask and adversary.keys), or the radius is below the precision of float32"
            )
        self.reached = True


def _total(values: Tensor, rows: Rows) -> Tensor:  # (L, S) -> (), real steps
    return values.masked_fill(~rows.mask, 0.0).sum()


class AttackSurface:
    """What an attack on a trained model needs at one step of B envs: slopes, and the perturbed observation itself.

    `leeward.backtest.robustness` takes any object with these members.
    """

    def __init__(
        self, policy: DistributionalPolicy, features: AttackedFeatures, observation: Any, state: Any, starts: Any
    ) -> None:
        tensors, self._single, self._memory = policy.prepare(observation, state, starts)
        self._policy, self._features, self._tensors = policy, features, tensors
        self._sequence = as_sequence(tensors)
        self.shape, self.device = (len(rows_of(tensors)), features.size), policy.device  # (B, F)
        with torch.no_grad():
            self._clean = policy.action_parameters(self._sequence, self._memory)

    def action_shift(self, delta: Tensor) -> Tensor:  # (B, F) -> (B,)
        """KL(π(.|s) ‖ π(.|s + δ))."""
        with _steady(self._policy):
            moved = self._policy.action_parameters(self._moved(delta), self._memory)
        return self._policy.action_head.kl(self._clean, moved)[0]

    def value(self, delta: Tensor) -> Tensor:  # (B, F) -> (B,)
        """Mean of the return distribution at s + δ."""
        policy = self._policy
        with _steady(policy):
            latents = policy.latents(self._moved(delta), self._memory, through_shared_memory=True)
            raw = policy.values(latents.critic)
        return policy.critic.merge(raw).mean[0]

    def observation(self, delta: Tensor) -> Any:  # (B, F)
        """s + δ in the form `predict` takes."""
        with torch.no_grad():
            moved = self._features.add(self._tensors, delta)
        arrays = {key: value.cpu().numpy() for key, value in moved.items()} if isinstance(moved, dict) else None
        if arrays is None:
            assert isinstance(moved, Tensor)
            return moved.cpu().numpy()[0] if self._single else moved.cpu().numpy()
        return {key: value[0] for key, value in arrays.items()} if self._single else arrays

    def _moved(self, delta: Tensor) -> Observation:
        return self._features.add(self._sequence, delta.unsqueeze(0))
