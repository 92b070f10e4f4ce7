"""Processes that somebody else has started, on any machine: one of them orders, all others obey.

Every process has two process groups of torch.distributed. The engine speaks through the first one, whose timeout may be
short, since all processes do the same at the same time. Orders go through the second one, in which a worker waits for
as long as the first process validates and saves, so its timeout must be long.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from leeward.algorithm import checkpoint
from leeward.algorithm.parallel import env_shards
from leeward.algorithm.parallel.process_group import SeveralProcesses, finish
from leeward.algorithm.parallel.worker import Order, Task, Worker, WorkerReport, begin_order, settings_order, tasks
from leeward.config.settings import Settings
from leeward.errors import ArgumentError, WorkerFault
from leeward.rollout.rollout_state import RolloutState

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = ["PeerPool", "Peers", "serve"]

_CLOSE: Order = ("close",)


@dataclass(frozen=True)
class Peers:
    """The two process groups of torch.distributed that a process belongs to."""

    engine: Any
    orders: Any

    @property
    def size(self) -> int:
        return int(self.orders.size())

    def send(self, rank: int, thing: bytes) -> None:
        """From the first process to another one, which calls `receive`."""
        for part in (torch.tensor([len(thing)]), _tensor(thing)):
            finish(self.orders.send([part], rank, 0), 0, self.size, tells=False)

    def receive(self) -> bytes:
        rank, length = int(self.orders.rank()), torch.zeros(1, dtype=torch.int64)
        finish(self.orders.recv([length], 0, 0), rank, self.size, tells=False)
        thing = torch.zeros(int(length), dtype=torch.uint8)
        finish(self.orders.recv([thing], 0, 0), rank, self.size, tells=False)
        return thing.numpy().tobytes()

    def order(self, order: Order) -> None:
        """From the first process to all others, which call `hear`."""
        thing = pickle.dumps(order)
        for part in (torch.tensor([len(thing)]), _tensor(thing)):
            self._finish(self.orders.broadcast([part]))

    def hear(self) -> Order:
        length = torch.zeros(1, dtype=torch.int64)
        self._finish(self.orders.broadcast([length]))
        thing = torch.zeros(int(length), dtype=torch.uint8)
        self._finish(self.orders.broadcast([thing]))
        order: Order = pickle.loads(thing.numpy().tobytes())
        return order

    def reports(self, own: WorkerReport | None) -> list[WorkerReport | None]:
        """What each process gave, in their order."""
        # Shares of envs play no part in it.
        return SeveralProcesses(self.orders, self.size).gather(own)

    def _finish(self, work: Any) -> None:
        finish(work, int(self.orders.rank()), self.size)


class PeerPool:
    """The first process's hold on the others, which `serve`."""

    def __init__(
        self,
        peers: Peers,
        model: "DistributionalPPO",
        env: VecEnv,
        state: RolloutState | None,
        saved_rngs: checkpoint.Rngs,
    ) -> None:
        """Share `env` with the others; `state` is that of all envs, `saved_rngs` the generators that a file holds for
        the workers."""
        if peers.size != model.settings.n_jobs:
            raise ArgumentError(
                f"{peers.size} processes were started, and n_jobs is {model.settings.n_jobs}; start as many as the "
                "config says"
            )
        self._peers, self.busy, self.closed = peers, False, False
        self.keeps_state = env_shards.has_state(env)
        for rank, task in enumerate(tasks(model, env, state, saved_rngs), start=1):
            peers.send(rank, task)
        self.group = SeveralProcesses(peers.engine, env.num_envs)

    def begin(self, model: "DistributionalPPO", *, fresh: bool) -> None:
        """Every replica takes over what `model` has learned; `fresh`: the envs start anew."""
        self._peers.order(begin_order(model, fresh=fresh))

    def settings(self, settings: Settings, *, fresh_optimizer: bool) -> None:
        """Every replica trains by these from its next update on."""
        self._peers.order(settings_order(settings, fresh_optimizer=fresh_optimizer))

    def start(self) -> None:
        """One rollout and update; the engine of this process must do the same now."""
        self.busy = True
        self._peers.order(("iterate",))

    def reports(self) -> list[WorkerReport]:
        """What all workers say, in order; only between two updates."""
        assert not self.busy
        self._peers.order(("report",))
        return [report for report in self._peers.reports(None) if report is not None]

    def close(self) -> None:
        """Let the others go; those inside a round that failed are ended by whoever started them."""
        if not (self.busy or self.closed):
            self._peers.order(_CLOSE)
        self.closed = True

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Training happens inside."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # one core each
        try:
            yield
        except WorkerFault:
            self.closed = True  # nobody is left to be told
            raise
        except BaseException:
            if self.busy:
                self.close()
            raise
        finally:
            torch.set_num_threads(threads)


def serve(peers: Peers) -> None:
    """The life of a process that is not the first: until it is let go."""
    torch.set_num_threads(1)
    task: Task = pickle.loads(peers.receive())
    worker = Worker(task, task.envs(), SeveralProcesses(peers.engine, task.n_envs))
    while (order := peers.hear()) != _CLOSE:
        answer = worker.obey(*order)
        if answer is not None:
            peers.reports(answer)


def _tensor(thing: bytes) -> Tensor:
    return torch.frombuffer(bytearray(thing), dtype=torch.uint8)
