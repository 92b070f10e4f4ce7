"""A worker: a replica of the model on its share of the envs, which does what the first process orders.

    begin    take over all that was learned and counted so far; reset the envs if training starts afresh
    settings train by other settings
    iterate  one rollout and its update, together with all others
    report   say where the envs are

Between two orders a worker waits, so that whatever the first process does there (a save, a validation) sees all
processes between two updates. How orders travel is a matter of who launched the workers: `worker_pool`, `peers`.
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import cloudpickle
import numpy as np
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from leeward.algorithm import checkpoint
from leeward.algorithm.parallel import env_shards
from leeward.algorithm.parallel.process_group import ProcessGroup, share_of_envs
from leeward.config.settings import Settings
from leeward.errors import ArgumentError
from leeward.rollout.rollout_state import RawObservation, RolloutState

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = ["Order", "Task", "Worker", "WorkerReport", "begin_order", "replica", "settings_order", "tasks"]

Rng = tuple[dict[str, Any], dict[str, Tensor]]
Order = tuple[Any, ...]  # its name, and what goes with it


class WorkerReport(NamedTuple):
    """What a worker says between two updates."""

    state: RolloutState
    rng: Rng
    env_state: dict[str, Any] | None  # of an env that has one


@dataclass(frozen=True)
class Task:
    """All a worker needs to become a replica."""

    rank: int
    size: int
    n_envs: int  # of all processes
    model: "type[DistributionalPPO]"
    arguments: dict[str, Any]
    make_env: Callable[[], VecEnv]
    seed: int | None  # of envs that were not seeded yet
    rng: Rng | int  # of the global generators: a saved state, or a number to start from
    state: RolloutState | None  # None: the envs begin anew

    def envs(self) -> VecEnv:
        """This worker's share of them."""
        env = self.make_env()
        if self.seed is not None:
            env.seed(self.seed)
        return env


def tasks(
    model: "DistributionalPPO", env: VecEnv, state: RolloutState | None, saved_rngs: checkpoint.Rngs
) -> list[bytes]:
    """What every process but the first shall be, pickled; `state` is that of all envs, `saved_rngs` the generators
    that a file holds for the workers."""
    size, keeps_state = model.settings.n_jobs, env_shards.has_state(env)
    fits = state is not None and len(saved_rngs) == size - 1
    found = []
    for rank in range(1, size):
        own = share_of_envs(env.num_envs, size, rank)
        task = Task(
            rank=rank,
            size=size,
            n_envs=env.num_envs,
            model=type(model),
            arguments=_arguments(model),
            make_env=env_shards.shard(env, own),
            seed=None if keeps_state else model.seed,
            rng=saved_rngs[rank - 1] if fits else _first_seed(model.stream_seed, rank),
            state=None if state is None else state.share(own),
        )
        found.append(_pickled(task))
    return found


def begin_order(model: "DistributionalPPO", *, fresh: bool) -> Order:
    """Every replica takes over what `model` has learned; `fresh`: the envs start anew."""
    file = io.BytesIO()
    checkpoint.save(model, file, exclude=("rng", "rollout"))
    return "begin", file.getvalue(), fresh


def settings_order(settings: Settings, *, fresh_optimizer: bool) -> Order:
    """Every replica trains by these from its next update on."""
    own = settings.model_copy(update={"n_jobs": 1})  # a replica starts no processes
    return "settings", cloudpickle.dumps(own), fresh_optimizer


class Worker:
    """The replica of one process, and what it does about an order."""

    def __init__(self, task: Task, env: VecEnv, group: ProcessGroup) -> None:
        self.env = env
        self.model = model = replica(task.model, env, group, task.arguments)
        model.set_logger(Logger(folder=None, output_formats=[]))
        if isinstance(task.rng, int):
            set_random_seed(task.rng)
        else:
            checkpoint.unpack_rng(*task.rng)
        assert model.collector is not None
        if task.state is not None:
            model.collector.state = task.state
        self._nobody = CallbackList([])
        self._nobody.init_callback(model)

    def obey(self, order: str, *content: Any) -> WorkerReport | None:
        """What is said about it: only a report is an answer."""
        model = self.model
        assert model.collector is not None
        if order == "begin":
            data, fresh = content
            checkpoint.restore(model, *checkpoint.read_checkpoint(io.BytesIO(data)))
            if fresh:
                model.collector.reset(cast(RawObservation, model.collector.env.reset()))
        elif order == "settings":
            blob, fresh_optimizer = content
            model.put_in_force(pickle.loads(blob), fresh_optimizer=fresh_optimizer)
        elif order == "iterate":
            model.train_one_round(self._nobody)
        else:
            assert order == "report"
            return self._report()
        return None

    def _report(self) -> WorkerReport:
        assert self.model.collector is not None
        tensors: dict[str, Tensor] = {}
        rng = checkpoint.pack_rng(tensors)
        state = self.env.state_dict() if env_shards.has_state(self.env) else None  # type: ignore[attr-defined]
        return WorkerReport(self.model.collector.state, (rng, tensors), state)


def replica(
    model: "type[DistributionalPPO]", env: VecEnv, group: ProcessGroup, arguments: dict[str, Any]
) -> "DistributionalPPO":
    """A model that trains as one of several processes on its share of the envs; for those who launch processes."""
    made = model(env=env, _init_setup_model=False, **arguments)
    made.processes.group = group
    made._setup_model()
    return made


def _arguments(model: "DistributionalPPO") -> dict[str, Any]:
    """The constructor's arguments for a replica that neither seeds, nor logs, nor starts processes."""
    own = {name: getattr(model.settings, name) for name in type(model.settings).model_fields if name != "n_jobs"}
    return own | {"policy": model.policy_class, "policy_kwargs": model.policy_kwargs, "device": "cpu"}


def _first_seed(seed: int, rank: int) -> int:
    return int(np.random.SeedSequence([seed, rank]).generate_state(1)[0])


def _pickled(task: Task) -> bytes:
    try:
        blob: bytes = cloudpickle.dumps(task)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ArgumentError(
            f"n_jobs={task.size}: the env or an argument cannot be sent to another process: {error}; make what cannot "
            "be pickled inside the function that makes the env"
        ) from None
    return blob
