"""Runs the table: each mutant alone, in a copy of the tree, against its own tests only.

Exit 0 when every mutant is killed. A mutant that survives, that breaks an import, or whose line is not found exactly
once is a failure; so is a test that is red without any mutant, since its red would then mean nothing.
Libraries are imported once; each mutant then runs in a fork of this process, which saves seconds per row.
"""

import multiprocessing
import os
import shutil
import sys
import time
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing.connection import wait
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tools.mutants import Mutant, table

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("src", "tests", "configs", "pyproject.toml")
PRELOADED = (
    "numpy",
    "scipy.stats",
    "scipy.integrate",
    "hypothesis.strategies",
    "torch",
    "torch.distributed.tensor",  # imported by the first torch.testing.assert_close
    "pydantic",
    "gymnasium",
)
WORKERS = 2
TIMEOUT_SECONDS = 180.0
VERDICT = 100  # added to the exit code, so that a child that dies with 1 does not look like a failed test
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


def run_tests(tree: Path, tests: tuple[str, ...], log: Path) -> None:
    """In the child: pytest on the copy; exits with VERDICT + pytest's code, what it prints goes to `log`."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree)]
    sys.dont_write_bytecode = True  # two mutants of one size within one second would share a cached file
    options = ["-x", "-q", "--no-header", "--tb=line", "--assert=plain", "-p", "no:cacheprovider", "-p", "no:xdist"]
    code = pytest.main([*options, *tests])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(VERDICT + int(code))


@dataclass
class Job:
    """One run of tests in one tree, and the fault in it (None: the tree as it is)."""

    mutant: Mutant | None
    tests: tuple[str, ...]
    tree: Path
    outcome: str = ""
    detail: str = ""
    started: float = field(default_factory=time.perf_counter)

    def start(self) -> None:
        if self.mutant is not None:
            path = self.tree / self.mutant.file
            self.original = path.read_text(encoding="utf-8") if path.exists() else ""
            found = self.original.count(self.mutant.was)
            if found != 1:
                self.outcome = "line not found" if found == 0 else "line not unique"
                return
            path.write_text(self.original.replace(self.mutant.was, self.mutant.fault), encoding="utf-8")
        self.log = self.tree / "pytest.log"
        self.process = FORK.Process(target=run_tests, args=(self.tree, self.tests, self.log))
        self.process.start()

    def finish(self) -> None:
        """Read the verdict of a process that has ended or has had its time, and mend the tree."""
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        # pytest: 0 all passed, 1 a test failed, anything else never got as far as a verdict.
        self.outcome = {0: "SURVIVED", 1: "killed"}.get((self.process.exitcode or 0) - VERDICT, "broken")
        if self.outcome != "killed":
            lines = [line for line in self.log.read_text(encoding="utf-8").splitlines() if line.strip()]
            self.detail = "\n    ".join(lines[-6:])
        if self.mutant is not None:
            (self.tree / self.mutant.file).write_text(self.original, encoding="utf-8")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started


def run_all(chosen: list[Mutant], trees: list[Path]) -> list[Job]:
    waiting, free = list(reversed(chosen)), list(trees)
    running: list[Job] = []
    done: list[Job] = []
    while waiting or running:
        while waiting and free:
            mutant = waiting.pop()
            job = Job(mutant, mutant.tests, free.pop())
            job.start()
            running.append(job)
        live = [job.process.sentinel for job in running if not job.outcome]
        if len(live) == len(running):
            wait(live, timeout=1.0)
        for job in list(running):
            if not job.outcome:
                if job.process.is_alive() and job.seconds < TIMEOUT_SECONDS:
                    continue
                job.finish()
            running.remove(job)
            free.append(job.tree)
            done.append(job)
            print(f"{job.outcome:>15}  {job.seconds:5.1f} s  {job.mutant.id if job.mutant else ''}", flush=True)
    return done


def main(words: list[str]) -> int:
    """Run the rows whose id or file holds one of `words`; all of them without words."""
    chosen = [m for m in table() if not words or any(word in m.id or word in m.file for word in words)]
    if not chosen:
        print(f"no mutant matches {words}")
        return 1
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED:
        import_module(name)
    start = time.perf_counter()
    with TemporaryDirectory(prefix="leeward-mutants-") as folder:
        trees = [copy_tree(Path(folder) / str(i)) for i in range(WORKERS)]
        healthy = Job(None, tuple(sorted({test for m in chosen for test in m.tests})), trees[0])
        healthy.start()
        healthy.process.join()
        healthy.finish()
        if healthy.outcome != "SURVIVED":
            print(f"the tests are red without any mutant, so nothing can be shown:\n{healthy.log.read_text()}")
            return 1
        done = run_all(chosen, trees)
    failures = [job for job in done if job.outcome != "killed"]
    for job in failures:
        assert job.mutant is not None
        print(f"\n{job.outcome}: {job.mutant.id} in {job.mutant.file}")
        print(f"  - {job.mutant.was}\n  + {job.mutant.fault}\n    {job.detail}")
    print(f"\n{len(done) - len(failures)} of {len(done)} mutants killed in {time.perf_counter() - start:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
