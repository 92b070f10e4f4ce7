"""Keeps the critic's unit in step with the returns: PopArt for linear heads, a moving support for a categorical one.

Both happen between a rollout and its update, and both are measured: how far did decoded values move?
"""

import numpy as np
import torch
from torch import Tensor, nn

from leeward.algorithm.peers import ALONE, Peers
from leeward.algorithm.return_scale import ReturnScale, rescale_heads
from leeward.algorithm.support import fitting_support, marginal_logits, needs_move, refit_head
from leeward.maths import categorical, diagnostics
from leeward.maths.nested import map_observation
from leeward.networks.policy import DistributionalPolicy
from leeward.networks.value_heads import CategoricalCritic, QuantileCritic
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.sequences import cut, minibatches

__all__ = ["CriticScale"]


class CriticScale:
    """Owns the statistics of the return; the policy's buffers hold what predictions need of them."""

    def __init__(self, policy: DistributionalPolicy, sequence_length: int, burn_in: int) -> None:
        self.policy, self.sequence_length, self.burn_in = policy, sequence_length, burn_in
        self.returns = ReturnScale()
        # The unit the last rollout's raw values are in.
        self.rollout_scale = (0.0, 1.0)
        self.rollout_support: Tensor | None = None

    @torch.no_grad()
    def follow(self, targets: Tensor, buffer: RolloutBuffer, peers: Peers = ALONE) -> dict[str, float]:
        """Take in a rollout's targets, of all processes, and change the unit; what the critics predict stays."""
        policy, critic = self.policy, self.policy.critic
        first = map_observation(lambda x: x[0], buffer.observations)
        every_env = torch.arange(buffer.shape[1], device=buffer.starts.device)
        memory = buffer.memory_before(torch.zeros_like(every_env), every_env)
        before = policy.pessimistic(policy.values(first, memory))
        known = self.returns.rollouts > 0  # before the first rollout there is no prediction to keep
        self.returns.update(targets, peers)
        new = self.returns.mean, self.returns.std
        self.rollout_scale = (float(policy.return_mean), float(policy.return_std)) if known else new
        extreme = float(targets.abs().max()) / self.returns.std
        metrics = {
            "train/ret_mean": self.returns.mean,
            "train/ret_std": self.returns.std,
            "train/value_target_scale": 1.0 / self.returns.std,
            "warn/excessive_return_scaling": float(extreme > 100.0),
            "warn/ret_std_triggering_scaling": self.returns.std if extreme > 100.0 else 0.0,
        }
        if isinstance(critic, CategoricalCritic):
            everybody = peers.columns(targets)
            if not known:
                self._first_support(critic, everybody, buffer)
            self.rollout_support = critic.support.clone()
            metrics["train/support_outside_fraction"] = float(categorical.outside_fraction(everybody, critic.support))
            if needs_move(everybody, critic.support):
                if peers.rank == 0:  # a fit to steps of its own, so that of one process holds for all
                    self._move_support(critic, everybody, buffer)
                peers.broadcast([critic.support, *policy.value_heads.parameters()])
        elif known:
            rescale_heads(policy.value_heads, self.rollout_scale, new)
        policy.return_mean.fill_(new[0])
        policy.return_std.fill_(new[1])
        if known:
            after = policy.pessimistic(policy.values(first, memory))
            metrics["train/popart_max_shift"] = float((after - before).abs().max())
        if isinstance(critic, QuantileCritic):
            metrics["train/quantile_crossing_rate"] = float(diagnostics.crossing_rate(buffer.raw_values))
        return metrics

    def _first_support(self, critic: CategoricalCritic, targets: Tensor, buffer: RolloutBuffer) -> None:
        """Before the first rollout nothing is known of the return: the heads start from its marginal distribution."""
        critic.support.copy_(fitting_support(targets, critic.outputs))
        start = marginal_logits(targets, critic.support)
        for c, head in enumerate(self.policy.value_heads):
            assert isinstance(head, nn.Linear)
            # What the rollout predicted is said anew in these terms, so that a value clip compares like with like.
            buffer.raw_values[..., c, :] += start - head.bias
            head.bias.copy_(start)

    @torch.no_grad()
    def recentre(self, targets: Tensor, buffer: RolloutBuffer, peers: Peers = ALONE) -> dict[str, float]:
        """Solve each head's intercept: add the mean residual of the rollout to its bias.

        While a policy improves, returns drift by a good part of σ per update, and a bias moves by one learning rate per
        step. A head left to follow by gradient alone does so through the memory, which saturates and forgets the state.
        The mean residual is the minimiser of the squared error in this one number; all that depends on the state, and
        the shape of the distribution, is learned by the distributional loss.
        """
        if isinstance(self.policy.critic, CategoricalCritic) or self.returns.rollouts < 2:
            return {}
        predicted = self.policy.critic.means(buffer.raw_values, *self.rollout_scale)  # (T, B, C)
        residuals = peers.average(targets.mean() - predicted.mean((0, 1)))  # (C,)
        for head, residual in zip(self.policy.value_heads, residuals, strict=True):
            assert isinstance(head, nn.Linear)
            head.bias.add_(residual / self.returns.std)
        return {"train/value_intercept_step": float(residuals.abs().max())}

    def _move_support(self, critic: CategoricalCritic, targets: Tensor, buffer: RolloutBuffer) -> None:
        """Refit every head to its own re-projected predictions on about 4,096 steps of the rollout."""
        old, new = critic.support.clone(), fitting_support(targets, critic.outputs)
        sequences = cut(buffer.starts.cpu().numpy(), self.sequence_length, self.burn_in)
        batch = next(minibatches(sequences, buffer.shape[1], 4096, np.random.default_rng(0), new.device))
        times, envs = (
            torch.as_tensor(x, device=new.device)[batch.sequences] for x in (sequences.times, sequences.envs)
        )
        rows = batch.rows.flatten()
        seen = map_observation(
            lambda x: x.flatten(0, 1)[rows].reshape(*batch.rows.shape, *x.shape[2:]), buffer.observations
        )
        latents = self.policy.value_latents(seen, buffer.memory_before(times, envs))
        for head, latent in zip(self.policy.value_heads, latents, strict=True):
            assert isinstance(head, nn.Linear)
            refit_head(head, latent[batch.mask], old, new)
        critic.support.copy_(new)
