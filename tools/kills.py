"""`make kills`: a run is killed with SIGKILL again and again, resumed each time, and ends as if it had never stopped.

Half of the kills come after a random time; the others are aimed: the process kills itself at a random one of the calls
by which checkpoints, the best, progress.csv and run.json reach the disk (open, write, fsync, rename, remove).
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leeward import durable
from leeward.errors import LeewardError
from leeward.training import logs, run_dir
from leeward.training.checkpoints import read_files
from leeward.training.run_dir import RunDir
from tools.runs import EVERYTHING, TINY, forked, go_on, market_of, result_of

__all__ = ["main", "try_kills"]

_CALLS = ("open", "fsync", "replace", "mkdir")


def _aim(at: int) -> None:
    """In the child: die at the `at`-th call that writes to the run."""
    calls = 0

    def dying(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    class Dying:
        """`os` as the modules that write see it."""

        def __getattr__(self, name: str) -> Any:
            found = getattr(os, name)
            return dying(found) if name in _CALLS else found

    for module in (durable, run_dir):
        module.os = Dying()  # type: ignore[attr-defined]
    shutil.rmtree = dying(shutil.rmtree)
    durable._write = dying(durable._write)
    logs.naming = dying(logs.naming)  # type: ignore[attr-defined]


def _ignore(line: str) -> None:
    """Nobody is told."""


def try_kills(
    kills: int,
    folder: Path,
    seed: int = 0,
    more: tuple[str, ...] = EVERYTHING,
    show: Callable[[str], None] = _ignore,
) -> Counter[str]:
    """Kill until there were so many; the counts say how they came and what was found."""
    rng, settings = random.Random(seed), (*TINY, *more)
    market, found, log = market_of(settings), Counter[str](), folder / "log"
    _finish(forked(lambda: go_on(folder / "whole", settings, market), log))
    expected = result_of(folder / "whole")
    number, best_seen = 0, False
    while found["kills"] < kills:
        path = folder / f"run{number}"
        aimed = found["aimed"] * 2 <= found["kills"]
        at = rng.randrange(1, 90)

        def work(path: Path = path, at: int = at, aimed: bool = aimed) -> None:
            if aimed:
                _aim(at)
            go_on(path, settings, market)

        child = forked(work, log)
        if not aimed:
            time.sleep(rng.uniform(0.02, 1.5))
            os.kill(child, signal.SIGKILL)
        status = _finish(child)
        if status == -signal.SIGKILL:
            found["kills"] += 1
            found["aimed"] += aimed
            best_seen = _look(path, found, best_seen)
            if found["kills"] % 20 == 0:
                show(_words(found))
        elif status == 0:
            found["runs finished"] += 1
            found["runs that ended otherwise"] += result_of(path) != expected
            shutil.rmtree(path)
            number, best_seen = number + 1, False
        else:
            found["runs lost"] += 1
            number, best_seen = number + 1, False
    path = folder / f"run{number}"
    if path.exists():
        found["runs lost"] += _finish(forked(lambda: go_on(path, settings, market), log)) != 0
        found["runs finished"] += 1
        found["runs that ended otherwise"] += result_of(path) != expected
    return found


def _look(path: Path, found: Counter[str], best_seen: bool) -> bool:
    """After a kill: a best checkpoint that was there is there, and what is there is whole."""
    run = RunDir(path)
    try:
        read_files(run.best_checkpoint())
    except LeewardError:
        found["best checkpoints lost"] += best_seen
        return best_seen
    return True


def _words(found: Counter[str]) -> str:
    names = ("kills", "aimed", "runs finished", "runs lost", "best checkpoints lost", "runs that ended otherwise")
    return ", ".join(f"{name} {found[name]}" for name in names)


def _finish(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="a plain agent, not one with everything on: faster")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leeward-kills-") as folder:
        more = () if options.plain else EVERYTHING
        found = try_kills(options.kills, Path(folder), options.seed, more, lambda line: print(line, flush=True))
        bad = found["runs lost"] + found["runs that ended otherwise"] + found["best checkpoints lost"]
        print(_words(found))
        if bad:
            print((Path(folder) / "log").read_text()[-3000:])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
