"""What the agent is set beside, by the same kernel and costs: cash, buy and hold, volatility target, its own timing."""

import numpy as np
from numpy.typing import NDArray

from leeward.backtest import statistics
from leeward.backtest.engine import run_many, run_targets
from leeward.backtest.evaluation import TimingNull
from leeward.backtest.result import BacktestResult
from leeward.backtest.strategies import BUY_AND_HOLD, CASH, VOLATILITY_TARGET
from leeward.config.trading import EnvConfig
from leeward.errors import ArgumentError
from leeward.market import Bars, Market

Floats = NDArray[np.float64]

__all__ = [
    "cash",
    "buy_and_hold",
    "volatility_target",
    "ewma_volatility",
    "fit_volatility_target",
    "timing_null",
]

_DECAY = 0.94  # of the variance, per bar
_ROUNDS, _CANDIDATES = 4, 48  # the search for k narrows 47-fold each round
_LEAST_SHIFT = 20  # bars: a smaller shift is nearly the agent itself


def cash(market: Market, config: EnvConfig, *, split: str) -> BacktestResult:
    """Never in the market."""
    n = market.split(split).n_decisions
    return run_targets(np.zeros((n, len(market.bars.assets))), market, config, split=split, name=CASH)


def buy_and_hold(market: Market, config: EnvConfig, *, split: str) -> BacktestResult:
    """Equal capital in every asset listed at the first decision, bought at its first open after it, then left alone."""
    bars, window = market.bars, market.split(split)
    listed = (bars.first_bar <= window.start) & (bars.last_bar > window.start)  # (A,)
    targets = np.full((window.n_decisions, len(bars.assets)), np.nan)
    for a in np.flatnonzero(listed):
        first_fill = int(np.argmax(bars.present[window.start + 1 : window.end, a]))
        targets[first_fill, a] = 1.0 / listed.sum()
    return run_targets(targets, market, config, split=split, name=BUY_AND_HOLD)


def ewma_volatility(bars: Bars) -> Floats:  # (n, A)
    """σ_t of a bar, from close-to-close log-returns ≤ t: σ²_t = 0.94 σ²_{t−1} + 0.06 r²_t; carried where no bar is."""
    moves = np.diff(np.log(bars.carried_close), axis=0, prepend=np.nan)  # (n, A)
    variance = np.full(moves.shape, np.nan)
    running = np.full(moves.shape[1], np.nan)
    for t in range(1, len(moves)):
        fresh = bars.present[t] & np.isfinite(moves[t])
        square = np.square(moves[t])
        updated = np.where(np.isnan(running), square, _DECAY * running + (1.0 - _DECAY) * square)
        running = np.where(fresh, updated, running)
        variance[t] = running
    return np.asarray(np.sqrt(variance))


def volatility_target(k: float, market: Market, config: EnvConfig, *, split: str) -> BacktestResult:
    """w = min(1, k / σ) in one asset; with A of them each gets that share of 1/A."""
    sigma = _sigma(market, split)
    targets = np.stack([_weights(np.array([k]), row)[0] for row in sigma])
    return run_targets(targets, market, config, split=split, name=VOLATILITY_TARGET)


def fit_volatility_target(
    tail: float, market: Market, config: EnvConfig, *, alpha: float, split: str = "train"
) -> float:
    """The k whose CVaR_alpha of a bar on `split` is `tail`; inf when even full exposure stays above it.

    CVaR falls as k grows, so a grid is narrowed between the two candidates that enclose it.
    """
    if not tail < 0.0:
        raise ArgumentError(f"a volatility target is fitted to a negative tail (a loss), got {tail}")
    sigma = _sigma(market, split)
    low, high = 0.0, float(sigma[np.isfinite(sigma)].max())  # from here on min(1, k / σ) is 1 everywhere
    for _ in range(_ROUNDS):
        ks = np.linspace(low, high, _CANDIDATES)
        returns = _returns_of(ks, sigma, market, config, split)  # (K, n)
        worse = np.flatnonzero(statistics.cvar(returns, alpha=alpha) <= tail)
        if not len(worse):
            return float("inf")
        first = max(int(worse[0]), 1)
        low, high = float(ks[first - 1]), float(ks[first])
    return (low + high) / 2.0


def timing_null(
    agent: BacktestResult, market: Market, config: EnvConfig, *, rng: np.random.Generator, n_offsets: int = 1_000
) -> TimingNull:
    """The agent's targets shifted in time, around the end, by distinct random offsets: same positions, other days."""
    n = len(agent.targets)
    least = min(_LEAST_SHIFT, n // 4)
    possible = np.arange(max(1, least), n - least + 1) if n > 2 else np.array([1])
    offsets = rng.permutation(possible)[:n_offsets]
    returns = run_many(
        lambda t: agent.targets[(t - offsets) % n], len(offsets), market, config, split=agent.split
    )  # (K, n)
    year, idle = agent.bars_per_year, agent.cash
    null = statistics.sharpe(np.expm1(returns), bars_per_year=year, cash=idle)
    return TimingNull(float(statistics.sharpe(agent.returns, bars_per_year=year, cash=idle)), null)


def _returns_of(ks: Floats, sigma: Floats, market: Market, config: EnvConfig, split: str) -> Floats:
    return run_many(lambda t: _weights(ks, sigma[t]), len(ks), market, config, split=split)


def _weights(ks: Floats, sigma: Floats) -> Floats:  # (K,), (A,) -> (K, A)
    safe = np.where(sigma > 0.0, sigma, 1.0)
    shares = np.where(sigma > 0.0, np.minimum(1.0, ks[:, None] / safe), 1.0)
    return np.asarray(np.where(np.isfinite(sigma), shares, 0.0) / len(sigma))


def _sigma(market: Market, split: str) -> Floats:  # (n, A), inf before an asset has a volatility
    window = market.split(split)
    return np.nan_to_num(ewma_volatility(market.bars)[window.start : window.end - 1], nan=np.inf)
