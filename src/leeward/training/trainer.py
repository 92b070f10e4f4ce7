"""Train an agent on its task: rollouts and updates, a score on validation every few of them, and checkpoints."""

import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv

from leeward.algorithm.guard import OnAlert
from leeward.algorithm.parallel.processes import Launch
from leeward.algorithm.ppo import DistributionalPPO
from leeward.algorithm.risk_constraint import LimitVerdict
from leeward.config.run import RunConfig
from leeward.errors import CheckpointError
from leeward.market import Market
from leeward.optim.build import OPTIMIZERS
from leeward.telemetry.alerts import Alert, announce
from leeward.telemetry.metrics import TOTAL_TIMESTEPS
from leeward.training.checkpoints import (
    Files,
    load_model,
    model_file,
    newest_whole,
    read_files,
    read_trainer_state,
    restore_env,
    take_weights,
    write_checkpoint,
)
from leeward.training.logs import AlertFile, Listener, ProgressFile, TensorBoardFile, make_logger
from leeward.training.mirrors import open_mirror
from leeward.training.run_dir import RunDir
from leeward.training.tasks import Scored, Task, task_of
from leeward.training.trade_metrics import EpisodeScore, Score, read_score

__all__ = [
    "EndedAtOnce",
    "Interrupted",
    "Progress",
    "Session",
    "Stoppable",
    "interruptible",
    "learn",
    "live_rate",
    "make_model",
    "pick_up",
    "replay_one_update",
    "seed_of",
    "train",
]


# What asks for an end, as a terminal, a scheduler and a lost connection send it.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked for an end; the run was saved after a whole update and can be resumed."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class EndedAtOnce(KeyboardInterrupt):
    """A second signal came before the update was done; the last checkpoint stays."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Stoppable(Protocol):
    """Whoever ends training after the current update when a signal has come."""

    interrupted: int | None  # the signal


@dataclass(frozen=True)
class Progress:
    """What a console shows after each update."""

    steps: int
    total_steps: int
    seconds: float  # of this process
    steps_per_second: float
    metrics: dict[str, float]
    exploring: Score | EpisodeScore  # of the last rollout
    validation: Score | EpisodeScore | None  # the last one; None before it
    best: Score | EpisodeScore | None  # of the checkpoint that would be backtested now
    stopping: bool  # a signal asked for an end; this is the last update


@contextmanager
def interruptible(session: Stoppable) -> Iterator[None]:
    """The first signal asks for a stop after the current update; a second one does not wait."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if session.interrupted is not None:
            raise EndedAtOnce(number)
        session.interrupted = number

    try:
        previous = {number: signal.signal(number, on_signal) for number in _SIGNALS}
    except ValueError:  # not in the main thread: whoever runs us there handles the signal
        yield
        return
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def make_model(config: RunConfig, env: VecEnv, on_alert: OnAlert | None = None) -> DistributionalPPO:
    """The agent a config describes."""
    ppo, policy = config.ppo, config.policy
    names = ("learning_rate", "critic_learning_rate")
    rates: dict[str, Any] = {
        name: None if (rate := getattr(ppo, name)) is None else live_rate(config, rate) for name in names
    }
    network = {"optimizer_class": OPTIMIZERS[ppo.optimizer.name], "optimizer_kwargs": ppo.optimizer.settings()}
    return DistributionalPPO(
        policy.name,
        env,
        seed=config.seed,
        device="cpu",
        policy_kwargs=policy.keywords() | network,
        action_distribution=policy.action_distribution,
        risk=config.risk,
        health=config.health,
        on_alert=on_alert,
        **rates,
        **ppo.keywords(),
    )


def live_rate(config: RunConfig, rate: float) -> float | LinearSchedule:
    """A learning rate as a model takes it: a number, or the schedule that begins with it."""
    return LinearSchedule(rate, 0.0, 1.0) if config.ppo.learning_rate_schedule == "linear" else rate


def train(
    run: RunDir,
    market: Market | None,
    show: Callable[[Progress], None],
    *,
    resume: bool,
    parent: RunDir | None = None,
    notice: Callable[[str], None] = warnings.warn,
    tell: Callable[[Alert], None] = announce,
    track: str | None = None,
    launch: Launch | None = None,
    interruptible: Callable[[Stoppable], AbstractContextManager[None]] = interruptible,
) -> list[LimitVerdict]:
    """Train the run in `run` on `market` to its end, from its last good checkpoint if `resume`; what became of limits.

    A run on an env of Gymnasium has no market. With a `parent` a new run begins with the weights of that one's best
    checkpoint. `notice` is told what a person should know: that a damaged checkpoint was passed over, or that versions
    differ; `tell` every health alert; `track` names a tracker that gets a copy of both metrics and alerts. `launch`
    starts the processes of `n_jobs`, here if it is None; `interruptible` passes signals on to the session.
    """
    config = run.config()
    torch.set_num_threads(min(2, torch.get_num_threads()))  # actor and critics; small networks gain nothing from more
    run.sweep()
    task = task_of(config, market)
    task.bind(run)
    checkpoints = run.checkpoint_list() if resume else []
    if checkpoints:
        model, state = _last_good(checkpoints, task, config, notice)
        if different := run.changed_versions():
            notice(f"Exact to the bit only with the same versions: {'; '.join(different)}.")
    else:
        model, state = make_model(config, task.env(config.seed)), {"best": None, "updates": 0}
        if parent is not None:
            take_weights(model, parent.best_checkpoint())
    if launch is not None:
        model.processes.launch = launch
    session = Session(run, config, task, state, show)
    with interruptible(session):
        return learn(
            model,
            session,
            go_on=bool(checkpoints),
            resume_at=model.num_timesteps if resume else None,
            tell=tell,
            track=track,
        )


def learn(
    model: DistributionalPPO,
    session: "Session",
    *,
    go_on: bool,
    resume_at: int | None,
    tell: Callable[[Alert], None],
    track: str | None = None,
) -> list[LimitVerdict]:
    """Train a model to the end of its session's config, with the logs of its run; what became of limits.

    `go_on`: it has been trained before. Rows of an earlier log are kept up to the step `resume_at`; None: none are.
    """
    run = session.run
    alerts = AlertFile(run.alerts_file, model.alerts)
    mirror = None if track is None else open_mirror(track, run.path, session.config.model_dump(mode="json"))

    def on_alert(alert: Alert) -> None:
        alerts.write(alert)
        if mirror is not None:
            mirror.alert(alert, model.num_timesteps)
        tell(alert)

    model.guard.on_alert = on_alert
    logger = make_logger(run.progress_file, run.tensorboard, resume_at, session.on_log)
    if mirror is not None:
        logger.output_formats.append(mirror)
    model.set_logger(logger)
    for name, value in model.guard.monitor.pending.items():  # a score at the checkpoint: of the row that comes next
        logger.record(name, value)
    remaining = session.config.ppo.total_steps - model.num_timesteps
    try:
        if remaining > 0:
            model.learn(remaining, callback=session, reset_num_timesteps=not go_on, log_interval=1)
            session.finish()
    finally:
        model.processes.stop()
        logger.close()
    control = model.engine.risk_control
    return [] if control is None else control.verdicts()


def pick_up(place: Path | Files, task: Task, config: RunConfig) -> tuple[DistributionalPPO, dict[str, Any]]:
    """Model, env and trainer of a checkpoint, as they were; where an env keeps no state, it begins new episodes."""
    files = place if isinstance(place, Files) else read_files(place)
    env = task.env(config.seed)
    model = load_model(files, env, anew=not task.keeps_state)
    if task.keeps_state:
        restore_env(files, env)
    else:
        env.seed(seed_of(config.seed, model.num_timesteps))  # after the load, which seeds it
    return model, read_trainer_state(files)


def seed_of(*parts: int) -> int:
    """A seed of its own for these numbers, far from that of others."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint32)[0])


def _last_good(
    checkpoints: list[Path], task: Task, config: RunConfig, notice: Callable[[str], None]
) -> tuple[DistributionalPPO, dict[str, Any]]:
    """Model, env and trainer of the newest checkpoint that is whole; those that are not are named."""

    def take(files: Files) -> tuple[Path, DistributionalPPO, dict[str, Any]]:
        return files.place, *pick_up(files, task, config)

    taken, damaged = newest_whole(checkpoints, take)
    if taken is None:
        end = f"{checkpoints[0].parent}: no checkpoint is whole; start a new run"
        raise CheckpointError("\n".join([*damaged, end]))
    place, model, state = taken
    for line in damaged:
        notice(f"{line}. Going on from {place} instead.")
    if not task.keeps_state:
        notice("The env keeps no state in a checkpoint: its episodes begin anew.")
    model.guard.keep(model_file(place))
    return model, state


def replay_one_update(run: RunDir, market: Market | None, notice: Callable[[str], None] = warnings.warn) -> str:
    """Train one update from a checkpoint, keep nothing of it, and compare its metrics with those that were logged.

    Returns what was found, in words; raises where a metric has another value than the one that was logged. `notice` is
    told which checkpoints are damaged: an older one is replayed instead.
    """
    config, logged = run.config(), ProgressFile.rows_of(run.progress_file)
    task, found = task_of(config, market), dict[str, float]()
    if not task.keeps_state:
        return "Nothing was replayed: the env keeps no state in a checkpoint."
    run.sweep()

    def take(files: Files) -> tuple[Path, DistributionalPPO, dict[str, Any], dict[str, str]] | None:
        model, state = pick_up(files, task, config)
        steps = model.num_timesteps + config.ppo.n_steps * config.ppo.n_envs
        row = next((row for row in logged if int(float(row[TOTAL_TIMESTEPS.name])) == steps), None)
        return None if row is None else (files.place, model, state, row)

    taken, damaged = newest_whole(run.checkpoint_list(), take)
    for line in damaged:
        notice(f"{line}. No update is replayed from it.")
    if taken is None:
        return "Nothing was replayed: no update after a whole checkpoint is in progress.csv."
    place, model, state, row = taken
    model.guard.on_alert = lambda alert: None  # it was told when the update was first made
    session = _OneUpdate(run, config, task, state, lambda progress: found.update(progress.metrics))
    model.set_logger(Logger(folder=None, output_formats=[Listener(session.on_log)]))
    try:
        model.learn(
            config.ppo.total_steps - model.num_timesteps,
            callback=session,
            reset_num_timesteps=False,
            log_interval=1,
        )
    except _Done:
        pass
    finally:
        model.processes.stop()
    return _compared(run, place, state["updates"] + 1, row, found)


def _compared(run: RunDir, place: Path, update: int, row: dict[str, str], found: dict[str, float]) -> str:
    names = [name for name in found if not name.startswith("time/") and row.get(name)]
    different = [name for name in names if row[name] != repr(found[name])]
    if different:
        name = different[0]
        raise CheckpointError(
            f"{place}: update {update}, replayed, differs from progress.csv in {len(different)} of {len(names)} "
            f"metrics; {name} was {row[name]} and is {found[name]!r} now. Versions: "
            f"{'; '.join(run.changed_versions()) or 'the same'}. Resume without --verify to go on all the same"
        )
    return f"Update {update} was replayed from {place}: {len(names)} metrics are the same, bit for bit."


class _Done(Exception):
    """The one update is over."""


class Session(BaseCallback):
    """What happens between updates: scores and checkpoints. It acts when a rollout starts, where a save is exact."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        task: Task,
        state: dict[str, Any],
        show: Callable[[Progress], None],
    ) -> None:
        super().__init__()
        self.run, self.config, self.task, self.show = run, config, task, show
        self.best: dict[str, Any] | None = state["best"]
        self.updates: int = state["updates"]
        self.validation: Score | EpisodeScore | None = None
        self.exploring: Score | EpisodeScore | None = None
        ppo = config.ppo
        self._turn = config.validation.turn(-(-ppo.total_steps // (ppo.n_envs * ppo.n_steps)))
        self.interrupted: int | None = None  # the signal that asked for an end
        self.began, self.began_at = time.monotonic(), 0

    def _on_training_start(self) -> None:
        self.began, self.began_at = time.monotonic(), self.model.num_timesteps

    def _on_rollout_start(self) -> None:
        self.task.begin()
        if self._agent.n_rollouts > self.updates:  # after an update of this process; not if a round had to be repeated
            self.updates += 1
            self._between_updates(last=False)

    def _on_step(self) -> bool:
        self.task.step(self.training_env)
        return True

    def _on_rollout_end(self) -> None:
        self.run.check_held()  # before the log of this update
        numbers, self.exploring = self.task.read(self._agent)
        self._agent.report(numbers)

    def finish(self) -> None:
        """After the last update: a score and a checkpoint, whatever their turn."""
        self.updates += 1
        self._between_updates(last=True)

    def _between_updates(self, *, last: bool) -> None:
        self.run.check_held()
        if last or self.updates % self._turn == 0:
            self._validate()
        if last or self.interrupted is not None or self.updates % self.config.checkpoint.every_updates == 0:
            self._save()
        if self.interrupted is not None:
            raise Interrupted(self.interrupted)

    def _validate(self) -> Scored:
        """Score the deterministic policy on what it was not trained on, and keep it if it is the best so far."""
        scored = self.task.score(self._agent)
        self.validation = scored.score
        self._agent.report(scored.numbers)
        if self.best is None or self.task.rank(self.validation) > self.task.rank(read_score(self.best["score"])):
            self.best = {
                "score": self.validation.as_dict(),
                "steps": self.model.num_timesteps,
                "update": self.updates,
            }
            write_checkpoint(self.run.best, self._agent, self._state())
        return scored

    def _save(self) -> None:
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardFile):
                output.flush()  # what a resumed run does not log again must be on disk
        place = self.run.checkpoints / f"{self.updates:08d}"
        write_checkpoint(place, self._agent, self._state())
        self._agent.guard.keep(model_file(place))
        self.run.prune(self.config.checkpoint.keep_last)

    def _state(self) -> dict[str, Any]:
        return {"best": self.best, "updates": self.updates}

    @property
    def _agent(self) -> DistributionalPPO:
        assert isinstance(self.model, DistributionalPPO)
        return self.model

    def on_log(self, metrics: dict[str, float]) -> None:
        assert self.exploring is not None
        seconds = time.monotonic() - self.began
        done = self.model.num_timesteps - self.began_at
        self.show(
            Progress(
                steps=self.model.num_timesteps,
                total_steps=self.config.ppo.total_steps,
                seconds=seconds,
                steps_per_second=done / max(seconds, 1e-9),
                metrics=metrics,
                exploring=self.exploring,
                validation=self.validation,
                best=None if self.best is None else read_score(self.best["score"]),
                stopping=self.interrupted is not None,
            )
        )


class _OneUpdate(Session):
    """A session that ends where the second update would begin, and writes nothing."""

    def _between_updates(self, *, last: bool) -> None:
        raise _Done
