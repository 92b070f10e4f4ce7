"""Smaller steps where gradients are noise: a gradient stage that scales by how well they agree over time.

For each element, with a = (1 − β) / (1 − β^t), which is an exponential average without the bias of its start:

    δ = g − m        m ← m + a δ        v ← (1 − a) (v + a δ²)

so m and v are the mean and the variance of the *raw* gradients, v never below 0 and exactly 0 while g does not change.
For each tensor, and then for all of them:

    noise-to-signal r = Σ v / max(Σ m², q Σ v)        q = Σ (weight of a gradient in the average)²
    factor = max(floor, 1 / (1 + strength · r̄))       r̄ = the aggregate of r over tensors, or the tensor's own

r is McCandlish et al.'s simple noise scale tr(Σ) / |G|² (2018, arXiv:1812.06162), of minibatches and over time. The
mean of pure noise has a square of q Σ v, which is no signal, so r never exceeds 1 / q (199 for β = 0.99).
"""

import math
from collections.abc import Callable, Iterable
from statistics import fmean

import torch
from torch import Tensor, nn

from leeward.errors import ArgumentError, did_you_mean
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["AGGREGATES", "MODES", "VarianceScaler"]


def _quantile(values: list[float], level: float) -> float:
    """With linear interpolation, as numpy and torch have it, and without their price for a few numbers."""
    ranked, place = sorted(values), level * (len(values) - 1)
    below = math.floor(place)
    above = min(below + 1, len(values) - 1)
    return ranked[below] + (place - below) * (ranked[above] - ranked[below])


AGGREGATES: dict[str, Callable[[list[float]], float]] = {
    "p90": lambda ratios: _quantile(ratios, 0.9),
    "mean": fmean,
    "median": lambda ratios: _quantile(ratios, 0.5),
}
# What the two moments are taken of. The norm is one number per tensor and cheap; it cannot see noise that turns a
# gradient without changing its length, such as +n, −n.
MODES: dict[str, Callable[[list[Tensor]], list[Tensor]]] = {
    "element": lambda gradients: gradients,
    "norm": lambda gradients: list(torch._foreach_norm(gradients)),
}


class VarianceScaler:
    """A stage between `backward()` and the clip: `apply()` follows the raw gradients, scales them, and reports.

    beta: memory of the averages. strength: how much noise costs. floor: the smallest factor. warmup: steps at the start
    that are only watched. per_tensor: each tensor has its own factor; else one factor for all, from the `aggregate` of
    the tensors' ratios. A step with a gradient that is not finite (or whose square is not) changes nothing and is
    counted in `skipped_steps`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        beta: float = 0.99,
        strength: float = 0.1,
        floor: float = 0.1,
        warmup: int = 100,
        mode: str = "element",
        aggregate: str = "p90",
        per_tensor: bool = False,
    ) -> None:
        self.parameters = list(parameters)
        if not self.parameters:
            raise ArgumentError("VarianceScaler: parameters is empty; pass model.parameters()")
        self.mode = mode
        self.configure(
            beta=beta,
            strength=strength,
            floor=floor,
            warmup=warmup,
            mode=mode,
            aggregate=aggregate,
            per_tensor=per_tensor,
        )
        self.steps = self.skipped_steps = 0
        self.ages = [0] * len(self.parameters)  # gradients seen of each tensor
        self.means = [self._zeros(parameter) for parameter in self.parameters]
        self.variances = [self._zeros(parameter) for parameter in self.parameters]

    def configure(
        self, *, beta: float, strength: float, floor: float, warmup: int, mode: str, aggregate: str, per_tensor: bool
    ) -> None:
        """Take other settings from the next step on. What was followed so far stays, so `mode` cannot change."""
        if not 0.0 <= beta < 1.0:
            raise ArgumentError(f"VarianceScaler: beta must lie in [0, 1), got {beta}")
        if not 0.0 <= strength < float("inf"):
            raise ArgumentError(f"VarianceScaler: strength must be a finite number of at least 0, got {strength}")
        if not 0.0 < floor <= 1.0:
            raise ArgumentError(f"VarianceScaler: floor must lie in (0, 1], got {floor}")
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 0:
            raise ArgumentError(f"VarianceScaler: warmup must be a whole number of steps of at least 0, got {warmup!r}")
        for name, value, known in (("mode", mode, MODES), ("aggregate", aggregate, AGGREGATES)):
            if value not in known:
                raise ArgumentError(f"VarianceScaler: unknown {name} {value!r}; {did_you_mean(str(value), known)}")
        if mode != self.mode:
            raise ArgumentError(f"VarianceScaler: mode is {self.mode!r} and cannot become {mode!r}; make a new one")
        self.beta, self.strength, self.floor, self.warmup = beta, strength, floor, warmup
        self.aggregate, self.per_tensor = aggregate, per_tensor

    def _zeros(self, parameter: nn.Parameter) -> Tensor:
        shape = parameter.shape if self.mode == "element" else ()
        return torch.zeros(shape, dtype=torch.promote_types(parameter.dtype, torch.float32), device=parameter.device)

    @torch.no_grad()
    def apply(self) -> Numbers:
        """Follow and scale the gradients that are there, in place; empty when there is none to use."""
        found = {i: parameter.grad for i, parameter in enumerate(self.parameters) if parameter.grad is not None}
        if not found:
            return {}
        present, gradients = list(found), list(found.values())
        means, variances = self._followed(present, MODES[self.mode](gradients))
        # The one look at the device. Nothing was kept so far, so a bad gradient leaves no trace.
        ratios = _ratios(means, variances, [self._noise_share(self.ages[i] + 1) for i in present])
        if not all(map(math.isfinite, ratios)):
            self.skipped_steps += 1
            return {}
        warming = self.steps < self.warmup
        self.steps += 1
        for i, mean, variance in zip(present, means, variances, strict=True):
            self.ages[i] += 1
            self.means[i], self.variances[i] = mean, variance
        factors = [1.0] if warming else self._factors(ratios)
        if not warming:
            torch._foreach_mul_(gradients, factors if self.per_tensor else factors[0])
        return {
            metrics.VGS_NOISE_TO_SIGNAL_P50: _quantile(ratios, 0.5),
            metrics.VGS_NOISE_TO_SIGNAL_P90: _quantile(ratios, 0.9),
            metrics.VGS_SCALING_FACTOR: fmean(factors),
            metrics.VGS_WARMUP_ACTIVE: float(warming),
        }

    def noise_to_signal(self) -> Tensor:  # -> (n,)
        """One ratio per tensor, in the order of the parameters; NaN for one that never had a gradient."""
        shares = [self._noise_share(max(age, 1)) for age in self.ages]
        ratios = _ratios(self.means, self.variances, shares)
        known = [ratio if age else math.nan for ratio, age in zip(ratios, self.ages, strict=True)]
        return torch.tensor(known, dtype=torch.float64)

    def _followed(self, present: list[int], seen: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Mean and variance with one more gradient, as new tensors; those with the same age go together."""
        means, variances = list(seen), list(seen)  # every place is filled below
        for age in {self.ages[i] for i in present}:
            places = [place for place, i in enumerate(present) if self.ages[i] == age]
            own = [present[place] for place in places]
            a = (1.0 - self.beta) / (1.0 - self.beta ** (age + 1))
            deltas = torch._foreach_sub([seen[place] for place in places], [self.means[i] for i in own])
            new_means = torch._foreach_add([self.means[i] for i in own], deltas, alpha=a)
            new_variances = torch._foreach_mul([self.variances[i] for i in own], 1.0 - a)
            torch._foreach_addcmul_(new_variances, deltas, deltas, a * (1.0 - a))
            for place, mean, variance in zip(places, new_means, new_variances, strict=True):
                means[place], variances[place] = mean, variance
        return means, variances

    def _noise_share(self, age: int) -> float:
        """q: the sum of the squared weights of `age` gradients in an average whose weights sum to 1."""
        old = self.beta**age
        return (1.0 - self.beta) * (1.0 + old) / ((1.0 + self.beta) * (1.0 - old))

    def _factors(self, ratios: list[float]) -> list[float]:
        """One for each tensor, or one for all."""
        used = ratios if self.per_tensor else [AGGREGATES[self.aggregate](ratios)]
        return [max(self.floor, 1.0 / (1.0 + self.strength * ratio)) for ratio in used]

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors only, by name."""
        state = {
            "steps": torch.tensor([self.steps, self.skipped_steps]),
            "ages": torch.tensor(self.ages),
        }
        for i, (mean, variance) in enumerate(zip(self.means, self.variances, strict=True)):
            state |= {f"mean.{i}": mean.clone(), f"variance.{i}": variance.clone()}
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """What `state_dict` gave, of the same parameters and mode."""
        expected = {name: tensor.shape for name, tensor in self.state_dict().items()}
        came = {name: tensor.shape for name, tensor in state.items()}
        if came != expected:
            wrong = sorted(name for name in expected.keys() | came.keys() if expected.get(name) != came.get(name))
            raise ArgumentError(
                f"VarianceScaler: this state is of other parameters or another mode: {len(wrong)} entries differ, the "
                f"first is {wrong[0]!r}, expected {expected.get(wrong[0])}, got {came.get(wrong[0])}"
            )
        self.steps, self.skipped_steps = state["steps"].tolist()
        self.ages = state["ages"].tolist()
        for i, (mean, variance) in enumerate(zip(self.means, self.variances, strict=True)):
            self.means[i] = state[f"mean.{i}"].to(mean, copy=True)
            self.variances[i] = state[f"variance.{i}"].to(variance, copy=True)


def _ratios(means: list[Tensor], variances: list[Tensor], noise_shares: list[float]) -> list[float]:
    noises = torch.stack([variance.sum() for variance in variances])
    norms = torch.stack(torch._foreach_norm(means))
    found = zip(*torch.stack([noises, norms]).tolist(), noise_shares, strict=True)
    # Without noise there is no ratio to take: 0, also for a gradient that is 0.
    return [noise / max(norm * norm, share * noise) if noise != 0.0 else 0.0 * norm for noise, norm, share in found]
