"""Orders are carried out on whatever cores Ray has: here, or on a cluster.

A place is an actor with one core that carries out one order after the other, of whichever member: nothing is kept in
it, so that a place that is lost costs one interval of one member, and no member waits for another one's place. Ray
moves orders and outcomes, a few hundred bytes each; checkpoints go by path.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from leeward.config.run import RunConfig
from leeward.errors import WorkerFault
from leeward.training.distributed.cluster import cluster
from leeward.training.population.member import carry_out
from leeward.training.population.orders import Order, Outcome
from leeward.training.population.population import Population

__all__ = ["run_on_ray"]

_LOOK = 5.0  # seconds between two looks at how many cores there are
_MOST_FAILURES = 3  # places in a row that did not start


def run_on_ray(population: Population, *, address: str | None, reported: Callable[[Order, Outcome], None]) -> None:
    """Carry out every order of a population; `reported` is called after each outcome, before new orders are given."""
    with cluster(address, cpus=os.cpu_count() or 1):
        _Crew(population, reported).work()


class _Place:
    """What runs in a process of Ray's."""

    def ready(self) -> None:
        """Answers when its process is there."""

    def carry_out(self, folder: Path, config: RunConfig, order: Order) -> Outcome:
        return carry_out(folder, config, order)


_ON_A_CORE: Any = ray.remote(num_cpus=1, max_restarts=0)(_Place)


class _Crew:
    """The places, and who does what."""

    def __init__(self, population: Population, reported: Callable[[Order, Outcome], None]) -> None:
        self.population, self.reported = population, reported
        self.places: list[Any] = []
        self.idle: list[Any] = []
        self.busy: dict[Any, tuple[Any, Order | None, float]] = {}  # by what Ray promised; None: it is starting
        self.failures = 0

    def work(self) -> None:
        try:
            while self.population.pending:
                self._hire()
                self._give_out()
                done, _ = ray.wait(list(self.busy), num_returns=1, timeout=_LOOK)
                for promise in done:
                    self._take(promise)
        finally:
            for place in self.places:
                ray.kill(place)

    def _hire(self) -> None:
        cores = int(ray.cluster_resources().get("CPU", 1))
        while len(self.places) < min(cores, len(self.population.pending)):
            place = _ON_A_CORE.remote()
            self.places.append(place)
            self.busy[place.ready.remote()] = (place, None, time.monotonic())

    def _give_out(self) -> None:
        given = {order.member for _, order, _ in self.busy.values() if order is not None}
        waiting = [order for order in self.population.pending if order.member not in given]
        for order in waiting[: len(self.idle)]:
            place = self.idle.pop()
            config = self.population.config_of(order.member, order.requested)
            promise = place.carry_out.remote(self.population.folder.resolve(), config, order)
            self.busy[promise] = (place, order, time.monotonic())

    def _take(self, promise: Any) -> None:
        place, order, began = self.busy.pop(promise)
        try:
            outcome = ray.get(promise)
        except RayActorError as error:  # its process or its node is gone
            self.places.remove(place)
            self._failed(order, error)
            return
        except RayTaskError as error:  # an error of ours, or of the machine
            self.idle.append(place)
            self._failed(order, error.cause)
            return
        self.failures = 0
        self.idle.append(place)
        if order is not None:
            self.population.report(order, outcome, time.monotonic() - began)
            self.reported(order, outcome)

    def _failed(self, order: Order | None, error: BaseException) -> None:
        words = " ".join(str(error).split())[:300]
        if order is not None:
            self.population.crashed(order, f"{type(error).__name__}: {words}")
            return
        self.failures += 1
        if self.failures >= _MOST_FAILURES:
            raise WorkerFault(f"Ray could not start a process for a member, {self.failures} times: {words}")
