"""The bare network of a model: the least that training it could cost.

The run's own modules, all memories, MLPs and heads: forward for every step of the rollout, then for every minibatch
forward and backward of the summed outputs, and Adam. No loss, no env, no targets, no metrics. Threads are used as the
model uses them: one for the actor, one for the critics, if they share nothing.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from leeward import DistributionalPPO
from leeward.algorithm.lanes import lanes


class BareNetwork:
    """`collect_rollouts` and `train`, one rollout each, of the size of `model`'s."""

    def __init__(self, model: DistributionalPPO, n_envs: int) -> None:
        assert model.batch_size is not None
        self.policy, self.n_envs, self.n_steps, self.n_epochs = model.policy, n_envs, model.n_steps, model.n_epochs
        self.length = model.updater.sequence_length if self.policy.cell else 1
        self.sequences = model.batch_size // self.length
        self.minibatches = n_envs * self.n_steps // model.batch_size
        self.side_by_side = model.updater.side_by_side
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-12, fused=True)
        self.features = self.policy.actor_extractor.features_dim

    def round(self) -> None:
        with lanes(wanted=self.side_by_side) as self.halves:
            self.collect_rollouts()
            self.train()

    @torch.no_grad()
    def collect_rollouts(self) -> None:
        seen, memory = torch.randn(self.n_envs, self.features), self.policy.initial_memory(self.n_envs)
        for _ in range(self.n_steps):
            _, _, memory = self._outputs(seen[None], memory)

    def train(self) -> None:
        seen = torch.randn(self.length, self.sequences, self.features)
        memory = self.policy.initial_memory(self.sequences)
        for _ in range(self.n_epochs * self.minibatches):
            self.optimizer.zero_grad(set_to_none=True)
            self._backward(seen, memory)
            self.optimizer.step()

    def _backward(self, seen: Tensor, memory: tuple[Tensor, ...]) -> None:
        if not self.side_by_side:
            actor, critics, _ = self._outputs(seen, memory)
            (actor + critics).backward()
            return
        if self.policy.shared_lstm:
            assert self.policy.actor_memory is not None
            hidden, _ = self.policy.actor_memory(seen, memory)
            self.halves.both(lambda: self._act(hidden).backward(), lambda: self._judge(hidden.detach()).backward())
            return

        def run(half: Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor, tuple[Tensor, ...]]]) -> None:
            half(seen, memory)[0].backward()

        self.halves.both(lambda: run(self._actor), lambda: run(self._critics))

    def _outputs(self, seen: Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Summed outputs of both halves, and the memory after them."""
        policy = self.policy
        if policy.shared_lstm:
            assert policy.actor_memory is not None
            hidden, after = policy.actor_memory(seen, memory)
            return self._act(hidden), self._judge(hidden.detach()), after
        actor, first = self._actor(seen, memory)
        critics, second = self._critics(seen, memory)
        return actor, critics, first + second

    def _actor(self, seen: Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.policy.actor_memory is None:
            return self._act(seen), ()
        hidden, after = self.policy.actor_memory(seen, memory[: self.policy.actor_memory.parts])
        return self._act(hidden), after

    def _critics(self, seen: Tensor, memory: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.policy.critic_memory is None:
            return self._judge(seen), ()
        hidden, after = self.policy.critic_memory(seen, memory[self.policy.critic_memory.parts :])
        return self._judge(hidden), after

    def _act(self, latent: Tensor) -> Tensor:
        net = self.policy.action_head.net
        assert isinstance(net, nn.Module)
        total: Tensor = net(self.policy.actor_mlp(latent)).sum()
        return total

    def _judge(self, latent: Tensor) -> Tensor:
        heads = zip(self.policy.critic_mlps, self.policy.value_heads, strict=True)
        return torch.stack([head(mlp(latent)).sum() for mlp, head in heads]).sum()
