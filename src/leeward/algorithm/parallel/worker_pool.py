"""The launcher of `n_jobs`: processes on this machine that train one model together.

The first process is the user's own: callbacks, logs and files happen there. Each of the others is a `Worker` that waits
for orders on a pipe, "close" among them. A process that dies closes its connections, which ends the wait of those that
need it; one that is stopped closes nothing, and is looked for while it is waited for.
"""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
import warnings
import weakref
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from stable_baselines3.common.vec_env import VecEnv
from torch.distributed import FileStore, ProcessGroupGloo  # type: ignore[attr-defined]

from leeward.algorithm import checkpoint
from leeward.algorithm.parallel import env_shards
from leeward.algorithm.parallel.process_group import SeveralProcesses, share_of_envs
from leeward.algorithm.parallel.worker import Order, Task, Worker, WorkerReport, begin_order, settings_order, tasks
from leeward.config.settings import Settings
from leeward.errors import LeewardError, WorkerFault
from leeward.rollout.env_processes import limit_waits
from leeward.rollout.rollout_state import RolloutState

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = ["WorkerPool"]

_MEETING = timedelta(minutes=5)  # for processes that are all there to find each other
# A worker waits for as long as a callback of the first process takes; the death of a process is noticed by itself.
_PATIENCE = timedelta(days=30)
_RETURN = 1.0  # seconds a worker has to come back from an order that was "close"; one that waits for others cannot
_STUCK = 600.0  # seconds a worker may be stopped, or take and give nothing of a message
_LOOK = 1.0  # seconds between two looks at workers that are waited for
_FAR = 10  # looks: what was seen so long ago says nothing of now
_FAREWELL = 10.0  # seconds a process has to end after it has closed its connections


class WorkerPool:
    """The first process's hold on the others."""

    def __init__(
        self, model: "DistributionalPPO", env: VecEnv, state: RolloutState | None, saved_rngs: checkpoint.Rngs
    ) -> None:
        """Start `n_jobs` − 1 processes that share `env` with this one; `state` is that of all envs, `saved_rngs` the
        generators that a file holds for the workers."""
        self.size, self.n_envs, self.busy = model.settings.n_jobs, env.num_envs, False
        self.keeps_state = env_shards.has_state(env)
        blobs = tasks(model, env, state, saved_rngs)
        context = multiprocessing.get_context("spawn")
        self._channels: list[Connection] = []
        self._processes: list[BaseProcess] = []
        self._last_words: dict[int, Any] = {}  # of workers that stopped
        self._halves = set[int]()  # workers that gave a part of a message
        self._end = weakref.finalize(self, _end, self._channels, self._processes)
        self._stopped = _Stopped(self._processes, self.n_envs)
        with tempfile.TemporaryDirectory(prefix="leeward-") as folder:
            store = str(Path(folder) / "store")
            for rank, blob in enumerate(blobs, start=1):
                here, there = context.Pipe()
                process = context.Process(
                    target=_work, args=(there, store, blob), name=f"leeward-worker-{rank}", daemon=True
                )
                process.start()
                there.close()  # the worker's end is its own, so that its death is seen here
                self._channels.append(here)
                self._processes.append(process)
            for rank in range(1, self.size):
                self._receive(rank)
            try:
                self.group = SeveralProcesses(_gloo(store, 0, self.size), self.n_envs, self._stopped.fault)
            except WorkerFault as fault:
                raise self._lost(fault) from None
            for rank in range(1, self.size):  # connected: nobody needs the folder any more
                self._receive(rank)

    def begin(self, model: "DistributionalPPO", *, fresh: bool) -> None:
        """Every replica takes over what `model` has learned; `fresh`: the envs start anew."""
        self._order(begin_order(model, fresh=fresh))

    def settings(self, settings: Settings, *, fresh_optimizer: bool) -> None:
        """Every replica trains by these from its next update on."""
        self._order(settings_order(settings, fresh_optimizer=fresh_optimizer))

    def start(self) -> None:
        """One rollout and update; the engine of this process must do the same now."""
        self.busy = True
        self._order(("iterate",))

    def reports(self) -> list[WorkerReport]:
        """What all workers say, in order; only between two updates."""
        assert not self.busy
        self._order(("report",))
        return [self._receive(rank) for rank in range(1, self.size)]

    def close(self) -> None:
        """End the processes. What they held is lost, unless it was asked for."""
        self._end()

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Training happens inside: nothing that goes wrong leaves a process waiting, and a lost one is named."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # one core each
        try:
            yield
        except WorkerFault as fault:
            raise (fault if self.closed else self._lost(fault)) from None
        except BaseException:
            if self.busy:  # the others wait for an answer that will not come
                self.close()
            raise
        finally:
            torch.set_num_threads(threads)

    @property
    def closed(self) -> bool:
        return not self._end.alive

    def _order(self, order: Order) -> None:
        for rank, channel in enumerate(self._channels, start=1):
            try:
                limit_waits(channel, _STUCK)  # also for its answer, if it has one to give
                channel.send(order)
            except BlockingIOError:
                raise self._lost(self._stopped.silence(rank)) from None
            except OSError as error:
                who = _name(rank, self.size, self.n_envs)
                raise self._lost(WorkerFault(f"{who} does not listen any more: {error}")) from None

    def _receive(self, rank: int) -> Any:
        """The answer of one worker."""
        while not wait([self._channels[rank - 1], self._processes[rank - 1].sentinel], _LOOK):
            if fault := self._stopped.fault():
                raise self._lost(fault)
        kind, content = self._hear(rank)
        if kind == "half":
            raise self._lost(self._stopped.silence(rank))
        if kind != "answer":
            raise self._lost(WorkerFault(f"{_name(rank, self.size, self.n_envs)} gave no answer"))
        return content

    def _hear(self, rank: int) -> tuple[str, Any]:
        try:
            kind, content = pickle.loads(self._channels[rank - 1].recv_bytes())
        except (EOFError, ConnectionResetError):
            return "gone", None
        except BlockingIOError:  # what comes after it is no message
            self._halves.add(rank)
            return "half", None
        if kind == "error":
            self._last_words[rank] = content
        return kind, content

    def _lost(self, fault: WorkerFault) -> WorkerFault:
        """Which worker stopped first, and why, if that can be told; those that only lost the others are victims."""
        ranks = range(1, self.size)
        for rank in ranks:
            while rank not in self._halves and self._channels[rank - 1].poll() and self._hear(rank)[0] == "answer":
                pass  # to a question that nobody asks any more
        culprits = [rank for rank, words in self._last_words.items() if not words["victim"]]
        if not culprits:
            silent = {rank: self._processes[rank - 1] for rank in ranks if rank not in self._last_words}
            ended = wait([process.sentinel for process in silent.values()], _FAREWELL)
            culprits = [rank for rank, process in silent.items() if process.sentinel in ended]
        named = self._fault(culprits[0], self._last_words.get(culprits[0])) if culprits else fault
        self.close()
        return named

    def _fault(self, rank: int, content: Any) -> WorkerFault:
        process = self._processes[rank - 1]
        own = share_of_envs(self.n_envs, self.size, rank)
        who = _name(rank, self.size, self.n_envs)
        if content is None:
            process.join(_FAREWELL)  # its pipes close a moment before its exit code is known
            return WorkerFault(
                f"{who} died with exit code {process.exitcode}; look at its output above. A negative code is a signal "
                "(-9: killed, perhaps for want of memory), and a script that trains needs `if __name__ == '__main__':`"
            )
        fault = WorkerFault(f"{who}, whose env 0 is env {own.start}, stopped: {content['message']}")
        fault.add_note(f"In the worker:\n{content['traceback']}")
        return fault


class _Stopped:
    """Which workers are stopped by a signal, and since when: they may be continued in time."""

    def __init__(self, processes: list[BaseProcess], n_envs: int) -> None:
        self._processes, self._n_envs = processes, n_envs
        self._since: dict[int, float] = {}
        self._looked = -math.inf

    def fault(self) -> WorkerFault | None:
        """Of a worker that has been stopped for too long, in every look meanwhile: between two that lie far apart it
        may have been continued."""
        now = time.monotonic()
        if now - self._looked > _FAR * _LOOK:
            self._since.clear()
        self._looked = now
        stopped = [rank for rank, process in enumerate(self._processes, start=1) if _is_stopped(process)]
        self._since = {rank: self._since.get(rank, now) for rank in stopped}
        for rank, since in self._since.items():
            if now - since > _STUCK:
                return self._is_stopped(rank)
        return None

    def silence(self, rank: int) -> WorkerFault:
        """Of a worker that has taken and given nothing of a message for too long."""
        if _is_stopped(self._processes[rank - 1]):
            return self._is_stopped(rank)
        return WorkerFault(
            f"{self._who(rank)} runs, and has taken and given nothing for {_STUCK:g} s; look at what its envs wait "
            "for, and resume the run"
        )

    def _is_stopped(self, rank: int) -> WorkerFault:
        return WorkerFault(
            f"{self._who(rank)} has been stopped by a signal for {_STUCK:g} s; resume the run and let its processes run"
        )

    def _who(self, rank: int) -> str:
        return _name(rank, len(self._processes) + 1, self._n_envs)


def _is_stopped(process: BaseProcess) -> bool:
    assert process.pid is not None
    if not hasattr(os, "waitid"):  # macOS before Python 3.13: there a stopped worker is waited for
        return False
    try:  # its end, if that is what there is to know, stays to be known
        return os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False


def _name(rank: int, size: int, n_envs: int) -> str:
    own = share_of_envs(n_envs, size, rank)
    return f"worker {rank} of n_jobs={size} (envs {own.start} to {own.stop - 1})"


def _gloo(store: str, rank: int, size: int) -> ProcessGroupGloo:
    """A group of its own beside torch's global one, over the loopback device: names of hosts do not matter."""
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    options._timeout = _MEETING
    try:
        group = ProcessGroupGloo(FileStore(store, size), rank, size, options)
    except RuntimeError as error:
        raise WorkerFault(f"process {rank} of {size} did not find the others: {error}") from error
    group.set_timeout(_PATIENCE)
    return group


def _end(channels: list[Connection], processes: list[BaseProcess]) -> None:
    for channel in channels:
        with contextlib.suppress(OSError):
            os.set_blocking(channel.fileno(), False)  # one that is stopped may have its pipe full
            channel.send(("close",))
        channel.close()
    for process in processes:
        process.join(_RETURN)
        if process.is_alive():
            process.kill()  # it holds nothing that is needed
            process.join()


# --- in a worker ------------------------------------------------------------------------------------------------------


def _work(channel: Connection, store: str, blob: bytes) -> None:
    """The life of a worker. A signal may reach every process of a run; the first one decides what it means."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # the first process warns of the same
    torch.set_num_threads(1)
    try:
        _serve(channel, store, pickle.loads(blob))
    except BaseException as error:
        message = str(error) if isinstance(error, LeewardError) else f"{type(error).__name__}: {error}"
        content = {
            "message": message,
            "traceback": traceback.format_exc(),
            "victim": isinstance(error, WorkerFault),
        }
        with contextlib.suppress(OSError):  # the first process may be the one that died
            channel.send_bytes(pickle.dumps(("error", content)))
        raise SystemExit(1) from error


def _serve(channel: Connection, store: str, task: Task) -> None:
    env = task.envs()
    channel.send_bytes(pickle.dumps(("answer", None)))
    group = SeveralProcesses(_gloo(store, task.rank, task.size), task.n_envs)
    channel.send_bytes(pickle.dumps(("answer", None)))
    worker = Worker(task, env, group)
    while True:
        try:
            order = channel.recv()
        except EOFError:  # the first process is gone
            return
        if order[0] == "close":
            return
        answer = worker.obey(*order)
        if answer is not None:
            channel.send_bytes(pickle.dumps(("answer", answer)))
