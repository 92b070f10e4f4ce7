"""A population as its log tells it: which orders are still to be carried out, and what follows when they have been.

Members are compared when all of them have come to the same step. A comparison is a function of what they reported and
of the seed, and it is in the log before anybody acts on it; so whoever reads the log knows what there is to do, and a
driver that was killed goes on as if it had not been.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from leeward.config.load import dump_config
from leeward.config.run import RunConfig
from leeward.config.tune import SEARCHABLE, TuneConfig
from leeward.config.yaml_text import read as read_yaml
from leeward.errors import ConfigError, RunDirectoryError, TrainingDiverged, one_line
from leeward.telemetry import metrics
from leeward.training.population.compare import Standing, better, take_overs
from leeward.training.population.log import FILE, EventLog
from leeward.training.population.orders import Order, Outcome
from leeward.training.population.space import Settings, draw, explore
from leeward.training.run_dir import RunDir, refuse_links
from leeward.training.trainer import seed_of

__all__ = ["Best", "Mode", "Population", "Rounds", "check"]

Mode = Literal["population", "random", "replay"]
# Seeds of members differ between modes, but for random search: it is what the same members come to by themselves.
_STREAM: dict[Mode, int] = {"population": 0, "random": 0, "replay": 1}
_MOST_MEMBERS = 100_000
_MOST_CRASHES = 3  # of one order in one driver's life


@dataclass(frozen=True)
class Rounds:
    """How a run is cut into intervals of whole rollouts."""

    rollout: int  # env steps
    each: int  # rollouts of an interval
    total: int  # rollouts of the run

    @classmethod
    def of(cls, config: RunConfig) -> "Rounds":
        rollout = config.ppo.n_envs * config.ppo.n_steps
        interval = _tune(config).interval or -(-config.ppo.total_steps // 20)
        return cls(rollout, -(-interval // rollout), -(-config.ppo.total_steps // rollout))

    def __len__(self) -> int:
        return -(-self.total // self.each)

    def updates(self, number: int) -> int:
        """At the end of a round."""
        return min((number + 1) * self.each, self.total)

    def steps(self, number: int) -> int:
        return self.updates(number) * self.rollout


@dataclass(frozen=True)
class Best:
    """The best that was seen, and where it is kept."""

    member: int
    round: int
    step: int
    updates: int
    standing: Standing


class Population:
    """Members, their orders and their outcomes, folded from the log; `report` is how they go on."""

    def __init__(self, folder: Path, log: EventLog) -> None:
        self.folder, self.log = folder, log
        head = log.events[0]
        self.config = RunConfig.read(head.get("config", {}), where=f"{log.path}: config")
        self.members, self.mode = _size_and_mode(log.path, head)
        self.rounds = Rounds.of(self.config)
        self.round = -1
        self.orders: dict[int, Order] = {}  # of this round, by member
        self.outcomes: dict[int, Outcome] = {}  # of this round, by member
        self.history: list[dict[int, Order]] = []  # orders by round
        self.best: Best | None = None
        self.exploits = 0
        self._crashes: dict[int, int] = {}
        self._told: set[tuple[Any, ...]] = set()  # what the log says already
        for event in log.events:
            try:
                self._fold(event)
            except (LookupError, TypeError, ValueError, OverflowError) as error:
                raise RunDirectoryError(
                    f"{log.path}: {event['event']!r:.80} is no event of this population ({type(error).__name__}: "
                    f"{one_line(error)}); restore the file from a copy"
                ) from None
        if self.round < 0:
            self._begin()
        elif not self.pending:  # a driver was killed before it had compared them
            self._compare()

    # --- begin and go on --------------------------------------------------------------------------------------------

    @classmethod
    def create(cls, folder: Path, config: RunConfig, members: int, mode: Mode) -> "Population":
        """A new one; a directory that holds one is refused."""
        check(config, members, mode)
        if (folder / FILE).exists():
            raise RunDirectoryError(
                f"{folder}: holds a population already; go on with --resume, or choose another --run-dir"
            )
        if RunDir(folder).config_file.exists():
            raise RunDirectoryError(f"{folder}: holds a run; choose another --run-dir")
        folder.mkdir(parents=True, exist_ok=True)
        log = EventLog(folder / FILE)
        searched = list(_tune(config).space)
        log.write(
            "population",
            members=members,
            mode=mode,
            rounds=len(Rounds.of(config)),
            searched=searched,
            kept={
                key: value for key in SEARCHABLE if key not in searched and (value := _value(config, key)) is not None
            },
            config=_plain(config),
        )
        return cls(folder, log)

    @classmethod
    def open(cls, folder: Path) -> "Population":
        """One that was begun; it goes on where its log ends."""
        # Checkpoints are removed below `kept`, and members trained below `members`.
        own = (folder / name for name in (FILE, "kept", "members", "best", ".best.new", "progress.csv", "tensorboard"))
        refuse_links((*own, *folder.glob("members/*"), *folder.glob("kept/*")))
        log = EventLog(folder / FILE)
        if not log.events or log.events[0]["event"] != "population":
            raise RunDirectoryError(f"{folder}: no population here (no {FILE}); start one without --resume")
        return cls(folder, log)

    def _begin(self) -> None:
        tune = _tune(self.config)
        if self.mode == "replay":
            first = [dict(tune.schedule[0])] * self.members
        else:
            first = draw(tune.space, self.members, np.random.default_rng([self.config.seed, _STREAM[self.mode]]))
        self._give([self._order(member, 0, settings) for member, settings in enumerate(first)])

    def _order(self, member: int, number: int, settings: Settings, **more: Any) -> Order:
        rounds = self.rounds
        begins = rounds.steps(number - 1) if number else 0
        return Order(member, number, begins, rounds.steps(number), rounds.updates(number), settings, **more)

    def _give(self, orders: list[Order]) -> None:
        self._write("orders", round=orders[0].round, orders=[order.as_dict() for order in orders])

    def seed(self, member: int) -> int:
        """Of a member's network, noise and episodes."""
        return seed_of(self.config.seed, _STREAM[self.mode], member)

    def config_of(self, member: int, settings: Settings) -> RunConfig:
        """The config of a member's run."""
        config = self.config.with_values(settings)
        # Others may take over from the last checkpoint while the next one is being made.
        kept = config.checkpoint.model_copy(update={"keep_last": max(2, config.checkpoint.keep_last)})
        return config.model_copy(update={"seed": self.seed(member), "checkpoint": kept})

    # --- what there is to do ----------------------------------------------------------------------------------------

    @property
    def pending(self) -> list[Order]:
        """What has not been reported yet."""
        return [order for member, order in self.orders.items() if member not in self.outcomes]

    @property
    def is_finished(self) -> bool:
        return self.round == len(self.rounds) - 1 and not self.pending

    @property
    def trials(self) -> int:
        """Settings that were tried: what members began with, and what they changed to."""
        return self.members + self.exploits

    def report(self, order: Order, outcome: Outcome, seconds: float = 0.0) -> None:
        """What came of an order, and how long it took.

        When it was the last of a round, members are compared and the next round begins.
        """
        if order.member in self.outcomes or order.round != self.round:
            return  # reported before its place was lost
        told = {"member": order.member, "round": order.round, "step": outcome.step}
        if order.source is not None and outcome.began:
            self._write("exploit", member=order.member, source=order.source, step=order.begins,
                        round=order.round, start=order.start, optimizer_strategy=_tune(self.config).optimizer_strategy,
                        requested=order.requested, live=outcome.began)  # fmt: skip
        if outcome.stopped is not None:
            self._write("stopped", **told, reason=outcome.stopped)
        elif outcome.ended is not None:
            self._write("ended", **told, reason=outcome.ended)
        self._write("interval", **told, seconds=round(seconds, 3), outcome=outcome.as_dict())
        if not self.pending:
            self._compare()

    def crashed(self, order: Order, reason: str) -> None:
        """Its process died. It is tried again from the same checkpoint; after a few times the member has ended."""
        self._crashes[order.member] = self._crashes.get(order.member, 0) + 1
        self._write("crashed", member=order.member, round=order.round, reason=reason)
        if self._crashes[order.member] >= _MOST_CRASHES:
            self.report(order, Outcome(order.begins, ended=f"crashed {_MOST_CRASHES} times: {reason}"))

    @property
    def winner(self) -> Best:
        """The best that was seen, or an error where no member ever had a score."""
        if self.best is None:
            raise TrainingDiverged(
                f"{self.folder}: no member ever had a score that is a number, so there is no best; choose another "
                "tune.score, or train longer"
            )
        return self.best

    @property
    def faults(self) -> list[str]:
        """Why members were stopped: settings that were not applied."""
        return [
            f"member {event['member']}: {event['reason']}" for event in self.log.events if event["event"] == "stopped"
        ]

    def finish(self) -> None:
        """All orders were carried out, and the best is an ordinary run."""
        best = self.winner
        self._write("finished", member=best.member, step=best.step, score=best.standing.value, trials=self.trials)

    def tell_comparison(self, random: Best, *, is_better: bool) -> None:
        """What the same members came to without taking over from each other."""
        told = {name: {"member": best.member, "step": best.step, "score": best.standing.value}
                for name, best in (("population", self.winner), ("random", random))}  # fmt: skip
        self._write("compared", **told, better=is_better)

    def _compare(self) -> None:
        """Everybody has reported: keep the best, and give the next orders."""
        standings = {member: outcome.standing for member, outcome in self.outcomes.items() if not outcome.stopped}
        values = [each.value for each in standings.values() if math.isfinite(each.value) and not each.ended]
        scores = [max(values), float(np.median(values)), min(values)] if values else [None] * 3
        names = (metrics.POPULATION_SCORE_BEST, metrics.POPULATION_SCORE_MEDIAN, metrics.POPULATION_SCORE_WORST)
        told = {metric.name: score for metric, score in zip(names, scores, strict=True)}
        self._write("comparison", round=self.round, step=self.rounds.steps(self.round),
                    **told, **{metrics.POPULATION_EXPLOITS.name: self.exploits})  # fmt: skip
        if all(each.ended for each in standings.values()):
            why = "; ".join(f"member {m}: {o.stopped or o.ended}" for m, o in sorted(self.outcomes.items()))
            raise TrainingDiverged(f"{self.folder}: no member can go on. {why}")
        if self.round < len(self.rounds) - 1:
            self._give(self._next(standings))

    def _next(self, standings: dict[int, Standing]) -> list[Order]:
        tune, number = _tune(self.config), self.round + 1
        rng = np.random.default_rng([self.config.seed, _STREAM[self.mode], 1 + number])
        sources = take_overs(standings, margin=tune.margin, rng=rng) if self.mode == "population" else {}
        orders = []
        for member in sorted(standings):
            if member in sources:
                source = sources[member]
                settings = explore(tune.space, self.outcomes[source].live, rng)
                start = self.orders[source].place
                orders.append(self._order(member, number, settings, start=start, source=source, changed=True))
            elif not standings[member].ended:
                settings, changed = self.outcomes[member].live, False
                if self.mode == "replay":
                    due = tune.schedule.get(self.rounds.steps(self.round))
                    settings, changed = (dict(due), True) if due is not None else (settings, False)
                orders.append(self._order(member, number, settings, start=self.orders[member].place, changed=changed))
        return orders

    # --- the log ----------------------------------------------------------------------------------------------------

    def _write(self, event: str, **values: Any) -> None:
        """Into the log, once: a driver that was killed between two events writes the second alone."""
        if _key(values | {"event": event}) not in self._told:
            self.log.write(event, **values)
            self._fold(self.log.events[-1])

    def _fold(self, event: dict[str, Any]) -> None:
        if event["event"] != "crashed":  # which may happen again
            self._told.add(_key(event))
        match event["event"]:
            case "orders":
                if event["round"] != len(self.history):
                    raise ValueError(f"orders of round {event['round']!r:.80} follow {len(self.history)} rounds")
                self.round, self.outcomes, self._crashes = len(self.history), {}, {}
                orders = [Order.from_dict(order) for order in event["orders"]]
                self.orders = {order.member: order for order in orders}
                if not all(0 <= member < self.members for member in self.orders):
                    raise ValueError(f"members are 0 to {self.members - 1}, got {[*self.orders]!r:.80}")
                self.history.append(self.orders)
            case "interval":
                self._remember(event["member"], Outcome.from_dict(event["outcome"]))
            case "exploit":
                self.exploits += 1

    def _remember(self, member: int, outcome: Outcome) -> None:
        self.outcomes[member] = outcome
        standing, order = outcome.standing, self.orders[member]
        if not outcome.stopped and better(standing, None if self.best is None else self.best.standing):
            self.best = Best(member, self.round, outcome.step, order.updates, standing)

    def lineage(self, best: Best) -> list[Order]:
        """The orders that led to it, from the first on: through every member it was taken over from."""
        found, member = [], best.member
        for number in range(best.round, -1, -1):
            order = self.history[number][member]
            found.append(order)
            member = order.source if order.source is not None else member
        return found[::-1]


def _key(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["event"], event.get("round"), event.get("member")


def _size_and_mode(path: Path, head: dict[str, Any]) -> tuple[int, Mode]:
    members, mode = head.get("members"), head.get("mode")
    if type(members) is not int or not 0 < members <= _MOST_MEMBERS or mode not in _STREAM:
        raise RunDirectoryError(
            f"{path}: expected 1 to {_MOST_MEMBERS:,} members and a mode of {', '.join(_STREAM)}, got "
            f"{members!r:.80} and {mode!r:.80}; restore the file from a copy"
        )
    return members, mode


def check(config: RunConfig, members: int, mode: Mode) -> None:
    """What must be said before Ray starts."""
    if config.tune is None or (mode != "replay" and not config.tune.space):
        raise ConfigError(
            "tune.space: nothing is searched; name settings and their bounds, as in ppo.learning_rate: "
            "{low: 1e-5, high: 1e-2, log: true}"
        )
    if mode == "replay" and not config.tune.schedule:
        raise ConfigError(
            "tune.schedule: there is nothing to replay; `leeward tune` writes it to best/schedule.yaml of a population"
        )
    if members > _MOST_MEMBERS:
        raise ConfigError(f"--members {members}: at most {_MOST_MEMBERS:,}")
    if mode == "population" and members < 2:
        raise ConfigError(f"--members {members}: a population needs two members or more to compare")
    if config.ppo.n_jobs > 1:
        raise ConfigError(
            f"ppo.n_jobs {config.ppo.n_jobs}: members train side by side, each in one process; set it to 1"
        )
    reached = {0, *(Rounds.of(config).steps(number) for number in range(len(Rounds.of(config))))}
    off = [step for step in config.tune.schedule if step not in reached] if mode == "replay" else []
    if off:
        raise ConfigError(
            f"tune.schedule: step {off[0]} is not at the end of an interval of {sorted(reached)[1]} steps"
        )


def _tune(config: RunConfig) -> TuneConfig:
    assert config.tune is not None
    return config.tune


def _plain(config: RunConfig) -> Any:
    return read_yaml(dump_config(config).encode(), where="config")


def _value(config: RunConfig, key: str) -> Any:
    """A setting as the config has it; None where its section is off."""
    section, *path = key.split(".")
    found: Any = getattr(config, section)
    found = found[0] if isinstance(found, tuple) else found
    for name in path:
        found = None if found is None else getattr(found, name)
    return found
