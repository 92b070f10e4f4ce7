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
        "            steps.append(step)\n",
        "            steps.append(step)\n            buffer.store_memory(t, step.memory)\n",
        "ratio.py",
    ),
    row(
        "N4 values from a second forward pass",
        "rollout/collector",
        "            steps.append(step)\n",
        "            again = self.policy.critic_latent(observation, step.memory)\n"
        "            steps.append(step._replace(critic_latent=again))\n",
        "rollout.py",
    ),
    row(
        "A8 final observations are mixed up",
        "rollout/collector",
        "*(latent for _, _, latent in finals)",
        "*(latent for _, _, latent in reversed(finals))",
        "rollout.py",
    ),
    row(
        "A8 a time limit is valued with the memory before its step",
        "rollout/collector",
        "self._look_at_finals(truncated, infos, step.memory, t)",
        "self._look_at_finals(truncated, infos, memory, t)",
        "rollout.py",
    ),
    row(
        "A8 a time limit's final observation is fed twice",
        "rollout/collector",
        "        return self.policy.critic_latent(seen, ",
        "        memory = self.policy.advance(seen.unsqueeze(0), tuple(part[:, envs] for part in memory))\n"
        "        envs = list(range(len(envs)))\n        return self.policy.critic_latent(seen, ",
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
        "            if self.starts.any():\n",
        "            if False:\n",
        "sequences.py",
    ),
    row(
        "A-FP3 one env's end makes all of them forget",
        "rollout/collector",
        "memory = forget(memory, torch.as_tensor(self.starts, device=device))\n            masks",
        "memory = forget(memory, torch.as_tensor(self.starts | self.starts.any(), device=device))\n            masks",
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
        "bounds = [0, *edges.tolist(), len(order)]",
        "bounds = [0, *edges.tolist()] if len(edges) else [0, len(order)]",
        "sequences.py",
    ),
    row(
        "burn-in counts in the loss",
        "rollout/sequences",
        "mask = torch.as_tensor((clock >= context) & (clock < lengths), device=device)",
        "mask = torch.as_tensor(clock < lengths, device=device)",
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
        "return values.masked_fill(~mask, 0.0)",
        "return values",
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
        "return CriticEvaluation(self._values(latent), ",
        "return CriticEvaluation(self._values(latent).detach().requires_grad_(), ",
        "gradient_matrix.py",
    ),
    row(
        "N1 the critic's memory receives no gradient",
        "networks/policy",
        "        latent, _ = self._critic_latent(features, memory, actor_hidden)\n",
        "        latent = self._critic_latent(features, memory, actor_hidden)[0].detach()\n",
        "gradient_matrix.py",
    ),
    row(
        "N1 a shared memory is trained by the critic",
        "networks/policy",
        "return actor_hidden if through_shared_memory else actor_hidden.detach(), ()",
        "return actor_hidden, ()",
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
        "return bool(torch.isfinite(loss.detach() + rows.real(policy.log_ratio).sum()))",
        "return bool(torch.isfinite(loss))",
        "update.py",
    ),
    row(
        "A6 one half learns from a minibatch in which the other is not finite",
        "algorithm/update",
        "        finite = policy_is_finite and value_is_finite\n        if not finite:",
        "        finite = policy_is_finite and value_is_finite\n        if False:",
        "update.py",
    ),
    row(
        "A6 a skipped micro-batch takes the gradients of those before it along",
        "algorithm/update",
        "None if p.grad is None else p.grad.clone() for p",
        "None for p",
        "update.py",
    ),
    row(
        "lanes: two threads on a shared extractor",
        "networks/policy",
        "return not (self.shared_lstm or shared_extractor)",
        "return not self.shared_lstm",
        "lanes.py",
    ),
    row(
        "lanes: random numbers drawn by two threads at once",
        "algorithm/update",
        'policy.device.type == "cpu" and not self.drops_out',
        'policy.device.type == "cpu"',
        "lanes.py",
    ),
    row(
        "lanes: the update goes on while one is running",
        "algorithm/lanes",
        "            wait([running])",
        "            pass",
        "lanes.py",
    ),
    row(
        "lanes: torch is left with half of its threads",
        "algorithm/lanes",
        "    finally:\n        torch.set_num_threads(threads)",
        "    finally:\n        pass",
        "lanes.py",
    ),
    row(
        "lanes: one after the other on two threads",
        "algorithm/lanes",
        "running = self.other.submit(first)",
        "running = self.other.submit(first)\n        wait([running])",
        "lanes.py",
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
