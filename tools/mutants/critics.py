"""Faults of the critics' contract, and of files in which an earlier version kept critics and counters elsewhere."""

from tools.mutants import row

__all__ = ["MUTANTS"]

HEADS, READER = "networks/value_heads", "algorithm/checkpoint:_from_version_2"
CONTRACT, CRITICS, OLD_FILES = "networks/test_value_heads.py", "algorithm/test_critics.py", "algorithm/test_format_2.py"
MERGED = f"{CONTRACT}::test_the_merged_distribution_has_the_mean_of_the_critics_means"
SAME_UNIT = f"{CONTRACT}::test_a_change_of_unit_leaves_predictions_where_they_are"
LEARNS = f"{CONTRACT}::test_the_loss_has_one_number_per_step_and_critic_and_falls_towards_the_targets"
HELD = f"{CONTRACT}::test_what_is_held_moves_by_the_radius_in_units_of_the_return"
DISTANCE = f"{CONTRACT}::test_the_distance_is_zero_for_the_same_and_grows"
FIRST_ROLLOUT = f"{CONTRACT}::test_what_a_first_rollout_is_said_to_have_predicted_is_what_the_heads_then_predict"
STATE = f"{OLD_FILES}::test_the_state_of_every_owner_comes_back"
PREDICTS = f"{OLD_FILES}::test_a_file_of_format_2_predicts_what_it_predicted"
LEVELS = f"{OLD_FILES}::test_the_levels_are_those_the_weights_were_trained_at_whatever_alpha_would_say_today"

NORMALISER = "networks/test_observation_normaliser.py"
ONE_RATIO = (
    "algorithm/test_ratio.py::test_every_ratio_is_one_before_the_first_step_of_an_update[observation normaliser]"
)


MUTANTS = [
    # What outputs mean
    row(
        "A-FP2 the first critic is shown for both",
        f"{HEADS}:LinearCritic.merge",
        "raw.mean(-2)",
        "raw[..., 0, :]",
        MERGED,
    ),
    row(
        "A-FP2 logits are averaged instead of probabilities",
        f"{HEADS}:CategoricalCritic.merge",
        "raw.softmax(-1).mean(-2)",
        "raw.mean(-2).softmax(-1)",
        MERGED,
    ),
    row(
        "A-FP2 pessimism takes the larger mean",
        f"{HEADS}:Critic.pessimistic",
        "self.means(raw).amin(-1)",
        "self.means(raw).amax(-1)",
        f"{CONTRACT}::test_pessimism_is_the_smaller_mean",
    ),
    row(
        "critics: something is predicted before anything is known",
        f"{HEADS}:Critic.__init__",
        'self.register_buffer("std", torch.zeros((), dtype=torch.float64))',
        'self.register_buffer("std", torch.ones((), dtype=torch.float64))',
        f"{CONTRACT}::test_before_the_first_rollout_nothing_is_predicted",
    ),
    row(
        "critics: levels do not come with their weights",
        f"{HEADS}:QuantileCritic.__init__",
        'self.register_buffer("levels", grid.to(torch.float32))',
        'self.register_buffer("levels", grid.to(torch.float32), persistent=False)',
        f"{CONTRACT}::test_levels_come_back_with_the_weights_that_were_trained_at_them",
    ),
    row(
        "critics: the tail grid looks at the first constraint alone",
        "config/settings:Settings.tail_alpha",
        "min([0.5, *(each.alpha for each in self.risk)])",
        "min(0.5, self.risk[0].alpha)",
        f"{CONTRACT}::test_the_tail_grid_looks_at_the_smallest_alpha_of_the_constraints",
    ),
    # How they are taught
    row(
        "critics: targets are not in the critic's unit",
        f"{HEADS}:LinearCritic._standardised",
        "((samples - mean) / (std or 1.0)).to(self.levels.dtype)",
        "samples.to(self.levels.dtype)",
        LEARNS,
    ),
    row(
        "critics: the loss of the first is that of both",
        f"{HEADS}:CategoricalCritic.loss",
        "categorical.cross_entropy(raw, wanted.unsqueeze(-2).expand_as(raw))",
        "categorical.cross_entropy(raw[..., :1, :].expand_as(raw), wanted.unsqueeze(-2).expand_as(raw))",
        f"{CONTRACT}::test_each_critic_has_a_loss_of_its_own",
    ),
    row(
        "critics: the radius of the clip has no unit",
        f"{HEADS}:CategoricalCritic.hold_near",
        "clip.radius * self.unit.std",
        "clip.radius",
        HELD,
    ),
    row(
        "critics: the radius of the clip has a unit twice",
        f"{HEADS}:LinearCritic.hold_near",
        "clip.radius",
        "clip.radius * self.unit.std",
        HELD,
    ),
    row(
        "E-V5c a clip that acts is not told",
        f"{HEADS}:LinearCritic.hold_near",
        "((held - raw).abs() > 1e-5).any(-1).to(raw.dtype)",
        "torch.zeros_like(raw[..., 0])",
        f"{CONTRACT}::test_what_is_far_from_the_old_is_held_and_what_is_near_is_not",
    ),
    row(
        "E-V5c a second clip acts beside the first",
        "algorithm/losses:value_losses",
        "clipped = critic.loss(held, wanted, kappa=weights.kappa)",
        "clipped = critic.loss(held.clamp(-0.5, 0.5), wanted, kappa=weights.kappa)",
        f"{CRITICS}::test_each_quantile_critic_is_clipped_against_its_own_past",
    ),
    row(
        "E-V5c the radius of value_clip acts where clip_range_vf is given",
        "algorithm/schedules:value_clip",
        '(settings.value_clip or ValueClip()).model_copy(update={"radius": radius})',
        "(settings.value_clip or ValueClip(radius=radius))",
        f"{CRITICS}::test_the_radius_of_clip_range_vf_is_the_one_that_acts",
    ),
    row(
        "A4 targets are clipped",
        "algorithm/losses:prepare_value_targets",
        "critic.encode(samples.flatten(0, 1), kappa=weights.kappa)",
        "critic.encode(samples.flatten(0, 1).clamp(-critic.unit.std, critic.unit.std), kappa=weights.kappa)",
        "algorithm/test_return_distribution.py::test_the_quantiles_of_a_single_reward_are_learned",
    ),
    row(
        "critics: a distance that is no square",
        f"{HEADS}:LinearCritic.distance",
        "(other - raw).square()",
        "(other - raw).abs()",
        DISTANCE,
    ),
    # The unit
    row(
        "C3 the unit changes and the heads do not",
        f"{HEADS}:LinearCritic.rescale",
        "rescale_head(head, self.unit, unit)",
        "pass",
        SAME_UNIT,
    ),
    row(
        "C3 the heads change and the unit does not",
        f"{HEADS}:LinearCritic.rescale",
        "self.set_unit(unit)",
        "pass",
        SAME_UNIT,
    ),
    row(
        "C3 old outputs are taken as they are",
        f"{HEADS}:LinearCritic.restate",
        "(raw * old_std + old_mean - mean) / std",
        "raw",
        f"{CONTRACT}::test_old_outputs_are_restated_in_the_present_unit",
    ),
    row(
        "C3 old probabilities stay on the support they were made on",
        f"{HEADS}:CategoricalCritic.restate",
        "categorical.project(frame, raw.softmax(-1).to(frame.dtype), self.support).to(raw.dtype)",
        "raw.softmax(-1)",
        f"{CONTRACT}::test_old_probabilities_are_restated_on_the_support_that_has_moved",
    ),
    row(
        "critics: a categorical head does not start from the returns",
        f"{HEADS}:CategoricalCritic.start",
        "head.bias.copy_(logits)",
        "pass",
        FIRST_ROLLOUT,
    ),
    row(
        "critics: the first rollout's outputs are those before the start",
        f"{HEADS}:CategoricalCritic.start",
        "started[..., c, :] += logits - head.bias",
        "pass",
        FIRST_ROLLOUT,
    ),
    row(
        "critics: a support never moves",
        f"{HEADS}:CategoricalCritic.needs_refit",
        "categorical_support.needs_move(samples, self.support)",
        "False",
        f"{CRITICS}::test_a_moved_support_hardly_moves_predictions_and_says_by_how_much",
    ),
    row(
        "P1 a linear critic takes over the mean of the first rollout",
        f"{HEADS}:LinearCritic.start",
        "Unit(0.0, unit.std)",
        "unit",
        f"{CRITICS}::test_a_critic_starts_at_zero_and_follows_the_mean_by_learning_alone",
    ),
    row(
        "P1 a categorical critic starts at the mean of the first rollout",
        f"{HEADS}:CategoricalCritic.start",
        "categorical_support.normal_logits(self.support, unit.std)",
        "categorical_support.normal_logits(self.support - unit.mean, unit.std)",
        f"{CRITICS}::test_a_critic_starts_at_zero_and_follows_the_mean_by_learning_alone",
    ),
    row(
        "P1 the unit of the first rollout keeps its mean at 0",
        "algorithm/return_scale:CriticUnit.follow",
        "critic.rescale(self.returns.unit, heads)",
        "critic.rescale(self.returns.unit if known else critic.unit, heads)",
        f"{CRITICS}::test_training_leaves_decoded_values_where_they_are_at_every_rescale",
    ),
    row(
        "P13 a support has an absolute least width",
        "networks/categorical_support:fitting_support",
        "max(high - low, _NARROWEST * max(abs(high), abs(low)), 1e-30)",
        "max(high - low, 0.1)",
        "algorithm/test_reward_unit.py::test_every_action_is_the_same_in_another_unit[categorical]",
    ),
    row(
        "P13 a support of constant returns has no width",
        "networks/categorical_support:fitting_support",
        "max(high - low, _NARROWEST * max(abs(high), abs(low)), 1e-30)",
        "max(high - low, 1e-30)",
        f"{CRITICS}::test_a_support_moves_with_hysteresis",
    ),
    row(
        "P13 an unknown return is predicted on a support of its own",
        f"{HEADS}:CategoricalCritic._atoms",
        "self.support.to(raw.dtype) if self.std > 0.0 else raw.new_zeros(self.outputs)",
        "self.support.to(raw.dtype)",
        f"{CRITICS}::test_a_critic_starts_at_zero_and_follows_the_mean_by_learning_alone",
    ),
    row(
        "critics: a categorical mean passes the radius at the ends of its support",
        "maths/value_clipping:clip_categorical",
        "torch.lerp(shifted, old, share)",
        "shifted",
        "maths/test_value_clipping.py",
    ),
    # Observations
    row(
        "C1 the observation normaliser moves before the update",
        "algorithm/engine:Engine.prepare",
        "rollout_numbers(policy, rollout, change)",
        "rollout_numbers(policy, rollout, change) | self._adapt(rollout, now)",
        ONE_RATIO,
    ),
    row(
        "D4 the observation normaliser moves with every look",
        "networks/observation_normaliser:ObservationNormaliser.forward",
        'return self._one("observation", observation)',
        'self.update(observation); return self._one("observation", observation)',
        f"{NORMALISER}::test_looking_changes_nothing",
    ),
    row(
        "D4 the observation normaliser is not in the checkpoint",
        "networks/observation_normaliser:_Moments.__init__",
        'self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))',
        'self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64), persistent=False)',
        f"{NORMALISER}::test_it_travels_with_the_state_of_the_policy",
    ),
    # Files of the format before
    row(
        "format 2: levels are not converted",
        READER,
        'critic == "quantile"',
        "False",
        f"{PREDICTS}[memory]",
    ),
    row(
        "format 2: levels look at another tail",
        READER,
        'tail_alpha = next((value for key, value in kwargs if key == "tail_alpha"), 0.05)',
        "tail_alpha = 0.05",
        f"{PREDICTS}[own_tail]",
    ),
    row(
        "format 2: levels look at the constraints of today",
        READER,
        'next((value for key, value in kwargs if key == "tail_alpha"), 0.05)',
        'next((value for key, value in kwargs if key == "tail_alpha"), 0.2)',
        LEVELS,
    ),
    row(
        "format 2: the units of return and step are swapped",
        READER,
        '(("return", "critic"), ("risk_heads.step", "risk_heads.step_critic"))',
        '(("return", "risk_heads.step_critic"), ("risk_heads.step", "critic"))',
        f"{PREDICTS}[memory]",
    ),
    row(
        "format 2: mean and deviation are swapped",
        READER,
        'tensors[f"policy/{new}.{field}"] = tensors.pop(key)',
        "tensors[f\"policy/{new}.{'std' if field == 'mean' else 'mean'}\"] = tensors.pop(key)",
        f"{PREDICTS}[categorical]",
        f"{PREDICTS}[memory]",
    ),
    row(
        "format 2: the step's levels look at another tail",
        READER,
        "min(risks[0].alpha, 0.5)",
        "0.05",
        LEVELS,
    ),
    row(
        "format 2: counters are lost",
        READER,
        'state["counters"], state["episodes"] = manifest.pop("counters"), manifest.pop("episodes")',
        'state["episodes"] = manifest.pop("episodes")',
        STATE,
    ),
    row(
        "format 2: episodes are lost",
        READER,
        'state["counters"], state["episodes"] = manifest.pop("counters"), manifest.pop("episodes")',
        'state["counters"] = manifest.pop("counters")',
        f"{OLD_FILES}::test_counters_and_episodes_come_back",
    ),
    row(
        "format 2: skips in a row are lost",
        READER,
        'state["finite_guard"] = {"consecutive": state.pop("consecutive_skips")}',
        'state.pop("consecutive_skips")',
        f"{OLD_FILES}::test_counters_and_episodes_come_back",
    ),
    row(
        "format 2: the window of episodes is lost",
        READER,
        'arguments["stats_window_size"] = manifest.pop("stats_window_size")',
        'manifest.pop("stats_window_size")',
        f"{OLD_FILES}::test_counters_and_episodes_come_back",
    ),
]
