"""Envs in processes of their own (SB3's SubprocVecEnv): one that dies or does not answer is named."""

import select
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from leeward.errors import EnvironmentFault

__all__ = ["PATIENCE", "limit_waits", "watch_processes"]

PATIENCE = 600.0  # seconds for one answer of one env, and for it to take what is sent to it


def watch_processes(env: VecEnv) -> None:
    """From now on no process is waited for longer than `PATIENCE`, neither to answer nor to take what is sent to it."""
    base = env.unwrapped
    if isinstance(base, SubprocVecEnv) and not isinstance(base.remotes[0], _Watched):
        base.remotes = tuple(_Watched(base, number) for number in range(base.num_envs))


def limit_waits(connection: Connection, seconds: float) -> None:
    """From now on a message of which nothing moves for so long, either way, is a BlockingIOError.

    One that is larger than the buffer of the pipe, which is a socket, is written while the other process reads it.
    """
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as pipe:
        pipe.setblocking(True)  # whatever default timeout the program has set
        for way, waits in ((socket.SO_SNDTIMEO, 2), (socket.SO_RCVTIMEO, 1)):  # the rest of a write waits once more
            limit = struct.pack("ll", *divmod(int(1e6 * seconds / waits), 1_000_000))
            pipe.setsockopt(socket.SOL_SOCKET, way, limit)


class _Watched:
    """The connection to one process, as SB3 uses it."""

    def __init__(self, base: SubprocVecEnv, number: int) -> None:
        self._base, self._number = base, number
        self._connection, self._process = base.remotes[number], base.processes[number]
        self._news = select.poll()
        # Also for the end of the process: a forked sibling holds the other end of its pipe open.
        for descriptor in (self._connection.fileno(), self._process.sentinel):
            self._news.register(descriptor, select.POLLIN)
        limit_waits(self._connection, PATIENCE)

    def send(self, order: Any) -> None:
        try:
            self._connection.send(order)
        except BlockingIOError:
            raise self._stuck("listened") from None
        except OSError:
            raise self._died() from None

    def recv(self) -> Any:
        found = [descriptor for descriptor, _ in self._news.poll(1000 * PATIENCE)]
        if not found:
            raise self._stuck("answered")
        if self._connection.fileno() not in found:
            raise self._died()
        try:
            return self._connection.recv()
        except BlockingIOError:
            raise self._stuck("answered") from None
        except (EOFError, OSError):
            raise self._died() from None

    def close(self) -> None:
        self._connection.close()

    def _stuck(self, missed: str) -> EnvironmentFault:
        if not self._process.is_alive():
            return self._died()
        for process in self._base.processes:
            process.kill()  # nobody can wait for them to end by themselves
        return EnvironmentFault(f"env {self._number} has not {missed} for {PATIENCE:g} s; it hangs or is too slow")

    def _died(self) -> EnvironmentFault:
        self._process.join(1.0)  # its pipe closes a moment before its exit code is known
        return EnvironmentFault(
            f"the process of env {self._number} ended with exit code {self._process.exitcode}; look at its output above"
        )
