"""Faults of the CVaR constraint: what is measured, what is priced, who learns from it."""

from tools.mutants import row

__all__ = ["MUTANTS"]

CONSTRAINT, COLLECTOR, LOSSES, PPO = (
    "algorithm/risk_constraint",
    "rollout/collector",
    "algorithm/losses",
    "algorithm/ppo",
)
EQUATIONS = "risk/test_constraint.py::test_tail_cost_multiplier_and_advantage_are_those_of_the_equations"
WHO_LEARNS = (
    "risk/test_outlook_step.py"
    "::test_a_constraint_moves_the_policy_and_leaves_the_critics_where_their_own_loss_takes_them"
)
VARIABLE = "risk/test_risk_variable.py"
QUIET = "risk/test_deployed.py"
EPISODES = (
    "risk/test_constraint.py::test_an_episode_is_the_sum_of_its_steps_over_rollouts_and_costs_on_its_last_step_alone"
)
MEASURED_ONLY = "risk/test_constraint.py::test_a_constraint_that_only_measures_changes_no_bit_of_what_is_learned"


MUTANTS = [
    # What a limit switches on
    row(
        "the tail is not averaged",
        CONSTRAINT,
        "self.tail = _blend(self.tail, measured, config.smoothing)",
        "self.tail = measured",
        EQUATIONS,
    ),
    row("the learning rate stays under a limit", PPO, "* (1.0 if callable(rate) else fades)", "* 1.0", VARIABLE),
    row("a schedule falls twice", PPO, "* (1.0 if callable(rate) else fades)", "* fades", VARIABLE),
    # What is measured
    row(
        "G3 the tail is winsorised before it is measured",
        CONSTRAINT,
        "measured = float(cvar.from_samples(samples, config.alpha))",
        "measured = float(cvar.from_samples(samples.clamp(min=samples.quantile(0.01)), config.alpha))",
        EQUATIONS,
    ),
    row(
        "G4 the limit is compared with the value at risk",
        CONSTRAINT,
        "self.tail = _blend(self.tail, measured, config.smoothing)",
        "self.tail = _blend(self.tail, value_at_risk, config.smoothing)",
        EQUATIONS,
    ),
    row(
        "G4 the limit of episodes is compared with one step",
        CONSTRAINT,
        'if self.config.measure == "step_return":',
        "if True:",
        EQUATIONS,
    ),
    row(
        "G4 the tail and its limit are in different units",
        CONSTRAINT,
        "value, limit = (self.tail - distance) / unit, config.limit / unit",
        "value, limit = (self.tail - distance) / unit, config.limit",
        EQUATIONS,
    ),
    row(
        "ν of the wrong tail",
        CONSTRAINT,
        "fresh = float(cvar.value_at_risk(samples, self.config.alpha))",
        "fresh = -float(cvar.value_at_risk(-samples, self.config.alpha))",
        EQUATIONS,
    ),
    row(
        "a thin tail is trusted like a thick one",
        CONSTRAINT,
        "value, limit = (self.tail - distance) / unit, config.limit / unit",
        "value, limit = self.tail / unit, config.limit / unit",
        EQUATIONS,
    ),
    row(
        "ν is not smoothed",
        CONSTRAINT,
        "self.quantile = _blend(self.quantile, fresh, self.config.smoothing)",
        "self.quantile = fresh",
        EQUATIONS,
    ),
    row(
        "a thin tail is measured on the newest rollout alone",
        CONSTRAINT,
        "while len(self.rollouts) > 1 and sum(len(part) for part in self.rollouts[1:]) >= self.needed:",
        "while len(self.rollouts) > 1:",
        "risk/test_constraint.py::test_a_thin_tail_warns_once_and_is_pooled_until_it_has_ten_samples",
    ),
    row(
        "the pool grows for ever",
        CONSTRAINT,
        "while len(self.rollouts) > 1 and sum(len(part) for part in self.rollouts[1:]) >= self.needed:",
        "while False:",
        "risk/test_constraint.py::test_just_enough_rollouts_are_pooled",
    ),
    row(
        "an episode's total is not reset at its end",
        CONSTRAINT,
        "            self.running = self.running.masked_fill(over, 0.0)\n",
        "",
        EPISODES,
    ),
    row(
        "an episode costs at every step",
        CONSTRAINT,
        "return totals, ended  # the whole cost falls on the last step",
        "return totals, torch.ones_like(ended)",
        EPISODES,
    ),
    row(
        "an episode cut by a reset counts into the next one",
        PPO,
        "                    self.risk_control.begin(self.all_envs)\n",
        "                    pass\n",
        "risk/test_constraint.py::test_an_episode_cut_by_a_reset_does_not_count_into_the_next_one",
    ),
    row(
        "the reward as VecNormalize scaled it is measured",
        COLLECTOR,
        "rewards if self.normaliser is None else self.normaliser.get_original_reward(), np.float64",
        "rewards, np.float64",
        VARIABLE,
    ),
    row(
        "the reward is measured where the env gives a step_return",
        COLLECTOR,
        'elif any("step_return" in info for info in infos):',
        "elif False:",
        VARIABLE,
    ),
    row(
        "only the first env is asked for its step_return",
        COLLECTOR,
        'elif any("step_return" in info for info in infos):',
        'elif "step_return" in infos[0]:',
        VARIABLE,
    ),
    row(
        "a limit in percent is taken on a trading env",
        PPO,
        "                each.check_log_return()\n",
        "                pass\n",
        VARIABLE,
    ),
    # What is priced
    row(
        "the sign of the cost is flipped",
        CONSTRAINT,
        "risk_part = -total / (1.0 + weights)",
        "risk_part = total / (1.0 + weights)",
        EQUATIONS,
    ),
    row(
        "the cost is not divided by α",
        CONSTRAINT,
        "cost = ((self.quantile - values).clamp(min=0.0) / self.config.alpha)",
        "cost = ((self.quantile - values).clamp(min=0.0))",
        EQUATIONS,
    ),
    row(
        "gains are priced too",
        CONSTRAINT,
        "(self.quantile - values).clamp(min=0.0)",
        "(self.quantile - values)",
        EQUATIONS,
    ),
    row(
        "advantages are normalised before the costs come in",
        "algorithm/targets",
        "risk.judge(buffer, raw, reward_unit, peers)",
        "risk.judge(buffer, advantage.normalise(raw), reward_unit, peers)",
        EQUATIONS,
    ),
    row(
        "costs are normalised by themselves",
        CONSTRAINT,
        "total = total + constraint.weight * cost_advantages / reward_unit",
        "total = total + constraint.weight * cost_advantages / cost_advantages.std() / reward_unit",
        EQUATIONS,
    ),
    row(
        "costs are weighed against normalised rewards",
        CONSTRAINT,
        "constraint.weight * cost_advantages / reward_unit",
        "constraint.weight * cost_advantages",
        "risk/test_constraint.py::test_costs_are_weighed_against_rewards_in_the_unit_before_vecnormalize",
    ),
    row(
        "advantages are not divided by 1 + Σλ",
        CONSTRAINT,
        "return RiskVerdict(advantages / (1.0 + weights) + risk_part",
        "return RiskVerdict(advantages + risk_part",
        EQUATIONS,
    ),
    row(
        "the fixed weight of CVaR is forgotten",
        CONSTRAINT,
        "return self.multiplier + self.config.cvar_weight",
        "return self.multiplier",
        EQUATIONS,
    ),
    row(
        "a cost's own discount is ignored",
        CONSTRAINT,
        "gamma=self.gamma if config.gamma is None else config.gamma",
        "gamma=self.gamma",
        EQUATIONS,
    ),
    row(
        "the cost of an episode fades on the way to its first step",
        CONSTRAINT,
        'return 1.0 if config.measure == "episode_return" else self.lam',
        "return self.lam",
        EQUATIONS,
    ),
    row(
        "a truncated episode costs nothing afterwards",
        COLLECTOR,
        "            spread(costs, buffer.risk.costs, buffer.risk.next_costs)\n",
        "            spread(costs, buffer.risk.costs, buffer.risk.next_costs)\n"
        "            buffer.risk.next_costs[cut] = 0.0\n",
        EQUATIONS,
    ),
    # The multiplier
    row(
        "G6 the multiplier is capped at 1",
        CONSTRAINT,
        "            ceiling=config.ceiling,\n        )\n\n    def _warn",
        "            ceiling=1.0,\n        )\n\n    def _warn",
        "risk/test_constraint.py::test_the_multiplier_can_pass_1",
    ),
    row(
        "the multiplier moves during the warm-up",
        CONSTRAINT,
        "if self.updates >= config.warmup:",
        "if True:",
        "risk/test_constraint.py::test_nothing_but_the_tail_is_watched_during_the_warm_up",
    ),
    row(
        "the worst tail is called the mildest",
        CONSTRAINT,
        "self.best = max(self.best, measured)",
        "self.best = min(self.best if self.updates else 0.0, measured)",
        "risk/test_constraint.py::test_a_limit_that_cannot_be_met_is_said_once_with_the_best_tail_and_training_goes_on",
    ),
    row(
        "G6 the multiplier is not in the checkpoint",
        CONSTRAINT,
        'for name in ("multiplier", "integral"',
        'for name in ("integral"',
        "risk/test_constraint.py::test_a_checkpoint_holds_multipliers_tails_pools_and_units",
    ),
    row(
        "a resumed run has forgotten its constraints",
        PPO,
        '            self.risk_control.load_state_dict(state["risk"])\n',
        "            pass\n",
        "sb3/test_resume.py::test_a_run_that_was_stopped_equals_one_that_was_not_bit_for_bit[two constraints]",
    ),
    row(
        "a file forgets risk=",
        "algorithm/checkpoint",
        '"critic_learning_rate", "vgs", "risk",',
        '"critic_learning_rate", "vgs",',
        "sb3/test_checkpoint_files.py::test_a_file_holds_every_argument_but_those_that_load_gives_itself",
    ),
    # Who learns from it
    row(
        "A3 the critic's own tail is pushed",
        LOSSES,
        "loss = loss + weights.risk_weight * heads",
        "loss = loss + weights.risk_weight * heads - 0.1 * total(policy.distribution(evaluation.values).cvar(0.05))",
        WHO_LEARNS,
    ),
    row(
        "A3 the constraint's gradient is blocked",
        CONSTRAINT,
        "advantages / (1.0 + weights) + risk_part, risk_part,",
        "advantages, risk_part,",
        WHO_LEARNS,
    ),
    row(
        "the cost critic trains the critic's features",
        "networks/risk_heads",
        "        latent = latent.detach()\n        return RiskOutputs",
        "        return RiskOutputs",
        "engine/test_gradient_matrix.py::test_each_term_reaches_its_own_parameters_and_no_others[separate-gaussian]",
    ),
    row(
        "the cost critic receives no gradient",
        LOSSES,
        "costs: Tensor = (evaluation.risk.costs - ",
        "costs: Tensor = (evaluation.risk.costs.detach() - ",
        "engine/test_gradient_matrix.py::test_each_term_reaches_its_own_parameters_and_no_others[separate-gaussian]",
    ),
    row(
        "the step head learns the reward",
        CONSTRAINT,
        "ahead = ((columns.step_returns - mean) / std)",
        "ahead = ((buffer.rewards - mean) / std)",
        "risk/test_constraint.py::test_the_step_head_learns_from_the_risk_variable_in_its_own_unit",
    ),
    row(
        "the unit of a risk head changes and its predictions with it",
        CONSTRAINT,
        "        rescale_heads([head], old, new)\n",
        "        pass\n",
        "risk/test_constraint.py::test_heads_keep_their_predictions_when_their_unit_changes",
    ),
    row(
        "weights from elsewhere are read in the old unit",
        "algorithm/checkpoint",
        "        units += model.risk_control.units()\n",
        "        pass\n",
        "risk/test_constraint.py::test_weights_of_another_model_bring_the_units_of_their_risk_heads",
    ),
    row(
        "measuring a risk changes the first weights",
        "networks/policy",
        "with torch.random.fork_rng(devices=()):",
        "with torch.random.fork_rng(enabled=False):",
        MEASURED_ONLY,
    ),
    row(
        "looking at the pull of no constraint draws dropout",
        PPO,
        "risk_part=targets.risk.risk_part if acting else None",
        "risk_part=targets.risk.risk_part",
        MEASURED_ONLY,
    ),
    # The deployed policy
    row(
        "deployed envs are in the policy's loss",
        LOSSES,
        "return _total(values if rows.exploring is None else values.masked_fill(~rows.exploring, 0.0), rows)",
        "return _total(values, rows)",
        QUIET,
    ),
    row(
        "deployed envs are in the advantage's statistics",
        "algorithm/targets",
        "mask = None if quiet is None else (~quiet).expand_as(raw)",
        "mask = None",
        EQUATIONS,
    ),
    row(
        "deployed envs explore",
        "networks/policy",
        "action = torch.where(deployed.unsqueeze(-1), self.action_head.mode(parameters), action)",
        "pass",
        QUIET,
    ),
    row(
        "the tail of a limit on the deployed policy is that of all envs",
        CONSTRAINT,
        "self.bound.add(values[:, deployed][known[:, deployed]])",
        "self.bound.add(values[known])",
        QUIET,
    ),
    row(
        "the tail of the exploring policy is that of all envs",
        CONSTRAINT,
        "self.learning.add(values[:, ~deployed][known[:, ~deployed]])",
        "self.learning.add(values[known])",
        EQUATIONS,
    ),
    row(
        "the price of a loss is that of envs without noise",
        CONSTRAINT,
        'self.learning = _Pool(needed) if config.binds == "deployed" else self.bound',
        "self.learning = self.bound",
        EQUATIONS,
    ),
    row(
        "one env is measured on and learned from",
        CONSTRAINT,
        "        if n_envs < 2:\n",
        "        if False:\n",
        VARIABLE,
    ),
    row(
        "deployed envs are in the measured pull",
        "algorithm/update",
        "pull = loss.masked_fill(~rows.learned, 0.0).sum()",
        "pull = loss.masked_fill(~rows.mask, 0.0).sum()",
        QUIET,
    ),
]
