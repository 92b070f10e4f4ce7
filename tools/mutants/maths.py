"""Faults of the equations."""

from tools.mutants import Mutant
from tools.mutants import row as any_row

__all__ = ["MUTANTS"]


def row(name: str, place: str, was: str, fault: str, test: str = "") -> Mutant:
    """A fault in a file of `maths/`; without a test of its own, that of the same name shows it."""
    return any_row(name, f"maths/{place}", was, fault, f"maths/test_{test or place.partition(':')[0]}.py")


MUTANTS = [
    # Returns, advantages, bootstrapping
    row(
        "E-gae leak over a truncation",
        "returns:gae",
        "carry = (gamma * lam) * (~ended).to(deltas.dtype)",
        "carry = (gamma * lam) * (~terminated).to(deltas.dtype)",
    ),
    row(
        "B-gae bootstrap of a terminated step",
        "returns:gae",
        "deltas = rewards + gamma * next_values * ~terminated - values",
        "deltas = rewards + gamma * next_values - values",
    ),
    row(
        "B-gae no bootstrap at a truncation",
        "returns:gae",
        "deltas = rewards + gamma * next_values * ~terminated - values",
        "deltas = rewards + gamma * next_values * ~ended - values",
    ),
    row(
        "A-math2 carry without lambda",
        "returns:gae",
        "carry = (gamma * lam) * (~ended).to(deltas.dtype)",
        "carry = gamma * (~ended).to(deltas.dtype)",
    ),
    row(
        "F2 bootstrap with the mean of the next distribution",
        "returns:_systematic_draws",
        "return values.expand(T, B, N).gather(-1, index)",
        "return (values.expand(T, B, N) * weights).sum(-1, keepdim=True).expand(T, B, M).clone()",
    ),
    row(
        "F2 samples leak over a truncation",
        "returns:distributional_targets",
        "along = (uniforms < lam) & ~ended.unsqueeze(-1)",
        "along = (uniforms < lam) & ~terminated.unsqueeze(-1)",
    ),
    row(
        "F2 samples go on beyond a termination",
        "returns:distributional_targets",
        "torch.addcmul(reward, factor, torch.where(goes_on, following, draw), out=target)",
        "torch.add(reward, torch.where(goes_on, following, draw), alpha=gamma, out=target)",
    ),
    row("F2 lambda inverted", "returns:distributional_targets", "uniforms < lam", "uniforms >= lam"),
    row(
        "F2 draws ignore the weights",
        "returns:_systematic_draws",
        "edges = weights.to(torch.float64).cumsum(-1).to(values.dtype)",
        "edges = torch.full_like(weights, 1.0 / N, dtype=torch.float64).cumsum(-1).to(values.dtype)",
    ),
    row(
        "draws of weight zero",
        "returns:_systematic_draws",
        "points = torch.minimum(points * total, torch.nextafter(total, torch.zeros_like(total)))\n"
        "index = torch.searchsorted(edges.contiguous(), points, right=True)",
        "index = torch.searchsorted(edges.contiguous(), points, right=True).clamp_(max=N - 1)",
    ),
    row(
        "hidden randomness",
        "returns:distributional_targets",
        "uniforms = torch.rand((T, B, n_samples), generator=generator, device=rewards.device, dtype=rewards.dtype)",
        "uniforms = torch.rand((T, B, n_samples), device=rewards.device, dtype=rewards.dtype)",
    ),
    row("A2 tiny variance looks like signal", "advantage:_statistics", "std < floor", "std < 0.0"),
    row(
        "A2 no relative floor",
        "advantage:_statistics",
        "floor = (rel_floor * exact.abs().amax(axes, keepdim=True)).clamp(min=abs_floor)",
        "floor = torch.full_like(std, abs_floor)",
    ),
    row(
        "A9 statistics count padded rows",
        "advantage:_statistics",
        "count = real.sum(axes, keepdim=True).clamp(min=1)",
        "count = torch.ones_like(real).sum(axes, keepdim=True)",
    ),
    row(
        "A9 per_env normalises globally",
        "advantage:_statistics",
        "axes = (0,) if mode == 'per_env' else tuple(range(advantages.ndim))",
        "axes = tuple(range(advantages.ndim))",
    ),
    row(
        "A9 mean in float32",
        "advantage:_statistics",
        "exact = advantages.to(torch.float64).masked_fill(~real, 0.0)",
        "exact = advantages.masked_fill(~real, 0.0)",
    ),
    # Policy objective
    row(
        "B-ppo clip sign",
        "policy_loss:clipped_surrogate",
        "torch.maximum(costs * r, costs * r.clamp(1.0 - clip_range, 1.0 + clip_range))",
        "torch.minimum(costs * r, costs * r.clamp(1.0 - clip_range, 1.0 + clip_range))",
    ),
    row(
        "B-ppo one-sided clip",
        "policy_loss:clipped_surrogate",
        "r.clamp(1.0 - clip_range, 1.0 + clip_range)",
        "r.clamp(max=1.0 + clip_range)",
    ),
    row(
        "A6 NaN log-ratios hidden",
        "policy_loss:ratio",
        "return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()",
        "return log_ratio.nan_to_num().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()",
    ),
    row(
        "A6 no clamp before exp",
        "policy_loss:ratio",
        "return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()",
        "return log_ratio.exp()",
    ),
    row("A12 k1 sign", "policy_loss:kl_k1", "return -log_ratio", "return log_ratio"),
    row("A12 k3 without its control variate", "policy_loss:kl_k3", "clamped.expm1() - clamped", "clamped.expm1()"),
    row(
        "A12 k3 of the other direction",
        "policy_loss:kl_k3",
        "clamped.expm1() - clamped",
        "(-clamped).expm1() + clamped",
    ),
    row(
        "E-AWR exponent without clamp",
        "policy_loss:awr_weights",
        "(advantages.detach() / beta).clamp(max=math.log(max_weight)).exp()",
        "(advantages.detach() / beta).exp()",
    ),
    row(
        "E-AWR cap on the exponent instead of the weight",
        "policy_loss:awr_weights",
        "(advantages.detach() / beta).clamp(max=math.log(max_weight)).exp()",
        "(advantages.detach() / beta).clamp(max=max_weight).exp()",
    ),
    row(
        "E-AWR gradient through the weight",
        "policy_loss:awr_weights",
        "advantages.detach() / beta",
        "advantages / beta",
    ),
    row(
        "A5 entropy not joint",
        "squashed:entropy",
        "(0.5 * math.log(2.0 * math.pi * math.e) + log_std + slope + half_range.log()).sum(-1)",
        "0.5 * math.log(2.0 * math.pi * math.e) + log_std + slope + half_range.log()",
    ),
    row(
        "A5 entropy averaged over actions",
        "squashed:entropy",
        "(0.5 * math.log(2.0 * math.pi * math.e) + log_std + slope + half_range.log()).sum(-1)",
        "(0.5 * math.log(2.0 * math.pi * math.e) + log_std + slope + half_range.log()).mean(-1)",
    ),
    row(
        "entropy without the squash",
        "squashed:entropy",
        "0.5 * math.log(2.0 * math.pi * math.e) + log_std + slope + half_range.log()",
        "0.5 * math.log(2.0 * math.pi * math.e) + log_std + half_range.log()",
    ),
    row(
        "log-prob without the tanh term",
        "squashed:log_prob",
        "gaussian - log_slope(u) - half_range.log()",
        "gaussian - half_range.log()",
    ),
    row(
        "log-prob without the range",
        "squashed:log_prob",
        "gaussian - log_slope(u) - half_range.log()",
        "gaussian - log_slope(u)",
    ),
    row(
        "log slope where tanh saturates",
        "squashed:log_slope",
        "return 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))",
        "return (1.0 - u.tanh().square() + 1e-6).log()",
    ),
    # Value distribution
    row("A-math3 asymmetry flipped in the table", "quantile:huber_loss", "u < 0.0", "u > 0.0"),
    row("A-math3 a target on its quantile is below it", "quantile:huber_loss", "u < 0.0", "u <= 0.0"),
    row(
        "A-math3 kappa not divided out of the table",
        "quantile:huber_loss",
        "u.square() / (2.0 * kappa)",
        "u.square() / 2.0",
    ),
    row("A-math3 the table is not continuous at kappa", "quantile:huber_loss", "size - 0.5 * kappa", "size"),
    row(
        "A-math3 asymmetry flipped",
        "quantile_sorted:sorted_huber_loss",
        "loss = (1.0 - levels) * under + levels * over",
        "loss = levels * under + (1.0 - levels) * over",
    ),
    row(
        "A-math3 no asymmetry",
        "quantile_sorted:sorted_huber_loss",
        "loss = (1.0 - levels) * under + levels * over",
        "loss = 0.5 * under + 0.5 * over",
    ),
    row(
        "A-math3 pinball flipped",
        "quantile_sorted:sorted_huber_loss",
        "count - M * levels",
        "count - M * (1.0 - levels)",
    ),
    row(
        "A-math3 a target on its quantile is below it, on sorted targets",
        "quantile_sorted:sorted_huber_loss.below",
        "torch.searchsorted(ordered.contiguous(), thresholds.detach().flatten(-2).contiguous())",
        "torch.searchsorted(ordered.contiguous(), thresholds.detach().flatten(-2).contiguous(), right=True)",
    ),
    row(
        "A-math3 compiled pinball flipped",
        "quantile_compiled:_pass",
        "aims[n] = M * np.float64(levels[n])",
        "aims[n] = M * (1.0 - np.float64(levels[n]))",
        test="quantile_sorted",
    ),
    row(
        "A-math3 compiled: a target on its quantile is below it",
        "quantile_compiled:_pass",
        "np.int32(targets[r, m] < q[n])",
        "np.int32(targets[r, m] <= q[n])",
        test="quantile_sorted",
    ),
    row(
        "A-math3 compiled: the gradient of all rows alike",
        "quantile_compiled:_Pinball.backward",
        "gradient.unsqueeze(-1) * slope",
        "gradient.mean() * slope",
        test="quantile_sorted",
    ),
    row("A-math3 sum over levels", "quantile_sorted:sorted_huber_loss", "loss.mean(-1) / M", "loss.sum(-1) / M"),
    row(
        "tanh layers: a number that is none comes out as one",
        "tanh_layers:_squash",
        "x = -_END if x < -_END else x",
        "x = x if x > -_END else -_END",
    ),
    row(
        "tanh layers: a unit at its end learns as one in the middle",
        "tanh_layers:_TanhLayers.backward",
        "gradient = torch.ops.aten.tanh_backward(gradient, found[layer + 1])",
        "gradient = gradient",
    ),
    row(
        "tanh layers: rows of another order",
        "tanh_layers:tanh_layers",
        "_forward(inputs.reshape(-1, inputs.shape[-1]), squashed, parameters)[-1]",
        "_forward(inputs.flip(0).reshape(-1, inputs.shape[-1]), squashed, parameters)[-1]",
    ),
    row(
        "A-math3 kappa not divided out",
        "quantile_sorted:sorted_huber_loss",
        "under = low * (q - 0.5 * kappa) - low_first + near_under / (2.0 * kappa)",
        "under = kappa * (low * (q - 0.5 * kappa) - low_first) + near_under / 2.0",
    ),
    row(
        "A-math3 quadratic part halved twice",
        "quantile_sorted:sorted_huber_loss",
        "near_over / (2.0 * kappa)",
        "near_over / (4.0 * kappa)",
    ),
    row(
        "float32 sums not centred",
        "quantile_sorted:with_sums",
        "centred = values - values[..., values.shape[-1] // 2, None]",
        "centred = values",
    ),
    row(
        "levels unchecked by the loss",
        "quantile:huber_loss",
        "check_levels(levels)",
        "pass",
    ),
    row(
        "a value at risk one sample too low where α·n is not whole",
        "cvar:value_at_risk",
        "math.ceil(alpha * samples.shape[-1] - 1e-9)",
        "math.floor(alpha * samples.shape[-1])",
    ),
    row(
        "the error of a tail is that of a mean",
        "cvar:standard_error",
        "return ((beside - samples).clamp(min=0.0) / alpha).std(-1, correction=0) / math.sqrt(M)",
        "return samples.std(-1, correction=0) / math.sqrt(M)",
    ),
    row(
        "A10 tail grid with uniform nodes",
        "quantile:_tail_levels",
        "tail, tail_weights = gauss_legendre(n_tail, 0.0, alpha)",
        "tail, tail_weights = uniform_levels(n_tail)[0] * alpha, uniform_levels(n_tail)[1] * alpha",
        "cvar",
    ),
    row(
        "B2 cross-entropy not divided",
        "categorical:cross_entropy",
        "unit = math.log(K) if K >= 2 else 1.0",
        "unit = 1.0",
    ),
    row(
        "B2 divided by ln 1", "categorical:cross_entropy", "unit = math.log(K) if K >= 2 else 1.0", "unit = math.log(K)"
    ),
    row("B2 divided by K", "categorical:cross_entropy", "unit = math.log(K) if K >= 2 else 1.0", "unit = float(K)"),
    row(
        "A4 projection rounds to one atom",
        "categorical:spread",
        "share = place - lower",
        "share = (place - lower).round()",
    ),
    row(
        "A4 mass outside the support lost",
        "categorical:spread",
        "up = probs * share",
        "up = probs * share * (values.abs() <= support[-1])",
    ),
    row(
        "A-math1 mean_only gives the old spread back",
        "value_clipping:_shift_mean",
        "return new + (mean.clamp(centre - radius, centre + radius) - mean)",
        "return old + (mean.clamp(centre - radius, centre + radius) - centre)",
    ),
    row(
        "A-math1 clip toward zero, not toward the old mean",
        "value_clipping:_shift_mean",
        "return new + (mean.clamp(centre - radius, centre + radius) - mean)",
        "return new + (mean.clamp(-radius, radius) - mean)",
    ),
    row(
        "A-math1 expand instead of shrink",
        "value_clipping:_shift_and_shrink",
        "std > allowed",
        "std > 0",
    ),
    row(
        "A-math1 spread not held",
        "value_clipping:_shift_and_shrink",
        "return mean + (shifted - mean) * shrink",
        "return shifted",
    ),
    row(
        "A-math1 grid weights ignored",
        "value_clipping:_mean",
        "return (quantiles * weights).sum(-1, keepdim=True)",
        "return quantiles.mean(-1, keepdim=True)",
    ),
    row(
        "A-math1 per_quantile against zero",
        "value_clipping:_clamp_each",
        "new.clamp(old - radius, old + radius)",
        "new.clamp(-radius, radius)",
    ),
    row(
        "A6 non-finite prediction hidden by the clip",
        "value_clipping:clip_categorical",
        "torch.where(shift == 0.0, new, torch.lerp(shifted, old, share))",
        "torch.where(shift == 0.0, new.nan_to_num(), torch.lerp(shifted, old, share))",
    ),
    row(
        "C3 rescale leaves the bias",
        "normalisation:popart_rescale",
        "shifted = (bias.to(torch.float64) * std + (mean - new_mean)) / new_std",
        "shifted = bias.to(torch.float64) * (std / new_std)",
    ),
    row(
        "C3 rescale the wrong way",
        "normalisation:popart_rescale",
        "scaled = weight.to(torch.float64) * (std / new_std)",
        "scaled = weight.to(torch.float64) * (new_std / std)",
    ),
    row(
        "C3 variance of a merge without the gap of the means",
        "normalisation:merge_moments",
        "square_sum + other_square_sum + delta.square() * (count * other_count / total)",
        "square_sum + other_square_sum",
    ),
    row(
        "explained variance of the wrong side",
        "diagnostics:explained_variance",
        "share = 1.0 - residual.var(correction=0) / variance",
        "share = 1.0 - residual.square().mean() / variance",
    ),
    row(
        "explained variance of rounding",
        "diagnostics:explained_variance",
        "varies = variance > (1e-12 * exact.abs().max()).square()",
        "varies = variance >= 0.0",
    ),
    row(
        "coverage counts above",
        "diagnostics:coverage",
        "return below.reshape(-1, quantiles.shape[-1]).mean(0) / targets.shape[-1]",
        "return targets.shape[-1] - below.reshape(-1, quantiles.shape[-1]).mean(0) / targets.shape[-1]",
    ),
    row(
        "crossing counts ties", "diagnostics:crossing_rate", "quantiles.diff(dim=-1) < 0", "quantiles.diff(dim=-1) <= 0"
    ),
    # Risk
    row(
        "A10 discontinuous in alpha",
        "cvar:_tail_mean",
        "inside = torch.minimum((alpha - left).clamp(min=0.0), widths)",
        "inside = widths * (left < alpha)",
    ),
    row(
        "D6 atom at the value at risk not split",
        "cvar:_tail_mean",
        "inside = torch.minimum((alpha - left).clamp(min=0.0), widths)",
        "inside = torch.where(left + widths <= alpha, widths, torch.zeros_like(widths)) + 1e-300",
    ),
    row(
        "A10 quantiles not sorted",
        "cvar:from_quantiles",
        "_tail_mean(quantiles.sort(-1).values, weights, alpha)",
        "_tail_mean(quantiles, weights, alpha)",
    ),
    row(
        "D6 atoms not sorted",
        "cvar:from_atoms",
        "ordered, order = support.sort()",
        "ordered, order = support, torch.arange(len(support))",
    ),
    row(
        "G3 tail winsorised",
        "cvar:from_samples",
        "return from_quantiles(samples, alpha)",
        "return from_quantiles(samples.clamp(min=samples.quantile(0.05, -1, keepdim=True)), alpha)",
    ),
    row(
        "A10 upper tail",
        "cvar:from_quantiles",
        "quantiles.sort(-1).values",
        "quantiles.sort(-1, descending=True).values",
    ),
    row(
        "A10 weights ignored",
        "cvar:_tail_mean",
        "widths = weights.to(torch.float64)",
        "widths = torch.ones_like(weights).to(torch.float64) / weights.shape[-1]",
    ),
    row("E-rec2 alpha unchecked", "checks:check_alpha", "not 0.0 < alpha <= 1.0", "alpha > 1e9", "cvar"),
    row(
        "NaN let through",
        "checks:check_finite",
        "finite = torch.isfinite(tensor)",
        "finite = ~torch.isinf(tensor)",
        "cvar",
    ),
    row("duplicated levels let through", "checks:check_levels", "levels.diff() > 0", "levels.diff() >= 0", "cvar"),
    row(
        "G6 multiplier capped at 1",
        "lagrangian:dual_ascent",
        "return min(max(multiplier + lr * (limit - value), 0.0), ceiling)",
        "return min(max(multiplier + lr * (limit - value), 0.0), min(1.0, ceiling))",
    ),
    row(
        "G6 dual ascent sign",
        "lagrangian:dual_ascent",
        "return min(max(multiplier + lr * (limit - value), 0.0), ceiling)",
        "return min(max(multiplier + lr * (value - limit), 0.0), ceiling)",
    ),
    row(
        "G6 multiplier below zero",
        "lagrangian:dual_ascent",
        "return min(max(multiplier + lr * (limit - value), 0.0), ceiling)",
        "return min(multiplier + lr * (limit - value), ceiling)",
    ),
    row(
        "G6 integral winds up",
        "lagrangian:pid_step",
        "integral = min(max(integral + ki * gap, 0.0), ceiling)",
        "integral = max(integral + ki * gap, 0.0)",
    ),
    row(
        "G6 derivative acts both ways",
        "lagrangian:pid_step",
        "kd * max(0.0, gap - previous)",
        "kd * (gap - previous)",
    ),
    # Robustness and schedules
    row(
        "N7 forbidden features take a share",
        "perturbation:pgd_step",
        "allowed = gradient.masked_fill(~mask, 0.0)",
        "allowed = gradient.nan_to_num()",
    ),
    row(
        "N7 forbidden features move",
        "perturbation:pgd_step",
        "return project(moved.masked_fill(~mask, 0.0), epsilon=epsilon, ball=ball)",
        "return project(delta + step * ascent_direction(gradient, ball=ball), epsilon=epsilon, ball=ball)",
    ),
    row("N7 attack leaves the ball", "perturbation:_linf", "return delta.clamp(-epsilon, epsilon)", "return delta"),
    row(
        "N7 l2 ball per batch",
        "perturbation:_l2",
        "norm: Tensor = torch.linalg.vector_norm(delta, dim=-1, keepdim=True)",
        "norm: Tensor = torch.linalg.vector_norm(delta)",
    ),
    row(
        "N7 descent instead of ascent",
        "perturbation:pgd_step",
        "delta + step * ascent_direction(allowed, ball=ball)",
        "delta - step * ascent_direction(allowed, ball=ball)",
    ),
    row("schedule runs past its end", "schedules:_clamp", "return min(max(progress, 0.0), 1.0)", "return progress"),
    row(
        "cosine upside down",
        "schedules:cosine",
        "end + 0.5 * (start - end) * (1.0 + math.cos(math.pi * _clamp(progress)))",
        "start + 0.5 * (end - start) * (1.0 + math.cos(math.pi * _clamp(progress)))",
    ),
]
