"""Faults of the engine: rollout, networks, targets, update."""

from tools.mutants import Mutant

__all__ = ["MUTANTS"]

SOURCE, TESTS = "src/leeward", "tests/engine"


def row(name: str, file: str, was: str, fault: str, *tests: str) -> Mutant:
    return Mutant(name, f"{SOURCE}/{file}.py", was, fault, tuple(f"{TESTS}/test_{test}" for test in tests))


MUTANTS = [
    # Memory and rollout
    row(
        "N3 the state after the step is stored",
        "rollout/collector",
        "            buffer.starts[t] = starts\n",
        "            buffer.starts[t] = starts\n            buffer.store_memory(t, step.memory)\n",
        "ratio.py",
    ),
    row(
        "N4 values from a second forward pass",
        "rollout/collector",
        "buffer.raw_values[t] = step.values",
        "buffer.raw_values[t] = self.policy.values(observation, step.memory)",
        "rollout.py",
    ),
    row(
        "A8 a time limit is valued with the memory before its step",
        "rollout/collector",
        "self._finals(truncated, infos, step.memory, t)",
        "self._finals(truncated, infos, memory, t)",
        "rollout.py",
    ),
    row(
        "A8 a time limit's final observation is fed twice",
        "rollout/collector",
        "self.policy.values(finals, own)",
        "self.policy.values(finals, self.policy.advance(finals.unsqueeze(0), own))",
        "rollout.py",
    ),
    row(
        "A8 a time limit is valued with another env's memory",
        "rollout/collector",
        "tuple(part[:, envs] for part in memory)",
        "tuple(part[:, : len(envs)] for part in memory)",
        "rollout.py",
    ),
    row(
        "A-FP3 the rollout does not forget at an episode's start",
        "rollout/collector",
        "memory = forget(self.memory, starts) if self.starts.any() else self.memory",
        "memory = self.memory",
        "sequences.py",
    ),
    row(
        "A-FP3 one env's end makes all of them forget",
        "rollout/collector",
        "memory = forget(self.memory, starts) if self.starts.any() else self.memory",
        "memory = forget(self.memory, starts.any().expand_as(starts))",
        "rollout.py",
    ),
    row(
        "A-FP3 sequences run on over an episode's start",
        "rollout/sequences",
        "opens = starts.copy()",
        "opens = np.zeros_like(starts)",
        "sequences.py",
    ),
    row(
        "A-FP3 a sequence at an episode's start keeps the memory before it",
        "rollout/buffer",
        "return forget(gathered, starts)",
        "return gathered",
        "sequences.py",
    ),
    row(
        "N11 an env's noise depends on its place among the others",
        "rollout/noise",
        "generator(seed, env, rollout)",
        "generator(seed, env - first_env, rollout)",
        "rollout.py",
    ),
    row(
        "a shuffled remainder is dropped",
        "rollout/sequences",
        "for chosen in np.split(order, edges):",
        "for chosen in np.split(order, edges)[: max(1, len(edges))]:",
        "sequences.py",
    ),
    row(
        "burn-in counts in the loss",
        "rollout/sequences",
        "mask = (clock >= context) & (clock < lengths)",
        "mask = clock < lengths",
        "sequences.py",
    ),
    row(
        "a masked action is drawn when probabilities round below 1",
        "networks/action_distributions",
        "edges = cumulative[..., :-1] / cumulative[..., -1:]",
        "edges = cumulative[..., :-1]",
        "action_heads.py",
    ),
    # Targets and advantages
    row(
        "A-FP2 value targets bootstrap from the pessimistic critic",
        "algorithm/targets",
        "(FINDINGS A-FP2).\n    successor = policy.distribution(buffer.raw_next_values)",
        "(FINDINGS A-FP2).\n    successor = policy.distribution(buffer.raw_next_values[..., :1, :])",
        "critics.py",
    ),
    row(
        "A-FP2 advantages are not pessimistic",
        "networks/policy",
        "float(self.return_std)).amin(-1)",
        "float(self.return_std)).mean(-1)",
        "critics.py",
    ),
    row(
        "F2 value targets bootstrap from a mean",
        "algorithm/targets",
        "        returns.distributional_targets,\n        rewards,\n        successor.values,",
        "        returns.distributional_targets,\n        rewards,\n"
        "        successor.mean.unsqueeze(-1).expand_as(successor.values),",
        "critics.py",
    ),
    row(
        "E-V1 a minibatch normalises its advantages again",
        "algorithm/losses",
        "        pick(advantages),",
        "        (pick(advantages) - pick(advantages).mean()) / pick(advantages).std(),",
        "critics.py",
    ),
    # Critics
    row(
        "A1 both critics are clipped against the first one's past",
        "algorithm/losses",
        "before = _rows(old, rows.index, rows.mask.shape)",
        "before = _rows(old, rows.index, rows.mask.shape)[..., :1, :].expand_as(values)",
        "critics.py",
    ),
    row(
        "A1 the clipped loss alone counts",
        "algorithm/losses",
        "chosen = torch.maximum(unclipped, clipped)",
        "chosen = clipped",
        "critics.py",
    ),
    row(
        "A1 padded rows count",
        "algorithm/losses",
        "return values.masked_fill(~mask, 0.0).sum((0, 1))",
        "return values.sum((0, 1))",
        "critics.py",
    ),
    row(
        "C3 statistics change and the heads do not",
        "algorithm/critic_scale",
        "            rescale_heads(policy.value_heads, self.rollout_scale, new)",
        "            pass",
        "critics.py",
    ),
    row(
        "C3 old predictions are compared in the rollout's unit",
        "algorithm/losses",
        "old = ((raw_values * scale[1] + scale[0] - mean) / std).flatten(0, 1)",
        "old = raw_values.flatten(0, 1)",
        "critics.py",
    ),
    row(
        "C3 the first rollout is compared in a scale of 0",
        "algorithm/critic_scale",
        "float(policy.return_std)) if known else new",
        "float(policy.return_std))",
        "critics.py",
    ),
    row(
        "a support moves without burn-in",
        "algorithm/critic_scale",
        "cut(buffer.starts.cpu().numpy(), self.sequence_length, self.burn_in)",
        "cut(buffer.starts.cpu().numpy(), self.sequence_length)",
        "critics.py",
    ),
    row(
        "a categorical critic is fitted to what it said before it knew anything",
        "algorithm/critic_scale",
        "            if not known:\n                self._first_support",
        "            if False:\n                self._first_support",
        "closed_forms.py",
    ),
    row(
        "N1 the critics receive no gradient",
        "networks/policy",
        "            self._values(critic_latent),\n",
        "            self._values(critic_latent).detach().requires_grad_(),\n",
        "gradient_matrix.py",
    ),
    row(
        "N1 the critic's memory receives no gradient",
        "networks/policy",
        "return latent, critic_hidden, actor_state + critic_state, hidden, critic_hidden",
        "return latent, critic_hidden.detach(), actor_state + critic_state, hidden, critic_hidden",
        "gradient_matrix.py",
    ),
    row(
        "N1 a shared memory is trained by the critic",
        "networks/policy",
        "return latent, hidden.detach(), actor_state, hidden, None",
        "return latent, hidden, actor_state, hidden, None",
        "gradient_matrix.py",
    ),
    row(
        "C7 the first critic is watched twice",
        "algorithm/update",
        'parts.get(f"critic{i}_mlp", []) + parts[f"critic{i}_head"]',
        'parts.get("critic1_mlp", []) + parts["critic1_head"]',
        "update.py",
    ),
    row(
        "C7 sums of squares for norms",
        "optim/pipeline",
        "groups = (self.members @ squares).sqrt()",
        "groups = self.members @ squares",
        "update.py",
    ),
    # Update
    row(
        "B-perf1 the KL stop acts after the step",
        "algorithm/update",
        "if kl_control.stops(kl_sum / used, self.kl_stop):\n",
        "if kl_control.stops(kl_sum / used, self.kl_stop):\n            optimizer.step()\n",
        "update.py",
    ),
    row(
        "B-perf1 epochs do not recover after a KL stop",
        "algorithm/update",
        "                    stopped_in = epoch\n",
        "                    stopped_in = self.n_epochs = epoch\n",
        "update.py",
    ),
    row(
        "B-fix3 a skipped micro-batch weakens the step",
        "algorithm/update",
        "torch._foreach_mul_(grads, n_real / used)",
        "torch._foreach_mul_(grads, 1.0)",
        "update.py",
    ),
    row(
        "A6 an infinite log-ratio passes",
        "algorithm/update",
        "finite = bool(torch.isfinite(losses.total.detach() + log_ratios))",
        "finite = bool(torch.isfinite(losses.total))",
        "update.py",
    ),
    row(
        "A6 a step on a gradient that is not finite",
        "optim/finite_guard",
        "if bool(torch.isfinite(norm)):",
        "if True:",
        "update.py",
    ),
    row(
        "dropout in a refreshed memory",
        "algorithm/update",
        "        device = self.policy.device\n        self.policy.set_training_mode(False)\n",
        "        device = self.policy.device\n",
        "sequences.py",
    ),
    row(
        "a refreshed memory forgets no episode",
        "algorithm/update",
        "start = forget(tuple(part[:, envs] for part in running), buffer.starts[begin, envs])",
        "start = tuple(part[:, envs] for part in running)",
        "sequences.py",
    ),
    # Schedules and telemetry
    row(
        "C5 the plateau holds the decay for ever",
        "algorithm/entropy",
        "            self.decay_from = progress",
        "            self.decay_from = 1.0",
        "entropy.py",
    ),
    row(
        "B4 the entropy bonus is a penalty",
        "algorithm/losses",
        "- weights.ent_coef * entropy",
        "+ weights.ent_coef * entropy",
        "entropy.py",
    ),
    row(
        "N9 a metric without a registration",
        "algorithm/update",
        'metrics["train/kl_stop_epoch"] = float(stopped_in)',
        'metrics["train/kl_stop"] = float(stopped_in)',
        "metrics.py::test_nothing_is_emitted_that_is_not_registered",
    ),
]
