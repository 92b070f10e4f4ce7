"""DistributionalPPO: a Stable-Baselines3 algorithm with the arguments of sb3_contrib's RecurrentPPO.

`learn` is rounds of `collect` and `train`. This class steps envs, speaks SB3's language to callbacks and loggers, and
reads and writes files; what learns is the `engine`, who else trains is known to `processes`, and `settings` holds every
argument that is not Python's own.
"""

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, cast

import numpy as np
import torch
from gymnasium import Env, spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback, ProgressBarCallback
from stable_baselines3.common.logger import HumanOutputFormat, KVWriter, Logger
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import FloatSchedule, safe_mean
from stable_baselines3.common.vec_env import VecEnv

from leeward.algorithm import checkpoint, schedules, vecnormalize_drift
from leeward.algorithm.behaviour_cloning import clone
from leeward.algorithm.course import Course
from leeward.algorithm.draw_memory import DrawMemory, fingerprint
from leeward.algorithm.engine import Engine, Round
from leeward.algorithm.env_looks import EXAMINED
from leeward.algorithm.guard import Guard, OnAlert
from leeward.algorithm.health_numbers import Witness, network_has_its_turn
from leeward.algorithm.live_settings import Fixed, Live, LiveSchedule, changed_settings, warn_of_thin_tails
from leeward.algorithm.parallel.env_shards import EnvFunction, EnvList, env_functions
from leeward.algorithm.parallel.processes import Processes
from leeward.algorithm.reward_discount import discount_look
from leeward.algorithm.risk_constraint import RiskControl
from leeward.algorithm.sb3_state import Counters, Episodes
from leeward.algorithm.state_adversary import AttackedFeatures, AttackSurface
from leeward.algorithm.targets import Targets
from leeward.algorithm.two_threads import TwoThreads, two_threads
from leeward.config.health import Health
from leeward.config.learning import AWR, VGS, Adversary, Entropy, KLPenalty, Risk, ValueClip
from leeward.config.settings import Settings
from leeward.errors import ArgumentError, EnvironmentFault, TrainingDiverged, did_you_mean
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
from leeward.rollout import streams
from leeward.rollout.buffer import RolloutBuffer
from leeward.rollout.collector import Collector, RawObservation
from leeward.rollout.noise import rollout_noise
from leeward.rollout.rollout_state import RolloutState
from leeward.rollout.sequences import memory_times
from leeward.telemetry import metrics
from leeward.telemetry.alerts import Alert
from leeward.telemetry.metrics import Numbers

__all__ = ["Collected", "DistributionalPPO"]

_ACTION_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_PLAIN_SPACES = "Box, Discrete, MultiDiscrete or MultiBinary"
_WORK = 12e6  # rows of a minibatch times weights; layers of 64 take a thousand rows
_ENOUGH_EPISODES = 5  # whose mean return says something
_ENOUGH_ROLLOUTS = 10  # in which a reward should have differed
_EPISODE = ("episode", "is_success")  # what SB3 keeps of an info at the end of an episode


@dataclass(frozen=True)
class Collected:
    """A rollout, what is to be learned from it, and where SB3's VecNormalize was before it."""

    rollout: RolloutBuffer
    targets: Targets
    normaliser_before: vecnormalize_drift.Moments | None
    witness: Witness  # of what the envs gave
    draws: int | None  # the fingerprint of its random numbers


class DistributionalPPO(BaseAlgorithm):
    """Recurrent PPO with a distributional critic. Arguments up to `_init_setup_model` are RecurrentPPO's.

    Ours are keyword-only. `leeward.config.settings.Settings` describes each of them, docs/from-sb3.md lists them.
    Every argument can be read from the model under its name, and a new value can be assigned: it acts from the next
    update on, or is refused if the network depends on it. `set_hyperparameters` changes several at once.
    `env` is also a list of functions that make one env each. Every update is judged by the health rules (see
    docs/reading-a-run.md): what they find is in `alerts`, and `on_alert` is called with each, instead of a line on the
    console.
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
        health: Mapping[str, Any] | Health | None = None,
        on_alert: OnAlert | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in Settings.model_fields}
        if isinstance(policy, type) and not issubclass(policy, DistributionalPolicy):
            raise ArgumentError(
                f"policy {policy.__module__}.{policy.__qualname__} is of another library; use one of "
                f"{', '.join(self.policy_aliases)} or a subclass of leeward's DistributionalPolicy"
            )
        if isinstance(policy, str) and policy not in self.policy_aliases:
            raise ArgumentError(f"unknown policy {policy!r}; {did_you_mean(policy, self.policy_aliases)}")
        if env is None and _init_setup_model:
            raise ArgumentError("a new model needs an env: its spaces decide the network; load() works without one")
        _check_seed(seed)
        self.is_built = False  # until then attributes may be set; afterwards see `live_settings`
        self._settings = Settings.read(given, where="DistributionalPPO")
        self.processes = Processes(self)
        self.guard, self.course, self.draw_memory = Guard(self, on_alert), Course(), DrawMemory()
        super().__init__(
            policy,
            env_functions(env, self.settings.n_jobs),
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
        self.missing_arguments: dict[str, str] = {}  # schedules a loaded file could only name
        self.stream_seed = (
            seed if seed is not None else int(np.random.SeedSequence().generate_state(1, np.uint64)[0] >> 1)
        )
        if _init_setup_model:
            self._setup_model()

    # --- construct --------------------------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        settings = self.settings
        self.processes.check(self.env, self.device)
        self.set_random_seed(self.seed)
        bounded = isinstance(self.action_space, spaces.Box) and self.action_space.is_bounded()
        self.policy = cast(type[DistributionalPolicy], self.policy_class)(
            self.observation_space,
            self.action_space,
            FloatSchedule(settings.learning_rate),
            use_sde=settings.use_sde,
            action_distribution=settings.resolved_action_distribution(bounded_box=bounded),
            settings=settings,
            **self.policy_kwargs,
        ).to(self.device)
        self._check_against_env(settings)
        self.engine = Engine(self.policy, settings, self.processes.n_envs)
        self._spare_what_the_env_marks()
        self.n_rollouts = 0
        self.last_metrics: dict[str, float] = {}
        self.rollout_buffer: RolloutBuffer | None = None
        self._threads = TwoThreads()  # two of them while it learns
        self._mid_round = False
        self._began = time.monotonic()
        self.collector = None if self.env is None else Collector(self.policy, self.env)
        self.is_built = True

    @property
    def alerts(self) -> list[Alert]:
        """What the health rules found so far, in the order of time."""
        return self.guard.monitor.alerts

    @property
    def settings(self) -> Settings:
        """Every argument that is not Python's own, as it is in force; frozen."""
        return self._settings if not self.is_built else self.engine.settings

    def set_hyperparameters(
        self, *, optimizer_strategy: Literal["copy", "reset"] = "copy", **values: Any
    ) -> dict[str, Any]:
        """Change settings from the next update on, all of them or none; returns what the live objects then say.

        Keys are arguments of the constructor, or lead by dots to a field of one: `"risk.0.learning_rate"`. A rate that
        is a schedule reads back as the number it starts from. `reset` starts the optimiser afresh, `copy` keeps what it
        has gathered.
        """
        if optimizer_strategy not in ("copy", "reset"):
            raise ArgumentError(f"optimizer_strategy must be 'copy' or 'reset', got {optimizer_strategy!r}")
        after = changed_settings(self.settings, values)
        self._check_against_env(after)
        self.processes.tell(after, fresh_optimizer=optimizer_strategy == "reset")
        self.put_in_force(after, fresh_optimizer=optimizer_strategy == "reset")
        return self.read_hyperparameters(values)

    def read_hyperparameters(self, keys: Iterable[str]) -> dict[str, Any]:
        """What the live objects say of settings, by the keys that `set_hyperparameters` takes."""
        return {key: self.engine.read_back(key, self._current_progress_remaining) for key in keys}

    def put_in_force(self, settings: Settings, *, fresh_optimizer: bool) -> None:
        """Train by other settings, which have been checked, from the next update on."""
        self.engine.put_in_force(settings, self._current_progress_remaining)
        self._spare_what_the_env_marks()
        Episodes(self).resize(settings.stats_window_size)
        if fresh_optimizer:
            self.engine.build_optimizer(self._current_progress_remaining)
            self.guard.monitor.forget(metrics.OPTIMIZER_STEPS)

    def _check_against_env(self, settings: Settings) -> None:
        """What only an env can tell of settings; it raises before anything is changed."""
        if self.env is None:  # to predict with
            return
        warn_of_thin_tails(settings)
        n_envs = self.processes.n_envs
        if _offers(self.env, "risk_unit"):  # a trading env: its step_return is a log-return
            for each in settings.risk:
                each.check_log_return()
        RiskControl.deployed(n_envs, settings.risk)  # refuses too few
        limited = any(each.is_active and each.measure == "episode_return" for each in settings.risk)
        if limited and not _offers(self.env, "shows_running_return"):
            warnings.warn(
                "risk: the limit is on the return of a whole episode, but the observation does not show what the "
                "episode has returned so far, so the agent cannot react to it; wrap the env in "
                "leeward.env.RunningReturn",
                stacklevel=4,
            )
        rollout = settings.n_steps * n_envs
        if settings.batch_size is not None and settings.batch_size > rollout:
            warnings.warn(
                f"batch_size {settings.batch_size} is larger than a rollout of {settings.n_steps} steps × {n_envs} "
                f"envs = {rollout}; the whole rollout is one minibatch",
                stacklevel=4,
            )

    def _spare_what_the_env_marks(self) -> None:
        if self.engine.state_adversary is not None and self.env is not None:
            self.engine.state_adversary.spare(self.env)

    # --- learn ------------------------------------------------------------------------------------------------------

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
        with self.processes.training(), self._two_threads():
            self._began = time.monotonic()  # SB3's own start is of a clock that may be set back
            fresh = reset_num_timesteps or self._last_obs is None
            if progress_bar:
                callback = _with_bar(callback)
            with self._logger_without_folder():
                total_timesteps, active = self._setup_learn(total_timesteps, callback, reset_num_timesteps, tb_log_name)
            self.course.begin(self.num_timesteps, total_timesteps)
            self._begin(fresh=fresh)
            active.on_training_start(locals(), globals())
            iteration, dumped, rewards_differed = 0, True, False
            self.guard.act()
            while self.num_timesteps < total_timesteps:
                before = self.n_rollouts
                if not self._guarded_round(active):
                    break
                if self.n_rollouts == before:
                    continue  # it failed and is made again: there is nothing to log
                iteration += 1
                rewards_differed |= not self.last_metrics.get(metrics.WARN_REWARD_CONSTANT.name)
                # An update with an error is always logged, since it may be the last.
                dumped = self.guard.is_troubled or (log_interval is not None and iteration % log_interval == 0)
                if dumped:
                    self.dump_logs(iteration)
                self.guard.act()
            if not dumped:
                self.dump_logs(iteration)
            active.on_training_end()
        self._say_what_came_of_it(iteration, rewards_differed)
        return self

    def _say_what_came_of_it(self, rollouts: int, rewards_differed: bool) -> None:
        """The end of training in a sentence, where there is something to say: a limit not kept is a warning."""
        if rollouts >= _ENOUGH_ROLLOUTS and not rewards_differed:
            warnings.warn(
                f"no two returns differed in {rollouts} rollouts, so there was nothing to learn from: the goal was "
                "never reached, or the env gives no reward. Explore more, make the reward denser, or check the env",
                stacklevel=3,
            )
        control = self.engine.risk_control
        for verdict in control.verdicts() if control is not None and rollouts else ():
            if not verdict.kept:
                warnings.warn(verdict.sentence, stacklevel=3)
            elif self.verbose > 0:
                sys.stdout.write(f"{verdict.sentence}\n")

    @contextmanager
    def _logger_without_folder(self) -> Iterator[None]:
        """SB3's own logger makes a folder in the temporary directory for every `learn`, and leaves it there empty."""
        if self._custom_logger or self.tensorboard_log is not None:
            yield
            return
        outputs: list[KVWriter] = [HumanOutputFormat(sys.stdout)] if self.verbose >= 1 else []
        self._logger, self._custom_logger = Logger(folder=None, output_formats=outputs), True
        try:
            yield
        finally:
            self._custom_logger = False

    def _minibatches_are_work(self) -> bool:
        """Whether a second thread gains more than handing over to it costs: always with a memory."""
        rows = self.settings.batch_size or self.settings.n_steps * self.processes.n_envs
        weights = sum(parameter.numel() for parameter in self.policy.parameters())
        return self.policy.actor_memory is not None or rows * weights >= _WORK

    @contextmanager
    def _two_threads(self) -> Iterator[None]:
        """Actor and critics train side by side inside, if they may."""
        # What an adversary adds to the losses of both halves is drawn from one generator.
        side_by_side = self.engine.updater.side_by_side and self.engine.state_adversary is None
        with two_threads(wanted=side_by_side, worth=self._minibatches_are_work()) as self._threads:
            try:
                yield
            finally:
                self._threads = TwoThreads()

    def _guarded_round(self, callback: BaseCallback) -> bool:
        """A round, which may fail and be survived; False when a callback asked to stop."""
        steps = self.num_timesteps
        try:
            return self.train_one_round(callback)
        except (EnvironmentFault, TrainingDiverged) as error:
            self.num_timesteps = steps
            if not self.guard.survives(error):
                raise
            return True

    def begin_anew(self) -> None:
        """Reset the envs and the memory, as at the start of `learn`; the memory of other weights is of no use."""
        assert self.env is not None
        self._last_obs = self.env.reset()  # type: ignore[assignment]
        self._mid_round = False
        self._begin(fresh=True)

    def _begin(self, *, fresh: bool) -> None:
        """All processes begin with what was learned so far; `fresh`: from envs that were just reset."""
        assert self.collector is not None
        self.engine.weights.forget()
        if fresh:
            self.collector.reset(cast(RawObservation, self._last_obs))
            if self.engine.risk_control is not None:
                self.engine.risk_control.begin(self.processes.n_envs)
        self.processes.begin(fresh=fresh)

    def train_one_round(self, callback: BaseCallback) -> bool:
        """One rollout and its update, together with all processes; False when a callback asked to stop."""
        callback.on_rollout_start()
        began, steps = time.monotonic(), self.num_timesteps
        with self.processes.one_round():
            collected = self.collect(callback)
            if collected is None:
                return False
            # A last rollout that runs past the end must not drive schedules below their end.
            done = min(self.num_timesteps, self._total_timesteps)
            self._update_current_progress_remaining(done, self._total_timesteps)
            self.train(collected)
            if self.processes.group.rank == 0:
                speed = (self.num_timesteps - steps) / max(time.monotonic() - began, sys.float_info.epsilon)
                self._judge({metrics.ROUND_FPS: speed})
        return True

    def collect(self, callback: BaseCallback) -> Collected | None:
        """A rollout and its targets; None when a callback asked to stop."""
        collector, settings, now = self.collector, self.settings, self._round()
        assert collector is not None
        normaliser_before = vecnormalize_drift.moments(self._vec_normalize_env)
        hold = max(settings.sde_sample_freq, 0) if settings.use_sde else None
        noise = rollout_noise(
            self.policy,
            now.seed,
            now.number,
            settings.n_steps,
            self.n_envs,
            hold=hold,
            first_env=now.group.first_env,
        )
        plan = self.engine.plan(None)
        times = memory_times(settings.n_steps, plan.sequence_length, plan.burn_in)
        rollout = collector.room(settings.n_steps, times, self._deployed())
        self.rollout_buffer, self._mid_round = rollout, True
        witness = self._fill(rollout, noise, hold, callback)
        if witness is None:
            return None
        if network_has_its_turn(now.number):
            witness.follow(self.policy, collector.state, rollout)
        targets = self.engine.targets(rollout, now, self._reward_unit())
        self.rollout_buffer = rollout = rollout.with_targets(targets.values, targets.raw_advantages)
        callback.on_rollout_end()
        return Collected(rollout, targets, normaliser_before, witness, fingerprint(noise))

    def _round(self) -> Round:
        return Round(
            self.n_rollouts, self.stream_seed, self.device, self._current_progress_remaining, self.processes.group
        )

    def _fill(
        self, rollout: RolloutBuffer, noise: torch.Tensor, hold: int | None, callback: BaseCallback
    ) -> Witness | None:
        """Step the envs, with SB3's callbacks and record of episodes; None when a callback asked to stop, else a
        witness of what they gave."""
        collector, group = self.collector, self.processes.group
        assert collector is not None
        total_timesteps, n_envs = self._total_timesteps, self.processes.n_envs
        episodes = list[dict[str, Any]]()
        witness = Witness(len(rollout.rewards), self.action_space)

        def on_step(local_variables: dict[str, Any]) -> bool:
            self.num_timesteps += n_envs
            self._last_obs = collector.observation
            self._last_episode_starts = collector.starts
            callback.update_locals(
                local_variables | {"self": self, "callback": callback, "total_timesteps": total_timesteps}
            )
            if not callback.on_step():
                return False
            finished = np.flatnonzero(local_variables["dones"])
            witness.step(local_variables["clipped_actions"], local_variables["rewards"], finished)
            if len(finished):
                infos = [local_variables["infos"][i] for i in finished]
                self._note_episodes(infos)
                witness.cut += sum(bool(info.get("TimeLimit.truncated", False)) for info in infos)
                for env, info in zip(finished.tolist(), infos, strict=True):
                    if "terminal_observation" in info:
                        witness.end(env, info["terminal_observation"], collector.observation)
                if group.rank > 0:
                    episodes.extend({key: info[key] for key in _EPISODE if key in info} for info in infos)
            return True

        steps = collector.collect(rollout, noise, hold, on_step)
        going = steps == len(rollout.rewards)
        for others_go, theirs in group.gather((going, episodes)):
            going = going and others_go
            self._note_episodes(theirs)
        if not going and self.engine.risk_control is not None:
            self.engine.risk_control.carry(rollout, steps, group)
        return witness if going else None

    def _note_episodes(self, infos: Sequence[Mapping[str, Any]]) -> None:
        self._update_info_buffer(cast(list[dict[str, Any]], infos), np.ones(len(infos), dtype=bool))

    def _deployed(self) -> torch.Tensor | None:  # (B,) bool
        """This process's envs that act without noise."""
        deployed = RiskControl.deployed(self.processes.n_envs, self.settings.risk)
        return None if deployed is None else self.processes.group.own(deployed[None])[0]

    def _reward_unit(self) -> float:
        """What a VecNormalize divides rewards by; 1 without one."""
        normaliser = self._vec_normalize_env
        if normaliser is None or not normaliser.norm_reward:
            return 1.0
        return float(np.sqrt(normaliser.ret_rms.var + normaliser.epsilon))

    # --- train ------------------------------------------------------------------------------------------------------

    def train(self, collected: Collected) -> None:
        """Learn from a rollout, and record what happened."""
        assert self.collector is not None
        now, rollout = self._round(), collected.rollout
        numbers = self.engine.learn_from(rollout, collected.targets, now, self._threads)
        numbers |= self.course.learned_from(len(rollout.rewards) * self.processes.n_envs, now.remaining)
        numbers[metrics.DRAWS_REPEATED] = self.draw_memory.look(collected.draws)
        numbers |= self.engine.predicted_tails(self.collector.state)
        normaliser_now = vecnormalize_drift.moments(self._vec_normalize_env)
        numbers |= vecnormalize_drift.drift(collected.normaliser_before, normaliser_now)
        if now.number < EXAMINED:
            numbers |= discount_look(self.collector.env, self.settings.gamma)
        own = collected.witness.compare(rollout) | {metrics.ENVS_MOVED: float(self.collector.moved_outside)}
        given = self.processes.group.combine(own)
        if metrics.VALUE_DEV in given:
            given[metrics.VALUE_DEV] = max(given[metrics.VALUE_DEV], numbers[metrics.VALUE_DEV])
        numbers |= given
        self._n_updates += self.settings.n_epochs
        numbers[metrics.N_UPDATES] = self._n_updates
        self.n_rollouts += 1
        self._mid_round = False
        self.last_metrics = {metric.name: value for metric, value in numbers.items()}
        self.report(numbers)

    def report(self, numbers: Numbers) -> None:
        """Numbers of this round, of an update or of a callback, for the log and for the health rules."""
        self.guard.monitor.note(numbers)
        for metric, value in numbers.items():
            self.logger.record(metric.name, value, exclude=None if metric.shown else "stdout")

    def _judge(self, numbers: Numbers) -> None:
        """Let the health rules look at all that was reported since the last time."""
        if self.ep_info_buffer and len(self.ep_info_buffer) >= _ENOUGH_EPISODES:
            returns = [float(info["r"]) for info in self.ep_info_buffer]
            numbers |= {metrics.EP_REW_MEAN: float(np.mean(returns)), metrics.EP_REW_STD: float(np.std(returns))}
        series = self.guard.watch(numbers)
        self.last_metrics |= {metric.name: value for metric, value in series.items()}
        for metric, value in (numbers | series).items():
            if metric != metrics.EP_REW_MEAN:  # SB3's, which is written with its own
                self.logger.record(metric.name, value, exclude="stdout")

    def dump_logs(self, iteration: int = 0) -> None:
        """Write what was recorded, under SB3's keys for time and episodes."""
        elapsed = max(time.monotonic() - self._began, sys.float_info.epsilon)
        record = self.logger.record
        record(metrics.ITERATIONS.name, iteration, exclude="tensorboard")
        if self.ep_info_buffer:
            record(metrics.EP_REW_MEAN.name, safe_mean([info["r"] for info in self.ep_info_buffer]))
            record(metrics.EP_LEN_MEAN.name, safe_mean([info["l"] for info in self.ep_info_buffer]))
        record(metrics.FPS.name, int((self.num_timesteps - self._num_timesteps_at_start) / elapsed))
        record(metrics.TIME_ELAPSED.name, int(elapsed), exclude="tensorboard")
        record(metrics.TOTAL_TIMESTEPS.name, self.num_timesteps, exclude="tensorboard")
        if self.ep_success_buffer:
            record(metrics.SUCCESS_RATE.name, safe_mean(self.ep_success_buffer))
        self.logger.dump(step=self.num_timesteps)

    # --- predict ----------------------------------------------------------------------------------------------------

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
        return self.policy.predict_distribution(observation, state, episode_start)

    def attack_surface(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
    ) -> AttackSurface:
        """Slopes of actions and value in the observation, for `leeward.backtest.robustness`; changes nothing."""
        adversary = self.settings.adversary
        chosen: dict[str, Any] = {}
        if adversary is not None:
            chosen = {"keys": adversary.keys, "scale": adversary.scale}
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
        rate = schedules.learning_rates(self.settings, 1.0)[0] if learning_rate is None else learning_rate
        return clone(
            self.policy,
            observations,
            actions,
            episode_starts,
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=rate,
            sequence_length=self.engine.plan(None).sequence_length,
            max_grad_norm=self.settings.max_grad_norm,
            seed=self.stream_seed,
        )

    # --- env and randomness -----------------------------------------------------------------------------------------

    def set_env(self, env: GymEnv, force_reset: bool = True) -> None:
        self.processes.stop()
        previous = self.collector
        self._settings, self.is_built = self.settings, False
        try:
            super().set_env(env, force_reset)
        finally:
            self.is_built = True
        self.processes.check(self.env, self.device)
        assert self.env is not None
        self._spare_what_the_env_marks()
        self.collector, self.rollout_buffer = Collector(self.policy, self.env), None
        if previous is not None and not force_reset:
            self.collector.state = previous.state

    def adopt_env(self, env: VecEnv, state: RolloutState | None) -> None:
        """Go on with other envs of the same kind, from `state` or anew; for those who share them out."""
        self.__dict__["env"] = wrapped = self._wrap_env(env, self.verbose)
        self.n_envs = wrapped.num_envs
        self.collector, self.rollout_buffer = Collector(self.policy, wrapped), None
        self._last_obs = None
        if state is not None:
            self.resume_from(state)

    @property
    def rollout_state(self) -> RolloutState | None:
        """Where this process's envs are; None before the first rollout."""
        return None if self.collector is None or self._last_obs is None else self.collector.state

    def resume_from(self, state: RolloutState) -> None:
        """The next rollout goes on from `state`."""
        assert self.collector is not None
        self.collector.state = state
        self._last_obs, self._last_episode_starts = state.observation, state.starts

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        several = EnvList(env) if isinstance(env, list | tuple) else env
        if isinstance(several, Env | VecEnv):  # what is no env, or another Gym's, is SB3's to say
            _check_spaces(several.observation_space, several.action_space)
        return BaseAlgorithm._wrap_env(several, verbose, monitor_wrapper)

    def set_random_seed(self, seed: int | None = None) -> None:
        """SB3's generators, and the streams of our own; None leaves the seed as it is."""
        _check_seed(seed)
        if seed is not None:
            self.processes.stop()  # the envs of the other processes are seeded when they are made again
        super().set_random_seed(seed)
        if seed is not None:
            self.stream_seed = seed
        self._predict_noise = streams.generator(self.stream_seed, streams.PREDICT, 0)

    # --- save -------------------------------------------------------------------------------------------------------

    def owners(self) -> dict[str, Any]:
        """Everything small that has a state of its own, by the name a file keeps it under."""
        return self.engine.owners() | {
            "counters": Counters(self),
            "episodes": Episodes(self),
            "health": self.guard,
            "draws": self.draw_memory,
        }

    @property
    def resumes_exactly(self) -> bool:
        """Whether a save now holds all there is, but for the env's own state, which its owner can ask for."""
        return not self._mid_round and self.processes.keep_env_state

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer"], []

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
        super().set_parameters(checkpoint.parameters_of(load_path_or_dict), exact_match, device)
        self.engine.adopt_units()


_ATTRIBUTES = {
    **{name: Live(name) for name in Settings.model_fields},
    "lr_schedule": LiveSchedule("learning_rate"),  # SB3's name for the same
    "policy": Fixed("policy", "build a new model, or set_parameters() for its weights"),
    "env": Fixed("env", "call set_env(env)"),
    "device": Fixed("device", "load() the model on another device"),
    "seed": Fixed("seed", "call set_random_seed(seed)"),
    "policy_kwargs": Fixed("policy_kwargs", "build a new model"),
}
for _name, _attribute in _ATTRIBUTES.items():
    setattr(DistributionalPPO, _name, _attribute)


class _Bar(ProgressBarCallback):
    """SB3's, which counts the envs of the first process alone."""

    def _on_step(self) -> bool:
        assert isinstance(self.model, DistributionalPPO)
        self.pbar.update(self.model.processes.n_envs)
        return True


def _with_bar(callback: MaybeCallback) -> list[BaseCallback]:
    if isinstance(callback, list):
        return [*callback, _Bar()]
    return [callback if isinstance(callback, BaseCallback) else ConvertCallback(callback), _Bar()]


def _check_spaces(observations: spaces.Space[Any], actions: spaces.Space[Any]) -> None:
    """SB3's networks read plain spaces (`_ACTION_SPACES` are all of them) and one Dict of such."""
    if not isinstance(actions, _ACTION_SPACES):
        raise ArgumentError(f"the action space is {actions}, expected {_PLAIN_SPACES}; flatten it in a wrapper")
    parts = observations.spaces.values() if isinstance(observations, spaces.Dict) else (observations,)
    if not all(isinstance(part, _ACTION_SPACES) for part in parts):
        raise ArgumentError(
            f"the observation space is {observations}, expected {_PLAIN_SPACES}, or a Dict of these; turn a Tuple into "
            "a Dict, and flatten what is nested, in a wrapper"
        )


def _check_seed(seed: Any) -> None:
    if seed is not None and (not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32):
        raise ArgumentError(
            f"seed must be a whole number from 0 to 2**32 - 1, as NumPy's generators take it, got {seed!r}"
        )


def _offers(env: VecEnv | None, name: str) -> bool:
    """Whether the VecEnv, or the envs inside it, have this attribute."""
    return env is not None and (hasattr(env, name) or env.has_attr(name))
