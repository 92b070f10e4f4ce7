"""The registry: every metric Leeward reports, once. `docs/metrics.md` is generated from it.

SB3's own keys keep their names and meanings. A metric is registered where it is defined and nowhere else; the update
returns numbers under these names, and nothing is ever read back out of a logger.
"""

from dataclasses import dataclass

__all__ = ["REGISTRY", "Metric", "markdown"]


@dataclass(frozen=True)
class Metric:
    """One number, with what a person needs to read it."""

    name: str
    unit: str
    meaning: str
    alert: str = ""
    cause: str = ""
    remedy: str = ""
    needs: str = ""  # the setting without which it is not emitted


_SECTIONS: dict[str, list[Metric]] = {
    "Kept from Stable-Baselines3": [
        Metric("rollout/ep_rew_mean", "reward", "mean return of the last episodes", needs="Monitor"),
        Metric("rollout/ep_len_mean", "steps", "mean length of the last episodes", needs="Monitor"),
        Metric("rollout/success_rate", "fraction", "share of successful episodes", needs='info["is_success"]'),
        Metric("time/fps", "steps/s", "env steps per second since `learn` was called"),
        Metric("time/iterations", "count", "rollouts since `learn` was called"),
        Metric("time/time_elapsed", "s", "wall time since `learn` was called"),
        Metric("time/total_timesteps", "steps", "env steps of this model"),
        Metric("train/approx_kl", "nats", "KL(old ‖ new), k3 estimator, mean over the real steps of the update"),
        Metric("train/clip_fraction", "fraction", "share of steps whose ratio lies outside the clip range"),
        Metric("train/clip_range", "–", "clip range of this update"),
        Metric("train/clip_range_vf", "σ of the return", "radius of the value clip", needs="clip_range_vf"),
        Metric("train/entropy_loss", "nats", "minus the mean entropy"),
        Metric(
            "train/explained_variance",
            "–",
            "share of the variance of the λ-returns that the values explain",
            "warn: below 0 for 10 updates after warm-up",
            "the critic is worse than a constant: targets jump, or its step size is too large",
            "lower the learning rate, look at train/ret_std and the critics' gradient norms",
        ),
        Metric("train/learning_rate", "–", "read back from the live optimiser"),
        Metric("train/critic_learning_rate", "–", "the critics' own, read back too", needs="critic_learning_rate"),
        Metric(
            "train/loss",
            "–",
            "total loss, mean over minibatches",
            "error: not finite; warn: above 1000",
            "a reward or advantage of another magnitude, or a diverging critic",
            "look at the terms beside it",
        ),
        Metric("train/n_updates", "count", "epochs of optimisation so far, as SB3 counts them"),
        Metric("train/policy_gradient_loss", "–", "clipped surrogate, mean over real steps"),
        Metric("train/std", "–", "mean standard deviation of Gaussian actions", needs="a Box action space"),
        Metric("train/value_loss", "–", "distributional loss in units of the return scale, mean over critics"),
    ],
    "Policy": [
        Metric(
            "train/ratio_first_minibatch_max_dev",
            "–",
            "largest |ratio − 1| before the first step of the update",
            "error: above 1e-3",
            "rollout and update disagree: memory, normaliser or mask",
            "report it: this is a fault of the engine or of a custom policy",
        ),
        Metric("train/approx_kl_k1", "nats", "KL(old ‖ new), k1 estimator"),
        Metric("train/kl_exact", "nats", "KL(old ‖ new) in closed form"),
        Metric("train/kl_penalty", "–", "coefficient β of the KL penalty", needs="kl_penalty"),
        Metric(
            "train/kl_stop_epoch",
            "epoch",
            "epoch in which the KL stop ended the update; n_epochs if it did not",
            "info: 0 three updates running",
            "the step size is too large for target_kl",
            "lower the learning rate or raise target_kl",
        ),
        Metric(
            "train/log_ratio_max_abs",
            "–",
            "largest |log ratio|",
            "warn: above 10",
            "the policy moved far within one update",
            "lower the learning rate or n_epochs, or set target_kl",
        ),
        Metric("train/log_ratio_extreme_fraction", "fraction", "share of |log ratio| above 10"),
        Metric(
            "train/log_ratio_clamped_fraction",
            "fraction",
            "share of |log ratio| above 20, where exp() is clamped",
            "warn: above 0.01",
            "see train/log_ratio_max_abs",
            "see train/log_ratio_max_abs",
        ),
        Metric(
            "error/log_ratio_nonfinite",
            "count",
            "log ratios that are NaN or infinite",
            "error: above 0",
            "NaN in the network, or an action of probability 0",
            "the minibatch was skipped; look at the gradients",
        ),
        Metric("error/log_ratio_nan_count", "count", "log ratios that are NaN", "error: above 0"),
        Metric("error/log_ratio_inf_count", "count", "log ratios that are infinite", "error: above 0"),
        Metric(
            "train/policy_entropy",
            "nats",
            "mean entropy of the policy, joint over action dimensions",
            "warn: below 5 % of its start with a flat slope",
            "exploration collapsed",
            "raise ent_coef or its floor",
        ),
        Metric("train/policy_entropy_min", "nats", "smallest entropy of a step in the update"),
        Metric("train/policy_entropy_max", "nats", "largest entropy of a step in the update"),
        Metric("train/policy_entropy_slope", "nats/update", "slope of the mean entropy over the last 10 updates"),
        Metric("train/ent_coef_nominal", "–", "entropy coefficient by its schedule"),
        Metric("train/ent_coef_effective", "–", "entropy coefficient after the floor"),
        Metric("train/policy_loss", "–", "surrogate plus the KL penalty, AWR and robust KL terms"),
        Metric("train/bc_loss_ratio", "–", "|AWR term| over |surrogate|", "warn: above 1", needs="awr"),
    ],
    "Advantages and returns": [
        Metric("train/advantage_mean_raw", "reward", "mean advantage before normalisation"),
        Metric("train/advantage_std_raw", "reward", "standard deviation before normalisation"),
        Metric("train/advantage_min", "reward", "smallest raw advantage"),
        Metric("train/advantage_max", "reward", "largest raw advantage"),
        Metric(
            "train/advantages_norm_max_abs",
            "–",
            "largest normalised advantage",
            "warn: above 20",
            "one step dominates the update",
            "look for an outlier in the rewards",
        ),
        Metric("train/advantages_norm_mean", "–", "mean of the normalised advantages", "warn: |mean| above 0.1"),
        Metric("train/advantages_norm_std", "–", "standard deviation of the normalised advantages"),
        Metric(
            "warn/advantages_std_below_floor",
            "0/1",
            "the advantages have no spread and were set to 0",
            "warn: 1",
            "every action looks alike: constant rewards, or a critic that explains everything",
            "check that actions change rewards",
        ),
        Metric("train/ret_mean", "reward", "mean of the return scale"),
        Metric(
            "train/ret_std",
            "reward",
            "standard deviation of the return scale",
            "warn: below 1 % of its maximum",
            "returns stopped varying",
            "check the env",
        ),
        Metric("train/value_target_scale", "1/reward", "1/σ used to encode value targets"),
        Metric(
            "warn/excessive_return_scaling",
            "0/1",
            "max|return|/σ exceeds 100",
            "warn: 1",
            "rare returns far outside the scale",
            "clip or reshape the reward",
        ),
        Metric("warn/ret_std_triggering_scaling", "reward", "σ at that moment; 0 when all is well"),
        Metric(
            "train/popart_max_shift",
            "reward",
            "largest change of a decoded value by the rescale of the heads",
            "error: above 1e-3 of the scale; categorical warn: above 0.05 σ",
            "the rescale moved predictions",
            "report it",
        ),
        Metric(
            "debug/obs_norm_mean_drift",
            "std",
            "largest move of a feature's mean in the observation normaliser",
            "warn: above 1",
            "observations drift",
            "use features that are stationary",
            needs="normalize_observations",
        ),
        Metric(
            "debug/obs_norm_std_drift",
            "std",
            "largest relative move of a feature's std in the observation normaliser",
            "warn: above 1",
            "observations drift",
            "use features that are stationary",
            needs="normalize_observations",
        ),
        Metric(
            "debug/vecnormalize_mean_drift",
            "std",
            "the same for SB3's VecNormalize",
            "warn: above 1",
            needs="VecNormalize",
        ),
        Metric(
            "debug/vecnormalize_std_drift",
            "std",
            "the same for SB3's VecNormalize",
            "warn: above 1",
            needs="VecNormalize",
        ),
    ],
    "Critics": [
        Metric("train/critic_loss_unclipped", "–", "value loss without clipping"),
        Metric("train/critic_loss_clipped", "–", "value loss of the clipped predictions", needs="value_clip"),
        Metric(
            "train/vf_clip_active_frac",
            "fraction",
            "share of steps whose prediction was clipped",
            "info: 0 for 20 updates",
            "the radius is too wide to matter",
            "lower it or switch clipping off",
            needs="value_clip",
        ),
        Metric(
            "train/value_intercept_step",
            "reward",
            "largest mean residual of a critic, added to its head's bias before the update",
            needs="no value_clip, critic='quantile' or 'scalar'",
        ),
        Metric("train/critic1_loss", "–", "loss of critic 1"),
        Metric("train/critic2_loss", "–", "loss of critic 2", needs="twin_critics"),
        Metric("train/critic_gap", "reward", "mean |V1 − V2|", needs="twin_critics"),
        Metric("train/critic1_grad_norm", "–", "gradient norm of critic 1 (MLP and head), before scaling and clipping"),
        Metric("train/critic2_grad_norm", "–", "gradient norm of critic 2", needs="twin_critics"),
        Metric(
            "train/critic_trunk_grad_norm",
            "–",
            "gradient norm of what the critics alone share",
            needs="critic memory, or an extractor of its own",
        ),
        Metric(
            "train/critics_grad_ratio", "–", "critic 1 over critic 2", "warn: outside [0.01, 100]", needs="twin_critics"
        ),
        Metric(
            "warn/twin_critics_gradient_imbalance",
            "0/1",
            "that ratio is outside [0.01, 100]",
            "warn: 1",
            needs="twin_critics",
        ),
        Metric("warn/critic1_vanishing_gradients", "0/1", "gradient norm of critic 1 below 1e-8", "warn: 1"),
        Metric(
            "warn/critic2_vanishing_gradients",
            "0/1",
            "gradient norm of critic 2 below 1e-8",
            "warn: 1",
            needs="twin_critics",
        ),
        Metric(
            "train/quantile_crossing_rate",
            "fraction",
            "share of neighbouring quantiles in the wrong order",
            "warn: above 0.1",
            "the critic has not learned a distribution yet",
            "train longer or raise vf_coef",
            needs="critic='quantile'",
        ),
        Metric(
            "train/support_outside_fraction",
            "fraction",
            "share of targets outside the support",
            "warn: above 0.01",
            "returns outgrew the support between two moves",
            "none: the support moves by itself",
            needs="critic='categorical'",
        ),
        Metric(
            "train/calibration_error",
            "–",
            "mean |level − coverage| of returns whose episode ended inside the rollout, before the update",
            "warn: above 0.1",
            "the predicted distribution is too wide, too narrow or shifted",
            "train longer; with a scalar target mode this is expected",
        ),
    ],
    "Gradients": [
        Metric(
            "train/grad_norm_raw",
            "–",
            "global norm before any stage",
            "warn: above 50; error: not finite",
            "an outlier, or a step size too large",
            "look at advantages and targets",
        ),
        Metric(
            "train/grad_norm_pre_clip",
            "–",
            "global norm after scaling, before the clip; healthy below 10",
            "warn: above 50",
        ),
        Metric("train/grad_norm_post_clip", "–", "global norm of the step taken", "error: above max_grad_norm"),
        Metric(
            "train/lstm_grad_norm/<module>/<layer>",
            "–",
            "per memory and layer",
            "warn: above 50 or below 1e-8",
            needs="memory",
        ),
        Metric(
            "train/skipped_minibatches",
            "count",
            "minibatches (or micro-batches) left out because something was not finite",
            "error: above 0",
            "NaN or infinity in loss or gradient",
            "look at error/log_ratio_* and the env",
        ),
        Metric("lstm/h_mean_layer<i>", "–", "mean of the actor's hidden state at sequence starts", needs="memory"),
        Metric("lstm/h_std_layer<i>", "–", "its standard deviation", needs="memory"),
        Metric("lstm/h_norm_layer<i>", "–", "its mean norm", needs="memory"),
        Metric("lstm/saturation_layer<i>", "fraction", "share of |h| above 0.95", "warn: above 0.9", needs="memory"),
        Metric("lstm_critic/h_mean_layer<i>", "–", "the same for the critic's memory", needs="critic memory"),
        Metric("lstm_critic/h_std_layer<i>", "–", "the same for the critic's memory", needs="critic memory"),
        Metric("lstm_critic/h_norm_layer<i>", "–", "the same for the critic's memory", needs="critic memory"),
        Metric(
            "lstm_critic/saturation_layer<i>",
            "fraction",
            "the same for the critic's memory",
            "warn: above 0.9",
            needs="critic memory",
        ),
        Metric(
            "lstm/h_norm_after_reset_ratio",
            "–",
            "norm of h in the first 5 steps of episodes over that of all steps",
            needs="memory",
        ),
    ],
    "Risk": [
        Metric(
            "risk/cvar_measured",
            "unit of X",
            "CVaR of the risk variable over the rollout, of the policy that the limit binds (exploring, or deployed)",
            needs="risk",
        ),
        Metric(
            "risk/cvar_standard_error",
            "unit of X",
            "standard error of risk/cvar_measured, as if outcomes were independent",
            needs="risk",
        ),
        Metric("risk/var_measured", "unit of X", "its α-quantile, the start of that tail", needs="risk"),
        Metric(
            "risk/tail_samples",
            "count",
            "α · samples behind the measured tail",
            "warn: below 10",
            "too few steps or episodes per rollout for this α",
            "more envs, longer rollouts, or a larger alpha",
            needs="risk",
        ),
        Metric("risk/limit", "unit of X", "the least CVaR allowed", needs="risk.limit"),
        Metric(
            "risk/gap",
            "unit of X",
            "limit − measured: positive = violated",
            "warn: above 0 for 20 updates",
            "the multiplier is still rising, exploration is wide, or no policy meets the limit",
            "let it train on; a larger risk.learning_rate; look at risk/multiplier",
            needs="risk.limit",
        ),
        Metric(
            "risk/multiplier",
            "–",
            "λ: weight of the cost in the policy's advantage",
            "warn: at its ceiling",
            "no policy meets the limit, or the unit of the limit is not that of X",
            "compare risk/limit with risk/cvar_measured",
            needs="risk",
        ),
        Metric(
            "risk/cvar_predicted",
            "unit of X",
            "CVaR of the next step's return predicted for the exploring policy, mean over envs at the rollout's end",
            needs="risk",
        ),
        Metric(
            "risk/return_cvar_predicted",
            "reward",
            "CVaR of the discounted return predicted for the exploring policy, mean over envs at the rollout's end",
            needs="risk",
        ),
        Metric("risk/cost_advantage_std", "unit of X", "spread of the cost's advantage, before weighing", needs="risk"),
        Metric("risk/grad_norm", "–", "gradient of the costs' part of the surrogate at the action head", needs="risk"),
        Metric(
            "debug/cvar_gradient_norm", "–", "the same, for a tail that is hard to measure", needs="risk.alpha < 0.01"
        ),
        Metric(
            "risk/<metric>/<i>", "–", "the same metrics of the second, third, ... constraint", needs="several risks"
        ),
    ],
    "Gradient scaling and utility": [
        Metric(
            "vgs/noise_to_signal_p50",
            "–",
            "variance of the raw gradients over the square of their mean, median over tensors",
            needs="vgs",
        ),
        Metric("vgs/noise_to_signal_p90", "–", "its 90 % quantile over tensors", needs="vgs"),
        Metric("vgs/scaling_factor", "–", "factor on the gradients, mean over minibatches (and tensors)", needs="vgs"),
        Metric(
            "vgs/warmup_active", "0/1", "share of the minibatches in which gradients were only watched", needs="vgs"
        ),
        Metric(
            "upgd/utility_max",
            "–",
            "largest |utility| of a weight in the last step: what utilities are divided by",
            needs="a utility optimiser",
        ),
        Metric(
            "upgd/gate_mean",
            "–",
            "mean gate of the last step: 1 is neutral, below 1 protected",
            needs="a utility optimiser",
        ),
        Metric(
            "upgd/noise_rms",
            "weight",
            "RMS of what the noise of the last step adds to a weight",
            needs="a utility optimiser",
        ),
    ],
    "Robustness": [
        Metric(
            "adversary/robust_kl",
            "nats",
            "KL(π(.|s) ‖ π(.|s + δ)) on the same rows, mean over real steps",
            "error: enabled and without gradient (training stops)",
            "the policy does not read the attacked features, or the radius is below the precision of float32",
            "look at adversary.mask and adversary.keys, or raise adversary.epsilon",
            needs="adversary",
        ),
        Metric(
            "adversary/epsilon",
            "network's unit",
            "radius of the ball in this update; 0 in the warm-up",
            needs="adversary",
        ),
        Metric("adversary/delta_norm", "network's unit", "mean size of δ, in the norm of the ball", needs="adversary"),
        Metric(
            "adversary/objective_gain",
            "nats",
            "robust KL at δ less that at the random point of the ball where the search began",
            "warn: at most 0",
            "the search does not climb: steps too long, or a policy that is flat there",
            "more adversary.steps, or a smaller adversary.step_size",
            needs="adversary",
        ),
        Metric(
            "adversary/value_shift",
            "σ² of the return",
            "squared distance between the return distributions at s and at s + δ, mean over critics",
            needs="adversary.value_weight",
        ),
    ],
    "Trading": [
        Metric(
            "trade/costs_fraction",
            "fraction",
            "mean over steps of all costs and interest paid, over equity",
            "warn, in a backtest: above 50 % of the gross profit",
            "the agent trades more than its edge pays for",
            "a rebalance band, fewer positions, or a longer bar",
            needs="a trading env",
        ),
        Metric(
            "trade/costs_dropped",
            "count",
            "costs that were not finite and were left out of the mean",
            "warn: above 0",
            "bars with prices or volumes that are not finite",
            "leeward data check",
            needs="a trading env",
        ),
        Metric("trade/turnover", "fraction", "mean over steps of Σ|Δnotional| / equity", needs="a trading env"),
        Metric(
            "trade/exposure",
            "fraction",
            "mean over steps of Σ|weight|",
            "info: constant",
            "a disguised buy-and-hold",
            "compare it with the baselines of the backtest",
            needs="a trading env",
        ),
        Metric("trade/n_trades", "count", "orders of the rollout", needs="a trading env"),
        Metric(
            "trade/sharpe",
            "–",
            "annualised Sharpe ratio of the rollout's steps, while exploring",
            needs="a trading env",
        ),
        Metric("trade/max_drawdown", "fraction", "deepest fall of an env within the rollout", needs="a trading env"),
    ],
}

REGISTRY: dict[str, Metric] = {metric.name: metric for section in _SECTIONS.values() for metric in section}


def markdown() -> str:
    """`docs/metrics.md`."""
    lines = ["# Metrics", "", "Generated from `leeward.telemetry.metrics`; a test keeps the two equal.", ""]
    for title, metrics in _SECTIONS.items():
        lines += [
            f"## {title}",
            "",
            "| metric | unit | meaning | alert | likely cause | remedy | needs |",
            "|---|---|---|---|---|---|---|",
        ]
        for m in metrics:
            cells = (f"`{m.name}`", m.unit, m.meaning, m.alert, m.cause, m.remedy, m.needs)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
