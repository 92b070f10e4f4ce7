"""Does a rollout hold what happened? The same actions are sent to envs that stand where it began, and the network is
unrolled once more, step by step, with a memory that is emptied by hand at every start of an episode."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leeward.audit.engine.twins import Scene
from leeward.audit.findings import Fault
from leeward.maths.nested import Memory, Observation, as_sequence
from leeward.rollout.collector import as_tensors
from leeward.rollout.rollout_state import RawObservation

__all__ = ["Replay", "network_agrees", "record_agrees", "replay"]

_ROUNDING = 1e-3  # of the spread of what is compared: float32 through a network, in another order of operations
_UNEQUAL = "The env is not a function of its state and the actions (it draws from a generator that a copy shares)"


@dataclass(frozen=True)
class Replay:
    """What the envs gave when the actions of a rollout were sent again, T steps of B envs."""

    observations: list[RawObservation]  # T + 1 of them: what each step saw, and what came after the last
    starts: np.ndarray  # (T + 1, B) bool
    rewards: np.ndarray  # (T, B)
    ended: np.ndarray  # (T, B) bool
    truncated: np.ndarray  # (T, B) bool
    finals: dict[tuple[int, int], RawObservation]  # (t, b) of a truncated episode -> its last observation


def replay(scene: Scene) -> Replay:
    """Step the envs that stand where the rollout began."""
    rollout, env, head = scene.collected.rollout, scene.env, scene.model.policy.action_head
    seen: list[RawObservation] = [scene.before.observation]
    starts, rewards, ended, truncated = [scene.before.starts], [], [], []
    finals: dict[tuple[int, int], RawObservation] = {}
    for t in range(rollout.shape[0]):
        given = env.step(head.to_env(rollout.actions[t]).cpu().numpy())
        observation, reward, dones, infos = (given[0], given[1], np.asarray(given[2], dtype=bool), given[3])
        cut = np.array(
            [bool(done) and bool(infos[b].get("TimeLimit.truncated", False)) for b, done in enumerate(dones)]
        )
        finals |= {(t, int(b)): infos[b]["terminal_observation"] for b in np.flatnonzero(cut)}
        seen.append(observation)  # type: ignore[arg-type]
        starts.append(dones)
        rewards.append(np.array(reward, dtype=np.float64))
        ended.append(dones)
        truncated.append(cut)
    return Replay(seen, np.stack(starts), np.stack(rewards), np.stack(ended), np.stack(truncated), finals)


def record_agrees(scene: Scene, again: Replay) -> Iterator[Fault]:
    """Observations, rewards and both kinds of ends are those of the envs."""
    rollout = scene.collected.rollout
    terminated = again.ended & ~again.truncated
    stored = {
        "rewards": (rollout.rewards.cpu().numpy(), again.rewards.astype(np.float32)),
        "starts of episodes": (rollout.starts.cpu().numpy(), again.starts[:-1]),
        "ends": (rollout.ended.cpu().numpy(), again.ended),
        "terminations": (rollout.terminated.cpu().numpy(), terminated),
    }
    for key, values in _parts(rollout.observations).items():
        shown = np.stack([_parts(as_tensors(each, torch.device("cpu")))[key] for each in again.observations[:-1]])
        stored[f"observations{key}"] = values, shown
    for name, (held, given) in stored.items():
        different = _different(held, given)
        if different.any():
            t, b = (int(i) for i in np.argwhere(different)[0])
            yield Fault(
                "critical",
                f"The rollout does not hold the {name} that its envs gave",
                f"{int(different.sum())} of {different.size} entries differ, first at step {t} of env {b}: the rollout "
                f"has {_shown(held[t, b])}, the env gave {_shown(given[t, b])}.",
                f"If the learner was changed, look at rollout/collector.py. Otherwise: {_UNEQUAL.lower()}; give it a "
                "generator of its own.",
            )


@torch.no_grad()
def network_agrees(scene: Scene, again: Replay) -> Iterator[Fault]:
    """Log-probabilities, values and the values of successors are those of the network, with its own memory."""
    rollout, policy = scene.collected.rollout, scene.model.policy
    policy.set_training_mode(False)
    T, B = rollout.shape
    memory, device = scene.before.memory, policy.device
    carried: Memory = ()
    values, log_probs = torch.empty_like(rollout.raw_values), torch.empty_like(rollout.log_probs)
    successors = torch.empty_like(rollout.raw_next_values)
    for t in range(T + 1):
        memory = _emptied(policy.initial_memory(B), memory, torch.as_tensor(again.starts[t], device=device))
        seen = as_sequence(as_tensors(again.observations[t], device))
        latents = policy.latents(seen, memory)
        now = policy.values(latents.critic)[0]  # (B, C, N)
        if t > 0:
            goes_on = torch.as_tensor(~again.ended[t - 1], device=device)
            # The last row's successor is looked at whether its episode goes on or not.
            successors[t - 1] = torch.where(goes_on[:, None, None] | (t == T), now, successors[t - 1])
            for (at, b), final in again.finals.items():
                if at == t - 1:
                    successors[at, b] = _value_of_final(scene, final, tuple(part[:, b : b + 1] for part in carried))
        if t == T:
            break
        masks = None if rollout.action_masks is None else rollout.action_masks[t][None]
        parameters = policy.action_head(latents.actor, masks)
        log_probs[t] = policy.log_prob(parameters[0], rollout.actions[t])
        values[t] = now
        carried = memory = latents.memory
    used = ~rollout.terminated
    yield from _compared("log-probabilities", rollout.log_probs, log_probs)
    yield from _compared("values", rollout.raw_values, values)
    yield from _compared("values of successors", rollout.raw_next_values[used], successors[used])


def _value_of_final(scene: Scene, final: RawObservation, memory: Memory) -> Tensor:  # -> (C, N)
    policy = scene.model.policy
    alone: RawObservation
    if isinstance(final, dict):
        alone = {key: np.asarray(value)[None] for key, value in final.items()}
    else:
        alone = np.asarray(final)[None]
    latents = policy.latents(as_sequence(as_tensors(alone, policy.device)), memory)
    return policy.values(latents.critic)[0, 0]


def _emptied(empty: Memory, memory: Memory, starts: Tensor) -> Memory:  # each (layers, B, H), (B,)
    return tuple(torch.where(starts[None, :, None], zero, part) for zero, part in zip(empty, memory, strict=True))


def _compared(name: str, stored: Tensor, again: Tensor) -> Iterator[Fault]:
    difference = (stored - again).abs()
    scale = max(float(stored.std()), 1e-2)
    if not bool(difference.max() <= _ROUNDING * scale):
        share = float((difference > _ROUNDING * scale).float().mean())
        yield Fault(
            "critical",
            f"The {name} of the rollout are not what the network gives",
            f"{share:.1%} of them differ by more than rounding, by up to {float(difference.max()):.3g} where their "
            f"spread is {scale:.3g}. The network was unrolled once more from the same memory, emptied at every start "
            "of an episode; the final observation of a truncated episode was shown once.",
            "Look at the memory before the step (rollout/collector.py, rollout/buffer.py), and at what a policy of "
            "your own computes in training and in evaluation.",
        )


def _parts(observation: Observation) -> dict[str, Any]:
    """Arrays by a suffix for their name; one without a name for a plain observation."""
    if isinstance(observation, dict):
        return {f" ({key})": value.cpu().numpy() for key, value in observation.items()}
    return {"": observation.cpu().numpy()}


def _different(held: np.ndarray, given: np.ndarray) -> np.ndarray:  # (T, B, ...) -> (T, B)
    if held.shape != given.shape:
        return np.ones(held.shape[:2], dtype=bool)
    different: np.ndarray = (held != given).reshape(*held.shape[:2], -1).any(-1)
    return different


def _shown(value: Any) -> str:
    flat = np.ravel(value)
    return f"{flat[0]}" if flat.size == 1 else f"{np.array2string(flat[:4], precision=4)}…"
