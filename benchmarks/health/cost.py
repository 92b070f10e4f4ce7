"""What health rules and the numbers they look at cost: rounds with them against rounds without, in CPU time.

    OMP_NUM_THREADS=1 python benchmarks/health/cost.py --write

One model, one process; two rounds with everything and two without it take turns, so that whatever else the machine does
meets both; two, because some looks are taken in every other round. Others are taken in each of the first rounds and
seldom later, so those are told apart. Without: no sample of the rollout is computed again, no weights are kept to be
compared, nothing that the envs gave is written down, and no rule is judged.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.speed.bars import BatchedBars

from leeward import DistributionalPPO
from leeward.algorithm import engine, ppo
from leeward.algorithm.env_response import EnvResponse
from leeward.algorithm.feature_memory import FeatureMemory
from leeward.algorithm.guard import Guard
from leeward.algorithm.health_numbers import Weights
from leeward.algorithm.update import Updater

HERE = Path(__file__).parent
PAIRS, WARM, EARLY = 32, 2, 8  # of two rounds with the rules and two without; the first 8 are 32 rounds
WORKLOADS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "64 envs × 128 steps, LSTM": (64, "MlpLstmPolicy", {"n_steps": 128, "batch_size": 2048, "n_epochs": 4}),
    "16 envs × 64 steps, LSTM": (16, "MlpLstmPolicy", {"n_steps": 64, "batch_size": 256, "n_epochs": 4}),
    "8 envs × 128 steps, no memory": (8, "MlpPolicy", {"n_steps": 128, "batch_size": 256, "n_epochs": 4}),
}


class Nothing:
    """In place of what keeps something to look at."""

    def __init__(self, *arguments: Any) -> None:
        self.cut = 0

    def step(self, *arguments: Any) -> None:
        """Nothing is written down."""

    def follow(self, *arguments: Any) -> None:
        """Nothing is computed again."""

    def end(self, *arguments: Any) -> None:
        """Nor where an episode ends."""

    def compare(self, rollout: Any) -> dict[Any, float]:
        return {}


@contextmanager
def without() -> Iterator[None]:
    """A round as it was before there were rules."""
    with ExitStack() as stack:
        for owner, name, instead in (
            (engine, "rollout_looks", lambda *a, **k: {}),
            (engine, "target_looks", lambda *a, **k: {}),
            (engine, "network_numbers", lambda *a, **k: {}),
            (engine, "computed_again", lambda *a, **k: {}),
            (engine, "episode_looks", lambda *a: {}),
            (engine, "memory_reach", lambda *a: {}),
            (ppo, "Witness", Nothing),
            (Weights, "begin", lambda self: {}),
            (Weights, "end", lambda self: {}),
            (FeatureMemory, "look", lambda *a: 0.0),
            (EnvResponse, "look", lambda *a: {}),
            (engine, "reward_looks", lambda *a: {}),
            (Updater, "_looked_at", lambda *a: None),
            (Guard, "watch", lambda self, numbers: {}),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        yield


class Clock(BaseCallback):
    """CPU seconds of every round, with the rules in two of four."""

    def __init__(self) -> None:
        super().__init__()
        self.stack, self.began, self.seconds = ExitStack(), 0.0, list[float]()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        self.note()
        if len(self.seconds) // 2 % 2:
            self.stack.enter_context(without())
        self.began = time.process_time()

    def note(self) -> None:
        """The round that is over."""
        if self.began:
            self.seconds.append(time.process_time() - self.began)
        self.stack.close()
        self.began = 0.0


def measure(n_envs: int, policy: str, settings: dict[str, Any]) -> tuple[float, float, float, float]:
    """Seconds of a later round with and without, medians; and medians of the ratios of neighbours, first and later."""
    model = DistributionalPPO(
        policy, BatchedBars(n_envs), seed=0, device="cpu", on_alert=lambda alert: None, **settings
    )
    clock = Clock()
    model.learn(4 * PAIRS * n_envs * settings["n_steps"], clock)
    clock.note()
    pairs = np.array(clock.seconds).reshape(-1, 2, 2).mean(-1)
    ratios = pairs[:, 0] / pairs[:, 1]
    first, later = (statistics.median(part.tolist()) for part in (ratios[WARM:EARLY], ratios[EARLY:]))
    return statistics.median(pairs[EARLY:, 0].tolist()), statistics.median(pairs[EARLY:, 1].tolist()), first, later


def main(write: bool) -> None:
    torch.set_num_threads(1)
    lines = [
        "# What health rules cost", "",
        f"`python benchmarks/health/cost.py --write`: {PAIRS} pairs of two rounds each of one model, CPU time.", "",
        "| workload | a round with them | without | median of the ratios from round 33 on | of rounds 9 to 32 |",
        "|---|---|---|---|---|",
    ]  # fmt: skip
    for name, workload in WORKLOADS.items():
        with_rules, bare, first, later = measure(*workload)
        lines.append(f"| {name} | {1e3 * with_rules:.1f} ms | {1e3 * bare:.1f} ms | {later:.3f} | {first:.3f} |")
        sys.stdout.write(f"{lines[-1]}\n")
        sys.stdout.flush()
    if write:
        (HERE / "RESULTS_cost.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
