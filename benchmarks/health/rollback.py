"""What `health.rollback` saves: faults that a smaller step or a second try repairs, beside healthy twins.

    OMP_NUM_THREADS=1 python benchmarks/health/rollback.py --all

Three faults × seven seeds on a small task with memory: the learning rate becomes 3.0, gradients are multiplied by 1e6
for one update with no clip, one reward is NaN. A run is rescued when its last hundred episodes earn at least 90 % of
what its healthy twin's do.
"""

import math
import sys
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.stored import Stored
from stable_baselines3.common.callbacks import BaseCallback
from tests.support.faults import hooks, make, one_env, setting

from leeward import DistributionalPPO

HERE = Path(__file__).parent
UPDATES, AT, SEEDS = 120, 20, range(7)


class Put(BaseCallback):
    """Puts a fault in, once, and takes it out after one update if it is of that kind."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.stack, self.state = fault, ExitStack(), 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        model = self.model
        assert isinstance(model, DistributionalPPO)
        if self.state == 0 and model.n_rollouts == AT:
            self.state = 1
            put: Any = {
                "learning rate": setting(learning_rate=3.0),
                "exploding gradients": hooks(lambda m: m.policy.parameters(), lambda gradient: 1e6 * gradient),
                "one-off NaN": one_env(shock=math.nan),
            }[self.fault]
            put(model, self.stack)
        elif self.state == 1 and model.n_rollouts > AT:
            self.state = 2
            self.stack.close()


def score(seed: int, fault: str, rollback: bool) -> dict[str, Any]:
    clip: dict[str, Any] = {"max_grad_norm": None, "policy_kwargs": {"optimizer_kwargs": {"eps": 1e-2}}}
    model = make(seed=seed, learning_rate=3e-3, health={"rollback": rollback, "rollback_lr_factor": 1e-3}
                 if fault == "learning rate" else {"rollback": rollback},
                 **(clip if fault == "exploding gradients" else {}))  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn(UPDATES * model.n_steps * model.n_envs, None if not rollback else Put(fault))
    last = [episode["r"] / episode["l"] for episode in model.ep_info_buffer]  # type: ignore[union-attr]
    return {"score": sum(last) / len(last), "rollbacks": model.guard.rollbacks,
            "alerts": sorted({alert.name for alert in model.alerts if alert.severity == "error"})}  # fmt: skip


def page(store: Stored) -> str:
    lines = [
        "# Rescued by `health.rollback`", "",
        "`python benchmarks/health/rollback.py --all` makes the runs; each is a line of `results_rollback.jsonl`.", "",
        "| fault | seed | healthy twin | with the fault and rollback | rollbacks | errors |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    rescued = total = 0
    for row in store.rows:
        if row["rollback"]:
            twin = store.find(fault=row["fault"], seed=row["seed"], rollback=False)
            assert twin is not None
            total, rescued = total + 1, rescued + (row["score"] >= 0.9 * twin["score"])
            lines.append(f"| {row['fault']} | {row['seed']} | {twin['score']:.3f} | {row['score']:.3f} | "
                         f"{row['rollbacks']} | {', '.join(row['alerts'])} |")  # fmt: skip
    return "\n".join([*lines, "", f"Rescued: {rescued} of {total}.", ""])


def main(make_all: bool) -> None:
    store = Stored(HERE / "results_rollback.jsonl")
    if make_all:
        for seed in SEEDS:
            for fault in ("one-off NaN", "learning rate", "exploding gradients"):
                for rollback in (False, True):
                    store.ensure(lambda f=fault, s=seed, r=rollback: score(s, f, r), fault=fault, seed=seed,
                                 rollback=rollback)  # type: ignore[misc]  # fmt: skip
    (HERE / "RESULTS_rollback.md").write_text(page(store), encoding="utf-8")


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
