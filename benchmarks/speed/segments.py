"""A plain PPO with one LSTM for actor and critic, in the form of CleanRL's, as fast as it can be made exact.

CleanRL loops over time and multiplies the memory by (1 − done). Here a minibatch is whole envs whose rollouts are cut
at every reset, each segment from the memory it began with, so that one fused call serves. Scalar critic, no metrics, no
checks, nothing logged: what the least code that learns costs.
"""

import numpy as np
import torch
from torch import Tensor, nn

GAMMA, LAM, CLIP, VALUE, ENTROPY = 0.99, 0.95, 0.2, 0.5, 0.0


class SegmentPPO:
    """`collect` and `train`, one rollout each."""

    def __init__(self, env, *, n_steps: int, batch_size: int, n_epochs: int, lstm: int, net: list[int]) -> None:  # type: ignore[no-untyped-def]
        self.env, self.n_steps, self.n_epochs = env, n_steps, n_epochs
        self.rng = np.random.default_rng(0)
        self.envs_per_batch = max(1, batch_size // n_steps)
        features = env.observation_space.shape[0]
        self.memory = nn.LSTM(features, lstm)
        self.actor, self.critic = (self._mlp(lstm, net, out) for out in (env.action_space.n, 1))
        parts = nn.ModuleList([self.memory, self.actor, self.critic])
        self.parameters = list(parts.parameters())
        self.optimizer = torch.optim.Adam(self.parameters, lr=3e-4, eps=1e-5, fused=True)
        B = env.num_envs
        self.observation = torch.as_tensor(env.reset())
        self.starts = torch.ones(B, dtype=torch.bool)
        self.state = (torch.zeros(1, B, lstm), torch.zeros(1, B, lstm))

    @staticmethod
    def _mlp(width: int, net: list[int], out: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for size in net:
            layers += [nn.Linear(width, size), nn.Tanh()]
            width = size
        return nn.Sequential(*layers, nn.Linear(width, out))

    def round(self) -> None:
        self.collect()
        self.train()

    @torch.no_grad()
    def collect(self) -> None:
        T, B = self.n_steps, self.env.num_envs
        self.observations = torch.empty(T, B, self.observation.shape[-1])
        self.actions = torch.empty(T, B, dtype=torch.int64)
        self.log_probs, values, rewards = (torch.empty(T, B) for _ in range(3))
        self.begins, dones = (torch.empty(T, B, dtype=torch.bool) for _ in range(2))
        self.states = tuple(torch.empty(T, B, self.memory.hidden_size) for _ in range(2))
        for t in range(T):
            keep = (~self.starts).float()[None, :, None]
            self.state = tuple(part * keep for part in self.state)
            for store, part in zip(self.states, self.state, strict=True):
                store[t] = part[0]
            hidden, after = self.memory(self.observation[None], self.state)
            log_probs = self.actor(hidden[0]).log_softmax(-1)
            action = log_probs.exp().multinomial(1)[:, 0]
            self.observations[t], self.actions[t], self.begins[t] = self.observation, action, self.starts
            self.log_probs[t] = log_probs.gather(1, action[:, None])[:, 0]
            values[t] = self.critic(hidden[0])[:, 0]
            seen, reward, done, _ = self.env.step(action.numpy())
            rewards[t], dones[t] = torch.as_tensor(reward), torch.as_tensor(done)
            self.observation, self.starts, self.state = torch.as_tensor(seen), dones[t].clone(), after
        hidden, _ = self.memory(self.observation[None], self.state)
        following, advantage = self.critic(hidden[0])[:, 0], torch.zeros(B)
        self.advantages = torch.empty(T, B)
        for t in reversed(range(T)):
            goes_on = (~dones[t]).float()
            error = rewards[t] + GAMMA * following * goes_on - values[t]
            advantage = error + GAMMA * LAM * goes_on * advantage
            self.advantages[t], following = advantage, values[t]
        self.targets = self.advantages + values

    def train(self) -> None:
        B = self.env.num_envs
        for _ in range(self.n_epochs):
            for chosen in np.array_split(self.rng.permutation(B), max(1, B // self.envs_per_batch)):
                self._step(torch.as_tensor(chosen))

    def _step(self, envs: Tensor) -> None:
        T, B = self.n_steps, self.env.num_envs
        begins = self.begins[:, envs].T.clone()  # (n, T)
        begins[:, 0] = True
        env, time = begins.nonzero(as_tuple=True)
        following = torch.where(
            torch.cat([env[1:] != env[:-1], torch.ones(1, dtype=torch.bool)]), T, torch.cat([time[1:], time[:1]])
        )
        lengths = following - time
        clock = torch.arange(int(lengths.max()))[:, None]
        index = (time + torch.minimum(clock, lengths - 1)) * B + envs[env]  # (L, S), into (T·B)
        mask = clock < lengths

        def pick(table: Tensor) -> Tensor:
            return table.flatten(0, 1)[index][mask]

        before = tuple(part[time, envs[env]][None].contiguous() for part in self.states)
        hidden = self.memory(self.observations.flatten(0, 1)[index], before)[0][mask]  # padding comes last: unseen
        log_probs, values = self.actor(hidden).log_softmax(-1), self.critic(hidden)[:, 0]
        advantages = pick(self.advantages)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        log_prob = log_probs.gather(1, pick(self.actions)[:, None])[:, 0]
        ratio = (log_prob - pick(self.log_probs)).exp()
        surrogate = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        loss = surrogate + VALUE * (values - pick(self.targets)).square().mean() - ENTROPY * entropy
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.optimizer.step()
