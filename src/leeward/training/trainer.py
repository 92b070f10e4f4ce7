"""Train an agent on a market: rollouts and updates, a score on validation every few of them, and checkpoints.

The test split is sealed: nothing here reads it.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from leeward.market import Market
from leeward.optim.build import OPTIMIZERS
from leeward.training.checkpoints import load_model, read_trainer_state, restore_env, write_checkpoint
from leeward.training.logs import TensorBoardFile, make_logger
from leeward.training.run_dir import RunDir
from leeward.training.trade_metrics import Score, TradeMetrics, score_of

__all__ = ["Interrupted", "Progress", "make_model", "train"]


class Interrupted(Exception):
    """Ctrl-C was pressed; the run was saved after a whole update and can be resumed."""


@dataclass(frozen=True)
class Progress:
    """What a console shows after each update."""

    steps: int
    total_steps: int
    seconds: float  # of this process
    steps_per_second: float
    metrics: dict[str, float]
    exploring: Score  # of the last rollout
    validation: Score | None  # the last one; None before it
    best: Score | None  # of the checkpoint that would be backtested now
    stopping: bool  # Ctrl-C was pressed; this is the last update


def make_model(config: RunConfig, env: TradingVecEnv) -> DistributionalPPO:
    """The agent a config describes."""
    ppo, policy = config.ppo, config.policy
    settings = ppo.model_dump(
        exclude={"total_steps", "n_envs", "learning_rate_schedule", "optimizer", "vgs"}
        | {"value_clip", "entropy", "kl_penalty", "awr", "adversary"}
    )
    if ppo.learning_rate_schedule == "linear":
        for name in ("learning_rate", "critic_learning_rate"):
            if settings[name] is not None:
                settings[name] = LinearSchedule(settings[name], 0.0, 1.0)
    network: dict[str, Any] = {
        "net_arch": list(policy.net_arch),
        "optimizer_class": OPTIMIZERS[ppo.optimizer.name],
        "optimizer_kwargs": ppo.optimizer.settings(),
    }
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
        risk=[config.risk, *config.further_risks],
        vgs=ppo.vgs,
        adversary=ppo.adversary,
        **settings,
    )


def train(run: RunDir, market: Market, show: Callable[[Progress], None], *, resume: bool) -> None:
    """Train the run in `run` on `market` to its end, from its last checkpoint if `resume`."""
    config = run.config()
    torch.set_num_threads(min(2, torch.get_num_threads()))  # actor and critics; small networks gain nothing from more
    run.sweep()
    run.save_scaler(market.scaler)
    run.update_record(data_fingerprint=market.fingerprint)
    env = TradingVecEnv(market, config.ppo.n_envs, config=config.env, seed=config.seed)
    checkpoints = run.checkpoint_list() if resume else []
    if checkpoints:
        place = checkpoints[-1]
        model = load_model(place, env)
        restore_env(place, env)
        state = read_trainer_state(place)
    else:
        model, state = make_model(config, env), {"best": None, "updates": 0}
    session = _Session(run, config, market, state, show)
    logger = make_logger(run.progress_file, run.tensorboard, model.num_timesteps if resume else None, session.on_log)
    model.set_logger(logger)
    remaining = config.ppo.total_steps - model.num_timesteps
    try:
        if remaining > 0:
            with _interruptible(session):
                model.learn(remaining, callback=session, reset_num_timesteps=not checkpoints, log_interval=1)
                session.finish()
    finally:
        model.dismiss()
        logger.close()


class _Session(BaseCallback):
    """What happens between updates: scores and checkpoints. It acts when a rollout starts, where a save is exact."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        market: Market,
        state: dict[str, Any],
        show: Callable[[Progress], None],
    ) -> None:
        super().__init__()
        self.run, self.config, self.market, self.show = run, config, market, show
        self.best: dict[str, Any] | None = state["best"]
        self.updates: int = state["updates"]
        self.validation: Score | None = None
        self.exploring: Score | None = None
        self.trades = TradeMetrics(market.bars_per_year, config.risk.alpha)
        self.interrupted = False
        self.began, self.began_at = time.monotonic(), 0

    def _on_training_start(self) -> None:
        self.began, self.began_at = time.monotonic(), self.model.num_timesteps

    def _on_rollout_start(self) -> None:
        if self.model.num_timesteps > self.began_at:  # after an update of this process
            self.updates += 1
            self._between_updates(last=False)

    def _on_step(self) -> bool:
        self.trades.step(self.training_env.info_arrays)  # type: ignore[attr-defined]
        return True

    def _on_rollout_end(self) -> None:
        metrics, self.exploring = self.trades.read()
        for name, value in metrics.items():
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
        if self.interrupted:
            raise Interrupted

    def _validate(self) -> None:
        """Score the deterministic policy on the validation split, and keep it if it is the best so far."""
        alpha = self.config.risk.alpha
        result = run_policy(
            self._agent, self.market, self.config.env, split="validation", alpha=alpha, with_outlook=False
        )
        self.validation = score_of(result, alpha)
        if self.best is None or self._rank(self.validation) > self._rank(Score(**self.best["score"])):
            self.best = {
                "score": self.validation.as_dict(),
                "steps": self.model.num_timesteps,
                "update": self.updates,
            }
            write_checkpoint(self.run.best, self._agent, self._state())

    def _rank(self, score: Score) -> tuple[bool, float]:
        """Those that meet the limit come first, by their score; without one that does, the mildest tail comes first."""
        limit = self.config.risk.limit
        if limit is not None and score.cvar < limit:
            return False, score.cvar
        value = score.as_dict()[self.config.validation.score]
        return True, value if np.isfinite(value) else -np.inf  # an account that never moves has no Sharpe ratio

    def _save(self) -> None:
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardFile):
                output.flush()  # what a resumed run does not log again must be on disk
        write_checkpoint(self.run.checkpoints / f"{self.updates:08d}", self._agent, self._state())
        self.run.prune(self.config.checkpoint.keep_last)

    def _state(self) -> dict[str, Any]:
        return {"best": self.best, "updates": self.updates}

    @property
    def _agent(self) -> DistributionalPPO:
        assert isinstance(self.model, DistributionalPPO)
        return self.model

    def on_log(self, metrics: dict[str, float]) -> None:
        assert self.exploring is not None
        seconds = time.monotonic() - self.began
        done = self.model.num_timesteps - self.began_at
        self.show(
            Progress(
                steps=self.model.num_timesteps,
                total_steps=self.config.ppo.total_steps,
                seconds=seconds,
                steps_per_second=done / max(seconds, 1e-9),
                metrics=metrics,
                exploring=self.exploring,
                validation=self.validation,
                best=None if self.best is None else Score(**self.best["score"]),
                stopping=self.interrupted,
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
