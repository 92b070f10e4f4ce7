"""Several processes of one run: as threads of this one, where only the engine matters, and the envs they share."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium import spaces
from torch.distributed import HashStore, ProcessGroupGloo

from leeward import DistributionalPPO
from leeward.algorithm.peers import Group, share
from leeward.rollout.shards import EnvList

__all__ = ["ENVS", "STEPS", "Walk", "as_one", "as_several", "functions", "in_threads", "settings"]

ENVS, STEPS = 5, 12
Found = TypeVar("Found")


class Walk(gymnasium.Env[Any, Any]):
    """A noisy walk that is rewarded near its own target, on another scale in every env; ends and cuts at random."""

    def __init__(self, index: int, actions: str = "discrete") -> None:
        self.index = index
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Discrete(3) if actions == "discrete" else spaces.Box(-1.0, 1.0, (2,))

    def _look(self) -> np.ndarray:
        return np.array([self.place, self.np_random.normal(), self.index], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.total, self.age = 0.0, 0.0, 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        self.place = 0.9 * self.place + 0.3 * (float(np.mean(action)) - 0.5) + 0.1 * self.np_random.normal()
        # The last env is a hundred times the first: statistics of one share are not those of all.
        reward = 10.0 ** (self.index / 2) * (1.0 - abs(self.place - 0.3))
        terminated = bool(self.np_random.random() < 0.1)
        return self._look(), float(reward), terminated, self.age >= 7, {"is_success": terminated}


class MaskedWalk(Walk):
    """One action is forbidden, and which one moves with time."""

    def action_masks(self) -> np.ndarray:
        return np.arange(3) != self.age % 3

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert int(action) != self.age % 3
        return super().step(action)


def functions(n_envs: int = ENVS, kind: type[Walk] = Walk, **more: Any) -> list[Callable[[], gymnasium.Env[Any, Any]]]:
    return [partial(kind, index, **more) for index in range(n_envs)]


def settings(**more: Any) -> dict[str, Any]:
    """A small model."""
    policy = more.pop("policy", "MlpLstmPolicy")
    network = {"net_arch": [8]} | ({"lstm_hidden_size": 8} if "Lstm" in policy else {}) | more.pop("policy_kwargs", {})
    common = {"n_steps": STEPS, "batch_size": 20, "n_epochs": 2, "device": "cpu", "sequence_length": 4}
    return {"policy": policy, "policy_kwargs": network} | common | more


def in_threads(size: int, n_envs: int, role: Callable[[Group], Found]) -> list[Found]:
    """What `role` returns in each of `size` processes, played by threads."""
    store = HashStore()

    def play(rank: int) -> Found:
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=20)
        return role(Group(ProcessGroupGloo(store, rank, size, options), n_envs))

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(play, range(size)))


def as_one(envs: list[Any], steps: int, **arguments: Any) -> DistributionalPPO:
    """A plain run."""
    return DistributionalPPO(env=envs, seed=3, **arguments).learn(steps)


def as_several(
    size: int,
    envs: list[Any],
    steps: int,
    *,
    prepare: Callable[[DistributionalPPO], None] = lambda model: None,
    **arguments: Any,
) -> list[DistributionalPPO]:
    """The same run by replicas that all call `learn`, as a launcher of many machines would do it."""
    seeded = DistributionalPPO(env=envs, seed=3, **arguments)
    start = {name: tensor.clone() for name, tensor in seeded.policy.state_dict().items()}

    def role(peers: Group) -> DistributionalPPO:
        own = share(len(envs), size, peers.rank)
        env = EnvList(envs[own], own.start)
        env.seed(3)
        model = DistributionalPPO.replica(env, peers, **arguments)
        model.policy.load_state_dict(start)
        model.stream_seed = seeded.stream_seed
        prepare(model)
        return model.learn(steps)

    return in_threads(size, len(envs), role)
