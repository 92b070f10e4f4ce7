"""The loop of multiplier and policy in small: on this the constants of `risk=` were chosen.

    python benchmarks/risk/controller.py [--write]

The policy is one number, the mean of a squashed Gaussian position, and the width of its noise. After each rollout both
move as PPO moves them, by minibatches, with its clip, the clip of the gradient's norm and Adam, without a network.
Tail, multiplier and advantage are those of docs/ideas/risk.md. Each line is 8 seeds.

- position: root mean square of its relative error at the end
- tail: mean, standard deviation and worst of the last policy's CVaR, divided by the limit (of what the position adds,
  where X has a constant part)
- swing: standard deviation of the multiplier over the last quarter, divided by its mean; median
"""

import argparse
import pathlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from leeward.maths import lagrangian

ALPHA, SEEDS = 0.05, range(8)
PAGE = pathlib.Path(__file__).parent / "RESULTS_controller.md"
# PPO's defaults. An input that is always the same moves the output of a network of two layers of 64 through all of its
# weights at once: so many times the rate of one, and its gradient has so many times the norm.
RATE, CLIP, NORM, EPOCHS, BATCH = 3e-4, 0.2, 0.5, 10, 128
WEIGHTS, LENGTH = 14.0, 2.1
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
    clip_scale_end: float | None = None  # None: 1, or 0.3 when the deployed policy is bound
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
    constant: float = 0.0  # what X has beside the position's return: it brings a limit near 0, far below the std of X


def gaussian(rng: np.random.Generator, n: int) -> Floats:
    return 0.01 + 0.02 * rng.standard_normal(n)


def crash(rng: np.random.Generator, n: int) -> Floats:
    return np.where(rng.random(n) < 0.01, -0.2, 0.01)


def rich(rng: np.random.Generator, n: int) -> Floats:
    return 0.03 + 0.02 * rng.standard_normal(n)


NORMAL_TAIL = -2.0627  # CVaR of a standard normal variable
GAUSSIAN, RICH = 0.01 + 0.02 * NORMAL_TAIL, 0.03 + 0.02 * NORMAL_TAIL
CASES = [
    *(Case(f"gaussian {share:.0%}", gaussian, GAUSSIAN, share, 2048, 146) for share in (0.3, 0.5, 0.8)),
    Case("crash 50%", crash, -0.032, 0.5, 16_384, 25),
    Case("gaussian 50%, deployed", gaussian, GAUSSIAN, 0.5, 2048, 146, deployed=0.5),
    Case("crash 50%, deployed", crash, -0.032, 0.5, 16_384, 25, deployed=0.5),
    # As in family.py: few outcomes in a rollout, a limit of 0, and a multiplier of 3 needed.
    Case("few outcomes, limit 0", rich, RICH, 0.5, 256, 488, constant=-0.5 * RICH),
]
CHOICES = {
    "chosen": Constants(),
    "integral relative to the unit, gains that do not grow": Constants(widest=False, grows=False),
    "integral relative to the unit": Constants(widest=False),
    "clip_scale_end 1": Constants(clip_scale_end=1.0),
    "clip_scale_end 0.3, deployed or not": Constants(clip_scale_end=0.3),
    "clip_scale_end 0.1, deployed or not": Constants(clip_scale_end=0.1),
    "smoothing 1": Constants(smoothing=1.0),
    "smoothing 0.2": Constants(smoothing=0.2),
    "proportional 1.5": Constants(proportional=1.5),
    "margin 0": Constants(margin=0.0),
    "margin 1": Constants(margin=1.0),
    "std_scale_end 0.2": Constants(std_scale_end=0.2),
    "ν of the deployed": Constants(price_of_deployed=True),
}


def tail_of(outcomes: Floats) -> tuple[float, float]:
    """CVaR and value at risk."""
    worst = np.sort(outcomes)[: round(ALPHA * len(outcomes))]
    return float(worst.mean()), float(worst[-1])


def error_of(outcomes: Floats, value_at_risk: float) -> float:
    """Standard error of the CVaR."""
    return float(np.maximum(value_at_risk - outcomes, 0.0).std()) / ALPHA / len(outcomes) ** 0.5


class Policy:
    """Mean and log std of the noise, moved by PPO."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.mean, self.log_std = 0.0, 0.0
        self.first, self.second, self.steps = np.zeros(2), np.zeros(2), 0  # Adam's

    def learn(self, noises: Floats, scale: float, advantages: Floats, rate: float, clip: float) -> None:  # (n,), (n,)
        """`scale` is on the std, `noises` are those of the actions taken."""
        actions = self.mean + np.exp(self.log_std) * scale * noises
        before = -0.5 * noises**2 - self.log_std
        for _ in range(EPOCHS):
            order = self.rng.permutation(len(noises))
            for start in range(0, len(noises), BATCH):
                rows = order[start : start + BATCH]
                std = np.exp(self.log_std) * scale
                z = (actions[rows] - self.mean) / std
                ratio = np.exp(-0.5 * z * z - self.log_std - before[rows])
                gain = advantages[rows]
                clipped = np.where(gain > 0.0, ratio > 1.0 + clip, ratio < 1.0 - clip)
                weight = gain * ratio * ~clipped
                self._step(-np.array([(weight * z).mean() / std, (weight * (z * z - 1.0)).mean()]), rate)

    def _step(self, gradient: Floats, rate: float) -> None:
        gradient = gradient * min(1.0, NORM / (float(np.hypot(LENGTH * gradient[0], gradient[1])) + 1e-6))
        self.steps += 1
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = 0.999 * self.second + 0.001 * gradient**2
        root = np.sqrt(self.second / (1.0 - 0.999**self.steps)) + 1e-5
        step = rate * self.first / (1.0 - 0.9**self.steps) / root
        self.mean -= WEIGHTS * float(step[0])
        self.log_std -= float(step[1])


def simulate(case: Case, constants: Constants, seed: int) -> tuple[float, float, float]:
    rng = np.random.default_rng(seed)
    limit, integral, previous, widest = case.share * case.tail + case.constant, 0.0, 0.0, 0.0
    policy = Policy(rng)
    tail = price = float("nan")
    multipliers = []
    quiet = int(case.deployed * case.rollout)
    learning, std = case.rollout - quiet, 1.0
    std_end = (0.5 if quiet else 0.05) if constants.std_scale_end is None else constants.std_scale_end
    clip_end = (0.3 if quiet else 1.0) if constants.clip_scale_end is None else constants.clip_scale_end
    for t in range(case.rollouts):
        progress = t / case.rollouts
        scale = 1.0 + progress * (std_end - 1.0)
        noise, std = rng.standard_normal(learning), np.exp(policy.log_std) * scale
        outcomes = _position(policy.mean + std * noise) * case.draw(rng, learning) + case.constant
        held = _position(np.full(quiet, policy.mean))
        bound = held * case.draw(rng, quiet) + case.constant if quiet else outcomes
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
        rate = RATE * (1.0 + progress * (constants.lr_scale_end - 1.0))
        policy.learn(noise, scale, advantages, rate, CLIP * (1.0 + progress * (clip_end - 1.0)))
    explored = np.zeros(1_000_000) if quiet else std * rng.standard_normal(1_000_000)
    fresh_outcomes = _position(policy.mean + explored) * case.draw(rng, 1_000_000)
    last = np.array(multipliers[-case.rollouts // 4 :])
    swing = last.std() / max(last.mean(), 1e-12)
    off = _position(np.array(policy.mean)).item() / case.share - 1.0
    return off, tail_of(fresh_outcomes)[0] / (case.share * case.tail), float(swing)


def _position(u: Floats) -> Floats:
    return np.asarray(0.5 * (np.tanh(u) + 1.0))


def table() -> str:
    lines = ["| constants | case | position | tail | std | worst | swing |", "|---|---|---|---|---|---|---|"]
    for name, constants in CHOICES.items():
        for case in CASES:
            errors, tails, swings = np.array([simulate(case, constants, seed) for seed in SEEDS]).T
            lines.append(
                f"| {name} | {case.name} | {np.sqrt(np.mean(errors**2)):.3f} | {tails.mean():.3f} | {tails.std():.3f} "
                f"| {tails.max():.3f} | {np.median(swings):.2f} |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"store the table in {PAGE.name}")
    title = (
        "# The controller's constants, on a simulation of the loop\n\n`python benchmarks/risk/controller.py --write`"
    )
    write, text = parser.parse_args().write, table()
    if write:
        PAGE.write_text(f"{title}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
