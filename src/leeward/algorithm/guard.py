"""What a model does about its own health: it watches every update, says what is wrong, and acts if it is told to.

`health.strict` ends training at an error, `health.rollback` returns to the last good state with a smaller step. A state
is good when no error has been seen up to it: of a run it is a checkpoint, else a copy in memory.
"""

import io
import math
import pathlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule

from leeward.algorithm import checkpoint, schedules
from leeward.errors import EnvironmentFault, LeewardError, UnhealthyTraining
from leeward.networks.action_distributions import GaussianHead
from leeward.telemetry.alerts import Alert, announce
from leeward.telemetry.health import Facts
from leeward.telemetry.metrics import APPROX_KL, Metric, Numbers
from leeward.telemetry.monitor import Monitor

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = ["Guard", "OnAlert"]

OnAlert = Callable[[Alert], None]
_EVERY = 5  # updates between two copies in memory
_KEPT = 4  # copies
_PROBATION = 10  # updates with smaller rates after a first rollback
_USUAL_KL = 0.02  # nats, of an update that goes well
_OWN_COURSE = ("counters", "episodes", "health")  # goes on when all else goes back


class _Good(NamedTuple):
    update: int
    place: checkpoint.Path  # a file, or the bytes of one
    copied: bool  # in memory
    rates: dict[str, Any]  # learning rates of the settings then


class _Slow(NamedTuple):
    """Rates are smaller for a while."""

    until: int  # updates
    rate: float  # the learning rate's start


class Guard:
    """Owns the monitor of one model, the copies it can go back to, and how often it went back."""

    def __init__(self, model: "DistributionalPPO", on_alert: OnAlert | None) -> None:
        self._model, self.on_alert = model, on_alert
        self.monitor = Monitor()
        self.rollbacks = 0
        self._good: deque[_Good] = deque(maxlen=_KEPT)
        self._slow: _Slow | None = None
        self._errors: list[Alert] = []  # that nothing has been done about yet

    # --- watch ------------------------------------------------------------------------------------------------------

    def watch(self, numbers: Mapping[Metric, float]) -> Numbers:
        """Judge an update; alerts go to whoever listens. Returns the 0/1 series of the rules."""
        health = self._model.settings.health
        self.monitor.configure(health.thresholds, health.off)
        series, alerts = self.monitor.judge(numbers, self._facts())
        for alert in alerts:
            self._tell(alert)
        self._errors += [alert for alert in alerts if alert.severity == "error"]
        return series

    def _facts(self) -> Facts:
        model = self._model
        head, settings = model.policy.action_head, model.settings
        steps = settings.n_steps * model.processes.n_envs
        return Facts(
            update=model.n_rollouts,
            progress=1.0 - model._current_progress_remaining,
            steps=steps,
            max_grad_norm=settings.max_grad_norm,
            max_entropy=math.fsum(math.log(n) for n in head.choices) if head.choices else None,
            noise_scale=float(head.log_scale.exp().mean()) if isinstance(head, GaussianHead) else 1.0,
            ceilings=tuple(each.ceiling for each in settings.risk),
            several_steps=settings.n_epochs > 1 or (settings.batch_size is not None and settings.batch_size < steps),
            support=settings.critic == "categorical",
        )

    def _tell(self, alert: Alert) -> None:
        model = self._model
        for output in model.logger.output_formats:
            writer = getattr(output, "writer", None)  # TensorBoard's, of SB3's logger or of ours
            if writer is not None and hasattr(writer, "add_text"):
                writer.add_text(f"alerts/{alert.name}", alert.line, model.num_timesteps)
        if self.on_alert is None:
            announce(alert, verbose=model.verbose)
        else:
            self.on_alert(alert)

    @property
    def is_troubled(self) -> bool:
        """Whether an error was seen about which nothing has been done yet."""
        return bool(self._errors)

    # --- act --------------------------------------------------------------------------------------------------------

    def keep(self, place: pathlib.Path) -> None:
        """A checkpoint was written: it is good if nothing is wrong now, and no copies in memory are needed."""
        if not (self._errors or self.monitor.error_lasts):
            self._good.append(_Good(self._model.n_rollouts, place, copied=False, rates=self._rates()))

    def act(self) -> None:
        """Between two updates: do what the settings say about errors, and remember a good state."""
        model, health = self._model, self._model.settings.health
        errors, self._errors = self._errors, []
        if self._slow is not None and not errors and model.n_rollouts >= self._slow.until:
            self._speed_up(self._slow)
        if errors and (health.strict or health.rollback):
            self._go_back_or_stop(errors[0])
        elif not errors and (health.strict or health.rollback):
            in_files = any(not good.copied for good in self._good)
            if not in_files and (not self._good or model.n_rollouts - self._good[-1].update >= _EVERY):
                file = io.BytesIO()
                checkpoint.save(model, file, exclude=("rng", "rollout"))
                self._good.append(_Good(model.n_rollouts, file, copied=True, rates=self._rates()))

    def survives(self, error: LeewardError) -> bool:
        """An error has ended a round: it is told, and with `rollback` training goes on from the last good state."""
        model = self._model
        # Weights that are not finite give actions that are not, and no env answers those.
        at_env = isinstance(error, EnvironmentFault) and all(
            bool(torch.isfinite(weight).all()) for weight in model.policy.parameters()
        )
        alert = self.monitor.raised("environment_fault" if at_env else "training_diverged", error, model.n_rollouts + 1)
        self._tell(alert)
        if not model.settings.health.rollback or not self._may_go_back():
            return False
        if at_env:
            self._begin_again(alert)
        else:
            self._go_back(alert)
        return True

    def _may_go_back(self) -> bool:
        return bool(self._good) and self.rollbacks < self._model.settings.health.max_rollbacks

    def _go_back_or_stop(self, alert: Alert) -> None:
        if self._model.settings.health.rollback and self._may_go_back():
            self._go_back(alert)
            return
        raise UnhealthyTraining(self._last_words(alert))

    def _last_words(self, alert: Alert) -> str:
        """What, since when, likely cause, what to try, and where the last good state is; the model holds it."""
        health, since = self._model.settings.health, self.monitor.since(alert)
        why = "health.strict" if health.strict else f"health.rollback, after {self.rollbacks} of them,"
        good = self._state_before(since)
        kept = "there is no good state to go back to"
        if good is not None:
            self._restore(good)
            kept = f"the last good state is that after update {good.update}" + (
                ", which the model holds now" if good.copied else f": {good.place}"
            )
        return (
            f"{why} ends training at update {alert.update}: {alert.name}: {alert.message}; first seen in update "
            f"{since}. Likely: {alert.cause}. Try: {alert.remedy}; {kept}. More: leeward explain {alert.name}"
        )

    def _state_before(self, update: int) -> _Good | None:
        there = [
            good for good in self._good if not isinstance(good.place, pathlib.Path) or good.place.is_file()
        ]  # a run keeps the last few
        before = [good for good in there if good.update < update]
        return before[-1] if before else there[0] if there else None

    def _go_back(self, alert: Alert) -> None:
        model, health = self._model, self._model.settings.health
        good = self._state_before(self.monitor.since(alert))
        assert good is not None
        self._restore(good)
        self._good = deque([each for each in self._good if each.update <= good.update], maxlen=_KEPT)
        factor = health.rollback_lr_factor ** (self.rollbacks + 1)
        rates = self._rates()
        # A rate that was raised since may be what went wrong; one that was lowered since stays low.
        usual = {name: self._slowest(good.rates.get(name, rate), rate) for name, rate in rates.items()}
        bounds = {name: _scaled(rate, _without_jump(alert)) for name, rate in rates.items()}
        smaller = {name: self._slowest(_scaled(rate, factor), bounds[name]) for name, rate in usual.items()}
        now = model.set_hyperparameters(**smaller)
        is_sound = all(self._slowest(rate, bounds[name]) is rate for name, rate in usual.items())
        may_return = is_sound and self.rollbacks == 0
        self._slow = _Slow(model.n_rollouts + _PROBATION, now["learning_rate"]) if may_return else None
        model.begin_anew()
        self.monitor.restart()
        self._say_so(alert, f"back to the state after update {good.update}, with {_listed(now)}")

    def _speed_up(self, slow: _Slow) -> None:
        """What went wrong once has not come again: the rates are as before, unless somebody has set others since."""
        self._slow = None
        rates = self._rates()
        if schedules.start_of(rates["learning_rate"]) != slow.rate:
            return
        factor = self._model.settings.health.rollback_lr_factor
        now = self._model.set_hyperparameters(**{name: _scaled(rate, 1.0 / factor) for name, rate in rates.items()})
        message = f"{_PROBATION} updates without an error since the rollback: {_listed(now)} again"
        self._tell(self.monitor.say("rolled_back", message, self._model.n_rollouts))

    def _rates(self) -> dict[str, Any]:
        """The learning rates of the settings, numbers or schedules."""
        rates = {name: getattr(self._model.settings, name) for name in ("learning_rate", "critic_learning_rate")}
        return {name: rate for name, rate in rates.items() if rate is not None}

    def _slowest(self, *rates: Any) -> Any:
        """The rate that is the smallest at this moment of training."""
        remaining = self._model._current_progress_remaining
        return min(rates, key=lambda rate: FloatSchedule(rate)(remaining))

    def _begin_again(self, alert: Alert) -> None:
        """The env was at fault, and nothing was learned from it: weights and rates stay, the round is made again."""
        good = self._state_before(alert.update)
        assert good is not None
        manifest, tensors = self._read(good)
        checkpoint.restore_normaliser(self._model, manifest, tensors)  # one bad number spoils its statistics
        self._model.begin_anew()
        self._say_so(alert, f"the envs are reset and update {alert.update} begins again, with the same weights")

    def _say_so(self, alert: Alert, what: str) -> None:
        self.rollbacks += 1
        most = self._model.settings.health.max_rollbacks
        message = f"rollback {self.rollbacks} of {most} because of {alert.name}: {what}"
        self._tell(self.monitor.say("rolled_back", message, alert.update))

    def _read(self, good: _Good) -> tuple[dict[str, Any], dict[str, Any]]:
        if isinstance(good.place, io.BytesIO):
            good.place.seek(0)
        return checkpoint.read_checkpoint(good.place)

    def _restore(self, good: _Good) -> None:
        """All that was learned goes back; what was counted, and the alerts, stay."""
        manifest, tensors = self._read(good)
        owners = self._model.owners()
        manifest["state"] |= {name: owners[name].state_dict() for name in _OWN_COURSE}
        checkpoint.restore(self._model, manifest, tensors)
        checkpoint.restore_normaliser(self._model, manifest, tensors)

    # --- state ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        slow = None if self._slow is None else list(self._slow)
        return {"rollbacks": self.rollbacks, "slow": slow} | self.monitor.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rollbacks = int(state["rollbacks"])
        slow = state.get("slow")  # a file of an earlier version has none
        self._slow = None if slow is None else _Slow(int(slow[0]), float(slow[1]))
        self.monitor.load_state_dict(state)


def _listed(rates: dict[str, float]) -> str:
    return ", ".join(f"{name} {rate:.3g}" for name, rate in rates.items())


def _without_jump(alert: Alert) -> float:
    """What a rate that made the policy jump is multiplied by: the KL of an update grows with its square."""
    if alert.metric != APPROX_KL.name or not math.isfinite(alert.value):
        return 1.0
    return min(1.0, math.sqrt(_USUAL_KL / alert.value))


def _scaled(rate: Any, factor: float) -> Any:
    """A rate times a factor, in a form that a checkpoint can hold: a schedule of one's own becomes a constant."""
    rate = rate.value_schedule if isinstance(rate, FloatSchedule) else rate
    if isinstance(rate, LinearSchedule):
        return LinearSchedule(factor * rate.start, factor * rate.end, rate.end_fraction)
    return factor * float(rate(1.0) if callable(rate) else rate)
