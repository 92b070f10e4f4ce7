"""The network: what computes actions and values, with or without memory.

observation → extractor ─┬→ actor memory  → actor MLP   → action head
                         └→ critic memory → critic MLP i → value head i      (i = 1, 2 with twin critics)

Names and defaults of the arguments are those of sb3_contrib's recurrent policies; `cell`, `normalize_observations` and
the critic's own are ours. Nothing is read back from attributes: `act` and `evaluate` return what they computed.
To ask the critics is to take two steps: `latents(...).critic`, then `values` of it.
"""

import warnings
from typing import Any, NamedTuple, cast

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, FlattenExtractor, NatureCNN
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from leeward.config.settings import Settings
from leeward.errors import ArgumentError
from leeward.maths.nested import Memory, Observation, as_sequence, map_observation, rows_of
from leeward.networks.action_distributions import make_action_head
from leeward.networks.lstm import LayerActivity, Recurrence
from leeward.networks.mlp import MLP, head_behind
from leeward.networks.observation_normaliser import ObservationNormaliser
from leeward.networks.risk_heads import RiskHeads, RiskOutputs
from leeward.networks.value_heads import QuantileCritic, make_critic

__all__ = ["ActorCritic", "ActorEvaluation", "CriticEvaluation", "Evaluation", "Latents", "PolicyStep"]


_STEP_LEVELS = 32  # of the distribution one step ahead


class PolicyStep(NamedTuple):
    """What one step of the rollout needs, and no more: the rest is computed for all its steps at once."""

    action: Tensor  # (B, A), the head's own form: what is stored and learned from
    env_action: Tensor  # (B, ...), what the env takes
    action_parameters: Tensor  # (B, P)
    critic_latent: Tensor  # (B, H), for `values`
    memory: Memory  # after the step


class Latents(NamedTuple):
    """What the heads read on (L, S) steps, and the memory after them."""

    actor: Tensor  # (L, S, H), for the action head
    critic: Tensor  # (L, S, H), for the critics' MLPs and the risk heads
    memory: Memory


class ActorEvaluation(NamedTuple):
    """What the update needs of the actor on (L, S) steps."""

    log_prob: Tensor  # (L, S)
    action_parameters: Tensor  # (L, S, P)
    hidden: Tensor | None  # (L, S, H), output of its memory


class CriticEvaluation(NamedTuple):
    """What the update needs of the critics on (L, S) steps."""

    values: Tensor  # (L, S, C, N), raw
    risk: RiskOutputs | None  # (L, S, ...), raw


class Evaluation(NamedTuple):
    actor: ActorEvaluation
    critic: CriticEvaluation


class ActorCritic(BasePolicy):
    """Actor and distributional critic, with or without memory. `cell=None` means no memory."""

    default_cell: str | None = None
    default_extractor: type[BaseFeaturesExtractor] = FlattenExtractor

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        lr_schedule: Schedule,
        net_arch: list[Any] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool = True,
        use_sde: bool = False,
        log_std_init: float = 0.0,
        full_std: bool = True,
        use_expln: bool = False,
        squash_output: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        features_extractor_kwargs: dict[str, Any] | None = None,
        share_features_extractor: bool = True,
        normalize_images: bool = True,
        optimizer_class: type[torch.optim.Optimizer] = torch.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        lstm_hidden_size: int = 256,
        n_lstm_layers: int = 1,
        shared_lstm: bool = False,
        enable_critic_lstm: bool = True,
        lstm_kwargs: dict[str, Any] | None = None,
        *,
        cell: str | None = None,
        normalize_observations: bool = False,
        action_distribution: str = "gaussian",
        settings: Settings | None = None,  # the algorithm's, of which the critics and the risk heads follow
    ) -> None:
        settings = settings or Settings()
        if squash_output and not use_sde:
            raise ArgumentError(
                "squash_output=True goes with use_sde=True; without gSDE use action_distribution='squashed'"
            )
        if shared_lstm and enable_critic_lstm:
            raise ArgumentError("shared_lstm=True needs enable_critic_lstm=False: the critic uses the actor's memory")
        if shared_lstm and not share_features_extractor:
            raise ArgumentError("shared_lstm=True needs share_features_extractor=True: the memory reads one extractor")
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class or self.default_extractor,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            squash_output=squash_output or action_distribution == "squashed",
        )
        self.cell = cell or self.default_cell
        self.shared_lstm = shared_lstm and self.cell is not None
        if isinstance(net_arch, list) and net_arch and isinstance(net_arch[0], dict):
            warnings.warn("net_arch=[dict(pi=..., vf=...)] is SB3's old form; pass the dict itself", stacklevel=2)
            net_arch = net_arch[0]
        if net_arch is None:
            net_arch = [] if self.features_extractor_class is NatureCNN else [64, 64]
        layers = net_arch if isinstance(net_arch, dict) else {"pi": net_arch, "vf": net_arch}

        self.observation_normaliser = ObservationNormaliser(observation_space) if normalize_observations else None
        self.actor_extractor = self.make_features_extractor()
        self.critic_extractor = self.actor_extractor if share_features_extractor else self.make_features_extractor()
        features = self.actor_extractor.features_dim

        self.actor_memory: Recurrence | None = None
        self.critic_memory: Recurrence | None = None
        self.critic_projection: nn.Linear | None = None  # stands in for the critic's memory when it has none
        width = features
        if self.cell is not None:
            width = lstm_hidden_size
            recurrence = (self.cell, features, lstm_hidden_size, n_lstm_layers, lstm_kwargs or {})
            self.actor_memory = Recurrence(*recurrence)
            if enable_critic_lstm:
                self.critic_memory = Recurrence(*recurrence)
            elif not shared_lstm:
                self.critic_projection = nn.Linear(features, lstm_hidden_size)

        self.actor_mlp = MLP.of(width, layers.get("pi", []), activation_fn)
        self.action_head = make_action_head(
            action_space,
            (layers.get("pi") or [width])[-1],
            action_distribution=action_distribution,
            log_std_init=log_std_init,
            use_sde=use_sde,
            full_std=full_std,
            use_expln=use_expln,
            squash_output=squash_output,
        )
        self.critic = make_critic(settings)
        n_critics = 2 if settings.twin_critics else 1
        self.critic_mlps = nn.ModuleList(MLP.of(width, layers.get("vf", []), activation_fn) for _ in range(n_critics))
        latent = (layers.get("vf") or [width])[-1]
        self.value_heads = nn.ModuleList(nn.Linear(latent, self.critic.outputs) for _ in range(n_critics))
        self.risk_heads: RiskHeads | None = None
        if settings.risk:
            ahead = QuantileCritic(_STEP_LEVELS, "tail", min(settings.risk[0].alpha, 0.5))
            # Drawn aside: a risk that is only measured leaves the other weights, and all later draws, as they were.
            with torch.random.fork_rng(devices=()):
                self.risk_heads = RiskHeads(width, layers.get("vf", []), activation_fn, len(settings.risk), ahead)
                if ortho_init:
                    self._initialise(self.risk_heads.gains())
        if ortho_init:
            self._initialise(
                [
                    (self.actor_extractor, 2**0.5),
                    (self.critic_extractor, 2**0.5),
                    (self.actor_mlp, 2**0.5),
                    (self.critic_mlps, 2**0.5),
                    (self.action_head.net, 0.01),
                    (self.value_heads, 1.0),
                ]
            )
        for head in self.value_head_list:
            head.bias.data.copy_(self.critic.initial_bias())
        if self.risk_heads is not None:
            self.risk_heads.step_head.bias.data.copy_(self.risk_heads.step_critic.initial_bias())
        self.optimizer: torch.optim.Optimizer  # built by the algorithm, from optimizer_class and optimizer_kwargs

    def _initialise(self, gains: list[tuple[nn.Module, float]]) -> None:
        """SB3's gains; the recurrent cells keep torch's own initialisation, as in sb3_contrib."""
        for module, gain in gains:
            for part in module.modules():
                self.init_weights(part, gain)

    # --- the two forward passes -------------------------------------------------------------------------------------

    def act(
        self,
        observation: Observation,
        memory: Memory,
        noise: Tensor | None,
        action_masks: Tensor | None = None,
        deployed: Tensor | None = None,  # (B,) bool
    ) -> PolicyStep:  # (B, ...)
        """One step of B envs from `memory`; the most likely action when `noise` is None, and for envs in `deployed`."""
        latents = self.latents(as_sequence(observation), memory)
        parameters, action = self.action_head.act(latents.actor[0], noise, action_masks)
        if deployed is not None:
            action = torch.where(deployed.unsqueeze(-1), self.action_head.mode(parameters), action)
        return PolicyStep(action, self.action_head.to_env(action), parameters, latents.critic[0], latents.memory)

    def critic_latent(self, observation: Observation, memory: Memory) -> Tensor:  # (B, ...) -> (B, H)
        """What the critics read of an observation that follows `memory`, which is read and not advanced."""
        return self.latents(as_sequence(observation), memory).critic[0]

    def values(self, critic_latent: Tensor) -> Tensor:  # (..., H) -> (..., C, N)
        """Raw outputs of the value heads; `critic` says what they mean."""
        critics = zip(self.critic_mlps, self.value_heads, strict=True)
        return torch.stack([head_behind(mlp, head, critic_latent) for mlp, head in critics], -2)

    def values_of(self, layers: list[Tensor]) -> Tensor:  # C × (..., H') -> (..., C, N)
        """Raw outputs, from the last hidden layer of each critic."""
        return torch.stack([head(layer) for head, layer in zip(self.value_heads, layers, strict=True)], -2)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:  # (..., P), (..., A) -> (...)
        """Log-probabilities of actions in the head's own form."""
        return self.action_head.log_prob(parameters, action)

    def costs(self, critic_latent: Tensor) -> Tensor | None:  # (..., H) -> (..., K)
        """The predicted cost-to-go of each constraint."""
        return None if self.risk_heads is None else self.risk_heads.costs(critic_latent)

    def evaluate(
        self, observation: Observation, action: Tensor, memory: Memory, action_masks: Tensor | None = None
    ) -> Evaluation:  # (L, S, ...)
        """Log-probability and values of stored steps, each sequence from the memory before its first step."""
        features, critic_features = self._features(observation)
        actor = self._evaluate_actor(features, action, memory, action_masks)
        return Evaluation(actor, self._evaluate_critic(critic_features, memory, actor.hidden))

    def evaluate_actor(
        self,
        observation: Observation,
        action: Tensor,
        memory: Memory,
        action_masks: Tensor | None = None,
        hidden: Tensor | None = None,
    ) -> ActorEvaluation:  # (L, S, ...)
        """The actor's half of `evaluate`; `hidden` as `shared_hidden` gave it."""
        if hidden is not None:
            return self._evaluate_latent(self.actor_mlp(hidden), hidden, action, action_masks)
        features = self._extract(*self._flat(observation), self.actor_extractor)
        return self._evaluate_actor(features, action, memory, action_masks)

    def evaluate_critic(
        self, observation: Observation, memory: Memory, hidden: Tensor | None = None
    ) -> CriticEvaluation:  # (L, S, ...)
        """The critics' half of `evaluate`, of a policy whose `halves_are_apart`; `hidden` as for the actor, and
        needed if the memory is shared."""
        if hidden is not None:
            return self._evaluate_critic(hidden, memory, hidden)
        return self._evaluate_critic(self._extract(*self._flat(observation), self.critic_extractor), memory, None)

    def shared_hidden(self, observation: Observation, memory: Memory) -> Tensor | None:  # (L, S, ...) -> (L, S, H)
        """The output of a memory that is actor's and critics', for both halves to start from; else None."""
        if not self.shared_lstm:
            return None
        assert self.actor_memory is not None
        features = self._extract(*self._flat(observation), self.actor_extractor)
        hidden: Tensor = self.actor_memory(features, memory)[0]
        return hidden

    def _evaluate_actor(
        self, features: Tensor, action: Tensor, memory: Memory, action_masks: Tensor | None
    ) -> ActorEvaluation:
        latent, hidden, _ = self._actor_latent(features, memory)
        return self._evaluate_latent(latent, hidden, action, action_masks)

    def _evaluate_latent(
        self, latent: Tensor, hidden: Tensor, action: Tensor, action_masks: Tensor | None
    ) -> ActorEvaluation:
        parameters = self.action_head(latent, action_masks)
        return ActorEvaluation(
            self.action_head.log_prob(parameters, action),
            parameters,
            None if self.actor_memory is None else hidden,
        )

    def _evaluate_critic(self, features: Tensor, memory: Memory, actor_hidden: Tensor | None) -> CriticEvaluation:
        latent, _ = self._critic_latent(features, memory, actor_hidden)
        return CriticEvaluation(self.values(latent), None if self.risk_heads is None else self.risk_heads(latent))

    def action_parameters(
        self, observation: Observation, memory: Memory, action_masks: Tensor | None = None
    ) -> Tensor:  # (L, S, ...) -> (L, S, P)
        """The actor alone, each sequence from the memory before its first step."""
        latent, _, _ = self._actor_latent(self._extract(*self._flat(observation), self.actor_extractor), memory)
        parameters: Tensor = self.action_head(latent, action_masks)
        return parameters

    def latents(
        self, observation: Observation, memory: Memory, *, through_shared_memory: bool = False
    ) -> Latents:  # (L, S, ...)
        """What all heads read, each sequence from the memory before its first step.

        Losses must not train a memory that is the actor's through the critics; who asks for the slope of a value in the
        *observation* needs the way through it.
        """
        actor_features, critic_features = self._features(observation)  # (L, S, F)
        latent, hidden, actor_state = self._actor_latent(actor_features, memory)
        critic_latent, critic_state = self._critic_latent(
            critic_features, memory, hidden, through_shared_memory=through_shared_memory
        )
        return Latents(latent, critic_latent, actor_state + critic_state)

    def memory_activity(
        self, observation: Observation, memory: Memory
    ) -> dict[str, list[LayerActivity]]:  # (L, S, ...), each (layers, L·S, H)
        """What the memories compute on the way in one step each, by layer: of the actor's and of the critics' own."""
        features, critic_features = self._features(observation)
        found: dict[str, list[LayerActivity]] = {}
        if self.actor_memory is not None:
            parts = self.actor_memory.parts
            found["actor"] = self.actor_memory.activity(features.flatten(0, 1), memory[:parts])
            if self.critic_memory is not None:
                found["critic"] = self.critic_memory.activity(critic_features.flatten(0, 1), memory[parts:])
        return found

    def _actor_latent(self, features: Tensor, memory: Memory) -> tuple[Tensor, Tensor, Memory]:
        """What the action head reads, the output of the actor's memory, and its state after it."""
        if self.actor_memory is None:
            return self.actor_mlp(features), features, ()
        hidden, state = self.actor_memory(features, memory[: self.actor_memory.parts])
        return self.actor_mlp(hidden), hidden, state

    def _critic_latent(
        self, features: Tensor, memory: Memory, actor_hidden: Tensor | None, *, through_shared_memory: bool = False
    ) -> tuple[Tensor, Memory]:
        """What the critics' MLPs read, and the state of their memory after it."""
        if self.critic_memory is not None:
            assert self.actor_memory is not None
            hidden, state = self.critic_memory(features, memory[self.actor_memory.parts :])
            return hidden, state
        if self.shared_lstm:  # the critic reads the actor's memory without training it, as in RecurrentPPO
            assert actor_hidden is not None
            return actor_hidden if through_shared_memory else actor_hidden.detach(), ()
        return features if self.critic_projection is None else self.critic_projection(features), ()

    def _features(self, observation: Observation) -> tuple[Tensor, Tensor]:
        flat, shape = self._flat(observation)
        features = self._extract(flat, shape, self.actor_extractor)
        if self.critic_extractor is self.actor_extractor:
            return features, features
        return features, self._extract(flat, shape, self.critic_extractor)

    def _flat(self, observation: Observation) -> tuple[Observation, torch.Size]:  # (L, S, ...) -> (L·S, ...), (L, S)
        flat = map_observation(lambda value: value.flatten(0, 1), observation)
        return flat if self.observation_normaliser is None else self.observation_normaliser(flat), rows_of(
            observation
        ).shape[:2]

    def _extract(self, flat: Observation, shape: torch.Size, extractor: BaseFeaturesExtractor) -> Tensor:
        features: Tensor = self.extract_features(flat, extractor).unflatten(0, shape)
        return features

    # --- what others ask of it --------------------------------------------------------------------------------------

    @property
    def halves_are_apart(self) -> bool:
        """Whether actor and critics train no parameter in common. Critics do not train a memory they share."""
        own, theirs = ({id(p) for p in part.parameters()} for part in (self.actor_extractor, self.critic_extractor))
        return self.shared_lstm or not own & theirs

    @property
    def critics_remember(self) -> bool:
        """Whether critics read a memory, their own or the actor's."""
        return self.critic_memory is not None or self.shared_lstm

    @property
    def takes_action_masks(self) -> bool:
        return bool(self.action_head.choices)

    def initial_memory(self, batch: int) -> Memory:
        """What every episode starts from: the actor's tensors, then the critic's."""
        memories = [part.initial(batch) for part in (self.actor_memory, self.critic_memory) if part is not None]
        return tuple(tensor for memory in memories for tensor in memory)

    @property
    def rollout_sizes(self) -> tuple[int, int, tuple[int, int], int, int]:
        """Numbers that one step takes in a rollout: action, its parameters, values (C, N), mask, constraints."""
        head = self.action_head
        values = (len(self.value_heads), self.critic.outputs)
        constraints = 0 if self.risk_heads is None else len(self.risk_heads.cost_heads)
        return head.action_size, head.parameter_size, values, sum(head.choices), constraints

    def shared_parameters(self) -> list[nn.Parameter]:
        """What actor and critics both train: the extractor, if it is one and has weights. A memory that the critics
        read is trained by the actor alone."""
        if self.halves_are_apart:
            return []
        own = {id(p) for p in self.actor_extractor.parameters()}
        return [p for p in self.critic_extractor.parameters() if id(p) in own]

    def critic_parameters(self) -> list[nn.Parameter]:
        """What the critics and the risk heads alone use."""
        parts = self.parameter_groups().items()
        return [p for name, own in parts if name.startswith(("critic", "cost", "step")) for p in own]

    @property
    def value_head_list(self) -> list[nn.Linear]:
        return [cast(nn.Linear, head) for head in self.value_heads]

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Every trained parameter, by the part of the network it belongs to; shared parts appear once."""
        modules: dict[str, nn.Module | None] = {
            "extractor" if self.critic_extractor is self.actor_extractor else "actor_extractor": self.actor_extractor,
            "actor_memory": self.actor_memory,
            "actor_mlp": self.actor_mlp,
            "action_head": self.action_head.net,
            "critic_memory": self.critic_memory or self.critic_projection,
        }
        if self.critic_extractor is not self.actor_extractor:
            modules["critic_extractor"] = self.critic_extractor
        for i, (mlp, head) in enumerate(zip(self.critic_mlps, self.value_heads, strict=True), start=1):
            modules[f"critic{i}_mlp"], modules[f"critic{i}_head"] = mlp, head
        if (risk := self.risk_heads) is not None:
            modules |= {"cost_mlp": risk.cost_mlp, "cost_heads": risk.cost_heads}
            modules |= {"step_mlp": risk.step_mlp, "step_head": risk.step_head}
        groups = {name: list(module.parameters()) for name, module in modules.items() if module is not None}
        groups["log_std"] = [p for name, p in self.action_head.named_parameters() if name == "log_std"]
        return {name: parameters for name, parameters in groups.items() if parameters}
