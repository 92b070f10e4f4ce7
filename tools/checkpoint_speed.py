"""`python -m tools.checkpoint_speed`: seconds and bytes of saving and loading the default agent with its optimiser."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from leeward import DistributionalPPO
from leeward.algorithm.checkpoint import read_checkpoint
from leeward.config.load import load_config
from leeward.env.sb3 import TradingVecEnv
from leeward.market import prepare
from leeward.training.checkpoints import load_model, write_checkpoint
from leeward.training.trainer import make_model

__all__ = ["main"]

_MOST_SECONDS, _MOST_TIMES = 0.1, 2.0


def main() -> int:
    config = load_config(None, ["ppo.n_steps=16", "ppo.batch_size=512"])
    env = TradingVecEnv(prepare(config.data), config.ppo.n_envs, config=config.env, seed=0)
    model = make_model(config, env)
    model.learn(16 * config.ppo.n_envs)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "checkpoint"
        seconds: dict[str, list[float]] = {"save": [], "load": [], "directory": [], "resume": []}
        for _ in range(20):
            for name, work in (
                ("save", lambda: model.save(place.with_suffix(".zip"))),
                ("load", lambda: DistributionalPPO.load(place.with_suffix(".zip"), device="cpu")),
                ("directory", lambda: write_checkpoint(place, model, {"best": None, "updates": 1})),
                ("resume", lambda: load_model(place, env)),
            ):
                began = time.process_time()
                work()
                seconds[name].append(time.process_time() - began)
        tensors = read_checkpoint(place / "model.zip")[1]
        needed = sum(t.nbytes for name, t in tensors.items() if name.startswith(("policy/", "optimizer/")))
        size = (place / "model.zip").stat().st_size
    medians = {name: float(np.median(each)) for name, each in seconds.items()}
    print(
        ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in medians.items())
        + " of processor time, medians of 20; waiting for the disk is not in it"
    )
    print(f"{size:,} bytes, {size / needed:.2f} times weights and optimiser")
    return 0 if max(medians.values()) <= _MOST_SECONDS and size <= _MOST_TIMES * needed else 1


if __name__ == "__main__":
    sys.exit(main())
