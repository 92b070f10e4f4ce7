"""The bare network of a model: the least that training it could cost.

The run's own modules, all memories, MLPs and heads: forward for every step of the rollout, the critics' MLPs for all
of them at once; then for every minibatch forward and backward of the summed outputs, and Adam. No loss, no env, no
targets, no metrics. Threads are used as the model uses them: one for the actor, one for the critics, if it has two.
"""

import torch
from torch import Tensor, nn

from leeward import DistributionalPPO
from leeward.algorithm.two_threads import two_threads
from leeward.networks.lstm import Recurrence


class BareNetwork:
    """`collect` and `train`, one rollout each, of the size of `model`'s."""

    def __init__(self, model: DistributionalPPO, n_envs: int) -> None:
        assert model.batch_size is not None
        self.policy, self.n_envs, self.n_steps, self.n_epochs = model.policy, n_envs, model.n_steps, model.n_epochs
        self.length = model.engine.plan(None).sequence_length
        self.sequences = model.batch_size // self.length
        self.minibatches = n_envs * self.n_steps // model.batch_size
        self.side_by_side, self.worth = model.engine.updater.side_by_side, model._minibatches_are_work()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=1e-12, fused=True)
        self.features = self.policy.actor_extractor.features_dim

    def round(self) -> None:
        with two_threads(wanted=self.side_by_side, worth=self.worth) as self.threads:
            self.collect()
            self.train()

    @torch.no_grad()
    def collect(self) -> None:
        seen, memory = torch.randn(1, self.n_envs, self.features), self.policy.initial_memory(self.n_envs)
        read = []
        for _ in range(self.n_steps):
            hidden, first = self._remember(self.policy.actor_memory, seen, memory)
            self._act(hidden)
            if not self.policy.shared_lstm:
                hidden, second = self._remember(self.policy.critic_memory, seen, memory[len(first) :])
                first += second
            read.append(hidden)
            memory = first
        self._judge(torch.cat(read))

    def train(self) -> None:
        seen = torch.randn(self.length, self.sequences, self.features)
        memory = self.policy.initial_memory(self.sequences)
        for _ in range(self.n_epochs * self.minibatches):
            self.optimizer.zero_grad(set_to_none=True)
            self._backward(seen, memory)
            self.optimizer.step()

    def _backward(self, seen: Tensor, memory: tuple[Tensor, ...]) -> None:
        policy = self.policy
        if policy.shared_lstm:
            hidden, _ = self._remember(policy.actor_memory, seen, memory)
            self.threads.run_both(lambda: self._act(hidden).backward(), lambda: self._judge(hidden.detach()).backward())
            return
        parts = 0 if policy.actor_memory is None else policy.actor_memory.parts
        self.threads.run_both(
            lambda: self._act(self._remember(policy.actor_memory, seen, memory)[0]).backward(),
            lambda: self._judge(self._remember(policy.critic_memory, seen, memory[parts:])[0]).backward(),
        )

    def _remember(
        self, memory: Recurrence | None, seen: Tensor, before: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """What the layers after a memory read, and the memory's state after it."""
        if memory is None:
            return seen, ()
        hidden, after = memory(seen, before[: memory.parts])
        return hidden, after

    def _act(self, latent: Tensor) -> Tensor:
        net = self.policy.action_head.net
        assert isinstance(net, nn.Module)
        total: Tensor = net(self.policy.actor_mlp(latent)).sum()
        return total

    def _judge(self, latent: Tensor) -> Tensor:
        heads = zip(self.policy.critic_mlps, self.policy.value_heads, strict=True)
        return torch.stack([head(mlp(latent)).sum() for mlp, head in heads]).sum()
