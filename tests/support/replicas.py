"""Several processes of one run, as threads of this one: for tests in which only the engine matters."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import HashStore, ProcessGroupGloo

from leeward import DistributionalPPO
from leeward.algorithm.parallel.env_shards import EnvList
from leeward.algorithm.parallel.process_group import SeveralProcesses, share_of_envs
from leeward.algorithm.parallel.worker import replica

__all__ = ["STEPS", "as_one", "as_several", "in_threads", "settings"]

STEPS = 12
Found = TypeVar("Found")


def settings(**more: Any) -> dict[str, Any]:
    """A small model."""
    policy = more.pop("policy", "MlpLstmPolicy")
    network = {"net_arch": [8]} | ({"lstm_hidden_size": 8} if "Lstm" in policy else {}) | more.pop("policy_kwargs", {})
    common = {"n_steps": STEPS, "batch_size": 20, "n_epochs": 2, "device": "cpu", "sequence_length": 4}
    return {"policy": policy, "policy_kwargs": network} | common | more


def in_threads(size: int, n_envs: int, role: Callable[[SeveralProcesses], Found]) -> list[Found]:
    """What `role` returns in each of `size` processes, played by threads."""
    store = HashStore()

    def play(rank: int) -> Found:
        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = timedelta(seconds=20)
        return role(SeveralProcesses(ProcessGroupGloo(store, rank, size, options), n_envs))

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

    def role(group: SeveralProcesses) -> DistributionalPPO:
        own = share_of_envs(len(envs), size, group.rank)
        env = EnvList(envs[own], own.start)
        env.seed(3)
        model = replica(DistributionalPPO, env, group, arguments)
        model.policy.load_state_dict(start)
        model.stream_seed = seeded.stream_seed
        prepare(model)
        return model.learn(steps)

    return in_threads(size, len(envs), role)
