"""Does learning reach what it should? Ratios before the first step, which loss moves which part, and both critics."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from leeward.algorithm.losses import Losses, value_losses
from leeward.audit.engine.recomputed import Lesson
from leeward.audit.engine.twins import Scene, Twins, learn, moment, play
from leeward.audit.findings import Fault
from leeward.networks.action_distributions import GaussianHead, SquashedGaussianHead, StateDependentHead
from leeward.networks.actor_critic import ActorCritic
from leeward.rollout.sequences import cut, minibatches
from leeward.telemetry import metrics

__all__ = ["everything_learns", "gradients_flow", "ratio_is_one"]

_RATIO = 1e-3  # how far a ratio may be from 1 before anything was learned
_THROWN, _STILL = 1.0, 1e-8  # nats that one epoch moves the policy by: far too many, and next to none
_BALANCE = 100.0  # times that one critic may move more than the other
_ACTOR = ("actor_extractor", "extractor", "actor_memory", "actor_mlp", "action_head", "log_std")


@torch.no_grad()
def ratio_is_one(scene: Scene) -> Iterator[Fault]:
    """Every sequence of the update, run from its stored memory, gives the log-probabilities of the rollout."""
    policy, rollout = scene.model.policy, scene.collected.rollout
    policy.set_training_mode(False)
    plan, device = scene.model.engine.plan(rollout.rewards.numel()), policy.device
    sequences = cut(rollout.starts.cpu().numpy(), plan.sequence_length, plan.burn_in)
    times, envs = (torch.as_tensor(x, device=device) for x in (sequences.times, sequences.envs))
    memory, worst, wrong, steps = rollout.memory_before(times, envs), 0.0, 0, 0
    for batch in minibatches(sequences, rollout.shape[1], 1024, np.random.default_rng(0), device):
        index, shape = batch.rows.flatten(), batch.rows.shape

        def pick(tensor: Tensor, index: Tensor = index, shape: torch.Size = shape) -> Tensor:
            return tensor.flatten(0, 1)[index].reshape(*shape, *tensor.shape[2:])

        seen = rollout.observations
        rows = {key: pick(part) for key, part in seen.items()} if isinstance(seen, dict) else pick(seen)
        masks = None if rollout.action_masks is None else pick(rollout.action_masks)
        before = tuple(part.index_select(1, batch.sequences) for part in memory)
        again = policy.evaluate_actor(rows, pick(rollout.actions), before, masks).log_prob
        deviation = (again - pick(rollout.log_probs)).expm1().abs()[batch.mask]
        worst = max(worst, float(deviation.nan_to_num(torch.inf).max()))
        wrong, steps = wrong + int((~(deviation <= _RATIO)).sum()), steps + batch.n_real
    if wrong:
        yield Fault(
            "critical",
            "Ratios are not 1 before the first step",
            f"{wrong} of {steps} steps have another probability in the update than they had in the rollout, by up to "
            f"a factor of {1.0 + worst:.4g}: rollout and update disagree about the memory, the observation or the "
            "action, so every step of the policy starts wrong.",
            "Look at the memory that is stored (rollout/buffer.py), at the cut of sequences (rollout/sequences.py), "
            "and "
            "at layers of your own that act differently in training.",
        )


def gradients_flow(taught: Lesson) -> Iterator[Fault]:
    """Each term of the loss moves its own part of the network and no other."""
    policy = taught.scene.model.policy
    if not bool((taught.rows.advantages[taught.rows.learned] != 0.0).any()):
        yield Fault(
            "high",
            "There is nothing to learn for the policy",
            "Every advantage of the rollout is 0: rewards do not differ, or the critics foresee them exactly.",
            "Look at the reward; explore more, or make it denser.",
        )
        return
    groups = policy.parameter_groups()
    parameters = [p for group in groups.values() for p in group]
    for term, loss in _terms(taught).items():
        flows = _expected(term, policy) & groups.keys()
        found = iter(torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True))
        for name, group in groups.items():
            sizes = [
                0.0 if gradient is None else float(gradient.abs().max()) for gradient in (next(found) for _ in group)
            ]
            if name in flows and not max(sizes) > 0.0:
                yield Fault(
                    "critical",
                    f"The {term} does not reach {name}",
                    f"Its gradient there is exactly 0 on {taught.rows.n_real} steps, so this part never learns from "
                    "it.",
                    "Look for a detach or a no_grad on the way (networks/actor_critic.py), and for dead units.",
                )
            elif name not in flows and max(sizes) != 0.0:
                yield Fault(
                    "critical",
                    f"The {term} leaks into {name}",
                    f"Its gradient there is up to {max(sizes):.3g}, and must be 0.",
                    "Look at what the two parts share (networks/actor_critic.py).",
                )


def _terms(taught: Lesson) -> dict[str, Tensor]:
    losses, inputs = taught.losses, taught.inputs
    terms = {"policy loss": losses.policy.surrogate}
    if inputs.weights.ent_coef != 0.0:
        terms["entropy bonus"] = losses.policy.loss - losses.policy.policy
    for c, each in enumerate(losses.value.per_critic):
        terms[f"loss of critic {c + 1}"] = each
    if inputs.risk is not None:
        for name, other in (("loss of the cost critics", "step"), ("loss of the step outlook", "costs")):
            terms[name] = _silenced(taught, other).value.risk
    return terms


def _silenced(taught: Lesson, part: str) -> Losses:
    """The losses with one of the two risk outputs held still."""
    risk = taught.seen.critic.risk
    assert risk is not None
    critic = taught.seen.critic._replace(risk=risk._replace(**{part: getattr(risk, part).detach()}))
    policy, inputs = taught.scene.model.policy, taught.inputs
    value = value_losses(policy, taught.rows, critic, inputs.targets, inputs.weights, inputs.risk)
    return Losses(taught.losses.policy, value)


def _expected(term: str, policy: ActorCritic) -> set[str]:
    """The parts that a term trains; critics read a memory they share with the actor without training it."""
    if term == "loss of the cost critics":
        return {"cost_mlp", "cost_heads"}
    if term == "loss of the step outlook":
        return {"step_mlp", "step_head"}
    if term.startswith("loss of critic"):
        own = {f"critic{term[-1]}_mlp", f"critic{term[-1]}_head"}
        return own if policy.shared_lstm else own | {"critic_memory", "critic_extractor", "extractor"}
    head = policy.action_head
    plain = isinstance(head, GaussianHead | StateDependentHead) and not isinstance(head, SquashedGaussianHead)
    return {"log_std"} if term == "entropy bonus" and plain else set(_ACTOR)


def everything_learns(twins: Twins) -> Iterator[Fault]:
    """One update moves every part, both critics about alike, and none is a copy of the other."""
    scene = play(twins)
    policy, collected = scene.model.policy, scene.collected
    scene.model.engine.prepare(collected.rollout, collected.targets, moment(scene.model))
    rates = [float(group["lr"]) for group in policy.optimizer.param_groups]
    if min(rates) == 0.0:
        yield Fault(
            "critical",
            "The learning rate is 0 in the middle of training",
            f"At half of the progress the rates of the optimiser's groups are {', '.join(f'{r:g}' for r in rates)}.",
            "Set learning_rate (and critic_learning_rate) above 0, or look at the schedule.",
        )
        return
    raw = collected.rollout.raw_values  # (T, B, C, N)
    if raw.shape[2] == 2 and torch.equal(raw[:, :, 0], raw[:, :, 1]):
        yield Fault(
            "high",
            "The second critic is a copy of the first",
            "Both predict the same to the last bit at every step, so the smaller of the two is no safeguard.",
            "Build the critics apart, or set twin_critics=False.",
        )
    scene = play(twins)  # the unit above has followed once already
    policy, groups = scene.model.policy, scene.model.policy.parameter_groups()
    before = {name: [p.detach().clone() for p in group] for name, group in groups.items()}
    numbers = learn(scene.model, scene.collected)
    yield from _step_is_sensible(numbers[metrics.APPROX_KL], rates[0])
    moved = {
        name: max(float((p.detach() - old).abs().max()) for p, old in zip(group, before[name], strict=True))
        for name, group in groups.items()
    }
    still = sorted(name for name, size in moved.items() if not size > 0.0)
    if still:
        yield Fault(
            "critical",
            f"An update does not move {', '.join(still)}",
            "After one epoch on a rollout not one weight of it has changed.",
            "Look for a part that is frozen, left out of the optimiser, or without a gradient.",
        )
    ratio = moved.get("critic1_mlp", 1.0) / max(moved.get("critic2_mlp", 1.0), 1e-30)
    if not still and not 1.0 / _BALANCE <= ratio <= _BALANCE:
        yield Fault(
            "high",
            "The critics do not learn alike",
            f"In one update the first moved {ratio:.3g} times as far as the second.",
            "Look at the losses and gradient norms of both (train/critics_grad_ratio).",
        )


def _step_is_sensible(kl: float, rate: float) -> Iterator[Fault]:
    if kl > _THROWN:
        yield Fault(
            "high",
            "An update throws the policy away",
            f"One epoch at a learning rate of {rate:g} moves it by {kl:.3g} nats; a hundredth is usual.",
            "Lower learning_rate, or set target_kl.",
        )
    elif kl < _STILL:
        yield Fault(
            "medium",
            "An update hardly moves the policy",
            f"One epoch at a learning rate of {rate:g} moves it by {kl:.2g} nats; a hundredth is usual.",
            "Raise learning_rate, clip_range or max_grad_norm, or look whether the advantages say anything.",
        )
