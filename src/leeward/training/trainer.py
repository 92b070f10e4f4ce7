"""Train an agent on a market: rollouts and updates, a score on validation every few of them, and checkpoints.

The test split is sealed: nothing here reads it.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.utils import LinearSchedule

from leeward.algorithm.ppo import DistributionalPPO
from leeward.backtest import run_policy
from leeward.config.run import RunConfig
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import RunDirectoryError
from leeward.market import Market, prepare
from leeward.training.checkpoints import load_model, read_trainer_state, restore_env, write_checkpoint
from leeward.training.logs import make_logger
from leeward.training.run_dir import RunDir
from leeward.training.trade_metrics import TradeMetrics

__all__ = ["Interrupted", "Progress", "best_checkpoint", "make_model", "train"]


class Interrupted(Exception):
    """Ctrl-C was pressed; the run was saved after a whole update and can be resumed."""


@dataclass(frozen=True)
class Progress:
    """What a console shows after each update."""

    steps: int
    total_steps: int
    seconds: float
    steps_per_second: float
    metrics: dict[str, float]
    validation: dict[str, float]  # of the last score; empty before it


def make_model(config: RunConfig, env: TradingVecEnv) -> DistributionalPPO:
    """The agent a config describes."""
    ppo, policy = config.ppo, config.policy
    settings = ppo.model_dump(
        exclude={"total_steps", "n_envs", "learning_rate_schedule", "value_clip", "entropy", "kl_penalty", "awr"}
    )
    if ppo.learning_rate_schedule == "linear":
        settings["learning_rate"] = LinearSchedule(ppo.learning_rate, 0.0, 1.0)
    network: dict[str, Any] = {"net_arch": list(policy.net_arch)}
    if policy.name == "MlpLstmPolicy":
        network |= {"cell": policy.cell, "lstm_hidden_size": policy.lstm_hidden_size}
    if config.env.action == "weights":
        network["log_std_init"] = policy.log_std_init
    return DistributionalPPO(
        policy.name,
        env,
        seed=config.seed,
        device="cpu",
        policy_kwargs=network,
        action_distribution=policy.action_distribution,
        value_clip=ppo.value_clip,
        entropy=ppo.entropy,
        kl_penalty=ppo.kl_penalty,
        awr=ppo.awr,
        **settings,
    )


def train(run: RunDir, show: Callable[[Progress], None], *, resume: bool) -> Market:
    """Train the run in `run` to its end, from its last checkpoint if `resume`; returns the market it was trained on."""
    config = run.config()
    torch.set_num_threads(1)  # small networks: more threads cost more than they give
    market = prepare(config.data)
    run.save_scaler(market.scaler)
    run.update_record(data_fingerprint=market.fingerprint)
    env = TradingVecEnv(market, config.ppo.n_envs, config=config.env, seed=config.seed)
    checkpoints = run.checkpoint_list()
    if resume and checkpoints:
        place = checkpoints[-1]
        model = load_model(place, env)
        restore_env(place, env)
        state = read_trainer_state(place)
    else:
        model, state = make_model(config, env), {"best": None, "updates": 0}
    session = _Session(run, config, market, env, state, show)
    model.set_logger(
        make_logger(run.progress_file, run.tensorboard, model.num_timesteps if resume else None, session.on_log)
    )
    remaining = config.ppo.total_steps - model.num_timesteps
    if remaining > 0:
        with _interruptible(session):
            model.learn(remaining, callback=session, reset_num_timesteps=not (resume and checkpoints), log_interval=1)
        session.finish()
    model.logger.close()
    return market


class _Session(BaseCallback):
    """What happens between updates: scores and checkpoints. It acts when a rollout starts, where a save is exact."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        market: Market,
        env: TradingVecEnv,
        state: dict[str, Any],
        show: Callable[[Progress], None],
    ) -> None:
        super().__init__()
        self.run, self.config, self.market, self.env, self.show = run, config, market, env, show
        self.best: dict[str, float] | None = state["best"]
        self.updates: int = state["updates"]
        self.validation: dict[str, float] = {}
        self.trades = TradeMetrics(env, market.bars_per_year)
        self.interrupted = False
        self.began, self.began_at = time.monotonic(), 0

    def _on_training_start(self) -> None:
        self.began_at = self.model.num_timesteps

    def _on_rollout_start(self) -> None:
        if self.model.num_timesteps > self.began_at:  # after an update of this process
            self.updates += 1
            self._between_updates(last=False)

    def _on_step(self) -> bool:
        self.trades.step()
        return True

    def _on_rollout_end(self) -> None:
        for name, value in self.trades.read().items():
            self.logger.record(name, value)

    def finish(self) -> None:
        """After the last update: a score and a checkpoint, whatever their turn."""
        self.updates += 1
        self._between_updates(last=True)

    def _between_updates(self, *, last: bool) -> None:
        if last or self.updates % self.config.validation.every_updates == 0:
            self._validate()
        if last or self.interrupted or self.updates % self.config.checkpoint.every_updates == 0:
            self._save()
        if self.interrupted and not last:
            raise Interrupted

    def _validate(self) -> None:
        """Score the deterministic policy on the validation split, and keep it if it is the best so far."""
        result = run_policy(
            self._agent,
            self.market,
            self.config.env,
            split="validation",
            alpha=self.config.backtest.alpha,
            with_outlook=False,
        )
        performance = result.performance(self.config.backtest.alpha)
        growth = float(np.log(result.equity[-1] / result.equity[0])) / performance.years
        self.validation = {
            "growth": growth,
            "sharpe": performance.sharpe,
            "cvar": performance.cvar,
            "max_drawdown": performance.max_drawdown,
        }
        score = self.validation[self.config.validation.score]
        if self.best is None or score > self.best["score"]:
            self.best = {"score": score, "steps": self.model.num_timesteps, "update": self.updates}
            write_checkpoint(self.run.best, self._agent, self.env, self._state())

    def _save(self) -> None:
        write_checkpoint(self.run.checkpoints / f"{self.updates:08d}", self._agent, self.env, self._state())
        self.run.prune(self.config.checkpoint.keep_last)

    def _state(self) -> dict[str, Any]:
        return {"best": self.best, "updates": self.updates}

    @property
    def _agent(self) -> DistributionalPPO:
        assert isinstance(self.model, DistributionalPPO)
        return self.model

    def on_log(self, metrics: dict[str, float]) -> None:
        seconds = time.monotonic() - self.began
        done = self.model.num_timesteps - self.began_at
        self.show(
            Progress(
                self.model.num_timesteps,
                self.config.ppo.total_steps,
                seconds,
                done / max(seconds, 1e-9),
                metrics,
                self.validation,
            )
        )


@contextmanager
def _interruptible(session: _Session) -> Iterator[None]:
    """The first Ctrl-C asks for a stop after the current update; a second one does not wait."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        if session.interrupted:
            raise KeyboardInterrupt
        session.interrupted = True

    try:
        previous = signal.signal(signal.SIGINT, on_signal)
    except ValueError:  # not in the main thread: whoever runs us there handles the signal
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def best_checkpoint(run: RunDir) -> Path:
    """The checkpoint that is backtested."""
    if not (run.best / "model.zip").is_file():
        raise RunDirectoryError(
            f"{run.path}: no scored checkpoint; train the run first, or continue it with --resume {run.path}"
        )
    return run.best
