"""Faults of the state adversary, of attacks on trained models, and of the warm start."""

from tools.mutants import row

__all__ = ["MUTANTS"]

ADVERSARY, CLONING, ENGINE = "algorithm/state_adversary", "algorithm/behaviour_cloning", "algorithm/engine"
ROBUSTNESS = "backtest/robustness"
OWN, CLONED, ATTACKS = (
    "algorithm/test_state_adversary.py",
    "algorithm/test_behaviour_cloning.py",
    "backtest/test_robustness.py",
)
BALL = f"{OWN}::test_delta_stays_in_its_ball_spares_masked_features_and_raises_the_divergence"
GRADIENT = f"{OWN}::test_the_gradient_is_that_of_the_perturbed_side_on_the_same_rows"


MUTANTS = [
    row(
        "N7 the clean side is not detached",
        f"{ADVERSARY}:Attack.robust_kl",
        "policy.action_parameters(rows.observations, memory, rows.action_masks).detach()",
        "policy.action_parameters(rows.observations, memory, rows.action_masks)",
        GRADIENT,
    ),
    row(
        "N7 the robust KL compares different rows",
        f"{ADVERSARY}:Attack.robust_kl.divergence",
        "clean",
        "clean.roll(1, 1)",
        GRADIENT,
    ),
    row(
        "N7 the robust KL has no gradient",
        f"{ADVERSARY}:Attack.robust_kl",
        "robust = _total(divergence(found.delta), rows)",
        "robust = _total(divergence(found.delta), rows).detach()",
        GRADIENT,
    ),
    row(
        "N7 a robust KL without gradient goes unseen",
        f"{ADVERSARY}:Attack.robust_kl",
        "self._demand_gradient(robust)",
        "pass",
        f"{OWN}::test_a_robust_kl_without_gradient_stops_training",
    ),
    row(
        "N7 the search starts where the divergence has no slope",
        f"{ADVERSARY}:Attack._search",
        "self.starts.index_select(0, rows.index)",
        "0.0 * self.starts.index_select(0, rows.index)",
        BALL,
    ),
    row("N7 the mask is ignored", f"{ADVERSARY}:Attack._search", "self.features.mask", "None", BALL),
    row(
        "N7 the env's own mask is ignored",
        f"{ADVERSARY}:StateAdversary.spare",
        'env.get_attr("attackable", indices=[0])[0]',
        'np.ones_like(env.get_attr("attackable", indices=[0])[0])',
        f"{OWN}::test_the_env_marks_what_may_be_perturbed_and_a_mask_of_the_users_goes_before",
    ),
    row(
        "N7 delta is not projected",
        "maths/perturbation:pgd_step",
        "return project(moved.masked_fill(~mask, 0.0), epsilon=epsilon, ball=ball)",
        "return moved.masked_fill(~mask, 0.0)",
        BALL,
    ),
    row(
        "N7 the scale of features is ignored",
        f"{ADVERSARY}:AttackedFeatures.add",
        "scaled = delta if self.scale is None else delta * self.scale.to(device)",
        "scaled = delta",
        BALL,
    ),
    row(
        "N7 the ball is in the unit of the raw observation",
        f"{ADVERSARY}:AttackedFeatures._unit",
        "return None if normaliser is None else normaliser.unit(key)",
        "return None",
        f"{OWN}::test_the_ball_is_in_the_unit_of_the_policys_own_normaliser",
    ),
    row(
        "N7 a constant radius starts at 0",
        f"{ADVERSARY}:StateAdversary.epsilon",
        "return config.epsilon",
        "return progress * config.epsilon",
        f"{OWN}::test_a_constant_radius_is_there_from_the_first_update_on",
    ),
    row(
        "N7 a growing radius starts at 0",
        f"{ADVERSARY}:StateAdversary.epsilon",
        "schedules.BY_NAME[config.epsilon_schedule](max(share, 0.0), config.epsilon, config.epsilon_end)",
        "schedules.BY_NAME[config.epsilon_schedule](max(share, 0.0), 0.0, config.epsilon_end)",
        f"{OWN}::test_a_growing_radius_starts_from_its_constant_when_the_warm_up_ends",
    ),
    row(
        "N7 the warm-up never ends",
        f"{ADVERSARY}:StateAdversary.begin",
        "self.updates += 1",
        "pass",
        f"{OWN}::test_the_warm_up_counts_by_itself_and_is_a_plain_update",
    ),
    row(
        "adversary: padding is attacked and counted",
        f"{ADVERSARY}:_total",
        "return values.masked_fill(~rows.mask, 0.0).sum()",
        "return values.sum()",
        f"{OWN}::test_whole_sequences_are_perturbed_their_context_too_and_padding_counts_for_nothing",
    ),
    row(
        "adversary: dropout looks like a perturbation",
        f"{ADVERSARY}:_steady",
        "policy.set_training_mode(False)",
        "pass",
        f"{OWN}::test_dropout_is_no_perturbation",
    ),
    row(
        "adversary: the value term trains a memory that is the actor's",
        f"{ADVERSARY}:Attack.value_shift",
        "shift(found.delta, through_shared_memory=False)",
        "shift(found.delta, through_shared_memory=True)",
        "algorithm/test_gradient_matrix.py",
    ),
    row(
        "adversary: its count is not in the checkpoint",
        f"{ENGINE}:Engine.owners",
        "self.state_adversary",
        "None",
        "algorithm/test_resume.py::test_a_run_that_was_stopped_equals_one_that_was_not_bit_for_bit",
    ),
    row(
        "adversary: its draws are those of the first update for ever",
        f"{ENGINE}:Engine._attack",
        "now.own_stream(streams.ADVERSARY)",
        "streams.torch_generator(now.seed, streams.ADVERSARY, 0, now.device)",
        f"{OWN}::test_each_update_of_a_run_draws_anew",
    ),
    row(
        "robustness: the mask is ignored",
        f"{ROBUSTNESS}:AttackedPolicy._delta",
        "None if mask is None else mask.to(surface.device)",
        "None",
        f"{ATTACKS}::test_an_attack_stays_in_its_ball_and_spares_what_is_masked",
    ),
    row(
        "robustness: the critic attack raises the value",
        f"{ROBUSTNESS}:_critic",
        "return lambda delta: -surface.value(delta)",
        "return lambda delta: surface.value(delta)",
        f"{ATTACKS}::test_the_critic_attack_lowers_the_value_as_far_as_the_ball_allows",
    ),
    row(
        "cloning: every sequence starts from an empty memory",
        f"{CLONING}:_memories",
        "part[:, here] = new",
        "part[:, here] = 0.0 * new",
        f"{CLONED}::test_sequences_start_from_the_memory_the_episode_has_there",
    ),
    row(
        "cloning: exploration shrinks with the likelihood",
        CLONING,
        '("extractor", "actor_extractor", "actor_memory", "actor_mlp", "action_head")',
        '("extractor", "actor_extractor", "actor_memory", "actor_mlp", "action_head", "log_std")',
        f"{CLONED}::test_critics_noise_and_the_optimiser_are_left_as_they_were",
    ),
]
