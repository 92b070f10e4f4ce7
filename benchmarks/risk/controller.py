"""The loop of multiplier and policy in small: on this the constants of `risk=` were chosen.

    python benchmarks/risk/controller.py

The policy is one number, the mean of a squashed Gaussian position. After each rollout it moves by `STEP` standard
deviations of its exploration per unit of z, the strength of the correlation between advantage and noise: what a clipped
update does, without a network. Tail, multiplier and advantage are those of docs/ideas/risk.md. Each line is 12 seeds.
It leaves out that PPO's clip forgets rare large costs first: in training, crashes end some per cent higher than here.

- position: root mean square of its relative error at the end
- tail: mean and worst CVaR of the last policy, divided by the limit
- swing: standard deviation of the multiplier over the last quarter, divided by its mean; median
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.maths import lagrangian

ALPHA, STEP, SEEDS = 0.05, 0.1, range(12)
Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]


@dataclass(frozen=True)
class Constants:
    proportional: float = 3.0
    learning_rate: float = 0.1
    smoothing: float = 0.5
    margin: float = 0.5
    std_scale_end: float | None = None  # None: 0.05, or 0.5 when the deployed policy is bound
    lr_scale_end: float = 0.3
    price_of_deployed: bool = False  # ν of the envs without noise, for the case that binds them
    widest: bool = True  # the integral is relative to the widest gap; else to the unit, as the proportional part is
    grows: bool = True  # both are times 1 + the integral
    narrowest: float = 0.3


@dataclass(frozen=True)
class Case:
    """Return of the asset, its CVaR at position 1, the limit as a share of it, and the budget."""

    name: str
    draw: Draw
    tail: float
    share: float
    rollout: int
    rollouts: int
    deployed: float = 0.0  # share of the envs that act without noise, and whose tail is bound


def gaussian(rng: np.random.Generator, n: int) -> Floats:
    return 0.01 + 0.02 * rng.standard_normal(n)


def crash(rng: np.random.Generator, n: int) -> Floats:
    return np.where(rng.random(n) < 0.01, -0.2, 0.01)


CASES = [
    *(Case(f"gaussian {share:.0%}", gaussian, 0.01 - 0.02 * 2.0627, share, 2048, 146) for share in (0.3, 0.5, 0.8)),
    Case("crash 50%", crash, -0.032, 0.5, 16_384, 25),
    Case("gaussian 50%, deployed", gaussian, 0.01 - 0.02 * 2.0627, 0.5, 2048, 146, deployed=0.5),
    Case("crash 50%, deployed", crash, -0.032, 0.5, 16_384, 25, deployed=0.5),
]
CHOICES = {
    "chosen": Constants(),
    "proportional 2, learning_rate 0.2": Constants(proportional=2.0, learning_rate=0.2),
    "smoothing 1": Constants(smoothing=1.0),
    "smoothing 0.2": Constants(smoothing=0.2),
    "smoothing 0.05": Constants(smoothing=0.05),
    "margin 0": Constants(margin=0.0),
    "margin 1": Constants(margin=1.0),
    "ν of the deployed": Constants(price_of_deployed=True),
    "std_scale_end 0.05": Constants(std_scale_end=0.05),
    "std_scale_end 0.2": Constants(std_scale_end=0.2),
    "integral relative to the unit": Constants(widest=False),
    "gains that do not grow": Constants(grows=False),
    "neither": Constants(widest=False, grows=False),
    "narrowest 0.1": Constants(narrowest=0.1),
    "lr_scale_end 1": Constants(lr_scale_end=1.0),
    "lr_scale_end 0.05": Constants(lr_scale_end=0.05),
}


def tail_of(outcomes: Floats) -> tuple[float, float]:
    """CVaR and value at risk."""
    worst = np.sort(outcomes)[: round(ALPHA * len(outcomes))]
    return float(worst.mean()), float(worst[-1])


def error_of(outcomes: Floats, value_at_risk: float) -> float:
    """Standard error of the CVaR."""
    return float(np.maximum(value_at_risk - outcomes, 0.0).std()) / ALPHA / len(outcomes) ** 0.5


def simulate(case: Case, constants: Constants, seed: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    limit, u, integral, previous, widest = case.share * case.tail, 0.0, 0.0, 0.0, 0.0
    tail = price = float("nan")
    multipliers = []
    quiet = int(case.deployed * case.rollout)
    learning, std = case.rollout - quiet, 1.0
    usual = 0.5 if quiet else 0.05
    end = usual if constants.std_scale_end is None else constants.std_scale_end
    for t in range(case.rollouts):
        progress = t / case.rollouts
        std = 1.0 + progress * (end - 1.0)
        noise = rng.standard_normal(learning)
        outcomes = _position(u + std * noise) * case.draw(rng, learning)
        bound = _position(np.full(quiet, u)) * case.draw(rng, quiet) if quiet else outcomes
        measured, value_at_risk = tail_of(bound)
        fresh = value_at_risk if constants.price_of_deployed else tail_of(outcomes)[1]
        weight = 1.0 if t == 0 else constants.smoothing
        tail = measured if t == 0 else tail + weight * (measured - tail)
        price = fresh if t == 0 else price + weight * (fresh - price)
        averaged = (constants.smoothing / (2.0 - constants.smoothing)) ** 0.5
        error = error_of(bound, value_at_risk)
        kept = tail - constants.margin * error * averaged
        unit = max(abs(limit), float(bound.std()))
        widest = max(0.97 * widest, abs(limit - kept))
        pace = unit / max(widest, constants.narrowest * unit, 3.0 * error) if constants.widest else 1.0
        grown = 1.0 + integral if constants.grows else 1.0
        multiplier, integral, previous = lagrangian.pid_step(
            integral, previous, kept / unit, limit=limit / unit, kp=constants.proportional * grown,
            ki=constants.learning_rate * pace * grown, kd=0.0, ceiling=100.0,
        )  # fmt: skip
        multipliers.append(multiplier)
        advantages = outcomes - multiplier * np.maximum(max(price, limit) - outcomes, 0.0) / ALPHA
        advantages = (advantages - advantages.mean()) / advantages.std()
        z = float((advantages * noise).mean()) * learning**0.5
        u += STEP * std * (1.0 + progress * (constants.lr_scale_end - 1.0)) * float(np.clip(z, -3.0, 3.0))
    explored = np.zeros(1_000_000) if quiet else std * rng.standard_normal(1_000_000)
    fresh_outcomes = _position(u + explored) * case.draw(rng, 1_000_000)
    last = np.array(multipliers[-case.rollouts // 4 :])
    swing = last.std() / max(last.mean(), 1e-12)
    return _position(np.array(u)).item() / case.share - 1.0, tail_of(fresh_outcomes)[0] / limit, float(swing)


def _position(u: Floats) -> Floats:
    return np.asarray(0.5 * (np.tanh(u) + 1.0))


def main() -> None:
    print("| constants | case | position | tail | worst tail | swing |\n|---|---|---|---|---|---|")
    for name, constants in CHOICES.items():
        for case in CASES:
            errors, tails, swings = np.array([simulate(case, constants, seed) for seed in SEEDS]).T
            print(
                f"| {name} | {case.name} | {np.sqrt(np.mean(errors**2)):.3f} | {tails.mean():.3f} | {tails.max():.3f} "
                f"| {np.median(swings):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
