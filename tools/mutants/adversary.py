"""Faults of the state adversary, of attacks on trained models, and of the warm start."""

from tools.mutants import row

__all__ = ["MUTANTS"]

ADVERSARY, CLONING, PPO = "algorithm/state_adversary", "algorithm/behaviour_cloning", "algorithm/ppo"
ROBUSTNESS = "backtest/robustness"
OWN, CLONED, ATTACKS = (
    "engine/test_state_adversary.py",
    "engine/test_behaviour_cloning.py",
    "backtest/test_robustness.py",
)
BALL = f"{OWN}::test_delta_stays_in_its_ball_spares_masked_features_and_raises_the_divergence"
GRADIENT = f"{OWN}::test_the_gradient_is_that_of_the_perturbed_side_on_the_same_rows"


MUTANTS = [
    row(
        "N7 the clean side is not detached",
        ADVERSARY,
        "policy.action_parameters(rows.observations, memory, rows.action_masks).detach()",
        "policy.action_parameters(rows.observations, memory, rows.action_masks)",
        GRADIENT,
    ),
    row(
        "N7 the robust KL compares different rows",
        ADVERSARY,
        "return policy.action_head.kl(clean, policy",
        "return policy.action_head.kl(clean.roll(1, 1), policy",
        GRADIENT,
    ),
    row(
        "N7 the robust KL has no gradient",
        ADVERSARY,
        "robust = _total(divergence(found.delta), rows)",
        "robust = _total(divergence(found.delta), rows).detach()",
        GRADIENT,
    ),
    row(
        "N7 a robust KL without gradient goes unseen",
        ADVERSARY,
        "        self._demand_gradient(robust)\n",
        "",
        f"{OWN}::test_a_robust_kl_without_gradient_stops_training",
    ),
    row(
        "N7 the search starts where the divergence has no slope",
        ADVERSARY,
        "start = self.starts.index_select(0, rows.index)",
        "start = 0.0 * self.starts.index_select(0, rows.index)",
        BALL,
    ),
    row("N7 the mask is ignored", ADVERSARY, "mask=self.features.mask,", "mask=None,", BALL),
    row(
        "N7 the env's own mask is ignored",
        ADVERSARY,
        'env.get_attr("attackable", indices=[0])[0])',
        'np.ones_like(env.get_attr("attackable", indices=[0])[0]))',
        f"{OWN}::test_the_env_marks_what_may_be_perturbed_and_a_mask_of_the_users_goes_before",
    ),
    row(
        "N7 delta is not projected",
        "maths/perturbation",
        "return BALLS[ball](moved.masked_fill(~mask, 0.0), epsilon)",
        "return moved.masked_fill(~mask, 0.0)",
        BALL,
    ),
    row(
        "N7 the scale of features is ignored",
        ADVERSARY,
        "scaled = delta if self.scale is None else delta * self.scale.to(device)",
        "scaled = delta",
        BALL,
    ),
    row(
        "N7 the ball is in the unit of the raw observation",
        ADVERSARY,
        "return None if normaliser is None else normaliser.unit(key)",
        "return None",
        f"{OWN}::test_the_ball_is_in_the_unit_of_the_policys_own_normaliser",
    ),
    row(
        "N7 a constant radius starts at 0",
        ADVERSARY,
        "            return config.epsilon\n",
        "            return progress * config.epsilon\n",
        f"{OWN}::test_a_constant_radius_is_there_from_the_first_update_on",
    ),
    row(
        "N7 a growing radius starts at 0",
        ADVERSARY,
        "(max(share, 0.0), config.epsilon, config.epsilon_end)",
        "(max(share, 0.0), 0.0, config.epsilon_end)",
        f"{OWN}::test_a_growing_radius_starts_from_its_constant_when_the_warm_up_ends",
    ),
    row(
        "N7 the warm-up never ends",
        ADVERSARY,
        "        self.updates += 1\n",
        "",
        f"{OWN}::test_the_warm_up_counts_by_itself_and_is_a_plain_update",
    ),
    row(
        "adversary: padding is attacked and counted",
        ADVERSARY,
        "    return values.masked_fill(~rows.mask, 0.0).sum()",
        "    return values.sum()",
        f"{OWN}::test_whole_sequences_are_perturbed_their_context_too_and_padding_counts_for_nothing",
    ),
    row(
        "adversary: dropout looks like a perturbation",
        ADVERSARY,
        "        policy.set_training_mode(False)\n",
        "        pass\n",
        f"{OWN}::test_dropout_is_no_perturbation",
    ),
    row(
        "adversary: the value term trains a memory that is the actor's",
        ADVERSARY,
        "shift(found.delta, through_shared_memory=False)",
        "shift(found.delta, through_shared_memory=True)",
        "engine/test_gradient_matrix.py",
    ),
    row(
        "adversary: its count is not in the checkpoint",
        PPO,
        '"adversary": None if self.state_adversary is None else self.state_adversary.state_dict(),',
        '"adversary": None,',
        "sb3/test_resume.py::test_a_run_that_was_stopped_equals_one_that_was_not_bit_for_bit",
    ),
    row(
        "adversary: its draws are those of the first update for ever",
        PPO,
        "self._own_stream(streams.ADVERSARY)",
        "streams.torch_generator(self.stream_seed, streams.ADVERSARY, 0, self.device)",
        f"{OWN}::test_each_update_of_a_run_draws_anew",
    ),
    row(
        "robustness: the mask is ignored",
        ROBUSTNESS,
        "mask=None if mask is None else mask.to(surface.device),",
        "mask=None,",
        f"{ATTACKS}::test_an_attack_stays_in_its_ball_and_spares_what_is_masked",
    ),
    row(
        "robustness: the critic attack raises the value",
        ROBUSTNESS,
        "return lambda delta: -surface.value(delta)",
        "return lambda delta: surface.value(delta)",
        f"{ATTACKS}::test_the_critic_attack_lowers_the_value_as_far_as_the_ball_allows",
    ),
    row(
        "cloning: every sequence starts from an empty memory",
        CLONING,
        "            part[:, here] = new\n",
        "            part[:, here] = 0.0 * new\n",
        f"{CLONED}::test_sequences_start_from_the_memory_the_episode_has_there",
    ),
    row(
        "cloning: exploration shrinks with the likelihood",
        CLONING,
        '"actor_mlp", "action_head")',
        '"actor_mlp", "action_head", "log_std")',
        f"{CLONED}::test_critics_noise_and_the_optimiser_are_left_as_they_were",
    ),
]
