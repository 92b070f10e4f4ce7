"""CVaR_α(X) ≥ limit: a cost in the policy's advantage, and a multiplier that follows the *measured* tail.

With CVaR_α(X) = max_ν { ν − E[(ν − X)⁺]/α } (Rockafellar & Uryasev 2000) the constraint is an ordinary expected cost
c = (ν − X)⁺/α, ν the measured α-quantile of X, or the limit where that is higher. A cost critic gives its advantage
A_c, and the policy learns from (A − Σ λᵢ A_cᵢ)/(1 + Σ λᵢ). The distributional critic is never pushed: it only predicts.
"""

import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leeward.algorithm.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from leeward.algorithm.return_scale import ReturnScale, follow_linear
from leeward.config.learning import Risk
from leeward.errors import ArgumentError
from leeward.maths import cvar, lagrangian, returns
from leeward.networks.risk_heads import RiskHeads
from leeward.networks.value_heads import Encoded, Unit, rescale_head
from leeward.rollout.buffer import RolloutBuffer
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["Constraint", "LimitVerdict", "PricedRollout", "RiskControl", "RiskTargets"]

_MIN_TAIL = 10  # samples beyond the α-quantile below which a tail is not measured but guessed
_JUDGED_TAIL = 200  # those a verdict is of, if there are as many of late: ten know a tail to a fifth of X's std
_LATE = 0.1  # of the rollouts: what lies further back was another policy's
_JUDGED_MOST = 50_000  # outcomes that are kept for a verdict beyond those that a tail is measured on: a megabyte

_CLIMBING = 5  # rises of the multiplier in a row that are no longer noise
# The multiplier's growth is relative to the widest gap of late, so that the number of rollouts it needs does not depend
# on the spread of X. A gap below this share of the unit, or of so many standard errors, is not worth hurrying for; what
# an untrained policy did is forgotten at this rate per rollout.
_NARROWEST, _NOISE, _MEMORY = 0.3, 3.0, 0.97


@dataclass(frozen=True)
class LimitVerdict:
    """What became of a limit, in one sentence."""

    kept: bool | None  # None: what was measured cannot tell
    sentence: str


@dataclass(frozen=True)
class PricedRollout:
    """A rollout's advantages with the costs of the constraints in them."""

    advantages: Tensor  # (T, B), return and costs together, in the unit of the rollout's rewards
    risk_part: Tensor  # (T, B), what the costs contribute to them
    costs: Tensor  # (T, B, K), λ-returns of the costs
    numbers: Numbers


@dataclass(frozen=True)
class RiskTargets:
    """What the risk heads learn from, in the units of their scales, one row per step (T·B)."""

    costs: Tensor  # (T·B, K)
    step: Encoded  # (T·B, 1)


class _RecentOutcomes:
    """Outcomes of the last rollouts. A tail is measured on as many rollouts as it takes to have ten outcomes in it, and
    no more; a verdict is of more of them, as far as they are kept."""

    def __init__(self, alpha: float) -> None:
        self._needed, self._judged = _MIN_TAIL / alpha, min(_JUDGED_TAIL / alpha, _JUDGED_MOST)
        self.rollouts: list[Tensor] = []  # each (n,), the oldest first

    def add(self, fresh: Tensor, late: int) -> bool:  # (n,)
        """Take in what a rollout brought; whether it brought anything. The last `late` rollouts are kept for a verdict,
        while they are not more than it takes."""
        if len(fresh):
            self.rollouts.append(fresh)
        kept = max(self._with(self._needed), min(late, self._with(self._judged)))
        self.rollouts = self.rollouts[len(self.rollouts) - kept :]
        return len(fresh) > 0

    def _with(self, samples: float) -> int:
        """How many of the last rollouts have so many samples; all, if there are fewer."""
        sizes = itertools.accumulate(len(part) for part in reversed(self.rollouts))
        return next((count for count, size in enumerate(sizes, start=1) if size >= samples), len(self.rollouts))

    @property
    def measured(self) -> list[Tensor]:  # each (n,)
        """Of the rollouts that a tail is measured on."""
        return self.rollouts[len(self.rollouts) - self._with(self._needed) :]

    @property
    def samples(self) -> Tensor | None:  # (n,); None before the first
        return torch.cat(self.measured) if self.rollouts else None

    @property
    def judged(self) -> Tensor | None:  # (n,); None before the first
        return torch.cat(self.rollouts) if self.rollouts else None

    def state(self) -> list[list[float]]:
        return [part.tolist() for part in self.rollouts]

    def load_state(self, state: list[list[float]]) -> None:
        self.rollouts = [torch.tensor(part, dtype=torch.float64) for part in state]


class Constraint:
    """One risk variable, its measured tail, and the multiplier."""

    def __init__(self, config: Risk, n_envs: int) -> None:
        self.config = config
        self.multiplier, self.integral, self.previous_gap = 0.0, 0.0, 0.0
        self.quantile: float | None = None  # ν, smoothed over rollouts
        self.tail: float | None = None  # CVaR, smoothed over rollouts: what the multiplier follows
        self.widest = 0.0  # the largest distance of that tail from the limit, of late
        self.best = -math.inf  # the mildest tail measured so far
        self.updates = 0
        self.rises = 0  # of the multiplier, in a row
        self.running = torch.zeros(n_envs, dtype=torch.float64)  # return of each env's episode up to now
        self.bound = _RecentOutcomes(config.alpha)  # outcomes of the policy whose tail is limited
        # Outcomes of the policy that learns. ν is *their* quantile: see docs/ideas/risk.md.
        self.learning = _RecentOutcomes(config.alpha) if config.binds == "deployed" else self.bound
        self.warned: set[str] = set()

    @property
    def weight(self) -> float:
        """The weight of the cost in the advantage."""
        return self.multiplier + self.config.cvar_weight

    def observe(
        self, step_returns: Tensor, ended: Tensor, deployed: Tensor
    ) -> tuple[Tensor, Numbers]:  # (T, B), (T, B), (B,) bool -> cost (T, B)
        """Measure the tail, move the multiplier, and price every step. Envs in `deployed` act without noise."""
        values, known = self._variable(step_returns, ended)
        late = math.ceil(_LATE * self.updates)
        judged = self.learning is self.bound
        fresh = self.learning.add(values[:, ~deployed][known[:, ~deployed]], late if judged else 0)
        if self.config.binds == "deployed":
            fresh = self.bound.add(values[:, deployed][known[:, deployed]], late)
        numbers = {metrics.RISK_MULTIPLIER: self.multiplier}
        if (samples := self.bound.samples) is not None:
            numbers = self._measure(samples, fresh=fresh)
        cost = torch.zeros_like(values)
        if (samples := self.learning.samples) is not None:
            measured = float(cvar.value_at_risk(samples, self.config.alpha))
            self.quantile = _blend(self.quantile, measured, self.config.smoothing)
            cost = ((self._pivot() - values).clamp(min=0.0) / self.config.alpha).masked_fill(~known, 0.0)
        self.updates += 1
        return cost, numbers

    def _pivot(self) -> float:
        """ν: the quantile, and at least the limit, since a policy that keeps the limit has its quantile above it.

        Lower, on a value at which more than α of the outcomes sit, none would cost anything and nothing be learned.
        """
        assert self.quantile is not None
        return self.quantile if self.config.limit is None else max(self.quantile, self.config.limit)

    def _variable(self, step_returns: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:  # (T, B) -> X, where it is
        if self.config.measure == "step_return":
            return step_returns, torch.ones_like(ended)
        totals, self.running = _run_on(self.running, step_returns, ended)
        return totals, ended  # the whole cost falls on the last step

    def _measure(self, samples: Tensor, *, fresh: bool) -> Numbers:  # (n,)
        """The tail of `samples`; a multiplier follows `fresh` outcomes only, and holds without."""
        config = self.config
        n_tail = config.alpha * len(samples)
        if n_tail < _MIN_TAIL and config.is_active:
            self._warn(
                "few samples",
                f"risk: the tail is measured on alpha · samples = {config.alpha:g} · {len(samples)} = {n_tail:.1f} "
                f"outcomes, fewer than {_MIN_TAIL}; rollouts are pooled until there are enough. More envs or steps "
                "per rollout measure it sooner",
            )
        measured = float(cvar.from_samples(samples, config.alpha))
        error = float(cvar.standard_error(samples, config.alpha))
        self.best = max(self.best, measured)
        if fresh or self.tail is None:
            self.tail = _blend(self.tail, measured, config.smoothing)
        numbers = {
            metrics.RISK_CVAR_MEASURED: measured,
            metrics.RISK_CVAR_STANDARD_ERROR: error,
            metrics.RISK_VAR_MEASURED: float(cvar.value_at_risk(samples, config.alpha)),
            metrics.RISK_TAIL_SAMPLES: n_tail,
        }
        if config.limit is not None:
            if fresh and self.updates >= config.warmup:
                # Averaging over rollouts takes some of the error off, unless their samples are the same.
                apart = len(self.bound.measured) == 1
                left = math.sqrt(config.smoothing / (2.0 - config.smoothing)) if apart else 1.0
                unit = max(abs(config.limit), float(samples.std(correction=0))) or 1.0
                self._control(config.margin * error * left, unit, error)
            numbers |= {metrics.RISK_LIMIT: config.limit, metrics.RISK_GAP: config.limit - measured}
            if self.multiplier >= config.ceiling and self.tail < config.limit:
                self._warn(
                    "ceiling",
                    f"risk: the multiplier is at its ceiling of {config.ceiling:g} and the limit {config.limit:g} is "
                    f"not met; the mildest tail measured so far is {self.best:.4g}. Perhaps no policy can meet it: "
                    "training goes on with the return nearly ignored",
                )
        return numbers | {metrics.RISK_MULTIPLIER: self.multiplier}

    def _control(self, distance: float, unit: float, error: float) -> None:
        """Follow the gap, `distance` inside the limit.

        Relative to `unit` the gap itself serves every unit of X. What accumulates is relative to the widest gap, and
        grows with 1 + λ, since the policy sees λ/(1 + λ).
        """
        config, before = self.config, self.multiplier
        assert self.tail is not None and config.limit is not None
        value, limit = (self.tail - distance) / unit, config.limit / unit
        self.widest = max(_MEMORY * self.widest, abs(config.limit - self.tail + distance))
        pace = unit / max(self.widest, _NARROWEST * unit, _NOISE * error)
        if config.controller == "dual":
            rate = config.learning_rate * pace * (1.0 + self.multiplier)
            self.multiplier = lagrangian.dual_ascent(
                self.multiplier, value, limit=limit, lr=rate, ceiling=config.ceiling
            )
        else:
            grown = 1.0 + self.integral
            self.multiplier, self.integral, self.previous_gap = lagrangian.pid_step(
                self.integral,
                self.previous_gap,
                value,
                limit=limit,
                kp=config.proportional * grown,
                ki=config.learning_rate * pace * grown,
                kd=config.derivative * grown,
                ceiling=config.ceiling,
            )
        self.rises = self.rises + 1 if self.multiplier > before else 0

    def verdict(self) -> LimitVerdict | None:
        """Whether the last rollouts, a tenth of all or as many as it takes to measure a tail, kept the limit, and if
        not, what may help; None before anything was measured, or without a limit. Short of the limit by no more than
        one standard error is not known."""
        config, samples = self.config, self.bound.judged
        if config.limit is None or samples is None:
            return None
        measured = float(cvar.from_samples(samples, config.alpha))
        error = float(cvar.standard_error(samples, config.alpha))
        of_what = "of a step" if config.measure == "step_return" else "of an episode"
        who = "the policy as it explores" if config.binds == "rollout" else "the deployed policy"
        tail = f"the worst {config.alpha:.3g} {of_what} average {measured:.4g} ± {error:.2g} for {who}"
        limit, short = f"risk: the limit {config.limit:.4g}", config.limit - measured
        if short <= 0.0:
            return LimitVerdict(True, f"{limit} is kept: {tail}")
        if short <= error:
            advice = "Train longer, or with more envs or steps per rollout"
            return LimitVerdict(None, f"{limit} may be broken by {short:.3g}: {tail}. {advice}")
        if self.multiplier >= config.ceiling:
            advice = (
                f"The multiplier is at its ceiling of {config.ceiling:g}, so perhaps no policy can keep it; "
                f"the mildest tail measured was {self.best:.4g}"
            )
        elif self.rises >= _CLIMBING or self.updates <= config.warmup:
            advice = f"The multiplier, {self.multiplier:.3g}, still climbs: train longer"
        else:
            advice = f"The multiplier has settled at {self.multiplier:.3g}: train longer, or raise risk.learning_rate"
        return LimitVerdict(False, f"{limit} is broken by {short:.3g}: {tail}. {advice}")

    def _warn(self, key: str, message: str) -> None:
        if key not in self.warned:
            self.warned.add(key)
            warnings.warn(message, stacklevel=2)

    def state_dict(self) -> dict[str, Any]:
        return {
            "multiplier": self.multiplier,
            "integral": self.integral,
            "previous_gap": self.previous_gap,
            "quantile": self.quantile,
            "tail": self.tail,
            "widest": self.widest,
            "best": None if self.best == -math.inf else self.best,
            "updates": self.updates,
            "rises": self.rises,
            "running": self.running.tolist(),
            "bound": self.bound.state(),
            "learning": None if self.learning is self.bound else self.learning.state(),
            "warned": sorted(self.warned),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("multiplier", "integral", "previous_gap", "quantile", "tail", "updates"):
            setattr(self, name, state[name])
        self.rises, self.widest = state.get("rises", 0), state.get("widest", 0.0)  # absent in older files
        self.best = -math.inf if state["best"] is None else state["best"]
        self.running = torch.tensor(state["running"], dtype=torch.float64)
        self.warned = set(state["warned"])
        alone = self.learning is self.bound
        if alone != (state["learning"] is None):  # a limit on another policy than before: its tail is not known yet
            self.quantile, self.tail = None, None
            return
        self.bound.load_state(state["bound"])
        if not alone:
            self.learning.load_state(state["learning"])


class RiskControl:
    """All constraints of a run, and the units of the risk heads."""

    def __init__(self, heads: RiskHeads, configs: Sequence[Risk], n_envs: int) -> None:
        self.heads = heads
        self.constraints = [Constraint(config, n_envs) for config in configs]
        self.cost_scales = [ReturnScale() for _ in configs]
        self.step_scale = ReturnScale()

    def begin(self, n_envs: int) -> None:
        """The envs were reset: what their episodes had earned is void."""
        for constraint in self.constraints:
            constraint.running = torch.zeros(n_envs, dtype=torch.float64)

    def carry(self, rollout: RolloutBuffer, steps: int, group: ProcessGroup = SINGLE_PROCESS) -> None:
        """A rollout was stopped: what its `steps` earned still belongs to the episodes they are in."""
        assert rollout.risk is not None
        gains, ends = rollout.risk.step_returns[:steps].cpu(), rollout.ended[:steps].cpu()
        for constraint in self.constraints:
            own = group.own(constraint.running[None])[0]
            constraint.running = group.columns(_run_on(own, gains, ends)[1][None])[0]

    def verdicts(self) -> list[LimitVerdict]:
        """Of each limit of which something was measured."""
        return [verdict for constraint in self.constraints if (verdict := constraint.verdict()) is not None]

    def configure(self, configs: Sequence[Risk]) -> None:
        """Take over other settings of the same constraints; what was measured stays."""
        for constraint, config in zip(self.constraints, configs, strict=True):
            constraint.config = config

    @staticmethod
    def deployed(n_envs: int, configs: Sequence[Risk]) -> Tensor | None:  # (B,) bool
        """The envs that act without noise, when a limit binds the policy as it will be used: the last ones."""
        shares = [config.deployed_share for config in configs if config.binds == "deployed"]
        if not shares:
            return None
        if n_envs < 2:
            raise ArgumentError(
                f"risk.binds 'deployed' needs at least 2 envs, one to measure on and one to learn from, got {n_envs}; "
                "pass more envs, or binds='rollout'"
            )
        count = min(max(1, round(max(shares) * n_envs)), n_envs - 1)
        return torch.arange(n_envs) >= n_envs - count

    def price(
        self,
        buffer: RolloutBuffer,
        advantages: Tensor,  # (T, B), in the unit of the rollout's rewards
        *,
        gamma: float,
        lam: float,
        reward_unit: float = 1.0,
        group: ProcessGroup = SINGLE_PROCESS,
    ) -> PricedRollout:
        """Measure, move the multipliers, and put the costs into the advantages.

        `gamma` and `lam` are the return's, for costs that have none of their own. Costs are in the unit of the reward
        before a VecNormalize divided it by `reward_unit`. Tails are of the envs of all processes, so that each of them
        moves its multipliers alike.
        """
        columns = buffer.risk
        assert columns is not None
        device = advantages.device
        step_returns, ended = (group.columns(each.cpu()) for each in (columns.step_returns, buffer.ended))
        deployed = torch.zeros(ended.shape[1], dtype=torch.bool)
        if columns.deployed is not None:
            deployed = group.columns(columns.deployed.cpu()[None])[0]
        targets: list[Tensor] = []
        numbers: Numbers = {}
        total, weights = torch.zeros_like(advantages), 0.0
        for k, constraint in enumerate(self.constraints):
            config = constraint.config
            costs, found = constraint.observe(step_returns, ended, deployed)
            cost = group.own(costs)
            values = columns.costs[..., k]
            cost_advantages = returns.gae(
                cost.to(device, values.dtype),
                values,
                columns.next_costs[..., k],
                # The return of an episode is complete at a time limit: no cost comes after it.
                buffer.ended if config.measure == "episode_return" else buffer.terminated,
                buffer.ended,
                gamma=_cost_discount(config, gamma),
                lam=_cost_lambda(config, lam),
            )
            targets.append(cost_advantages + values)
            total = total + constraint.weight * cost_advantages / reward_unit
            weights += constraint.weight
            found[metrics.RISK_COST_ADVANTAGE_STD] = float(cost_advantages.std(correction=0))
            numbers |= {metric.numbered(k + 1): value for metric, value in found.items()}
        risk_part = -total / (1.0 + weights)
        return PricedRollout(advantages / (1.0 + weights) + risk_part, risk_part, torch.stack(targets, -1), numbers)

    @torch.no_grad()
    def encode(
        self, buffer: RolloutBuffer, costs: Tensor, group: ProcessGroup = SINGLE_PROCESS
    ) -> RiskTargets:  # (T, B, K)
        """Follow the units of costs and step returns, leaving predictions where they are; the targets in them."""
        columns, heads = buffer.risk, self.heads
        assert columns is not None
        encoded = []
        for k, (scale, head) in enumerate(zip(self.cost_scales, heads.cost_heads, strict=True)):
            assert isinstance(head, nn.Linear)
            mean, std = _follow_cost(scale, head, costs[..., k], group)
            heads.cost_means[k], heads.cost_stds[k] = mean, std
            encoded.append((costs[..., k] - mean) / (std or 1.0))  # no cost yet: the output learns to be 0
        follow_linear(self.step_scale, heads.step_critic, [heads.step_head], columns.step_returns, group)
        step = heads.step_critic.encode(columns.step_returns.flatten().unsqueeze(-1), kappa=0.0)
        return RiskTargets(torch.stack(encoded, -1).flatten(0, 1), step)

    def adopt_units(self) -> None:
        """Go on from the units that came with the heads' weights."""
        for scale, mean, std in zip(
            self.cost_scales, self.heads.cost_means.tolist(), self.heads.cost_stds.tolist(), strict=True
        ):
            scale.adopt(Unit(mean, std))
        self.step_scale.adopt(self.heads.step_critic.unit)

    def state_dict(self) -> dict[str, Any]:
        return {
            "constraints": [constraint.state_dict() for constraint in self.constraints],
            "cost_scales": [scale.state_dict() for scale in self.cost_scales],
            "step_scale": self.step_scale.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for constraint, each in zip(self.constraints, state["constraints"], strict=True):
            constraint.load_state_dict(each)
        for scale, each in zip(self.cost_scales, state["cost_scales"], strict=True):
            scale.load_state_dict(each)
        self.step_scale.load_state_dict(state["step_scale"])


def _run_on(running: Tensor, gains: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:  # (B,), (T, B), (T, B)
    """The return of each episode up to every step, (T, B), and after the last of them, (B,)."""
    totals = torch.zeros_like(gains)
    for t, (gain, over) in enumerate(zip(gains, ended, strict=True)):
        running = running + gain
        totals[t] = running
        running = running.masked_fill(over, 0.0)
    return totals, running


def _blend(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)


def _cost_discount(config: Risk, gamma: float) -> float:
    if config.gamma is not None:
        return config.gamma
    # What is limited is the plain sum over an episode, and its cost is complete at the episode's end.
    return 1.0 if config.measure == "episode_return" else gamma


def _cost_lambda(config: Risk, lam: float) -> float:
    if config.gae_lambda is not None:
        return config.gae_lambda
    # A cost that falls on an episode's last step reaches its first one undiminished only with λ = 1.
    return 1.0 if config.measure == "episode_return" else lam


def _follow_cost(scale: ReturnScale, head: nn.Linear, targets: Tensor, group: ProcessGroup) -> Unit:
    """Take in the targets; the head's unit goes from the old scale to the new one, which is returned."""
    known, old = scale.std > 0.0, scale.unit
    scale.update(targets, group)
    if known:
        rescale_head(head, old, scale.unit)
    return scale.unit
