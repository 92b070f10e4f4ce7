"""One interval of one member: from files into files.

An order says everything, so whoever carries it out needs nothing else, and carrying it out twice does what once does:
its checkpoint is there, whole, or it is not.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from leeward.algorithm import schedules
from leeward.config.run import RunConfig
from leeward.config.trading import DataConfig
from leeward.errors import CheckpointError, EnvironmentFault, RunDirectoryError, SettingNotApplied, TrainingDiverged
from leeward.market import Market, prepare
from leeward.telemetry.alerts import Alert
from leeward.telemetry.metrics import POPULATION_LR_APPLIED
from leeward.training.checkpoints import model_file, read_trainer_state
from leeward.training.population.exploit import check_applied, live_settings, put_in_force, take_over
from leeward.training.population.orders import Order, Outcome, folder_of
from leeward.training.population.space import Settings
from leeward.training.run_dir import RunDir
from leeward.training.tasks import Task, task_of
from leeward.training.trainer import Progress, Session, learn, live_rate, make_model, pick_up, seed_of

__all__ = ["carry_out"]

_OUTCOME = "population"  # where a checkpoint keeps it
_PATIENCE = 60.0  # seconds: a process whose driver was killed may still hold the run
_RATE = "ppo.learning_rate"


class _Over(Exception):
    """The interval is over."""


def carry_out(folder: Path, config: RunConfig, order: Order) -> Outcome:
    """Train a member of the population in `folder` for one interval; `config` is the member's own."""
    torch.set_num_threads(1)  # members share the cores
    path = folder / folder_of(order.member)
    run = RunDir.open(path) if (path / "config.yaml").is_file() else RunDir.create(path, config)
    with _held(run):
        run.sweep()
        known = _known(folder / order.place)
        if known is not None:
            return known
        task = task_of(config, None if config.gym is not None else _market(config.data.model_dump_json()))
        task.bind(run)
        try:
            return _interval(folder, run, config, order, task)
        except (TrainingDiverged, EnvironmentFault) as error:
            return Outcome(order.begins, ended=str(error))
        except SettingNotApplied as error:
            return Outcome(order.begins, stopped=str(error))


def _interval(folder: Path, run: RunDir, config: RunConfig, order: Order, task: Task) -> Outcome:
    strategy = config.tune.optimizer_strategy if config.tune is not None else "copy"
    if order.start is None:
        model, state = make_model(config, task.env(config.seed)), {"best": None, "updates": 0}
        live = check_applied(model, order.requested)
    else:
        place = folder / order.start
        if order.source is None:
            model, state = pick_up(place, task, config)
        else:
            model = take_over(place, task, seed_of(config.seed, order.round))
            state = read_trainer_state(place) | {"best": _own_best(run)}
        if order.changed:
            live = put_in_force(model, config, order.requested, strategy)
        else:
            live = check_applied(model, order.requested)
        model.guard.keep(model_file(place))
    session = _Interval(run, config, task, state, order, live)
    with suppress(_Over):
        learn(model, session, go_on=order.start is not None, resume_at=model.num_timesteps, tell=_in_the_file)
    assert session.outcome is not None
    return session.outcome


class _Interval(Session):
    """What happens between the updates of an interval: nothing, but at its end, where the member is scored and kept."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        task: Task,
        state: dict[str, Any],
        order: Order,
        live: Settings,
    ) -> None:
        super().__init__(run, config, task, state, _unseen)
        self.order, self.live = order, live
        self.outcome: Outcome | None = None
        self._ready = time.monotonic()
        self.rates: tuple[float, float] | None = None  # as applied and as expected, in the first update

    def _between_updates(self, *, last: bool) -> None:
        if self.rates is None:
            self.rates = self._applied()
        if self._agent.num_timesteps < self.order.steps:
            return
        self.run.check_held()
        trained = time.monotonic() - self._ready
        scored = self._validate()
        self.outcome = Outcome(
            step=self._agent.num_timesteps,
            value=scored.value,
            windows=scored.windows,
            began=self.live,
            live=live_settings(self._agent, self.order.requested),
            lr_applied=self.rates[0],
            lr_expected=self.rates[1],
            training_seconds=trained,
        )
        self._save()
        if not last:
            raise _Over

    def _applied(self) -> tuple[float, float]:
        """The rate that the optimiser had in the update just made, and the one of the schedule that was asked for."""
        agent, config = self._agent, self.config
        rate = self.order.requested.get(_RATE, config.ppo.learning_rate)
        assert not callable(rate)  # in a config it is a number
        asked = agent.settings.model_copy(update={"learning_rate": live_rate(config, rate)})
        expected = schedules.learning_rates(asked, agent._current_progress_remaining)[0]
        applied = float(agent.policy.optimizer.param_groups[0]["lr"])
        agent.report({POPULATION_LR_APPLIED: applied})
        # A rollback has made it smaller, on purpose, and said so.
        if applied != expected and not agent.guard.rollbacks:
            raise SettingNotApplied(
                f"the optimiser's learning rate was {applied!r} in update {self.updates}, and {expected!r} by the "
                f"schedule that starts from {rate!r}"
            )
        return applied, expected

    def _state(self) -> dict[str, Any]:
        return super()._state() | ({} if self.outcome is None else {_OUTCOME: self.outcome.as_dict()})


@contextmanager
def _held(run: RunDir) -> Iterator[None]:
    """The run for this process alone; one whose driver was killed is waited for, since it ends within an update."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            held = run.locked()
            held.__enter__()
        except RunDirectoryError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
            continue
        try:
            yield
        finally:
            held.__exit__(None, None, None)
        return


def _known(place: Path) -> Outcome | None:
    """What came of an order that was carried out before, and whose report was lost."""
    if not place.is_dir():
        return None
    try:
        state = read_trainer_state(place)
    except CheckpointError:
        return None  # it is made again
    return Outcome.from_dict(state[_OUTCOME]) if _OUTCOME in state else None


def _own_best(run: RunDir) -> Any:
    return read_trainer_state(run.best)["best"] if run.best.is_dir() else None


@lru_cache(maxsize=2)
def _market(data: str) -> Market:
    """Read once in a process, for all the members it trains."""
    return prepare(DataConfig.model_validate_json(data))


def _unseen(progress: Progress) -> None:
    """Members train in processes that nobody watches."""


def _in_the_file(alert: Alert) -> None:
    """alerts.jsonl of the member has it."""
