"""What learns: a policy, and every part with a state that its updates need.

A round of training passes results along: rollout → targets → unit of the critics → update → controllers → numbers. The
engine knows neither envs nor loggers; `ppo` brings rollouts and takes numbers away.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from leeward.algorithm import schedules
from leeward.algorithm.entropy import EntropySchedule
from leeward.algorithm.env_looks import EXAMINED, env_looks
from leeward.algorithm.env_response import EnvResponse, answers_have_their_turn
from leeward.algorithm.episode_looks import episode_looks
from leeward.algorithm.feature_memory import FeatureMemory
from leeward.algorithm.health_numbers import (
    Weights,
    computed_again,
    memory_reach,
    network_has_its_turn,
    network_numbers,
    rollout_looks,
    target_looks,
)
from leeward.algorithm.kl_stop import KLPenaltyController
from leeward.algorithm.live_settings import read_setting
from leeward.algorithm.losses import Coefficients, prepare_value_targets
from leeward.algorithm.parallel.process_group import SINGLE_PROCESS, ProcessGroup
from leeward.algorithm.return_scale import CriticUnit
from leeward.algorithm.reward_looks import reward_looks
from leeward.algorithm.risk_constraint import RiskControl
from leeward.algorithm.state_adversary import Attack, StateAdversary
from leeward.algorithm.targets import Targets, make_targets
from leeward.algorithm.two_threads import TwoThreads
from leeward.algorithm.update import UpdateInputs, UpdatePlan, Updater
from leeward.algorithm.update_metrics import UpdateResult, critics_ratio, gradient_groups, rollout_numbers
from leeward.config.settings import Settings
from leeward.errors import TrainingDiverged
from leeward.maths.nested import forget, map_observation
from leeward.networks.action_distributions import GaussianHead
from leeward.networks.policy import DistributionalPolicy
from leeward.optim.build import build_optimizer, parameter_groups
from leeward.optim.pipeline import GradientPipeline
from leeward.optim.upgd import UtilityOptimizer
from leeward.optim.variance_scaler import VarianceScaler
from leeward.rollout import streams
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import as_tensors
from leeward.rollout.rollout_state import RolloutState
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

__all__ = ["Engine", "Round"]

_DEFAULT_SEQUENCE_LENGTH = 32
_RARE = 10  # updates between two looks that cost more than all others


@dataclass(frozen=True)
class Round:
    """One round of training: its number, how far training is, its random streams, and who takes part."""

    number: int
    seed: int
    device: torch.device
    remaining: float = 1.0  # progress that is left, from 1 to 0
    group: ProcessGroup = SINGLE_PROCESS

    @property
    def progress(self) -> float:
        return 1.0 - self.remaining

    def own_stream(self, stream: int) -> torch.Generator:
        """Random numbers of this round that each process draws for its own envs."""
        own = streams.of_process(stream, self.group.rank)
        return streams.torch_generator(self.seed, own, self.number, self.device)

    def shared_stream(self, stream: int) -> torch.Generator:
        """Random numbers of this round that are the same in every process."""
        return streams.torch_generator(self.seed, stream, self.number, self.device)

    def shuffle(self) -> np.random.Generator:
        return streams.generator(self.seed, streams.of_process(streams.SHUFFLE, self.group.rank), self.number)


class Engine:
    """Owns the optimiser, the critics' unit and the controllers of one policy."""

    def __init__(self, policy: DistributionalPolicy, settings: Settings, n_envs: int) -> None:
        """`n_envs` are those of all processes."""
        self.policy, self.settings = policy, settings
        self.critic_unit, self.entropy_schedule = CriticUnit(), EntropySchedule()
        self.kl_controller: KLPenaltyController | None = None
        self.variance_scaler: VarianceScaler | None = None
        self.state_adversary: StateAdversary | None = None
        self.risk_control: RiskControl | None = None
        if policy.risk_heads is not None:
            self.risk_control = RiskControl(policy.risk_heads, settings.risk, n_envs)
        self.build_optimizer(1.0)
        pipeline = GradientPipeline(
            policy.parameters(),
            gradient_groups(policy),
            critics=policy.critic_parameters(),
            shared=policy.shared_parameters(),
            max_consecutive_skips=settings.max_consecutive_skips,
        )
        self.updater = Updater(policy, pipeline)
        self.weights, self.features, self.response = Weights(policy), FeatureMemory(), EnvResponse()
        self.put_in_force(settings, 1.0)

    # --- settings ---------------------------------------------------------------------------------------------------

    def put_in_force(self, settings: Settings, remaining: float) -> None:
        """Owners of state take over the settings they hold; everything else reads them at every update."""
        adversary = None
        if settings.adversary is not None:
            adversary = StateAdversary(self.policy, settings.adversary)
            if self.state_adversary is not None:
                adversary.load_state_dict(self.state_adversary.state_dict())
        self.state_adversary = adversary
        if settings.vgs is None:
            self.variance_scaler = None
        elif self.variance_scaler is None:
            self.variance_scaler = VarianceScaler(self.policy.parameters(), **settings.vgs.model_dump())
        else:
            self.variance_scaler.configure(**settings.vgs.model_dump())
        if settings.kl_penalty is None:
            self.kl_controller = None
        elif self.kl_controller is None:
            self.kl_controller = KLPenaltyController(settings.kl_penalty)
        if self.risk_control is not None:
            self.risk_control.configure(settings.risk)
        pipeline = self.updater.pipeline
        pipeline.stages = [] if self.variance_scaler is None else [self.variance_scaler]
        pipeline.guard.max_consecutive = settings.max_consecutive_skips
        self.settings = settings
        self._set_learning_rates(remaining)

    def build_optimizer(self, remaining: float) -> None:
        """A fresh optimiser, with the learning rates of this moment."""
        policy, rates = self.policy, schedules.learning_rates(self.settings, remaining)
        groups = parameter_groups(list(policy.parameters()), policy.critic_parameters(), rates)
        policy.optimizer = build_optimizer(groups, policy.optimizer_class, policy.optimizer_kwargs)

    def _set_learning_rates(self, remaining: float) -> None:
        rates = schedules.learning_rates(self.settings, remaining)
        for group, rate in zip(self.policy.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def read_back(self, key: str, remaining: float) -> Any:
        """What the live objects say of a setting; a rate that is a schedule by the number it starts from."""
        name, *path = key.split(".")
        field = ".".join(path)
        if name in ("learning_rate", "critic_learning_rate"):
            return self._live_rate(0 if name == "learning_rate" else 1, remaining)
        if name in ("clip_range", "clip_range_vf"):
            return schedules.start_of(getattr(self.settings, name))
        if name == "max_consecutive_skips":
            return self.updater.pipeline.guard.max_consecutive
        if name == "risk" and path and self.risk_control is not None:
            return read_setting(tuple(each.config for each in self.risk_control.constraints), field)
        if name == "adversary" and path and self.state_adversary is not None:
            return read_setting(self.state_adversary.config, field)
        if name == "vgs" and path and self.variance_scaler is not None:
            return getattr(self.variance_scaler, field)
        return read_setting(self.settings, key)

    def _live_rate(self, group: int, remaining: float) -> float | None:
        """The number a learning rate starts from, after a look at what the optimiser has now."""
        groups = self.policy.optimizer.param_groups
        if group >= len(groups):
            return None
        wanted = schedules.learning_rates(self.settings, remaining)[group]
        if groups[group]["lr"] != wanted:
            raise TrainingDiverged(
                f"the optimiser's learning rate is {groups[group]['lr']}, and {wanted} was asked for; "
                "something else writes to its param_groups"
            )
        return schedules.learning_rates(self.settings, 1.0)[group]

    def plan(self, rollout_size: int | None) -> UpdatePlan:
        """How updates walk over rollouts of that many steps, of all envs and processes."""
        settings = self.settings
        remembers = self.policy.cell is not None
        length = settings.sequence_length or _DEFAULT_SEQUENCE_LENGTH
        batch_size = settings.batch_size
        too_large = batch_size is not None and rollout_size is not None and batch_size > rollout_size
        return UpdatePlan(
            n_epochs=settings.n_epochs,
            batch_size=None if too_large else batch_size,
            micro_batch_size=settings.micro_batch_size,
            sequence_length=min(length, settings.n_steps) if remembers else 1,  # else every step stands alone
            burn_in=settings.burn_in if remembers else 0,
            refresh_memory=settings.refresh_memory,
            target_kl=settings.target_kl,
            max_grad_norm=settings.max_grad_norm,
        )

    # --- a round ----------------------------------------------------------------------------------------------------

    def targets(self, rollout: RolloutBuffer, now: Round, reward_unit: float) -> Targets:
        """What there is to learn from a rollout; the constraints measure it and move their multipliers."""
        return make_targets(
            self.policy,
            rollout,
            self.settings,
            generator=now.own_stream(streams.TARGETS),
            risk=self.risk_control,
            reward_unit=reward_unit,
            group=now.group,
        )

    def prepare(self, rollout: RolloutBuffer, targets: Targets, now: Round) -> tuple[UpdateInputs, Numbers]:
        """Rates and the critics' unit follow the moment and the targets; what the update then learns from."""
        policy, group = self.policy, now.group
        T, B = rollout.shape
        plan = self.plan(T * group.n_envs(B))
        self._set_learning_rates(now.remaining)
        if isinstance(policy.optimizer, UtilityOptimizer):
            policy.optimizer.generator = now.shared_stream(streams.OPTIMIZER)
        policy.set_training_mode(False)
        looks = rollout_looks(policy, rollout) | episode_looks(rollout)
        if now.number < EXAMINED:
            looks |= env_looks(rollout)
        looks[metrics.OBS_CHANGED] = self.features.look(rollout, group)
        if answers_have_their_turn(now.number):
            looks |= reward_looks(rollout) | (self.response.look(policy, rollout) if group.rank == 0 else {})
        looks |= target_looks(policy, rollout, targets, self.settings, number=now.number)
        if network_has_its_turn(now.number):
            rare = now.number % _RARE == 1
            looks |= computed_again(policy, rollout, rank_too=rare) | (memory_reach(policy, rollout) if rare else {})
        change = self.critic_unit.follow(policy, targets.samples, rollout, plan, group)
        weights = self._coefficients(now.remaining, group.n_envs(B))
        numbers = looks | targets.numbers | change.numbers
        inputs = UpdateInputs(
            rollout,
            targets.advantages,
            targets.samples,
            prepare_value_targets(policy.critic, targets.samples, change, weights),
            weights,
            plan,
            now.number,
            risk=None if targets.risk is None else self._constraints().encode(rollout, targets.risk.costs, group),
            risk_part=targets.risk.risk_part if targets.risk is not None and self.settings.is_constrained else None,
            attack=self._attack(rollout, now),
            group=group,
        )
        return inputs, numbers | rollout_numbers(policy, rollout, change)

    def learn_from(self, rollout: RolloutBuffer, targets: Targets, now: Round, threads: TwoThreads) -> Numbers:
        """One update, and what follows from it; returns all that was measured."""
        policy, group = self.policy, now.group
        since = self.weights.begin()
        inputs, numbers = self.prepare(rollout, targets, now)
        policy.set_training_mode(True)
        result = self.updater.run(inputs, now.shuffle(), threads)
        policy.set_training_mode(False)
        group.check_replicas(policy.state_dict().values(), now.number)
        numbers = group.combine(numbers) | result.numbers | since
        if self.state_adversary is not None:
            numbers[metrics.ADVERSARY_EPSILON] = 0.0 if inputs.attack is None else inputs.attack.epsilon
        numbers |= self.weights.end() | network_numbers(policy, schedules.learning_rates(self.settings, now.remaining))
        control = self._control(result, inputs.weights, now)
        return numbers | critics_ratio(numbers) | control | self._adapt(rollout, now)

    def _attack(self, rollout: RolloutBuffer, now: Round) -> Attack | None:
        if self.state_adversary is None:
            return None
        draws = now.own_stream(streams.ADVERSARY)
        return self.state_adversary.begin(rollout.rewards.numel(), now.progress, draws, now.number)

    def _constraints(self) -> RiskControl:
        assert self.risk_control is not None
        return self.risk_control

    def _coefficients(self, remaining: float, n_envs: int) -> Coefficients:
        deployed = RiskControl.deployed(n_envs, self.settings.risk)
        return schedules.coefficients(
            self.settings,
            remaining,
            policy_weight=1.0 if deployed is None else n_envs / int((~deployed).sum()),
            outlook_weight=1.0 if deployed is None else n_envs / int(deployed.sum()),
            # In units of the return scale, so that nothing depends on the unit of the reward.
            value_unit=self.policy.critic.squared_error_units,
            discrete=self._is_discrete,
            entropy=self.entropy_schedule,
            kl_penalty=self.kl_controller,
        )

    @property
    def _is_discrete(self) -> bool:
        return not isinstance(self.policy.action_head, GaussianHead)

    def _control(self, result: UpdateResult, weights: Coefficients, now: Round) -> Numbers:
        """Controllers take in what the update came to; what they and the schedules are at is reported."""
        settings, optimizer = self.settings, self.policy.optimizer
        ent_coef, entropy = schedules.exploration(settings, discrete=self._is_discrete)
        if result.policy_entropy is not None:
            self.entropy_schedule.observe(result.policy_entropy, now.progress, entropy)
        numbers: Numbers = {
            metrics.POLICY_ENTROPY_SLOPE: self.entropy_schedule.slope(),
            metrics.ENT_COEF_NOMINAL: self.entropy_schedule.nominal(now.progress, ent_coef, entropy),
            metrics.ENT_COEF_EFFECTIVE: weights.ent_coef,
            metrics.CLIP_RANGE: weights.clip_range,
            metrics.LEARNING_RATE: float(optimizer.param_groups[0]["lr"]),
        }
        if len(optimizer.param_groups) > 1:
            numbers[metrics.CRITIC_LEARNING_RATE] = float(optimizer.param_groups[1]["lr"])
        if weights.value_clip.mode != "disable":
            numbers[metrics.CLIP_RANGE_VF] = weights.value_clip.radius
        if self.kl_controller is not None and settings.kl_penalty is not None:
            numbers[metrics.KL_PENALTY] = self.kl_controller.coefficient
            if result.kl_exact is not None:
                self.kl_controller.observe(result.kl_exact, settings.kl_penalty)
        if result.risk_grad_norm is not None and min(each.alpha for each in settings.risk) < 0.01:
            numbers[metrics.CVAR_GRADIENT_NORM] = result.risk_grad_norm
        return numbers

    def _adapt(self, rollout: RolloutBuffer, now: Round) -> Numbers:
        """What changes between two rollouts beside the weights: exploration, and the observation normaliser."""
        policy = self.policy
        if isinstance(policy.action_head, GaussianHead):
            _, entropy = schedules.exploration(self.settings, discrete=False)
            policy.action_head.log_scale.fill_(self.entropy_schedule.log_std_scale(now.progress, entropy))
        if policy.observation_normaliser is None:
            return {}
        seen = map_observation(lambda x: now.group.columns(x).flatten(0, 1), rollout.observations)
        mean, std = policy.observation_normaliser.update(seen)
        count = policy.observation_normaliser.count
        return {
            metrics.OBS_NORM_MEAN_DRIFT: mean,
            metrics.OBS_NORM_STD_DRIFT: std,
            metrics.NORMALISER_COUNT: count,
        }

    def predicted_tails(self, state: RolloutState) -> Numbers:
        """The tails the model predicts where its envs are now, one step ahead and discounted."""
        if self.risk_control is None:
            return {}
        alpha, device = self.settings.risk[0].alpha, self.policy.device
        memory = forget(state.memory, torch.as_tensor(state.starts, device=device))
        outlook = self.policy.outlook(as_tensors(state.observation, device), memory)
        return {
            metrics.RISK_CVAR_PREDICTED: outlook.step.mean_cvar(alpha),
            metrics.RISK_RETURN_CVAR_PREDICTED: outlook.mean_cvar(alpha),
        }

    def adopt_units(self) -> None:
        """Go on from the units that came with weights from elsewhere."""
        self.weights.forget()
        self.critic_unit.returns.adopt(self.policy.critic.unit)
        if self.risk_control is not None:
            self.risk_control.adopt_units()

    def owners(self) -> dict[str, Any]:
        """Everything small that has a state of its own, by the name a file keeps it under."""
        owners = {
            "returns": self.critic_unit.returns,
            "entropy": self.entropy_schedule,
            "features": self.features,
            "response": self.response,
            "kl_penalty": self.kl_controller,
            "finite_guard": self.updater.pipeline.guard,
            "risk": self.risk_control,
            "adversary": self.state_adversary,
        }
        return {name: owner for name, owner in owners.items() if owner is not None}
