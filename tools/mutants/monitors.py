"""Faults of what is measured: numbers of an update, warnings, the registry of metrics, and how numbers are gathered."""

from tools.mutants import row

__all__ = ["MUTANTS"]

METRICS, REGISTRY, TALLY = "algorithm/update_metrics", "telemetry/metrics", "telemetry/tally"
RULES, MONITOR = "telemetry/rules", "telemetry/monitor"
VALUES, NAMES = "algorithm/test_update_metrics.py", "telemetry/test_names.py"
ADVANTAGES = f"{VALUES}::test_advantages_are_told_raw_and_normalised_apart"
EXTREME = f"{VALUES}::test_returns_are_extreme_by_their_distance_from_the_mean"
DRIFT = f"{VALUES}::test_the_normaliser_says_how_far_its_moments_moved"
ROWS = f"{VALUES}::test_the_policys_numbers_are_those_of_its_real_rows"
PEAKS = f"{VALUES}::test_a_peak_of_the_gradient_norm_is_not_lost_in_its_mean"
BOTH_LEARN = f"{VALUES}::test_both_critics_learn_or_it_is_said_which_does_not"
LAYERS = f"{VALUES}::test_each_layer_of_each_memory_has_numbers_of_its_own"
STUCK = f"{VALUES}::test_a_full_cell_behind_a_half_open_gate_is_saturated"
GATES = f"{VALUES}::test_half_of_the_gates_is_half"
COSTS = f"{VALUES}::test_costs_are_read_from_any_envs_info_and_those_that_are_not_finite_are_counted"
FAMILY = f"{NAMES}::test_a_family_has_members_with_the_same_unit_and_way_of_combining"


MUTANTS = [
    # Advantages and returns
    row(
        "E-area2 the largest advantage is told before it is normalised",
        f"{METRICS}:advantage_numbers",
        "normalised.abs().max()",
        "raw.abs().max()",
        ADVANTAGES,
    ),
    row(
        "monitor: the smallest advantage is the largest",
        f"{METRICS}:advantage_numbers",
        "raw.min()",
        "raw.max()",
        ADVANTAGES,
    ),
    row(
        "monitor: an explained variance that is no number is told",
        f"{METRICS}:advantage_numbers",
        "not math.isnan(explained)",
        "True",
        f"{VALUES}::test_returns_that_do_not_vary_have_no_explained_variance",
    ),
    row(
        "E1 returns are extreme at three times the distance",
        RULES,
        "largest(m.RETURN_OUTLIER)",
        "over(m.RETURN_OUTLIER, lambda history: 3.0)",
        EXTREME,
    ),
    row(
        "E1 returns are extreme by their distance from 0",
        "algorithm/return_scale:CriticUnit._numbers",
        "(samples - self.returns.mean).abs().max()",
        "samples.abs().max()",
        EXTREME,
    ),
    row(
        "E1 a floor under the return scale",
        "algorithm/return_scale:ReturnScale.update",
        "self.std = std",
        "self.std = max(std, 0.1)",
        "algorithm/test_critics.py::test_the_return_scale_has_no_unit_of_its_own",
    ),
    row(
        "C1 half of the drift of the observations is told",
        "networks/observation_normaliser:ObservationNormaliser.update",
        "((merged - old_mean) / std).abs().max()",
        "0.5 * ((merged - old_mean) / std).abs().max()",
        DRIFT,
    ),
    row(
        "C1 half of the drift of the observations' spread is told",
        "networks/observation_normaliser:ObservationNormaliser.update",
        "((std - old_std) / std).abs().max()",
        "0.5 * ((std - old_std) / std).abs().max()",
        DRIFT,
    ),
    # The policy
    row(
        "monitor: the smallest entropy is the largest",
        f"{METRICS}:PolicyStatistics.flush",
        "entropy.min()",
        "entropy.max()",
        ROWS,
    ),
    row(
        "A5 an entropy that is not joint passes",
        "networks/action_distributions:ActionHead.joint_entropy",
        "entropy.shape != parameters.shape[:-1]",
        "False",
        f"{VALUES}::test_an_entropy_that_is_not_joint_over_the_actions_dimensions_raises",
    ),
    row(
        "B1 clamped log-ratios are not told",
        f"{METRICS}:PolicyStatistics.flush",
        "size > policy_loss.LOG_RATIO_LIMIT",
        "size > 100.0 * policy_loss.LOG_RATIO_LIMIT",
        ROWS,
    ),
    row(
        "B1 the clamp of the log-ratio acts where ratios are healthy",
        "maths/policy_loss",
        "LOG_RATIO_LIMIT = 20.0",
        "LOG_RATIO_LIMIT = 0.1",
        "algorithm/test_update.py::test_a_healthy_run_of_a_thousand_steps_hardly_ever_meets_the_clamp_of_the_log_ratio",
    ),
    row(
        "B1 log-ratios beyond 10 are not told", f"{METRICS}:PolicyStatistics.flush", "size > 10.0", "size > 20.0", ROWS
    ),
    row(
        "monitor: padding is in the policy's numbers",
        f"{METRICS}:PolicyStatistics.flush",
        "log_ratio, advantages, before, now = (part[learned] for part in (log_ratio, advantages, before, now))",
        "pass",
        ROWS,
    ),
    row(
        "A6 infinite log-ratios are not counted",
        f"{METRICS}:PolicyStatistics.flush",
        "nan + inf",
        "nan",
        f"{VALUES}::test_log_ratios_that_are_not_finite_are_counted_by_kind_and_in_no_mean",
    ),
    row(
        "monitor: the share of imitation is upside down",
        "algorithm/update:Updater._measure_pulls",
        "self._head_gradient(losses.awr) / self._head_gradient(losses.surrogate).clamp(min=1e-12)",
        "self._head_gradient(losses.surrogate) / self._head_gradient(losses.awr).clamp(min=1e-12)",
        f"{VALUES}::test_the_share_of_imitation_is_that_of_its_gradient",
    ),
    # Gradients
    row(
        "A7 the gradient norm of a memory is over all its layers",
        f"{METRICS}:gradient_groups",
        '[p for key, p in memory.core.named_parameters() if key.endswith(f"_l{layer}")]',
        "list(memory.core.parameters())",
        f"{VALUES}::test_the_gradient_norm_of_a_memory_is_that_of_one_layer",
    ),
    row(
        "monitor: the largest gradient norm is a mean",
        REGISTRY,
        """
        GRAD_NORM_RAW_MAX = _gradients(
            "train/grad_norm_raw_max",
            "–",
            "the largest of a minibatch",
            combine="max",
        )
        """,
        'GRAD_NORM_RAW_MAX = _gradients("train/grad_norm_raw_max", "–", "the largest of a minibatch")',
        PEAKS,
    ),
    row(
        "monitor: the largest clipped gradient norm is that before the clip",
        f"{METRICS}:add_gradients",
        "torch.stack((report.raw, report.pre_clip, report.post_clip))",
        "torch.stack((report.raw, report.pre_clip, report.pre_clip))",
        PEAKS,
    ),
    row(
        "C7 critics are out of balance on one side alone",
        RULES,
        "outside(m.CRITICS_GRAD_RATIO)",
        "largest(m.CRITICS_GRAD_RATIO)",
        BOTH_LEARN,
    ),
    row(
        "C7 no gradient is small enough to vanish",
        RULES,
        "largest(m.CRITIC2_GRAD_NORM)",
        "over(m.CRITIC2_GRAD_NORM, lambda history: 1e-9)",
        BOTH_LEARN,
    ),
    row(
        "C7 a dead critic has a ratio",
        f"{METRICS}:critics_ratio",
        "min(first, second) < RULES['critic1_vanishing'].threshold",
        "False",
        BOTH_LEARN,
    ),
    row(
        "B3 no limit on the gradient is a limit",
        "algorithm/engine:Engine.plan",
        "settings.max_grad_norm",
        "settings.max_grad_norm or 0.5",
        "algorithm/test_update.py::test_no_limit_on_the_gradient_leaves_it_as_it_is",
    ),
    row(
        "monitor: rewards are constant though episodes end",
        f"{METRICS}:reward_numbers",
        "lowest == highest and (highest == 0.0 or not bool(group.columns(rollout.terminated).any()))",
        "lowest == highest",
        "algorithm/test_update_metrics.py::test_rewards_are_constant_where_no_return_can_differ",
    ),
    row(
        "monitor: the spread of rewards is that of normalised ones",
        f"{METRICS}:reward_numbers",
        "rollout.rewards.double() if rollout.original_rewards is None else rollout.original_rewards",
        "rollout.rewards.double()",
        "algorithm/test_update_metrics.py::test_the_spread_of_rewards_is_the_one_before_any_normalisation",
    ),
    row(
        "B3 gradients are not clipped",
        "optim/pipeline:GradientPipeline.apply",
        "step and max_grad_norm is not None",
        "False",
        "algorithm/test_update.py::test_no_limit_on_the_gradient_leaves_it_as_it_is",
    ),
    # Memory
    row(
        "monitor: every layer has the numbers of the first",
        f"{METRICS}:_memory_numbers",
        "h = flat[place][layer]",
        "h = flat[place][0]",
        LAYERS,
    ),
    row(
        "monitor: the critics' memory has the numbers of the actor's",
        f"{METRICS}:_memory_numbers",
        "place += parts",
        "pass",
        LAYERS,
    ),
    row("monitor: a gate is stuck at a twentieth", METRICS, "_SATURATED = 0.95", "_SATURATED = 0.05", GATES),
    row(
        "monitor: a memory is stuck by its output alone",
        f"{METRICS}:_memory_numbers",
        "torch.maximum(_share(stuck), _share(squashed.abs() > _SATURATED))",
        "_share(h.abs() > _SATURATED)",
        STUCK,
        GATES,
    ),
    row(
        "monitor: a full cell is not looked at",
        f"{METRICS}:_memory_numbers",
        "torch.maximum(_share(stuck), _share(squashed.abs() > _SATURATED))",
        "_share(stuck)",
        STUCK,
    ),
    row(
        "monitor: the norm after a reset is upside down",
        f"{METRICS}:_add_resets",
        "norms[young].mean() / norms.mean().clamp(min=1e-12)",
        "norms.mean() / norms[young].mean().clamp(min=1e-12)",
        f"{VALUES}::test_the_norm_after_a_reset_is_compared_with_the_norm_at_large",
    ),
    # Costs and critics
    row(
        "A11 one cost that is no number spoils all",
        f"{METRICS}:rollout_numbers",
        "costs[finite].mean()",
        "costs.mean()",
        COSTS,
    ),
    row("A11 costs that are left out are not counted", f"{METRICS}:rollout_numbers", "(~finite).sum()", "0.0", COSTS),
    row(
        "monitor: a crossing is as large as the step back",
        "maths/diagnostics:crossing_size",
        "((quantiles.sort(-1).values - quantiles).abs() * weights).sum(-1).mean()",
        "(-quantiles.diff(dim=-1)).clamp(min=0.0).sum(-1).mean()",
        f"{VALUES}::test_crossings_are_told_by_their_share_and_by_their_size",
    ),
    row(
        "monitor: a prediction is compared with the return from the bar before",
        "training/critic_check:critic_numbers",
        "torch.as_tensor(outlook.mean)[:whole, None]",
        "torch.as_tensor(outlook.mean).roll(-1)[:whole, None]",
        "training/test_critic_check.py::test_a_critic_that_knows_the_discounted_returns_explains_them_all",
    ),
    row(
        "monitor: quantiles are compared with the return from the bar before",
        "training/critic_check:critic_numbers",
        "quantiles[:whole]",
        "quantiles.roll(-1, 0)[:whole]",
        "training/test_critic_check.py::test_a_critic_that_knows_the_discounted_returns_explains_them_all",
    ),
    row(
        "monitor: returns that are cut off count",
        "training/critic_check:critic_numbers",
        "math.ceil(math.log(_LEFT_OUT) / math.log(gamma))",
        "0",
        "training/test_critic_check.py::test_too_few_whole_returns_say_nothing",
    ),
    # The registry, and how numbers are gathered
    row(
        "D9 the name of a metric is written where it is measured",
        "algorithm/update:Updater.run",
        "numbers[metrics.KL_STOP_EPOCH] = float(stopped_in)",
        'numbers[metrics.REGISTRY["train/kl_stop_epoch"]] = float(stopped_in)',
        f"{NAMES}::test_no_name_of_a_metric_is_written_outside_the_registry",
    ),
    row(
        "D9 two metrics share a name",
        REGISTRY,
        'CLIP_RANGE = _kept("train/clip_range", "–", "clip range of this update", shown=True)',
        'CLIP_RANGE = _kept("train/clip_fraction", "–", "clip range of this update", shown=True)',
        f"{NAMES}::test_no_two_metrics_share_a_name",
    ),
    row(
        "D9 a metric is there that is no constant",
        REGISTRY,
        'CLIP_RANGE = _kept("train/clip_range", "–", "clip range of this update", shown=True)',
        '_kept("train/clip_range", "–", "clip range of this update", shown=True)',
        f"{NAMES}::test_every_constant_is_registered_and_every_registered_metric_is_a_constant",
    ),
    row(
        "D9 one of a family has no alert",
        f"{REGISTRY}:_filled",
        "replace(metric, name=name)",
        'replace(metric, name=name, alert="")',
        FAMILY,
    ),
    row("D9 a place that a family does not have", f"{REGISTRY}:_filled", 'f"<{place}>" not in name', "False", FAMILY),
    row(
        "D9 a name that only begins like a metric's is one",
        f"{REGISTRY}:find",
        "pattern.fullmatch(name)",
        "pattern.match(name)",
        f"{NAMES}::test_a_name_that_is_none_is_not_found",
    ),
    row(
        "D9 the second of several has the name of the first",
        f"{REGISTRY}:Metric.numbered",
        "number == 1",
        "number <= 2",
        f"{NAMES}::test_the_second_of_several_alike_is_numbered",
    ),
    row(
        "D9 a metric from another process is another one",
        f"{REGISTRY}:Metric.__eq__",
        "self.name == other.name",
        "self is other",
        f"{NAMES}::test_a_metric_that_was_sent_to_another_process_is_the_same",
    ),
    row(
        "tally: a small minibatch weighs as much as a large one",
        f"{TALLY}:_reduced",
        "np.average(values, weights=weights)",
        "np.average(values)",
        "telemetry/test_tally.py",
    ),
    row(
        "tally: a mean of means",
        f"{TALLY}:Tally.read",
        "np.sum(sums) / np.sum(counts)",
        "np.mean(np.divide(sums, counts))",
        "telemetry/test_tally.py",
    ),
    row(
        "tally: a number that is none is hidden",
        TALLY,
        '{"max": np.max, "min": np.min, "sum": np.sum}',
        '{"max": np.nanmax, "min": np.nanmin, "sum": np.nansum}',
        "telemetry/test_tally.py",
    ),
]
