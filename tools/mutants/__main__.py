"""Runs the table: each mutant alone, in a copy of the tree, against its own tests only.

Exit 0 when every mutant is killed. A mutant that survives, whose code cannot run (a name that does not exist, an import
that fails), or is not there exactly once is a failure; so is a test that is red without any mutant, since its red would
then mean nothing.
Libraries are imported once; each mutant then runs in a fork of this process, which saves seconds per row. Rows in a
file that numba compiles run as plain Python, since compiling it anew would take longer than their tests.
"""

import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

import numba
import pytest

from tools.mutants import Mutant, table
from tools.mutants.splice import Misplaced, mutated
from tools.mutants.verdict import Watch

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "configs", "pyproject.toml")
PRELOADED = (
    "numpy",
    "scipy.stats",
    "scipy.integrate",
    "hypothesis.strategies",
    "torch",
    "torch.distributed.tensor",  # imported by the first torch.testing.assert_close
    "torch._dynamo",  # imported by the first optimiser
    "pydantic",
    "gymnasium",
    "pandas",
    "stable_baselines3",
    "sb3_contrib",
    "safetensors.torch",
    "pyarrow",
)
COMPILED = ("src/leeward/env/kernel.py", "src/leeward/market/rolling.py")
WORKERS = 2
TIMEOUT_SECONDS = 180.0
VERDICT = 100  # added to the exit code, so that a child that dies with 1 does not look like a failed test
BROKEN = 20  # none of pytest's own
FORK = multiprocessing.get_context("fork")


def copy_tree(target: Path) -> Path:
    target.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, target / name)
    return target


def run_tests(tree: Path, mutant: Mutant | None, tests: tuple[str, ...], log: Path, interpreted: bool) -> None:
    """In the child: pytest on the copy; exits with VERDICT + pytest's code, what it prints goes to `log`.

    Where the code of the mutant could not run the code is BROKEN.
    """
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree)]
    sys.dont_write_bytecode = True  # two mutants of one size within one second would share a cached file
    options = ["-x", "-q", "--no-header", "--tb=line", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    # A folder of its own: in the one that all runs share by default, two that clean it at once trip over each other.
    options += ["--hypothesis-profile=mutants", f"--basetemp={tree.with_name(f'{tree.name}-tmp')}"]
    if interpreted:
        numba.config.DISABLE_JIT = True  # type: ignore[attr-defined]
        options += ["-W", "ignore:overflow encountered:RuntimeWarning"]  # compiled integers wrap around in silence
    watch = Watch(mutant, tree) if mutant is not None else None
    try:
        code = int(pytest.main([*options, *tests], plugins=[watch] if watch else []))
    except pytest.PytestUnraisableExceptionWarning:
        # Something was left open and is found when all tests have ended: what they said stands.
        if watch is None or not watch.failed:
            raise
        code = int(pytest.ExitCode.TESTS_FAILED)
    if watch is not None and watch.broken:
        code = BROKEN
        print(f"the code of the row could not run: {watch.broken}")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(VERDICT + code)


@dataclass
class Job:
    """One run of tests in a copy of the tree, with a fault in it (None: as it is)."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    interpreted: bool
    outcome: str = ""
    detail: str = ""

    def start(self, tree: Path) -> None:
        self.tree, self.started, self.log = tree, time.perf_counter(), tree / "pytest.log"
        if self.mutant is not None:
            path = tree / self.mutant.file
            self.original, self.stamp = path.read_text(encoding="utf-8"), path.stat().st_mtime_ns
            try:
                text = mutated(self.original, self.mutant.where, self.mutant.was, self.mutant.fault)
            except Misplaced as error:
                self.outcome, self.detail = "misplaced", str(error)
                return
            path.write_text(text, encoding="utf-8")
        self.process = FORK.Process(target=run_tests, args=(tree, self.mutant, self.tests, self.log, self.interpreted))
        self.process.start()

    def finish(self) -> None:
        """Read the verdict of a process that has ended or has had its time, and mend the tree."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        # pytest: 0 all passed, 1 a test failed; anything else is no verdict.
        self.outcome = {0: "SURVIVED", 1: "killed"}.get((self.process.exitcode or 0) - VERDICT, "broken")
        if self.outcome != "killed" or self.mutant is None:
            lines = [line for line in self.log.read_text(encoding="utf-8").splitlines() if line.strip()]
            self.detail = "\n    ".join(lines[-6:])
        if self.mutant is not None:
            path = self.tree / self.mutant.file
            path.write_text(self.original, encoding="utf-8")
            os.utime(path, ns=(self.stamp, self.stamp))  # else numba would compile it again for the rows that follow

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


def healthy_jobs(chosen: list[Mutant]) -> list[Job]:
    """Every test that is named, without a fault: files are dealt out to more jobs than there are workers, so that a
    worker whose files were short takes another job."""
    jobs = []
    for interpreted, parts in ((False, 4 * WORKERS), (True, WORKERS)):
        named = {test for m in chosen if (m.file in COMPILED) == interpreted for test in m.tests}
        tests = sorted(test for test in named if "::" not in test or test.partition("::")[0] not in named)
        files = sorted({test.partition("::")[0] for test in tests})
        for part in range(parts):
            own = tuple(test for test in tests if files.index(test.partition("::")[0]) % parts == part)
            jobs += [Job(None, own, interpreted)] if own else []
    return jobs


def run_all(jobs: list[Job], trees: list[Path], show: Callable[[Job], None] = lambda job: None) -> None:
    waiting, free = list(reversed(jobs)), list(trees)
    running: list[Job] = []
    while waiting or running:
        while waiting and free:
            job = waiting.pop()
            job.start(free.pop())
            running.append(job)
        live = [job.process.sentinel for job in running if not job.outcome]
        if len(live) == len(running):
            wait(live, timeout=1.0)
        for job in list(running):
            if not job.outcome:
                # Many tests run without a fault, and a machine may be busy; a row has its own few.
                if job.process.is_alive() and (job.mutant is None or job.seconds < TIMEOUT_SECONDS):
                    continue
                job.finish()
            running.remove(job)
            free.append(job.tree)
            show(job)


def show_row(job: Job) -> None:
    print(f"{job.outcome:>15}  {job.seconds:5.1f} s  {job.mutant.id if job.mutant else ''}", flush=True)


def main(words: list[str]) -> int:
    """Run the rows whose id or file holds one of `words`; all of them without words."""
    chosen = [m for m in table() if not words or any(word in m.id or word in m.file for word in words)]
    if not chosen:
        print(f"no mutant matches {words}")
        return 1
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # as `make test` does
    for name in PRELOADED:
        import_module(name)
    start = time.perf_counter()
    with TemporaryDirectory(prefix="leeward-mutants-") as folder:
        trees = [copy_tree(Path(folder) / str(i)) for i in range(WORKERS)]
        healthy = healthy_jobs(chosen)
        run_all(healthy, trees)
        if red := [job.detail for job in healthy if job.outcome != "SURVIVED"]:
            print("\n".join(["the tests are red without any mutant, so nothing can be shown:", *red]))
            return 1
        print(f"{'green':>15}  {time.perf_counter() - start:5.1f} s  all tests without a mutant", flush=True)
        jobs = [Job(mutant, mutant.tests, mutant.file in COMPILED) for mutant in chosen]
        run_all(jobs, trees, show_row)
    failures = [job for job in jobs if job.outcome != "killed"]
    for job in failures:
        assert job.mutant is not None
        print(f"\n{job.outcome}: {job.mutant.id} in {job.mutant.where or 'the module'} of {job.mutant.file}")
        print(f"  - {job.mutant.was}\n  + {job.mutant.fault}\n    {job.detail}")
    print(f"\n{len(jobs) - len(failures)} of {len(jobs)} mutants killed in {time.perf_counter() - start:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
