"""Small runs in forked children, for tools that kill them: libraries are imported once, a start takes milliseconds."""

import io
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.config.load import load_config
from leeward.market import Market, prepare
from leeward.training.checkpoints import read_files
from leeward.training.run_dir import RunDir
from leeward.training.trainer import Progress, train

__all__ = ["EVERYTHING", "TINY", "forked", "go_on", "market_of", "numbers_of", "result_of"]

TINY = (
    "data.source=sample:synthetic", "data.n_bars=600", "ppo.total_steps=1920", "ppo.n_envs=8", "ppo.n_steps=20",
    "ppo.batch_size=80", "ppo.n_epochs=2", "ppo.n_quantiles=12", "policy.lstm_hidden_size=8", "policy.net_arch=[8]",
    "env.episode_bars=30", "checkpoint.every_updates=2", "validation.every_updates=3",
)  # fmt: skip
# All that has a state: memory, twin critics, gradient scaling, a noisy optimiser, a limit, an adversary, a normaliser.
EVERYTHING = (
    "ppo.vgs={warmup: 2}", "ppo.optimizer={name: upgdw, sigma: 0.01}", "risk={limit: -0.001, alpha: 0.2}",
    "ppo.adversary={warmup: 1}", "ppo.kl_penalty={target: 0.01}", "ppo.entropy={end: 0.0}", "ppo.ent_coef=0.01",
    "policy.normalize_observations=true", "ppo.critic_learning_rate=0.0005",
)  # fmt: skip


def market_of(settings: tuple[str, ...]) -> Market:
    return prepare(load_config(None, settings).data)


def forked(work: Callable[[], None], log: Path) -> int:
    """The process id of a child that does `work` and ends; what it prints goes to `log`."""
    child = os.fork()
    if child:
        return child
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 1
    try:
        work()
        code = 0
    finally:
        if code:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)


def go_on(
    path: Path, settings: tuple[str, ...], market: Market, show: Callable[[Progress], None] = lambda progress: None
) -> None:
    """Begin the run, or resume it where it is."""
    begun = (path / "config.yaml").is_file()
    run = RunDir.open(path) if begun else RunDir.create(path, load_config(None, settings))
    with run.locked():
        train(run, run.market() if begun else market, show, resume=begun, notice=lambda line: print(line, flush=True))


def numbers_of(place: Path) -> dict[str, bytes]:
    """Every tensor of a checkpoint that is whole, as bytes."""
    model = io.BytesIO(read_files(place).model)
    return {name: np.asarray(tensor).tobytes() for name, tensor in read_checkpoint(model)[1].items()}


def result_of(path: Path) -> tuple[dict[str, bytes], dict[str, bytes], list[str]]:
    """What must be the same however often a run was stopped: last and best checkpoint, the log without its clock."""
    run = RunDir.open(path)
    header, *lines = run.progress_file.read_text().splitlines()
    kept = [i for i, name in enumerate(header.split(",")) if not name.startswith("time/")]
    rows = [",".join(line.split(",")[i] for i in kept) for line in lines]
    return numbers_of(run.checkpoint_list()[-1]), numbers_of(run.best_checkpoint()), rows
