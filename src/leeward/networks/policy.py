"""The policy: one forward pass gives the action and what the critics read.

observation → extractor ─┬→ actor memory  → actor MLP   → action head
                         └→ critic memory → critic MLP i → value head i      (i = 1, 2 with twin critics)

Names and defaults of the arguments are those of sb3_contrib's recurrent policies; `cell`, `normalize_observations` and
the critic's own are ours. Nothing is read back from attributes: `act` and `evaluate` return what they computed.
"""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
)
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from leeward.config.learning import Risk
from leeward.errors import ArgumentError, CheckpointError
from leeward.maths.nested import Memory, Observation, forget, map_observation
from leeward.networks.action_distributions import make_action_head
from leeward.networks.activations import with_quick_tanh
from leeward.networks.lstm import Recurrence
from leeward.networks.observation import ObservationNormaliser
from leeward.networks.risk_heads import RiskHeads, RiskOutputs
from leeward.networks.value_heads import QuantileCritic, ValueDistribution, make_critic

__all__ = [
    "ActorEvaluation",
    "CnnLstmPolicy",
    "CnnPolicy",
    "CriticEvaluation",
    "DistributionalPolicy",
    "Evaluation",
    "MlpLstmPolicy",
    "MlpPolicy",
    "MultiInputLstmPolicy",
    "MultiInputPolicy",
    "Step",
]


_STEP_LEVELS = 32  # of the distribution one step ahead


class Step(NamedTuple):
    """What one step of the rollout needs, and no more: the rest is computed for all its steps at once."""

    action: Tensor  # (B, A), the head's own form: what is stored and learned from
    env_action: Tensor  # (B, ...), what the env takes
    action_parameters: Tensor  # (B, P)
    critic_latent: Tensor  # (B, H), for `judge`
    memory: Memory  # after the step


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


class DistributionalPolicy(BasePolicy):
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
        critic: str = "quantile",
        n_quantiles: int = 32,
        levels: str = "tail",
        tail_alpha: float = 0.05,
        n_atoms: int = 51,
        twin_critics: bool = True,
        risk: Sequence[Risk] = (),
    ) -> None:
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

        self.actor_mlp = with_quick_tanh(create_mlp(width, -1, layers.get("pi", []), activation_fn))
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
        self.critic = make_critic(
            critic, n_quantiles=n_quantiles, levels=levels, tail_alpha=tail_alpha, n_atoms=n_atoms
        )
        n_critics = 2 if twin_critics else 1
        self.critic_mlps = nn.ModuleList(
            with_quick_tanh(create_mlp(width, -1, layers.get("vf", []), activation_fn)) for _ in range(n_critics)
        )
        latent = (layers.get("vf") or [width])[-1]
        self.value_heads = nn.ModuleList(nn.Linear(latent, self.critic.outputs) for _ in range(n_critics))
        self.risk_heads: RiskHeads | None = None
        if risk:
            ahead = QuantileCritic(_STEP_LEVELS, "tail", min(risk[0].alpha, 0.5))
            # Drawn aside: a risk that is only measured leaves the other weights, and all later draws, as they were.
            with torch.random.fork_rng(devices=()):
                self.risk_heads = RiskHeads(width, layers.get("vf", []), activation_fn, len(risk), ahead)
                if ortho_init:
                    self._initialise(self.risk_heads.gains())
        # Mean and standard deviation of the return, kept by `algorithm.critic_scale`. Before the first rollout nothing
        # is known of it, and a standard deviation of 0 makes every prediction 0.
        self.register_buffer("return_mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("return_std", torch.zeros((), dtype=torch.float64))
        self.return_mean: Tensor
        self.return_std: Tensor
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
        for head in self.value_heads:
            assert isinstance(head, nn.Linear)
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
    ) -> Step:  # (B, ...)
        """One step of B envs from `memory`; the most likely action when `noise` is None, and for envs in `deployed`."""
        sequence = map_observation(lambda value: value.unsqueeze(0), observation)
        latent, critic_latent, memory = self._latents(sequence, memory)
        parameters, action = self.action_head.act(latent[0], noise, action_masks)
        if deployed is not None:
            action = torch.where(deployed.unsqueeze(-1), self.action_head.mode(parameters), action)
        return Step(action, self.action_head.to_env(action), parameters, critic_latent[0], memory)

    def log_prob(self, parameters: Tensor, action: Tensor) -> Tensor:  # (..., P), (..., A) -> (...)
        """Of actions in the head's own form."""
        return self.action_head.log_prob(parameters, action)

    def judge(self, critic_latent: Tensor) -> tuple[Tensor, Tensor | None]:  # (..., H) -> (..., C, N), (..., K)
        """Raw values, and the predicted cost-to-go of each constraint."""
        costs = None if self.risk_heads is None else self.risk_heads.costs(critic_latent)
        return self._values(critic_latent), costs

    def critic_latent(self, observation: Observation, memory: Memory) -> Tensor:  # (B, ...) -> (B, H)
        """What the critics read of an observation that follows `memory`, which is read and not advanced."""
        sequence = map_observation(lambda value: value.unsqueeze(0), observation)
        return self._latents(sequence, memory)[1][0]

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
        return CriticEvaluation(self._values(latent), None if self.risk_heads is None else self.risk_heads(latent))

    def action_parameters(
        self, observation: Observation, memory: Memory, action_masks: Tensor | None = None
    ) -> Tensor:  # (L, S, ...) -> (L, S, P)
        """The actor alone, each sequence from the memory before its first step."""
        latent, _, _ = self._actor_latent(self._extract(*self._flat(observation), self.actor_extractor), memory)
        parameters: Tensor = self.action_head(latent, action_masks)
        return parameters

    def sequence_values(
        self, observation: Observation, memory: Memory, *, through_shared_memory: bool = False
    ) -> Tensor:  # (L, S, ...) -> (L, S, C, N)
        """Raw values of sequences. Losses must not train a memory that is the actor's; who asks for the slope of a
        value in the *observation* needs the way through it."""
        return self._values(self._latents(observation, memory, through_shared_memory=through_shared_memory)[1])

    def values(self, observation: Observation, memory: Memory) -> Tensor:  # (B, ...) -> (B, C, N)
        """Raw values of an observation that follows `memory`, which is read and not advanced."""
        return self._values(self.critic_latent(observation, memory))

    def outlook(
        self, observation: Observation, memory: Memory
    ) -> tuple[ValueDistribution | None, ValueDistribution]:  # (B, ...)
        """What comes after an observation that follows `memory`: the next step's risk variable (None for a policy
        trained without `risk=`), and the discounted return."""
        latent = self.critic_latent(observation, memory)
        step = None if self.risk_heads is None else self.risk_heads.step(latent)
        return step, self.distribution(self._values(latent))

    def advance(self, observation: Observation, memory: Memory) -> Memory:  # (L, S, ...)
        """The memory after a run of observations."""
        return self._latents(observation, memory)[2]

    def value_latents(self, observation: Observation, memory: Memory) -> list[Tensor]:  # (L, S, ...) -> C × (L, S, H)
        """What each value head reads."""
        latent = self._latents(observation, memory)[1]
        return [mlp(latent) for mlp in self.critic_mlps]

    def _latents(
        self, observation: Observation, memory: Memory, *, through_shared_memory: bool = False
    ) -> tuple[Tensor, Tensor, Memory]:
        """What the action head reads, what the critics' MLPs read, and the memory after it all."""
        actor_features, critic_features = self._features(observation)  # (L, S, F)
        latent, hidden, actor_state = self._actor_latent(actor_features, memory)
        critic_latent, critic_state = self._critic_latent(
            critic_features, memory, hidden, through_shared_memory=through_shared_memory
        )
        return latent, critic_latent, actor_state + critic_state

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
        first = next(iter(observation.values())) if isinstance(observation, dict) else observation
        flat = map_observation(lambda value: value.flatten(0, 1), observation)
        return flat if self.observation_normaliser is None else self.observation_normaliser(flat), first.shape[:2]

    def _extract(self, flat: Observation, shape: torch.Size, extractor: BaseFeaturesExtractor) -> Tensor:
        features: Tensor = self.extract_features(flat, extractor).unflatten(0, shape)
        return features

    def _values(self, latent: Tensor) -> Tensor:  # (..., H) -> (..., C, N)
        each = [head(mlp(latent)) for mlp, head in zip(self.critic_mlps, self.value_heads, strict=True)]
        return torch.stack(each, -2)

    # --- what others ask of it --------------------------------------------------------------------------------------

    @property
    def halves_are_apart(self) -> bool:
        """Whether actor and critics train no parameter in common. Critics do not train a memory they share."""
        own, theirs = ({id(p) for p in part.parameters()} for part in (self.actor_extractor, self.critic_extractor))
        return self.shared_lstm or not own & theirs

    @property
    def takes_action_masks(self) -> bool:
        return bool(self.action_head.choices)

    def initial_memory(self, batch: int) -> Memory:
        """What every episode starts from: the actor's tensors, then the critic's."""
        memories = [part.initial(batch) for part in (self.actor_memory, self.critic_memory) if part is not None]
        return tuple(tensor for memory in memories for tensor in memory)

    def distribution(self, values: Tensor) -> ValueDistribution:  # (..., C, N)
        """The return distribution of raw values, over all critics, in units of the return."""
        return self.critic.merge(values, float(self.return_mean), float(self.return_std))

    def pessimistic(self, values: Tensor) -> Tensor:  # (..., C, N) -> (...)
        """The smaller of the critics' means: the baseline and the scalar bootstrap of GAE, and nothing else."""
        return self.critic.means(values, float(self.return_mean), float(self.return_std)).amin(-1)

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

    # --- SB3's interface --------------------------------------------------------------------------------------------

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        *,
        noise: np.random.Generator | None = None,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """The action, and the state to hand back at the next call: the actor's and the critic's memory, opaque.

        `noise` draws the exploration of a stochastic action.
        """
        tensors, single, memory = self.prepare(observation, state, episode_start)
        batch = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
        masks = None if action_masks is None else self.check_masks(np.asarray(action_masks).reshape(batch, -1))
        drawn = None
        if not deterministic:
            rng = np.random.default_rng() if noise is None else noise
            drawn = torch.as_tensor(self.draw_noise(rng, (batch,)), device=self.device)
        with torch.no_grad():
            step = self.act(tensors, memory, drawn, masks)
        action = step.env_action.cpu().numpy()
        after = tuple(part.cpu().numpy() for part in step.memory)
        return (action[0] if single else action), (after or None)

    def predict_distribution(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
    ) -> tuple[ValueDistribution | None, ValueDistribution]:
        """`outlook` for arrays; `state` is read and not advanced."""
        tensors, _, memory = self.prepare(observation, state, episode_start)
        with torch.no_grad():
            return self.outlook(tensors, memory)

    def prepare(
        self, observation: Any, state: tuple[np.ndarray, ...] | None, episode_start: np.ndarray | None
    ) -> tuple[Observation, bool, Memory]:
        """Tensors (B, ...) of what `predict` was given, whether it was a single observation, and the memory before
        it."""
        if self.training:  # walking all modules costs as much as the forward pass
            self.set_training_mode(False)
        if isinstance(observation, tuple):
            raise ArgumentError(
                "predict got a tuple: gymnasium's reset() returns (observation, info); pass the observation"
            )
        tensors, vectorised = self.obs_to_tensor(observation)
        batch = len(next(iter(tensors.values())) if isinstance(tensors, dict) else tensors)
        memory = self.initial_memory(batch)
        if state is not None and memory:
            expected = [tuple(part.shape) for part in memory]
            got = [np.shape(part) for part in state]
            if got != expected:
                raise ArgumentError(f"state must be what predict returned, with shapes {expected}, got {got}")
            memory = tuple(torch.as_tensor(part, device=self.device) for part in state)
            if episode_start is not None:
                memory = forget(memory, torch.as_tensor(episode_start, dtype=torch.bool, device=self.device))
        return tensors, not vectorised, memory

    def check_masks(self, masks: np.ndarray) -> Tensor:  # (B, K) -> bool (B, K)
        """The masks as a tensor; each action dimension must be left at least one choice."""
        choices = self.action_head.choices
        if masks.shape[1] != sum(choices):
            raise ArgumentError(
                f"action masks must have {sum(choices)} entries per env, one per choice of {self.action_space}, "
                f"got {masks.shape[1]}"
            )
        allowed = masks.astype(bool)
        for number, part in enumerate(np.split(allowed, np.cumsum(choices)[:-1], axis=1)):
            if not part.any(1).all():
                env = int(np.flatnonzero(~part.any(1))[0])
                raise ArgumentError(f"env {env}: the action mask leaves no choice for action dimension {number}")
        return torch.as_tensor(allowed, device=self.device)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Noise for `shape` steps, of the kind the action head takes."""
        full = (*shape, *self.action_head.noise_shape)
        if self.action_head.noise_kind == "uniform":
            return rng.random(full, dtype=np.float32)
        return rng.standard_normal(full, dtype=np.float32)

    def _predict(self, observation: Any, deterministic: bool = False) -> Tensor:
        raise ArgumentError("call predict(): it takes and returns the memory, which _predict cannot")

    def save(self, path: str) -> None:
        raise CheckpointError("a policy is saved with its model: model.save(path) writes safetensors and a manifest")

    @classmethod
    def load(cls, path: str, device: torch.device | str = "auto") -> Self:
        raise CheckpointError(
            "a policy is loaded with its model: DistributionalPPO.load(path).policy; SB3's are pickles"
        )


class MlpPolicy(DistributionalPolicy):
    """No memory, flat observations."""


class MlpLstmPolicy(DistributionalPolicy):
    """Memory, flat observations; `policy_kwargs={"cell": "gru"}` for a GRU."""

    default_cell = "lstm"


class CnnPolicy(DistributionalPolicy):
    """No memory, images."""

    default_extractor = NatureCNN


class CnnLstmPolicy(CnnPolicy):
    """Memory, images."""

    default_cell = "lstm"


class MultiInputPolicy(DistributionalPolicy):
    """No memory, Dict observations."""

    default_extractor = CombinedExtractor


class MultiInputLstmPolicy(MultiInputPolicy):
    """Memory, Dict observations."""

    default_cell = "lstm"
