"""What a CVaR constraint has to predict, read from the critic's features without training them."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from leeward.networks.mlp import MLP
from leeward.networks.value_distribution import ValueDistribution
from leeward.networks.value_heads import QuantileCritic

__all__ = ["RiskHeads", "RiskOutputs"]


class RiskOutputs(NamedTuple):
    """Raw outputs, each in the unit of its own scale."""

    costs: Tensor  # (..., K), cost-to-go of each constraint
    step: Tensor  # (..., N), quantiles of the next step's risk variable


class RiskHeads(nn.Module):
    """A cost critic for each of K constraints, and the distribution of the risk variable one step ahead.

    Units (mean, standard deviation) follow the rollouts (`algorithm.risk_constraint`): before the first one nothing is
    known, and every prediction is 0.
    """

    cost_means: Tensor
    cost_stds: Tensor

    def __init__(
        self, inputs: int, layers: list[int], activation: type[nn.Module], n_constraints: int, critic: QuantileCritic
    ) -> None:
        super().__init__()
        latent = (layers or [inputs])[-1]
        self.cost_mlp = MLP.of(inputs, layers, activation)
        self.cost_heads = nn.ModuleList(nn.Linear(latent, 1) for _ in range(n_constraints))
        self.step_mlp = MLP.of(inputs, layers, activation)
        self.step_head = nn.Linear(latent, critic.outputs)
        self.step_critic = critic
        self.register_buffer("cost_means", torch.zeros(n_constraints, dtype=torch.float64))
        self.register_buffer("cost_stds", torch.zeros(n_constraints, dtype=torch.float64))

    def gains(self) -> list[tuple[nn.Module, float]]:
        """For orthogonal initialisation, as those of the critics."""
        return [(self.cost_mlp, 2**0.5), (self.step_mlp, 2**0.5), (self.cost_heads, 1.0), (self.step_head, 1.0)]

    def forward(self, latent: Tensor) -> RiskOutputs:  # (..., H), of the critic; it receives no gradient
        latent = latent.detach()
        return RiskOutputs(self._raw_costs(latent), self.step_head(self.step_mlp(latent)))

    def costs(self, latent: Tensor) -> Tensor:  # (..., H) -> (..., K)
        """Predicted cost-to-go of each constraint, in the unit of the cost."""
        raw = self._raw_costs(latent.detach())
        return raw * self.cost_stds.to(raw.dtype) + self.cost_means.to(raw.dtype)

    def step(self, latent: Tensor) -> ValueDistribution:  # (..., H)
        """The distribution of the next step's risk variable, in its unit."""
        raw = self.step_head(self.step_mlp(latent.detach()))
        return self.step_critic.distribution(raw)

    def _raw_costs(self, latent: Tensor) -> Tensor:
        hidden = self.cost_mlp(latent)
        return torch.cat([head(hidden) for head in self.cost_heads], -1)
