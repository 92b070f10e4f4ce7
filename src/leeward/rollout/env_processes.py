"""Envs in processes of their own (SB3's SubprocVecEnv): one that dies or does not answer is named."""

import select
from typing import Any

from stable_baselines3.common.vec_env import SubprocVecEnv, VecEnv

from leeward.errors import EnvironmentFault

__all__ = ["PATIENCE", "watch_processes"]

PATIENCE = 600.0  # seconds for one answer of one env


def watch_processes(env: VecEnv) -> None:
    """From now on no answer of a process is waited for longer than `PATIENCE`: of a step, a reset or anything else."""
    base = env.unwrapped
    if isinstance(base, SubprocVecEnv) and not isinstance(base.remotes[0], _Watched):
        base.remotes = tuple(_Watched(base, number) for number in range(base.num_envs))


class _Watched:
    """The connection to one process, as SB3 uses it."""

    def __init__(self, base: SubprocVecEnv, number: int) -> None:
        self._base, self._number = base, number
        self._connection, self._process = base.remotes[number], base.processes[number]
        self._news = select.poll()
        # Also for the end of the process: a forked sibling holds the other end of its pipe open.
        for descriptor in (self._connection.fileno(), self._process.sentinel):
            self._news.register(descriptor, select.POLLIN)

    def send(self, order: Any) -> None:
        try:
            self._connection.send(order)
        except OSError:
            raise self._died() from None

    def recv(self) -> Any:
        found = [descriptor for descriptor, _ in self._news.poll(1000 * PATIENCE)]
        if not found:
            for process in self._base.processes:
                process.kill()  # nobody can wait for them to end by themselves
            raise EnvironmentFault(f"env {self._number} has not answered for {PATIENCE:g} s; it hangs or is too slow")
        if self._connection.fileno() not in found:
            raise self._died()
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise self._died() from None

    def close(self) -> None:
        self._connection.close()

    def _died(self) -> EnvironmentFault:
        self._process.join(1.0)  # its pipe closes a moment before its exit code is known
        return EnvironmentFault(
            f"the process of env {self._number} ended with exit code {self._process.exitcode}; look at its output above"
        )
