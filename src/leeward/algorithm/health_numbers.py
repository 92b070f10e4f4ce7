"""What health rules look at beyond what an update reports anyway: small samples, computed again by other means.

All of it together costs a few percent of a short round at most; nothing here changes what is learned.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from leeward.algorithm.action_looks import density_look, share_outside
from leeward.algorithm.targets import Targets
from leeward.config.settings import Settings
from leeward.maths.nested import Memory, Observation, forget, map_observation, parts_of
from leeward.networks.action_distributions import GaussianHead, StateDependentHead
from leeward.networks.actor_critic import ActorCritic
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import as_tensors
from leeward.rollout.rollout_state import RawObservation, RolloutState
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = [
    "Weights",
    "Witness",
    "computed_again",
    "memory_reach",
    "network_has_its_turn",
    "network_numbers",
    "rollout_looks",
    "stride",
    "target_looks",
]

_TIMES, _ENVS, _STARTS = 8, 12, 32  # of a rollout that are looked at
_TARGET_ENVS = 4  # whose advantages and targets are
_ACTIONS = 1024  # that are counted
_FEW, _SURE = 32, 0.1  # draws below which nothing is said of them; a spread
_DORMANT = 0.025  # of the mean activity of a layer's units (Sokar et al. 2023, arXiv:2302.12902, τ)
_ENERGY = 0.99
_TELLING = 10.0  # standard errors from which on a slope is told apart from 1; neighbouring steps share their noise
_SMALL = 0.1  # RMS of weights below which a change is not relative to them


@lru_cache(maxsize=64)  # the same few in every update
def _some(n: int, most: int) -> Tensor:  # (m,) int64
    """Up to `most` places among n, evenly spaced, the first and the last among them."""
    return torch.from_numpy(np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64)))


def network_has_its_turn(number: int) -> bool:
    """Whether the network's word is computed again in this update; in the others a step of the optimiser is."""
    return number % 2 == 1


def stride(n: int, most: int) -> int:
    """Every how many-th of n makes up to `most`; such a part of a table costs nothing."""
    return -(-n // most)


@torch.no_grad()
def rollout_looks(policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
    """What was seen and done in a rollout, on a sample of it."""
    return _seen(policy, rollout) | _done(policy, rollout)


@torch.no_grad()
def computed_again(policy: ActorCritic, rollout: RolloutBuffer, *, rank_too: bool) -> Numbers:
    """Whether the network still says of a sample what it said in the rollout, how many of its units do, and whether
    actions are drawn from what it says."""
    numbers = _drawn(policy, rollout) | density_look(policy.action_head, rollout)
    times, envs = _sample(rollout)
    n = len(times)
    begun = torch.nonzero(rollout.starts)[: _STARTS if rollout.memories else 0]  # (m, 2)
    times, envs = torch.cat((times, begun[:, 0])), torch.cat((envs, begun[:, 1]))
    seen = map_observation(lambda x: x[times, envs].unsqueeze(0), rollout.observations)
    masks = None if rollout.action_masks is None else rollout.action_masks[times, envs].unsqueeze(0)
    found = policy.latents(seen, _memory(policy, rollout, times[:n], envs[:n], len(begun)))
    layers = [mlp(found.critic) for mlp in policy.critic_mlps]
    values, stored = policy.values_of(layers)[0, :n], rollout.raw_values[times[:n], envs[:n]]
    numbers[metrics.VALUE_DEV] = max(_distance(values, stored), _break(rollout, times[:n], envs[:n]))
    if values.shape[1] > 1:
        numbers[metrics.CRITICS_APART] = float((values[:, 1:] - values[:, :1]).abs().max())
    if len(begun):
        parameters = policy.action_head(found.actor, masks)[0]
        numbers[metrics.RESET_DEV] = _distance(parameters[n:], rollout.action_parameters[times, envs][n:])
    numbers[metrics.DORMANT_UNITS] = max(_dormant(layer[0].cpu().numpy()) for layer in (found.actor, *layers))
    if rank_too:
        numbers[metrics.FEATURE_RANK] = float(_rank(found.actor[0]))
    return numbers


def memory_reach(policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
    """Whether what is learned about a step reaches back to the memory that an earlier one left."""
    if not rollout.memories or rollout.shape[0] < 2:
        return {}
    seen = map_observation(lambda x: x[:2, :1], rollout.observations)
    before = tuple(part[rollout.memory_slots[0], :, :1].clone().requires_grad_() for part in rollout.memories)
    found = policy.latents(seen, before, through_shared_memory=True)
    remember = (found.actor, found.critic) if policy.critics_remember else (found.actor,)
    sizes = []
    for latent in remember:
        slopes: Sequence[Tensor | None] = ()  # of what somebody has cut off altogether
        if latent.requires_grad:
            slopes = torch.autograd.grad(latent[-1].sum(), before, allow_unused=True, retain_graph=True)
        sizes.append(sum(float(slope.abs().sum()) for slope in slopes if slope is not None))
    return {metrics.MEMORY_REACH: min(sizes)}


def _sample(rollout: RolloutBuffer) -> tuple[Tensor, Tensor]:  # (n,), (n,)
    """Steps whose memory is stored, in some envs."""
    T, B = rollout.shape
    slots = sorted(rollout.memory_slots) if rollout.memories else range(T)
    times = torch.tensor([slots[i] for i in _some(len(slots), _TIMES).tolist()])
    envs = _some(B, _ENVS)
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
    a, b = found.cpu().numpy(), stored.cpu().numpy()
    return float((np.abs(a - b) / (1.0 + np.abs(b))).max())


def _dormant(layer: np.ndarray) -> float:  # (n, H) -> share
    activity = np.abs(layer).mean(0)
    return float((activity <= _DORMANT * activity.mean()).mean())


def _rank(latent: Tensor) -> int:  # (n, H)
    """The directions that hold 99 % of the singular values' sum (Kumar et al. 2021, arXiv:2010.14498, eq. 1)."""
    values = torch.linalg.svdvals(latent)
    shares = values.cumsum(0) / values.sum().clamp(min=1e-30)
    return int((shares < _ENERGY).sum()) + 1


def _seen(policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
    """Observations: features that stand still or are far too large, steps that repeat."""
    T, B = rollout.shape
    k, n = stride(T, 8 * _TIMES), stride(B, _ENVS)
    sample = map_observation(lambda x: x[::k, ::n], rollout.observations)
    numbers = _sizes(policy, sample)
    features = np.concatenate([_rows(part) for part in parts_of(sample)], -1)  # (t, b, F)
    # Most features differ between the first step and the last, and most envs in the last: the rest is looked at whole.
    still = features[0, 0] == features[-1, -1]
    still[still] = (features[..., still] == features[0, 0, still]).all((0, 1))
    numbers[metrics.OBS_CONSTANT] = float(still.mean())
    if B > 1:
        alike = (features[-1, 1:] == features[-1, 0]).all(-1)
        alike[alike] = (features[:, 1:][:, alike] == features[:, :1]).all((0, 2))
        numbers[metrics.ENVS_ALIKE] = float(alike.mean())
    cut = rollout.ended[:-1] & ~rollout.terminated[:-1]
    if bool(cut.any()):
        same = (rollout.raw_next_values[:-1][cut] == rollout.raw_values[1:][cut]).flatten(1).all(-1)
        numbers[metrics.BOOTSTRAP_FROM_RESET] = float(same.float().mean())
    goes_on = ~rollout.starts[k::k, ::n].cpu().numpy()
    if goes_on.any():
        earlier = map_observation(lambda x: x[k - 1 : -1 : k, ::n], rollout.observations)
        before = np.concatenate([_rows(part) for part in parts_of(earlier)], -1)
        numbers[metrics.OBS_REPEATED] = float((features[1:] == before).all(-1)[goes_on].mean())
    return numbers


def _rows(part: Tensor) -> np.ndarray:  # (t, b, ...) -> (t, b, F); a discrete observation is one feature
    return part.reshape(*part.shape[:2], -1).cpu().numpy()


def _sizes(policy: ActorCritic, sample: Observation) -> Numbers:
    """How large features are after the normaliser inside the policy; images are scaled by their range."""
    flat = map_observation(lambda x: x.flatten(0, 1), sample)
    normalised = policy.observation_normaliser is not None
    if policy.observation_normaliser is not None:
        flat = policy.observation_normaliser(flat)
    parts = [part.reshape(len(part), -1) for part in parts_of(flat) if part.is_floating_point()]
    largest = max((float(part.square().mean(0).max().sqrt()) for part in parts), default=1.0)
    numbers = {metrics.OBS_LARGEST: largest}
    if normalised and parts:
        spreads = torch.cat([part.std(0, correction=0) for part in parts])
        varying = spreads[spreads > 0.0]
        numbers[metrics.OBS_NORMALISED_SPREAD] = float(varying.median()) if len(varying) else 1.0
    return numbers


def _done(policy: ActorCritic, rollout: RolloutBuffer) -> Numbers:
    """Actions: one that is always taken, or bounds that are always met."""
    actions, head = rollout.actions.flatten(0, 1), policy.action_head
    if head.choices:
        taken = actions[:: stride(len(actions), _ACTIONS)].long()
        one = taken.shape[1] == 1
        counts = torch.bincount(taken[:, 0]) if one else torch.unique(taken, dim=0, return_counts=True)[1]
        return {metrics.TOP_ACTION_SHARE: float(counts.max()) / len(taken)}
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
    next update: `number` is this one's. By NumPy: nothing of the engine's own arithmetic."""
    critic, every = policy.critic, stride(rollout.shape[1], _TARGET_ENVS)
    envs = slice(number % every, None, every)
    means, following = (critic.means(raw[:, envs]) for raw in (rollout.raw_values, rollout.raw_next_values))
    rewards, terminated, ended = rollout.rewards[:, envs], rollout.terminated[:, envs], rollout.ended[:, envs]
    steps = _Steps(_numpy(rewards), terminated.cpu().numpy(), ended.cpu().numpy(), settings.gamma, settings.gae_lambda)
    values, raw = _numpy(means.amin(-1)), _numpy(targets.raw_advantages[:, envs])
    deltas = steps.deltas(values, _numpy(following.amin(-1)))
    spread = float(raw.std())
    # Once a task is solved advantages are as small as the rounding of the values, which is that of the critics' unit.
    rounding = 1e-4 * (abs(critic.unit.mean) + critic.unit.std)
    size = spread + 1e-5 * max(float(np.abs(steps.rewards).max()), float(np.abs(values).max())) + rounding + 1e-30
    off = float(np.abs(steps.residual(raw, deltas)).max()) / size
    floored = bool(targets.numbers[metrics.WARN_ADVANTAGES_STD_BELOW_FLOOR])
    if settings.normalisation != "none" and not floored and spread > rounding:
        source = raw if targets.risk is None else _numpy(targets.risk.advantages[:, envs])
        used = _numpy(targets.advantages[:, envs])
        if rollout.risk is not None and rollout.risk.deployed is not None:
            learns = ~rollout.risk.deployed[envs].cpu().numpy()
            source, used = source[:, learns], used[:, learns]
        # Whatever the mode, within an env the normalised advantage is a straight line of the raw one.
        off = max(off, 1.0 - _least_correlation(source, used))
    merged = _numpy(means.mean(-1))
    gap = steps.accumulated(steps.deltas(merged, _numpy(following.mean(-1))))
    slope_dev = _slope_dev(gap, _numpy(targets.samples[:, envs].mean(-1)) - merged)
    return {metrics.ADVANTAGE_DEV: off, metrics.TARGET_SLOPE_DEV: slope_dev}


def _numpy(table: Tensor) -> np.ndarray:
    return table.cpu().numpy().astype(np.float64)


class _Steps(NamedTuple):
    """What GAE reads of some envs beside values."""

    rewards: np.ndarray  # (T, B)
    terminated: np.ndarray  # (T, B) bool
    ended: np.ndarray  # (T, B) bool
    gamma: float
    lam: float

    def deltas(self, values: np.ndarray, following: np.ndarray) -> np.ndarray:  # (T, B) each
        found: np.ndarray = self.rewards + self.gamma * np.where(self.terminated, 0.0, following) - values
        return found

    def residual(self, advantages: np.ndarray, deltas: np.ndarray) -> np.ndarray:  # (T, B) each
        """What is left of  A_t − δ_t − γλ (1 − ended_t) A_{t+1},  which is 0 for GAE; A_T is not in the rollout."""
        left: np.ndarray = advantages - deltas
        left[:-1] -= self.gamma * self.lam * np.where(self.ended[:-1], 0.0, advantages[1:])
        return left

    def accumulated(self, deltas: np.ndarray) -> np.ndarray:  # (T, B) each
        """λ-returns less values: sums over 1, 2, 4, … steps, so that a long rollout takes a few operations."""
        found, carry, reach = deltas.copy(), self.gamma * self.lam * ~self.ended, 1
        while reach < len(found):
            found[:-reach] += carry[:-reach] * found[reach:]
            carry[:-reach] *= carry[reach:]
            carry[-reach:] = 0.0
            reach *= 2
        return found


def _least_correlation(a: np.ndarray, b: np.ndarray) -> float:  # (T, B) each
    """The least over envs; 1 where an env's advantages do not vary."""
    if len(a) < 2 or a.shape[1] == 0:  # a process may have none but deployed envs
        return 1.0
    a, b = a - a.mean(0), b - b.mean(0)
    power = (a * a).sum(0)
    varied = np.sqrt(power / len(a)) > 1e-4 * np.abs(a).max()
    if not varied.any():
        return 1.0
    spreads = np.sqrt(power * (b * b).sum(0)).clip(min=1e-30)
    return float(((a * b).sum(0) / spreads)[varied].min())


def _slope_dev(gap: np.ndarray, ours: np.ndarray) -> float:  # (T, B) each
    """|slope − 1| of mean targets against λ-returns, both less the predicted mean; 0 unless it is telling."""
    centred, other = gap.ravel() - gap.mean(), ours.ravel() - ours.mean()
    power = float(centred @ centred)
    if power <= 0.0 or not math.isfinite(power):
        return 0.0
    slope = float(centred @ other) / power
    noise = float(np.square(other - slope * centred).mean())
    off = abs(slope - 1.0)
    return off if off > _TELLING * math.sqrt(noise / power) else 0.0


class Weights:
    """The network before and after an update: what the update changed, and what was changed since the one before."""

    def __init__(self, policy: ActorCritic) -> None:
        self._groups = policy.parameter_groups()
        self._own = [parameter for own in self._groups.values() for parameter in own]
        self._begins = np.cumsum([0, *(parameter.numel() for parameter in self._own[:-1])])
        self._before = np.empty(0)
        self._left: np.ndarray | None = None  # by the last update

    def forget(self) -> None:
        """They come from elsewhere, or `learn` begins: the next update compares them with nothing."""
        self._left = None

    def begin(self) -> Numbers:
        """Before an update: parameters that are not as the last one left them."""
        self._before = self._flat()
        moved = 0.0
        if self._left is not None:
            moved = float(np.logical_or.reduceat(self._before != self._left, self._begins).sum())
        return {metrics.WEIGHTS_MOVED: moved}

    def end(self) -> Numbers:
        """RMS of what changed of each part over the RMS of its weights, which counts as `_SMALL` at least: heads start
        near 0. Exactly 0 is a part, or a parameter, that no gradient has reached."""
        self._left = self._flat()
        moved = iter(np.add.reduceat(np.square(self._left - self._before), self._begins).tolist())
        sizes = iter(np.add.reduceat(np.square(self._before), self._begins).tolist())
        numbers, still = Numbers(), 0
        for name, own in self._groups.items():
            steps = list(islice(moved, len(own)))
            still += sum(step == 0.0 and p.requires_grad for step, p in zip(steps, own, strict=True))
            usual = max(sum(islice(sizes, len(own))), _SMALL**2 * sum(p.numel() for p in own))
            numbers[metrics.UPDATE_RATIO.of(module=name)] = math.sqrt(sum(steps) / usual)
        return numbers | {metrics.PARAMETERS_UNCHANGED: float(still)}

    @torch.no_grad()
    def _flat(self) -> np.ndarray:  # float64
        return _numpy(torch.cat([parameter.flatten() for parameter in self._own]))


class Witness:
    """Writes down what the envs gave in some steps of a rollout, to see whether that is what is learned from."""

    def __init__(self, n_steps: int, action_space: spaces.Space[Any]) -> None:
        self._times, self._now = set(_some(n_steps, _TIMES).tolist()), 0
        self._action_space = action_space
        # Step, actions (B, ...) and rewards (B,), envs whose episode ended.
        self._seen: list[tuple[int, np.ndarray, np.ndarray, np.ndarray]] = []
        self._behind: float | None = None  # distance of the values behind the last step, if that was looked at
        self.cut = 0  # episodes that ended by a time limit, by the envs' word
        self._ends, self._begun_there = 0, 0  # episodes that ended, and those of which the next began where they did

    def step(self, actions: np.ndarray, rewards: np.ndarray, finished: np.ndarray) -> None:
        """Actions as the envs were given them, (B, ...)."""
        if self._now in self._times:
            self._seen.append((self._now, np.array(actions), np.array(rewards, np.float64), finished))
        self._now += 1

    def end(self, env: int, final: Any, now: RawObservation) -> None:
        """An env's episode ended with `final`; the envs show `now`, (B, ...)."""
        self._ends += 1
        pairs = [(final, now)] if isinstance(now, np.ndarray) else [(final[key], now[key]) for key in now]
        self._begun_there += all(np.array_equal(last, shown[env]) for last, shown in pairs)

    @torch.no_grad()
    def follow(self, policy: ActorCritic, state: RolloutState, rollout: RolloutBuffer) -> None:
        """Values behind the last step, again from where the envs are now; before anything is learned."""
        envs = [env for env in _some(rollout.shape[1], _ENVS).tolist() if not state.starts[env]]
        if not envs:
            return
        device = policy.device
        seen = map_observation(lambda x: x[envs], as_tensors(state.observation, device))
        latent = policy.critic_latent(seen, tuple(part[:, envs] for part in state.memory))
        self._behind = _distance(policy.values(latent), rollout.raw_next_values[-1, envs])

    def compare(self, rollout: RolloutBuffer) -> Numbers:
        """Rewards and ends as they are stored; starts must be the ends of the steps before."""
        times = [t for t, *_ in self._seen]
        given = np.stack([rewards for _, _, rewards, _ in self._seen])
        stored = rollout.rewards[times].cpu().numpy()
        off = float((np.abs(stored - given) / (1.0 + np.abs(given))).max())
        ended = np.zeros(given.shape, bool)
        for row, (*_, finished) in zip(ended, self._seen, strict=True):
            row[finished] = True
        same = np.array_equal(ended, rollout.ended[times].cpu().numpy())
        if not same or not torch.equal(rollout.starts[1:], rollout.ended[:-1]):
            off = max(off, 1.0)
        known = int((rollout.ended & ~rollout.terminated).sum())
        cut = float(max(0, self.cut - known))
        numbers = {
            metrics.RECORD_DEV: off,
            metrics.EPISODES_CUT_UNSEEN: cut,
            metrics.ACTIONS_OUTSIDE: share_outside(
                self._action_space, np.stack([actions for _, actions, *_ in self._seen])
            ),
        }
        if self._ends:
            numbers[metrics.STARTS_AT_END] = self._begun_there / self._ends
        return numbers if self._behind is None else numbers | {metrics.VALUE_DEV: self._behind}


def network_numbers(policy: ActorCritic, wanted: list[float]) -> Numbers:
    """What the live optimiser says of itself, beside the learning rates that the settings want."""
    optimizer = policy.optimizer
    off = max(
        abs(group["lr"] - rate) / rate if rate > 0.0 else abs(group["lr"])
        for group, rate in zip(optimizer.param_groups, wanted, strict=True)
    )
    decay = max(float(group.get("weight_decay", 0.0)) for group in optimizer.param_groups)
    numbers = {metrics.LEARNING_RATE_DEV: float(off), metrics.WEIGHT_DECAY: decay}
    counts = [float(state["step"]) for state in optimizer.state.values() if "step" in state]
    if counts:
        numbers[metrics.OPTIMIZER_STEPS] = max(counts)
    return numbers
