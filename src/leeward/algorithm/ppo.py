"""DistributionalPPO: a Stable-Baselines3 algorithm with the arguments of sb3_contrib's RecurrentPPO.

`learn` reads: collect → targets → rescale → update → log. Each of these is a part of its own; this class only joins
them, owns their state, and speaks SB3's language to callbacks, loggers and envs. With `n_jobs` several processes do
this together, each with a replica and a share of the envs: `peers` is how they speak, `crew` is who started them.
"""

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback, ProgressBarCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule, safe_mean
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage

from leeward.algorithm import checkpoint, vecnormalize_drift
from leeward.algorithm.behaviour_cloning import clone
from leeward.algorithm.crew import Crew, Report
from leeward.algorithm.critic_scale import CriticScale
from leeward.algorithm.entropy import EntropySchedule
from leeward.algorithm.kl_control import KLPenaltyController
from leeward.algorithm.lanes import Lanes, lanes
from leeward.algorithm.losses import Coefficients, prepare_value_targets
from leeward.algorithm.peers import ALONE, Peers, share
from leeward.algorithm.risk_constraint import RiskControl
from leeward.algorithm.state_adversary import AttackedFeatures, AttackSurface, StateAdversary
from leeward.algorithm.targets import Targets, make_targets
from leeward.algorithm.update import Lesson, Updater, metric_groups
from leeward.config.base import Frozen
from leeward.config.learning import AWR, VGS, Adversary, Entropy, KLPenalty, KLStop, Risk, ValueClip
from leeward.errors import ArgumentError, ConfigError, did_you_mean
from leeward.maths import advantage, schedules
from leeward.maths.nested import forget, map_observation
from leeward.networks.action_distributions import GaussianHead
from leeward.networks.outlook import Outlook
from leeward.networks.policy import (
    CnnLstmPolicy,
    CnnPolicy,
    DistributionalPolicy,
    MlpLstmPolicy,
    MlpPolicy,
    MultiInputLstmPolicy,
    MultiInputPolicy,
)
from leeward.optim.build import build_optimizer
from leeward.optim.pipeline import GradientPipeline
from leeward.optim.upgd import UtilityOptimizer
from leeward.optim.variance_scaler import VarianceScaler
from leeward.rollout import shards, streams
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import Collector, RawObservation, as_tensors
from leeward.rollout.noise import rollout_noise
from leeward.rollout.sequences import memory_times
from leeward.rollout.shards import EnvFunction, EnvList
from leeward.rollout.standing import Standing, together

__all__ = ["DistributionalPPO"]

_ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_DEFAULT_SEQUENCE_LENGTH = 32


class DistributionalPPO(BaseAlgorithm):
    """Recurrent PPO with a distributional critic. Arguments up to `_init_setup_model` are RecurrentPPO's.

    Ours, all keyword-only:
      critic: "quantile" (default), "categorical" or "scalar"; n_quantiles, levels ("tail" or "uniform"), n_atoms,
        kappa (in units of the return scale), twin_critics.
      value_targets: "distributional" (samples of the return) or "scalar" (its λ-return); n_target_samples.
      sequence_length, burn_in, refresh_memory: truncated back-propagation through time.
      micro_batch_size: real steps per backward pass; gradients add up to those of the whole minibatch.
      action_distribution: "auto", "gaussian" or "squashed", for Box actions.
      max_consecutive_skips: minibatches in a row that may fail to be finite before training stops.
      critic_learning_rate: number or schedule for what the critics alone use; None = `learning_rate`.
      value_clip, entropy, kl_penalty, awr, vgs, risk, adversary: one dict per idea, see `leeward.config.learning`;
        `risk` also takes several in a list.
      n_jobs: processes that train together; `env` is then an id (one env each), a list of functions that make one env
        each, a TradingVecEnv, or another VecEnv that can be shared (`leeward.rollout.shards`).
    `normalize_advantage` also takes "global", "per_env" or "none"; True is "global", once per rollout.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
        "MlpLstmPolicy": MlpLstmPolicy,
        "CnnLstmPolicy": CnnLstmPolicy,
        "MultiInputLstmPolicy": MultiInputLstmPolicy,
    }
    policy: DistributionalPolicy

    def __init__(
        self,
        policy: str | type[DistributionalPolicy],
        env: GymEnv | str | Sequence[EnvFunction] | None,
        learning_rate: float | Schedule = 3e-4,
        n_steps: int = 128,
        batch_size: int | None = 128,
        n_epochs: int = 10,
        gamma: float = 0.99,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        clip_range_vf: float | Schedule | None = None,
        normalize_advantage: bool | str = True,
        ent_coef: float = 0.0,
        vf_coef: float = 0.5,
        max_grad_norm: float | None = 0.5,
        use_sde: bool = False,
        sde_sample_freq: int = -1,
        target_kl: float | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        policy_kwargs: dict[str, Any] | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        critic: str = "quantile",
        n_quantiles: int = 32,
        levels: str = "tail",
        n_atoms: int = 51,
        kappa: float = 0.0,
        twin_critics: bool = True,
        value_targets: str = "distributional",
        n_target_samples: int = 32,
        sequence_length: int | None = None,
        burn_in: int = 0,
        refresh_memory: bool = False,
        micro_batch_size: int | None = None,
        action_distribution: str = "auto",
        max_consecutive_skips: int = 10,
        value_clip: Mapping[str, Any] | ValueClip | None = None,
        entropy: Mapping[str, Any] | Entropy | None = None,
        kl_penalty: Mapping[str, Any] | KLPenalty | None = None,
        awr: Mapping[str, Any] | AWR | None = None,
        risk: Mapping[str, Any] | Risk | Sequence[Mapping[str, Any] | Risk] | None = None,
        critic_learning_rate: float | Schedule | None = None,
        vgs: Mapping[str, Any] | VGS | None = None,
        adversary: Mapping[str, Any] | Adversary | None = None,
        n_jobs: int = 1,
    ) -> None:
        if isinstance(policy, type) and not issubclass(policy, DistributionalPolicy):
            raise ArgumentError(
                f"policy {policy.__module__}.{policy.__qualname__} is of another library; use one of "
                f"{', '.join(self.policy_aliases)} or a subclass of leeward's DistributionalPolicy"
            )
        if isinstance(policy, str) and policy not in self.policy_aliases:
            raise ArgumentError(f"unknown policy {policy!r}; {did_you_mean(policy, self.policy_aliases)}")
        if env is None and _init_setup_model:
            raise ArgumentError("a new model needs an env: its spaces decide the network; load() works without one")
        _positive("n_jobs", n_jobs)
        self.n_jobs = n_jobs
        self.peers: Peers = ALONE
        self.crew: Crew | None = None
        self.saved_rng_of_jobs: checkpoint.Rngs = []  # of a file, until the other processes are there
        super().__init__(
            policy,
            shards.env_functions(env, n_jobs),
            learning_rate=learning_rate,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            support_multi_env=True,
            seed=seed,
            use_sde=use_sde,
            sde_sample_freq=sde_sample_freq,
            supported_action_spaces=_ACTION_SPACES,
        )
        self.n_steps, self.batch_size, self.n_epochs = n_steps, batch_size, n_epochs
        self.gamma, self.gae_lambda = gamma, gae_lambda
        self.clip_range: float | Schedule = clip_range
        self.clip_range_vf: float | Schedule | None = clip_range_vf
        self.normalize_advantage = normalize_advantage
        self.ent_coef, self.vf_coef, self.max_grad_norm, self.target_kl = ent_coef, vf_coef, max_grad_norm, target_kl
        self.critic, self.n_quantiles, self.levels, self.n_atoms = critic, n_quantiles, levels, n_atoms
        self.kappa, self.twin_critics = kappa, twin_critics
        self.value_targets, self.n_target_samples = value_targets, n_target_samples
        self.sequence_length, self.burn_in, self.refresh_memory = sequence_length, burn_in, refresh_memory
        self.micro_batch_size, self.action_distribution = micro_batch_size, action_distribution
        self.max_consecutive_skips = max_consecutive_skips
        self.value_clip = _dict("value_clip", ValueClip, value_clip)
        self.entropy = _dict("entropy", Entropy, entropy)
        self.kl_penalty = _dict("kl_penalty", KLPenalty, kl_penalty)
        self.awr = _dict("awr", AWR, awr)
        self.risk = _constraints(risk)
        self.critic_learning_rate = critic_learning_rate
        self.vgs = _dict("vgs", VGS, vgs)
        self.adversary = _dict("adversary", Adversary, adversary)
        self._check_arguments()
        self.missing_arguments: dict[str, str] = {}  # schedules a loaded file could only name
        self.stream_seed = (
            seed if seed is not None else int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
        )
        if _init_setup_model:
            self._setup_model()

    # --- set-up -----------------------------------------------------------------------------------------------------

    def _check_arguments(self) -> None:
        for name in ("n_steps", "n_epochs", "n_target_samples", "max_consecutive_skips"):
            _positive(name, getattr(self, name))
        for name in ("batch_size", "sequence_length", "micro_batch_size"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        for name in ("gamma", "gae_lambda"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ArgumentError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if isinstance(self.clip_range_vf, int | float) and not self.clip_range_vf > 0:
            raise ArgumentError(f"clip_range_vf must be positive, or None for no clipping, got {self.clip_range_vf}")
        self._kl_stop = KLStop.read({"target": self.target_kl}, where="target_kl")
        if self.burn_in < 0:
            raise ArgumentError(f"burn_in must not be negative, got {self.burn_in}")
        if self.kappa < 0:
            raise ArgumentError(f"kappa must not be negative, got {self.kappa}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise ArgumentError(f"max_grad_norm must be positive, or None for no clipping, got {self.max_grad_norm}")
        for name, known in (
            ("value_targets", ("distributional", "scalar")),
            ("action_distribution", ("auto", "gaussian", "squashed")),
        ):
            value = getattr(self, name)
            if value not in known:
                raise ArgumentError(f"unknown {name} {value!r}; {did_you_mean(str(value), known)}")
        if self.normalisation not in advantage.MODES:
            raise ArgumentError(
                f"unknown normalize_advantage {self.normalisation!r}; "
                f"{did_you_mean(self.normalisation, advantage.MODES)}"
            )
        if (
            self.value_clip is not None
            and self.critic == "categorical"
            and self.value_clip.mode not in ("disable", "mean_only")
        ):
            raise ArgumentError(
                f"value_clip mode {self.value_clip.mode!r} does not exist for a categorical critic; use 'mean_only'"
            )

    @property
    def normalisation(self) -> str:
        """The mode that `normalize_advantage` stands for."""
        if isinstance(self.normalize_advantage, bool):
            return "global" if self.normalize_advantage else "none"
        return self.normalize_advantage

    def _setup_model(self) -> None:
        if self.n_jobs > 1:
            self._check_jobs()
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = cast(type[DistributionalPolicy], self.policy_class)(
            self.observation_space,
            self.action_space,
            self.lr_schedule,
            use_sde=self.use_sde,
            critic=self.critic,
            n_quantiles=self.n_quantiles,
            levels=self.levels,
            n_atoms=self.n_atoms,
            twin_critics=self.twin_critics,
            action_distribution=self._action_distribution(),
            risk=self.risk,
            **self.policy_kwargs,
        ).to(self.device)
        rate = self.critic_learning_rate
        self.critic_lr_schedule: Schedule | None = None if rate is None else FloatSchedule(rate)
        self.policy.optimizer = build_optimizer(
            _rate_groups(self.policy, self._learning_rates(1.0)),
            self.policy.optimizer_class,
            self.policy.optimizer_kwargs,
        )
        self.variance_scaler = (
            None if self.vgs is None else VarianceScaler(self.policy.parameters(), **self.vgs.model_dump())
        )
        self.clip_schedule = FloatSchedule(self.clip_range)
        self.value_clip_schedule = None if self.clip_range_vf is None else FloatSchedule(self.clip_range_vf)
        self.entropy_schedule = EntropySchedule(self.ent_coef, self.entropy or self._default_entropy())
        if _offers(self.env, "risk_unit"):  # a trading env: its step_return is a log-return
            for each in self.risk:
                each.check_log_return()
        self._warn_of_unseen_totals()
        self.risk_control = None
        if self.policy.risk_heads is not None:
            self.risk_control = RiskControl(
                self.policy.risk_heads, self.risk, self.all_envs, gamma=self.gamma, lam=self.gae_lambda
            )
            if self.env is not None:
                self.risk_control.deployed(self.all_envs)  # refuses too few
        self.state_adversary = None if self.adversary is None else StateAdversary(self.policy, self.adversary)
        if self.state_adversary is not None and self.env is not None:
            self.state_adversary.follow(self.env)
        self.kl_controller = None if self.kl_penalty is None else KLPenaltyController(self.kl_penalty)
        burn_in = self.burn_in if self.policy.cell is not None else 0
        self.critic_scale = CriticScale(self.policy, self._effective_sequence_length(), burn_in)
        self.updater = Updater(
            self.policy,
            GradientPipeline(
                self.policy.parameters(),
                metric_groups(self.policy),
                max_grad_norm=self.max_grad_norm,
                max_consecutive_skips=self.max_consecutive_skips,
                stages=() if self.variance_scaler is None else (self.variance_scaler,),
            ),
            n_epochs=self.n_epochs,
            batch_size=self._usable_batch_size(),
            micro_batch_size=self.micro_batch_size,
            sequence_length=self._effective_sequence_length(),
            burn_in=burn_in,
            refresh_memory=self.refresh_memory,
            kl_stop=self._kl_stop,
        )
        self.n_rollouts = 0
        self.last_metrics: dict[str, float] = {}
        self.rollout_buffer: RolloutBuffer | None = None
        self._targets: Targets | None = None
        self._vecnormalize_before: vecnormalize_drift.Moments | None = None
        self._lanes = Lanes()  # two of them while it learns
        self._mid_rollout = False
        self.collector = None if self.env is None else Collector(self.policy, self.env)

    @property
    def all_envs(self) -> int:
        """How many envs there are, those of the other processes included; `n_envs` are this one's."""
        return self.peers.n_envs(self.n_envs)

    def _check_jobs(self) -> None:
        if self.env is None:  # to predict with, and that may be done anywhere
            return
        if self.device.type != "cpu":
            raise ArgumentError(
                f"n_jobs={self.n_jobs} shares the cores of a CPU, and the device is {self.device}; pass device='cpu'"
            )
        shards.refuse_unshardable(_below_transpose(self.env), self.n_jobs)

    def _learning_rates(self, progress_remaining: float) -> list[float]:
        """One for each group of the optimiser: the actor's and everybody's, and the critics' if they have their own."""
        given = ((self.learning_rate, self.lr_schedule), (self.critic_learning_rate, self.critic_lr_schedule))
        fades = self._fading(progress_remaining)
        return [
            float(schedule(progress_remaining)) * (1.0 if callable(rate) else fades)
            for rate, schedule in given
            if schedule is not None
        ]

    def _fading(self, progress_remaining: float) -> float:
        """Factor on constant learning rates. Under a constraint they fall: what is left of their noise at the end is
        how far the tail stays from its limit (docs/ideas/risk.md)."""
        ends = [each.lr_scale_end for each in self.risk if each.acts and each.lr_scale_end is not None]
        return schedules.linear(1.0 - progress_remaining, 1.0, min(ends)) if ends else 1.0

    def set_random_seed(self, seed: int | None = None) -> None:
        """SB3's generators, and the streams of our own; None leaves the seed as it is."""
        if seed is not None:
            self.dismiss()  # the envs of the other processes are seeded when they are made again
        super().set_random_seed(seed)
        if seed is not None:
            self.stream_seed = seed
        self._predict_noise = streams.generator(self.stream_seed, streams.PREDICT, 0)

    def _action_distribution(self) -> str:
        """`auto` is SB3's clipped Gaussian, but squashed under a constraint (docs/ideas/risk.md says why)."""
        if self.action_distribution != "auto":
            return self.action_distribution
        bounded = isinstance(self.action_space, spaces.Box) and self.action_space.is_bounded()
        acting = any(each.acts for each in self.risk)
        return "squashed" if acting and bounded and not self.use_sde else "gaussian"

    def _warn_of_unseen_totals(self) -> None:
        limited = any(each.acts and each.measure == "episode_return" for each in self.risk)
        if limited and self.env is not None and not _offers(self.env, "shows_running_return"):
            warnings.warn(
                "risk: the limit is on the return of a whole episode, but the observation does not show what the "
                "episode has returned so far, so the agent cannot react to it; wrap the env in "
                "leeward.env.RunningReturn",
                stacklevel=4,
            )

    def _default_entropy(self) -> Entropy:
        """Without `entropy=` exploration fades under a constraint, as far as `Risk.exploration_end` says."""
        ends = [each.exploration_end for each in self.risk if each.acts]
        return Entropy(std_scale_end=min(ends)) if ends else Entropy()

    def _effective_sequence_length(self) -> int:
        if self.policy.cell is None:
            return 1  # without memory every step stands alone
        return min(self.sequence_length or _DEFAULT_SEQUENCE_LENGTH, self.n_steps)

    def _usable_batch_size(self) -> int | None:
        rollout = self.n_steps * (self.all_envs if self.env is not None else 1)
        if self.env is not None and self.batch_size is not None and self.batch_size > rollout:
            warnings.warn(
                f"batch_size {self.batch_size} is larger than a rollout of {self.n_steps} steps × {self.all_envs} envs "
                f"= {rollout}; the whole rollout is one minibatch",
                stacklevel=4,
            )
            return None
        return self.batch_size

    # --- learning ---------------------------------------------------------------------------------------------------

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "DistributionalPPO",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for `total_timesteps` env steps (rounded up to whole rollouts). Arguments are SB3's.

        The metrics of an update are written with its own iteration, the last one's too.
        """
        if self.env is None or self.collector is None:
            raise ArgumentError("this model has no env; call set_env(env) first, or pass env= to load()")
        checkpoint.refuse_training(self.missing_arguments)
        if self.n_jobs > 1 and self.crew is None:
            self._share_out(self.env)
        with self._with_the_crew(), self._in_lanes():
            fresh = reset_num_timesteps or self._last_obs is None
            if progress_bar:
                callback = _with_bar(callback)
            total_timesteps, active = self._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name)
            if fresh:
                self.collector.reset(cast(RawObservation, self._last_obs))
                if self.risk_control is not None:
                    self.risk_control.begin(self.all_envs)
            if self.crew is not None:
                self.crew.begin(self, fresh=fresh)
            active.on_training_start(locals(), globals())
            iteration, dumped = 0, True
            while self.num_timesteps < total_timesteps:
                if not self.iterate(active):
                    break
                iteration += 1
                dumped = log_interval is not None and iteration % log_interval == 0
                if dumped:
                    self.dump_logs(iteration)
            if not dumped:
                self.dump_logs(iteration)
            active.on_training_end()
        return self

    @contextmanager
    def _in_lanes(self) -> Iterator[None]:
        # What an adversary adds to the losses of both halves is drawn from one generator.
        with lanes(wanted=self.updater.side_by_side and self.state_adversary is None) as self._lanes:
            try:
                yield
            finally:
                self._lanes = Lanes()

    def iterate(self, callback: BaseCallback) -> bool:
        """One rollout and its update, together with all peers; False when a callback asked to stop."""
        going = self.collect_rollouts(callback)
        if going:
            # A last rollout that runs past the end must not drive schedules below their end.
            done = min(self.num_timesteps, self._total_timesteps)
            self._update_current_progress_remaining(done, self._total_timesteps)
            self.train()
        if self.crew is not None:
            self.crew.busy = False
        return going

    def collect_rollouts(self, callback: BaseCallback) -> bool:
        """Fill the buffer and make the targets; False when a callback asked to stop."""
        collector = self.collector
        assert collector is not None
        self._vecnormalize_before = vecnormalize_drift.moments(self._vec_normalize_env)
        hold = max(self.sde_sample_freq, 0) if self.use_sde else None
        noise = rollout_noise(
            self.policy,
            self.stream_seed,
            self.n_rollouts,
            self.n_steps,
            self.n_envs,
            hold=hold,
            first_env=self.peers.first_env,
        )
        buffer = self._make_buffer()
        self.rollout_buffer = buffer
        total_timesteps = self._total_timesteps
        all_envs, episodes = self.all_envs, list[dict[str, Any]]()

        def on_step(local_variables: dict[str, Any]) -> bool:
            self.num_timesteps += all_envs
            self._last_obs = collector.observation
            self._last_episode_starts = collector.starts
            callback.update_locals(
                local_variables | {"self": self, "callback": callback, "total_timesteps": total_timesteps}
            )
            if not callback.on_step():
                return False
            finished = np.flatnonzero(local_variables["dones"])
            if len(finished):
                infos = [local_variables["infos"][i] for i in finished]
                self._note_episodes(infos)
                if self.peers.rank > 0:
                    episodes.extend({key: info[key] for key in _EPISODE if key in info} for info in infos)
            return True

        callback.on_rollout_start()
        if self.crew is not None:
            self.crew.start()
        self._mid_rollout = True
        going = collector.collect(buffer, noise, hold, on_step)
        for others_go, theirs in self.peers.gather((going, episodes)):
            going = going and others_go
            self._note_episodes(theirs)
        if not going:
            return False
        self._targets = make_targets(
            self.policy,
            buffer,
            gamma=self.gamma,
            lam=self.gae_lambda,
            n_samples=self.n_target_samples,
            distributional=self.value_targets == "distributional",
            normalisation=self.normalisation,
            generator=self._own_stream(streams.TARGETS),
            risk=self.risk_control,
            reward_unit=self._reward_unit(),
            peers=self.peers,
        )
        callback.on_rollout_end()
        return True

    def _note_episodes(self, infos: Sequence[Mapping[str, Any]]) -> None:
        self._update_info_buffer(cast(list[dict[str, Any]], infos), np.ones(len(infos), dtype=bool))

    def _own_stream(self, stream: int) -> torch.Generator:
        """Of this rollout and process."""
        own = streams.of_process(stream, self.peers.rank)
        return streams.torch_generator(self.stream_seed, own, self.n_rollouts, self.device)

    def train(self) -> None:
        """Learn from the rollout just collected, and record what happened."""
        buffer, targets = self.rollout_buffer, self._targets
        assert buffer is not None and targets is not None
        policy, progress = self.policy, 1.0 - self._current_progress_remaining
        rates = self._learning_rates(self._current_progress_remaining)
        for group, rate in zip(policy.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        if isinstance(policy.optimizer, UtilityOptimizer):
            policy.optimizer.generator = streams.torch_generator(
                self.stream_seed, streams.OPTIMIZER, self.n_rollouts, self.device
            )
        peers = self.peers
        metrics = targets.metrics | self.critic_scale.follow(targets.samples, buffer, peers)
        clip = self._current_value_clip()
        if clip.mode == "disable":  # a clip holds predictions near the rollout's, and so forbids the jump
            metrics |= self.critic_scale.recentre(targets.samples, buffer, peers)
        weights = Coefficients(
            clip_range=self.clip_schedule(self._current_progress_remaining),
            value_weight=self._value_weight(),
            risk_weight=self.vf_coef,
            ent_coef=self.entropy_schedule.effective(progress),
            kappa=self.kappa,
            value_clip=clip,
            kl_penalty=0.0 if self.kl_controller is None else self.kl_controller.coefficient,
            awr=self.awr,
        )
        value_targets = prepare_value_targets(
            policy,
            targets.samples,
            buffer.raw_values,
            scale=self.critic_scale.rollout_scale,
            support=self.critic_scale.rollout_support,
            clip=clip,
            kappa=self.kappa,
        )
        policy.set_training_mode(True)
        lesson = Lesson(buffer, targets.advantages, value_targets, weights, self.n_rollouts, peers=peers)
        if self.risk_control is not None and targets.risk is not None:
            encoded = self.risk_control.encode(buffer, targets.risk.costs, peers)
            acting = any(each.acts for each in self.risk)
            lesson = replace(lesson, risk=encoded, risk_part=targets.risk.risk_part if acting else None)
        if self.state_adversary is not None:
            draws = self._own_stream(streams.ADVERSARY)
            attack = self.state_adversary.begin(progress, buffer.rewards.numel(), draws, self.n_rollouts)
            lesson = replace(lesson, attack=attack)
            metrics["adversary/epsilon"] = 0.0 if attack is None else attack.epsilon
        shuffle = streams.of_process(streams.SHUFFLE, peers.rank)
        learned = self.updater.run(lesson, streams.generator(self.stream_seed, shuffle, self.n_rollouts), self._lanes)
        policy.set_training_mode(False)
        peers.check_replicas(policy.state_dict().values(), self.n_rollouts)
        metrics = peers.combine(metrics | self._rollout_metrics(buffer), _KINDS) | learned
        self._n_updates += self.n_epochs
        self.n_rollouts += 1
        self._mid_rollout = False
        self._after_update(metrics, buffer, weights, progress)

    def _after_update(
        self, metrics: dict[str, float], buffer: RolloutBuffer, weights: Coefficients, progress: float
    ) -> None:
        """What follows from the update's numbers: controllers, exploration, the normaliser; then the record."""
        policy = self.policy
        metrics |= _critic_warnings(metrics)
        if "train/policy_entropy" in metrics:
            self.entropy_schedule.observe(metrics["train/policy_entropy"], progress)
        if self.kl_controller is not None:
            metrics["train/kl_penalty"] = self.kl_controller.coefficient
            if "train/kl_exact" in metrics:
                self.kl_controller.observe(metrics["train/kl_exact"])
        metrics["train/policy_entropy_slope"] = self.entropy_schedule.slope()
        metrics["train/ent_coef_nominal"] = self.entropy_schedule.nominal(progress)
        metrics["train/ent_coef_effective"] = weights.ent_coef
        metrics["train/clip_range"] = weights.clip_range
        metrics["train/learning_rate"] = float(policy.optimizer.param_groups[0]["lr"])
        if self.critic_lr_schedule is not None:
            metrics["train/critic_learning_rate"] = float(policy.optimizer.param_groups[1]["lr"])
        metrics["train/n_updates"] = self._n_updates
        if weights.value_clip.mode != "disable":
            metrics["train/clip_range_vf"] = weights.value_clip.radius
        if isinstance(policy.action_head, GaussianHead):
            policy.action_head.log_scale.fill_(self.entropy_schedule.log_std_scale(progress))
        if policy.observation_normaliser is not None:
            drift = policy.observation_normaliser.update(
                map_observation(lambda x: self.peers.columns(x).flatten(0, 1), buffer.observations)
            )
            metrics["debug/obs_norm_mean_drift"], metrics["debug/obs_norm_std_drift"] = drift
        if self.risk_control is not None:
            metrics |= self._risk_predictions()
            if min(each.alpha for each in self.risk) < 0.01 and "risk/grad_norm" in metrics:
                metrics["debug/cvar_gradient_norm"] = metrics["risk/grad_norm"]
        now = vecnormalize_drift.moments(self._vec_normalize_env)
        metrics |= vecnormalize_drift.drift(self._vecnormalize_before, now)
        self.last_metrics = metrics
        for name, value in metrics.items():
            self.logger.record(name, value, exclude=None if name in _SHOWN else "stdout")

    def _rollout_metrics(self, buffer: RolloutBuffer) -> dict[str, float]:
        """What the policy was like in the rollout: its memory, its critics, its noise."""
        policy = self.policy
        metrics = _memory_metrics(policy, buffer)
        if len(policy.value_heads) > 1:
            means = policy.critic.means(buffer.raw_values, *self.critic_scale.rollout_scale)
            metrics["train/critic_gap"] = float((means[..., 0] - means[..., 1]).abs().mean())
        if isinstance(policy.action_head, GaussianHead):
            log_std = buffer.action_parameters[..., policy.action_head.action_size :]
            metrics["train/std"] = float(log_std.exp().mean())
        return metrics

    @torch.no_grad()
    def _risk_predictions(self) -> dict[str, float]:
        """The tails the model predicts where its envs stand now, one step ahead and discounted."""
        collector, policy, alpha = self.collector, self.policy, self.risk[0].alpha
        assert collector is not None and policy.risk_heads is not None
        starts = torch.as_tensor(collector.starts, device=self.device)
        ahead, whole = policy.outlook(as_tensors(collector.observation, self.device), forget(collector.memory, starts))
        assert ahead is not None
        return {
            "risk/cvar_predicted": float(ahead.cvar(alpha).mean()),
            "risk/return_cvar_predicted": float(whole.cvar(alpha).mean()),
        }

    def _value_weight(self) -> float:
        """`vf_coef` as SB3 means it, so that settings tuned there carry over.

        The loss in units of the return scale is brought to the units of a squared error of the reward, σ² times as
        large; the value gradient then has the share in the global clip it has in PPO. Small rewards do not shrink it.
        """
        return self.vf_coef * self.policy.critic.squared_error_units * max(1.0, self.critic_scale.returns.variance)

    def _reward_unit(self) -> float:
        """What a VecNormalize divides rewards by; 1 without one."""
        normaliser = self._vec_normalize_env
        if normaliser is None or not normaliser.norm_reward:
            return 1.0
        return float(np.sqrt(normaliser.ret_rms.var + normaliser.epsilon))

    def _current_value_clip(self) -> ValueClip:
        if self.value_clip is not None and self.value_clip_schedule is None:
            return self.value_clip
        if self.value_clip_schedule is None:
            return ValueClip(mode="disable")
        radius = self.value_clip_schedule(self._current_progress_remaining)
        return (self.value_clip or ValueClip()).model_copy(update={"radius": radius})

    def _make_buffer(self) -> RolloutBuffer:
        assert self.collector is not None
        policy = self.policy
        if self.rollout_buffer is not None:
            return self.rollout_buffer
        mask_size = sum(policy.action_head.choices) if self.collector.masked else None
        buffer = RolloutBuffer.empty(
            self.n_steps,
            as_tensors(self.collector.observation, self.device),
            self.collector.memory,
            action_size=policy.action_head.action_size,
            parameter_size=policy.action_head.parameter_size,
            value_shape=(len(policy.value_heads), policy.critic.outputs),
            mask_size=mask_size,
            n_constraints=len(self.risk),
            memory_times=memory_times(self.n_steps, self._effective_sequence_length(), self.updater.burn_in),
            device=self.device,
        )
        if buffer.risk is not None and self.risk_control is not None:
            quiet = self.risk_control.deployed(self.all_envs)
            buffer.risk.deployed = None if quiet is None else self.peers.own(quiet[None])[0].to(self.device)
        return buffer

    def dump_logs(self, iteration: int = 0) -> None:
        """Write what was recorded, under SB3's keys for time and episodes."""
        elapsed = max((time.time_ns() - self.start_time) / 1e9, sys.float_info.epsilon)
        self.logger.record("time/iterations", iteration, exclude="tensorboard")
        if self.ep_info_buffer:
            self.logger.record("rollout/ep_rew_mean", safe_mean([info["r"] for info in self.ep_info_buffer]))
            self.logger.record("rollout/ep_len_mean", safe_mean([info["l"] for info in self.ep_info_buffer]))
        self.logger.record("time/fps", int((self.num_timesteps - self._num_timesteps_at_start) / elapsed))
        self.logger.record("time/time_elapsed", int(elapsed), exclude="tensorboard")
        self.logger.record("time/total_timesteps", self.num_timesteps, exclude="tensorboard")
        if self.ep_success_buffer:
            self.logger.record("rollout/success_rate", safe_mean(self.ep_success_buffer))
        self.logger.dump(step=self.num_timesteps)

    # --- using the model --------------------------------------------------------------------------------------------

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        *,
        action_masks: np.ndarray | None = None,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """The action and the state for the next call (None = start); the training's own randomness is not touched."""
        return self.policy.predict(
            observation, state, episode_start, deterministic, noise=self._predict_noise, action_masks=action_masks
        )

    def predict_distribution(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
    ) -> Outlook:
        """The distribution of the discounted return from `observation` on; reads `state` and does not advance it."""
        step, whole = self.policy.predict_distribution(observation, state, episode_start)
        return Outlook(whole, None if step is None else Outlook(step))

    def attack_surface(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
    ) -> AttackSurface:
        """Slopes of actions and value in the observation, for `leeward.backtest.robustness`; changes nothing."""
        chosen: dict[str, Any] = {}
        if self.adversary is not None:
            chosen = {"keys": self.adversary.keys, "scale": self.adversary.scale}
        return AttackSurface(self.policy, AttackedFeatures(self.policy, **chosen), observation, state, episode_start)

    def pretrain(
        self,
        observations: np.ndarray | dict[str, np.ndarray],
        actions: np.ndarray,
        *,
        epochs: int,
        batch_size: int,
        learning_rate: float | None = None,
        episode_starts: np.ndarray | None = None,
    ) -> list[float]:
        """Teach the actor to act as a dataset does, before `learn`; see docs/ideas/behaviour-cloning.md.

        Rows are in the order of time: `observations` (n, ...) as `predict` takes them, `actions` (n, ...) as the env
        takes them. `episode_starts` (n,) is True where an episode begins; None: all is one episode, which matters to a
        policy with memory only. `learning_rate` None: the one `learn` starts with. Returns the mean of −ln π per epoch.
        """
        return clone(
            self.policy,
            observations,
            actions,
            episode_starts,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=self._learning_rates(1.0)[0] if learning_rate is None else learning_rate,
            sequence_length=self._effective_sequence_length(),
            max_grad_norm=self.max_grad_norm,
            seed=self.stream_seed,
        )

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        self.dismiss()
        super().set_env(env, force_reset)
        if self.n_jobs > 1:
            self._check_jobs()
        assert self.env is not None
        if self.state_adversary is not None:
            self.state_adversary.follow(self.env)
        previous = self.collector
        self.collector = Collector(self.policy, self.env)
        self.rollout_buffer = None
        if previous is not None and not force_reset:
            self.collector.stand(previous.standing)

    # --- several processes ------------------------------------------------------------------------------------------

    @classmethod
    def replica(cls, env: VecEnv, peers: Peers, **arguments: Any) -> Self:
        """A model that trains as one of several `peers` on their share of the envs; for those who launch processes."""
        model = cls(env=env, _init_setup_model=False, **arguments)
        model.peers = peers
        model._setup_model()
        return model

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        several = EnvList(env) if isinstance(env, list | tuple) else env
        return BaseAlgorithm._wrap_env(several, verbose, monitor_wrapper)

    def _share_out(self, env: VecEnv) -> None:
        """Start the other processes; this one keeps the first share of the envs."""
        whole = _below_transpose(env)
        # What cannot be told where to go on begins anew, in every process.
        standing = self.standing() if shards.has_state(whole) else None
        self.crew, self._whole_env = Crew(self, whole, standing), whole
        self.peers = self.crew.peers
        own = share(whole.num_envs, self.n_jobs, 0)
        first = shards.shard(whole, own)()
        if not shards.has_state(whole) and self.seed is not None:
            first.seed(self.seed)
        if isinstance(whole, EnvList):
            whole.close()  # its envs have been made again
        self._adopt_env(self._wrap_env(first, self.verbose), None if standing is None else standing.share(own))

    @contextmanager
    def _with_the_crew(self) -> Iterator[None]:
        crew = self.crew
        if crew is None:
            yield
            return
        try:
            with crew.at_work():
                yield
        finally:
            if crew.closed and self.crew is crew:
                self._be_alone(None)

    def _reports(self) -> list[Report]:
        """What the other processes say between two updates."""
        assert self.crew is not None
        with self._with_the_crew():
            return self.crew.reports()

    def dismiss(self) -> None:
        """End the processes of `n_jobs`, which else wait for the next `learn`; it starts them again.

        Envs that have a state go on where they stood, others start anew.
        """
        if self.crew is None:
            return
        if self.crew.busy:
            raise ArgumentError("dismiss() inside a rollout or an update; other processes are at work, call it between")
        standing, state = self.standing(), None
        if self.crew.keeps_state and standing is not None:
            state = self.env_state()
            self.saved_rng_of_jobs = self.rng_of_jobs()
        self.crew.close()
        self._be_alone(None if state is None else standing)

    def _be_alone(self, standing: Standing | None) -> None:
        """One process again, with all envs."""
        whole = self._whole_env
        self.crew, self.peers = None, ALONE
        if not shards.has_state(whole):
            whole = shards.shard(whole, slice(0, whole.num_envs))()
        self._adopt_env(self._wrap_env(whole, self.verbose), standing)

    def _adopt_env(self, env: VecEnv, standing: Standing | None) -> None:
        self.env, self.n_envs = env, env.num_envs
        self.collector, self.rollout_buffer = Collector(self.policy, env), None
        self._last_obs = None
        if standing is not None:
            self.collector.stand(standing)
            self._last_obs, self._last_episode_starts = standing.observation, standing.starts

    def standing(self) -> Standing | None:
        """Where all envs stand; None before the first rollout, and inside one with several processes."""
        if self.collector is None or self._last_obs is None:
            return None
        if self.crew is None:
            return self.collector.standing
        if self.crew.busy:
            return None
        return together([self.collector.standing, *(report.standing for report in self._reports())])

    def env_state(self) -> dict[str, Any]:
        """The state of all envs, those of the other processes included, of an env that has a `state_dict`.

        Between two updates; it goes back by the `load_state_dict` of an env of as many, before `learn`.
        """
        env: Any = self.env
        if self.crew is None:
            own: dict[str, Any] = env.state_dict()
            return own
        whole: Any = self._whole_env
        whole.join([env.state_dict(), *(report.env_state for report in self._reports())])
        state: dict[str, Any] = whole.state_dict()
        return state

    def rng_of_jobs(self) -> checkpoint.Rngs:
        """The global generators of the other processes."""
        if self.crew is None or self.crew.busy:
            return self.saved_rng_of_jobs
        return [report.rng for report in self._reports()]

    @property
    def resumes_exactly(self) -> bool:
        """Whether a save now holds all there is, but for the env's own state, which its owner can ask for."""
        return not self._mid_rollout and (self.crew is None or self.crew.keeps_state)

    # --- state and files --------------------------------------------------------------------------------------------

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []

    def state(self) -> dict[str, Any]:
        """The state of every small owner, as plain data."""
        return {
            "returns": self.critic_scale.returns.state_dict(),
            "entropy": self.entropy_schedule.state_dict(),
            "kl_penalty": None if self.kl_controller is None else self.kl_controller.state_dict(),
            "consecutive_skips": self.updater.pipeline.guard.consecutive,
            "risk": None if self.risk_control is None else self.risk_control.state_dict(),
            "adversary": None if self.state_adversary is None else self.state_adversary.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.critic_scale.returns.load_state_dict(state["returns"])
        self.entropy_schedule.load_state_dict(state["entropy"])
        if self.kl_controller is not None and state["kl_penalty"] is not None:
            self.kl_controller.load_state_dict(state["kl_penalty"])
        self.updater.pipeline.guard.consecutive = state["consecutive_skips"]
        if self.risk_control is not None and state["risk"] is not None:
            self.risk_control.load_state_dict(state["risk"])
        if self.state_adversary is not None and state.get("adversary") is not None:
            self.state_adversary.load_state_dict(state["adversary"])

    def save(
        self, path: checkpoint.Path, exclude: Iterable[str] | None = None, include: Iterable[str] | None = None
    ) -> None:
        """Write safetensors and a JSON manifest to `path` (`.zip` is appended) or a file object; see `checkpoint`."""
        checkpoint.save(self, path, exclude, include)

    @classmethod
    def load(
        cls,
        path: checkpoint.Path,
        env: GymEnv | None = None,
        device: torch.device | str = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> Self:
        """Read a model; with an env and `force_reset=False` training continues as if it had never stopped."""
        return checkpoint.load(cls, path, env, device, custom_objects, print_system_info, force_reset, **kwargs)

    def set_parameters(
        self, load_path_or_dict: Any, exact_match: bool = True, device: torch.device | str = "auto"
    ) -> None:
        """Weights and optimiser from a checkpoint of ours, or from what `get_parameters` returned."""
        checkpoint.set_parameters(self, load_path_or_dict, exact_match, device)


M = TypeVar("M", bound=Frozen)
_EPISODE = ("episode", "is_success")  # what SB3 keeps of an info at the end of an episode
# How the metrics of several processes become one, where that is not their mean.
_KINDS = dict.fromkeys(
    ("train/popart_max_shift", "warn/excessive_return_scaling", "warn/ret_std_triggering_scaling"), "max"
)
_SHOWN = {
    "train/approx_kl",
    "train/clip_fraction",
    "train/clip_range",
    "train/clip_range_vf",
    "train/entropy_loss",
    "train/explained_variance",
    "train/learning_rate",
    "train/loss",
    "train/n_updates",
    "train/policy_gradient_loss",
    "train/std",
    "train/value_loss",
    "train/calibration_error",
    "train/skipped_minibatches",
}


def _dict(name: str, model: type[M], values: Mapping[str, Any] | M | None) -> M | None:
    if values is None or isinstance(values, model):
        return values
    if not isinstance(values, Mapping):
        raise ConfigError(f"{name} must be a dict or None, got {values!r}")
    return model.read(values, where=name)


class _Bar(ProgressBarCallback):
    """SB3's, which counts the envs of the first process alone."""

    def _on_step(self) -> bool:
        assert isinstance(self.model, DistributionalPPO)
        self.pbar.update(self.model.all_envs)
        return True


def _with_bar(callback: MaybeCallback) -> list[BaseCallback]:
    if isinstance(callback, list):
        return [*callback, _Bar()]
    return [callback if isinstance(callback, BaseCallback) else ConvertCallback(callback), _Bar()]


def _below_transpose(env: VecEnv) -> VecEnv:
    """What was given, without the layer that SB3 adds for images."""
    return env.venv if isinstance(env, VecTransposeImage) else env


def _offers(env: VecEnv | None, name: str) -> bool:
    """Whether the VecEnv, or the envs inside it, have this attribute."""
    return env is not None and (hasattr(env, name) or env.has_attr(name))


def _constraints(values: Any) -> tuple[Risk, ...]:
    """`risk=` as a tuple: one dict, several, or none."""
    if values is None:
        return ()
    several = values if isinstance(values, list | tuple) else [values]
    found = [_dict("risk" if len(several) == 1 else f"risk[{i}]", Risk, each) for i, each in enumerate(several)]
    return tuple(each for each in found if each is not None)


def _positive(name: str, value: int) -> None:
    if not isinstance(value, int | np.integer) or value < 1:
        raise ArgumentError(f"{name} must be a whole number of at least 1, got {value!r}")


def _rate_groups(policy: DistributionalPolicy, rates: list[float]) -> list[dict[str, Any]]:
    """The optimiser's groups: all parameters at one rate, or what the critics alone use at a second."""
    if len(rates) == 1:
        return [{"params": list(policy.parameters()), "lr": rates[0]}]
    parts = policy.parameter_groups().items()
    critic = {id(p) for name, parameters in parts if name.startswith(("critic", "cost", "step")) for p in parameters}
    sides = ([p for p in policy.parameters() if (id(p) in critic) == own] for own in (False, True))
    return [{"params": side, "lr": rate} for side, rate in zip(sides, rates, strict=True)]


def _critic_warnings(metrics: dict[str, float]) -> dict[str, float]:
    """Do both critics learn? (FINDINGS C7)"""
    found: dict[str, float] = {}
    norms = [metrics.get(f"train/critic{i}_grad_norm") for i in (1, 2)]
    for i, norm in enumerate(norms, start=1):
        if norm is not None:
            found[f"warn/critic{i}_vanishing_gradients"] = float(norm < 1e-8)
    if norms[0] is not None and norms[1] is not None:
        ratio = norms[0] / max(norms[1], 1e-30)
        found["train/critics_grad_ratio"] = ratio
        found["warn/twin_critics_gradient_imbalance"] = float(not 0.01 <= ratio <= 100.0)
    return found


def _memory_metrics(policy: DistributionalPolicy, buffer: RolloutBuffer) -> dict[str, float]:
    """The hidden states from which sequences start, by layer."""
    found: dict[str, float] = {}
    parts = policy.actor_memory.parts if policy.actor_memory is not None else 0
    places = {"lstm": 0} if policy.actor_memory is not None else {}
    if policy.critic_memory is not None:
        places["lstm_critic"] = parts
    for prefix, place in places.items():
        hidden = buffer.memories[place]  # (slots, layers, B, H)
        for layer in range(hidden.shape[1]):
            h = hidden[:, layer]
            found[f"{prefix}/h_mean_layer{layer}"] = float(h.mean())
            found[f"{prefix}/h_std_layer{layer}"] = float(h.std(correction=0))
            found[f"{prefix}/h_norm_layer{layer}"] = float(torch.linalg.vector_norm(h, dim=-1).mean())
            found[f"{prefix}/saturation_layer{layer}"] = float((h.abs() > 0.95).float().mean())
    return found
