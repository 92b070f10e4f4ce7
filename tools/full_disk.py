"""`python -m tools.full_disk FOLDER`: a run on a disk that fills up at random byte counts, and goes on with room again.

FOLDER is a small file system of its own, for example `mount -t tmpfs -o size=8m none FOLDER`. Another file leaves a
random number of bytes free; training must end in an error that names the disk, what was complete must stay readable,
and with room again the run must end as one that was never stopped.
"""

import argparse
import errno
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from leeward.errors import LeewardError
from leeward.training.run_dir import RunDir
from leeward.training.verification import examine_run
from tools.runs import TINY, forked, go_on, market_of, result_of

__all__ = ["main"]

_NAMED = 7  # exit code of a child that ended in an error of the system that names a file


def _until_full(path: Path, settings: tuple[str, ...], market: object) -> None:
    try:
        go_on(path, settings, market)  # type: ignore[arg-type]
    except OSError as error:
        if error.errno == errno.ENOSPC and str(path) in str(error.filename):
            os._exit(_NAMED)
        raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_args()
    rng, found, market = random.Random(0), Counter[str](), market_of(TINY)
    log = Path(tempfile.mkstemp(prefix="leeward-full-disk-")[1])
    reference = Path(tempfile.mkdtemp()) / "whole"
    os.waitpid(forked(lambda: go_on(reference, TINY, market), log), 0)
    expected = result_of(reference)
    path, filler = options.folder / "run", options.folder / "filler"
    for _ in range(options.times):
        shutil.rmtree(path, ignore_errors=True)
        filler.unlink(missing_ok=True)
        free = shutil.disk_usage(options.folder).free
        filler.write_bytes(bytes(max(free - rng.randrange(4096, 500_000), 0)))
        status = os.waitpid(forked(lambda: _until_full(path, TINY, market), log), 0)[1]
        code = os.waitstatus_to_exitcode(status)
        found["named" if code == _NAMED else "had room" if code == 0 else "other end"] += 1
        if (path / "config.yaml").is_file():
            try:
                damaged = [problem for _, problem in examine_run(RunDir.open(path)) if problem is not None]
            except LeewardError as error:
                damaged = [str(error)]
            found["damaged"] += len(damaged)
        filler.unlink()
        code = os.waitstatus_to_exitcode(os.waitpid(forked(lambda: go_on(path, TINY, market), log), 0)[1])
        found["went on to the same end"] += code == 0 and result_of(path) == expected
    print(", ".join(f"{name} {count}" for name, count in found.items()))
    good = not found["other end"] and not found["damaged"] and found["went on to the same end"] == options.times
    if not good:
        print(log.read_text()[-3000:])
    shutil.rmtree(reference.parent)
    log.unlink()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
