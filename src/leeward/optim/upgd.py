"""Utility-based perturbed gradient descent: useful weights are protected, the others are stirred (docs/ideas/upgd.md).

Elsayed & Mahmood 2024 (arXiv:2404.00781). For a weight w with gradient g at its own step t:

    u ← β_u u − (1 − β_u) g w          utility: how much the loss would grow, to first order, without this weight
    û = u / (1 − β_u^t)                bias-corrected, above and below the fraction line of the gate
    gate = 2 / (1 + e^(û / η))         η = max |û| over every weight of every group, or over the weight's own tensor

gate is 1 for a weight of no utility, 0.54 for the most useful and up to 1.46 for a harmful one. So `lr` is the step of
a neutral weight: the one convention of all three classes. The reference implementation gates with 1 − sigmoid(û / η)
and steps by 2 · lr, which is the same; its non-protecting form steps by lr, and so perturbs half as much as ours for
one sigma. The paper divides by max û, which turns the order of protection round when every utility is negative; |û|
cannot.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.optimizer import Optimizer, ParamsT

from leeward.errors import ArgumentError, TrainingDiverged, did_you_mean
from leeward.optim.gaussian import PER_WORD, fill_standard_normal
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["AdaptiveUPGD", "UPGD", "UPGDW", "UtilityOptimizer"]

SCALINGS = ("global", "local")


class _Scratch:
    """Room for one batch, kept between steps: to ask for fresh memory costs more than the arithmetic done in it.

    `moves` holds the directions and then the noise, `resistances` 1 + e^(û / η) of the last step; both as one tensor
    and as a list of parts in the shapes of the weights.
    """

    def __init__(self, weights: list[Tensor]) -> None:
        self.weights = weights
        self.sizes = [weight.numel() for weight in weights]
        self.count = sum(self.sizes)
        room = -(-self.count // PER_WORD) * PER_WORD
        self.flat_moves, self.flat_resistances = (weights[0].new_zeros(room) for _ in range(2))
        self.moves, self.resistances = self._parts(self.flat_moves), self._parts(self.flat_resistances)
        self.noise_steps = [0.0] * len(weights)  # standard deviation of what noise adds to a weight whose gate is 2

    def _parts(self, flat: Tensor) -> list[Tensor]:
        parts = flat[: self.count].split(self.sizes)
        return [part.view(weight.shape) for part, weight in zip(parts, self.weights, strict=True)]

    def fits(self, weights: list[Tensor]) -> bool:
        return len(weights) == len(self.weights) and all(map(operator.is_, weights, self.weights))


class _Batch(NamedTuple):
    """The weights of one group that have a gradient, of one dtype and on one device."""

    group: dict[str, Any]
    weights: list[Tensor]
    gradients: list[Tensor]  # of what is minimised
    states: list[dict[str, Tensor]]
    scratch: _Scratch

    def state(self, key: str) -> list[Tensor]:
        return [state[key] for state in self.states]


class _Measure(NamedTuple):
    """What the host must know of each tensor of a batch before it is moved."""

    corrections: list[float]  # 1 − β_u^t
    peaks: list[float]  # max |û|
    noise_units: list[float]  # what a sigma of 1 is


class UtilityOptimizer(Optimizer):
    """What the three optimisers share: utilities, gates, noise, and torch's conventions.

    A gradient that is not finite, or whose square overflows its dtype, is never used: the whole step is left out,
    nothing changes and `skipped_steps` counts it. A weight without a gradient is left alone, and its utility counts in
    no maximum. Noise comes from `generator` alone; None is a generator of the optimiser's own with seed 0. Its state is
    part of `state_dict`.
    """

    skipped_steps = 0
    _utility_max = 0.0

    def __init__(self, params: ParamsT, generator: torch.Generator | None, **defaults: Any) -> None:
        if not isinstance(generator, torch.Generator | None):
            raise ArgumentError(
                f"{type(self).__name__}: generator must be a torch.Generator or None, got {generator!r}"
            )
        super().__init__(params, defaults)
        first: Tensor = self.param_groups[0]["params"][0]
        self.generator = generator or torch.Generator(first.device).manual_seed(0)
        self._scratches: dict[tuple[int, torch.device, torch.dtype], _Scratch] = {}
        self._last: list[_Scratch] = []  # of the batches of the last step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch; the options are checked before the group is taken."""
        _check_options(type(self).__name__, self.defaults | param_group)
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step on the gradients that are there; `closure`, if given, computes them and its loss is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches = [batch for i, group in enumerate(self.param_groups) for batch in self._batches(i, group)]
        if not batches:
            return loss
        if not _usable(batches):
            self.skipped_steps += 1
            return loss
        # Utilities are divided by their maximum over *all* weights, so every batch is measured before one is moved.
        measures = [self._measure(batch) for batch in batches]
        self._utility_max = max(peak for measure in measures for peak in measure.peaks)
        for batch, measure in zip(batches, measures, strict=True):
            self._move(batch, measure)
        self._last = [batch.scratch for batch in batches]
        return loss

    def numbers(self) -> Numbers:
        """What the last step had: its largest utility (η of global scaling), its mean gate, and the RMS of what noise
        adds to a weight. Empty before the first."""
        if not self._last:
            return {}
        count = sum(scratch.count for scratch in self._last)
        gates = noise = 0.0
        for scratch in self._last:
            half_gates = torch._foreach_reciprocal(scratch.resistances)
            norms = torch.stack(torch._foreach_norm(half_gates)).double()
            gates += 2.0 * float(sum(half_gate.sum() for half_gate in half_gates))
            noise += float((norms * norms.new_tensor(scratch.noise_steps)).square().sum())
        return {
            metrics.UPGD_UTILITY_MAX: self._utility_max,
            metrics.UPGD_GATE_MEAN: gates / count,
            metrics.UPGD_NOISE_RMS: math.sqrt(noise / count),
        }

    # --- what the three differ in -----------------------------------------------------------------------------------

    def _new_state(self, weight: Tensor) -> dict[str, Tensor]:
        return {"step": torch.zeros((), device=weight.device), "utility": torch.zeros_like(weight)}

    def _aim(self, batch: _Batch) -> None:
        """Count the step, and write to `moves` where the weights would go without gates and noise, per unit of −lr."""
        torch._foreach_add_(batch.state("step"), 1.0)
        torch._foreach_copy_(batch.scratch.moves, batch.gradients)

    def _noise_units(self, batch: _Batch) -> Tensor:  # -> (n,)
        """What a sigma of 1 is, for each tensor; `moves` holds the directions."""
        return torch.ones(len(batch.weights), device=batch.weights[0].device)

    # --- one step ---------------------------------------------------------------------------------------------------

    def _batches(self, number: int, group: dict[str, Any]) -> Iterator[_Batch]:
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for weight in group["params"]:
            if weight.grad is None or weight.numel() == 0:
                continue
            if weight.grad.is_sparse or weight.is_complex():
                raise ArgumentError(
                    f"{type(self).__name__}: takes dense gradients of real weights, got one of layout "
                    f"{weight.grad.layout} and dtype {weight.dtype}; give that parameter to another optimiser"
                )
            alike.setdefault((weight.device, weight.dtype), []).append(weight)
        for (device, dtype), weights in alike.items():
            for weight in weights:
                state = self.state[weight]
                if "utility" not in state:
                    # Moments that an Adam left here are gone on from, under the names Adam gives them.
                    state.update(self._new_state(weight) | state)
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            if group["maximize"]:
                gradients = list(torch._foreach_neg(gradients))
            scratch = self._scratches.get((number, device, dtype))
            if scratch is None or not scratch.fits(weights):
                scratch = self._scratches[number, device, dtype] = _Scratch(weights)
            yield _Batch(group, weights, gradients, [self.state[weight] for weight in weights], scratch)

    def _measure(self, batch: _Batch) -> _Measure:
        """Count the step, follow directions and utilities, and bring to the host what the move depends on."""
        self._aim(batch)
        beta, utilities = batch.group["beta_utility"], batch.state("utility")
        torch._foreach_mul_(utilities, beta)
        torch._foreach_addcmul_(utilities, batch.gradients, batch.weights, -(1.0 - beta))
        numbers = (torch.stack(batch.state("step")), _peaks(utilities), self._noise_units(batch))
        steps, peaks, units = torch.stack([number.double() for number in numbers]).tolist()
        if not all(map(math.isfinite, peaks)):
            raise TrainingDiverged(
                f"{type(self).__name__}: the gradients are finite but gradient × weight is not, so a weight is NaN, "
                "infinite or too large to go on from; load the last good checkpoint and lower the learning rate"
            )
        corrections = [1.0 - beta**step for step in steps]
        return _Measure(corrections, list(map(operator.truediv, peaks, corrections)), units)

    def _move(self, batch: _Batch, measure: _Measure) -> None:
        """w ← w − lr · gate · (direction + σ noise), or with the gate on the noise alone; decay comes first."""
        group, weights, scratch = batch.group, batch.weights, batch.scratch
        lr, sigma = group["lr"], group["sigma"]
        self._set_resistances(batch, measure)
        if group["weight_decay"]:
            torch._foreach_mul_(weights, 1.0 - lr * group["weight_decay"])
        if group["protecting"]:
            torch._foreach_addcdiv_(weights, scratch.moves, scratch.resistances, -2.0 * lr)
        else:
            torch._foreach_add_(weights, scratch.moves, alpha=-lr)
        scratch.noise_steps = [2.0 * lr * sigma * unit for unit in measure.noise_units]
        if sigma > 0.0:
            fill_standard_normal(scratch.flat_moves, self.generator)
            torch._foreach_addcdiv_(
                weights, scratch.moves, scratch.resistances, [-step for step in scratch.noise_steps]
            )

    def _set_resistances(self, batch: _Batch, measure: _Measure) -> None:
        """1 + e^(û / η) of every weight; 2 everywhere when no weight has any utility."""
        local, scratch = batch.group["scaling"] == "local", batch.scratch
        each = zip(batch.state("utility"), scratch.resistances, measure.peaks, measure.corrections, strict=True)
        for utility, resistance, peak, correction in each:
            # û / η = u / (η · correction). Divided and not multiplied by the inverse, which overflows for a tiny η.
            eta = peak if local else self._utility_max
            torch.div(utility, eta * correction if eta > 0.0 else 1.0, out=resistance)
        scratch.flat_resistances.exp_().add_(1.0)

    # --- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """torch's, with the state of the noise generator and the count of skipped steps beside it."""
        return super().state_dict() | {"generator": self.generator.get_state(), "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave, or torch's Adam; without a generator's state the noise goes on as it would have."""
        super().load_state_dict(state_dict)
        for weight, state in self.state.items():
            if "step" in state:
                state["step"] = state["step"].to(weight.device)
        if "generator" in state_dict:
            self.generator.set_state(state_dict["generator"].cpu())
        self.skipped_steps = state_dict.get("skipped_steps", 0)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"generator": self.generator, "skipped_steps": self.skipped_steps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._scratches, self._last = {}, []
        for group in self.param_groups:
            for name in self.defaults.keys() - {"differentiable"}:  # which torch adds, and keeps out of groups
                group.setdefault(name, self.defaults[name])


class UPGD(UtilityOptimizer):
    """Perturbed gradient descent with the gates of this module, and decoupled decay (the paper's UPGD-W).

        w ← (1 − lr λ) w − lr · gate · (g + σ ξ)        ξ ~ N(0, 1), fresh for every weight
        w ← (1 − lr λ) w − lr · (g + gate · σ ξ)        with protecting=False

    sigma is in units of the gradient.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        *,
        beta_utility: float = 0.999,
        sigma: float = 1e-3,
        weight_decay: float = 0.0,
        scaling: str = "global",
        protecting: bool = True,
        maximize: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            params, generator, lr=lr, beta_utility=beta_utility, sigma=sigma, weight_decay=weight_decay,
            scaling=scaling, protecting=protecting, maximize=maximize,
        )  # fmt: skip


class _AdamDirection(UtilityOptimizer):
    """The direction of Adam, and noise in proportion to it."""

    def _new_state(self, weight: Tensor) -> dict[str, Tensor]:
        moments = {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight)}
        return super()._new_state(weight) | moments

    def _aim(self, batch: _Batch) -> None:
        # torch's fused Adam, taken by zeros with a step of −1, leaves the direction there in a third of the passes.
        batch.scratch.flat_moves.zero_()
        beta1, beta2 = batch.group["betas"]
        adam(
            batch.scratch.moves, batch.gradients, batch.state("exp_avg"), batch.state("exp_avg_sq"), [],
            batch.state("step"), fused=True, amsgrad=False, beta1=beta1, beta2=beta2, lr=-1.0, weight_decay=0.0,
            eps=batch.group["eps"], maximize=False,
        )  # fmt: skip

    def _noise_units(self, batch: _Batch) -> Tensor:  # -> (n,): RMS of the direction
        norms = torch.stack(torch._foreach_norm(batch.scratch.moves)).double()
        return norms / norms.new_tensor(batch.scratch.sizes).sqrt()


class AdaptiveUPGD(_AdamDirection):
    """The gates and the noise of this module around Adam's direction.

        m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   d = m / (1 − β₁^t) / (√(v / (1 − β₂^t)) + ε)
        w ← w − lr · gate · (d + σ RMS(d) ξ)            ξ ~ N(0, 1), RMS over the weight's own tensor
        w ← w − lr · (d + gate · σ RMS(d) ξ)            with protecting=False

    sigma is the noise as a fraction of the direction it is added to; a tensor that does not move is not stirred.
    weight_decay is decoupled, as in `UPGDW`, and off unless asked for.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        beta_utility: float = 0.999,
        sigma: float = 1e-2,
        weight_decay: float = 0.0,
        scaling: str = "global",
        protecting: bool = True,
        maximize: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            params, generator, lr=lr, betas=betas, eps=eps, beta_utility=beta_utility, sigma=sigma,
            weight_decay=weight_decay, scaling=scaling, protecting=protecting, maximize=maximize,
        )  # fmt: skip


class UPGDW(_AdamDirection):
    """`AdaptiveUPGD` with decoupled weight decay, as AdamW is to Adam (Loshchilov & Hutter 2019).

        w ← (1 − lr λ) w − lr · gate · (d + σ RMS(d) ξ)        d as in AdaptiveUPGD
        w ← (1 − lr λ) w − lr · (d + gate · σ RMS(d) ξ)        with protecting=False

    Decay is not gated, and utility is that of the weight before it.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        beta_utility: float = 0.999,
        sigma: float = 1e-2,
        weight_decay: float = 1e-2,
        scaling: str = "global",
        protecting: bool = True,
        maximize: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            params, generator, lr=lr, betas=betas, eps=eps, beta_utility=beta_utility, sigma=sigma,
            weight_decay=weight_decay, scaling=scaling, protecting=protecting, maximize=maximize,
        )  # fmt: skip


def _peaks(tensors: Iterable[Tensor]) -> Tensor:  # -> (n,)
    """max |x| of each tensor; NaN where there is one."""
    return torch.stack([tensor.abs().max() for tensor in tensors])


def _usable(batches: Iterable[_Batch]) -> bool:
    """Whether every gradient and its square are finite; the one look at the device before anything changes."""
    fine = [_peaks(batch.gradients).square().isfinite().all().cpu() for batch in batches]
    return bool(torch.stack(fine).all())


def _check_options(name: str, options: dict[str, Any]) -> None:
    def check(key: str, expected: str, fits: Callable[[float], bool], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not fits(value):
            raise ArgumentError(f"{name}: {key} must be {expected}, got {value!r}")

    for key in ("lr", "sigma", "weight_decay"):
        check(key, "a finite number of at least 0", lambda x: 0.0 <= x < math.inf, options[key])
    check("beta_utility", "a number in [0, 1)", lambda x: 0.0 <= x < 1.0, options["beta_utility"])
    if "betas" in options:
        if len(options["betas"]) != 2:
            raise ArgumentError(f"{name}: betas must be two numbers in [0, 1), got {options['betas']!r}")
        for beta in options["betas"]:
            check("betas", "two numbers in [0, 1)", lambda x: 0.0 <= x < 1.0, beta)
        check("eps", "a finite number above 0", lambda x: 0.0 < x < math.inf, options["eps"])
    for key in ("protecting", "maximize"):
        if not isinstance(options[key], bool):
            raise ArgumentError(f"{name}: {key} must be True or False, got {options[key]!r}")
    if options["scaling"] not in SCALINGS:
        raise ArgumentError(
            f"{name}: unknown scaling {options['scaling']!r}; {did_you_mean(str(options['scaling']), SCALINGS)}"
        )
