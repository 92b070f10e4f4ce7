"""`make soak`: half an hour of training that is killed and resumed; memory, file handles and threads must stay flat."""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from leeward.training.trainer import Progress
from tools.runs import TINY, forked, go_on, market_of

__all__ = ["main"]

_SETTINGS = (*TINY, "ppo.total_steps=100000000", "checkpoint.every_updates=20", "validation.every_updates=50")
_WARM_UP = 60  # updates of a process until its caches are filled
_MOST_GROWTH = 0.02


def _note(file: Path, progress: Progress) -> None:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    memory, threads = int(status["VmRSS"].split()[0]), int(status["Threads"])
    with file.open("a") as out:
        out.write(f"{os.getpid()} {memory} {len(os.listdir('/proc/self/fd'))} {threads}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--processes", type=int, default=5, help="how many follow each other, each killed but the last")
    options = parser.parse_args()
    market, good = market_of(_SETTINGS), True
    with tempfile.TemporaryDirectory(prefix="leeward-soak-") as name:
        folder = Path(name)
        notes, run = folder / "notes", folder / "run"
        for number in range(options.processes):
            child = forked(lambda: go_on(run, _SETTINGS, market, lambda p: _note(notes, p)), folder / "log")
            time.sleep(60 * options.minutes / options.processes)
            os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            if status != -signal.SIGKILL:
                print((folder / "log").read_text()[-3000:])
                return 1
            rows = np.array([line.split() for line in notes.read_text().splitlines()[:-1]], dtype=int)
            own = rows[rows[:, 0] == child][:, 1:]
            warm = own[_WARM_UP:]
            if len(warm) < 20:
                print(f"process {number}: only {len(own)} updates, too few to judge")
                good = False
                continue
            tenth = max(len(warm) // 10, 5)
            growth = float(np.median(warm[-tenth:, 0]) / np.median(warm[:tenth, 0]) - 1.0)
            # By halves: a file that is open for a moment now and then is in each of them.
            flat = bool((warm[len(warm) // 2 :, 1:].max(axis=0) <= warm[: len(warm) // 2, 1:].max(axis=0)).all())
            good = good and flat and growth <= _MOST_GROWTH
            print(
                f"process {number}: {len(own)} updates, {np.median(warm[-tenth:, 0]) / 1024:.0f} MB, "
                f"growth {growth:+.2%}, "
                f"file handles {sorted(set(warm[:, 1].tolist()))}, threads {sorted(set(warm[:, 2].tolist()))}"
                f"{'' if flat else ', NOT FLAT'}",
                flush=True,
            )
        n = len(notes.read_text().splitlines())
        for part in ("progress.csv", "tensorboard"):
            files = [run / part] if (run / part).is_file() else list((run / part).iterdir())
            print(f"{part}: {sum(file.stat().st_size for file in files) / n:.0f} bytes per update")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
