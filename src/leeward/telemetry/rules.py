"""The table of health rules. A threshold stands here and nowhere else; `health.rules.<name>` in a config changes it.

Rules about results, which may be what a task allows, are `info`; an `error` is a number that no run that works has.
"""

import math
import statistics
from itertools import pairwise

from leeward.telemetry import metrics as m
from leeward.telemetry.health import History, Reading, Rule, changes, largest, only_if, outside, over, smallest

__all__ = ["RULES"]

_REPORT = "report it with the run: this is a fault of the engine, or of a policy or stage of your own"


# --- what rules judge -------------------------------------------------------------------------------------------------


def _learns(history: History) -> bool:
    """Whether the settings want weights to move in this update, and nothing kept it from a first step."""
    return bool(history.get(m.LEARNING_RATE)) and history.get(m.KL_STOP_EPOCH) != 0.0


def _not_finite(history: History) -> Reading | None:
    bad = [name for name, value in history.now.items() if not math.isfinite(value)]
    return Reading(float(len(bad)), bad[0] if bad else m.LOSS.name)


def _size_of_losses(history: History) -> Reading | None:
    found = [
        Reading(abs(value), metric.name)
        for metric in (m.LOSS, m.POLICY_LOSS, m.VALUE_LOSS)
        if (value := history.get(metric)) is not None
    ]
    return max(found, default=None)


def _unchanged(history: History) -> Reading | None:
    still = [reading.metric for reading in history.all(m.UPDATE_RATIO) if reading.value == 0.0]
    return Reading(float(len(still)), still[0] if still else m.UPDATE_RATIO.name)


def _kl_without_clips(history: History) -> Reading | None:
    kl = history.get(m.KL_EXACT)
    return None if kl is None or history.get(m.CLIP_FRACTION) != 0.0 else Reading(abs(kl), m.KL_EXACT.name)


def _mid_training(history: History) -> bool:
    return history.facts.progress < 0.97


def _width(history: History) -> Reading | None:
    """How wide the policy explores relative to its start: its standard deviation beside the schedule, or entropy."""
    for metric, scale in ((m.STD, history.facts.noise_scale), (m.POLICY_ENTROPY, 1.0)):
        now, first = history.get(metric), history.first.get(metric.name)
        if metric == m.POLICY_ENTROPY and history.facts.max_entropy is None:
            continue  # the entropy of a density has no zero to be near to
        if now is not None and first is not None and first > 0.0 and scale > 0.0:
            return Reading(now / first / scale, metric.name)
    return None


def _has_not_learned(history: History) -> bool:
    """The return is not above that of the start by the spread of single episodes, or has fallen back since."""
    now, spread = history.get(m.EP_REW_MEAN), history.get(m.EP_REW_STD)
    first, peak = (values.get(m.EP_REW_MEAN.name) for values in (history.first, history.peak))
    if now is None or spread is None or first is None or peak is None:
        return True
    return now - first <= spread or now < 0.5 * (first + peak)


def _swing(values: tuple[float, ...]) -> float | None:
    """How far a series goes up and down, over its mean, where it turns at every other value at least."""
    steps = [b - a for a, b in pairwise(values)]
    turns = sum(a * b < 0.0 for a, b in pairwise(steps))
    mean = abs(statistics.fmean(values))
    return None if mean == 0.0 else (max(values) - min(values)) / mean * (turns >= len(steps) // 2)


def _against_before(values: tuple[float, ...]) -> float | None:
    """How many times the newest is larger or smaller than the middle of those before it."""
    *before, now = values
    known = [value for value in before if value > 0.0]
    if len(known) < 3 or now <= 0.0:
        return None
    ratio = now / statistics.median(known)
    return max(ratio, 1.0 / ratio)


def _reward_changes(history: History) -> tuple[Reading | None, Reading | None]:
    """How many times the spread of the rewards, and their usual size, are those of the updates before."""
    by_spread, by_size = (changes(metric, 6, _against_before) for metric in (m.REWARD_STD, m.REWARD_SIZE))
    return by_spread(history), by_size(history)


def _unit_changed(history: History) -> Reading | None:
    """By the spread of the rewards and by their usual size: the first reward for a goal changes the spread alone."""
    spread, size = _reward_changes(history)
    return None if spread is None or size is None else min(spread, size)


def _outlier(history: History) -> Reading | None:
    """How far the spread of the rewards has grown beyond their usual size."""
    spread, size = _reward_changes(history)
    return None if spread is None or size is None else Reading(spread.value / size.value, spread.metric)


def _left_of_gain(history: History) -> Reading | None:
    """Where the best so far was above the start by twice the spread of single episodes."""
    now, spread = history.get(m.EP_REW_MEAN), history.get(m.EP_REW_STD)
    first, peak = (values.get(m.EP_REW_MEAN.name) for values in (history.first, history.peak))
    if now is None or spread is None or first is None or peak is None or peak - first <= 2.0 * spread:
        return None
    return Reading((now - first) / (peak - first), m.EP_REW_MEAN.name)


def _rise(values: tuple[float, ...]) -> float:
    *before, now = values
    return now - statistics.median(before)


def _restarts(values: tuple[float, ...]) -> float:
    """How often a value that fell is followed by one that is half as large again."""
    threes = zip(values, values[1:], values[2:], strict=False)
    return float(sum(before > low and after > 1.5 * low for before, low, after in threes))


def _fall(values: tuple[float, ...]) -> float | None:
    *before, now = values
    middle = statistics.median(before)
    return None if middle <= 0.0 else now / middle


def _spread(values: tuple[float, ...]) -> float | None:
    mean = statistics.fmean(values)
    return None if mean <= 0.0 else statistics.pstdev(values) / mean


def _mean_off(history: History) -> Reading | None:
    mean, std = history.get(m.ADVANTAGES_NORM_MEAN), history.get(m.ADVANTAGES_NORM_STD)
    if mean is None or std is None or std > 3.0:  # not normalised at all, as the settings may want it
        return None
    return Reading(abs(mean), m.ADVANTAGES_NORM_MEAN.name)


def _acts_freely(history: History) -> bool:
    """Features that follow the actions stand still where these do."""
    return (history.get(m.ACTION_AT_BOUND) or 0.0) < 0.9 and (history.get(m.TOP_ACTION_SHARE) or 0.0) < 0.9


def _drift(history: History) -> Reading | None:
    """The largest move of a normaliser that is there."""
    own = (m.OBS_NORM_MEAN_DRIFT, m.OBS_NORM_STD_DRIFT)
    theirs = (m.VECNORMALIZE_MEAN_DRIFT, m.VECNORMALIZE_STD_DRIFT)
    return largest(*own, *theirs)(history)


def _resolution(history: History) -> float | None:
    """What a decoded value can be told apart by: the spread of the return, or float32's step at its mean."""
    std, mean = history.get(m.RET_STD), history.get(m.RET_MEAN)
    return None if std is None or mean is None else max(std, 1.2e-7 * abs(mean) * 1e3)


def _clipped(history: History) -> Reading | None:
    bound = history.facts.max_grad_norm
    found = largest(m.GRAD_NORM_POST_CLIP_MAX_OF)(history)
    return None if bound is None or found is None else Reading(found.value / bound, found.metric)


def _of_limits(history: History) -> list[tuple[Reading, float, int]]:
    """Gap, limit and place of every constraint that has a limit."""
    found = []
    for place, reading in enumerate(history.all(m.RISK_GAP)):
        suffix = reading.metric.removeprefix(m.RISK_GAP.name)
        limit = history.now.get(f"{m.RISK_LIMIT.name}{suffix}")
        if limit:
            found.append((reading, limit, place))
    return found


def _worst_gap(history: History) -> Reading | None:
    """The gap over the size of its limit, beyond twice the error with which it was measured."""
    found = []
    for reading, limit, _ in _of_limits(history):
        suffix = reading.metric.removeprefix(m.RISK_GAP.name)
        error = history.now.get(f"{m.RISK_CVAR_STANDARD_ERROR.name}{suffix}", 0.0)
        found.append(Reading((reading.value - 2.0 * error) / abs(limit), reading.metric))
    return max(found, default=None)


def _used_budget(history: History) -> Reading | None:
    """The measured tail over its limit, where no multiplier holds it back."""
    found = []
    for reading, limit, _ in _of_limits(history):
        suffix = reading.metric.removeprefix(m.RISK_GAP.name)
        idle = history.now.get(f"{m.RISK_MULTIPLIER.name}{suffix}") == 0.0
        if idle and limit < 0.0:
            found.append(Reading(1.0 - reading.value / limit, reading.metric))  # measured / limit = 1 − gap / limit
    return min(found, default=None) if history.facts.progress > 0.5 else None


def _at_ceiling(history: History) -> Reading | None:
    pairs = zip(history.all(m.RISK_MULTIPLIER), history.facts.ceilings, strict=False)
    return max((Reading(r.value / ceiling, r.metric) for r, ceiling in pairs), default=None)


def _climb(history: History) -> Reading | None:
    values = history.series(m.RISK_MULTIPLIER, 10)
    if values is None or history.facts.progress < 0.9 or (history.get(m.RISK_GAP) or 0.0) <= 0.0 or values[0] <= 0.0:
        return None
    return Reading(values[-1] / values[0], m.RISK_MULTIPLIER.name)


def _memorised(history: History) -> Reading | None:
    seen, unseen = history.get(m.EXPLAINED_VARIANCE), history.get(m.EVAL_EXPLAINED_VARIANCE)
    return None if seen is None or unseen is None else Reading(seen - unseen, m.EVAL_EXPLAINED_VARIANCE.name)


def _gain_over_start(history: History) -> Reading | None:
    now, first = history.get(m.EP_REW_MEAN), history.first.get(m.EP_REW_MEAN.name)
    if now is None or first is None or history.facts.progress < 0.5:
        return None
    return Reading(now - first, m.EP_REW_MEAN.name)


def _still_better(values: tuple[float, ...]) -> float | None:
    """What the second half of a series has over the first, in units of its spread."""
    half = len(values) // 2
    spread = statistics.pstdev(values)
    return None if spread == 0.0 else (statistics.fmean(values[half:]) - statistics.fmean(values[:half])) / spread


def _costs_while_trading(history: History) -> Reading | None:
    costs, turnover = history.get(m.TRADE_COSTS_FRACTION), history.get(m.TRADE_TURNOVER)
    if costs is None or turnover is None or turnover < 1e-6:
        return None
    return Reading(costs / turnover, m.TRADE_COSTS_FRACTION.name)


# --- the table --------------------------------------------------------------------------------------------------------

_MANY = 32  # steps of a rollout from which on its mean, spread and shares say something

_TABLE = (
    # --- training stopped, or numbers that no run that works has ---
    Rule(
        "environment_fault", "error", (), None, 0.0, "above",
        what="an env gave an observation or a reward that is not finite, or ended without what the contract asks for",
        cause="a division by zero or a missing value inside the env or its data",
        remedy="run the env alone to the step that the message names; for bars, leeward data check",
        check="the message names env, step and feature",
    ),
    Rule(
        "training_diverged", "error", (), None, 0.0, "above",
        what="training cannot go on: weights, targets or replicas are no longer usable",
        cause="a learning rate that is too large, or rewards of an extreme size",
        remedy="lower learning_rate; health.rollback goes back to the last good state by itself",
        check="the message says what was not finite or not equal",
    ),
    Rule(
        "rolled_back", "info", (), None, 0.0, "above",
        what="training returned to its last good state, with a smaller learning rate",
        cause="the error that the message names, with health.rollback on",
        remedy="nothing at once; if it repeats, begin with the smaller learning rate",
        check="train/learning_rate falls at this update",
    ),
    Rule(
        "nonfinite_number", "error", (m.LOSS,), _not_finite, 0.0, "above",
        what="metrics of an update that are NaN or infinite",
        cause="an overflow: rewards or observations of extreme size, or diverging weights",
        remedy="lower learning_rate, scale the reward; health.rollback goes back by itself",
        check="find the first such column in progress.csv, then look at the terms it is made of",
    ),
    Rule(
        "log_ratio_nonfinite", "error", (m.LOG_RATIO_NONFINITE, m.LOG_RATIO_NAN_COUNT, m.LOG_RATIO_INF_COUNT),
        largest(m.LOG_RATIO_NONFINITE, m.LOG_RATIO_NAN_COUNT, m.LOG_RATIO_INF_COUNT), 0.0, "above",
        what="log ratios that are NaN or infinite",
        cause="NaN in the network, or an action of probability 0",
        remedy="the minibatch was skipped; lower learning_rate, and look for action masks that forbid what was done",
        check="error/log_ratio_nan_count and error/log_ratio_inf_count say which of the two",
    ),
    Rule(
        "minibatches_skipped", "error", (m.SKIPPED_MINIBATCHES,), largest(m.SKIPPED_MINIBATCHES), 0.0, "above",
        what="minibatches left out because loss or gradient was not finite",
        cause="NaN or infinity in loss or gradient: an outlier in the rollout, or diverging weights",
        remedy="look at error/log_ratio_nonfinite and at the env; lower learning_rate",
        check="train/grad_norm_raw_max and train/advantages_norm_max_abs in the updates before",
    ),
    Rule(
        "ratio_not_one", "error", (m.RATIO_FIRST_MINIBATCH_MAX_DEV,), largest(m.RATIO_FIRST_MINIBATCH_MAX_DEV), 1e-3,
        "above",
        what="largest |ratio − 1| before the first step of an update, where it must be 0",
        cause="rollout and update disagree: memory state, observation normaliser, action mask or a random layer",
        remedy=_REPORT,
        check="leeward.DistributionalPPO on the same env without your own policy or wrapper",
    ),
    Rule(
        "rollout_not_as_given", "error", (m.RECORD_DEV,), largest(m.RECORD_DEV), 1e-3, "above",
        what="distance of the rollout's rewards and ends from those that the envs gave",
        cause="rewards or ends are stored beside another step or another env, or changed after they were collected",
        remedy=_REPORT,
        check="step the env by hand and compare with rollout_buffer.rewards",
    ),
    Rule(
        "value_not_reproduced", "error", (m.VALUE_DEV,), largest(m.VALUE_DEV), 1e-2, "above",
        what="distance between the values of the rollout and the same values computed again before the update",
        cause="the critics' memory, the order of the critics or of the envs is not what it was in the rollout",
        remedy=_REPORT,
        check="compare rollout_buffer.raw_values with policy.values on the same observations",
    ),
    Rule(
        "memory_not_reset", "error", (m.RESET_DEV,), largest(m.RESET_DEV), 1e-2, "above",
        what="distance between the policy at episode starts and the policy from an empty memory",
        cause="the memory is carried over the end of an episode, or starts from something else than zero",
        remedy="check that the env (or VecEnv) says done at the end of each episode; else " + _REPORT,
        check="lstm/h_norm_after_reset_ratio near or above 1 says the same",
    ),
    Rule(
        "advantage_mismatch", "error", (m.ADVANTAGE_DEV,), largest(m.ADVANTAGE_DEV), 1e-3, "above",
        what="distance of the advantages from GAE of this rollout by the settings' gamma and gae_lambda",
        cause="advantages of another rollout or another env, another discount, an end that is none, or values "
              "shifted in time",
        remedy=_REPORT,
        check="leeward audit recomputes advantages in float64",
    ),
    Rule(
        "target_mismatch", "error", (m.TARGET_SLOPE_DEV,), largest(m.TARGET_SLOPE_DEV), 0.3, "above",
        what="how far the value targets are from the λ-returns of this rollout",
        cause="targets of other steps or envs than the observations they stand beside",
        remedy=_REPORT,
        check="leeward audit recomputes value targets in float64",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "time_limit_as_end", "error", (m.EPISODES_CUT_UNSEEN,), largest(m.EPISODES_CUT_UNSEEN), 0.0, "above",
        what="episodes that were cut by a time limit and are taken for ended",
        cause="a wrapper drops or overrules info['TimeLimit.truncated'], so that values are not bootstrapped",
        remedy="return truncated=True, terminated=False from the env at its time limit",
        check="count episodes of the full length against rollout/ep_len_mean",
    ),
    Rule(
        "bootstrap_from_reset", "error", (m.BOOTSTRAP_FROM_RESET, m.OBS_CONSTANT),
        only_if(lambda h: (h.get(m.OBS_CONSTANT) or 0.0) < 0.999, largest(m.BOOTSTRAP_FROM_RESET)), 0.5, "above",
        what="share of episodes cut by a time limit that are valued by the next episode's first observation",
        cause="a VecEnv that resets by itself gives its new observation as info['terminal_observation']",
        remedy="give the last observation of the episode as info['terminal_observation']",
        check="step the env over its time limit and compare info['terminal_observation'] with what reset returns",
    ),
    Rule(
        "envs_alike", "warn", (m.ENVS_ALIKE, m.OBS_CONSTANT),
        only_if(lambda h: (h.get(m.OBS_CONSTANT) or 0.0) < 0.999, largest(m.ENVS_ALIKE)), 0.99, "above",
        what="share of envs that show what the first env shows, step by step",
        cause="all envs have one seed, often by a lambda in a loop that sees the last value of its variable",
        remedy="seed every env by its own number: make_vec_env does, or functools.partial(make, seed + i)",
        check="print the first observation of every env",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "learning_rate_not_applied", "error", (m.LEARNING_RATE_DEV,), largest(m.LEARNING_RATE_DEV), 1e-6, "above",
        what="distance of the optimiser's learning rate from the setting",
        cause="something else writes to the optimiser's param_groups, or a change of settings was lost",
        remedy="change it by model.set_hyperparameters(learning_rate=...) alone",
        check="model.policy.optimizer.param_groups[0]['lr'] beside model.learning_rate",
    ),
    Rule(
        "optimizer_restarted", "warn", (m.OPTIMIZER_STEPS, m.KL_STOP_EPOCH, m.SKIPPED_MINIBATCHES),
        only_if(lambda h: h.get(m.KL_STOP_EPOCH) != 0.0 and h.get(m.SKIPPED_MINIBATCHES) == 0.0,
                changes(m.OPTIMIZER_STEPS, 2, lambda steps: steps[1] - steps[0])), 0.5, "below",
        what="growth of the optimiser's own count of steps over an update",
        cause="its moments were lost: a resume without the optimiser's state, or a new optimiser in the middle "
              "of a run",
        remedy="load a checkpoint that was saved with its optimiser (no exclude=['policy.optimizer'])",
        check="train/optimizer_steps falls where a sound run only grows",
        window=2,
    ),
    Rule(
        "normaliser_restarted", "warn", (m.NORMALISER_COUNT,),
        changes(m.NORMALISER_COUNT, 2, lambda counts: counts[1] - counts[0]), -0.5, "below",
        what="growth of the count of observations behind the normaliser over an update",
        cause="its statistics were lost: a new VecNormalize around the env, or a resume without its file",
        remedy="load what the run before had: VecNormalize.load, or Leeward's own checkpoint, which holds it",
        check="rollout/normaliser_count falls where a sound run only grows",
        window=2,
    ),
    Rule(
        "rollout_left_out", "warn", (m.ROLLOUT_USED,), largest(m.ROLLOUT_USED), 0.99, "below",
        what="share of the rollout that an epoch went through",
        cause="minibatches that do not cover the rollout: a loop that ends early, indices of a part alone, or drawn "
              "with replacement",
        remedy=_REPORT,
        check="train/rollout_used is 1 in a sound run",
    ),
    Rule(
        "minibatches_repeated", "warn", (m.MINIBATCHES_REPEATED,), largest(m.MINIBATCHES_REPEATED), 0.5, "above",
        what="an epoch begins with the same minibatch as the one before",
        cause="the rollout is not shuffled, or by a generator that is seeded anew each time",
        remedy=_REPORT,
        check="print the indices of the first minibatch of two epochs",
        persistence=2,
    ),
    Rule(
        "weights_changed_outside", "warn", (m.WEIGHTS_MOVED,), largest(m.WEIGHTS_MOVED), 0.5, "above",
        what="parameters that are not what the update before left",
        cause="something wrote to the weights between two updates: a file that was loaded, a copy or an average of "
              "other weights, a reset, noise",
        remedy="look at callbacks and wrappers; for weights from elsewhere use model.set_parameters, which says so",
        check="compare policy.state_dict() at the end of an update with that at the start of the next",
    ),
    Rule(
        "gradient_mismatch", "error", (m.GRADIENT_DEV,), largest(m.GRADIENT_DEV), 0.01, "above",
        what="distance of a gradient, as the optimiser gets it, from the same computed again from the rollout",
        cause="the loss is not that of its settings (a sign, a weight, targets or a mask of other rows), or gradients "
              "are not cleared, changed or scaled on their way to the optimiser",
        remedy="look at a loss, hook or stage of your own; else " + _REPORT,
        check="train/gradient_dev is below 1e-3 in a sound run",
    ),
    Rule(
        "optimizer_step_mismatch", "error", (m.OPTIMIZER_STEP_DEV,), largest(m.OPTIMIZER_STEP_DEV), 0.01, "above",
        what="distance of weights after an optimiser step from where Adam leads, over the step",
        cause="the optimiser steps twice or not at all, or something else writes to the weights within an update",
        remedy="look for a second optimiser, a hook, or a weight clip of your own; else " + _REPORT,
        check="train/optimizer_step_dev is below 1e-3 in a sound run",
    ),
    Rule(
        "gradient_clip_broken", "error", (m.GRAD_NORM_POST_CLIP_MAX_OF,), _clipped, 1.0 + 1e-5, "above",
        what="largest clipped gradient norm of a half over max_grad_norm",
        cause="something changes gradients after the clip",
        remedy=_REPORT,
        check="train/grad_norm_post_clip_max/actor and /critic beside max_grad_norm",
    ),
    Rule(
        "popart_moved_values", "error", (m.POPART_MAX_SHIFT, m.RET_STD, m.RET_MEAN),
        only_if(lambda h: not h.facts.support, over(m.POPART_MAX_SHIFT, _resolution)), 1e-3, "above",
        what="change of a decoded value by the rescale of the heads, over the spread of the return",
        cause="the rescale of the value heads moved predictions",
        remedy=_REPORT,
        check="train/popart_max_shift beside train/ret_std",
    ),
    Rule(
        "support_moved_values", "warn", (m.POPART_MAX_SHIFT, m.RET_STD, m.RET_MEAN),
        only_if(lambda h: h.facts.support, over(m.POPART_MAX_SHIFT, _resolution)), 1.0, "above",
        what="change of a decoded value by a move of the atoms, over the spread of the return",
        cause="returns outgrew the support by far, and the atoms were fitted anew",
        remedy="none is needed once; if it repeats, look for a reward whose size changes",
        check="train/popart_max_shift beside train/ret_std",
        persistence=2,
    ),
    Rule(
        "policy_jumped", "error", (m.APPROX_KL,), largest(m.APPROX_KL), 1.0, "above",
        what="KL divergence of one update, in nats",
        cause="a learning rate that is far too large, or an update on damaged advantages",
        remedy="lower learning_rate, set target_kl; health.rollback goes back by itself",
        check="train/clip_fraction near 1 in the same update",
    ),
    Rule(
        "loss_exploded", "error", (m.LOSS, m.POLICY_LOSS, m.VALUE_LOSS), _size_of_losses, 1e6, "above",
        what="size of a loss, which is in units of the return's spread",
        cause="the critics diverge, or advantages of another magnitude",
        remedy="lower learning_rate; look at the rewards; health.rollback goes back by itself",
        check="train/value_loss and train/policy_loss say which half it is",
    ),
    # --- does it learn at all? ---
    Rule(
        "weights_unchanged", "error", (m.UPDATE_RATIO, m.LEARNING_RATE, m.KL_STOP_EPOCH),
        only_if(_learns, _unchanged), 0.0, "above",
        what="parts of the network whose weights are the same after an update",
        cause="no gradient reaches them (a detached tensor, a part that is not used), or the optimiser does "
              "not hold them",
        remedy="look for detach() and no_grad in a network of your own; are its parameters in policy.parameters()?",
        check="train/update_ratio/<module> is exactly 0",
        persistence=2,
    ),
    Rule(
        "parameter_unchanged", "warn", (m.PARAMETERS_UNCHANGED, m.UPDATE_RATIO, m.LEARNING_RATE, m.KL_STOP_EPOCH),
        only_if(lambda h: _learns(h) and _mid_training(h), largest(m.PARAMETERS_UNCHANGED)), 0.5, "above",
        what="parameters that may learn and are the same after an update",
        cause="no gradient reaches them: a detached tensor, a branch that is never taken, or a standard deviation "
              "that no loss depends on",
        remedy="look for detach() and no_grad in a network of your own; freeze on purpose by requires_grad_(False)",
        check="compare policy.named_parameters() before and after an update",
        persistence=2,
    ),
    Rule(
        "learning_rate_zero", "warn", (m.LEARNING_RATE,),
        only_if(_mid_training, largest(m.LEARNING_RATE)), 1e-9, "below",
        what="the learning rate, before the end of training",
        cause="a learning rate of 0, or a schedule that ends too early",
        remedy="set learning_rate, or total_timesteps to what the schedule was made for",
        check="train/learning_rate in the log",
    ),
    Rule(
        "weight_decay_large", "warn", (m.WEIGHT_DECAY,), largest(m.WEIGHT_DECAY), 0.3, "above",
        what="the weight decay of the optimiser",
        cause="a factor such as 0.99 given as a decay: it pulls all weights to 0 in every step",
        remedy="0 is usual for PPO, 1e-4 to 1e-2 for large networks",
        check="optimizer_kwargs",
    ),
    Rule(
        "schedule_restarts", "warn", (m.LEARNING_RATE,), changes(m.LEARNING_RATE, 16, _restarts), 1.5, "above",
        what="how often a learning rate that fell has jumped up again in 16 updates",
        cause="a schedule that runs anew in every call of learn: training is cut into calls, each with its own end",
        remedy="one call of learn with the whole total_timesteps; or a constant rate",
        check="train/learning_rate in the log",
        window=16,
    ),
    Rule(
        "schedule_off_course", "warn", (m.PROGRESS_DEV,), largest(m.PROGRESS_DEV), 1e-6, "above",
        what="distance of the progress that schedules were told from the share of the steps that were learned from",
        cause="something else writes to num_timesteps or to the total, or tells schedules their progress in another "
              "unit, such as updates for steps: rates fall too early, too late or not at all",
        remedy="leave num_timesteps and the total to learn; to train longer, call learn with reset_num_timesteps=False",
        check="train/learning_rate in the log against steps over total_timesteps",
    ),
    Rule(
        "updates_tiny", "warn", (m.UPDATE_RATIO, m.LEARNING_RATE, m.KL_STOP_EPOCH),
        only_if(lambda h: _learns(h) and _mid_training(h), largest(m.UPDATE_RATIO)), 1e-6, "below",
        what="largest change of a part of the network by an update, over its weights",
        cause="a learning rate that is far too small, or gradients scaled to nothing",
        remedy="raise learning_rate; look at max_grad_norm and vgs",
        check="1e-3 to 1e-1 is usual for train/update_ratio/<module>",
        persistence=3,
    ),
    Rule(
        "updates_huge", "warn", (m.UPDATE_RATIO,), largest(m.UPDATE_RATIO), 3.0, "above",
        what="largest change of a part of the network by an update, over its weights",
        cause="a learning rate that is far too large",
        remedy="lower learning_rate or n_epochs",
        check="1e-3 to 1e-1 is usual for train/update_ratio/<module>",
        warmup=10, persistence=2,
    ),
    Rule(
        "policy_not_moving", "warn", (m.KL_EXACT, m.CLIP_FRACTION, m.LEARNING_RATE, m.KL_STOP_EPOCH),
        only_if(lambda h: _learns(h) and _mid_training(h) and h.facts.several_steps, _kl_without_clips), 1e-8, "below",
        what="KL divergence of an update, in nats, with a learning rate above 0",
        cause="no gradient reaches the actor, or all advantages are the same",
        remedy="look at train/advantage_std_raw and train/update_ratio/<module> of the actor",
        check="train/kl_exact and train/clip_fraction are 0 in every update",
        persistence=2,
    ),
    Rule(
        "policy_moves_away", "warn", (m.SURROGATE_DIRECTION, m.LEARNING_RATE, m.KL_STOP_EPOCH),
        only_if(lambda h: _learns(h) and h.facts.several_steps, largest(m.SURROGATE_DIRECTION)), -0.05, "below",
        what="whether actions that paid become more likely in an update (1), or less (−1)",
        cause="a policy loss with the wrong sign or the ratio upside down, or another term of the loss outweighs it",
        remedy="look at a loss or stage of your own; lower ent_coef, awr.coef or kl_penalty",
        check="train/surrogate_direction is above 0 in a sound run, and rollout/ep_rew_mean falls in this one",
        persistence=3,
        least=_MANY,
    ),
    Rule(
        "reward_constant", "warn", (m.WARN_REWARD_CONSTANT, m.EP_REW_MEAN, m.EP_REW_STD),
        only_if(_has_not_learned, largest(m.WARN_REWARD_CONSTANT)), 0.5, "above",
        what="no two returns of the rollout can differ",
        cause="the goal was never reached, or the env gives no reward",
        remedy="explore more, make the reward denser, or check the env",
        check="train/reward_std is 0",
        persistence=5,
        least=_MANY,
    ),
    Rule(
        "advantages_without_spread", "warn", (m.WARN_ADVANTAGES_STD_BELOW_FLOOR,),
        largest(m.WARN_ADVANTAGES_STD_BELOW_FLOOR), 0.5, "above",
        what="the advantages have no spread and were set to 0",
        cause="every action looks alike: constant rewards, or a critic that explains everything",
        remedy="check that actions change rewards",
        check="train/advantage_std_raw is 0",
        persistence=2,
    ),
    # --- policy ---
    Rule(
        "log_ratio_large", "warn", (m.LOG_RATIO_MAX_ABS,), largest(m.LOG_RATIO_MAX_ABS), 10.0, "above",
        what="largest |log ratio| of an update",
        cause="the policy moved far within one update, for some steps at least",
        remedy="lower learning_rate or n_epochs, or set target_kl",
        check="train/log_ratio_extreme_fraction says how many steps it is",
        persistence=2,
    ),
    Rule(
        "log_ratio_clamped", "warn", (m.LOG_RATIO_CLAMPED_FRACTION,), largest(m.LOG_RATIO_CLAMPED_FRACTION), 0.01,
        "above",
        what="share of steps whose |log ratio| is above 20, where exp() is clamped",
        cause="the policy moved very far within one update",
        remedy="lower learning_rate or n_epochs, or set target_kl",
        check="train/approx_kl of the same update",
    ),
    Rule(
        "policy_clipped", "warn", (m.CLIP_FRACTION,), only_if(_mid_training, largest(m.CLIP_FRACTION)), 0.7, "above",
        what="share of steps whose ratio lies outside the clip range, from which nothing is learned",
        cause="a clip range near 0, or a step so large that nearly everything is clipped at once",
        remedy="set clip_range to 0.1 or 0.2; lower learning_rate",
        check="train/clip_range beside train/approx_kl",
        persistence=3,
    ),
    Rule(
        "updates_cut_short", "warn", (m.KL_STOP_EPOCH,),
        only_if(lambda h: h.facts.several_steps, largest(m.KL_STOP_EPOCH)), 0.5, "below",
        what="epoch in which the KL stop ended the update, time after time",
        cause="a target_kl that no update can keep, or a learning rate far too large for it",
        remedy="raise target_kl (0.01 to 0.05 is usual) or lower learning_rate",
        check="train/kl_stop_epoch is 0 throughout",
        persistence=10,
    ),
    Rule(
        "kl_stop_at_once", "info", (m.KL_STOP_EPOCH,), largest(m.KL_STOP_EPOCH), 0.5, "below",
        what="epoch in which the KL stop ended the update",
        cause="the step size is too large for target_kl",
        remedy="lower learning_rate or raise target_kl",
        check="train/kl_stop_epoch is 0",
        persistence=3,
    ),
    Rule(
        "exploration_collapsed", "warn", (m.POLICY_ENTROPY, m.STD, m.EP_REW_MEAN, m.EP_REW_STD),
        only_if(lambda h: _mid_training(h) and _has_not_learned(h), _width), 0.05, "below",
        what="entropy (or standard deviation) of the policy over that of its start, while the return has not risen",
        cause="exploration collapsed before anything was learned",
        remedy="raise ent_coef or entropy.floor; lower learning_rate",
        check="train/policy_entropy, and rollout/ep_rew_mean beside it",
        persistence=2,
    ),
    Rule(
        "exploration_growing", "warn", (m.POLICY_ENTROPY, m.STD), _width, 5.0, "above",
        what="standard deviation of the policy over that of its start",
        cause="the entropy bonus outweighs the return",
        remedy="lower ent_coef",
        check="train/std grows and rollout/ep_rew_mean does not",
        persistence=3,
    ),
    Rule(
        "entropy_low_at_start", "info", (m.POLICY_ENTROPY,),
        only_if(lambda h: h.facts.update <= 3, over(m.POLICY_ENTROPY, lambda h: h.facts.max_entropy)), 0.5, "below",
        what="entropy of the first updates over the largest there can be",
        cause="the network starts with a strong opinion: weights from elsewhere, or an action head with large weights",
        remedy="ortho_init=True, or a smaller gain of the action head; with pretrained weights this is expected",
        check="train/policy_entropy of the first update",
    ),
    Rule(
        "entropy_oscillating", "info", (m.POLICY_ENTROPY,), only_if(
            lambda h: h.facts.max_entropy is not None, changes(m.POLICY_ENTROPY, 20, _swing)), 0.5, "above",
        what="swing of the entropy over 20 updates, over its mean",
        cause="updates overshoot and come back",
        remedy="lower learning_rate, or set target_kl",
        check="the curve of train/policy_entropy",
        warmup=20, persistence=5, window=20,
    ),
    Rule(
        "one_action", "warn", (m.TOP_ACTION_SHARE, m.EP_REW_MEAN),
        only_if(_has_not_learned, largest(m.TOP_ACTION_SHARE)), 0.99, "above",
        what="share of the steps that took one and the same action, while the return has not risen",
        cause="the policy has settled on one action: collapsed exploration, or observations it cannot tell apart",
        remedy="raise ent_coef; check that observations differ and that other actions are allowed",
        check="rollout/top_action_share beside rollout/obs_constant",
        persistence=3,
        least=_MANY,
    ),
    Rule(
        "actions_at_bound", "warn", (m.ACTION_AT_BOUND,), largest(m.ACTION_AT_BOUND), 0.95, "above",
        what="share of action components that are clipped to a bound",
        cause="bounds of the action space that are small beside the policy's standard deviation of 1",
        remedy="scale actions to [−1, 1] in the env, or use action_distribution='squashed'",
        check="print env.action_space",
        persistence=3,
        least=_MANY,
    ),
    Rule(
        "actions_unscaled", "warn", (m.ACTION_SPREAD,),
        only_if(lambda h: h.facts.update <= 3, largest(m.ACTION_SPREAD)), 0.005, "below",
        what="spread of the first actions over the width of their bounds",
        cause="bounds of the action space that are wide beside the policy's standard deviation of 1, so that it tries "
              "next to nothing of what it may do",
        remedy="scale actions to [−1, 1] in the env, or use action_distribution='squashed'",
        check="print env.action_space",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "actions_not_drawn", "warn", (m.ACTION_SURPRISE,), largest(m.ACTION_SURPRISE), 8.0, "above",
        what="how unlike draws from the policy the actions taken are, in standard errors",
        cause="actions are not draws from the policy that is learned: taken without noise, by another temperature, "
              "or with the same noise at every step; or log-probabilities are not those of the distribution",
        remedy="look at what stands between the policy and the env, and at a distribution of your own",
        check="rollout/action_surprise is below 5 in a sound run",
    ),
    Rule(
        "density_off", "error", (m.DENSITY_DEV,), largest(m.DENSITY_DEV), 1e-4, "above",
        what="distance of log-probabilities from the formula of the density they are of",
        cause="a log-probability that leaves something out, the spread, the slope of a squash, a part of the action, "
              "or is of another action: where rollout and update leave it out alike, the ratio does not show it",
        remedy=_REPORT,
        check="compute log π of some stored actions from their parameters",
    ),
    Rule(
        "actions_outside", "error", (m.ACTIONS_OUTSIDE,), largest(m.ACTIONS_OUTSIDE), 0.0, "above",
        what="share of the actions given to the envs that their action space does not hold",
        cause="actions are not clipped or squashed to their bounds on the way to the env",
        remedy="look at what stands between the policy and the env; " + _REPORT,
        check="print some actions beside env.action_space",
    ),
    Rule(
        "imitation_outweighs", "warn", (m.BC_LOSS_RATIO,), largest(m.BC_LOSS_RATIO), 1.0, "above",
        what="gradient norm of the AWR term over that of the surrogate",
        cause="imitation of the rollout's own actions outweighs the policy gradient",
        remedy="lower awr.coef, or raise awr.beta",
        check="train/bc_loss_ratio",
        persistence=5,
    ),
    # --- what the agent sees ---
    Rule(
        "observation_constant", "warn", (m.OBS_CONSTANT,), largest(m.OBS_CONSTANT), 0.999, "above",
        what="share of the features that have one value in the rollout",
        cause="the env shows the same thing at every step: a copy that is not refreshed, or features that are "
              "all missing",
        remedy="print a few observations in a row",
        check="rollout/obs_constant is 1",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "feature_constant", "info", (m.OBS_CONSTANT,), largest(m.OBS_CONSTANT), 0.25, "above",
        what="share of the features that have one value in the rollout",
        cause="a feature that says nothing: a column that is missing, clipped, or the same for all",
        remedy="leave it out, or check how it is made",
        check="the standard deviation of each feature over a rollout",
        persistence=10,
        least=_MANY,
    ),
    Rule(
        "feature_changed", "warn", (m.OBS_CHANGED, m.OBS_CONSTANT, m.ACTION_AT_BOUND, m.TOP_ACTION_SHARE),
        only_if(_acts_freely, largest(m.OBS_CHANGED)), 50.0, "above",
        what="how many times the spread or the mean of a feature is beyond what was usual for it",
        cause="a feature came to be another thing in the middle of the run: it stands still, has another unit, or is "
              "filled with a default where it is missing",
        remedy="look at what the env shows since this update",
        check="mean and standard deviation of each feature, update by update",
        persistence=2,
    ),
    Rule(
        "episode_starts_at_end", "warn", (m.STARTS_AT_END, m.OBS_CONSTANT),
        only_if(lambda h: (h.get(m.OBS_CONSTANT) or 0.0) < 0.5, largest(m.STARTS_AT_END)), 0.9, "above",
        what="share of the episodes that begin with the very observation that the one before ended with",
        cause="an env that is not reset at the end of an episode, or that spends a step on it: its first action does "
              "nothing",
        remedy="return the first observation of the new episode from reset(), and reset inside the VecEnv's step",
        check="the observations around an end, and whether the first action of an episode does anything",
        persistence=2,
    ),
    Rule(
        "episode_starts_repeat", "warn", (m.STARTS_REPEATED,), changes(m.STARTS_REPEATED, 6, _rise), 0.5, "above",
        what="rise of the share of episodes that begin as an earlier one of the same env did",
        cause="an env that is seeded anew at every reset: it shows the same episode again and again",
        remedy="seed an env once; reset(seed=None) goes on with its own stream",
        check="the first observations of several episodes",
        window=6,
        persistence=2,
    ),
    Rule(
        "episodes_end_at_once", "warn", (m.ENDED_SHARE,), changes(m.ENDED_SHARE, 6, _rise), 0.5, "above",
        what="rise of the share of steps that end an episode",
        cause="a clock that is not set back at a reset, or an env that is broken since: almost every step ends one",
        remedy="look at why the env ends: its time limit, and what reset() sets back",
        check="rollout/ep_len_mean",
        window=6,
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "envs_moved_outside", "warn", (m.ENVS_MOVED,), largest(m.ENVS_MOVED), 0.5, "above",
        what="steps and resets of the envs that the rollout did not ask for",
        cause="somebody else uses the envs of the training: the policy is scored or filmed on them, by a callback or "
              "between two calls of learn, so that the rollout goes on from an observation that is no longer theirs",
        remedy="make envs of their own for evaluation; after using those of the training, go on with "
               "learn(reset_num_timesteps=True), or model.begin_anew()",
        check="look for model.env, model.get_env() and training_env in your code",
    ),
    Rule(
        "reward_discount_differs", "warn", (m.REWARD_DISCOUNT_DEV,), largest(m.REWARD_DISCOUNT_DEV), 1.01, "above",
        what="how far the horizon 1 / (1 − γ) of the reward normaliser is from that of the training",
        cause="VecNormalize or NormalizeReward was made with its default gamma of 0.99, and the training has another: "
              "rewards are divided by the spread of returns that nobody predicts",
        remedy="give both the same gamma: VecNormalize(env, gamma=...), NormalizeReward(env, gamma=...)",
        check="print the gamma of the normaliser and of the model",
    ),
    Rule(
        "actions_late", "warn", (m.ACTION_LAG,), largest(m.ACTION_LAG), 1.5, "above",
        what="steps after the next one in which an action first shows, in the reward or in what is seen",
        cause="the env carries out an earlier action than the one it is given: a buffer, a queue or a thread between "
              "the policy and the env, so that rewards and observations are credited to the wrong action",
        remedy="step the env with the action it is given; where the delay is the task's own, show the actions that "
               "wait in the observation, or use a policy with memory, and turn the rule off",
        check="give one action that differs and count the steps until anything else does",
        persistence=3,
        least=_MANY,
    ),
    Rule(
        "env_changed", "warn", (m.ENV_CHANGED,), largest(m.ENV_CHANGED), 0.5, "above",
        what="how much less of the reward or of a feature follows from the step before it than in the updates before",
        cause="the env answers by another rule than before: features in another order, actions or rewards in another "
              "unit or of another step, other arguments after a resume",
        remedy="look at what the env and its wrappers do since this update; a change that is meant needs nothing",
        check="predict reward and next observation from observation and action, by a fit on earlier rollouts",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "random_numbers_repeat", "error", (m.DRAWS_REPEATED,), largest(m.DRAWS_REPEATED), 0.5, "above",
        what="whether the exploration noise is that of an earlier rollout",
        cause="the random numbers began anew: a resume or a second call of learn has set the seed or the count of "
              "rollouts back, so that what was tried before is tried again",
        remedy="resume from a checkpoint, which holds the count; leave n_rollouts to learn; else " + _REPORT,
        check="compare the first actions of two rollouts",
    ),
    Rule(
        "envs_differ", "warn", (m.ENVS_APART,), largest(m.ENVS_APART), 1000.0, "above",
        what="how far the spread of the reward or of a feature in one env is from that in the middle of all",
        cause="one env of the vector is not like the others: it pays nothing or in another unit, shows a copy that is "
              "not refreshed, or was made with other arguments",
        remedy="make all envs by one function; envs of different kinds need rewards and features of one scale",
        check="standard deviation of the reward and of each feature, env by env",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "features_copied", "warn", (m.FEATURES_COPIED,), largest(m.FEATURES_COPIED), 0.6, "above",
        what="share of the features that are exact copies of another",
        cause="one value is broadcast to all features, one column is read for all, or a stack of frames holds the "
              "newest one everywhere",
        remedy="look at how an observation is put together",
        check="print a few observations",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "envs_end_together", "warn", (m.ENDS_TOGETHER,), largest(m.ENDS_TOGETHER), 0.5, "above",
        what="whether all envs end whenever one does, at uneven intervals",
        cause="the end of one env is taken for the end of all: dones that are reduced over the envs, or written to all",
        remedy="give each env its own end",
        check="which envs end in a step",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "observation_tiny", "warn", (m.OBS_LARGEST, m.OBS_CONSTANT),
        only_if(lambda h: (h.get(m.OBS_CONSTANT) or 0.0) < 0.999, largest(m.OBS_LARGEST)), 1e-3, "below",
        what="largest root mean square of a feature, as the network reads it",
        cause="observations that are next to nothing beside the network's weights: scaled twice, such as by 1/255, or "
              "in a unit that is far too large",
        remedy="normalize_observations=True, VecNormalize, or scale them in the env",
        check="mean and standard deviation of each feature",
        persistence=2,
    ),
    Rule(
        "observation_repeated", "warn", (m.OBS_REPEATED,), largest(m.OBS_REPEATED), 0.95, "above",
        what="share of steps that show what the step before showed",
        cause="the env does not move: actions are ignored, or the observation is a stale copy",
        remedy="step the env by hand and print what comes",
        check="rollout/obs_repeated",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "observation_unscaled", "warn", (m.OBS_LARGEST,), largest(m.OBS_LARGEST), 100.0, "above",
        what="largest root mean square of a feature, as the network reads it",
        cause="a feature of another order of magnitude, such as a price or a volume in its own unit",
        remedy="normalize_observations=True, VecNormalize, or scale it in the env",
        check="mean and standard deviation of each feature",
        persistence=2,
    ),
    Rule(
        "normaliser_off", "warn", (m.OBS_NORMALISED_SPREAD,), largest(m.OBS_NORMALISED_SPREAD), 4.0, "above",
        what="standard deviation of a feature after the normaliser, in the middle of all",
        cause="statistics that are not of these observations: overwritten, of another run, or taken from too few",
        remedy="check how the normaliser merges its moments and what it was restored from",
        check="the normaliser's standard deviations beside those of the observations",
        warmup=5,
        persistence=3,
        least=_MANY,
    ),
    Rule(
        "normaliser_frozen", "warn",
        (m.OBS_NORM_MEAN_DRIFT, m.OBS_NORM_STD_DRIFT, m.VECNORMALIZE_MEAN_DRIFT, m.VECNORMALIZE_STD_DRIFT,
         m.OBS_CONSTANT),
        only_if(lambda h: (h.get(m.OBS_CONSTANT) or 0.0) < 0.999, _drift), 1e-15, "below",
        what="move of the observation normaliser over an update",
        cause="its statistics are not updated: VecNormalize with training=False, or a normaliser of a loaded model",
        remedy="set training=True on VecNormalize while learning",
        check="debug/obs_norm_mean_drift or debug/vecnormalize_mean_drift is exactly 0",
        persistence=2,
    ),
    Rule(
        "observation_drift", "warn",
        (m.OBS_NORM_MEAN_DRIFT, m.OBS_NORM_STD_DRIFT, m.VECNORMALIZE_MEAN_DRIFT, m.VECNORMALIZE_STD_DRIFT),
        _drift, 1.0, "above",
        what="move of a feature's mean or spread in the normaliser over one update, in standard deviations",
        cause="observations drift: prices instead of returns, a clock, a growing balance",
        remedy="use features that are stationary",
        check="which feature's running mean moves",
        warmup=3,
    ),
    # --- rewards, advantages, returns ---
    Rule(
        "reward_unit_changed", "warn", (m.REWARD_STD, m.REWARD_SIZE), _unit_changed, 50.0, "above",
        what="spread and usual size of the rewards over those of the updates before, or the inverse; the smaller",
        cause="the unit of the reward changed in the middle of the run",
        remedy="look at what the env pays since this update; keep one unit for the whole run",
        check="train/reward_std and train/reward_size",
        window=6,
        least=_MANY,
    ),
    Rule(
        "reward_clipped", "warn", (m.REWARD_AT_BOUNDS,), largest(m.REWARD_AT_BOUNDS), 0.1, "above",
        what="smaller of the shares of rewards that are exactly the lowest and exactly the highest",
        cause="rewards that are clipped far inside their range, so that most of what differs between them is lost",
        remedy="scale rewards instead, or clip them much farther out",
        check="how often the reward is exactly its lowest and its highest",
        persistence=3,
        least=_MANY,
    ),
    Rule(
        "last_reward_repeats", "warn", (m.LAST_REWARD_REPEATED,), largest(m.LAST_REWARD_REPEATED), 0.9, "above",
        what="share of the episodes whose last reward is exactly the one before it, where rewards hardly ever repeat",
        cause="an env that computes no reward in the step that ends an episode and gives the last one again, or reads "
              "it before it is updated: what the end is worth is never learned",
        remedy="compute the reward before the end is returned",
        check="the last two rewards of some episodes",
        persistence=3,
        least=_MANY,
    ),
    Rule(
        "reward_stale", "warn", (m.REWARD_STALE,), largest(m.REWARD_STALE), 0.04, "above",
        what="share of the steps that pay exactly what the one before did, where rewards hardly ever repeat",
        cause="an env that computes no reward for some actions or states and pays the last one again",
        remedy="compute the reward in every step, or set it to 0 before",
        check="find two equal rewards in a row, and what was done between them",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "rewards_alike", "warn", (m.REWARDS_ALIKE, m.ENVS_ALIKE),
        only_if(lambda h: (h.get(m.ENVS_ALIKE) or 0.0) < 0.99, largest(m.REWARDS_ALIKE)), 0.99, "above",
        what="share of envs that pay what the first one does, step by step, though they show other things",
        cause="a reward that does not come from its env: one that is written to all, a mean over them, a counter or a "
              "clock that they share",
        remedy="compute the reward from the env's own state and action",
        check="the rewards of two envs beside each other",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "reward_of_another_step", "warn", (m.REWARD_ELSEWHERE,), largest(m.REWARD_ELSEWHERE), 0.15, "above",
        what="how much more of the reward follows from an action and what was seen at another step than from one step",
        cause="the env puts an action of one step and a state of another together: a state that is kept before it is "
              "updated, an index that is one off, an action that waits",
        remedy="look at the order of things in the env's step: action, state, reward, observation",
        check="fit the reward by observation and action of this step, and by those of the one before",
        persistence=3,
        least=_MANY,
    ),
    Rule(
        "reward_outlier", "warn", (m.REWARD_STD, m.REWARD_SIZE), _outlier, 1e4, "above",
        what="spread of the rewards over that of the updates before, or its inverse, while their usual size stays",
        cause="a reward that is far larger than all others: a division by almost nothing, a price that is wrong",
        remedy="find the step that pays it; clip the reward if it is meant",
        check="train/reward_std and train/reward_size",
        window=6,
        least=_MANY,
    ),
    Rule(
        "return_outlier", "warn", (m.RETURN_OUTLIER,), largest(m.RETURN_OUTLIER), 100.0, "above",
        what="largest distance of a return from the mean, in standard deviations",
        cause="rare returns far outside the scale",
        remedy="clip or reshape the reward",
        check="train/advantage_max and train/advantage_min",
        series=m.WARN_EXCESSIVE_RETURN_SCALING,
        beside=(m.WARN_RET_STD_TRIGGERING_SCALING, m.RET_STD),
    ),
    Rule(
        "return_scale_fallen", "warn", (m.RET_STD, m.EP_REW_MEAN),
        only_if(_has_not_learned, over(m.RET_STD, lambda h: h.peak.get(m.RET_STD.name))), 0.01,
        "below",
        what="spread of the return over its largest so far",
        cause="returns stopped varying: the env no longer pays, or one early outlier set the scale",
        remedy="check the env",
        check="train/ret_std",
    ),
    Rule(
        "advantage_outlier", "warn", (m.ADVANTAGES_NORM_MAX_ABS,), largest(m.ADVANTAGES_NORM_MAX_ABS), 20.0, "above",
        what="largest normalised advantage",
        cause="one step dominates the update",
        remedy="look for an outlier in the rewards; clip them",
        check="train/advantage_max beside train/advantage_std_raw",
        persistence=3,
    ),
    Rule(
        "advantage_mean_off", "warn", (m.ADVANTAGES_NORM_MEAN,),
        _mean_off, 0.1, "above",
        what="mean of the normalised advantages",
        cause="they were normalised over other steps than those that are learned from",
        remedy="with normalize_advantage=False this is expected; else " + _REPORT,
        check="train/advantages_norm_mean",
        persistence=2,
    ),
    # --- critics ---
    Rule(
        "critic_worse_than_constant", "warn", (m.EXPLAINED_VARIANCE,), largest(m.EXPLAINED_VARIANCE), -0.5, "below",
        what="share of the variance of the λ-returns that the values explain",
        cause="the critic is worse than a constant: targets jump, or its step size is too large",
        remedy="lower learning_rate (or critic_learning_rate); look at train/ret_std and the critics' gradient norms",
        check="train/explained_variance",
        warmup=10, persistence=10,
        least=_MANY,
    ),
    Rule(
        "critic1_vanishing", "warn", (m.CRITIC1_GRAD_NORM,), largest(m.CRITIC1_GRAD_NORM), 1e-8, "below",
        what="gradient norm of critic 1",
        cause="critic 1 does not learn: it is detached, or vf_coef is 0",
        remedy="raise vf_coef; look at a network of your own",
        check="train/critic1_grad_norm beside train/critic2_grad_norm",
        series=m.WARN_CRITIC1_VANISHING_GRADIENTS,
    ),
    Rule(
        "critic2_vanishing", "warn", (m.CRITIC2_GRAD_NORM,), largest(m.CRITIC2_GRAD_NORM), 1e-8, "below",
        what="gradient norm of critic 2",
        cause="critic 2 does not learn: it is detached, or vf_coef is 0",
        remedy="raise vf_coef; look at a network of your own",
        check="train/critic2_grad_norm beside train/critic1_grad_norm",
        series=m.WARN_CRITIC2_VANISHING_GRADIENTS,
    ),
    Rule(
        "critics_identical", "warn", (m.CRITICS_APART,), largest(m.CRITICS_APART), 1e-12, "below",
        what="largest distance of the critics' predictions from each other",
        cause="critics that began with the same weights, or share them: the smaller of two equal values is no caution",
        remedy="draw each critic's weights by itself",
        check="the weights of the critics",
    ),
    Rule(
        "critics_imbalanced", "warn", (m.CRITICS_GRAD_RATIO, m.CRITIC2_GRAD_NORM),
        outside(m.CRITICS_GRAD_RATIO), 100.0, "above",
        what="ratio of the critics' gradient norms, or its inverse",
        cause="one critic hardly learns",
        remedy="compare train/critic1_loss with train/critic2_loss; look at a custom network's initialisation",
        check="train/critics_grad_ratio",
        series=m.WARN_TWIN_CRITICS_GRADIENT_IMBALANCE,
    ),
    Rule(
        "quantiles_cross", "warn", (m.QUANTILE_CROSSING_SIZE,), largest(m.QUANTILE_CROSSING_SIZE), 0.05, "above",
        what="mean distance by which sorting moves a quantile, in standard deviations of the return",
        cause="the critic has not learned a distribution",
        remedy="train longer or raise vf_coef",
        check="train/quantile_crossing_size",
        warmup=20, persistence=20,
    ),
    Rule(
        "support_left", "warn", (m.SUPPORT_OUTSIDE_FRACTION,), largest(m.SUPPORT_OUTSIDE_FRACTION), 0.05, "above",
        what="share of targets outside the support of the atoms",
        cause="returns outgrow the support faster than it moves",
        remedy="look for a reward whose size changes; critic='quantile' has no support",
        check="train/support_outside_fraction",
        warmup=5, persistence=5,
    ),
    Rule(
        "calibration_poor", "info", (m.CALIBRATION_ERROR,), largest(m.CALIBRATION_ERROR), 0.25, "above",
        what="mean |level − coverage| of the predicted quantiles",
        cause="the predicted distribution is too wide, too narrow or shifted",
        remedy="train longer; with value_targets='scalar' this is expected",
        check="train/calibration_error, and eval/calibration_error on validation",
        warmup=20, persistence=20,
    ),
    Rule(
        "validation_calibration_poor", "info", (m.EVAL_CALIBRATION_ERROR,), largest(m.EVAL_CALIBRATION_ERROR), 0.2,
        "above",
        what="mean |level − coverage| of the predicted quantiles on validation",
        cause="validation is unlike the training bars, or the critic is not done learning",
        remedy="compare it with train/calibration_error",
        check="eval/calibration_error",
        persistence=5,
    ),
    Rule(
        "market_memorised", "info", (m.EVAL_EXPLAINED_VARIANCE, m.EXPLAINED_VARIANCE), _memorised, 0.3, "above",
        what="explained variance on train less that on validation",
        cause="the critic has memorised the training bars",
        remedy="fewer or simpler features, a smaller network, a shorter run",
        check="train/explained_variance beside eval/explained_variance",
        persistence=5,
    ),
    Rule(
        "value_clip_always", "warn", (m.VF_CLIP_ACTIVE_FRAC,), largest(m.VF_CLIP_ACTIVE_FRAC), 0.95, "above",
        what="share of steps whose value prediction was clipped",
        cause="the radius is so narrow that the critics cannot follow their targets",
        remedy="raise clip_range_vf, which is in standard deviations of the return, or leave it out",
        check="train/vf_clip_active_frac beside train/explained_variance",
        warmup=3, persistence=5,
    ),
    Rule(
        "value_clip_idle", "info", (m.VF_CLIP_ACTIVE_FRAC,), largest(m.VF_CLIP_ACTIVE_FRAC), 1e-12, "below",
        what="share of steps whose value prediction was clipped",
        cause="the radius is too wide to matter",
        remedy="lower it or switch clipping off",
        check="train/vf_clip_active_frac",
        persistence=20,
    ),
    # --- gradients and memory ---
    Rule(
        "gradient_large", "warn", (m.GRAD_NORM_RAW_MAX, m.GRAD_NORM_PRE_CLIP_MAX),
        largest(m.GRAD_NORM_RAW_MAX, m.GRAD_NORM_PRE_CLIP_MAX), 50.0, "above",
        what="largest gradient norm of a minibatch, before the clip",
        cause="an outlier, or a step size too large",
        remedy="look at advantages and targets; lower learning_rate",
        check="train/grad_norm_pre_clip_max/actor and /critic say which half it is",
        persistence=2,
    ),
    Rule(
        "gradient_exploded", "error", (m.GRAD_NORM_RAW_MAX,), largest(m.GRAD_NORM_RAW_MAX), 1e5, "above",
        what="largest gradient norm of a minibatch",
        cause="diverging weights, or advantages of another magnitude",
        remedy="lower learning_rate; health.rollback goes back by itself",
        check="train/grad_norm_raw_max",
    ),
    Rule(
        "memory_gradient_large", "warn", (m.LSTM_GRAD_NORM,), largest(m.LSTM_GRAD_NORM), 50.0, "above",
        what="largest gradient norm of a layer of a memory",
        cause="gradients grow on their way back through time",
        remedy="a shorter sequence_length, a lower learning_rate",
        check="train/lstm_grad_norm/<module>/<layer>",
        persistence=2,
    ),
    Rule(
        "memory_gradient_vanishing", "warn", (m.LSTM_GRAD_NORM,), smallest(m.LSTM_GRAD_NORM), 1e-8, "below",
        what="smallest gradient norm of a layer of a memory",
        cause="the memory is detached or saturated",
        remedy="look at lstm/saturation_layer0 and at a network of your own",
        check="train/lstm_grad_norm/<module>/<layer>",
    ),
    Rule(
        "memory_gradient_cut", "warn", (m.MEMORY_REACH,), largest(m.MEMORY_REACH), 1e-30, "below",
        what="size of the gradient of a step in the memory before the step before it",
        cause="a memory that is detached in every step: nothing is learned about what to keep",
        remedy="run whole sequences through the memory with their graph",
        check="torch.autograd.grad of the last step of a sequence in the memory before its first",
    ),
    Rule(
        "memory_saturated", "warn", (m.LSTM_SATURATION, m.LSTM_CRITIC_SATURATION),
        largest(m.LSTM_SATURATION, m.LSTM_CRITIC_SATURATION), 0.9, "above",
        what="share of gates that are shut or open, or of cells at their bound",
        cause="the memory is stuck: its inputs are too large, or it was driven there by a drifting target",
        remedy="normalise the observations, lower learning_rate",
        check="lstm/saturation_layer0",
    ),
    Rule(
        "dormant_units", "warn", (m.DORMANT_UNITS,), largest(m.DORMANT_UNITS), 0.5, "above",
        what="share of units of a last hidden layer that hardly ever act",
        cause="the network is dying: a learning rate that is too large with ReLU, or targets that moved too often",
        remedy="lower learning_rate; a utility optimiser (docs/ideas/upgd.md) revives units; Tanh does not die",
        check="train/dormant_units",
        persistence=2,
        least=_MANY,
    ),
    Rule(
        "feature_rank_collapsed", "warn", (m.FEATURE_RANK,), largest(m.FEATURE_RANK), 1.5, "below",
        what="directions that hold 99 % of what the action head reads",
        cause="all observations look alike to the policy: dead units, a saturated memory, constant observations",
        remedy="look at train/dormant_units, lstm/saturation_layer0 and rollout/obs_constant",
        check="train/feature_rank",
        least=_MANY,
    ),
    # --- risk ---
    Rule(
        "tail_thin", "warn", (m.RISK_TAIL_SAMPLES, m.RISK_LIMIT),
        only_if(lambda h: m.RISK_LIMIT.name in h.now, smallest(m.RISK_TAIL_SAMPLES)), 10.0, "below",
        what="outcomes behind the measured tail",
        cause="too few steps or episodes per rollout for this alpha",
        remedy="more envs, longer rollouts, or a larger risk.alpha",
        check="risk/tail_samples",
        persistence=20,
    ),
    Rule(
        "limit_broken", "warn", (m.RISK_GAP, m.RISK_LIMIT, m.RISK_CVAR_STANDARD_ERROR), _worst_gap, 0.1, "above",
        what="how far the tail is beyond its limit, in units of the limit, less twice its error",
        cause="the multiplier is still rising, exploration is wide, or no policy meets the limit",
        remedy="let it train on; a larger risk.learning_rate; look at risk/multiplier",
        check="risk/cvar_measured beside risk/limit",
        warmup=20, persistence=20,
    ),
    Rule(
        "tail_far_outside", "warn", (m.RISK_GAP, m.RISK_LIMIT, m.RISK_CVAR_STANDARD_ERROR), _worst_gap, 1.0, "above",
        what="how far the tail is beyond its limit, in units of the limit, less twice its error",
        cause="the limit is in another unit than the step's return, or far from what any policy here can do",
        remedy="compare risk/limit with risk/cvar_measured; relax the limit",
        check="risk/cvar_measured beside risk/limit",
        persistence=10,
    ),
    Rule(
        "multiplier_at_ceiling", "warn", (m.RISK_MULTIPLIER,), _at_ceiling, 0.999, "above",
        what="the multiplier over its ceiling",
        cause="no policy meets the limit, or the unit of the limit is not that of X",
        remedy="compare risk/limit with risk/cvar_measured; relax the limit",
        check="risk/multiplier",
    ),
    Rule(
        "multiplier_climbing", "info", (m.RISK_MULTIPLIER, m.RISK_GAP), _climb, 1.1, "above",
        what="growth of the multiplier over the last 10 updates, near the end of training, with the limit broken",
        cause="training ends before the limit is met",
        remedy="train longer, or raise risk.learning_rate",
        check="risk/multiplier and risk/gap",
        window=10,
    ),
    Rule(
        "risk_budget_unused", "info", (m.RISK_GAP, m.RISK_LIMIT, m.RISK_MULTIPLIER), _used_budget, 0.5, "below",
        what="the measured tail over its limit, where the limit holds nothing back",
        cause="the limit is so wide that it never acts",
        remedy="tighten risk.limit, or leave it out; the agent could also bear more risk",
        check="risk/multiplier is 0 throughout",
        persistence=10,
    ),
    # --- adversary ---
    Rule(
        "adversary_does_not_climb", "warn", (m.ADVERSARY_OBJECTIVE_GAIN,), largest(m.ADVERSARY_OBJECTIVE_GAIN), 1e-12,
        "below",
        what="what the search of the adversary gains over the random point where it began",
        cause="the search does not climb: steps too long, or a policy that is flat there",
        remedy="more adversary.steps, or a smaller adversary.step_size",
        check="adversary/objective_gain",
        persistence=5,
    ),
    # --- trading ---
    Rule(
        "costs_dropped", "warn", (m.TRADE_COSTS_DROPPED,), largest(m.TRADE_COSTS_DROPPED), 0.0, "above",
        what="costs that were not finite and were left out",
        cause="bars with prices or volumes that are not finite",
        remedy="leeward data check",
        check="trade/costs_dropped",
    ),
    Rule(
        "costs_negative", "error", (m.TRADE_COSTS_FRACTION,), smallest(m.TRADE_COSTS_FRACTION), 0.0, "below",
        what="mean cost of a step, over equity",
        cause="a cost with the wrong sign: trading pays the agent",
        remedy="check the signs of fees and spread in the env",
        check="trade/costs_fraction",
    ),
    Rule(
        "costs_zero", "info", (m.TRADE_COSTS_FRACTION, m.TRADE_TURNOVER), _costs_while_trading, 1e-9, "below",
        what="costs over turnover, while the agent trades",
        cause="every cost of the env is 0, so that any turnover is free",
        remedy="set env.costs to what a broker takes",
        check="trade/costs_fraction beside trade/turnover",
        persistence=2,
    ),
    Rule(
        "exposure_constant", "info", (m.TRADE_EXPOSURE,), changes(m.TRADE_EXPOSURE, 20, _spread), 1e-3, "below",
        what="spread of the exposure over 20 updates, over its mean",
        cause="a disguised buy-and-hold",
        remedy="compare it with the baselines of the backtest",
        check="trade/exposure",
        warmup=20, persistence=5, window=20,
    ),
    # --- results ---
    Rule(
        "return_collapsed", "warn", (m.EP_REW_MEAN, m.EP_REW_STD), _left_of_gain, 0.1, "below",
        what="mean return, as the share of the gain since the start that is left",
        cause="what was learned is lost: an env that is not what it was, or an update that was too large",
        remedy="go back to a checkpoint before it, and look at what the env shows and at train/approx_kl around it",
        check="rollout/ep_rew_mean around this update",
        persistence=3,
    ),
    Rule(
        "no_better_than_start", "info", (m.EP_REW_MEAN,), _gain_over_start, 0.0, "below",
        what="mean return less that of the untrained policy, in the second half of training",
        cause="nothing was learned: a task without signal, too short a run, or settings that do not suit it",
        remedy="leeward doctor tries your settings on tasks with known answers",
        check="rollout/ep_rew_mean at the start and now",
        persistence=10,
    ),
    Rule(
        "plateau", "info", (m.EP_REW_MEAN,), only_if(
            lambda h: h.facts.progress < 0.9, changes(m.EP_REW_MEAN, 40, _still_better)), 0.0, "below",
        what="what the last 20 updates have over the 20 before, in units of their spread",
        cause="the return has stopped growing: learned what there is to learn, or stuck",
        remedy="a longer run may not help; try another learning rate or more exploration",
        check="the curve of rollout/ep_rew_mean",
        warmup=40, persistence=20, window=40, rearm=200,
    ),
    Rule(
        "throughput_halved", "info", (m.ROUND_FPS,), changes(m.ROUND_FPS, 21, _fall), 0.5, "below",
        what="steps per second over the middle of the 20 updates before",
        cause="another process takes the machine, or the env grows slower: a list that grows, a file that is read",
        remedy="look at the load of the machine; profile the env's step",
        check="time/round_fps",
        persistence=5, window=21,
    ),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.name: rule for rule in _TABLE}
