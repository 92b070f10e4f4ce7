"""What a run is trained on and scored by: a market, or an env of Gymnasium."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from leeward.algorithm.parallel.env_shards import EnvList
from leeward.algorithm.ppo import DistributionalPPO
from leeward.backtest import BacktestResult, run_policy, statistics
from leeward.config.run import RunConfig
from leeward.config.tune import ScoreName
from leeward.env.sb3 import TradingVecEnv
from leeward.errors import EnvironmentFault
from leeward.market import Market
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers
from leeward.training.critic_check import critic_numbers
from leeward.training.gym_envs import check_gym, make_gym
from leeward.training.run_dir import RunDir
from leeward.training.trade_metrics import EpisodeScore, Score, TradeMetrics, score_of

__all__ = ["EPISODES", "GymTask", "MarketTask", "Scored", "Task", "score_name", "task_of"]

WINDOWS = 8  # of the validation split, in which a population compares its members
EPISODES = 20  # behind the score of an env of Gymnasium
_LONGEST_EPISODE = 100_000  # steps: one without an end would be waited for without end
_LEAST_RISK = 1e-12  # of an account that moves; below it are rounding errors
_TAIL_STEPS = 32_768  # steps behind the deployed tail on train: some 1,600 in the worst 5 %
_OTHER_SEEDS = 2**32  # the first seed of those episodes; training has seeds below

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """A deterministic policy on what it was not trained on."""

    score: Score | EpisodeScore
    numbers: Numbers  # for the log
    windows: tuple[float, ...]  # what a population compares: one number per window, or per episode
    value: float  # their median, of episodes their mean; NaN where most are NaN


class Task(Protocol):
    """What a session asks while it trains."""

    keeps_state: bool  # whether a checkpoint holds where its envs are

    def bind(self, run: RunDir) -> None:
        """Write down in the run what it is trained on; a run that has begun takes nothing else."""

    def env(self, seed: int) -> VecEnv:
        """The envs of the config, seeded."""

    def begin(self) -> None:
        """A rollout begins."""

    def step(self, env: VecEnv) -> None:
        """A step was made."""

    def read(self, agent: DistributionalPPO) -> tuple[Numbers, Score | EpisodeScore]:
        """What the rollout came to."""

    def score(self, agent: DistributionalPPO) -> Scored:
        """The deterministic policy on what it was not trained on."""

    def rank(self, score: Any) -> tuple[bool, float]:
        """The larger is the better."""


def task_of(config: RunConfig, market: Market | None) -> Task:
    """The task of a config, whose market has been read."""
    if config.gym is not None:
        return GymTask(config)
    assert market is not None
    return MarketTask(config, market)


class MarketTask:
    """Bars and an account. Scores are of the validation split; the test split is sealed, and nothing here reads it."""

    keeps_state = True

    def __init__(self, config: RunConfig, market: Market) -> None:
        self.config, self.market = config, market
        self._trades = TradeMetrics(market.bars_per_year, config.risk[0].alpha, cash_rate=config.env.costs.cash_rate)

    def bind(self, run: RunDir) -> None:
        run.bind(self.market)

    def env(self, seed: int) -> TradingVecEnv:
        return TradingVecEnv(self.market, self.config.ppo.n_envs, config=self.config.env, seed=seed)

    def begin(self) -> None:
        self._trades.begin()

    def step(self, env: VecEnv) -> None:
        self._trades.step(env.info_arrays)  # type: ignore[attr-defined]

    def read(self, agent: DistributionalPPO) -> tuple[Numbers, Score]:
        return self._trades.read()

    def score(self, agent: DistributionalPPO) -> Scored:
        alpha = self.config.risk[0].alpha
        result = run_policy(agent, self.market, self.config.env, split="validation", alpha=alpha)
        numbers: Numbers = {}
        if self.config.env.reward == "log_return":  # what the critic predicts
            numbers = critic_numbers(result, gamma=agent.settings.gamma)
        windows = _windows(result, self.config)
        score = score_of(result, alpha)
        if self.config.risk[0].limit is not None:
            score = replace(score, train_cvar=self._tail_on_train(agent))
        return Scored(score, numbers, windows, _median(windows))

    def _tail_on_train(self, agent: DistributionalPPO) -> float:
        """Of the deterministic policy: over the whole split, or, where that is long, in episodes from random bars."""
        alpha = self.config.risk[0].alpha
        if self.market.split("train").n_decisions <= _TAIL_STEPS:
            whole = run_policy(agent, self.market, self.config.env, split="train", alpha=alpha, with_outlook=False)
            return whole.performance(alpha).cvar
        env: Any = self.env(seed=0)
        seen, memory, starts, returns = env.reset(), None, np.ones(env.num_envs, dtype=bool), []
        for _ in range(-(-_TAIL_STEPS // env.num_envs)):
            actions, memory = agent.predict(seen, memory, starts, deterministic=True)
            seen, _, starts, _ = env.step(actions)
            returns.append(env.info_arrays["step_return"].copy())
        return float(statistics.cvar(np.concatenate(returns), alpha=alpha))

    def rank(self, score: Score) -> tuple[bool, float]:
        """Those that meet the limit on train and on validation come first, by their score; without one that does, the
        mildest tail comes first."""
        limit = self.config.risk[0].limit
        tail = score.cvar if score.train_cvar is None else min(score.cvar, score.train_cvar)
        if limit is not None and tail < limit:
            return False, tail
        value = score.as_dict()[self.config.validation.score]
        return True, value if np.isfinite(value) else -np.inf  # an account that never moves has no Sharpe ratio


class GymTask:
    """An env of Gymnasium. Its own state is not in a checkpoint: a run that goes on begins new episodes."""

    keeps_state = False

    def __init__(self, config: RunConfig) -> None:
        assert config.gym is not None
        check_gym(config.gym)
        self.config, self.make = config, partial(make_gym, config.gym)

    def bind(self, run: RunDir) -> None:
        """The config says it all."""

    def env(self, seed: int) -> VecEnv:
        env = EnvList([self.make] * self.config.ppo.n_envs)
        env.seed(seed)
        return env

    def begin(self) -> None:
        """SB3's Monitor counts."""

    def step(self, env: VecEnv) -> None:
        """SB3's Monitor counts."""

    def read(self, agent: DistributionalPPO) -> tuple[Numbers, EpisodeScore]:
        returns = [float(info["r"]) for info in agent.ep_info_buffer or ()]
        return {}, EpisodeScore(float(np.mean(returns)) if returns else math.nan)

    def score(self, agent: DistributionalPPO) -> Scored:
        returns, lengths = self._episodes(agent)
        mean = float(returns.mean())
        numbers = {metrics.EVAL_MEAN_REWARD: mean, metrics.EVAL_MEAN_EP_LENGTH: float(lengths.mean())}
        return Scored(EpisodeScore(mean), numbers, tuple(map(float, returns)), mean)

    def _episodes(self, agent: DistributionalPPO) -> tuple[Floats, Floats]:  # (EPISODES,), (EPISODES,)
        """Returns and lengths of one episode of each of several envs, all of them other seeds than training has."""
        envs = EnvList([self.make] * EPISODES)
        envs.seed(_OTHER_SEEDS)
        seen, memory, starts = envs.reset(), None, np.ones(EPISODES, dtype=bool)
        returns, lengths, going = np.zeros(EPISODES), np.zeros(EPISODES), np.ones(EPISODES, dtype=bool)
        for _ in range(_LONGEST_EPISODE):
            actions, memory = agent.predict(seen, memory, starts, deterministic=True)  # type: ignore[arg-type]
            seen, rewards, starts, _ = envs.step(actions)
            returns += rewards * going
            lengths += going
            going &= ~starts
            if not going.any():
                envs.close()
                return returns, lengths
        raise EnvironmentFault(
            f"an episode of the score has not ended after {_LONGEST_EPISODE:,} steps; give the env a time limit: "
            "gym.kwargs.max_episode_steps"
        )

    def rank(self, score: EpisodeScore) -> tuple[bool, float]:
        return True, score.mean_return if math.isfinite(score.mean_return) else -math.inf


def score_name(config: RunConfig) -> ScoreName:
    """By what a population compares its members on a market: `tune.score`, or what `validation` selects by."""
    if config.tune is not None and config.tune.score is not None:
        return config.tune.score
    limited = config.validation.score == "growth" and config.risk[0].limit is not None
    return "growth_within_limit" if limited else config.validation.score


def _windows(result: BacktestResult, config: RunConfig) -> tuple[float, ...]:
    """The score of each of several windows, one after the other, of one run over the split.

    What a window earned is its own; the risk it is set against is that of the whole split, which few bars do not tell.
    """
    name, year, alpha = score_name(config), result.bars_per_year, config.risk[0].alpha
    steps, simple = result.step_returns, result.returns - result.cash  # (n,), (n,) in excess of cash
    tail = float(statistics.cvar(steps, alpha=alpha))
    if name in ("growth", "growth_within_limit"):
        limit = config.risk[0].limit if name == "growth_within_limit" else None
        # What the tail lacks counts as if every bar had lost it.
        earned, risk = steps + (0.0 if limit is None else min(0.0, tail - limit)), 1.0 / year
    elif name == "sharpe":
        earned, risk = simple, float(simple.std(ddof=1)) / math.sqrt(year)
    elif name == "sortino":
        earned, risk = simple, math.sqrt(float(np.square(np.minimum(simple, 0.0)).mean()) / year)
    else:  # cvar_adjusted: a bar's earnings over its tail
        earned, risk = steps - np.log1p(result.cash), -tail
    if risk < _LEAST_RISK:
        return (math.nan,) * WINDOWS
    return tuple(float(part.mean()) / risk for part in np.array_split(earned, min(WINDOWS, len(earned))))


def _median(windows: tuple[float, ...]) -> float:
    """The median; a window without a score is worse than every other, and most of them without one have none."""
    value = float(np.median([each if math.isfinite(each) else -math.inf for each in windows]))
    return value if math.isfinite(value) else math.nan
