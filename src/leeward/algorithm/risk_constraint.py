"""CVaR_α(X) ≥ limit: a cost in the policy's advantage, and a multiplier that follows the *measured* tail.

With CVaR_α(X) = max_ν { ν − E[(ν − X)⁺]/α } (Rockafellar & Uryasev 2000) the constraint is an ordinary expected cost
c = (ν − X)⁺/α, ν the measured α-quantile of X. A cost critic gives its advantage A_c, and the policy learns from
(A − Σ λᵢ A_cᵢ)/(1 + Σ λᵢ). The distributional critic is never pushed: it only predicts.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leeward.algorithm.peers import ALONE, Peers
from leeward.algorithm.return_scale import ReturnScale, rescale_heads
from leeward.config.learning import Risk
from leeward.errors import ArgumentError
from leeward.maths import cvar, lagrangian, quantile, returns
from leeward.networks.risk_heads import RiskHeads
from leeward.rollout.buffer import RolloutBuffer

__all__ = ["Constraint", "RiskControl", "RiskTargets", "RiskVerdict"]

_MIN_TAIL = 10  # samples beyond the α-quantile below which a tail is not measured but guessed


@dataclass(frozen=True)
class RiskVerdict:
    """What the constraints make of a rollout."""

    advantages: Tensor  # (T, B), return and costs together, in the unit of the rollout's rewards
    risk_part: Tensor  # (T, B), what the costs contribute to them
    costs: Tensor  # (T, B, K), λ-returns of the costs
    metrics: dict[str, float]


@dataclass(frozen=True)
class RiskTargets:
    """What the risk heads learn from, in the units of their scales, one row per step (T·B)."""

    costs: Tensor  # (T·B, K)
    step: quantile.SortedTargets  # (T·B, 1)


class _Pool:
    """Outcomes of the last rollouts: as many rollouts as it takes to have `needed` samples, and no more."""

    def __init__(self, needed: float) -> None:
        self.needed = needed
        self.rollouts: list[Tensor] = []  # each (n,), the oldest first

    def add(self, fresh: Tensor) -> None:  # (n,)
        if len(fresh):
            self.rollouts.append(fresh)
        while len(self.rollouts) > 1 and sum(len(part) for part in self.rollouts[1:]) >= self.needed:
            self.rollouts.pop(0)

    @property
    def samples(self) -> Tensor | None:  # (n,); None before the first
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
        self.best = -math.inf  # the mildest tail measured so far
        self.updates = 0
        self.running = torch.zeros(n_envs, dtype=torch.float64)  # return of each env's episode up to now
        needed = _MIN_TAIL / config.alpha
        self.bound = _Pool(needed)  # outcomes of the policy whose tail is limited
        # Outcomes of the policy that learns. ν is *their* quantile: see docs/ideas/risk.md.
        self.learning = _Pool(needed) if config.binds == "deployed" else self.bound
        self.warned: set[str] = set()

    @property
    def weight(self) -> float:
        """Of the cost in the advantage."""
        return self.multiplier + self.config.cvar_weight

    def observe(
        self, step_returns: Tensor, ended: Tensor, deployed: Tensor
    ) -> tuple[Tensor, dict[str, float]]:  # (T, B), (T, B), (B,) bool -> cost (T, B)
        """Measure the tail, move the multiplier, and price every step. Envs in `deployed` act without noise."""
        values, known = self._variable(step_returns, ended)
        self.learning.add(values[:, ~deployed][known[:, ~deployed]])
        if self.config.binds == "deployed":
            self.bound.add(values[:, deployed][known[:, deployed]])
        metrics = {"risk/multiplier": self.multiplier}
        if (samples := self.bound.samples) is not None:
            metrics = self._measure(samples)
        cost = torch.zeros_like(values)
        if (samples := self.learning.samples) is not None:
            fresh = float(cvar.value_at_risk(samples, self.config.alpha))
            self.quantile = _blend(self.quantile, fresh, self.config.smoothing)
            cost = ((self.quantile - values).clamp(min=0.0) / self.config.alpha).masked_fill(~known, 0.0)
        self.updates += 1
        return cost, metrics

    def _variable(self, step_returns: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:  # (T, B) -> X, where it is
        if self.config.measure == "step_return":
            return step_returns, torch.ones_like(ended)
        totals = torch.zeros_like(step_returns)
        for t, (gain, over) in enumerate(zip(step_returns, ended, strict=True)):
            self.running = self.running + gain
            totals[t] = self.running
            self.running = self.running.masked_fill(over, 0.0)
        return totals, ended  # the whole cost falls on the last step

    def _measure(self, samples: Tensor) -> dict[str, float]:  # (n,)
        config = self.config
        n_tail = config.alpha * len(samples)
        if n_tail < _MIN_TAIL and config.acts:
            self._warn(
                "few samples",
                f"risk: the tail is measured on alpha · samples = {config.alpha:g} · {len(samples)} = {n_tail:.1f} "
                f"outcomes, fewer than {_MIN_TAIL}; rollouts are pooled until there are enough. More envs or steps "
                "per rollout measure it sooner",
            )
        measured = float(cvar.from_samples(samples, config.alpha))
        error = float(cvar.standard_error(samples, config.alpha))
        self.best = max(self.best, measured)
        self.tail = _blend(self.tail, measured, config.smoothing)
        metrics = {
            "risk/cvar_measured": measured,
            "risk/cvar_standard_error": error,
            "risk/var_measured": float(cvar.value_at_risk(samples, config.alpha)),
            "risk/tail_samples": n_tail,
        }
        if config.limit is not None:
            if self.updates >= config.warmup:
                # Averaging over rollouts takes some of the error off, unless their samples are the same.
                apart = len(self.bound.rollouts) == 1
                left = math.sqrt(config.smoothing / (2.0 - config.smoothing)) if apart else 1.0
                unit = max(abs(config.limit), float(samples.std(correction=0)), 1e-12)
                self._control(config.margin * error * left, unit)
            metrics |= {"risk/limit": config.limit, "risk/gap": config.limit - measured}
            if self.multiplier >= config.ceiling and self.tail < config.limit:
                self._warn(
                    "ceiling",
                    f"risk: the multiplier is at its ceiling of {config.ceiling:g} and the limit {config.limit:g} is "
                    f"not met; the mildest tail measured so far is {self.best:.4g}. Perhaps no policy can meet it: "
                    "training goes on with the return nearly ignored",
                )
        return metrics | {"risk/multiplier": self.multiplier}

    def _control(self, distance: float, unit: float) -> None:
        """The gap, `distance` inside the limit, relative to `unit`, so that one learning rate serves every unit."""
        config = self.config
        assert self.tail is not None and config.limit is not None
        value, limit = (self.tail - distance) / unit, config.limit / unit
        if config.controller == "dual":
            self.multiplier = lagrangian.dual_ascent(
                self.multiplier, value, limit=limit, lr=config.learning_rate, ceiling=config.ceiling
            )
            return
        self.multiplier, self.integral, self.previous_gap = lagrangian.pid_step(
            self.integral,
            self.previous_gap,
            value,
            limit=limit,
            kp=config.proportional,
            ki=config.learning_rate,
            kd=config.derivative,
            ceiling=config.ceiling,
        )

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
            "best": None if self.best == -math.inf else self.best,
            "updates": self.updates,
            "running": self.running.tolist(),
            "bound": self.bound.state(),
            "learning": None if self.learning is self.bound else self.learning.state(),
            "warned": sorted(self.warned),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("multiplier", "integral", "previous_gap", "quantile", "tail", "updates"):
            setattr(self, name, state[name])
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

    def __init__(self, heads: RiskHeads, configs: Sequence[Risk], n_envs: int, *, gamma: float, lam: float) -> None:
        self.heads, self.gamma, self.lam = heads, gamma, lam
        self.constraints = [Constraint(config, n_envs) for config in configs]
        self.cost_scales = [ReturnScale() for _ in configs]
        self.step_scale = ReturnScale()

    def begin(self, n_envs: int) -> None:
        """The envs were reset: what their episodes had earned is void."""
        for constraint in self.constraints:
            constraint.running = torch.zeros(n_envs, dtype=torch.float64)

    def deployed(self, n_envs: int) -> Tensor | None:  # (B,) bool
        """The envs that act without noise, when a limit binds the policy as it will be used: the last ones."""
        shares = [c.config.deployed_share for c in self.constraints if c.config.binds == "deployed"]
        if not shares:
            return None
        if n_envs < 2:
            raise ArgumentError(
                f"risk.binds 'deployed' needs at least 2 envs, one to measure on and one to learn from, got {n_envs}; "
                "pass more envs, or binds='rollout'"
            )
        count = min(max(1, round(max(shares) * n_envs)), n_envs - 1)
        return torch.arange(n_envs) >= n_envs - count

    def judge(
        self, buffer: RolloutBuffer, advantages: Tensor, reward_unit: float, peers: Peers = ALONE
    ) -> RiskVerdict:  # (T, B), in the unit of the rollout's rewards
        """Measure, move the multipliers, and put the costs into the advantages.

        Costs are in the unit of the reward before a VecNormalize divided it by `reward_unit`. Tails are of the envs of
        all `peers`, so that every process moves its multipliers alike.
        """
        columns = buffer.risk
        assert columns is not None
        device = advantages.device
        step_returns, ended = (peers.columns(each.cpu()) for each in (columns.step_returns, buffer.ended))
        quiet = torch.zeros(ended.shape[1], dtype=torch.bool)
        if columns.deployed is not None:
            quiet = peers.columns(columns.deployed.cpu()[None])[0]
        targets: list[Tensor] = []
        metrics: dict[str, float] = {}
        total, weights = torch.zeros_like(advantages), 0.0
        for k, constraint in enumerate(self.constraints):
            config = constraint.config
            costs, found = constraint.observe(step_returns, ended, quiet)
            cost = peers.own(costs)
            values = columns.costs[..., k]
            cost_advantages = returns.gae(
                cost.to(device, values.dtype),
                values,
                columns.next_costs[..., k],
                buffer.terminated,
                buffer.ended,
                gamma=self.gamma if config.gamma is None else config.gamma,
                lam=self._cost_lambda(config),
            )
            targets.append(cost_advantages + values)
            total = total + constraint.weight * cost_advantages / reward_unit
            weights += constraint.weight
            found["risk/cost_advantage_std"] = float(cost_advantages.std(correction=0))
            metrics |= {name if k == 0 else f"{name}/{k + 1}": value for name, value in found.items()}
        risk_part = -total / (1.0 + weights)
        return RiskVerdict(advantages / (1.0 + weights) + risk_part, risk_part, torch.stack(targets, -1), metrics)

    def _cost_lambda(self, config: Risk) -> float:
        if config.gae_lambda is not None:
            return config.gae_lambda
        # A cost that falls on an episode's last step reaches its first one undiminished only with λ = 1.
        return 1.0 if config.measure == "episode_return" else self.lam

    @torch.no_grad()
    def encode(self, buffer: RolloutBuffer, costs: Tensor, peers: Peers = ALONE) -> RiskTargets:  # (T, B, K)
        """Follow the units of costs and step returns, leaving predictions where they are; the targets in them."""
        columns, heads = buffer.risk, self.heads
        assert columns is not None
        encoded = []
        for k, (scale, head) in enumerate(zip(self.cost_scales, heads.cost_heads, strict=True)):
            mean, std = _follow(scale, head, costs[..., k], peers)
            heads.cost_means[k], heads.cost_stds[k] = mean, std
            encoded.append((costs[..., k] - mean) / std)
        mean, std = _follow(self.step_scale, heads.step_head, columns.step_returns, peers)
        heads.step_mean.fill_(mean)
        heads.step_std.fill_(std)
        ahead = ((columns.step_returns - mean) / std).to(costs.dtype).flatten()
        return RiskTargets(
            torch.stack(encoded, -1).flatten(0, 1), quantile.sort_targets(ahead.unsqueeze(-1), squares=False)
        )

    def units(self) -> list[tuple[ReturnScale, float, float]]:
        """Each scale, and the mean and standard deviation its heads are in."""
        heads = self.heads
        means, stds = (
            [*heads.cost_means.tolist(), float(heads.step_mean)],
            [*heads.cost_stds.tolist(), float(heads.step_std)],
        )
        return list(zip([*self.cost_scales, self.step_scale], means, stds, strict=True))

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


def _blend(old: float | None, new: float, weight: float) -> float:
    return new if old is None else old + weight * (new - old)


def _follow(scale: ReturnScale, head: nn.Module, targets: Tensor, peers: Peers) -> tuple[float, float]:
    """Take in the targets; the head's unit goes from the old scale to the new one, which is returned."""
    known, old = scale.rollouts > 0, (scale.mean, scale.std)
    scale.update(targets, peers)
    new = (scale.mean, scale.std)
    if known:
        rescale_heads([head], old, new)
    return new
