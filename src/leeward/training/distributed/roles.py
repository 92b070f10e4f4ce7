"""What happens inside a worker of Ray Train.

The first worker trains the run, as `leeward train` does in one process: it holds the run's directory, validates, saves
and logs. The others obey it.
"""

import fcntl
import os
import socket
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch.distributed
from ray.train.torch import TorchConfig

from leeward.algorithm.parallel.peers import PeerPool, Peers, serve
from leeward.errors import LeewardError, RunDirectoryError, WorkerFault
from leeward.telemetry.alerts import Alert
from leeward.training.distributed.desk import Word
from leeward.training.run_dir import RunDir
from leeward.training.trainer import Interrupted, Progress, Stoppable, train

__all__ = ["SEEN", "Assignment", "Gloo", "find_run", "interface_of", "work"]

SEEN = ".seen"  # a file in the run's directory by which a worker knows it again
_PATIENCE = timedelta(days=30)  # of a worker that waits for an order; whoever started it ends it when another is lost
_ADDRESS_OF = 0x8915  # SIOCGIFADDR: the IPv4 address of an interface


@dataclass(frozen=True)
class Assignment:
    """What the workers shall do, and where."""

    run: str  # a directory that the first worker sees at the same path
    mark: str  # what stands in the file SEEN of it
    folder: str  # paths of the config are relative to it
    resume: bool
    parent: str | None
    desk: Any
    track: str | None = None  # a tracker that gets a copy of metrics and alerts


class Gloo(TorchConfig):  # type: ignore[misc]  # mypy does not look into Ray
    """Ray's process group over gloo, each worker on the interface that has its node's address.

    Left to itself gloo takes the address that the host's name stands for, which on many machines is the loopback or a
    bridge of containers; the workers then wait for each other in vain.
    """

    def __init__(self, timeout_seconds: int) -> None:
        super().__init__(backend="gloo", timeout_s=timeout_seconds)

    @property
    def backend_cls(self) -> Any:
        return _OnNodeInterface


class _OnNodeInterface(TorchConfig().backend_cls):  # type: ignore[misc]  # the class is Ray's own affair
    def on_start(self, worker_group: Any, backend_config: TorchConfig) -> None:
        worker_group.execute(_choose_interface)
        super().on_start(worker_group, backend_config)


def _choose_interface() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = interface_of(ray.util.get_node_ip_address())


def interface_of(address: str) -> str:
    """The network interface of this machine that has this IPv4 address."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(any_socket, _ADDRESS_OF, struct.pack("256s", name.encode()))
            except OSError:  # it has none
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    for name, own in found.items():
        if own == address:
            return name
    known = ", ".join(f"{name} {own}" for name, own in found.items())
    raise WorkerFault(
        f"{socket.gethostname()}: no network interface has the address {address} by which Ray knows this node "
        f"({known}); start Ray there with --node-ip-address"
    )


def work(config: dict[str, Assignment]) -> None:
    """The life of a worker."""
    assignment = config["assignment"]
    os.chdir(assignment.folder)
    context = ray.train.get_context()
    peers = None
    if context.get_world_size() > 1:
        orders = torch.distributed.new_group(timeout=_PATIENCE, backend="gloo")
        peers = Peers(torch.distributed.group.WORLD, orders)
    if context.get_world_rank() == 0:
        _lead(assignment, peers)
    else:
        assert peers is not None
        warnings.simplefilter("ignore")  # the first worker warns of the same
        serve(peers)


def _lead(assignment: Assignment, peers: Peers | None) -> None:
    """Train the run. Its end, good or bad, is told at the desk; a worker that was lost is an error of this process."""
    lines = _Lines(assignment.desk)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lines.warning
            run = find_run(assignment)
            config = run.config()
            with run.locked():
                limits = train(
                    run,
                    run.market() if config.gym is None else None,
                    lines.progress,
                    resume=assignment.resume,
                    parent=None if assignment.parent is None else RunDir.open(Path(assignment.parent)),
                    notice=partial(lines.leave, "notice"),
                    tell=lines.alert,
                    track=assignment.track,
                    launch=None if peers is None else partial(PeerPool, peers),
                    interruptible=lines.interruptible,
                )
    except Interrupted as end:
        lines.leave("interrupted", end.number)
    except WorkerFault:
        raise
    except (LeewardError, OSError, MemoryError) as error:
        lines.leave("error", error)
        raise  # those who wait inside a round are ended by it
    else:
        lines.leave("done", limits)


def find_run(assignment: Assignment) -> RunDir:
    """The run, if its directory is the one that it is where training was started."""
    run = Path(assignment.run)
    seen = run / SEEN
    if not seen.is_file() or seen.read_text() != assignment.mark:
        raise RunDirectoryError(
            f"{run}: not the same directory on {socket.gethostname()}, where a worker is, as where training was "
            "started; choose a --run-dir on a disk that all nodes share, at the same path"
        )
    return RunDir.open(run)


class _Lines:
    """What the run says, left at the desk; and the signal that came there, passed on to the run."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk
        self._session: Stoppable | None = None

    def leave(self, kind: str, content: Any) -> None:
        signal = ray.get(self._desk.leave.remote(Word(kind, content)))
        if signal is not None and self._session is not None:
            self._session.interrupted = signal

    def progress(self, progress: Progress) -> None:
        self.leave("progress", progress)

    def alert(self, alert: Alert) -> None:
        self.leave("alert", alert)

    def warning(self, message: Warning | str, *where: Any, **how: Any) -> None:
        self.leave("warning", str(message))

    @contextmanager
    def interruptible(self, session: Stoppable) -> Iterator[None]:
        self._session = session
        yield
