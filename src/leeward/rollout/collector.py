"""Collect a rollout: one pass through the memory per step, values of all at its end, faults named by env and step."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, unwrap_vec_normalize
from torch import Tensor

from leeward.errors import ArgumentError, EnvironmentFault
from leeward.maths.nested import Memory, Observation, forget
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.env_moves import moves_of
from leeward.rollout.env_processes import watch_processes
from leeward.rollout.rollout_state import RawObservation, RolloutState
from leeward.rollout.types import RolloutPolicy, RolloutSizes

__all__ = ["Collector", "RawObservation", "as_tensors"]

_COSTS = "reward_costs_fraction"
OnStep = Callable[[dict[str, Any]], bool]


def as_tensors(observation: RawObservation, device: torch.device) -> Observation:
    """Copies, at torch's own alignment: MKL rounds differently where an array starts elsewhere."""
    if isinstance(observation, dict):
        return {key: torch.tensor(value, device=device) for key, value in observation.items()}
    return torch.tensor(observation, device=device)


class Collector:
    """Owns what lies between two rollouts: the last observation, the episode starts, and the memory."""

    def __init__(self, policy: RolloutPolicy, env: VecEnv) -> None:
        self.policy, self.env = policy, env
        watch_processes(env)
        self.normaliser = unwrap_vec_normalize(env)
        self.observation: RawObservation = {}
        self.starts = np.ones(env.num_envs, dtype=bool)
        self.memory: Memory = policy.initial_memory(env.num_envs)
        self.masked = policy.takes_action_masks and env.has_attr("action_masks")
        self.moved_outside = 0  # steps and resets before and in the last rollout that it did not ask for
        self._moves = moves_of(env)
        self._left_at = self._moves.count  # where the envs were left
        self._room: RolloutBuffer | None = None

    @property
    def state(self) -> RolloutState:
        return RolloutState(self.observation, self.starts, self.memory)

    @state.setter
    def state(self, state: RolloutState) -> None:
        """Go on from where envs were."""
        self.observation, self.starts, self.memory = state
        self._left_at = self._moves.count

    def room(self, n_steps: int, memory_times: Sequence[int], deployed: Tensor | None) -> RolloutBuffer:
        """A buffer for the next rollout: the last one's room, written over, unless its shape has changed.

        `deployed` (B,) marks the envs that act without noise.
        """
        slots = {time: slot for slot, time in enumerate(memory_times)}
        if self._room is None or self._room.shape[0] != n_steps or self._room.memory_slots != slots:
            device = self.policy.device
            self._room = RolloutBuffer.empty(
                n_steps,
                as_tensors(self.observation, device),
                self.memory,
                RolloutSizes(*self.policy.rollout_sizes),
                masked=self.masked,
                memory_times=memory_times,
                device=device,
            )
        if self._room.risk is not None:
            self._room.risk.deployed = None if deployed is None else deployed.to(self.policy.device)
        return self._room

    def reset(self, observation: RawObservation) -> None:
        """Begin anew from a freshly reset env."""
        self._check(observation, None, "reset")
        self.observation = observation
        self.starts = np.ones(self.env.num_envs, dtype=bool)
        self.memory = self.policy.initial_memory(self.env.num_envs)
        self._left_at = self._moves.count

    @torch.no_grad()
    def collect(self, buffer: RolloutBuffer, noise: Tensor, hold: int | None, on_step: OnStep) -> int:
        """Fill the buffer; returns the steps taken, fewer than it holds when `on_step`, called after every step with
        SB3's locals, asked to stop.

        `noise` is (T', B, ...), each entry used for `hold` steps (None = 1, 0 = all). A step computes what the env
        waits for; log-probabilities and values of all steps follow at the end, a few large operations.
        """
        _refuse_one_for_many(self.env)
        T, B = buffer.shape
        device, risk = self.policy.device, buffer.risk
        deployed = None if risk is None else risk.deployed
        actions, parameters, latents = list[Tensor](), list[Tensor](), list[Tensor]()
        starts, rewards_of, ended = np.empty((T, B), bool), np.empty((T, B), np.float32), np.empty((T, B), bool)
        original = None if self.normaliser is None else np.empty((T, B))
        step_returns = None if risk is None else np.empty((T, B))
        buffer.cost_fractions = None
        finals = list[tuple[int, list[int], Tensor]]()  # time, envs, what the critics read: of truncated episodes
        moves, self.moved_outside = self._moves, 0
        self.policy.set_training_mode(False)
        for t in range(T):
            observation = as_tensors(self.observation, device)
            buffer.store_observation(t, observation)
            buffer.store_memory(t, self.memory)
            starts[t] = self.starts
            memory = self.memory
            if self.starts.any():
                memory = forget(memory, torch.as_tensor(self.starts, device=device))
            masks = self._action_masks(t)
            drawn = noise[t if hold is None else 0 if hold == 0 else t // hold]
            step = self.policy.act(observation, memory, drawn, masks, deployed)
            env_action = step.env_action.cpu().numpy()
            if moves.count != self._left_at:
                self.moved_outside += moves.count - self._left_at
            stepped, rewards, dones, infos = self.env.step(env_action)
            self._left_at = moves.count  # a wrapper may step the envs more than once
            new_observation = cast(RawObservation, stepped)  # tuples are no observation space of SB3
            self._check(new_observation, rewards, f"step {t} of the rollout")
            actions.append(step.action)
            parameters.append(step.action_parameters)
            latents.append(step.critic_latent)
            rewards_of[t], ended[t] = rewards, dones
            if original is not None and self.normaliser is not None:
                original[t] = self.normaliser.get_original_reward()
            if masks is not None and buffer.action_masks is not None:
                buffer.action_masks[t] = masks
            if truncated := _truncated(dones, infos):
                finals.append((t, truncated, self._look_at_finals(truncated, infos, step.memory, t)))
            if step_returns is not None:
                step_returns[t] = self._step_returns(rewards, infos, t)
            self._note_costs(buffer, infos, t)

            self.observation, self.starts, self.memory = new_observation, np.asarray(dones, dtype=bool), step.memory
            # SB3 shows callbacks whole numbers for discrete actions, and continuous ones before they are clipped.
            discrete = env_action.dtype.kind == "i"
            shown = env_action if discrete else step.action.cpu().numpy().reshape(env_action.shape)
            if not on_step(
                {
                    "env": self.env,
                    "n_steps": t + 1,
                    "obs_tensor": observation,
                    "actions": shown,
                    "clipped_actions": env_action,
                    "new_obs": new_observation,
                    "rewards": rewards,
                    "dones": dones,
                    "infos": infos,
                    "rollout_buffer": buffer,
                }
            ):
                if risk is not None:  # what was earned counts in the total of its episode, whoever stopped it
                    risk.step_returns[: t + 1] = torch.as_tensor(step_returns)[: t + 1]
                    buffer.ended[: t + 1] = torch.as_tensor(ended)[: t + 1]
                return t + 1
        for column, found in ((buffer.starts, starts), (buffer.rewards, rewards_of), (buffer.ended, ended)):
            column.copy_(torch.as_tensor(found))
        buffer.original_rewards = None if original is None else torch.as_tensor(original)
        if risk is not None:
            risk.step_returns.copy_(torch.as_tensor(step_returns))
        torch.stack(actions, out=buffer.actions)
        torch.stack(parameters, out=buffer.action_parameters)
        buffer.log_probs.copy_(self.policy.log_prob(buffer.action_parameters, buffer.actions))
        self._fill_values(buffer, torch.stack(latents), finals)
        return T

    def _fill_values(self, buffer: RolloutBuffer, latents: Tensor, finals: list[tuple[int, list[int], Tensor]]) -> None:
        """Values and costs of every step and of its successor: the next row's, the final observation's where the
        episode was truncated, and the last observation's behind the last row."""
        T, B = buffer.shape
        device = latents.device
        memory = forget(self.memory, torch.as_tensor(self.starts, device=device))
        last = self.policy.critic_latent(as_tensors(self.observation, device), memory)
        every = torch.cat([latents.flatten(0, 1), last, *(latent for _, _, latent in finals)])
        values, costs = self.policy.values(every), self.policy.costs(every)
        cut = torch.zeros((T, B), dtype=torch.bool, device=device)
        for t, envs, _ in finals:
            cut[t, envs] = True
        torch.logical_and(buffer.ended, ~cut, out=buffer.terminated)

        def spread(found: Tensor, own: Tensor, successors: Tensor) -> None:  # (T·B + B + finals, ...)
            rows = found[: (T + 1) * B].unflatten(0, (T + 1, B))
            own.copy_(rows[:-1])
            successors.copy_(rows[1:])
            successors[cut] = found[(T + 1) * B :]  # finals are in the order of time, and of envs within a step

        spread(values, buffer.raw_values, buffer.raw_next_values)
        if buffer.risk is not None:
            assert costs is not None
            spread(costs, buffer.risk.costs, buffer.risk.next_costs)

    def _step_returns(self, rewards: np.ndarray, infos: Any, t: int) -> np.ndarray:  # (B,) float64
        """The return of this step as the env tells it, else its reward, before any VecNormalize."""
        if hasattr(self.env, "info_arrays"):  # a VecEnv of ours: one array, and no info is made
            found = np.array(self.env.info_arrays["step_return"], dtype=np.float64)
        elif any("step_return" in info for info in infos):
            found = np.array([info.get("step_return", np.nan) for info in infos], dtype=np.float64)
        else:
            found = np.asarray(
                rewards if self.normaliser is None else self.normaliser.get_original_reward(), np.float64
            )
        if not np.isfinite(found).all():
            env = int(np.flatnonzero(~np.isfinite(found))[0])
            raise EnvironmentFault(
                f"env {env}, step {t} of the rollout: info['step_return'] is {found[env]}; with risk= every step needs "
                "a finite one in every env, or none in any"
            )
        return found

    def _note_costs(self, buffer: RolloutBuffer, infos: Any, t: int) -> None:
        """What trading cost in this step, of an env that says so from the first step on; not checked, but counted."""
        if t > 0 and buffer.cost_fractions is None:
            return
        if hasattr(self.env, "info_arrays"):  # a VecEnv of ours: one array, and no info is made
            found = self.env.info_arrays[_COSTS]
        elif any(_COSTS in info for info in infos):
            found = np.array([info.get(_COSTS, np.nan) for info in infos], dtype=np.float64)
        elif buffer.cost_fractions is None:
            return
        else:
            found = np.full(len(infos), np.nan)
        if buffer.cost_fractions is None:
            buffer.cost_fractions = np.empty(buffer.shape)
        buffer.cost_fractions[t] = found

    def _look_at_finals(self, envs: list[int], infos: Any, memory: Memory, t: int) -> Tensor:  # (len(envs), H)
        """What the critics read of the final observations of truncated episodes, fed once to their own memory."""
        finals = [infos[env].get("terminal_observation") for env in envs]
        for env, final in zip(envs, finals, strict=True):
            if final is None:
                raise EnvironmentFault(
                    f"env {env}, step {t} of the rollout: the episode was truncated, but "
                    "info['terminal_observation'] is missing; a VecEnv that resets by itself must give it"
                )
        stacked: RawObservation
        if isinstance(finals[0], dict):
            stacked = {key: np.stack([final[key] for final in finals]) for key in finals[0]}
        else:
            stacked = np.stack(finals)
        _check_observation(stacked, f"step {t} of the rollout, final observation", envs=envs)
        seen = as_tensors(stacked, self.policy.device)
        return self.policy.critic_latent(seen, tuple(part[:, envs] for part in memory))

    def _action_masks(self, t: int) -> Tensor | None:
        if not self.masked:
            return None
        masks = np.stack([np.ravel(mask) for mask in self.env.env_method("action_masks")])  # (B, K)
        try:
            return self.policy.check_masks(masks)
        except ArgumentError as error:
            raise EnvironmentFault(f"step {t} of the rollout: {error}") from None

    def _check(self, observation: RawObservation, rewards: np.ndarray | None, where: str) -> None:
        """Name the env and the step at which something is not finite."""
        parts = list(observation.values()) if isinstance(observation, dict) else [observation]
        if all(part.dtype.kind != "f" or np.isfinite(part).all() for part in parts) and (
            rewards is None or np.isfinite(rewards).all()
        ):
            return
        if self.normaliser is not None:  # one bad number spoils its statistics and so every env: look behind it
            _check_observation(self.normaliser.get_original_obs(), where)
            _check_rewards(None if rewards is None else self.normaliser.get_original_reward(), where)
        _check_rewards(rewards, where)
        _check_observation(observation, where)


def _refuse_one_for_many(env: VecEnv) -> None:
    """Slots of a DummyVecEnv that hold one and the same env would step it for each other."""
    inner = env.unwrapped
    if not isinstance(inner, DummyVecEnv):
        return
    places: dict[int, int] = {}
    for slot, each in enumerate(inner.envs):
        first = places.setdefault(id(each.unwrapped), slot)
        if first != slot:
            raise EnvironmentFault(
                f"envs {first} and {slot} are one and the same object, so each steps the other's episode; make a new "
                "env in every function: DummyVecEnv([make, make]), not [lambda: env] * 2"
            )


def _check_rewards(rewards: np.ndarray | None, where: str) -> None:
    if rewards is not None and not np.isfinite(rewards).all():
        env = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise EnvironmentFault(f"env {env}, {where}: reward {rewards[env]}; a reward must be a finite number")


def _check_observation(
    observation: RawObservation, where: str, key: str = "", envs: list[int] | None = None
) -> None:  # `envs`: the numbers of the rows, if they are not all envs in order
    if isinstance(observation, dict):
        for name, value in observation.items():
            _check_observation(value, where, f" (key {name!r})", envs)
    elif observation.dtype.kind == "f" and not np.isfinite(observation).all():
        rows = np.isfinite(observation).reshape(len(observation), -1)
        env = int(np.flatnonzero(~rows.all(1))[0])
        feature = int(np.flatnonzero(~rows[env])[0])
        value = observation[env].ravel()[feature]
        raise EnvironmentFault(
            f"env {envs[env] if envs else env}, {where}: observation{key} holds {value} at flat index {feature}; "
            "observations must be finite"
        )


def _truncated(dones: np.ndarray, infos: Any) -> list[int]:
    """Envs whose episode was cut by a time limit rather than ended."""
    return [int(env) for env in np.flatnonzero(dones) if infos[env].get("TimeLimit.truncated", False)]
