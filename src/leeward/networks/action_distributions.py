"""Action heads: raw tensor operations, noise as an argument, parametrised and initialised as Stable-Baselines3 does.

A head turns a latent into flat parameters (..., P); everything else is a function of those parameters, so that the
rollout can store them and the update can compare old with new. What is stored as *the action* (`sample`, `log_prob`)
is the head's own form, float32 (..., A): the pre-squash sample u for a squashed Gaussian. `to_env` turns it into what
the env takes. Log-probability, entropy and KL are joint over the action dimensions: (...).
"""

import math
from typing import ClassVar

import torch
from gymnasium import spaces
from torch import Tensor, nn

from leeward.errors import ArgumentError, EnvironmentFault, ShapeError
from leeward.maths import squashed

__all__ = [
    "ActionHead",
    "BernoulliHead",
    "CategoricalHead",
    "GaussianHead",
    "MultiCategoricalHead",
    "SquashedGaussianHead",
    "SquashedStateDependentHead",
    "StateDependentHead",
    "make_action_head",
]

_LOG_2PI = math.log(2.0 * math.pi)
# Far below any logit a network gives, far above float32's limit: a masked action has probability exactly 0.
_MASKED = -1e8
# A squashed action at its bound stands for u = ±∞; this one stands for u = ±4.95.
_NEAR_EDGE = 1.0 - 1e-4


class ActionHead(nn.Module):
    """What the heads share. `noise_kind` and `noise_shape` say which noise one step of one env needs."""

    noise_kind: ClassVar[str] = "normal"
    action_size: int
    noise_shape: tuple[int, ...]
    net: nn.Linear

    @property
    def parameter_size(self) -> int:
        return self.net.out_features

    @property
    def choices(self) -> list[int]:
        """How many choices each action dimension has: the layout of an action mask. Empty = none can be taken."""
        return []

    def forward(self, latent: Tensor, action_masks: Tensor | None = None) -> Tensor:  # (..., H) -> (..., P)
        parameters: Tensor = self.net(latent)
        if action_masks is None:
            return parameters
        return parameters.masked_fill(~action_masks, _MASKED)

    def act(self, latent: Tensor, noise: Tensor | None, action_masks: Tensor | None) -> tuple[Tensor, Tensor]:
        """Parameters and the action; the most likely one when `noise` is None."""
        parameters = self(latent, action_masks)
        return parameters, self.mode(parameters) if noise is None else self.sample(parameters, noise)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        raise NotImplementedError

    def mode(self, parameters: Tensor) -> Tensor:
        raise NotImplementedError

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        raise NotImplementedError

    def entropy(self, parameters: Tensor) -> Tensor:
        raise NotImplementedError

    def joint_entropy(self, parameters: Tensor) -> Tensor:  # (..., P) -> (...)
        """`entropy`, which a head must give joint over the action's dimensions: one that does not is refused."""
        entropy = self.entropy(parameters)
        if entropy.shape != parameters.shape[:-1]:
            raise ShapeError(
                "the entropy must be joint over the action's dimensions, one number per step: expected "
                f"{tuple(parameters.shape[:-1])}, got {tuple(entropy.shape)} from {type(self).__name__}"
            )
        return entropy

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        """KL(old ‖ new) in closed form."""
        raise NotImplementedError

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def from_env(self, action: Tensor) -> Tensor:  # (..., *action_space.shape) -> (..., A)
        """The head's own form of what an env takes: `to_env` backwards."""
        raise NotImplementedError


def _sample_choice(logs: Tensor, noise: Tensor) -> Tensor:  # (..., K), (..., 1) -> (..., 1)
    """The inverse of the distribution function at a uniform number."""
    # Divided by the sum as it came out: rounded below 1, it would leave the last action a chance even when masked.
    cumulative = logs.exp().cumsum(-1)
    edges = cumulative[..., :-1] / cumulative[..., -1:]  # the last edge is 1
    return (noise >= edges).sum(-1, keepdim=True).to(logs.dtype)


def _log_prob_choice(logs: Tensor, action: Tensor) -> Tensor:  # (..., K), (..., 1) -> (...)
    return logs.gather(-1, action.long()).squeeze(-1)


def _entropy_choice(logs: Tensor) -> Tensor:  # (..., K) -> (...)
    return -(logs.exp() * logs).sum(-1)


def _kl_choice(old: Tensor, new: Tensor) -> Tensor:  # (..., K) -> (...)
    return (old.exp() * (old - new)).sum(-1)


class CategoricalHead(ActionHead):
    """One discrete action; the parameters are the log-probabilities of its choices."""

    noise_kind: ClassVar[str] = "uniform"

    def __init__(self, space: spaces.Discrete, latent: int) -> None:
        super().__init__()
        self.net = nn.Linear(latent, int(space.n))
        self.first = int(space.start)
        self.action_size, self.noise_shape = 1, (1,)

    @property
    def choices(self) -> list[int]:
        return [self.net.out_features]

    def forward(self, latent: Tensor, action_masks: Tensor | None = None) -> Tensor:
        return super().forward(latent, action_masks).log_softmax(-1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return _sample_choice(parameters, noise)

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.argmax(-1, keepdim=True).to(parameters.dtype)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return _log_prob_choice(parameters, action)

    def entropy(self, parameters: Tensor) -> Tensor:
        return _entropy_choice(parameters)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        return _kl_choice(old, new)

    def to_env(self, action: Tensor) -> Tensor:
        return action.squeeze(-1).long() + self.first

    def from_env(self, action: Tensor) -> Tensor:
        return (action - self.first).unsqueeze(-1).float()


class MultiCategoricalHead(ActionHead):
    """Several independent discrete actions, the log-probabilities of their choices side by side."""

    noise_kind: ClassVar[str] = "uniform"
    first: Tensor

    def __init__(self, space: spaces.MultiDiscrete, latent: int) -> None:
        super().__init__()
        if space.nvec.ndim != 1:
            raise EnvironmentFault(f"MultiDiscrete actions need one axis, got nvec of shape {space.nvec.shape}")
        self.sizes = [int(n) for n in space.nvec]
        self.net = nn.Linear(latent, sum(self.sizes))
        self.register_buffer("first", torch.as_tensor(space.start, dtype=torch.long), persistent=False)
        self.action_size, self.noise_shape = len(self.sizes), (len(self.sizes),)

    @property
    def choices(self) -> list[int]:
        return self.sizes

    def forward(self, latent: Tensor, action_masks: Tensor | None = None) -> Tensor:
        logits = self._split(super().forward(latent, action_masks))
        return torch.cat([each.log_softmax(-1) for each in logits], -1)

    def _split(self, parameters: Tensor) -> tuple[Tensor, ...]:
        pieces: tuple[Tensor, ...] = parameters.split(self.sizes, -1)
        return pieces

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        pieces = zip(self._split(parameters), noise.split(1, -1), strict=True)
        return torch.cat([_sample_choice(logs, uniform) for logs, uniform in pieces], -1)

    def mode(self, parameters: Tensor) -> Tensor:
        return torch.stack([logs.argmax(-1) for logs in self._split(parameters)], -1).to(parameters.dtype)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        pieces = zip(self._split(parameters), action.split(1, -1), strict=True)
        return torch.stack([_log_prob_choice(logs, chosen) for logs, chosen in pieces], -1).sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        return torch.stack([_entropy_choice(logs) for logs in self._split(parameters)], -1).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        pieces = zip(self._split(old), self._split(new), strict=True)
        return torch.stack([_kl_choice(before, after) for before, after in pieces], -1).sum(-1)

    def to_env(self, action: Tensor) -> Tensor:
        return action.long() + self.first

    def from_env(self, action: Tensor) -> Tensor:
        return (action - self.first).float()


class BernoulliHead(ActionHead):
    """Independent on/off actions."""

    noise_kind: ClassVar[str] = "uniform"

    def __init__(self, space: spaces.MultiBinary, latent: int) -> None:
        super().__init__()
        if not isinstance(space.n, int):
            raise EnvironmentFault(f"MultiBinary actions need one axis, got shape {space.shape}")
        self.net = nn.Linear(latent, space.n)
        self.action_size, self.noise_shape = space.n, (space.n,)

    @property
    def choices(self) -> list[int]:
        return [2] * self.action_size

    def forward(self, latent: Tensor, action_masks: Tensor | None = None) -> Tensor:
        parameters: Tensor = self.net(latent)
        if action_masks is None:
            return parameters
        off, on = action_masks.unflatten(-1, (self.action_size, 2)).unbind(-1)
        return parameters.masked_fill(~on, _MASKED).masked_fill(~off, -_MASKED)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        return (noise < parameters.sigmoid()).to(parameters.dtype)

    def mode(self, parameters: Tensor) -> Tensor:
        return (parameters > 0).to(parameters.dtype)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        return -nn.functional.binary_cross_entropy_with_logits(parameters, action, reduction="none").sum(-1)

    def entropy(self, parameters: Tensor) -> Tensor:
        # H(p) = softplus(x) − x·sigmoid(x), with p = sigmoid(x)
        return (nn.functional.softplus(parameters) - parameters * parameters.sigmoid()).sum(-1)

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        p = old.sigmoid()
        on = nn.functional.logsigmoid(old) - nn.functional.logsigmoid(new)
        off = nn.functional.logsigmoid(-old) - nn.functional.logsigmoid(-new)
        return (p * on + (1.0 - p) * off).sum(-1)

    def to_env(self, action: Tensor) -> Tensor:
        return action.to(torch.int8)

    def from_env(self, action: Tensor) -> Tensor:
        return action.float()


class GaussianHead(ActionHead):
    """Diagonal Gaussian with one learned log standard deviation per action; parameters are mean ‖ log std.

    The env receives the action clipped to its bounds; the unclipped one is what is learned from, as in SB3.
    `log_scale` anneals exploration: it is added to the learned log std, and changes between updates only.
    """

    log_scale: Tensor
    low: Tensor
    high: Tensor
    middle: Tensor
    half_range: Tensor

    def __init__(self, space: spaces.Box, latent: int, log_std_init: float) -> None:
        super().__init__()
        self.action_size = math.prod(space.shape)
        self.noise_shape = (self.action_size,)
        self.shape = space.shape
        self.net = nn.Linear(latent, self.action_size)
        self.log_std = nn.Parameter(torch.full((self.action_size,), float(log_std_init)))
        self.register_buffer("log_scale", torch.zeros(()))
        self.register_buffer("low", torch.as_tensor(space.low, dtype=torch.float32).flatten(), persistent=False)
        self.register_buffer("high", torch.as_tensor(space.high, dtype=torch.float32).flatten(), persistent=False)
        self.register_buffer("middle", 0.5 * (self.high + self.low), persistent=False)
        self.register_buffer("half_range", 0.5 * (self.high - self.low), persistent=False)

    @property
    def parameter_size(self) -> int:
        return 2 * self.action_size

    def forward(self, latent: Tensor, action_masks: Tensor | None = None) -> Tensor:
        mean: Tensor = self.net(latent)
        return torch.cat([mean, (self.log_std + self.log_scale).expand_as(mean)], -1)

    def sample(self, parameters: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        return torch.addcmul(mean, log_std.exp(), noise)

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[0]

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        z = (action - mean) * (-log_std).exp()
        return (-0.5 * z.square() - log_std).sum(-1) - 0.5 * _LOG_2PI * self.action_size

    def entropy(self, parameters: Tensor) -> Tensor:
        return parameters.chunk(2, -1)[1].sum(-1) + 0.5 * (1.0 + _LOG_2PI) * self.action_size

    def kl(self, old: Tensor, new: Tensor) -> Tensor:
        (mean, log_std), (new_mean, new_log_std) = old.chunk(2, -1), new.chunk(2, -1)
        shift = (mean - new_mean).square() * (-2.0 * new_log_std).exp()
        spread = 2.0 * (log_std - new_log_std)
        # Neither part is ever negative, and a tiny one is not lost in the rounding of larger numbers.
        return 0.5 * (shift + (spread.expm1() - spread)).sum(-1)

    def to_env(self, action: Tensor) -> Tensor:
        clipped = torch.minimum(torch.maximum(action, self.low), self.high)
        return clipped.reshape(*action.shape[:-1], *self.shape)

    def from_env(self, action: Tensor) -> Tensor:
        return action.float().reshape(*action.shape[: action.ndim - len(self.shape)], self.action_size)


class _Squashed(GaussianHead):
    """tanh of a Gaussian, stretched to the bounds: every action is inside, and none is hidden by a clip."""

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        return squashed.log_prob(action, mean, log_std, self.half_range)

    def entropy(self, parameters: Tensor) -> Tensor:
        mean, log_std = parameters.chunk(2, -1)
        return squashed.entropy(mean, log_std, self.half_range)

    def to_env(self, action: Tensor) -> Tensor:
        inside = torch.addcmul(self.middle, self.half_range, action.tanh())
        return inside.reshape(*action.shape[:-1], *self.shape)

    def from_env(self, action: Tensor) -> Tensor:
        inside = (super().from_env(action) - self.middle) / self.half_range
        return inside.clamp(-_NEAR_EDGE, _NEAR_EDGE).atanh()


class SquashedGaussianHead(_Squashed):
    """A squashed diagonal Gaussian; the stored action is the pre-squash sample."""


class StateDependentHead(GaussianHead):
    """gSDE (Raffin et al. 2022, arXiv:2005.05719): noise = φ(s)·(Σ ⊙ ε), with ε held for several steps.

    The marginal of one step is N(mean, φ² σ²), and that is what log-prob, entropy and KL use, as SB3 does; φ carries no
    gradient.
    """

    _EPSILON: ClassVar[float] = 1e-6

    def __init__(self, space: spaces.Box, latent: int, log_std_init: float, full_std: bool, use_expln: bool) -> None:
        super().__init__(space, latent, log_std_init)
        width = self.action_size if full_std else 1
        self.log_std = nn.Parameter(torch.full((latent, width), float(log_std_init)))
        self.noise_shape = (latent, self.action_size)
        self.use_expln = use_expln

    def std(self) -> Tensor:  # (H, A)
        log_std = self.log_std + self.log_scale
        if self.use_expln:  # exp below 0, slow logarithmic growth above
            above = (log_std.clamp(min=0.0) + self._EPSILON).log1p() + 1.0
            std = torch.where(log_std <= 0, log_std.clamp(max=0.0).exp(), above)
        else:
            std = log_std.exp()
        return std.expand(-1, self.action_size)

    def forward(self, latent: Tensor, action_masks: Tensor | None = None) -> Tensor:
        mean: Tensor = self.net(latent)
        variance = latent.detach().square() @ self.std().square()
        return torch.cat([mean, 0.5 * (variance + self._EPSILON).log()], -1)

    def act(self, latent: Tensor, noise: Tensor | None, action_masks: Tensor | None) -> tuple[Tensor, Tensor]:
        parameters = self(latent)
        if noise is None:
            return parameters, self.mode(parameters)
        wiggle = torch.bmm(latent.unsqueeze(1), self.std() * noise).squeeze(1)  # (B, A)
        return parameters, self.mode(parameters) + wiggle


class SquashedStateDependentHead(_Squashed, StateDependentHead):
    """gSDE through tanh (`squash_output=True`)."""


def make_action_head(
    space: spaces.Space[object],
    latent: int,
    *,
    action_distribution: str,
    log_std_init: float,
    use_sde: bool,
    full_std: bool,
    use_expln: bool,
    squash_output: bool,
) -> ActionHead:
    """The head for an action space; an unsupported space is an error that names it."""
    if isinstance(space, spaces.Box):
        if (squash_output or action_distribution == "squashed") and not space.is_bounded():
            raise ArgumentError(f"squashing needs finite bounds, got {space}; use action_distribution='gaussian'")
        if use_sde:
            squashes = squash_output or action_distribution == "squashed"
            state_dependent = SquashedStateDependentHead if squashes else StateDependentHead
            return state_dependent(space, latent, log_std_init, full_std, use_expln)
        heads = {"gaussian": GaussianHead, "squashed": SquashedGaussianHead}
        return heads[action_distribution](space, latent, log_std_init)
    if isinstance(space, spaces.Discrete):
        return CategoricalHead(space, latent)
    if isinstance(space, spaces.MultiDiscrete):
        return MultiCategoricalHead(space, latent)
    if isinstance(space, spaces.MultiBinary):
        return BernoulliHead(space, latent)
    raise EnvironmentFault(f"actions must be Discrete, MultiDiscrete, MultiBinary or Box, got {space}")
