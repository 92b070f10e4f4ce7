"""Critics: what a value head's raw outputs mean, how they are taught, and in which unit they are.

Each kind is one class and one line in `CRITICS`. A critic encodes targets, gives its loss, holds predictions near old
ones, merges, is pessimistic, and moves its own unit; nobody else asks which kind it is.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from leeward.config.learning import ValueClip
from leeward.config.settings import Settings
from leeward.maths import categorical, diagnostics, quantile, quantile_sorted, value_clipping
from leeward.maths.normalisation import popart_rescale
from leeward.networks import categorical_support
from leeward.networks.value_distribution import ValueDistribution
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = [
    "CRITICS",
    "CategoricalCritic",
    "Critic",
    "Encoded",
    "LinearCritic",
    "QuantileCritic",
    "ScalarCritic",
    "Unit",
    "make_critic",
    "rescale_head",
]

_SORTED_STEPS = 16  # of a rollout, on which crossings are sized

Encoded = tuple[Tensor | None, ...]  # targets in the form a critic's loss takes; each table has one row per step
Heads = Sequence[nn.Linear]


class Unit(NamedTuple):
    """Mean and standard deviation of the return: a raw output of x stands for x · std + mean."""

    mean: float
    std: float


def rescale_head(head: nn.Linear, old: Unit, new: Unit) -> None:
    """Change the unit of a linear head, leaving what it decodes to unchanged (PopArt)."""
    weight, bias = popart_rescale(head.weight, head.bias, old, new)
    head.weight.copy_(weight)
    head.bias.copy_(bias)


class Critic(nn.Module):
    """Raw outputs of C value heads, (..., C, N), and all that depends on what they mean.

    It holds what its heads have in common (levels, weights, support, unit) but no trained parameter. Distributions are
    in units of the return, raw outputs and encoded targets in the critic's own.
    """

    outputs: int
    # What the critic's loss must be multiplied by to pull on the mean of a standard normal as the squared error does.
    squared_error_units: float = 1.0
    mean: Tensor  # ()
    std: Tensor  # ()

    def __init__(self) -> None:
        super().__init__()
        # Before the first rollout nothing is known of the return, and a spread of 0 makes every prediction 0.
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("std", torch.zeros((), dtype=torch.float64))

    @property
    def unit(self) -> Unit:
        return Unit(float(self.mean), float(self.std))

    def set_unit(self, unit: Unit) -> None:
        self.mean.fill_(unit.mean)
        self.std.fill_(unit.std)

    # --- what outputs mean ------------------------------------------------------------------------------------------

    def initial_bias(self) -> Tensor:  # (N,)
        """Where a fresh head starts: the marginal distribution of a standardised return, taken as normal."""
        return torch.zeros(self.outputs)

    def distribution(self, raw: Tensor) -> ValueDistribution:  # (..., N)
        raise NotImplementedError

    def merge(self, raw: Tensor) -> ValueDistribution:  # (..., C, N)
        """The distribution shown to the user and bootstrapped from: the mean over the C critics."""
        raise NotImplementedError

    def means(self, raw: Tensor, unit: Unit | None = None) -> Tensor:  # (..., N) -> (...)
        """The mean of each critic; `unit` is the one the outputs are in, if it is not the present one."""
        raise NotImplementedError

    def pessimistic(self, raw: Tensor) -> Tensor:  # (..., C, N) -> (...)
        """The smaller of the critics' means: the baseline and the scalar bootstrap of GAE, and nothing else."""
        return self.means(raw).amin(-1)

    # --- how they are taught ----------------------------------------------------------------------------------------

    def encode(self, samples: Tensor, *, kappa: float) -> Encoded:  # (rows, M)
        """Samples of the return, once per rollout."""
        raise NotImplementedError

    def loss(self, raw: Tensor, targets: Encoded, *, kappa: float) -> Tensor:  # (L, S, C, N) -> (L, S, C)
        raise NotImplementedError

    def hold_near(self, raw: Tensor, old: Tensor, clip: ValueClip) -> tuple[Tensor, Tensor]:  # (L, S, C, N) each
        """The outputs held near each critic's own old ones, in the form of outputs, and (L, S, C) whether that acted;
        `old` as `restate` gave it."""
        raise NotImplementedError

    def restate(self, raw: Tensor, frame: Tensor) -> Tensor:  # (..., C, N)
        """Outputs of the rollout, made in `frame`, in the form `hold_near` compares with."""
        raise NotImplementedError

    def distance(self, raw: Tensor, other: Tensor) -> Tensor:  # (..., C, N) -> (...)
        """How far two predictions are apart, mean over critics, in squared standard deviations of the return."""
        raise NotImplementedError

    # --- the unit ---------------------------------------------------------------------------------------------------

    def frame(self) -> Tensor:
        """What outputs are relative to now, for `restate` to compare with after it has moved."""
        raise NotImplementedError

    def start(self, unit: Unit, samples: Tensor, heads: Heads, raw: Tensor) -> Tensor:  # (T, B, C, N)
        """Take the spread of the first rollout's samples, around 0: a state that was never seen is worth nothing, as in
        PPO, and where rewards are negative that is what explores. Returns the rollout's outputs as if made so."""
        raise NotImplementedError

    def rescale(self, unit: Unit, heads: Heads) -> None:
        """Change the unit, leaving what the heads predict where it is."""
        raise NotImplementedError

    def needs_refit(self, samples: Tensor) -> bool:
        """Whether the samples have left what these outputs can express."""
        return False

    def refit(self, samples: Tensor, heads: Heads, latents: Callable[[], list[Tensor]]) -> None:
        """Follow the samples; each head is fitted to its own predictions at `latents`, each (n, H)."""
        raise NotImplementedError

    # --- what can be said of it -------------------------------------------------------------------------------------

    def numbers(self, raw: Tensor, samples: Tensor) -> Numbers:  # (T, B, C, N), (T, B, M)
        """Metrics of this kind alone, of a rollout's outputs and samples of its returns."""
        return {}


class LinearCritic(Critic):
    """Outputs that are numbers in units of the return: N of them, at `levels`, each with its weight."""

    levels: Tensor  # (N,)
    weights: Tensor  # (N,)

    def distribution(self, raw: Tensor) -> ValueDistribution:
        mean, std = self.unit
        return ValueDistribution(raw * std + mean, self.weights, self.levels)

    def merge(self, raw: Tensor) -> ValueDistribution:
        return self.distribution(raw.mean(-2))

    def hold_near(self, raw: Tensor, old: Tensor, clip: ValueClip) -> tuple[Tensor, Tensor]:
        held = value_clipping.clip_quantiles(
            raw,
            old,
            radius=clip.radius,
            mode=clip.mode,
            max_std_factor=clip.max_std_factor,
            weights=self.weights,
        )
        # 1e-5 of the return scale: less than that is the rounding of a shift by 0.
        return held, ((held - raw).abs() > 1e-5).any(-1).to(raw.dtype)

    def restate(self, raw: Tensor, frame: Tensor) -> Tensor:
        # From the rollout's unit over the return's own to the present one, so that like is compared with like.
        (old_mean, old_std), (mean, std) = frame.tolist(), self.unit
        if std == 0.0:
            return raw
        restated: Tensor = (raw * old_std + old_mean - mean) / std
        return restated

    def distance(self, raw: Tensor, other: Tensor) -> Tensor:
        """Σ w (q' − q)², the squared 2-Wasserstein distance."""
        return ((other - raw).square() * self.weights).sum(-1).mean(-1)

    def frame(self) -> Tensor:  # (2,)
        return torch.tensor(self.unit, dtype=torch.float64)

    def start(self, unit: Unit, samples: Tensor, heads: Heads, raw: Tensor) -> Tensor:
        self.set_unit(Unit(0.0, unit.std))
        return raw

    def rescale(self, unit: Unit, heads: Heads) -> None:
        for head in heads:
            rescale_head(head, self.unit, unit)
        self.set_unit(unit)

    def _standardised(self, samples: Tensor) -> Tensor:
        mean, std = self.unit
        # While every return was 0 there is no unit: the outputs learn to be 0, as what they stand for is.
        return ((samples - mean) / (std or 1.0)).to(self.levels.dtype)


class QuantileCritic(LinearCritic):
    """Quantiles at fixed levels; merged level by level."""

    # The mean pinball loss of N(0, 1) has curvature ∫φ² = 1/(2√π) in a shift of all quantiles; the squared error has 2.
    squared_error_units = 4.0 * math.pi**0.5

    def __init__(self, n: int, levels: str, tail_alpha: float) -> None:
        super().__init__()
        grid, weights = quantile.tail_levels(n, tail_alpha) if levels == "tail" else quantile.uniform_levels(n)
        self.outputs = n
        # Part of the state: weights are of no use at other levels than those they were trained at.
        self.register_buffer("levels", grid.to(torch.float32))
        self.register_buffer("weights", weights.to(torch.float32))

    def initial_bias(self) -> Tensor:
        # Φ⁻¹(τ). From zero the heads would have to learn this spread step by step, and saturating the memory gets them
        # there sooner than moving their biases does.
        bias: Tensor = torch.special.ndtri(self.levels)
        return bias

    def means(self, raw: Tensor, unit: Unit | None = None) -> Tensor:
        mean, std = unit or self.unit
        return (raw * self.weights).sum(-1) * std + mean

    def encode(self, samples: Tensor, *, kappa: float) -> Encoded:
        return quantile_sorted.sort_targets(self._standardised(samples), kappa=kappa)

    def loss(self, raw: Tensor, targets: Encoded, *, kappa: float) -> Tensor:
        ordered, first, second = targets
        assert ordered is not None
        ready = quantile_sorted.SortedTargets(ordered, first, second)
        return quantile_sorted.sorted_huber_loss(raw, ready, self.levels, kappa=kappa)

    def numbers(self, raw: Tensor, samples: Tensor) -> Numbers:
        some = raw[:: max(1, len(raw) // _SORTED_STEPS)]  # sorting every step would cost more than the number is worth
        return {
            metrics.QUANTILE_CROSSING_RATE: float(diagnostics.crossing_rate(raw)),
            metrics.QUANTILE_CROSSING_SIZE: float(diagnostics.crossing_size(some, self.weights)),
        }


class ScalarCritic(LinearCritic):
    """One number: the mean alone. The ablation."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs = 1
        self.register_buffer("levels", torch.full((1,), 0.5), persistent=False)
        self.register_buffer("weights", torch.ones(1), persistent=False)

    def means(self, raw: Tensor, unit: Unit | None = None) -> Tensor:
        mean, std = unit or self.unit
        return ((raw * std + mean) * self.weights).sum(-1)

    def encode(self, samples: Tensor, *, kappa: float) -> Encoded:
        return (self._standardised(samples).mean(-1),)

    def loss(self, raw: Tensor, targets: Encoded, *, kappa: float) -> Tensor:
        (wanted,) = targets
        assert wanted is not None
        return (raw.squeeze(-1) - wanted.unsqueeze(-1)).square()


class CategoricalCritic(Critic):
    """Logits on an evenly spaced support, which is in units of the return and moves rarely (`categorical_support`)."""

    support: Tensor  # (N,)

    def __init__(self, n: int) -> None:
        super().__init__()
        # The cross-entropy of N(0, 1) has curvature 1 in a shift, and ours is divided by ln K.
        self.squared_error_units = 2.0 * math.log(n)
        self.outputs = n
        # In float64: neighbouring atoms around 1,000 may be 0.01 apart.
        self.register_buffer("support", torch.linspace(-1.0, 1.0, n, dtype=torch.float64))

    def distribution(self, raw: Tensor) -> ValueDistribution:
        return ValueDistribution(self._atoms(raw), raw.softmax(-1), None)

    def merge(self, raw: Tensor) -> ValueDistribution:
        return ValueDistribution(self._atoms(raw), raw.softmax(-1).mean(-2), None)

    def _atoms(self, raw: Tensor) -> Tensor:  # (N,)
        """The support, or 0 for every atom while nothing is known of the return."""
        return self.support.to(raw.dtype) if self.std > 0.0 else raw.new_zeros(self.outputs)

    def means(self, raw: Tensor, unit: Unit | None = None) -> Tensor:
        return self.distribution(raw).mean

    def encode(self, samples: Tensor, *, kappa: float) -> Encoded:
        exact = samples.to(self.support.dtype)
        weights = torch.full_like(exact[0], 1.0 / samples.shape[-1])
        return (categorical.project(exact, weights, self.support).to(samples.dtype),)

    def loss(self, raw: Tensor, targets: Encoded, *, kappa: float) -> Tensor:
        (wanted,) = targets
        assert wanted is not None
        return categorical.cross_entropy(raw, wanted.unsqueeze(-2).expand_as(raw))

    def hold_near(self, raw: Tensor, old: Tensor, clip: ValueClip) -> tuple[Tensor, Tensor]:
        probs, radius = raw.softmax(-1), clip.radius * self.unit.std
        support = (self.support - self.mean).to(raw.dtype)  # around the mean, where float32 is fine enough
        held = value_clipping.clip_categorical(probs, old, support, radius=radius, mode=clip.mode)
        return held.clamp(min=1e-8).log(), (held != probs).any(-1).to(raw.dtype)

    def restate(self, raw: Tensor, frame: Tensor) -> Tensor:
        """Probabilities on the present support."""
        return categorical.project(frame, raw.softmax(-1).to(frame.dtype), self.support).to(raw.dtype)

    def distance(self, raw: Tensor, other: Tensor) -> Tensor:
        """2 KL(p ‖ p'), which is the squared distance for a shift of a standard normal."""
        log_clean, log_moved = raw.log_softmax(-1), other.log_softmax(-1)
        return 2.0 * (log_clean.exp() * (log_clean - log_moved)).sum(-1).mean(-1)

    def frame(self) -> Tensor:  # (N,)
        return self.support.clone()

    def start(self, unit: Unit, samples: Tensor, heads: Heads, raw: Tensor) -> Tensor:
        self.set_unit(Unit(0.0, unit.std))
        both = torch.stack([samples, samples - unit.mean])
        self.support.copy_(categorical_support.fitting_support(both, self.outputs))
        logits = categorical_support.normal_logits(self.support, unit.std).to(raw.dtype)
        started = raw.clone()
        for c, head in enumerate(heads):
            started[..., c, :] += logits - head.bias
            head.bias.copy_(logits)
        return started

    def rescale(self, unit: Unit, heads: Heads) -> None:
        self.set_unit(unit)  # outputs are relative to the support, not to the unit

    def needs_refit(self, samples: Tensor) -> bool:
        return categorical_support.needs_move(samples, self.support)

    def refit(self, samples: Tensor, heads: Heads, latents: Callable[[], list[Tensor]]) -> None:
        old, new = self.support.clone(), categorical_support.fitting_support(samples, self.outputs)
        for head, latent in zip(heads, latents(), strict=True):
            categorical_support.refit_head(head, latent, old, new)
        self.support.copy_(new)

    def numbers(self, raw: Tensor, samples: Tensor) -> Numbers:
        return {metrics.SUPPORT_OUTSIDE_FRACTION: float(categorical.outside_fraction(samples, self.support))}


CRITICS: dict[str, Callable[[Settings], Critic]] = {
    "quantile": lambda settings: QuantileCritic(settings.n_quantiles, settings.levels, settings.tail_alpha),
    "categorical": lambda settings: CategoricalCritic(settings.n_atoms),
    "scalar": lambda settings: ScalarCritic(),
}


def make_critic(settings: Settings) -> Critic:
    """The critic that the settings name."""
    return CRITICS[settings.critic](settings)
