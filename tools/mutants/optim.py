"""Faults of the optimisers and of gradient scaling."""

from tools.mutants import Mutant

__all__ = ["MUTANTS"]

UPGD, SCALER, PPO = "optim/upgd", "optim/variance_scaler", "algorithm/ppo"


def row(name: str, file: str, was: str, fault: str, test: str) -> Mutant:
    return Mutant(name, f"src/leeward/{file}.py", was, fault, (f"tests/optim/test_{test}",))


MUTANTS = [
    row(
        "Adam's parameters share one count of steps",
        "optim/adam",
        'steps = [state["step"] for',
        'steps = [states[0]["step"] for',
        "adam.py",
    ),
    row(
        "Adam decays weights through the gradient",
        "optim/adam",
        "torch._fused_adamw_ if",
        "torch._fused_adam_ if",
        "adam.py",
    ),
    row(
        "H4 utility has the wrong sign",
        UPGD,
        "batch.gradients, batch.weights, -(1.0 - beta))",
        "batch.gradients, batch.weights, 1.0 - beta)",
        "upgd.py",
    ),
    row(
        "H4 the maximum is not bias-corrected",
        UPGD,
        "list(map(operator.truediv, peaks, corrections))",
        "peaks",
        "upgd.py::test_steps_follow_the_equation_of_the_docstring",
    ),
    row(
        "H4 the utility is not bias-corrected",
        UPGD,
        "eta * correction / _LOG2_E",
        "eta / _LOG2_E",
        "upgd.py::test_steps_follow_the_equation_of_the_docstring",
    ),
    row(
        "H4 all-negative utilities invert protection",
        UPGD,
        "return torch.maximum(-torch.stack(lows), torch.stack(highs))",
        "return torch.stack(highs)",
        "upgd.py::test_a_more_useful_weight_is_never_less_protected",
    ),
    row(
        "H4 a gradient that is not finite is used",
        UPGD,
        "        if not _usable(batches):\n",
        "        if False:\n",
        "upgd.py::test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted",
    ),
    row(
        "H4 global scaling stays within a group",
        UPGD,
        "self._utility_max = max(peak for measure in measures for peak in measure.peaks)",
        "self._utility_max = max(measures[0].peaks)",
        "upgd.py",
    ),
    row(
        "H4 noise from the global generator",
        "optim/gaussian",
        "words.random_(-(2**63), None, generator=generator)",
        "words.random_(-(2**63), None)",
        "upgd.py::test_noise_comes_from_the_generator_alone",
    ),
    row(
        "H4 the state of the noise is not saved",
        UPGD,
        '{"generator": self.generator.get_state(), "skipped_steps"',
        '{"skipped_steps"',
        "upgd.py::test_resuming_at_step_k_changes_nothing_bit_for_bit",
    ),
    row(
        "H4 noise of a fixed size around Adam's direction",
        UPGD,
        "return norms / norms.new_tensor(batch.scratch.sizes).sqrt()",
        "return torch.ones_like(norms)",
        "upgd.py::test_steps_follow_the_equation_of_the_docstring",
    ),
    row(
        "H4 the step is twice the learning rate",
        UPGD,
        "torch._foreach_add_(weights, scratch.moves, alpha=-lr)",
        "torch._foreach_add_(weights, scratch.moves, alpha=-2.0 * lr)",
        "upgd.py::test_a_neutral_weight_moves_by_the_learning_rate_of_its_plain_relative",
    ),
    row(
        "H4 the same noise in every update",
        PPO,
        "self.stream_seed, streams.OPTIMIZER, self.n_rollouts, self.device",
        "self.stream_seed, streams.OPTIMIZER, 0, self.device",
        "training.py::test_the_noise_of_each_update_is_its_own",
    ),
    row(
        "D1 moments of the mean gradient instead of each element",
        SCALER,
        '"element": lambda gradients: gradients,',
        '"element": lambda gradients: [gradient.mean() for gradient in gradients],',
        "variance_scaler.py",
    ),
    row(
        "D1 the averages are not bias-corrected",
        SCALER,
        "a = (1.0 - self.beta) / (1.0 - self.beta ** (age + 1))",
        "a = 1.0 - self.beta",
        "variance_scaler.py",
    ),
    row(
        "D1 the ratio has a unit",
        SCALER,
        "noise / max(norm * norm, share * noise)",
        "noise / max(norm, share * noise)",
        "variance_scaler.py::test_multiplying_every_gradient_changes_nothing",
    ),
    row(
        "N6 a factor below one on gradients without noise",
        SCALER,
        "1.0 / (1.0 + self.strength * ratio)",
        "1.0 / (1.05 + self.strength * ratio)",
        "variance_scaler.py::test_the_factor_is_one_without_noise_and_falls_as_noise_grows",
    ),
    row(
        "N6 the factor rises above one",
        SCALER,
        "max(self.floor, 1.0 / (1.0 + self.strength * ratio))",
        "max(self.floor, 1.5 / (1.0 + self.strength * ratio))",
        "variance_scaler.py",
    ),
    row(
        "D8 what is scaled is followed",
        SCALER,
        "torch._foreach_mul_(gradients, factors if self.per_tensor else factors[0])",
        "torch._foreach_mul_([*gradients, *self.means], factors[0])",
        "variance_scaler.py::test_statistics_are_of_raw_gradients",
    ),
    row(
        "a warm-up that already scales",
        SCALER,
        "warming = self.steps < self.warmup",
        "warming = False",
        "variance_scaler.py::test_warm_up_watches_and_leaves_gradients_alone",
    ),
    row(
        "E-area3 the clip does not see the scaling",
        "optim/pipeline",
        "            pre_clip = self._norms().square().sum().sqrt()\n",
        "",
        "training.py::test_gradients_are_measured_raw_then_scaled_then_clipped",
    ),
    Mutant(
        "D1 the statistics of the gradients are not resumed",
        "src/leeward/algorithm/checkpoint.py",
        "        model.variance_scaler.load_state_dict(scaling)\n",
        "        pass\n",
        ("tests/sb3/test_resume.py",),
    ),
    row(
        "C4 the critics' rate is not applied",
        PPO,
        'group["lr"] = rate',
        'group["lr"] = rates[0]',
        "training.py",
    ),
]
