"""The registry: every metric Leeward reports is a constant here, and is written down nowhere else.

SB3's own keys keep their names and meanings. Whoever measures something imports its constant and returns the number
under it; names as text appear where numbers leave the program, and nothing is ever read back out of a logger.
When a number is a sign of trouble is said by `rules`; `docs/metrics.md` is generated from both.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

__all__ = ["REGISTRY", "SECTIONS", "Metric", "Numbers", "find"]

Combine = Literal["mean", "max", "min", "sum"]


@dataclass(frozen=True, eq=False)
class Metric:
    """One number, with what a person needs to read it. Two of the same name are the same metric."""

    name: str
    unit: str
    meaning: str
    needs: str = ""  # the setting without which it is not emitted
    combine: Combine = "mean"  # how the numbers of minibatches, and of several processes, become one
    shown: bool = False  # on the console; TensorBoard and files get every metric

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Metric) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"Metric({self.name!r})"

    def of(self, **places: object) -> "Metric":
        """One of a family, whose name has places such as `<i>` that are filled in here."""
        return _filled(self, tuple(sorted(places.items())))

    def numbered(self, number: int) -> "Metric":
        """The metric of the second, third, ... of several alike; the first has the plain name."""
        return self if number == 1 else _numbered(self, number)


Numbers = dict[Metric, float]


@cache
def _filled(metric: Metric, places: tuple[tuple[str, object], ...]) -> Metric:
    name = metric.name
    for place, value in places:
        if f"<{place}>" not in name:
            raise KeyError(f"{metric.name} has no place <{place}>")
        name = name.replace(f"<{place}>", str(value))
    return replace(metric, name=name)


@cache
def _numbered(metric: Metric, number: int) -> Metric:
    return replace(metric, name=f"{metric.name}/{number}")


SECTIONS: dict[str, list[Metric]] = {}


def _section(title: str) -> Callable[..., Metric]:
    """Registers metrics under a heading of the page."""
    metrics = SECTIONS.setdefault(title, [])

    def register(name: str, unit: str, meaning: str, **more: str | bool | tuple[float, float]) -> Metric:
        metrics.append(Metric(name, unit, meaning, **more))  # type: ignore[arg-type]
        return metrics[-1]

    return register


_kept = _section("Kept from Stable-Baselines3")
EP_REW_MEAN = _kept("rollout/ep_rew_mean", "reward", "mean return of the last episodes", needs="Monitor", shown=True)
EP_REW_STD = _kept("rollout/ep_rew_std", "reward", "standard deviation of their returns", needs="Monitor")
EP_LEN_MEAN = _kept("rollout/ep_len_mean", "steps", "mean length of the last episodes", needs="Monitor", shown=True)
SUCCESS_RATE = _kept(
    "rollout/success_rate", "fraction", "share of successful episodes", needs='info["is_success"]', shown=True
)
FPS = _kept("time/fps", "steps/s", "env steps per second since `learn` was called", shown=True)
ITERATIONS = _kept("time/iterations", "count", "rollouts since `learn` was called", shown=True)
TIME_ELAPSED = _kept("time/time_elapsed", "s", "wall time since `learn` was called", shown=True)
TOTAL_TIMESTEPS = _kept("time/total_timesteps", "steps", "env steps of this model", shown=True)
APPROX_KL = _kept(
    "train/approx_kl", "nats", "KL(old ‖ new), k3 estimator, mean over the real steps of the update", shown=True
)
CLIP_FRACTION = _kept(
    "train/clip_fraction", "fraction", "share of steps whose ratio lies outside the clip range", shown=True
)
CLIP_RANGE = _kept("train/clip_range", "–", "clip range of this update", shown=True)
CLIP_RANGE_VF = _kept(
    "train/clip_range_vf", "σ of the return", "radius of the value clip", needs="clip_range_vf", shown=True
)
ENTROPY_LOSS = _kept("train/entropy_loss", "nats", "minus the mean entropy", shown=True)
EXPLAINED_VARIANCE = _kept(
    "train/explained_variance",
    "–",
    "share of the variance of the λ-returns that the values explain",
    shown=True,
)
LEARNING_RATE = _kept("train/learning_rate", "–", "read back from the live optimiser", shown=True)
CRITIC_LEARNING_RATE = _kept(
    "train/critic_learning_rate", "–", "the critics' own, read back too", needs="critic_learning_rate"
)
LOSS = _kept(
    "train/loss",
    "–",
    "total loss, mean over minibatches",
    shown=True,
)
N_UPDATES = _kept("train/n_updates", "count", "epochs of optimisation so far, as SB3 counts them", shown=True)
POLICY_GRADIENT_LOSS = _kept("train/policy_gradient_loss", "–", "clipped surrogate, mean over real steps", shown=True)
STD = _kept("train/std", "–", "mean standard deviation of Gaussian actions", needs="a Box action space", shown=True)
VALUE_LOSS = _kept(
    "train/value_loss", "–", "distributional loss in units of the return scale, mean over critics", shown=True
)

EVAL_MEAN_REWARD = _kept(
    "eval/mean_reward", "reward", "mean return of 20 deterministic episodes on other seeds", needs="gym"
)
EVAL_MEAN_EP_LENGTH = _kept("eval/mean_ep_length", "steps", "mean length of those episodes", needs="gym")

_policy = _section("Policy")
RATIO_FIRST_MINIBATCH_MAX_DEV = _policy(
    "train/ratio_first_minibatch_max_dev",
    "–",
    "largest |ratio − 1| before the first step of the update",
    combine="max",
)
APPROX_KL_K1 = _policy("train/approx_kl_k1", "nats", "KL(old ‖ new), k1 estimator")
KL_EXACT = _policy("train/kl_exact", "nats", "KL(old ‖ new) in closed form")
KL_PENALTY = _policy("train/kl_penalty", "–", "coefficient β of the KL penalty", needs="kl_penalty")
KL_STOP_EPOCH = _policy(
    "train/kl_stop_epoch",
    "epoch",
    "epoch in which the KL stop ended the update; n_epochs if it did not",
)
LOG_RATIO_MAX_ABS = _policy(
    "train/log_ratio_max_abs",
    "–",
    "largest |log ratio|",
    combine="max",
)
LOG_RATIO_EXTREME_FRACTION = _policy("train/log_ratio_extreme_fraction", "fraction", "share of |log ratio| above 10")
LOG_RATIO_CLAMPED_FRACTION = _policy(
    "train/log_ratio_clamped_fraction",
    "fraction",
    "share of |log ratio| above 20, where exp() is clamped",
)
LOG_RATIO_NONFINITE = _policy(
    "error/log_ratio_nonfinite",
    "count",
    "log ratios that are NaN or infinite",
    combine="sum",
)
LOG_RATIO_NAN_COUNT = _policy(
    "error/log_ratio_nan_count",
    "count",
    "log ratios that are NaN",
    combine="sum",
)
LOG_RATIO_INF_COUNT = _policy(
    "error/log_ratio_inf_count",
    "count",
    "log ratios that are infinite",
    combine="sum",
)
POLICY_ENTROPY = _policy(
    "train/policy_entropy",
    "nats",
    "mean entropy of the policy, joint over action dimensions",
)
POLICY_ENTROPY_MIN = _policy(
    "train/policy_entropy_min", "nats", "smallest entropy of a step in the update", combine="min"
)
POLICY_ENTROPY_MAX = _policy(
    "train/policy_entropy_max", "nats", "largest entropy of a step in the update", combine="max"
)
POLICY_ENTROPY_SLOPE = _policy(
    "train/policy_entropy_slope", "nats/update", "slope of the mean entropy over the last 10 updates"
)
ENT_COEF_NOMINAL = _policy("train/ent_coef_nominal", "–", "entropy coefficient by its schedule")
ENT_COEF_EFFECTIVE = _policy("train/ent_coef_effective", "–", "entropy coefficient after the floor")
POLICY_LOSS = _policy("train/policy_loss", "–", "surrogate plus the KL penalty, AWR and robust KL terms")
BC_LOSS_RATIO = _policy(
    "train/bc_loss_ratio",
    "–",
    "gradient norm of the AWR term over that of the surrogate, at the action head, before the first step",
    needs="awr",
)

_returns = _section("Advantages and returns")
REWARD_MEAN = _returns("train/reward_mean", "reward", "mean of the rewards, before any normalisation")
REWARD_STD = _returns("train/reward_std", "reward", "standard deviation of the rewards, before any normalisation")
REWARD_SIZE = _returns(
    "train/reward_size", "reward", "median of |reward| where it is not 0, before any normalisation; 0 if all are"
)
WARN_REWARD_CONSTANT = _returns(
    "warn/reward_constant",
    "0/1",
    "no two returns of the rollout can differ: its rewards are all the same, and 0 or without a terminated episode",
)
ADVANTAGE_MEAN_RAW = _returns("train/advantage_mean_raw", "reward", "mean advantage before normalisation")
ADVANTAGE_STD_RAW = _returns("train/advantage_std_raw", "reward", "standard deviation before normalisation")
ADVANTAGE_MIN = _returns("train/advantage_min", "reward", "smallest raw advantage")
ADVANTAGE_MAX = _returns("train/advantage_max", "reward", "largest raw advantage")
ADVANTAGES_NORM_MAX_ABS = _returns(
    "train/advantages_norm_max_abs",
    "–",
    "largest normalised advantage",
)
ADVANTAGES_NORM_MEAN = _returns(
    "train/advantages_norm_mean",
    "–",
    "mean of the normalised advantages",
)
ADVANTAGES_NORM_STD = _returns("train/advantages_norm_std", "–", "standard deviation of the normalised advantages")
WARN_ADVANTAGES_STD_BELOW_FLOOR = _returns(
    "warn/advantages_std_below_floor",
    "0/1",
    "the advantages have no spread and were set to 0",
)
RET_MEAN = _returns("train/ret_mean", "reward", "mean of the return scale")
RET_STD = _returns(
    "train/ret_std",
    "reward",
    "standard deviation of the return scale",
)
RETURN_OUTLIER = _returns(
    "train/return_outlier",
    "σ of the return",
    "largest distance of a sample of the return from their mean",
    combine="max",
)
VALUE_TARGET_SCALE = _returns("train/value_target_scale", "1/reward", "1/σ used to encode value targets")
WARN_EXCESSIVE_RETURN_SCALING = _returns(
    "warn/excessive_return_scaling",
    "0/1",
    "what `return_outlier` looks for is there",
    combine="max",
)
WARN_RET_STD_TRIGGERING_SCALING = _returns(
    "warn/ret_std_triggering_scaling", "reward", "σ at that moment; 0 when all is well", combine="max"
)
POPART_MAX_SHIFT = _returns(
    "train/popart_max_shift",
    "reward",
    "largest change of a decoded value by the rescale of the heads",
    combine="max",
)
OBS_NORM_MEAN_DRIFT = _returns(
    "debug/obs_norm_mean_drift",
    "std",
    "largest move of a feature's mean in the observation normaliser",
    needs="normalize_observations",
)
OBS_NORM_STD_DRIFT = _returns(
    "debug/obs_norm_std_drift",
    "std",
    "largest relative move of a feature's std in the observation normaliser",
    needs="normalize_observations",
)
VECNORMALIZE_MEAN_DRIFT = _returns(
    "debug/vecnormalize_mean_drift",
    "std",
    "the same for SB3's VecNormalize",
    needs="VecNormalize",
)
VECNORMALIZE_STD_DRIFT = _returns(
    "debug/vecnormalize_std_drift",
    "std",
    "the same for SB3's VecNormalize",
    needs="VecNormalize",
)

_critics = _section("Critics")
CRITIC_LOSS_UNCLIPPED = _critics("train/critic_loss_unclipped", "–", "value loss without clipping")
CRITIC_LOSS_CLIPPED = _critics(
    "train/critic_loss_clipped", "–", "value loss of the clipped predictions", needs="value_clip"
)
VF_CLIP_ACTIVE_FRAC = _critics(
    "train/vf_clip_active_frac",
    "fraction",
    "share of steps whose prediction was clipped",
    needs="value_clip",
)
CRITIC1_LOSS = _critics("train/critic1_loss", "–", "loss of critic 1")
CRITIC2_LOSS = _critics("train/critic2_loss", "–", "loss of critic 2", needs="twin_critics")
CRITIC_GAP = _critics("train/critic_gap", "reward", "mean |V1 − V2|", needs="twin_critics")
CRITIC1_GRAD_NORM = _critics(
    "train/critic1_grad_norm", "–", "gradient norm of critic 1 (MLP and head), before scaling and clipping"
)
CRITIC2_GRAD_NORM = _critics("train/critic2_grad_norm", "–", "gradient norm of critic 2", needs="twin_critics")
CRITIC_TRUNK_GRAD_NORM = _critics(
    "train/critic_trunk_grad_norm",
    "–",
    "gradient norm of what the critics alone share",
    needs="critic memory, or an extractor of its own",
)
CRITICS_GRAD_RATIO = _critics(
    "train/critics_grad_ratio",
    "–",
    "gradient norm of critic 1 over that of critic 2; left out where one of them vanishes",
    needs="twin_critics",
)
WARN_TWIN_CRITICS_GRADIENT_IMBALANCE = _critics(
    "warn/twin_critics_gradient_imbalance",
    "0/1",
    "what `critics_imbalanced` looks for is there",
    needs="twin_critics",
)
WARN_CRITIC1_VANISHING_GRADIENTS = _critics(
    "warn/critic1_vanishing_gradients", "0/1", "what `critic1_vanishing` looks for is there"
)
WARN_CRITIC2_VANISHING_GRADIENTS = _critics(
    "warn/critic2_vanishing_gradients",
    "0/1",
    "what `critic2_vanishing` looks for is there",
    needs="twin_critics",
)
QUANTILE_CROSSING_RATE = _critics(
    "train/quantile_crossing_rate",
    "fraction",
    "share of neighbouring quantiles in the wrong order; 0.1 to 0.4 in healthy runs, see docs/ideas/quantiles.md",
    needs="critic='quantile'",
)
QUANTILE_CROSSING_SIZE = _critics(
    "train/quantile_crossing_size",
    "σ of the return",
    "mean distance by which sorting moves a quantile; 0 if all are in order",
    needs="critic='quantile'",
)
SUPPORT_OUTSIDE_FRACTION = _critics(
    "train/support_outside_fraction",
    "fraction",
    "share of targets outside the support",
    needs="critic='categorical'",
)
CALIBRATION_ERROR = _critics(
    "train/calibration_error",
    "–",
    "mean |level − coverage| of returns whose episode ended inside the rollout, before the update",
    shown=True,
)

EVAL_EXPLAINED_VARIANCE = _critics(
    "eval/explained_variance",
    "–",
    "share of the variance of the discounted returns on validation that the critic explains",
    needs="a run on a market with enough validation bars",
)
EVAL_CALIBRATION_ERROR = _critics(
    "eval/calibration_error",
    "–",
    "mean |level − coverage| of the predicted quantiles, over the discounted returns on validation",
    needs="a run on a market with enough validation bars",
)

_gradients = _section("Gradients")
GRAD_NORM_RAW = _gradients("train/grad_norm_raw", "–", "global norm before any stage, mean over minibatches")
GRAD_NORM_RAW_MAX = _gradients(
    "train/grad_norm_raw_max",
    "–",
    "the largest of a minibatch",
    combine="max",
)
GRAD_NORM_PRE_CLIP = _gradients(
    "train/grad_norm_pre_clip",
    "–",
    "global norm after scaling, before the clip, mean over minibatches",
)
GRAD_NORM_PRE_CLIP_MAX = _gradients(
    "train/grad_norm_pre_clip_max",
    "–",
    "the largest of a minibatch",
    combine="max",
)
GRAD_NORM_POST_CLIP = _gradients(
    "train/grad_norm_post_clip", "–", "global norm of the step taken, mean over minibatches"
)
GRAD_NORM_POST_CLIP_MAX = _gradients("train/grad_norm_post_clip_max", "–", "the largest of a minibatch", combine="max")
GRAD_NORM_PRE_CLIP_OF = _gradients(
    "train/grad_norm_pre_clip/<half>", "–", "the same for actor and critic, which are clipped apart"
)
GRAD_NORM_PRE_CLIP_MAX_OF = _gradients(
    "train/grad_norm_pre_clip_max/<half>", "–", "the largest of a minibatch", combine="max"
)
GRAD_NORM_POST_CLIP_OF = _gradients("train/grad_norm_post_clip/<half>", "–", "the same for actor and critic")
GRAD_NORM_POST_CLIP_MAX_OF = _gradients(
    "train/grad_norm_post_clip_max/<half>",
    "–",
    "the largest of a minibatch",
    combine="max",
)
LSTM_GRAD_NORM = _gradients(
    "train/lstm_grad_norm/<module>/<layer>",
    "–",
    "per memory and layer",
    needs="memory",
)
SKIPPED_MINIBATCHES = _gradients(
    "train/skipped_minibatches",
    "count",
    "minibatches (or micro-batches) left out because something was not finite",
    combine="sum",
    shown=True,
)
LSTM_H_MEAN = _gradients(
    "lstm/h_mean_layer<i>", "–", "mean of the actor's hidden state at sequence starts", needs="memory"
)
LSTM_H_STD = _gradients("lstm/h_std_layer<i>", "–", "its standard deviation", needs="memory")
LSTM_H_NORM = _gradients("lstm/h_norm_layer<i>", "–", "its mean norm", needs="memory")
LSTM_C_MEAN = _gradients("lstm/c_mean_layer<i>", "–", "mean of the actor's cell state there", needs="an LSTM")
LSTM_C_NORM = _gradients("lstm/c_norm_layer<i>", "–", "its mean norm", needs="an LSTM")
LSTM_SATURATION = _gradients(
    "lstm/saturation_layer<i>",
    "fraction",
    "the larger of two shares: gates within 0.05 of shut or open, and |tanh(cell)| above 0.95",
    needs="memory",
)
LSTM_CRITIC_H_MEAN = _gradients(
    "lstm_critic/h_mean_layer<i>", "–", "the same for the critic's memory", needs="critic memory"
)
LSTM_CRITIC_H_STD = _gradients(
    "lstm_critic/h_std_layer<i>", "–", "the same for the critic's memory", needs="critic memory"
)
LSTM_CRITIC_H_NORM = _gradients(
    "lstm_critic/h_norm_layer<i>", "–", "the same for the critic's memory", needs="critic memory"
)
LSTM_CRITIC_C_MEAN = _gradients(
    "lstm_critic/c_mean_layer<i>", "–", "the same for the critic's memory", needs="critic memory, an LSTM"
)
LSTM_CRITIC_C_NORM = _gradients(
    "lstm_critic/c_norm_layer<i>", "–", "the same for the critic's memory", needs="critic memory, an LSTM"
)
LSTM_CRITIC_SATURATION = _gradients(
    "lstm_critic/saturation_layer<i>",
    "fraction",
    "the same for the critic's memory",
    needs="critic memory",
)
LSTM_H_NORM_AFTER_RESET_RATIO = _gradients(
    "lstm/h_norm_after_reset_ratio",
    "–",
    "norm of h in the first 5 steps of episodes over that of all steps",
    needs="memory",
    combine="max",
)

_risk = _section("Risk")
RISK_CVAR_MEASURED = _risk(
    "risk/cvar_measured",
    "unit of X",
    "CVaR of the risk variable over the rollout, of the policy that the limit binds (exploring, or deployed)",
    needs="risk",
    shown=True,
)
RISK_CVAR_STANDARD_ERROR = _risk(
    "risk/cvar_standard_error",
    "unit of X",
    "standard error of risk/cvar_measured, as if outcomes were independent",
    needs="risk",
)
RISK_VAR_MEASURED = _risk("risk/var_measured", "unit of X", "its α-quantile, the start of that tail", needs="risk")
RISK_TAIL_SAMPLES = _risk(
    "risk/tail_samples",
    "count",
    "α · samples behind the measured tail",
    needs="risk",
)
RISK_LIMIT = _risk("risk/limit", "unit of X", "the least CVaR allowed", needs="risk.limit", shown=True)
RISK_GAP = _risk(
    "risk/gap",
    "unit of X",
    "limit − measured: positive = violated",
    needs="risk.limit",
    shown=True,
)
RISK_MULTIPLIER = _risk(
    "risk/multiplier",
    "–",
    "λ: weight of the cost in the policy's advantage",
    needs="risk",
    shown=True,
)
RISK_CVAR_PREDICTED = _risk(
    "risk/cvar_predicted",
    "unit of X",
    "CVaR of the next step's return predicted for the exploring policy, mean over envs at the rollout's end",
    needs="risk",
)
RISK_RETURN_CVAR_PREDICTED = _risk(
    "risk/return_cvar_predicted",
    "reward",
    "CVaR of the discounted return predicted for the exploring policy, mean over envs at the rollout's end",
    needs="risk",
)
RISK_COST_ADVANTAGE_STD = _risk(
    "risk/cost_advantage_std", "unit of X", "spread of the cost's advantage, before weighing", needs="risk"
)
RISK_GRAD_NORM = _risk(
    "risk/grad_norm",
    "–",
    "gradient of the costs' part of the surrogate at the action head",
    needs="risk",
    combine="max",
)
CVAR_GRADIENT_NORM = _risk(
    "debug/cvar_gradient_norm", "–", "the same, for a tail that is hard to measure", needs="risk.alpha < 0.01"
)

_scaling = _section("Gradient scaling and utility")
VGS_NOISE_TO_SIGNAL_P50 = _scaling(
    "vgs/noise_to_signal_p50",
    "–",
    "variance of the raw gradients over the square of their mean, median over tensors",
    needs="vgs",
)
VGS_NOISE_TO_SIGNAL_P90 = _scaling("vgs/noise_to_signal_p90", "–", "its 90 % quantile over tensors", needs="vgs")
VGS_SCALING_FACTOR = _scaling(
    "vgs/scaling_factor", "–", "factor on the gradients, mean over minibatches (and tensors)", needs="vgs"
)
VGS_WARMUP_ACTIVE = _scaling(
    "vgs/warmup_active", "0/1", "share of the minibatches in which gradients were only watched", needs="vgs"
)
UPGD_UTILITY_MAX = _scaling(
    "upgd/utility_max",
    "–",
    "largest |utility| of a weight in the last step: what utilities are divided by",
    needs="a utility optimiser",
)
UPGD_GATE_MEAN = _scaling(
    "upgd/gate_mean", "–", "mean gate of the last step: 1 is neutral, below 1 protected", needs="a utility optimiser"
)
UPGD_NOISE_RMS = _scaling(
    "upgd/noise_rms", "weight", "RMS of what the noise of the last step adds to a weight", needs="a utility optimiser"
)

_robustness = _section("Robustness")
ADVERSARY_ROBUST_KL = _robustness(
    "adversary/robust_kl",
    "nats",
    "KL(π(.|s) ‖ π(.|s + δ)) on the same rows, mean over real steps",
    needs="adversary",
)
ADVERSARY_EPSILON = _robustness(
    "adversary/epsilon", "network's unit", "radius of the ball in this update; 0 in the warm-up", needs="adversary"
)
ADVERSARY_DELTA_NORM = _robustness(
    "adversary/delta_norm", "network's unit", "mean size of δ, in the norm of the ball", needs="adversary"
)
ADVERSARY_OBJECTIVE_GAIN = _robustness(
    "adversary/objective_gain",
    "nats",
    "robust KL at δ less that at the random point of the ball where the search began",
    needs="adversary",
)
ADVERSARY_VALUE_SHIFT = _robustness(
    "adversary/value_shift",
    "σ² of the return",
    "squared distance between the return distributions at s and at s + δ, mean over critics",
    needs="adversary.value_weight",
)

_trading = _section("Trading")
TRADE_COSTS_FRACTION = _trading(
    "trade/costs_fraction",
    "fraction",
    'mean over steps of info["reward_costs_fraction"]: all costs and interest paid, over equity',
    needs='info["reward_costs_fraction"]',
)
TRADE_COSTS_DROPPED = _trading(
    "trade/costs_dropped",
    "count",
    "costs that were not finite and were left out of the mean",
    needs='info["reward_costs_fraction"]',
    combine="sum",
)
TRADE_TURNOVER = _trading(
    "trade/turnover", "fraction", "mean over steps of Σ|Δnotional| / equity", needs="a trading env"
)
TRADE_EXPOSURE = _trading(
    "trade/exposure",
    "fraction",
    "mean over steps of Σ|weight|",
    needs="a trading env",
)
TRADE_N_TRADES = _trading("trade/n_trades", "count", "orders of the rollout", needs="a trading env")
TRADE_SHARPE = _trading(
    "trade/sharpe", "–", "annualised Sharpe ratio of the rollout's steps, while exploring", needs="a trading env"
)
TRADE_MAX_DRAWDOWN = _trading(
    "trade/max_drawdown", "fraction", "deepest fall of an env within the rollout", needs="a trading env"
)

_population = _section("Population")
POPULATION_SCORE_BEST = _population(
    "population/score_best", "–", "best score of a member on validation at this comparison", needs="leeward tune"
)
POPULATION_SCORE_MEDIAN = _population("population/score_median", "–", "that of the middle one", needs="leeward tune")
POPULATION_SCORE_WORST = _population("population/score_worst", "–", "that of the worst", needs="leeward tune")
POPULATION_EXPLOITS = _population(
    "population/exploits", "count", "members that took over another one's state so far", needs="leeward tune"
)
POPULATION_LR_APPLIED = _population(
    "population/lr_applied",
    "–",
    "a member's learning rate as its optimiser had it in the first update after a comparison",
    needs="leeward tune",
)

_looks = _section("Rollout and network, as rules look at them")
TOP_ACTION_SHARE = _looks(
    "rollout/top_action_share",
    "fraction",
    "share of the steps that took the most frequent action",
    needs="discrete actions",
)
ACTION_AT_BOUND = _looks(
    "rollout/action_at_bound",
    "fraction",
    "share of action components that were clipped to a bound",
    needs="clipped actions",
)
ACTION_SPREAD = _looks(
    "rollout/action_spread",
    "fraction",
    "standard deviation of a component of the actions over the width of its bounds, the smallest of all components",
    needs="clipped actions",
    combine="min",
)
OBS_CONSTANT = _looks(
    "rollout/obs_constant", "fraction", "share of the features that have one value in a sample of the rollout"
)
OBS_REPEATED = _looks("rollout/obs_repeated", "fraction", "share of steps that show what the step before them showed")
OBS_LARGEST = _looks(
    "rollout/obs_largest",
    "network's unit",
    "largest root mean square of a feature, as the network reads it",
    combine="max",
)
OBS_CHANGED = _looks(
    "rollout/obs_changed",
    "times what is usual",
    "largest factor by which the spread of a feature, or the distance of its mean, is beyond what it was in the "
    "updates before; 1e9 where one that varied at most steps has a single value now, or whole numbers alone",
    combine="max",
)
OBS_NORMALISED_SPREAD = _looks(
    "rollout/obs_normalised_spread",
    "network's unit",
    "standard deviation of a feature after the normaliser inside the policy, in the middle of all that vary: near 1",
    needs="normalize_observations",
)
ACTION_SURPRISE = _looks(
    "rollout/action_surprise",
    "standard errors",
    "distance of the mean of −ln π of the actions taken from the mean entropy, or of how often the likeliest of "
    "discrete ones is taken from its probability: 0 but for chance if they are draws, or below 32 steps; no gSDE",
    combine="max",
)
DENSITY_DEV = _looks(
    "rollout/density_dev",
    "fraction",
    "largest distance of the log-probability of an action from one computed again by the density's formula, over 1 + "
    "its size",
    combine="max",
)
ACTIONS_OUTSIDE = _looks(
    "rollout/actions_outside",
    "fraction",
    "share of the actions given to the envs that their action space does not hold, in some steps of the rollout",
    combine="max",
)
ENVS_ALIKE = _looks(
    "rollout/envs_alike", "fraction", "of several envs the share that show what the first shows, step by step"
)
BOOTSTRAP_FROM_RESET = _looks(
    "rollout/bootstrap_from_reset",
    "fraction",
    "share of the episodes cut by a time limit whose successor's value is that of the next episode's first step",
)
REWARD_AT_BOUNDS = _looks(
    "rollout/reward_at_bounds",
    "fraction",
    "smaller of the shares of rewards that are exactly the lowest and exactly the highest; 0 for rewards of few values",
    combine="max",
)
ENDS_TOGETHER = _looks(
    "rollout/ends_together",
    "0/1",
    "1 if all envs end whenever one does, at uneven intervals; of two envs and three such steps or more",
    combine="max",
)
ENDED_SHARE = _looks("rollout/ended_share", "fraction", "share of the steps that end an episode")
STARTS_REPEATED = _looks(
    "rollout/starts_repeated",
    "fraction",
    "share of the first observations of episodes that an earlier episode of the same env in the rollout began with",
    combine="max",
)
STARTS_AT_END = _looks(
    "rollout/starts_at_end",
    "fraction",
    "share of the episodes that begin with the very observation that the one before ended with",
    combine="max",
)
LAST_REWARD_REPEATED = _looks(
    "rollout/last_reward_repeated",
    "fraction",
    "share of the episodes whose last reward is exactly the one before it; 0 where a tenth of the other rewards are, "
    "or fewer than 3 episodes end; looked at as rollout/action_lag is",
    combine="max",
)
REWARD_STALE = _looks(
    "rollout/reward_stale",
    "fraction",
    "share of the steps that pay exactly what the step before did, on a part of the rollout; 0 where such rewards come "
    "at other times too, or for long, or fewer than 5 times; looked at as rollout/action_lag is",
    combine="max",
)
REWARDS_ALIKE = _looks(
    "rollout/rewards_alike",
    "fraction",
    "share of the envs that pay what the first one does, step by step, on a part of the rollout; 0 where that hardly "
    "changes, or all end together; looked at as rollout/action_lag is",
    combine="max",
)
REWARD_ELSEWHERE = _looks(
    "rollout/reward_elsewhere",
    "fraction",
    "how much more of the reward's variance follows from an action and the observation of another step than from those "
    "of one step, this or the one before; mean of the looks so far, looked at as rollout/action_lag is",
    combine="min",
)
ENVS_APART = _looks(
    "rollout/envs_apart",
    "ratio",
    "how far the spread of the reward or of a feature in one env is from that in the middle of all; in the first 10 "
    "updates, 0 below 32 steps an env",
    combine="max",
)
FEATURES_COPIED = _looks(
    "rollout/features_copied",
    "fraction",
    "share of the features that are exact copies of another, in the first 10 updates",
    combine="max",
)
ACTION_LAG = _looks(
    "rollout/action_lag",
    "steps",
    "steps after the next one in which the noise of an action shows first, in the reward or the next observation; 0 "
    "where that is not clear; of observations of at most 32 numbers, in the first 32 updates and every 64th later",
    combine="min",
)
ENV_CHANGED = _looks(
    "rollout/env_changed",
    "fraction",
    "how much less of the variance of the reward or of a feature follows from the step before it, by the rule that "
    "held until then, than followed so far; of those of which half did; looked at as rollout/action_lag is",
    combine="max",
)
DRAWS_REPEATED = _looks(
    "rollout/draws_repeated",
    "0/1",
    "1 if the exploration noise begins as that of an earlier rollout did, of the first 32 or the 64 before this one; 0 "
    "where fewer than 4 numbers are drawn",
)
REWARD_DISCOUNT_DEV = _looks(
    "rollout/reward_discount_dev",
    "ratio",
    "how many times as long, or as short, the horizon 1 / (1 − γ) of a reward normaliser is as that of the training; "
    "in the first 10 updates",
    needs="VecNormalize with norm_reward, or gymnasium's NormalizeReward in a DummyVecEnv",
)
ENVS_MOVED = _looks(
    "rollout/envs_moved",
    "count",
    "steps and resets of the VecEnv, since the last step of the rollout before, that the rollout did not ask for",
    combine="sum",
)
EPISODES_CUT_UNSEEN = _looks(
    "rollout/episodes_cut_unseen",
    "count",
    "episodes that a time limit cut, by the env's word, and that count as terminated",
    combine="sum",
)
RECORD_DEV = _looks(
    "rollout/record_dev",
    "reward",
    "largest distance of stored rewards and ends of episodes from those that the envs gave, on a sample of steps; 1 "
    "where a step begins an episode and the one before has not ended, or the other way round",
    combine="max",
)
NORMALISER_COUNT = _looks(
    "rollout/normaliser_count",
    "count",
    "observations behind the statistics of the observation normaliser",
    needs="normalize_observations or VecNormalize",
)
VALUE_DEV = _looks(
    "rollout/value_dev",
    "critic's raw unit",
    "largest distance of stored values from those computed again, or from their predecessors' successors, on a sample "
    "and behind the last step",
    combine="max",
)
CRITICS_APART = _looks(
    "rollout/critics_apart",
    "critic's raw unit",
    "largest distance of the critics' predictions from each other, on a sample of the rollout",
    combine="max",
)
MEMORY_REACH = _looks(
    "train/memory_reach",
    "–",
    "size of the gradient of the network's word on a step in the memory before the step before it; the smaller of "
    "actor and critics",
    needs="memory",
)
RESET_DEV = _looks(
    "rollout/reset_dev",
    "–",
    "largest distance of action parameters at episode starts from those of an empty memory, on a sample",
    needs="memory, an episode that begins in the rollout",
    combine="max",
)
ADVANTAGE_DEV = _looks(
    "train/advantage_dev",
    "σ of the advantage",
    "distance of the advantages from the recursion of GAE on the rollout, and of those learned from from them",
    combine="max",
)
TARGET_SLOPE_DEV = _looks(
    "train/target_slope_dev",
    "–",
    "|slope − 1| of the mean value targets against λ-returns; 0 where the samples are too few to tell",
)
SURROGATE_DIRECTION = _looks(
    "train/surrogate_direction",
    "–",
    "Σ (ratio − 1) A over Σ |(ratio − 1) A| of an update: above 0 where actions that paid become more likely",
)
ROLLOUT_USED = _looks(
    "train/rollout_used",
    "fraction",
    "share of the rollout's steps that an epoch went through (the first: exactly once), if no KL stop ended it",
)
MINIBATCHES_REPEATED = _looks(
    "train/minibatches_repeated",
    "0/1",
    "1 if the first minibatch of an epoch is that of the epoch before; of six sequences or more, not of all",
    combine="max",
)
GRADIENT_DEV = _looks(
    "train/gradient_dev",
    "–",
    "largest distance of the gradients of the heads' biases, as the optimiser gets them, from those computed again "
    "from the rollout, over their size; of one minibatch, without an adversary",
    combine="max",
)
OPTIMIZER_STEP_DEV = _looks(
    "train/optimizer_step_dev",
    "–",
    "largest distance of the heads' biases after a step from where Adam's formula leads, over the step; of one step "
    "of Adam or AdamW, without an adversary",
    combine="max",
)
PROGRESS_DEV = _looks(
    "train/progress_dev",
    "fraction",
    "distance of the progress that schedules were told from the share of this training's steps that were learned from",
)
WEIGHT_DECAY = _looks("train/weight_decay", "–", "largest weight decay of the live optimiser's groups", combine="max")
PARAMETERS_UNCHANGED = _looks(
    "train/parameters_unchanged",
    "count",
    "parameters (tensors of weights) that may learn and are the same after an update",
    combine="max",
)
WEIGHTS_MOVED = _looks(
    "train/weights_moved",
    "count",
    "parameters (tensors of weights) that are not what the update before left",
    combine="max",
)
UPDATE_RATIO = _looks(
    "train/update_ratio/<module>",
    "–",
    "norm of what an update changed over the norm of the weights, by part of the network",
)
OPTIMIZER_STEPS = _looks(
    "train/optimizer_steps", "count", "steps that the optimiser's own state has behind it, where it counts them"
)
LEARNING_RATE_DEV = _looks(
    "train/learning_rate_dev", "–", "|rate − setting| / setting, rates read back from the live optimiser", combine="max"
)
DORMANT_UNITS = _looks(
    "train/dormant_units", "fraction", "share of units of the last hidden layers that hardly ever act", combine="max"
)
FEATURE_RANK = _looks(
    "train/feature_rank",
    "count",
    "directions that hold 99 % of what the action head reads, on a sample; every 10th update",
    combine="min",
)
ROUND_FPS = _looks("time/round_fps", "steps/s", "env steps per second of this rollout and its update")
ALERT = _looks("alert/<rule>", "0/1", "1 while what a rule looks for is there; written once the rule has fired")

REGISTRY: dict[str, Metric] = {metric.name: metric for section in SECTIONS.values() for metric in section}
_PATTERNS = {name: re.compile(re.sub(r"<\w+>", "[^/]+", re.escape(name)) + r"(/\d+)?") for name in REGISTRY}


def find(name: str) -> Metric | None:
    """The registered metric, or family of metrics, that a name belongs to."""
    if name in REGISTRY:
        return REGISTRY[name]
    return next((REGISTRY[known] for known, pattern in _PATTERNS.items() if pattern.fullmatch(name)), None)
