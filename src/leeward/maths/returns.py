"""Returns and advantages along a rollout, where episodes end in two ways.

`terminated`: the episode is over and worth nothing more. `ended`: terminated *or* truncated. A truncated step
bootstraps from its own final observation; neither lets anything of the next episode through.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from leeward.errors import ArgumentError, ShapeError
from leeward.maths.checks import (
    check_finite,
    check_last_axis,
    check_levels,
    check_same_shape,
    check_unit,
    check_weights,
)

__all__ = ["distributional_targets", "gae", "lambda_returns"]


def gae(
    rewards: Tensor, values: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, *, gamma: float, lam: float
) -> Tensor:  # all (T, B) -> (T, B)
    """Generalised advantage estimates; truncated episodes bootstrap, terminated ones do not.

    δ_t = r_t + γ (1 − terminated_t) V'_t − V_t        Â_t = δ_t + γλ (1 − ended_t) Â_{t+1}
    Schulman et al. 2016 (arXiv:1506.02438), eq. 16; the split of `ended` is ours. No reduction.
    `next_values[t]` is the value of the observation that followed step t: at a truncation its *final* observation,
    never the first of the next episode.
    """
    _check_rollout(rewards, terminated, ended)
    check_same_shape(rewards=rewards, values=values, next_values=next_values)
    check_unit(gamma=gamma, lam=lam)
    check_finite(rewards=rewards, values=values, next_values=next_values)
    deltas = rewards + gamma * next_values * ~terminated - values  # (T, B)
    carry = (gamma * lam) * (~ended).to(deltas.dtype)  # (T, B)
    advantages, running = torch.empty_like(deltas), torch.zeros_like(deltas[0])
    for delta, share, advantage in _last_first(deltas, carry, advantages):
        running = torch.addcmul(delta, share, running, out=advantage)
    return advantages


def lambda_returns(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, ended: Tensor, *, gamma: float, lam: float
) -> Tensor:  # all (T, B) -> (T, B)
    """The λ-return of each step: what `distributional_targets` samples, in the mean.

    G_t = r_t + γ (1 − terminated_t) [ (1 − c_t) V'_t + c_t G_{t+1} ],  c_t = λ (1 − ended_t), c_{T−1} = 0
    Sutton & Barto 2018, eq. 12.20. No reduction.
    """
    _check_rollout(rewards, terminated, ended)
    check_same_shape(rewards=rewards, next_values=next_values)
    check_unit(gamma=gamma, lam=lam)
    check_finite(rewards=rewards, next_values=next_values)
    goes_on = lam * (~ended).to(rewards.dtype)  # (T, B)
    goes_on[-1] = 0.0
    discount = gamma * (~terminated).to(rewards.dtype)  # (T, B)
    ahead = next_values.to(rewards.dtype)
    targets, following = torch.empty_like(rewards), ahead[-1]
    for reward, factor, value, share, target in _last_first(rewards, discount, ahead, goes_on, targets):
        following = torch.addcmul(reward, factor, torch.lerp(value, following, share), out=target)  # (B,)
    return targets


def distributional_targets(
    rewards: Tensor,  # (T, B)
    next_quantiles: Tensor,  # (T, B, N), or (N,) when only the weights differ (a categorical critic's support)
    levels: Tensor | None,  # (N,), only checked; None for atoms
    weights: Tensor,  # (N,) or (T, B, N)
    terminated: Tensor,  # (T, B) bool
    ended: Tensor,  # (T, B) bool
    *,
    gamma: float,
    lam: float,
    n_samples: int,
    generator: torch.Generator,
) -> Tensor:  # (T, B, M)
    """Samples of the return whose mean is the λ-return and whose spread is the return's own.

    G_t^m = r_t + γ (1 − terminated_t) X_t^m
    X_t^m = G_{t+1}^m with probability λ, where the trajectory goes on inside the rollout; else a draw from the
            successor's distribution, value i with probability w_i.
    Regressing on the *mean* λ-return instead erases the variance of all that comes after (docs/lessons.md, F2).
    The M draws of one step are systematic: u_m = (m + U)/M with one uniform U, so that they cover the distribution
    evenly; each is still a draw by weight. Ours, after Dabney et al. 2018 (arXiv:1710.10044) for λ = 0. No reduction.
    """
    _check_rollout(rewards, terminated, ended)
    T, B = rewards.shape
    check_unit(gamma=gamma, lam=lam)
    check_finite(rewards=rewards, next_quantiles=next_quantiles)
    check_last_axis(next_quantiles=next_quantiles)
    check_weights(weights)
    N = next_quantiles.shape[-1]
    for name, tensor in (("next_quantiles", next_quantiles), ("weights", weights)):
        if tuple(tensor.shape) not in ((N,), (T, B, N)):
            raise ShapeError(f"{name} must be (N,) or (T, B, N) = {(T, B, N)}, got {tuple(tensor.shape)}")
    if levels is not None:
        check_levels(levels)
        if len(levels) != N:
            raise ShapeError(f"levels must have one entry per quantile, {N}, got {len(levels)}")
    if n_samples < 1:
        raise ArgumentError(f"n_samples must be at least 1, got {n_samples}")

    draws = _systematic_draws(next_quantiles, weights, (T, B, n_samples), generator)  # (T, B, M)
    uniforms = torch.rand((T, B, n_samples), generator=generator, device=rewards.device, dtype=rewards.dtype)
    along = (uniforms < lam) & ~ended.unsqueeze(-1)  # (T, B, M)
    along[-1] = False
    discount = gamma * (~terminated).to(rewards.dtype)  # (T, B)
    targets, following = torch.empty_like(draws), draws[-1]
    columns = (rewards.unsqueeze(-1), discount.unsqueeze(-1), along, draws, targets)
    for reward, factor, goes_on, draw, target in _last_first(*columns):
        following = torch.addcmul(reward, factor, torch.where(goes_on, following, draw), out=target)  # (B, M)
    return targets


def _last_first(*columns: Tensor) -> Iterator[tuple[Tensor, ...]]:  # each (T, ...)
    """Step by step, the last first; unbound at once, since to index by t costs more than what is computed."""
    steps: list[tuple[Tensor, ...]] = list(zip(*(column.unbind() for column in columns), strict=True))
    return reversed(steps)


def _systematic_draws(
    values: Tensor, weights: Tensor, shape: tuple[int, int, int], generator: torch.Generator
) -> Tensor:  # (N,) or (T, B, N) each -> (T, B, M)
    T, B, M = shape
    N = values.shape[-1]
    offset = torch.rand((T, B, 1), generator=generator, device=values.device, dtype=values.dtype)
    points = (torch.arange(M, device=values.device, dtype=values.dtype) + offset) / M  # (T, B, M)
    edges = weights.to(torch.float64).cumsum(-1).to(values.dtype)  # (N,) or (T, B, N)
    total = edges[..., -1:]  # 1 but for rounding
    # Strictly below the total: a point that rounds up to it would draw the last value even at weight 0.
    points = torch.minimum(points * total, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(edges.contiguous(), points, right=True)
    return values.expand(T, B, N).gather(-1, index)


def _check_rollout(rewards: Tensor, terminated: Tensor, ended: Tensor) -> None:
    if rewards.ndim != 2 or rewards.numel() == 0:
        raise ShapeError(f"rewards must be (T, B) with at least one step and env, got shape {tuple(rewards.shape)}")
    check_same_shape(rewards=rewards, terminated=terminated, ended=ended)
    if terminated.dtype != torch.bool or ended.dtype != torch.bool:
        raise ArgumentError(f"terminated and ended must be bool, got {terminated.dtype} and {ended.dtype}")
    if bool((terminated & ~ended).any()):
        raise ArgumentError("a terminated step must also be ended; got terminated without ended")
