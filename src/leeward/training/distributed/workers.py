"""Start the workers of a run on Ray, show what they say, and start them again from the last checkpoint if one is lost.

Ray Train could start them again by itself, but not tell a machine that was lost from an error that comes back each
time.
"""

import os
import secrets
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import ray
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig, WorkerGroupError
from ray.train.torch import TorchTrainer

from leeward.algorithm.risk_constraint import LimitVerdict
from leeward.errors import LeewardError, WorkerFault
from leeward.telemetry.alerts import Alert
from leeward.training.distributed.cluster import cluster
from leeward.training.distributed.desk import Word, open_desk
from leeward.training.distributed.roles import SEEN, Assignment, Gloo, work
from leeward.training.run_dir import RunDir
from leeward.training.trainer import Interrupted, Progress, interruptible

__all__ = ["train_with_workers"]

_TIMEOUT = 60  # seconds that a worker waits for the others inside an update
_LOSSES = 3  # in a row, without a new checkpoint between them, after which training ends
_LISTEN = 0.2  # seconds between two looks at the desk


def train_with_workers(
    run: RunDir,
    workers: int,
    address: str | None,
    show: Callable[[Progress], None],
    *,
    resume: bool,
    parent: RunDir | None = None,
    notice: Callable[[str], None],
    tell: Callable[[Alert], None],
    track: str | None = None,
) -> list[LimitVerdict]:
    """`trainer.train` of a run whose config has `n_jobs` = `workers`, by workers of the Ray cluster at `address`.

    The run's directory must be on a disk that all nodes see. The first worker holds it meanwhile.
    """
    # The thread comes first: when something is raised here, Ray ends before it is waited for.
    with ThreadPoolExecutor(1) as threads, _marked(run) as mark, cluster(address, cpus=workers), run.lent():
        if (there := int(ray.cluster_resources().get("CPU", 0))) < workers:
            notice(f"The cluster has {there} CPUs; training waits until {workers} workers have one each.")
        listener = _Listener(show, notice, tell)
        assignment = Assignment(
            run=str(run.path.resolve()),
            mark=mark,
            folder=os.getcwd(),
            resume=resume,
            parent=None if parent is None else str(parent.path.resolve()),
            desk=listener.desk,
            track=track,
        )
        losses = 0
        with interruptible(listener):
            while True:
                known = run.checkpoint_list()[-1:]
                # In a thread, because the main one hears signals, which Ray Train would take for itself.
                loss = listener.listen(threads.submit(_fit, assignment, workers))
                if loss is None:
                    return listener.limits()
                newest = run.checkpoint_list()[-1:]
                losses = losses + 1 if newest == known else 1
                if losses == _LOSSES:
                    raise WorkerFault(f"{loss}; {losses} times in a row without a new checkpoint between them")
                notice(f"{loss}. Going on from {newest[0] if newest else 'the start'} with {workers} workers.")
                assignment = replace(assignment, resume=True)


@contextmanager
def _marked(run: RunDir) -> Iterator[str]:
    """What stands in a file of the run's directory, by which a worker knows it again."""
    mark = secrets.token_hex(8)
    (run.path / SEEN).write_text(mark)
    try:
        yield mark
    finally:
        (run.path / SEEN).unlink(missing_ok=True)


def _fit(assignment: Assignment, workers: int) -> None:
    """Ray Train from its start to its end."""
    # The folder holds nothing that is needed: checkpoints are the run's own, and no result is reported.
    with tempfile.TemporaryDirectory(prefix="leeward-ray-") as folder:
        TorchTrainer(
            work,
            train_loop_config={"assignment": assignment},
            torch_config=Gloo(_TIMEOUT),
            scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 1}),
            run_config=RunConfig(
                storage_path=folder,
                failure_config=FailureConfig(max_failures=0),
                logging_config=LoggingConfig(log_level="CRITICAL"),
            ),
        ).fit()


class _Listener:
    """Shows what the workers say, as if it were said here."""

    def __init__(
        self, show: Callable[[Progress], None], notice: Callable[[str], None], tell: Callable[[Alert], None]
    ) -> None:
        self.interrupted: int | None = None  # the signal that asked for an end
        self.desk = open_desk()
        self._said: dict[str, Callable[[Any], None]]
        self._said = {"progress": show, "notice": notice, "alert": tell, "warning": warnings.warn}
        self._end: Word | None = None

    def listen(self, fit: Future[None]) -> str | None:
        """Until Ray Train is done; None if the run has come to an end, else how a worker was lost."""
        while not fit.done():
            self._hear()
            time.sleep(_LISTEN)
        self._hear()
        return None if self._end is not None else _loss(fit.exception())

    def limits(self) -> list[LimitVerdict]:
        """What became of limits, if training has come to a good end."""
        assert self._end is not None
        kind, content = self._end
        if kind == "error":
            raise content
        if kind == "interrupted":
            raise Interrupted(content)
        found: list[LimitVerdict] = content
        return found

    def _hear(self) -> None:
        for word in ray.get(self.desk.take.remote(self.interrupted)):
            if word.kind in self._said:
                self._said[word.kind](word.content)
            else:
                self._end = word


def _loss(error: BaseException | None) -> str:
    """What Ray Train says of a worker that was lost; an error of ours that would come back is raised instead."""
    if not isinstance(error, WorkerGroupError):
        raise WorkerFault(f"Ray Train ended without a result: {error}") from error
    failures = sorted(error.worker_failures.items())
    for rank, failure in failures:
        if isinstance(failure, LeewardError) and not isinstance(failure, WorkerFault):
            raise WorkerFault(f"worker {rank}: {failure}")
    # Those that only say that they lost the others are not the cause.
    rank, failure = next((each for each in failures if not isinstance(each[1], WorkerFault)), failures[0])
    said = str(failure).strip().splitlines()
    return f"Worker {rank} was lost ({type(failure).__name__}: {said[0] if said else 'it said nothing'})"
