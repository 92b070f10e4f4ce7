"""What `health.rollback` saves: faults that a smaller step or a second try repairs, beside healthy twins.

    OMP_NUM_THREADS=1 python benchmarks/health/rollback.py --all

Seven faults × three seeds on a small task with memory, each with `health.rollback`, all else as it is by default;
beside them healthy twins with the same settings and, of one seed, the fault without a rollback. A run is rescued when
its last hundred episodes earn at least 90 % of what its healthy twin's do.
"""

import math
import sys
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.stored import Stored
from tests.support.faults import Put, hooks, make, one_env, setting

from leeward import DistributionalPPO
from leeward.errors import LeewardError

HERE = Path(__file__).parent
UPDATES, AT, SEEDS, RATE = 100, 20, range(3), 3e-3


# Gradients a million times as large, for one update.
exploding = hooks(lambda model: model.policy.parameters(), lambda gradient: 1e6 * gradient)


def nan_once(model: DistributionalPPO, stack: ExitStack) -> None:
    """One gradient that is no number."""
    left = [math.nan]
    weight = model.policy.action_head.net.weight
    stack.callback(weight.register_hook(lambda g: g * (left.pop() if left else 1.0)).remove)


def spoiled_weights(model: DistributionalPPO, stack: ExitStack) -> None:
    with torch.no_grad():
        model.policy.action_head.net.weight.fill_(math.nan)


NO_CLIP = {"max_grad_norm": None}
TWINS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "no clip": NO_CLIP,
    "no clip, Adam's eps 0.01": NO_CLIP | {"policy_kwargs": {"optimizer_kwargs": {"eps": 1e-2}}},
}
# What puts it in, its healthy twin, and settings that the twin has not.
FAULTS: dict[str, tuple[Put | None, str, dict[str, Any]]] = {
    "learning rate 100 × too high from the start": (None, "as usual", {"learning_rate": 100 * RATE}),
    "learning rate raised to 3": (setting(learning_rate=3.0), "as usual", {}),
    "exploding gradients, no clip": (exploding, "no clip", {}),
    "exploding gradients, no clip, Adam's eps 0.01": (exploding, "no clip, Adam's eps 0.01", {}),
    "one reward is NaN": (one_env(shock=math.nan), "as usual", {}),
    "one gradient is NaN": (nan_once, "as usual", {}),
    "weights become NaN": (spoiled_weights, "as usual", {}),
}


class PutIn(BaseCallback):
    """Puts a fault in, once, and takes out after one update what can be taken out."""

    def __init__(self, put: Put) -> None:
        super().__init__()
        self.put, self.stack, self.state = put, ExitStack(), 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_start(self) -> None:
        model = self.model
        assert isinstance(model, DistributionalPPO)
        if self.state == 0 and model.n_rollouts == AT:
            self.state = 1
            self.put(model, self.stack)
        elif self.state == 1:
            self.state = 2
            self.stack.close()


def score(put: Put | None, settings: dict[str, Any], seed: int, rollback: bool) -> dict[str, Any]:
    model = make(seed=seed, health={"rollback": rollback}, **({"learning_rate": RATE} | settings))
    error = ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.learn(UPDATES * model.n_steps * model.n_envs, None if put is None else PutIn(put))
        except LeewardError as raised:
            error = f"{type(raised).__name__} in update {model.n_rollouts + 1}"
    assert model.ep_info_buffer is not None
    last = [episode["r"] / episode["l"] for episode in model.ep_info_buffer]
    return {
        "score": sum(last) / len(last),
        "stopped": error,
        "rollbacks": model.guard.rollbacks,
        "errors": sorted({alert.name for alert in model.alerts if alert.severity == "error"}),
    }


def page(store: Stored) -> str:
    lines = [
        "# Rescued by `health.rollback`", "",
        "`python benchmarks/health/rollback.py --all` makes the runs; each is a line of `results_rollback.jsonl`.",
        f"The fault comes after update {AT} of {UPDATES}. Scores are rewards per step of the last hundred episodes;",
        "rescued is what has at least 90 % of the healthy twin's. All settings of `health.rollback` are the defaults.",
        "", "| fault | seed | healthy twin | with the fault | and rollback | of the twin | rollbacks | errors told |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    rescued = total = 0
    for row in store.rows:
        if not row.get("rollback"):
            continue
        twin = store.get(twin=FAULTS[row["fault"]][1], seed=row["seed"])
        sick = store.find(fault=row["fault"], seed=row["seed"], rollback=False)
        share = 0.0 if row["stopped"] else row["score"] / twin["score"]
        total, rescued = total + 1, rescued + (share >= 0.9)
        without = "" if sick is None else "stopped" if sick["stopped"] else f"{sick['score']:.3f}"
        lines.append(f"| {row['fault']} | {row['seed']} | {twin['score']:.3f} | {without} | {row['score']:.3f} | "
                     f"{share:.0%} | {row['rollbacks']} | {', '.join(row['errors'])} |")  # fmt: skip
    lines += ["", f"Rescued: {rescued} of {total}.", ""]
    return "\n".join(lines)


def main(make_all: bool) -> None:
    store = Stored(HERE / "results_rollback.jsonl")
    for seed in SEEDS if make_all else ():
        for fault, (put, twin, other) in FAULTS.items():
            settings = TWINS[twin]
            store.ensure(partial(score, None, settings, seed, False), twin=twin, seed=seed)
            for rollback in (True,) if seed else (False, True):
                run = partial(score, put, settings | other, seed, rollback)
                store.ensure(run, fault=fault, seed=seed, rollback=rollback)
    (HERE / "RESULTS_rollback.md").write_text(page(store), encoding="utf-8")


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
