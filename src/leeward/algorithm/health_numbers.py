"""What health rules look at beyond what an update reports anyway: small samples, computed again by other means.

All of it together costs a few percent of a short round at most; nothing here changes what is learned.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from leeward.algorithm.targets import Targets
from leeward.config.settings import Settings
from leeward.maths.nested import Memory, Observation, forget, map_observation
from leeward.networks.action_distributions import GaussianHead, StateDependentHead
from leeward.networks.actor_critic import ActorCritic
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import as_tensors
from leeward.rollout.rollout_state import RolloutState
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["Weights", "Witness", "network_numbers", "rollout_looks", "target_looks"]

_TIMES, _ENVS, _STARTS = 8, 12, 32  # of a rollout that are looked at
_ACTIONS = 1024  # that are counted
_FEW, _SURE = 32, 0.1  # draws below which nothing is said of them; a spread
_DORMANT = 0.025  # of the mean activity of a layer's units (Sokar et al. 2023, arXiv:2302.12902, τ)
_ENERGY = 0.99
_TELLING = 10.0  # standard errors from which on a slope is told apart from 1; neighbouring steps share their noise
_SMALL = 0.1  # RMS of weights below which a change is not relative to them


def _some(n: int, most: int) -> list[int]:
    """Up to `most` places among n, evenly spaced, the first and the last among them."""
    return sorted(set(np.linspace(0, n - 1, min(n, most)).round().astype(int).tolist()))


@torch.no_grad()
def rollout_looks(policy: ActorCritic, rollout: RolloutBuffer, *, rank_too: bool) -> Numbers:
    """A sample of the rollout: what was seen and done in it, and whether the network still says the same of it."""
    numbers = _seen(policy, rollout) | _done(policy, rollout) | _drawn(policy, rollout)
    times, envs = _sample(rollout)
    n = len(times)
    begun = torch.nonzero(rollout.starts)[: _STARTS if rollout.memories else 0]  # (m, 2)
    times, envs = torch.cat((times, begun[:, 0])), torch.cat((envs, begun[:, 1]))
    seen = map_observation(lambda x: x[times, envs].unsqueeze(0), rollout.observations)
    masks = None if rollout.action_masks is None else rollout.action_masks[times, envs].unsqueeze(0)
    found = policy.latents(seen, _memory(policy, rollout, times[:n], envs[:n], len(begun)))
    values, stored = policy.values(found.critic)[0], rollout.raw_values[times, envs]
    numbers[metrics.VALUE_DEV] = max(_distance(values[:n], stored[:n]), _break(rollout, times[:n], envs[:n]))
    if len(begun):
        parameters = policy.action_head(found.actor, masks)[0]
        numbers[metrics.RESET_DEV] = _distance(parameters[n:], rollout.action_parameters[times, envs][n:])
    layers = [found.actor[0], *(mlp(found.critic)[0] for mlp in policy.critic_mlps)]
    numbers[metrics.DORMANT_UNITS] = max(_dormant(layer) for layer in layers)
    if rank_too:
        numbers[metrics.FEATURE_RANK] = float(_rank(found.actor[0]))
    return numbers


def _sample(rollout: RolloutBuffer) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """Steps whose memory is stored, in some envs."""
    T, B = rollout.shape
    slots = sorted(rollout.memory_slots) if rollout.memories else list(range(T))
    times = torch.tensor([slots[i] for i in _some(len(slots), _TIMES)])
    envs = torch.tensor(_some(B, _ENVS))
    device = rollout.starts.device
    return times.repeat_interleave(len(envs)).to(device), envs.repeat(len(times)).to(device)


def _memory(policy: ActorCritic, rollout: RolloutBuffer, times: Tensor, envs: Tensor, n_begun: int) -> Memory:
    """The stored memories of a sample, forgotten at episode starts, and empty ones for those that begin."""
    if not rollout.memories:
        return ()
    slots = torch.tensor([rollout.memory_slots[t] for t in times.tolist()], device=times.device)
    stored = tuple(part[slots, :, envs].transpose(0, 1) for part in rollout.memories)
    kept = forget(stored, rollout.starts[times, envs])
    empty = policy.initial_memory(n_begun)
    return tuple(torch.cat((a, b.to(a.device)), dim=1).contiguous() for a, b in zip(kept, empty, strict=True))


def _break(rollout: RolloutBuffer, times: Tensor, envs: Tensor) -> float:
    """How far the values of successors are from those of the next step, where the episode goes on."""
    inside = times < rollout.shape[0] - 1
    times, envs = times[inside], envs[inside]
    goes_on = ~rollout.ended[times, envs]
    times, envs = times[goes_on], envs[goes_on]
    if len(times) == 0:
        return 0.0
    return _distance(rollout.raw_next_values[times, envs], rollout.raw_values[times + 1, envs])


def _distance(found: Tensor, stored: Tensor) -> float:
    return float(((found - stored).abs() / (1.0 + stored.abs())).max())


def _dormant(layer: Tensor) -> float:  # (n, H) -> share
    activity = layer.abs().mean(0)
    return float((activity <= _DORMANT * activity.mean()).float().mean())


def _rank(latent: Tensor) -> int:  # (n, H)
    """The directions that hold 99 % of the singular values' sum (Kumar et al. 2021, arXiv:2010.14498, eq. 1)."""
    values = torch.linalg.svdvals(latent)
    shares = values.cumsum(0) / values.sum().clamp(min=1e-30)
    return int((shares < _ENERGY).sum()) + 1


def _seen(policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
    """Observations: features that stand still or are far too large, steps that repeat."""
    T, B = rollout.shape
    times, envs = _some(T, 8 * _TIMES), _some(B, _ENVS)
    sample = map_observation(lambda x: x[times][:, envs], rollout.observations)
    parts = list(sample.values()) if isinstance(sample, dict) else [sample]
    features = torch.cat([_rows(part).to(torch.float32) for part in parts], -1).flatten(0, 1)  # (n, F)
    still = (features == features[0]).all(0)
    columns = features.unflatten(0, (len(times), len(envs)))  # (t, b, F)
    after = [t for t in times if t > 0]
    before = [t - 1 for t in after]
    numbers = {metrics.OBS_CONSTANT: float(still.float().mean()), metrics.OBS_LARGEST: _largest(policy, sample)}
    if len(envs) > 1:
        numbers[metrics.ENVS_ALIKE] = float((columns[:, 1:] == columns[:, :1]).all(-1).all(0).float().mean())
    cut = rollout.ended[:-1] & ~rollout.terminated[:-1]
    if bool(cut.any()):
        same = (rollout.raw_next_values[:-1][cut] == rollout.raw_values[1:][cut]).flatten(1).all(-1)
        numbers[metrics.BOOTSTRAP_FROM_RESET] = float(same.float().mean())
    goes_on = ~rollout.starts[after][:, envs]
    if bool(goes_on.any()):
        alike = torch.ones_like(goes_on)
        whole = rollout.observations
        for part in whole.values() if isinstance(whole, dict) else [whole]:
            alike &= (_rows(part[after][:, envs]) == _rows(part[before][:, envs])).all(-1)
        numbers[metrics.OBS_REPEATED] = float(alike[goes_on].float().mean())
    return numbers


def _rows(part: Tensor) -> Tensor:  # (t, b, ...) -> (t, b, F); a discrete observation is one feature
    return part.reshape(*part.shape[:2], -1)


def _largest(policy: ActorCritic, sample: Observation) -> float:
    """The largest RMS of a feature, after the normaliser inside the policy; images are scaled by their range."""
    flat = map_observation(lambda x: x.flatten(0, 1), sample)
    if policy.observation_normaliser is not None:
        flat = policy.observation_normaliser(flat)
    parts = [part for part in (flat.values() if isinstance(flat, dict) else [flat]) if part.is_floating_point()]
    if not parts:
        return 1.0
    return max(float(part.reshape(len(part), -1).square().mean(0).max().sqrt()) for part in parts)


def _done(policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
    """Actions: one that is always taken, or bounds that are always met."""
    actions, head = rollout.actions.flatten(0, 1), policy.action_head
    if head.choices:
        some = actions[_some(len(actions), _ACTIONS)].long()
        one = some.shape[1] == 1
        counts = torch.bincount(some[:, 0]) if one else torch.unique(some, dim=0, return_counts=True)[1]
        return {metrics.TOP_ACTION_SHARE: float(counts.max()) / len(some)}
    if isinstance(head, GaussianHead) and not policy.squash_output:
        moved = (head.to_env(actions).reshape(actions.shape) != actions).float().mean()
        numbers = {metrics.ACTION_AT_BOUND: float(moved)}
        width = head.high - head.low  # (A,)
        if bool(torch.isfinite(width).all()):
            numbers[metrics.ACTION_SPREAD] = float((actions.std(0, correction=0) / width).min())
        return numbers
    return {}


def _drawn(policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
    """Are the actions draws from the policy? Of draws the mean of −ln π is the entropy, and the likeliest action comes
    as often as it is likely, up to a standard error."""
    head = policy.action_head
    if isinstance(head, StateDependentHead):  # it holds its noise for several steps
        return {}
    deployed = None if rollout.risk is None else rollout.risk.deployed
    parts = [rollout.action_parameters, rollout.actions, rollout.log_probs]
    if deployed is not None:  # these take the likeliest
        parts = [part[:, ~deployed] for part in parts]
    every = max(1, parts[2].numel() // _ACTIONS)
    parameters, actions, log_probs = (part.flatten(0, 1)[::every] for part in parts)
    surprise = -log_probs - head.joint_entropy(parameters)
    surprise = surprise[surprise.isfinite()]  # one that is not is named by rules of its own
    if len(surprise) < _FEW:
        return {metrics.ACTION_SURPRISE: 0.0}
    found = _standard_errors(surprise, float(surprise.std(correction=0)))
    if head.choices:  # where all choices are as likely, −ln π is the entropy whichever is taken
        best = head.mode(parameters)
        likely = head.log_prob(parameters, best).exp()
        spread = float((likely * (1.0 - likely)).mean().clamp(min=0.0).sqrt())
        found = max(found, _standard_errors((actions == best).all(-1).float() - likely, spread))
    return {metrics.ACTION_SURPRISE: found}


def _standard_errors(excess: Tensor, spread: float) -> float:  # (n,)
    """How far the mean is from 0. Where the policy is sure, what hardly ever comes is in no sample: its spread counts
    as `_SURE` at least."""
    return abs(float(excess.double().mean())) * math.sqrt(len(excess)) / max(spread, _SURE)


@torch.no_grad()
def target_looks(
    policy: ActorCritic, rollout: RolloutBuffer, targets: Targets, settings: Settings, *, number: int
) -> Numbers:
    """Do advantages and value targets follow from this rollout, by the settings' discount? Of some envs, others in the
    next update: `number` is this one's."""
    gamma, lam, critic = settings.gamma, settings.gae_lambda, policy.critic
    n_envs = rollout.shape[1]
    envs = [(env + number) % n_envs for env in _some(n_envs, _ENVS)]
    raw_values, raw_next = rollout.raw_values[:, envs], rollout.raw_next_values[:, envs]
    steps = _Steps(rollout.rewards[:, envs].double(), rollout.terminated[:, envs], rollout.ended[:, envs])
    values = critic.pessimistic(raw_values).double()
    raw = targets.raw_advantages[:, envs].double()
    residual = _residual(raw, steps, values, critic.pessimistic(raw_next).double(), gamma, lam)
    # Once a task is solved advantages are as small as the rounding of the values, which is that of the critics' unit.
    rounding = 1e-4 * (abs(critic.unit.mean) + critic.unit.std)
    size = float(raw.std(correction=0)) + 1e-5 * float(torch.maximum(steps.rewards.abs(), values.abs()).max()) + 1e-30
    size += rounding
    off = float(residual.abs().max()) / size
    floored = bool(targets.numbers[metrics.WARN_ADVANTAGES_STD_BELOW_FLOOR])
    if settings.normalisation != "none" and not floored and float(raw.std(correction=0)) > rounding:
        source = raw if targets.risk is None else targets.risk.advantages[:, envs].double()
        used = targets.advantages[:, envs].double()
        deployed = None if rollout.risk is None else rollout.risk.deployed
        if deployed is not None:
            source, used = source[:, ~deployed[envs]], used[:, ~deployed[envs]]
        # Whatever the mode, within an env the normalised advantage is a straight line of the raw one.
        off = max(off, 1.0 - _least_correlation(source, used))
    merged = critic.merge(raw_values).mean.double()
    gap = _accumulated(steps, merged, critic.merge(raw_next).mean.double(), gamma, lam)
    slope_dev = _slope_dev(gap, targets.samples[:, envs].mean(-1).double() - merged)
    return {metrics.ADVANTAGE_DEV: off, metrics.TARGET_SLOPE_DEV: slope_dev}


class _Steps(NamedTuple):
    """What GAE reads of some envs beside values."""

    rewards: Tensor  # (T, B) float64
    terminated: Tensor  # (T, B) bool
    ended: Tensor  # (T, B) bool


def _residual(
    advantages: Tensor, steps: _Steps, values: Tensor, following: Tensor, gamma: float, lam: float
) -> Tensor:  # (T, B) each
    """What is left of  A_t − δ_t − γλ (1 − ended_t) A_{t+1},  which is 0 for GAE; A_T is not in the rollout."""
    deltas = steps.rewards + gamma * following.masked_fill(steps.terminated, 0.0) - values
    later = torch.cat((advantages[1:], torch.zeros_like(advantages[:1])))
    return advantages - deltas - gamma * lam * later.masked_fill(steps.ended, 0.0)


def _least_correlation(a: Tensor, b: Tensor) -> float:  # (T, B) each
    """The least over envs; 1 where an env's advantages do not vary."""
    if len(a) < 2 or a.shape[1] == 0:  # a process may have none but deployed envs
        return 1.0
    a, b = a - a.mean(0), b - b.mean(0)
    spreads = a.square().sum(0).sqrt() * b.square().sum(0).sqrt()
    varied = a.square().mean(0).sqrt() > 1e-4 * a.abs().max()
    if not bool(varied.any()):
        return 1.0
    return float(((a * b).sum(0) / spreads.clamp(min=1e-30))[varied].min())


def _slope_dev(gap: Tensor, ours: Tensor) -> float:  # (T, B) each
    """|slope − 1| of mean targets against λ-returns, both less the predicted mean; 0 unless it is telling."""
    centred, other = (gap - gap.mean()).flatten(), (ours - ours.mean()).flatten()
    power = float(centred.square().sum())
    if power <= 0.0 or not math.isfinite(power):
        return 0.0
    slope = float((centred * other).sum()) / power
    noise = float((other - slope * centred).square().mean())
    off = abs(slope - 1.0)
    return off if off > _TELLING * math.sqrt(noise / power) else 0.0


def _accumulated(steps: _Steps, values: Tensor, following: Tensor, gamma: float, lam: float) -> Tensor:
    """λ-returns less values, (T, B), by NumPy: nothing of the engine's own arithmetic."""
    deltas = (steps.rewards + gamma * following.masked_fill(steps.terminated, 0.0) - values).cpu().numpy()
    carry = gamma * lam * (~steps.ended).double().cpu().numpy()
    found, running = np.empty_like(deltas), np.zeros(deltas.shape[1])
    for t in range(len(deltas) - 1, -1, -1):
        running = deltas[t] + carry[t] * running
        found[t] = running
    return torch.as_tensor(found, device=values.device)


class Weights:
    """The network before an update, to see what the update changed."""

    def __init__(self, policy: ActorCritic) -> None:
        self._groups = policy.parameter_groups()
        self._before = {name: [p.detach().clone() for p in own] for name, own in self._groups.items()}

    @torch.no_grad()
    def changes(self) -> Numbers:
        """RMS of what changed of each part over the RMS of its weights, which counts as `_SMALL` at least: heads start
        near 0. Exactly 0 is a part, or a parameter, that no gradient has reached."""
        numbers, still = Numbers(), 0
        for name, own in self._groups.items():
            before = self._before[name]
            moved = _norms(list(torch._foreach_sub([p.detach() for p in own], before)))
            still += sum(size == 0.0 and p.requires_grad for size, p in zip(moved.tolist(), own, strict=True))
            usual = max(_whole(_norms(before)), _SMALL * math.sqrt(sum(p.numel() for p in own)))
            numbers[metrics.UPDATE_RATIO.of(module=name)] = _whole(moved) / usual
        return numbers | {metrics.PARAMETERS_UNCHANGED: float(still)}


def _norms(tensors: list[Tensor]) -> Tensor:  # (n,)
    return torch.stack(torch._foreach_norm(tensors))


def _whole(norms: Tensor) -> float:
    return float(torch.linalg.vector_norm(norms))


class Witness:
    """Writes down what the envs gave in some steps of a rollout, to see whether that is what is learned from."""

    def __init__(self, n_steps: int) -> None:
        self._times, self._now = set(_some(n_steps, _TIMES)), 0
        self._seen: list[tuple[int, np.ndarray, np.ndarray]] = []  # step, rewards (B,), envs whose episode ended
        self._behind = 0.0  # distance of the values behind the last step
        self.cut = 0  # episodes that ended by a time limit, by the envs' word

    def step(self, rewards: np.ndarray, finished: np.ndarray) -> None:
        if self._now in self._times:
            self._seen.append((self._now, np.array(rewards, np.float64), finished))
        self._now += 1

    @torch.no_grad()
    def follow(self, policy: ActorCritic, state: RolloutState, rollout: RolloutBuffer) -> None:
        """Values behind the last step, again from where the envs are now; before anything is learned."""
        envs = [env for env in _some(rollout.shape[1], _ENVS) if not state.starts[env]]
        if not envs:
            return
        device = policy.device
        seen = map_observation(lambda x: x[envs], as_tensors(state.observation, device))
        latent = policy.critic_latent(seen, tuple(part[:, envs] for part in state.memory))
        self._behind = _distance(policy.values(latent), rollout.raw_next_values[-1, envs])

    def compare(self, rollout: RolloutBuffer) -> Numbers:
        """Rewards and ends as they are stored; starts must be the ends of the steps before."""
        off = float((rollout.starts[1:] != rollout.ended[:-1]).any())
        for t, rewards, finished in self._seen:
            stored, ended = rollout.rewards[t].cpu().numpy(), rollout.ended[t].cpu().numpy()
            off = max(off, float((np.abs(stored - rewards) / (1.0 + np.abs(rewards))).max()))
            off = max(off, float(not np.array_equal(np.flatnonzero(ended), finished)))
        known = int((rollout.ended & ~rollout.terminated).sum())
        cut = float(max(0, self.cut - known))
        return {metrics.RECORD_DEV: off, metrics.EPISODES_CUT_UNSEEN: cut, metrics.VALUE_DEV: self._behind}


def network_numbers(policy: ActorCritic, wanted: list[float]) -> Numbers:
    """What the live optimiser says of itself, beside the learning rates that the settings want."""
    optimizer = policy.optimizer
    off = max(
        abs(group["lr"] - rate) / rate if rate > 0.0 else abs(group["lr"])
        for group, rate in zip(optimizer.param_groups, wanted, strict=True)
    )
    numbers = {metrics.LEARNING_RATE_DEV: float(off)}
    counts = [float(state["step"]) for state in optimizer.state.values() if "step" in state]
    if counts:
        numbers[metrics.OPTIMIZER_STEPS] = max(counts)
    return numbers
