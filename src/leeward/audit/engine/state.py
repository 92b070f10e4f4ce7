"""Does state stay what it is? A change of unit leaves predictions alone, a file brings everything back, and the same
beginning gives the same end."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leeward.algorithm.checkpoint import Path, read_checkpoint
from leeward.algorithm.ppo import DistributionalPPO
from leeward.audit.engine.twins import Twins, begin, learn, next_rollout, play, shrink
from leeward.audit.findings import Fault
from leeward.maths.nested import as_sequence, forget
from leeward.networks.value_heads import LinearCritic
from leeward.rollout.collector import as_tensors

__all__ = ["file_brings_back", "same_twice", "unit_moves_nothing"]

_LINEAR, _FITTED = 1e-3, 0.25  # of the return's spread: a head that is rescaled, one that is fitted to a moved support
_ROUNDS = 2


@torch.no_grad()
def unit_moves_nothing(twins: Twins) -> Iterator[Fault]:
    """Returns three times as wide, elsewhere: the critics' unit follows, and what they predict does not (PopArt)."""
    scene = play(twins)
    policy, rollout, targets = scene.model.policy, scene.collected.rollout, scene.collected.targets
    unit, plan = scene.model.engine.critic_unit, scene.model.engine.plan(rollout.rewards.numel())
    if unit.returns.std == 0.0:
        unit.follow(policy, targets.samples, rollout, plan)  # before the first rollout there is no unit to leave
    spread = max(float(targets.samples.std()), 1e-12)
    before = _means(policy, scene.before.observation, scene.before.memory, scene.before.starts)
    old = policy.critic.unit
    unit.follow(policy, 3.0 * targets.samples + 2.0 * spread, rollout, plan)
    after = _means(policy, scene.before.observation, scene.before.memory, scene.before.starts)
    limit = (_LINEAR if isinstance(policy.critic, LinearCritic) else _FITTED) * max(spread, policy.critic.unit.std)
    shift = float((after - before).abs().max())
    if not shift <= limit:
        yield Fault(
            "critical",
            "Predictions move when the unit of the return does",
            f"From mean {old.mean:.4g} and spread {old.std:.4g} to {policy.critic.unit.mean:.4g} and "
            f"{policy.critic.unit.std:.4g} a predicted mean moved by {shift:.4g}, without learning anything.",
            "Look at networks/value_heads.py: LinearCritic.rescale and algorithm/return_scale.py: CriticUnit.follow.",
        )


def _means(policy: Any, observation: Any, memory: tuple[Tensor, ...], starts: np.ndarray) -> Tensor:  # -> (B, C)
    emptied = forget(memory, torch.as_tensor(starts, device=policy.device))
    latents = policy.latents(as_sequence(as_tensors(observation, policy.device)), emptied)
    means: Tensor = policy.critic.means(policy.values(latents.critic[0]))
    return means


def file_brings_back(twins: Twins, original: DistributionalPPO) -> Iterator[Fault]:
    """Written and read, a model has the same weights, optimiser and statistics; written again, so has its file."""
    read, file = twins.model(), io.BytesIO()
    read.save(file)
    file.seek(0)
    plain = type(read).load(file, device=read.device, custom_objects={"policy_class": read.policy_class})
    if lost := sorted(plain.missing_arguments):
        yield Fault(
            "low",
            f"A file can only name {', '.join(lost)}",
            "A function of your own is not written into a checkpoint; predictions do not need it, training does.",
            f"Pass custom_objects={{'{lost[0]}': ...}} to load() when training goes on.",
        )
    file.seek(0)
    pairs = [*_of_models(original, read), *_of_files(twins.file(), file)]
    different = list(dict.fromkeys(name for name, one, other in pairs if not _same(one, other)))
    if different:
        more = f" and {len(different) - 6} more" if len(different) > 6 else ""
        yield Fault(
            "critical",
            "A checkpoint does not bring back what was written",
            f"After a save and a load these differ: {', '.join(different[:6])}{more}.",
            "Look at algorithm/checkpoint.py: save and restore, and at the state_dict of the owner that is named.",
        )


def _of_models(one: DistributionalPPO, other: DistributionalPPO) -> Iterator[tuple[str, Any, Any]]:
    theirs = other.policy.state_dict()
    yield from ((name, value, theirs.get(name)) for name, value in one.policy.state_dict().items())
    yield "optimizer", one.policy.optimizer.state_dict()["state"], other.policy.optimizer.state_dict()["state"]
    owners = other.owners()
    yield from ((name, owner.state_dict(), owners[name].state_dict()) for name, owner in one.owners().items())


def _of_files(first: Path, again: Path) -> Iterator[tuple[str, Any, Any]]:
    """What a file holds and what it holds when it is written again; one of an earlier format says less of each part."""
    (manifest, tensors), (other, theirs) = read_checkpoint(first), read_checkpoint(again)
    kept = {name: value for name, value in tensors.items() if name.startswith(("policy/", "optimizer/", "vgs/"))}
    yield from ((name.split("/", 1)[1], value, theirs.get(name)) for name, value in kept.items())
    if manifest["written_as"] == other["written_as"]:
        yield from ((name, state, other["state"].get(name)) for name, state in manifest["state"].items())


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict):
        return (
            isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other or (one != one and other != other))


def same_twice(twins: Twins) -> Iterator[Fault]:
    """Two updates from the same file and the same envs end in the same bits."""
    ends, rewards = [], []
    for _ in range(2):
        model = twins.model()
        shrink(model)
        begin(model)
        for _ in range(_ROUNDS):
            collected = next_rollout(model)
            learn(model, collected)
        ends.append({name: value.clone() for name, value in model.policy.state_dict().items()})
        rewards.append(collected.rollout.rewards.clone())
    different = [name for name, value in ends[0].items() if not torch.equal(value, ends[1][name])]
    if different:
        envs = (
            "already the rewards of the rollouts differ" if not torch.equal(*rewards) else "the rollouts are the same"
        )
        yield Fault(
            "high",
            "The same beginning does not give the same end",
            f"After {_ROUNDS} updates from the same state {len(different)} of {len(ends[0])} tensors differ, first "
            f"{different[0]}; {envs}.",
            "Look for an env, a layer or a callback that draws from a generator nobody seeds, or reads a clock.",
        )
