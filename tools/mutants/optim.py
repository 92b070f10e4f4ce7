"""Faults of the optimisers and of gradient scaling."""

from tools.mutants import row

__all__ = ["MUTANTS"]

UPGD, SCALER, ENGINE = "optim/upgd", "optim/variance_scaler", "algorithm/engine"


MUTANTS = [
    row(
        "H4 utility has the wrong sign",
        f"{UPGD}:UtilityOptimizer._measure",
        "torch._foreach_addcmul_(utilities, batch.gradients, batch.weights, -(1.0 - beta))",
        "torch._foreach_addcmul_(utilities, batch.gradients, batch.weights, 1.0 - beta)",
        "optim/test_upgd.py",
    ),
    row(
        "H4 the maximum is not bias-corrected",
        f"{UPGD}:UtilityOptimizer._measure",
        "list(map(operator.truediv, peaks, corrections))",
        "peaks",
        "optim/test_upgd.py::test_steps_follow_the_equation_of_the_docstring",
    ),
    row(
        "H4 the utility is not bias-corrected",
        f"{UPGD}:UtilityOptimizer._set_resistances",
        "eta * correction",
        "eta",
        "optim/test_upgd.py::test_steps_follow_the_equation_of_the_docstring",
    ),
    row(
        "H4 all-negative utilities invert protection",
        f"{UPGD}:_peaks",
        "tensor.abs().max()",
        "tensor.max()",
        "optim/test_upgd.py::test_a_more_useful_weight_is_never_less_protected",
    ),
    row(
        "H4 a gradient that is not finite is used",
        f"{UPGD}:UtilityOptimizer.step",
        "not _usable(batches)",
        "False",
        "optim/test_upgd.py::test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted",
    ),
    row(
        "H4 global scaling stays within a group",
        f"{UPGD}:UtilityOptimizer.step",
        "self._utility_max = max(peak for measure in measures for peak in measure.peaks)",
        "self._utility_max = max(measures[0].peaks)",
        "optim/test_upgd.py",
    ),
    row(
        "H4 noise from the global generator",
        "optim/gaussian:fill_standard_normal",
        "words.random_(-(2**63), None, generator=generator)",
        "words.random_(-(2**63), None)",
        "optim/test_upgd.py::test_noise_comes_from_the_generator_alone",
    ),
    row(
        "H4 the state of the noise is not saved",
        f"{UPGD}:UtilityOptimizer.state_dict",
        '{"generator": self.generator.get_state(), "skipped_steps": self.skipped_steps}',
        '{"skipped_steps": self.skipped_steps}',
        "optim/test_upgd.py::test_resuming_at_step_k_changes_nothing_bit_for_bit",
    ),
    row(
        "H4 noise of a fixed size around Adam's direction",
        f"{UPGD}:_AdamDirection._noise_units",
        "return norms / norms.new_tensor(batch.scratch.sizes).sqrt()",
        "return torch.ones_like(norms)",
        "optim/test_upgd.py::test_steps_follow_the_equation_of_the_docstring",
    ),
    row(
        "H4 the step is twice the learning rate",
        f"{UPGD}:UtilityOptimizer._move",
        "torch._foreach_add_(weights, scratch.moves, alpha=-lr)",
        "torch._foreach_add_(weights, scratch.moves, alpha=-2.0 * lr)",
        "optim/test_upgd.py::test_a_neutral_weight_moves_by_the_learning_rate_of_its_plain_relative",
    ),
    row(
        "H4 the same noise in every update",
        f"{ENGINE}:Engine.prepare",
        "now.shared_stream(streams.OPTIMIZER)",
        "streams.torch_generator(now.seed, streams.OPTIMIZER, 0, now.device)",
        "optim/test_training.py::test_the_noise_of_each_update_is_its_own",
    ),
    row(
        "D1 moments of the mean gradient instead of each element",
        SCALER,
        "lambda gradients: gradients",
        "lambda gradients: [gradient.mean() for gradient in gradients]",
        "optim/test_variance_scaler.py",
    ),
    row(
        "D1 the averages are not bias-corrected",
        f"{SCALER}:VarianceScaler._followed",
        "a = (1.0 - self.beta) / (1.0 - self.beta ** (age + 1))",
        "a = 1.0 - self.beta",
        "optim/test_variance_scaler.py",
    ),
    row(
        "D1 the ratio has a unit",
        f"{SCALER}:_ratios",
        "noise / max(norm * norm, share * noise)",
        "noise / max(norm, share * noise)",
        "optim/test_variance_scaler.py::test_multiplying_every_gradient_changes_nothing",
    ),
    row(
        "N6 a factor below one on gradients without noise",
        f"{SCALER}:VarianceScaler._factors",
        "1.0 / (1.0 + self.strength * ratio)",
        "1.0 / (1.05 + self.strength * ratio)",
        "optim/test_variance_scaler.py::test_the_factor_is_one_without_noise_and_falls_as_noise_grows",
    ),
    row(
        "N6 the factor rises above one",
        f"{SCALER}:VarianceScaler._factors",
        "max(self.floor, 1.0 / (1.0 + self.strength * ratio))",
        "max(self.floor, 1.5 / (1.0 + self.strength * ratio))",
        "optim/test_variance_scaler.py",
    ),
    row(
        "D8 what is scaled is followed",
        f"{SCALER}:VarianceScaler.apply",
        "torch._foreach_mul_(gradients, factors if self.per_tensor else factors[0])",
        "torch._foreach_mul_([*gradients, *self.means], factors[0])",
        "optim/test_variance_scaler.py::test_statistics_are_of_raw_gradients",
    ),
    row(
        "a warm-up that already scales",
        f"{SCALER}:VarianceScaler.apply",
        "warming = self.steps < self.warmup",
        "warming = False",
        "optim/test_variance_scaler.py::test_warm_up_watches_and_leaves_gradients_alone",
    ),
    row(
        "E-area3 the clip does not see the scaling",
        "optim/pipeline:GradientPipeline.apply",
        "pre_clip = (self.halves @ self._norms().square()).sqrt()",
        "pass",
        "optim/test_training.py::test_gradients_are_measured_raw_then_scaled_then_clipped",
    ),
    row(
        "P9 one norm is clipped for actor and critics",
        "optim/pipeline:GradientPipeline.apply",
        "(max_grad_norm / (pre_clip + 1e-6)).clamp(max=1.0)",
        "(max_grad_norm / (torch.linalg.vector_norm(pre_clip) + 1e-6)).clamp(max=1.0).expand(2)",
        "optim/test_pipeline.py",
    ),
    row(
        "P9 the actor's part of a shared weight is clipped with the critics'",
        "algorithm/update:Updater._backward_apart",
        "share.grad, parameter.grad = parameter.grad, gradient",
        "pass",
        "optim/test_pipeline.py::test_an_extractor_that_both_halves_train_gets_each_ones_gradient_clipped",
    ),
    row(
        "P9 the value loss is in the unit of the reward",
        "algorithm/engine:Engine._coefficients",
        "self.policy.critic.squared_error_units",
        "self.policy.critic.squared_error_units * max(1.0, self.critic_unit.returns.variance)",
        "algorithm/test_reward_unit.py::test_every_action_is_the_same_in_another_unit[shared extractor]",
    ),
    row(
        "P9 advantages have a floor in a unit of their own",
        "algorithm/targets:make_targets",
        "floor = max(_ROUNDING * size, torch.finfo(torch.float64).tiny)",
        "floor = 1e-2",
        "algorithm/test_reward_unit.py::test_every_action_is_the_same_in_another_unit",
    ),
    row(
        "P9 eight steps move the unit as far as a thousand",
        "algorithm/return_scale:ReturnScale.update",
        "min(1.0 / self.window, steps / self.steps)",
        "1.0 / self.window",
        "algorithm/test_critics.py::test_short_rollouts_are_averaged_over_as_many_steps_as_long_ones",
    ),
    row(
        "P9 what is not known yet has a unit of its own",
        "algorithm/return_scale:ReturnScale.update",
        "self.std = abs(self.mean)",
        "self.std = 1.0",
        "algorithm/test_critics.py::test_targets_that_do_not_vary_are_measured_by_their_size_until_one_does",
    ),
    row(
        "adaptive_upgd forgets its weight decay",
        "optim/upgd:AdaptiveUPGD.__init__",
        "super().__init__(\n"
        "    params, generator, lr=lr, betas=betas, eps=eps, beta_utility=beta_utility, sigma=sigma,\n"
        "    weight_decay=weight_decay, scaling=scaling, protecting=protecting, maximize=maximize,\n"
        ")",
        "super().__init__(\n"
        "    params, generator, lr=lr, betas=betas, eps=eps, beta_utility=beta_utility, sigma=sigma,\n"
        "    weight_decay=0.0, scaling=scaling, protecting=protecting, maximize=maximize,\n"
        ")",
        "optim/test_upgd.py::test_steps_follow_the_equation_of_the_docstring",
    ),
    row(
        "D1 the statistics of the gradients are not resumed",
        "algorithm/checkpoint:restore",
        "scaler.load_state_dict(scaling)",
        "pass",
        "algorithm/test_resume.py",
    ),
    row(
        "C4 the critics' rate is not applied",
        f"{ENGINE}:Engine._set_learning_rates",
        'group["lr"] = rate',
        'group["lr"] = rates[0]',
        "optim/test_training.py",
    ),
]
