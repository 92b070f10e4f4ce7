"""Advantages, value targets and losses, computed once more by `equations` and compared with the learner's own."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from leeward.algorithm.losses import Losses, Rows, gather, policy_losses, value_losses
from leeward.algorithm.update import UpdateInputs
from leeward.audit.checks import CannotRun
from leeward.audit.engine import equations
from leeward.audit.engine.equations import Floats
from leeward.audit.engine.twins import Scene, Twins, moment, play
from leeward.audit.findings import Fault
from leeward.maths.nested import Memory
from leeward.networks.action_distributions import CategoricalHead, GaussianHead
from leeward.networks.actor_critic import ActorCritic, Evaluation
from leeward.networks.value_heads import LinearCritic, Unit
from leeward.rollout.sequences import cut, minibatches
from leeward.telemetry import metrics

__all__ = ["Lesson", "advantages_agree", "lesson", "losses_agree", "tail_agrees", "targets_agree", "weights_agree"]

_ROUNDING = 1e-3  # of the size of what is compared, float32 against float64
_LESSON_STEPS = 256  # of a minibatch whose losses are computed as tables
_STIR = 0.05  # of its own spread: how far each weight is moved at once, so that ratios are not 1
_MOST_STIRS = 20
_CLIPPED = 0.1  # share of the steps whose ratio then lies outside the clip range
_CHANCE = 1.6  # mean squared error of sample means over their variance; systematic draws make it less than 1
_BY_ENVS = 6.0  # standard errors of the mean difference over envs


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().to(torch.float64).numpy()


def _decoded(scene: Scene, raw: Tensor) -> tuple[Floats, Floats, Floats | None]:
    """Raw outputs, what each stands for in units of the return, and their weights; of atoms there are none."""
    critic, (mean, std), found = scene.model.policy.critic, scene.unit, _array(raw)
    if isinstance(critic, LinearCritic):
        return found, found * std + mean, _array(critic.weights)
    support: Tensor = critic.support  # type: ignore[assignment]
    return found, _array(support) if std > 0.0 else np.zeros(found.shape[-1]), None


def _baseline(scene: Scene, raw: Tensor) -> Floats:  # (T, B, C, N) -> (T, B)
    """The smaller of the critics' means."""
    return np.asarray(equations.critic_means(*_decoded(scene, raw)).min(-1))


def advantages_agree(scene: Scene) -> Iterator[Fault]:
    """GAE by its sum, on the smaller of the means."""
    rollout, targets, settings = scene.collected.rollout, scene.collected.targets, scene.model.settings
    values, following = _baseline(scene, rollout.raw_values), _baseline(scene, rollout.raw_next_values)
    rewards, terminated, ended = _array(rollout.rewards), rollout.terminated.numpy(), rollout.ended.numpy()
    found = equations.gae(rewards, values, following, terminated, ended, gamma=settings.gamma, lam=settings.gae_lambda)
    scale = max(float(np.abs(found).max()), float(np.abs(values).max()), float(np.abs(rewards).max()))
    words = (
        f"δ = r + γV′ − V summed with weights (γλ)ᵏ up to each end, γ = {settings.gamma:g}, λ = {settings.gae_lambda:g}"
    )
    yield from _apart("advantages", _array(targets.raw_advantages), found, scale, words, "maths/returns.py: gae")


def weights_agree(scene: Scene) -> Iterator[Fault]:
    """What the policy learns from: the costs of the limits in the advantages, and both normalised once."""
    rollout, targets, settings = scene.collected.rollout, scene.collected.targets, scene.model.settings
    total = _array(targets.raw_advantages)
    words = f"normalised once over the steps that are learned from ({settings.normalisation})"
    if scene.model.engine.risk_control is not None:
        total, words = _priced(scene, total), f"(A − Σ λ A_c) / (1 + Σ λ), {words}"
    deployed = None if rollout.risk is None else rollout.risk.deployed
    learned = np.ones(rollout.shape, dtype=bool)
    if deployed is not None:
        learned &= ~deployed.cpu().numpy()
    size = max(float(np.abs(_array(part)).max()) for part in (rollout.rewards, targets.values))
    found = equations.normalised(total, learned, settings.normalisation, 1e-6 * size)
    scale = max(float(np.abs(found).max()), 1e-12)
    yield from _apart("normalised advantages", _array(targets.advantages), found, scale, words, "algorithm/targets.py")


def _priced(scene: Scene, advantages: Floats) -> Floats:
    """Rockafellar and Uryasev's cost (ν − X)⁺/α of each limit, its own GAE, and both in one advantage."""
    control, rollout, settings = scene.model.engine.risk_control, scene.collected.rollout, scene.model.settings
    columns = rollout.risk
    assert control is not None and columns is not None
    normaliser = scene.model.get_vec_normalize_env()
    unit = 1.0
    if normaliser is not None and normaliser.norm_reward:
        unit = float(np.sqrt(normaliser.ret_rms.var + normaliser.epsilon))
    gains, ended = _array(columns.step_returns), rollout.ended.numpy()
    total, weights = np.zeros_like(advantages), 0.0
    for k, constraint in enumerate(control.constraints):
        config, of_episode = constraint.config, constraint.config.measure == "episode_return"
        outcome, known = (_running(gains, ended, scene.running[k]), ended) if of_episode else (gains, ~(ended & ~ended))
        # A policy that keeps its limit has its quantile above it: ν is not below the limit.
        floor = -np.inf if config.limit is None else config.limit
        pivot = -np.inf if constraint.quantile is None else max(constraint.quantile, floor)
        cost = np.where(known, np.maximum(pivot - outcome, 0.0) / config.alpha, 0.0)
        # The whole return of an episode counts the same at its first step as at its last.
        gamma, lam = (1.0, 1.0) if of_episode else (settings.gamma, settings.gae_lambda)
        gained = equations.gae(
            cost,
            _array(columns.costs)[..., k],
            _array(columns.next_costs)[..., k],
            ended if of_episode else rollout.terminated.numpy(),
            ended,
            gamma=gamma if config.gamma is None else config.gamma,
            lam=lam if config.gae_lambda is None else config.gae_lambda,
        )
        weight = constraint.multiplier + config.cvar_weight
        total, weights = total + weight * gained / unit, weights + weight
    return np.asarray((advantages - total) / (1.0 + weights))


def _running(gains: Floats, ended: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]", before: np.ndarray) -> Floats:
    totals, running = np.empty_like(gains), before.astype(np.float64)
    for t in range(len(gains)):
        totals[t] = running = running + gains[t]
        running = np.where(ended[t], 0.0, running)
    return totals


def tail_agrees(scene: Scene) -> Iterator[Fault]:
    """The measured tail of every limit is the mean of the worst outcomes."""
    control, numbers = scene.model.engine.risk_control, scene.collected.targets.numbers
    if control is None:
        raise CannotRun("no tail is measured; risk= measures one")
    measured = [(k, each, each.bound.samples) for k, each in enumerate(control.constraints)]
    if all(samples is None for _, _, samples in measured):
        raise CannotRun("no outcome was measured yet; an episode must end first")
    for k, constraint, samples in measured:
        if samples is None:
            continue
        told = numbers[metrics.RISK_CVAR_MEASURED.numbered(k + 1)]
        found = equations.cvar(_array(samples), constraint.config.alpha)
        if not abs(found - told) <= 1e-6 * max(float(samples.abs().max()), 1e-12):
            yield Fault(
                "critical",
                "The measured tail is not the mean of the worst outcomes",
                f"Limit {k + 1}: the learner measured {told:.6g}; the worst {constraint.config.alpha:g} of the same "
                f"{len(samples)} outcomes average {found:.6g}. The multiplier follows the former.",
                "Look at maths/cvar.py: from_samples and algorithm/risk_constraint.py: Constraint.",
            )


def targets_agree(scene: Scene) -> Iterator[Fault]:
    """Samples of the return have the mean and the variance of r + γX, computed without drawing any."""
    rollout, settings = scene.collected.rollout, scene.model.settings
    raw, values, weights = _decoded(scene, rollout.raw_next_values)
    if weights is None:
        powers = np.exp(raw - raw.max(-1, keepdims=True))
        weights = (powers / powers.sum(-1, keepdims=True)).mean(-2)  # (T, B, N): the mean of the critics' probabilities
    else:
        values = values.mean(-2)  # (T, B, N): the mean of the critics' quantiles
    successor = (values * weights).sum(-1), (values**2 * weights).sum(-1)
    rewards, terminated, ended = _array(rollout.rewards), rollout.terminated.numpy(), rollout.ended.numpy()
    mean, variance = equations.return_moments(
        rewards, successor, terminated, ended, gamma=settings.gamma, lam=settings.gae_lambda
    )
    samples = _array(scene.collected.targets.samples)
    place = "maths/returns.py: distributional_targets"
    if settings.value_targets == "scalar":
        scale = max(float(np.abs(mean).max()), 1e-12)
        yield from _apart(
            "value targets", samples[..., 0], mean, scale, "the λ-return", "maths/returns.py: lambda_returns"
        )
        return
    yield from _mean_agrees(samples, mean, variance, ended, place)
    spread, wanted = float(samples.var(-1).mean()), float(variance.mean())
    if not 0.7 * wanted <= spread + 1e-12 <= 1.4 * wanted + 1e-9 * float(np.abs(mean).max()) ** 2 + 1e-12:
        yield Fault(
            "critical",
            "Value targets have another spread than the return",
            f"Their variance is {spread:.4g}, that of r + γX {wanted:.4g}, mean over the rollout.",
            f"Look at {place}: a target that is a mean makes tails too mild.",
        )


def _mean_agrees(
    samples: Floats,
    mean: Floats,
    variance: Floats,
    ended: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]",
    place: str,
) -> Iterator[Fault]:
    apart = samples.mean(-1) - mean  # (T, B)
    size = float(np.abs(mean).max())
    chance = variance / samples.shape[-1] + (1e-5 * size) ** 2 + 1e-24
    last = np.zeros_like(ended)
    last[-1] = True
    kinds = {"at the ends of episodes": ended, "at the end of the rollout": last & ~ended, "inside": ~ended & ~last}
    for where, rows in kinds.items():
        if rows.sum() >= 8 and not float((apart[rows] ** 2 / chance[rows]).mean()) <= _CHANCE:
            yield _off_target(
                where, float(np.sqrt((apart[rows] ** 2).mean())), float(np.sqrt(chance[rows].mean())), place
            )
            return
    by_env = apart.mean(0)  # (B,)
    error = float(by_env.std(ddof=1)) / np.sqrt(len(by_env)) if len(by_env) >= 8 else np.inf
    if not abs(float(by_env.mean())) <= _BY_ENVS * error + 1e-5 * size:
        yield _off_target("on average", float(by_env.mean()), error, place)


def _off_target(where: str, off: float, chance: float, place: str) -> Fault:
    return Fault(
        "critical",
        "Value targets are not samples of the return",
        f"{where[0].upper() + where[1:]} they lie {off:.4g} from the λ-return, which draws by chance would by "
        f"{chance:.2g}.",
        f"Look at {place}, and at what it is given: rewards, ends, and the distribution of the successor.",
    )


@dataclass(frozen=True)
class Lesson:
    """Losses of a few steps of a rollout, of a network whose weights were stirred: no ratio is exactly 1."""

    scene: Scene
    inputs: UpdateInputs
    rows: Rows
    memory: Memory
    seen: Evaluation
    losses: Losses
    unit: Unit  # of the critics now


def lesson(twins: Twins) -> Lesson:
    """Prepare an update as the engine does, and stop before its first step."""
    scene = play(twins)
    model, rollout = scene.model, scene.collected.rollout
    inputs, _ = model.engine.prepare(rollout, scene.collected.targets, moment(model))
    policy, device = model.policy, model.device
    sequences = cut(rollout.starts.cpu().numpy(), inputs.plan.sequence_length, inputs.plan.burn_in)
    batch = next(minibatches(sequences, rollout.shape[1], _LESSON_STEPS, np.random.default_rng(0), device))
    times, envs = (torch.as_tensor(x, device=device)[batch.sequences] for x in (sequences.times, sequences.envs))
    rows, memory = gather(rollout, inputs.advantages, batch), rollout.memory_before(times, envs)
    draw = torch.Generator(device=device).manual_seed(0)
    for _ in range(_MOST_STIRS):
        _stir(policy, draw)
        seen = policy.evaluate(rows.observations, rows.actions, memory, rows.action_masks)
        ratio = (seen.actor.log_prob - rows.log_probs).detach().exp()[rows.mask]
        if float(((ratio - 1.0).abs() > inputs.weights.clip_range).float().mean()) > _CLIPPED:
            break
    losses = Losses(
        policy_losses(policy, rows, seen.actor, inputs.weights),
        value_losses(policy, rows, seen.critic, inputs.targets, inputs.weights, inputs.risk),
    )
    return Lesson(scene, inputs, rows, memory, seen, losses, policy.critic.unit)


@torch.no_grad()
def _stir(policy: ActorCritic, draw: torch.Generator) -> None:
    for parameter in policy.parameters():
        size = float(parameter.std(correction=0)) or float(parameter.abs().mean())
        parameter.add_(torch.randn(parameter.shape, generator=draw, device=parameter.device), alpha=_STIR * size)


def losses_agree(taught: Lesson) -> Iterator[Fault]:
    """The clipped surrogate, the sign of the entropy bonus, and each critic's loss as a table."""
    rows, weights, losses = taught.rows, taught.inputs.weights, taught.losses
    learned, real = rows.learned.cpu().numpy(), rows.mask.cpu().numpy()
    log_ratio = _array(taught.seen.actor.log_prob - rows.log_probs)
    each = equations.clipped_surrogate(log_ratio, _array(rows.advantages), weights.clip_range)
    surrogate = weights.policy_weight * float(each[learned].sum())
    scale = weights.policy_weight * float(np.abs(each[learned]).sum()) + 1e-9
    yield from _apart_sum(
        "policy loss", float(losses.policy.surrogate.detach()), surrogate, scale, "maths/policy_loss.py"
    )
    if weights.ent_coef != 0.0 and (entropy := _entropy(taught)) is not None:
        bonus = -weights.ent_coef * weights.policy_weight * float(entropy[learned].sum())
        told = float((losses.policy.loss - losses.policy.policy).detach())
        yield from _apart_sum("entropy bonus", told, bonus, abs(bonus) + 1e-9, "algorithm/losses.py: policy_losses")
    yield from _value_losses_agree(taught, real if rows.exploring is None else real & ~learned)


def _entropy(taught: Lesson) -> Floats | None:  # (L, S)
    """Of the two plain heads; the others have no closed form of a line."""
    head, parameters = taught.scene.model.policy.action_head, _array(taught.seen.actor.action_parameters)
    if type(head) is CategoricalHead:
        probs = np.exp(parameters - parameters.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        return np.asarray(-(probs * np.log(np.maximum(probs, 1e-300))).sum(-1))
    if type(head) is GaussianHead:
        log_std = _array(head.log_std + head.log_scale)
        return np.full(parameters.shape[:2], float((0.5 + 0.5 * np.log(2.0 * np.pi) + log_std).sum()))
    return None


def _value_losses_agree(taught: Lesson, taken: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> Iterator[Fault]:
    critic, weights, settings = taught.scene.model.policy.critic, taught.inputs.weights, taught.scene.model.settings
    shape = taught.rows.mask.shape
    samples = _array(taught.scene.collected.targets.samples).reshape(
        -1, taught.scene.collected.targets.samples.shape[-1]
    )
    targets = samples[taught.rows.index.cpu().numpy()].reshape(*shape, -1)[taken]
    if isinstance(critic, LinearCritic):
        mean, std = taught.unit
        targets, grid = (targets - mean) / (std or 1.0), _array(critic.levels)
    else:
        support: Tensor = critic.support  # type: ignore[assignment]
        grid = _array(support)
    for c in range(taught.seen.critic.values.shape[-2]):
        raw = _array(taught.seen.critic.values[..., c, :])[taken]
        each = equations.value_loss(settings.critic, raw, targets, grid, kappa=weights.kappa)
        found = weights.outlook_weight * float(each.sum())
        told = float(taught.losses.value.per_critic_unclipped[c].detach())
        yield from _apart_sum(f"loss of critic {c + 1}", told, found, abs(found) + 1e-9, "networks/value_heads.py")


def _apart(name: str, told: Floats, found: Floats, scale: float, words: str, place: str) -> Iterator[Fault]:
    difference = np.abs(told - found)
    if not float(difference.max()) <= _ROUNDING * scale:
        t, b = (int(i) for i in np.unravel_index(int(difference.argmax()), difference.shape))
        yield Fault(
            "critical",
            f"The {name} are not what their equation gives",
            f"By {words}, the largest gap is {difference.max():.4g} at step {t} of env {b}: the learner has "
            f"{told[t, b]:.5g}, the equation gives {found[t, b]:.5g}.",
            f"Look at {place}.",
        )


def _apart_sum(name: str, told: float, found: float, scale: float, place: str) -> Iterator[Fault]:
    if not abs(told - found) <= _ROUNDING * scale:
        yield Fault(
            "critical",
            f"The {name} is not what its equation gives",
            f"On one minibatch the learner has {told:.6g}, the equation in float64 gives {found:.6g}.",
            f"Look at {place}.",
        )
