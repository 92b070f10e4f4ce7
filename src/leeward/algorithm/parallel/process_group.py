"""The processes of one training run, as the engine sees them: which envs are mine, and what all of us found.

Every process holds a replica of the model and a share of the envs, in the order of the processes. `SingleProcess` is
the one process of a plain run: it gives back what it is given. `SeveralProcesses` speaks to the others through any
process group of torch.distributed; who started the processes is no matter of this module.

Every method of `SeveralProcesses` but `own` and `n_envs` is a collective: all processes call the same ones in the same
order.
"""

import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import ReduceOp

from leeward.errors import TrainingDiverged, WorkerFault
from leeward.telemetry.metrics import Numbers
from leeward.telemetry.tally import REDUCTIONS

__all__ = ["SINGLE_PROCESS", "ProcessGroup", "SeveralProcesses", "SingleProcess", "finish", "share_of_envs"]

Anything = TypeVar("Anything")
Look: TypeAlias = Callable[[], WorkerFault | None]
_PAUSE = 2e-5  # seconds by which a wait for the others grows longer; a message takes about five times as long
_LOOK = 1.0  # seconds between two looks at the others, while they are waited for


def share_of_envs(n_envs: int, size: int, rank: int) -> slice:
    """The envs of one process: neighbours, as many as everybody else's or one more."""
    each, more = divmod(n_envs, size)
    first = rank * each + min(rank, more)
    return slice(first, first + each + (rank < more))


class ProcessGroup(Protocol):
    """What the engine asks of the processes it runs in."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def first_env(self) -> int: ...
    def n_envs(self, own: int) -> int:
        """How many envs all processes have together, where this one has `own`."""
        ...

    def columns(self, values: Tensor) -> Tensor:  # (T, B, ...) -> (T, envs of all, ...)
        """The values of all envs."""
        ...

    def own(self, values: Tensor) -> Tensor:  # (T, envs of all, ...) -> (T, B, ...)
        """The values of this process's envs."""
        ...

    def average(self, values: Tensor) -> Tensor:
        """The mean over all envs, where `values` is the mean over this process's."""
        ...

    def moments(self, values: Tensor) -> tuple[float, float]:
        """Mean and variance (population form) over the envs of all, in float64; `values` has equal rows per env."""
        ...

    def gather(self, thing: Anything) -> list[Anything]:
        """What each process gave, in their order."""
        ...

    def combine(self, numbers: Numbers, weights: Numbers | None = None) -> Numbers:
        """Each metric over all processes, in the way it says; means by `weights`, or else by the share of envs."""
        ...

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite the tensors by those of the first process."""
        ...

    def join_gradients(self, parameters: Sequence[nn.Parameter], n_real: int, *sums: float) -> tuple[float, ...]:
        """Make every `.grad`, a mean over this process's `n_real` steps, the mean over everybody's.

        Returns n_real and the other sums over all processes.
        """
        ...

    def check_replicas(self, tensors: Iterable[Tensor], update: int) -> None:
        """Raises where the processes do not hold the same bits."""
        ...


class SingleProcess:
    """One process: nobody to ask."""

    rank, size, first_env = 0, 1, 0

    def n_envs(self, own: int) -> int:
        return own

    def columns(self, values: Tensor) -> Tensor:
        return values

    def own(self, values: Tensor) -> Tensor:
        return values

    def average(self, values: Tensor) -> Tensor:
        return values

    def moments(self, values: Tensor) -> tuple[float, float]:
        exact = values.to(torch.float64)
        return float(exact.mean()), float(exact.var(correction=0))

    def gather(self, thing: Anything) -> list[Anything]:
        return [thing]

    def combine(self, numbers: Numbers, weights: Numbers | None = None) -> Numbers:
        return dict(numbers)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Nobody else to tell."""

    def join_gradients(self, parameters: Sequence[nn.Parameter], n_real: int, *sums: float) -> tuple[float, ...]:
        return (n_real, *sums)

    def check_replicas(self, tensors: Iterable[Tensor], update: int) -> None:
        """One replica is like itself."""


SINGLE_PROCESS = SingleProcess()


class SeveralProcesses:
    """The processes of a torch.distributed process group, which share `n_envs` envs by `share_of_envs`."""

    def __init__(self, processes: Any, n_envs: int, look: Look = lambda: None) -> None:
        """`look` is asked now and then while the others are waited for; what it finds ends the wait."""
        self._processes, self._n_envs, self._look = processes, n_envs, look
        self.rank, self.size = int(processes.rank()), int(processes.size())
        self._own = share_of_envs(n_envs, self.size, self.rank)
        self.first_env = int(self._own.start)
        self._weight = (self._own.stop - self._own.start) / n_envs

    def n_envs(self, own: int) -> int:
        assert own == self._own.stop - self._own.start
        return self._n_envs

    def columns(self, values: Tensor) -> Tensor:
        # Zeros where others write: adding them changes no number, and shares need not be equal.
        T, _, *rest = values.shape
        dtype = torch.uint8 if values.dtype == torch.bool else values.dtype
        whole = torch.zeros((T, self._n_envs, *rest), dtype=dtype, device=values.device)
        whole[:, self._own] = values.to(dtype)
        return self._sum(whole).to(values.dtype)

    def own(self, values: Tensor) -> Tensor:
        return values[:, self._own]

    def average(self, values: Tensor) -> Tensor:
        return self._sum(values.to(torch.float64) * self._weight).to(values.dtype)

    def moments(self, values: Tensor) -> tuple[float, float]:
        exact = values.to(torch.float64)
        here = exact.mean()
        mean = self.average(here)
        return float(mean), float(self.average(exact.var(correction=0) + (here - mean).square()))

    def gather(self, thing: Anything) -> list[Anything]:
        blob = torch.frombuffer(bytearray(pickle.dumps(thing)), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        self._wait(self._processes.allgather([sizes], [torch.tensor([len(blob)])]))
        room = int(max(int(size) for size in sizes))
        mine = torch.zeros(room, dtype=torch.uint8)
        mine[: len(blob)] = blob
        blobs = [torch.zeros(room, dtype=torch.uint8) for _ in range(self.size)]
        self._wait(self._processes.allgather([blobs], [mine]))
        return [pickle.loads(each[: int(size)].numpy().tobytes()) for each, size in zip(blobs, sizes, strict=True)]

    def combine(self, numbers: Numbers, weights: Numbers | None = None) -> Numbers:
        own = dict.fromkeys(numbers, self._weight) | (weights or {})
        everybody = self.gather((own, dict(numbers)))
        found: Numbers = {}
        for metric in dict.fromkeys(metric for _, each in everybody for metric in each):
            shares = [theirs[metric] for theirs, each in everybody if metric in each]
            values = [each[metric] for _, each in everybody if metric in each]
            if metric.combine == "mean":
                found[metric] = float(np.average(values, weights=shares))
            else:
                found[metric] = float(REDUCTIONS[metric.combine](list(values)))
        return found

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            self._wait(self._processes.broadcast([tensor.detach()]))

    def join_gradients(self, parameters: Sequence[nn.Parameter], n_real: int, *sums: float) -> tuple[float, ...]:
        # One message: the gradients as sums over steps, which of them there are, and the numbers.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        present = [0.0 if p.grad is None else 1.0 for p in parameters]
        ends = torch.tensor([*present, n_real, *sums], dtype=gradients[0].dtype)
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        message = self._sum(torch.cat((flat * n_real, ends)))
        numbers: list[float] = message[len(flat) :].tolist()
        present, (steps, *rest) = numbers[: len(present)], numbers[len(present) :]
        means = message[: len(flat)] / max(steps, 1.0)
        for parameter, part, there in zip(
            parameters, means.split([p.numel() for p in parameters]), present, strict=True
        ):
            # A parameter nobody used keeps no gradient, or an optimiser with momentum would still move it.
            parameter.grad = part.view_as(parameter) if there else None
        return (steps, *rest)

    def check_replicas(self, tensors: Iterable[Tensor], update: int) -> None:
        words = [tensor.detach().flatten().view(torch.int32) for tensor in tensors if tensor.element_size() % 4 == 0]
        bits = torch.cat(words).sum(dtype=torch.int64)
        extremes = torch.stack((bits, -bits))
        self._wait(self._processes.allreduce([extremes], ReduceOp.MAX))
        if int(extremes[0]) != -int(extremes[1]):
            raise TrainingDiverged(
                f"update {update}: the processes' weights are no longer the same; a network that draws its own random "
                "numbers or keeps running statistics in training (batch normalisation) cannot be trained with n_jobs"
            )

    def _sum(self, tensor: Tensor) -> Tensor:
        tensor = tensor.contiguous()
        self._wait(self._processes.allreduce([tensor]))
        return tensor

    def _wait(self, work: Any) -> None:
        finish(work, self.rank, self.size, look=self._look)


def finish(work: Any, rank: int, size: int, *, tells: bool = True, look: Look = lambda: None) -> None:
    """Wait for a message between processes; process `rank` of `size` says so if the others are lost.

    `tells`: whether the work says when it is done; gloo's messages from one process to one other do not.
    """
    # Not in one call: Python hears a signal between two steps of its own, and another process may hang for ever.
    pause = waited = 0.0
    while tells and not work.is_completed():
        time.sleep(pause)
        waited += pause
        pause = min(pause + _PAUSE, 50 * _PAUSE)
        if waited > _LOOK:
            if fault := look():
                raise fault
            waited = 0.0
    try:
        work.wait()
    except RuntimeError as error:
        raise WorkerFault(f"process {rank} of {size} lost the others: {error}") from error
