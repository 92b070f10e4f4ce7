"""Training speed with memory: Leeward against sb3_contrib's RecurrentPPO, same network, same batched env.

    python benchmarks/speed/recurrent.py [--processes 5] [--rounds 3] [--write]

The workload of a trading agent: 18 features per bar, Discrete(3), 512-bar episodes with random phase, 64 envs, 128
steps per rollout, batch 1024, 4 epochs, LSTM 64 (separate for actor and critic), net [64, 64], float32. Wall time of an
otherwise idle machine; the table says its load before. Leeward as it comes, with its second critic, and with one, which
is RecurrentPPO's network but for the 32 quantiles at its end, both with a thread per core, which is torch's default;
also with one thread, and with a process per core. RecurrentPPO has one thread, and a thread per core. They take turns,
each one rollout and its update, after one to warm up. Where memory happens to lie is worth 10 % either way to a
process, so the figures are medians over several fresh ones of the median of their rounds.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from leeward import DistributionalPPO

N_ENVS, N_STEPS, EPISODE, FEATURES = 64, 128, 512, 18


class BatchedBars(VecEnv):
    """Random features and rewards for all envs at once: the env costs next to nothing."""

    def __init__(self, n_envs: int = N_ENVS, first: int = 0) -> None:
        space = gymnasium.spaces.Box(-10.0, 10.0, (FEATURES,), np.float32)
        self.render_mode = None
        super().__init__(n_envs, space, gymnasium.spaces.Discrete(3))
        self.rng = np.random.default_rng(first)
        self.clock = self.rng.integers(0, EPISODE, n_envs)  # staggered: lock-step would flatter RecurrentPPO

    def _observe(self) -> np.ndarray:
        return self.rng.standard_normal((self.num_envs, FEATURES), dtype=np.float32)

    def shard(self, first: int, count: int) -> Callable[[], VecEnv]:
        """`count` of the envs for another process (`n_jobs`)."""
        return functools.partial(BatchedBars, count, first)

    def reset(self) -> np.ndarray:
        return self._observe()

    def step_async(self, actions: np.ndarray) -> None:
        self.chosen = actions

    def step_wait(self) -> Any:
        self.clock += 1
        dones = self.clock >= EPISODE
        self.clock[dones] = 0
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        observation = self._observe()
        for env in np.flatnonzero(dones):
            infos[env] = {"TimeLimit.truncated": True, "terminal_observation": observation[env]}
        return observation, (self.chosen - 1) * observation[:, 0], dones, infos

    def close(self) -> None:
        """Nothing to release."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise AttributeError(method_name)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


CORES = os.cpu_count() or 1


@dataclass(frozen=True)
class System:
    model: BaseAlgorithm
    threads: int
    seconds: list[float] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return N_ENVS * N_STEPS / statistics.median(self.seconds)


def make(algorithm: type[BaseAlgorithm], **more: Any) -> BaseAlgorithm:
    return algorithm(
        "MlpLstmPolicy", BatchedBars(), n_steps=N_STEPS, batch_size=1024, n_epochs=4, seed=0, device="cpu",
        policy_kwargs={"lstm_hidden_size": 64, "net_arch": [64, 64]}, **more,
    )  # type: ignore[call-arg]  # fmt: skip


def measure(rounds: int) -> dict[str, float]:
    """Steps per second of each system in this process."""
    several = make(DistributionalPPO, n_jobs=CORES)
    systems = {
        "RecurrentPPO": System(make(RecurrentPPO), 1),
        f"RecurrentPPO, {CORES} threads": System(make(RecurrentPPO), CORES),
        "leeward, one critic": System(make(DistributionalPPO, twin_critics=False), CORES),
        "leeward": System(make(DistributionalPPO), CORES),
        "leeward, 1 thread": System(make(DistributionalPPO), 1),
        f"leeward, n_jobs={CORES}": System(several, 1),
    }
    for turn in range(rounds + 1):
        for system in systems.values():
            torch.set_num_threads(system.threads)
            begin = time.perf_counter()
            system.model.learn(N_ENVS * N_STEPS, reset_num_timesteps=turn == 0)
            if turn:
                system.seconds.append(time.perf_counter() - begin)
    assert isinstance(several, DistributionalPPO)
    several.dismiss()
    return {name: system.speed for name, system in systems.items()}


def measure_apart(processes: int, rounds: int) -> list[dict[str, float]]:
    command = [sys.executable, __file__, "--processes", "0", "--rounds", str(rounds)]
    found = []
    for _ in range(processes):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=5, help="0: measure in this one, and print JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    arguments = parser.parse_args()
    if arguments.processes == 0:
        print(json.dumps(measure(arguments.rounds)))
        return
    load = os.getloadavg()[0]
    runs = measure_apart(arguments.processes, arguments.rounds)
    lines = []
    for name in runs[0]:
        speeds = [run[name] for run in runs]
        # Against the peer of the same process, with as many threads as serve it best there.
        ratios = [run[name] / max(v for key, v in run.items() if key.startswith("RecurrentPPO")) for run in runs]
        lines.append(
            f"| {name} | {statistics.median(speeds):,.0f} ({min(speeds):,.0f} … {max(speeds):,.0f}) "
            f"| {statistics.median(ratios):.1f} ({min(ratios):.1f} … {max(ratios):.1f}) |"
        )
    table = "\n".join(
        [
            "# Training speed with memory",
            "",
            f"`python benchmarks/speed/recurrent.py --write`: env steps per second of wall time, {CORES} cores, median "
            f"(smallest … largest) of {arguments.processes} processes; load average before: {load:.1f}.",
            "",
            "| system | steps/s | × RecurrentPPO of the same process |",
            "|---|---|---|",
            *lines,
            "",
        ]
    )
    print(table)
    if arguments.write:
        pathlib.Path(__file__).with_name("RECURRENT.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
