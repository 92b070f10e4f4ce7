"""The processes of one model: a plain run has one; with `n_jobs` others are started when `learn` is called."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch
from stable_baselines3.common.vec_env import VecEnv, VecTransposeImage

from leeward.algorithm.checkpoint import Rngs
from leeward.algorithm.parallel import env_shards
from leeward.algorithm.parallel.process_group import SINGLE_PROCESS, ProcessGroup, share_of_envs
from leeward.algorithm.parallel.worker import WorkerReport
from leeward.algorithm.parallel.worker_pool import WorkerPool
from leeward.config.settings import Settings
from leeward.errors import ArgumentError
from leeward.rollout.rollout_state import RolloutState, join_states

if TYPE_CHECKING:
    from leeward.algorithm.ppo import DistributionalPPO

__all__ = ["Launch", "Pool", "Processes"]


class Pool(Protocol):
    """The first process's hold on the others, whoever has started them."""

    busy: bool  # inside a rollout or an update
    keeps_state: bool  # whether the envs can say where they are

    @property
    def group(self) -> ProcessGroup: ...
    @property
    def closed(self) -> bool: ...
    def begin(self, model: "DistributionalPPO", *, fresh: bool) -> None: ...
    def settings(self, settings: Settings, *, fresh_optimizer: bool) -> None: ...
    def start(self) -> None: ...
    def reports(self) -> list[WorkerReport]: ...
    def close(self) -> None: ...
    def at_work(self) -> AbstractContextManager[None]: ...


Launch = Callable[["DistributionalPPO", VecEnv, RolloutState | None, Rngs], Pool]


class Processes:
    """Who trains: this process alone, or with the workers of a pool. `group` is what the engine speaks to."""

    def __init__(self, model: "DistributionalPPO") -> None:
        self._model = model
        self.launch: Launch = WorkerPool  # who starts the others: processes on this machine, unless told otherwise
        self._pool: Pool | None = None
        self._all_envs: VecEnv | None = None  # what was given, while the pool shares it
        self.group: ProcessGroup = SINGLE_PROCESS
        self.saved_rngs: Rngs = []  # of a file, until the workers are there

    @property
    def n_envs(self) -> int:
        """How many envs all processes have together; the model's `n_envs` are this one's."""
        return self.group.n_envs(self._model.n_envs)

    def check(self, env: VecEnv | None, device: torch.device) -> None:
        """Refuse what several processes cannot share; without an env a model only predicts, and that it may."""
        n_jobs = self._model.settings.n_jobs
        if n_jobs == 1 or env is None:
            return
        if device.type != "cpu":
            raise ArgumentError(
                f"n_jobs={n_jobs} shares the cores of a CPU, and the device is {device}; pass device='cpu'"
            )
        env_shards.refuse_unshardable(_below_transpose(env), n_jobs)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Training happens inside; starts the workers if there are to be some and there are none yet."""
        if self._model.settings.n_jobs > 1 and self._pool is None:
            self._start()
        with self._at_work():
            yield

    def begin(self, *, fresh: bool) -> None:
        """Every worker takes over what the model has learned; `fresh`: the envs start anew."""
        if self._pool is not None:
            self._pool.begin(self._model, fresh=fresh)

    def tell(self, settings: Settings, *, fresh_optimizer: bool) -> None:
        """The workers train by these settings too; between two updates."""
        if self._pool is None:
            return
        if self._pool.busy:
            raise ArgumentError("settings of a run with n_jobs change between two updates, not inside a rollout")
        self._pool.settings(settings, fresh_optimizer=fresh_optimizer)

    @contextmanager
    def one_round(self) -> Iterator[None]:
        """All processes do a rollout and its update inside."""
        if self._pool is not None:
            self._pool.start()
        yield
        if self._pool is not None:
            self._pool.busy = False

    def stop(self) -> None:
        """End the workers, which else wait for the next `learn`; it starts them again.

        Envs that have a state go on where they were, others start anew.
        """
        pool = self._pool
        if pool is None:
            return
        if pool.busy:
            raise ArgumentError("stop() inside a rollout or an update; other processes are at work, call it between")
        state, kept = self.rollout_state(), False
        if pool.keeps_state and state is not None:
            self.env_state()
            self.saved_rngs, kept = self.rngs(), True
        pool.close()
        self._be_alone(state if kept else None)

    def rollout_state(self) -> RolloutState | None:
        """Where all envs are; None before the first rollout, and inside one with several processes."""
        own = self._model.rollout_state
        if own is None or self._pool is None:
            return own
        return None if self._pool.busy else join_states([own, *(report.state for report in self._reports())])

    def env_state(self) -> dict[str, Any]:
        """The state of all envs, those of the workers included, of an env that has a `state_dict`.

        Between two updates; it goes back by the `load_state_dict` of an env of as many, before `learn`.
        """
        env: Any = self._model.env
        if self._pool is None:
            own: dict[str, Any] = env.state_dict()
            return own
        whole: Any = self._all_envs
        whole.join([env.state_dict(), *(report.env_state for report in self._reports())])
        state: dict[str, Any] = whole.state_dict()
        return state

    def rngs(self) -> Rngs:
        """The global generators of the workers."""
        if self._pool is None or self._pool.busy:
            return self.saved_rngs
        return [report.rng for report in self._reports()]

    @property
    def keep_env_state(self) -> bool:
        """Whether a save between two updates can hold where all envs are."""
        return self._pool is None or self._pool.keeps_state

    def _start(self) -> None:
        """Start the workers; this process keeps the first share of the envs."""
        model = self._model
        assert model.env is not None
        whole = _below_transpose(model.env)
        # What cannot be told where to go on begins anew, in every process.
        state = self.rollout_state() if env_shards.has_state(whole) else None
        self._pool, self._all_envs = self.launch(model, whole, state, self.saved_rngs), whole
        self.group = self._pool.group
        own = share_of_envs(whole.num_envs, model.settings.n_jobs, 0)
        first = env_shards.shard(whole, own)()
        if not env_shards.has_state(whole) and model.seed is not None:
            first.seed(model.seed)
        if isinstance(whole, env_shards.EnvList):
            whole.close()  # its envs have been made again
        model.adopt_env(first, None if state is None else state.share(own))

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        pool = self._pool
        if pool is None:
            yield
            return
        try:
            with pool.at_work():
                yield
        finally:
            if pool.closed and self._pool is pool:
                self._be_alone(None)

    def _reports(self) -> list[WorkerReport]:
        """What the workers say between two updates."""
        assert self._pool is not None
        with self._at_work():
            return self._pool.reports()

    def _be_alone(self, state: RolloutState | None) -> None:
        """One process again, with all envs."""
        whole = self._all_envs
        assert whole is not None
        self._pool, self._all_envs, self.group = None, None, SINGLE_PROCESS
        if not env_shards.has_state(whole):
            whole = env_shards.shard(whole, slice(0, whole.num_envs))()
        self._model.adopt_env(whole, state)


def _below_transpose(env: VecEnv) -> VecEnv:
    """What was given, without the layer that SB3 adds for images."""
    return env.venv if isinstance(env, VecTransposeImage) else env
