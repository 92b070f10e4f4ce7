"""How a trained policy fares when its observations are perturbed: attacks, and the score against their radius.

Nothing here knows a model class: any model that offers `predict` and `attack_surface` will do (see `Attackable`).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from torch import Tensor

from leeward.backtest.engine import Policy, run_policy
from leeward.backtest.metrics import Number, Record
from leeward.backtest.result import BacktestResult
from leeward.config.trading import EnvConfig
from leeward.durable import write_atomically
from leeward.env import Simulation
from leeward.errors import ArgumentError, RunDirectoryError, ShapeError, did_you_mean
from leeward.market import Market
from leeward.maths import perturbation

__all__ = [
    "ATTACKS",
    "FILE",
    "Attackable",
    "AttackedPolicy",
    "RobustnessCurve",
    "Surface",
    "read_curve",
    "robustness_curve",
    "write_curve",
]

FILE = "robustness.json"  # beside the metrics.json of the backtest
_SCORES: dict[str, Callable[[BacktestResult], float]] = {
    "growth": lambda result: float(result.step_returns.mean() * result.bars_per_year),
    "sharpe": lambda result: result.performance(0.05).sharpe,
}


class Surface(Protocol):
    """What a gradient attack needs of a model at one step of B envs with F features that can be perturbed."""

    @property
    def shape(self) -> tuple[int, int]: ...  # (B, F)
    @property
    def device(self) -> torch.device: ...
    def action_shift(self, delta: Tensor) -> Tensor: ...  # (B, F) -> (B,): KL(π(.|s) ‖ π(.|s + δ)), differentiable
    def value(self, delta: Tensor) -> Tensor: ...  # (B, F) -> (B,): the critic's mean at s + δ, differentiable
    def observation(self, delta: Tensor) -> Any: ...  # (B, F) -> s + δ, as `predict` takes it


class Attackable(Policy, Protocol):
    """A model whose slopes can be asked for. `attack_surface` must change nothing."""

    def attack_surface(self, observation: Any, state: Any = None, episode_start: Any = None) -> Surface: ...


def _mad(surface: Surface) -> Callable[[Tensor], Tensor]:
    """Maximal action difference (Zhang et al. 2020, arXiv:2003.08938): as far from the clean policy as possible."""
    return surface.action_shift


def _critic(surface: Surface) -> Callable[[Tensor], Tensor]:
    """Towards states the critic holds to be bad, so that the policy acts as it would there (Pattanaik et al. 2018)."""
    return lambda delta: -surface.value(delta)


# attack: what it raises; None: a random point of the ball's edge
ATTACKS: dict[str, Callable[[Surface], Callable[[Tensor], Tensor]] | None] = {
    "random": None,
    "critic": _critic,
    "mad": _mad,
}


class AttackedPolicy:
    """A policy that sees s + δ and does not know it: give it to `run_policy`, or to SB3's `evaluate_policy`.

    `mask` (F,) says which features may be perturbed; None: all. Its memory sees the perturbed observations too.
    """

    def __init__(
        self,
        model: Attackable,
        *,
        attack: str,
        epsilon: float,
        seed: int,
        norm: str = "linf",
        steps: int = 10,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        if attack not in ATTACKS:
            raise ArgumentError(f"unknown attack {attack!r}; {did_you_mean(attack, ATTACKS)}")
        if norm not in perturbation.BALLS:
            raise ArgumentError(f"unknown norm {norm!r}; {did_you_mean(norm, perturbation.BALLS)}")
        if not (np.isfinite(epsilon) and epsilon >= 0.0):
            raise ArgumentError(f"epsilon is a radius: a finite number of at least 0, got {epsilon}")
        if steps < 1:
            raise ArgumentError(f"an attack takes at least 1 step, got {steps}")
        if not hasattr(model, "attack_surface"):
            raise ArgumentError(
                f"an attack needs a model with attack_surface(observation, state, episode_start), as DistributionalPPO "
                f"has it, got {type(model).__name__}"
            )
        self.model, self.attack, self.epsilon, self.norm, self.steps = model, attack, float(epsilon), norm, steps
        self.mask = None if mask is None else torch.as_tensor(np.asarray(mask))
        self._generator = torch.Generator().manual_seed(seed)

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Any, Any]:
        """What the model does at the perturbed observation."""
        seen = self.perturb(observation, state, episode_start) if self.epsilon > 0.0 else observation
        return self.model.predict(seen, state=state, episode_start=episode_start, deterministic=deterministic)

    def perturb(self, observation: Any, state: Any = None, episode_start: Any = None) -> Any:
        """s + δ, with δ in the ball and 0 where the mask is False."""
        surface = self.model.attack_surface(observation, state, episode_start)
        return surface.observation(self._delta(surface))

    def _delta(self, surface: Surface) -> Tensor:  # (B, F)
        mask = self.mask
        if mask is not None and mask.shape != surface.shape[1:]:
            raise ShapeError(f"mask needs one entry per feature, {surface.shape[1:]}, got {tuple(mask.shape)}")
        # Drawn on the host, so that the numbers do not depend on the device.
        start = perturbation.random_in_ball(
            surface.shape, epsilon=self.epsilon, ball=self.norm, mask=mask, generator=self._generator
        )
        goal = ATTACKS[self.attack]
        if goal is None:  # to the edge of the ball in the same direction: in the box of linf, to the corner
            return self.epsilon * perturbation.ascent_direction(start, ball=self.norm).to(surface.device)
        return perturbation.ascend(
            goal(surface),
            start.to(surface.device),
            method="pgd",
            steps=self.steps,
            step=2.5 / self.steps * self.epsilon,
            epsilon=self.epsilon,
            ball=self.norm,
            mask=None if mask is None else mask.to(surface.device),
        ).delta


class RobustnessCurve(Record):
    """The score of one policy on one split against the radius of each attack; radius 0 is the clean score."""

    version: int = 1
    split: str
    score: Literal["growth", "sharpe"] = Field(description="log-growth a year, or the Sharpe ratio")
    norm: str
    steps: int
    epsilons: tuple[Number, ...] = Field(description="rising, the first is 0")
    scores: dict[str, tuple[Number, ...]] = Field(description="attack -> one score per radius")

    @property
    def clean(self) -> float:
        return next(iter(self.scores.values()))[0]


def robustness_curve(
    model: Attackable,
    market: Market,
    config: EnvConfig,
    *,
    split: str,
    epsilons: Sequence[float] = (0.05, 0.1, 0.2, 0.4),
    attacks: Sequence[str] = tuple(ATTACKS),
    norm: str = "linf",
    steps: int = 10,
    seed: int = 0,
    score: Literal["growth", "sharpe"] = "growth",
) -> RobustnessCurve:
    """Backtest a model under each attack at each radius, on market features only: account and flags stay true.

    A gradient attack costs `steps` forward and backward passes per bar.
    """
    if score not in _SCORES:
        raise ArgumentError(f"unknown score {score!r}; {did_you_mean(score, _SCORES)}")
    if not len(attacks) or not len(epsilons):
        raise ArgumentError("a curve needs at least one attack and one epsilon")
    if any(epsilon <= 0.0 for epsilon in epsilons) or list(epsilons) != sorted(set(epsilons)):
        raise ArgumentError(f"epsilons must be positive and rise, got {list(epsilons)}; the clean score is added as 0")
    mask = Simulation(market, config, split=split).attackable

    def scored(policy: Policy) -> float:
        run = run_policy(policy, market, config, split=split, alpha=0.05, with_outlook=False)
        return _SCORES[score](run)

    clean = scored(model)
    scores: dict[str, tuple[float, ...]] = {}
    for attack in attacks:
        attacked = (
            AttackedPolicy(model, attack=attack, epsilon=epsilon, seed=seed, norm=norm, steps=steps, mask=mask)
            for epsilon in epsilons
        )
        scores[attack] = (clean, *(scored(policy) for policy in attacked))
    return RobustnessCurve(split=split, score=score, norm=norm, steps=steps, epsilons=(0.0, *epsilons), scores=scores)


def write_curve(folder: Path, curve: RobustnessCurve) -> None:
    """Store a curve beside the backtest of its split; the report shows it."""
    write_atomically(folder / FILE, curve.model_dump_json(indent=1) + "\n")


def read_curve(folder: Path) -> RobustnessCurve | None:
    """What `write_curve` wrote; None where there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    try:
        return RobustnessCurve.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except (ValidationError, ValueError, RecursionError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RunDirectoryError(f"{path}: not a robustness curve: {what}; delete it or write it again") from None
