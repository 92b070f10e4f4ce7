"""`make accidents`: what goes wrong under a run while it trains, one thing after the other, by the command.

    python -m tools.accidents [--disk FOLDER] [FAULT ...]

Each time the command must end with exit code 1 and one clean line that says what happened, what was complete must stay
whole, and the run must go on to the end that it would have had. FOLDER is a small file system of its own that this user
may mount anew, for example `mount -t tmpfs -o size=32m,nr_inodes=120 none FOLDER`; without it those faults that need
one are left out.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from leeward import cli
from leeward.cli.view import Silent
from leeward.config.load import load_config
from leeward.training.run_dir import RunDir
from leeward.training.trainer import Progress
from leeward.training.verification import examine_run
from tools.runs import TINY, forked, result_of

__all__ = ["FAULTS", "main"]

_SETTINGS = (*TINY, "backtest.n_draws=50", "backtest.n_offsets=20")
_AT = 800  # steps, of 1,920: after the second of six checkpoints
_SECONDS = 120  # of a processor, for a run of two seconds
Fault = Callable[[Path], None]  # in the process that trains, when it has so many steps


def _train(path: Path, log: Path, fault: Fault | None = None, memory: int | None = None) -> int:
    """The exit code of `leeward train`, on a new run or on one that is there."""

    def update(view: Silent, progress: Progress) -> None:
        if fault is not None and progress.steps == _AT:
            fault(path)

    def work() -> None:
        Silent.update = update  # type: ignore[method-assign,assignment]
        if memory is not None:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limit = pages * resource.getpagesize() + memory
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            # With less than we try, LLVM ends the process, and Python itself goes round in circles for ever where a
            # thread handles the error: no code of ours is asked then.
            resource.setrlimit(resource.RLIMIT_CPU, (_SECONDS, _SECONDS))
        start = ["--resume", str(path)] if (path / "config.yaml").is_file() else ["--run-dir", str(path)]
        settings = [part for setting in _SETTINGS for part in ("--set", setting)] if start[0] == "--run-dir" else []
        sys.argv = ["leeward", "train", *start, "--quiet", *settings]
        try:
            cli.main()
        except SystemExit as end:
            os._exit(int(end.code or 0))

    log.write_text("")
    return os.waitstatus_to_exitcode(os.waitpid(forked(work, log), 0)[1])


def _deleted(path: Path) -> None:
    shutil.rmtree(path)


def _moved(path: Path) -> None:
    os.rename(path, path.with_name("moved"))


def _begun_anew(path: Path) -> None:
    shutil.rmtree(path)
    RunDir.create(path, load_config(None, ["seed=7"]))


def _read_only(path: Path) -> None:
    # Mounted once more over itself: a file system with files that are open for writing is not remounted.
    folder = str(path.parent)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=True)


def _no_files_left(path: Path) -> None:
    number = 0
    while True:
        try:
            (path.parent / f"filler{number}").touch(exist_ok=False)
        except OSError:
            return
        number += 1


FAULTS: dict[str, tuple[Fault, str, bool]] = {  # what happens, what is said of it, whether it needs a disk of its own
    "deleted": (_deleted, "a run that was moved is continued where it is now", False),
    "moved": (_moved, "a run that was moved is continued where it is now", False),
    "begun anew": (_begun_anew, "another run has taken its place", False),
    "read-only": (_read_only, "the disk may only be read", True),
    "no files left": (_no_files_left, "the disk that holds it is full, of bytes or of files", True),
}


def _after(name: str, folder: Path, path: Path) -> Path | None:
    """Where the run is now, with what was in its way removed; None where nothing of it is left."""
    if name == "read-only":
        subprocess.run(["umount", str(folder)], check=True)
    for file in folder.glob("filler*"):
        file.unlink()
    return {"deleted": None, "begun anew": None, "moved": path.with_name("moved")}.get(name, path)


def _one(name: str, folder: Path, log: Path, expected: object) -> str:
    """How one fault ended, in words; "good" at the beginning where it ended well."""
    fault, words, _ = FAULTS[name]
    path = folder / "run"
    code, said = _train(path, log, fault), log.read_text()
    if code != 1 or words not in said or "Traceback" in said:
        _after(name, folder, path)
        return f"BAD: exit code {code}: {said[-2000:]}"
    if name == "begun anew" and (RunDir.open(path).config().seed != 7 or len(list(path.iterdir())) > 4):
        return f"BAD: the new run was written to: {sorted(each.name for each in path.iterdir())}"
    now = _after(name, folder, path)
    ends = "nothing was left of it"
    if now is not None:
        damaged = [problem for _, problem in examine_run(RunDir.open(now)) if problem is not None]
        code = _train(now, log)
        if damaged or code or result_of(now) != expected:
            return f"BAD: {damaged}, exit code {code}, another end: {log.read_text()[-2000:]}"
        ends = "it went on to the same end"
        shutil.rmtree(now)
    shutil.rmtree(path, ignore_errors=True)
    return f"good: {' '.join(said.split())[:200]} | {ends}"


def _out_of_memory(folder: Path, log: Path, expected: object) -> list[str]:
    """With less and less memory: it trains, or says that there is none; nothing complete is lost."""
    found = []
    for megabytes in (400, 200, 100, 60, 45, 30):
        path = folder / f"memory{megabytes}"
        code, said = _train(path, log, memory=megabytes << 20), log.read_text()
        clean = code == 0 or (code == 1 and "out of memory" in said and "Traceback" not in said)
        whole = not (path / "config.yaml").is_file() or all(p is None for _, p in examine_run(RunDir.open(path)))
        again = _train(path, log)
        good = clean and whole and again == 0 and result_of(path) == expected
        found.append(f"{'good' if good else 'BAD'}: {megabytes} MB: exit code {code}: {' '.join(said.split())[-300:]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join([*FAULTS, "memory"]))
    parser.add_argument("--disk", type=Path, default=None, metavar="FOLDER")
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory(prefix="leeward-accidents-") as name:
        folder = Path(name)
        log = folder / "log"
        if _train(folder / "whole", log):
            print(log.read_text())
            return 1
        expected = result_of(folder / "whole")
        for fault, (_, _, needs_disk) in FAULTS.items():
            if (options.faults and fault not in options.faults) or (needs_disk and options.disk is None):
                continue
            words = _one(fault, options.disk if needs_disk else folder, log, expected)
            bad += not words.startswith("good")
            print(f"{fault}: {words}", flush=True)
        if not options.faults or "memory" in options.faults:
            for words in _out_of_memory(folder, log, expected):
                bad += not words.startswith("good")
                print(f"memory: {words}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
