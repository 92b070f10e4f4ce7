"""Two halves of a computation that train nothing in common, on two threads: what a second core is good for in one
process.

Splitting each operation among threads gives little at the size of a minibatch, and costs a great deal on busy cores,
since the threads of an operation wait for each other. Actor and critics side by side give much, and the same bits: each
half runs just as it would alone.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

__all__ = ["TwoThreads", "two_threads"]

A = TypeVar("A")
B = TypeVar("B")


class TwoThreads:
    """Runs two functions, side by side if there is a second thread, else one after the other."""

    def __init__(self, other: Executor | None = None) -> None:
        self.other = other

    def run_both(self, first: Callable[[], A], second: Callable[[], B]) -> tuple[A, B]:
        """Their results; both have ended when this returns or raises."""
        if self.other is None:
            return first(), second()
        running = self.other.submit(first)
        try:
            found = second()
        finally:
            wait([running])
        return running.result(), found

    def __reduce__(self) -> tuple[type["TwoThreads"], tuple[()]]:
        """A copy has no thread."""
        return TwoThreads, ()


@contextmanager
def two_threads(*, wanted: bool, worth: bool = True) -> Iterator[TwoThreads]:
    """A second thread if it is `wanted` and torch may use two, which are then divided between both; until the end, the
    caller has one half of them. On a machine with two cores all that runs here is then what one thread computes. Where
    another thread is not `worth` its price, the caller has its half all the same, and the same bits."""
    threads = torch.get_num_threads()
    if not wanted or threads < 2:
        yield TwoThreads()
        return
    each = threads // 2
    torch.set_num_threads(each)
    try:
        if not worth:
            yield TwoThreads()
            return
        # A new thread asks OpenMP for all cores until it is told otherwise.
        with ThreadPoolExecutor(1, "leeward-actor", initializer=torch.set_num_threads, initargs=(each,)) as other:
            yield TwoThreads(other)
    finally:
        torch.set_num_threads(threads)
