"""The learner's equations once more, in NumPy and float64, from the papers and not from `leeward.maths`.

Slow and plain on purpose: sums where the learner has recursions, tables where it sorts.
"""

import math

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Floats",
    "clipped_surrogate",
    "critic_means",
    "cvar",
    "gae",
    "normalised",
    "return_moments",
    "value_loss",
]

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def gae(
    rewards: Floats, values: Floats, next_values: Floats, terminated: Flags, ended: Flags, *, gamma: float, lam: float
) -> Floats:  # all (T, B) -> (T, B)
    """Â_t = Σ_k (γλ)^k δ_{t+k} up to the end of the episode or the rollout; δ = r + γ (1 − terminated) V' − V.

    Schulman et al. 2016 (arXiv:1506.02438), eq. 16 as the sum it stands for.
    """
    delta = rewards + gamma * np.where(terminated, 0.0, next_values) - values
    advantages, alive, weight = np.zeros_like(delta), np.ones_like(ended), 1.0
    for k in range(len(delta)):
        reach = len(delta) - k
        alive = alive[:reach] & (~ended[k - 1 : len(delta) - 1] if k else True)  # nothing ended before step t + k
        advantages[:reach] += weight * np.where(alive, delta[k:], 0.0)
        weight *= gamma * lam
        if weight < 1e-18 or not alive.any():
            break
    return advantages


def normalised(advantages: Floats, learned: Flags, mode: str, floor: float) -> Floats:  # (T, B)
    """(A − mean) / std over the steps that are learned from, 0 elsewhere; all 0 where the spread is below the floor."""
    if mode == "none":
        return np.where(learned, advantages, 0.0)
    out = np.zeros_like(advantages)
    columns = [slice(None)] if mode == "global" else [slice(b, b + 1) for b in range(advantages.shape[1])]
    for own in columns:
        chosen = advantages[:, own][learned[:, own]]
        if len(chosen) == 0:
            continue
        spread = math.sqrt(float(np.mean((chosen - chosen.mean()) ** 2)))
        if spread >= max(floor, 1e-6 * float(np.abs(chosen).max())):
            out[:, own] = np.where(learned[:, own], (advantages[:, own] - chosen.mean()) / spread, 0.0)
    return out


def return_moments(
    rewards: Floats,  # (T, B)
    successor: tuple[Floats, Floats],  # mean and mean square (T, B) of the successor's distribution
    terminated: Flags,
    ended: Flags,
    *,
    gamma: float,
    lam: float,
) -> tuple[Floats, Floats]:  # (T, B) each
    """Mean and variance of G_t = r_t + γ (1 − terminated_t) X_t, X_t = G_{t+1} with probability λ, else a draw.

    The mean is the λ-return (Sutton and Barto 2018, eq. 12.20). At an end, and behind the last row, it is a draw.
    """
    mean, square = np.zeros_like(rewards), np.zeros_like(rewards)
    following = mean[0], square[0]  # of G_{t+1}; behind the last row nothing is known
    for t in reversed(range(len(rewards))):
        known = 0.0 if t == len(rewards) - 1 else lam
        goes_on = np.where(ended[t], 0.0, known)
        x, x2 = ((1.0 - goes_on) * drawn[t] + goes_on * seen for drawn, seen in zip(successor, following, strict=True))
        discount = gamma * ~terminated[t]
        mean[t] = rewards[t] + discount * x
        square[t] = rewards[t] ** 2 + 2.0 * rewards[t] * discount * x + discount**2 * x2
        following = mean[t], square[t]
    return mean, np.maximum(square - mean**2, 0.0)


def critic_means(raw: Floats, values: Floats, weights: Floats | None) -> Floats:  # (..., N) -> (...)
    """The mean that a head's outputs stand for: Σ w q of decoded quantiles, Σ softmax · atom of logits."""
    if weights is not None:
        return np.asarray((values * weights).sum(-1))
    powers = np.exp(raw - raw.max(-1, keepdims=True))
    return np.asarray((powers / powers.sum(-1, keepdims=True) * values).sum(-1))


def clipped_surrogate(log_ratio: Floats, advantages: Floats, clip_range: float) -> Floats:
    """−min(r A, clip(r, 1 − ε, 1 + ε) A): Schulman et al. 2017 (arXiv:1707.06347), eq. 7, as a loss."""
    r = np.exp(np.clip(log_ratio, -20.0, 20.0))
    return -np.minimum(r * advantages, np.clip(r, 1.0 - clip_range, 1.0 + clip_range) * advantages)


def value_loss(
    kind: str, raw: Floats, targets: Floats, grid: Floats, *, kappa: float
) -> Floats:  # (n, N), (n, M), (N,) -> (n,)
    """The loss of one critic at n steps; `grid` are the levels, or the atoms. Targets are in the unit of `raw`.

    quantile     mean over levels and targets of |τ − 1{u < 0}| · huber(u) / κ, u = target − quantile; κ = 0: |u|
    categorical  cross-entropy with the targets projected onto the atoms, divided by ln K
    scalar       squared error to the mean target
    """
    if kind == "scalar":
        return np.asarray((raw[:, 0] - targets.mean(-1)) ** 2)
    if kind == "quantile":
        u = targets[:, None, :] - raw[:, :, None]  # (n, N, M)
        size = np.abs(u)
        if kappa > 0.0:
            size = np.where(size <= kappa, 0.5 * u**2 / kappa, size - 0.5 * kappa)
        return np.asarray((np.abs(grid[None, :, None] - (u < 0.0)) * size).mean((1, 2)))
    atoms, wanted = len(grid), np.zeros(raw.shape)
    place = np.clip((targets - grid[0]) / (grid[1] - grid[0]), 0.0, atoms - 1.0)
    below = np.minimum(np.floor(place).astype(int), atoms - 2)
    for m in range(targets.shape[1]):
        rows = np.arange(len(targets))
        np.add.at(wanted, (rows, below[:, m]), (1.0 - (place - below)[:, m]) / targets.shape[1])
        np.add.at(wanted, (rows, below[:, m] + 1), (place - below)[:, m] / targets.shape[1])
    highest = raw.max(-1, keepdims=True)
    log_probs = raw - highest - np.log(np.exp(raw - highest).sum(-1, keepdims=True))
    return np.asarray(-(wanted * log_probs).sum(-1) / math.log(atoms))


def cvar(samples: Floats, alpha: float) -> float:  # (n,) -> ()
    """The mean of the worst α of the samples, the one on the edge counted by the part of it that belongs."""
    ordered, mass = np.sort(samples), alpha * len(samples)
    whole = min(int(mass), len(ordered))
    part = mass - whole
    rest = part * ordered[whole] if part > 0.0 and whole < len(ordered) else 0.0
    return float((ordered[:whole].sum() + rest) / mass)
