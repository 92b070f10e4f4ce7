"""Speed of the trading environment against its peers, in one run.

    python benchmarks/env/run.py [--write]

Env-steps per second of CPU time (one thread; so that other programs on the machine count less), 64 envs, one asset, 16
features, random positions; medians of five rounds, the systems taking turns, after a warm-up that is not counted. Peers
are what they are: single envs in a Python loop, gym-anytrading with two positions and a window of 8 bars with 2
signals, FinRL with continuous actions and a frame it searches at every step, so that it slows down with more bars.
`--write` stores the table in benchmarks/env/RESULTS.md. Peers that are not installed are left out.
gym-trading-env pins an old ccxt, and FinRL brokers' clients: keep them out of the environment Leeward lives in (`pip
install --no-deps --target peers gym-trading-env finrl`, then PYTHONPATH=peers; FinRL's env also wants matplotlib).
"""

import argparse
import importlib.util
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from leeward.config.trading import DataConfig, EnvConfig
from leeward.env import Simulation, TradingEnv, TradingVectorEnv
from leeward.env import kernel as k
from leeward.env.sb3 import TradingVecEnv
from leeward.market import Bars, Market, load, prepare

N_ENVS, STEPS, ROUNDS = 64, 2_000, 5
LIKE_PEERS, TEN = "SB3 VecEnv, every env's info looked at", "kernel, 10 assets"


def kernel_only(market: Market) -> Callable[[], int]:
    """The compiled step alone, its outputs reused."""
    simulation = Simulation(market, EnvConfig(), n_envs=N_ENVS, stagger=True)
    simulation.restart()
    n, n_assets = simulation.n_envs, simulation.n_assets
    rng = np.random.default_rng(0)
    targets = rng.choice([0.0, 0.5, 1.0], (STEPS, n, n_assets))
    info, orders, rewards = np.zeros((k.INFO, n)), np.zeros((n, n_assets)), np.empty(n)
    observations, ends = np.empty((n, simulation.observation_size), np.float32), np.empty((2, n), np.bool_)

    def go() -> int:
        for row in targets:
            info[:] = 0.0
            k.step_all(
                row, simulation._panel, simulation._inputs, simulation._years, simulation._rates,
                simulation._terms, simulation._window,
                True, simulation.book, simulation.held, simulation.clock, simulation.ring, orders, info, observations,
                simulation.final_observations, rewards, ends,
            )  # fmt: skip
        return STEPS * n

    return go


def sb3_vec_env(market: Market, read: str) -> Callable[[], int]:
    """`read`: "arrays" reads every key as an array, "infos" reads one key of every env's info, "none" neither."""
    env = TradingVecEnv(market, N_ENVS, action="positions")
    env.reset()
    actions = np.random.default_rng(0).integers(0, 3, (STEPS, N_ENVS))

    def go() -> int:
        for row in actions:
            _, _, _, infos = env.step(row)
            if read == "arrays":
                arrays = env.info_arrays
                for key in k.INFO_NAMES:
                    arrays[key]
            elif read == "infos":
                for info in infos:
                    info.get("episode")
        return STEPS * N_ENVS

    return go


def vector_env(market: Market) -> Callable[[], int]:
    env = TradingVectorEnv(market, N_ENVS, action="positions")
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 3, (STEPS, N_ENVS))

    def go() -> int:
        for row in actions:
            env.step(row)
        return STEPS * N_ENVS

    return go


def single_env(market: Market) -> Callable[[], int]:
    env = TradingEnv(market, action="positions")
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 3, STEPS)

    def go() -> int:
        for action in actions:
            if any(env.step(action)[2:4]):
                env.reset()
        return STEPS

    return go


def gym_anytrading(market: Market) -> Callable[[], int]:
    """StocksEnv on the same bars, window of 8 bars × 2 signals = its usual shape of 16 numbers."""
    import pandas as pd
    from gym_anytrading.envs import StocksEnv

    bars = market.bars
    frame = pd.DataFrame(
        {name: getattr(bars, name.lower())[:, 0] for name in ("Open", "High", "Low", "Close", "Volume")}
    )
    envs = [StocksEnv(frame, window_size=8, frame_bound=(8, len(frame))) for _ in range(N_ENVS)]
    for env in envs:
        env.reset(seed=0)
    steps = 200
    actions = np.random.default_rng(0).integers(0, 2, (steps, N_ENVS))

    def go() -> int:
        for row in actions:
            for env, action in zip(envs, row, strict=True):
                _, _, terminated, truncated, _ = env.step(action)
                if terminated or truncated:
                    env.reset()
        return steps * N_ENVS

    return go


def gym_trading_env(market: Market) -> Callable[[], int]:
    """TradingEnv of gym-trading-env on the same bars with 16 feature_* columns."""
    import pandas as pd
    from gym_trading_env.environments import TradingEnv as Peer

    bars = market.bars
    frame = pd.DataFrame({name: getattr(bars, name)[:, 0] for name in ("open", "high", "low", "close", "volume")})
    for i in range(16):
        frame[f"feature_{i}"] = market.features[:, 0, i]
    frame.index = pd.DatetimeIndex(bars.time)
    envs = [Peer(df=frame, positions=[0, 0.5, 1], max_episode_duration=512, verbose=0) for _ in range(N_ENVS)]
    for env in envs:
        env.reset(seed=0)
    steps = 40
    actions = np.random.default_rng(0).integers(0, 3, (steps, N_ENVS))

    def go() -> int:
        for row in actions:
            for env, action in zip(envs, row, strict=True):
                _, _, terminated, truncated, _ = env.step(int(action))
                if terminated or truncated:
                    env.reset()
        return steps * N_ENVS

    return go


def finrl(market: Market) -> Callable[[], int]:
    """FinRL's StockTradingEnv on the same bars with 16 indicators."""
    import pandas as pd

    package = importlib.util.find_spec("finrl")
    if package is None or not package.submodule_search_locations:
        raise ImportError("finrl")
    # The file alone: the package imports brokers and trainers.
    place = Path(package.submodule_search_locations[0]) / "meta/env_stock_trading/env_stocktrading.py"
    spec = importlib.util.spec_from_file_location("finrl_env", place)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    indicators = [f"feature_{i}" for i in range(16)]
    frame = pd.DataFrame({"date": market.bars.time, "tic": "A", "close": market.bars.close[:, 0]})
    frame[indicators] = market.features[:, 0, :16]
    envs = [
        module.StockTradingEnv(
            df=frame, stock_dim=1, hmax=100, initial_amount=1_000_000, num_stock_shares=[0], buy_cost_pct=[0.001],
            sell_cost_pct=[0.001], reward_scaling=1e-4, state_space=3 + len(indicators), action_space=1,
            tech_indicator_list=indicators, print_verbosity=10**9,
        )
        for _ in range(N_ENVS)
    ]  # fmt: skip
    for env in envs:
        env.reset(seed=0)
    steps = 10
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, N_ENVS, 1))

    def go() -> int:
        for row in actions:
            for env, action in zip(envs, row, strict=True):
                if env.step(action)[2]:
                    env.reset()
        return steps * N_ENVS

    return go


def portfolio(n_assets: int) -> Market:
    """The NASDAQ bars side by side, so that each asset-step does the same work."""
    one = load("sample:nasdaq")
    columns = [np.tile(column, n_assets) for column in (one.open, one.high, one.low, one.close, one.volume)]
    bars = Bars(one.time, tuple(f"asset{a}" for a in range(n_assets)), *columns)
    return prepare(DataConfig(), bars=bars)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="store the table in RESULTS.md")
    arguments = parser.parse_args()
    market = prepare()
    systems = {
        "kernel": kernel_only(market),
        "SB3 VecEnv": sb3_vec_env(market, "none"),
        "SB3 VecEnv, every key read as an array": sb3_vec_env(market, "arrays"),
        LIKE_PEERS: sb3_vec_env(market, "infos"),
        "gymnasium VectorEnv": vector_env(market),
        "gymnasium Env (one)": single_env(market),
        TEN: kernel_only(portfolio(10)),
    }
    peers = {"gym-anytrading": gym_anytrading, "gym-trading-env": gym_trading_env, "FinRL StockTradingEnv": finrl}
    for name, make in peers.items():
        try:
            with warnings.catch_warnings():  # gym-trading-env turns all warnings into errors when it is imported
                systems[name] = make(market)
        except ImportError as error:
            print(f"{name} is left out: {error}")
    rates: dict[str, list[float]] = {name: [] for name in systems}
    for go in systems.values():
        go()
    for _ in range(ROUNDS):
        for name, go in systems.items():
            start = time.process_time()
            done = go()
            rates[name].append(done / (time.process_time() - start))
    text = table(rates, len(market.bars.time))
    print(text)
    if arguments.write:
        Path(__file__).with_name("RESULTS.md").write_text(text, encoding="utf-8")


def table(rates: dict[str, list[float]], n_bars: int) -> str:
    median = {name: statistics.median(values) for name, values in rates.items()}
    lines = [
        "# Speed of the trading environment",
        "",
        f"`python benchmarks/env/run.py --write`: {N_ENVS} envs, one asset, {n_bars:,} bars, 16 features, CPU time of "
        f"one thread ({platform.machine()}, Python {platform.python_version()}); medians of {ROUNDS} rounds in turns. "
        f"Load average of the machine meanwhile: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
        "",
        "The compiled kernel is what all of Leeward's envs run. A training loop sees the SB3 VecEnv; the last column "
        "compares with all its infos read, since peers make theirs in every step. Peers are single envs in a Python "
        "loop; one Leeward env alone is slower than gym-anytrading's, since it is made for batches.",
        "",
        "| system | env-steps/s | lowest - highest | kernel is faster by | SB3 VecEnv, infos read, is faster by |",
        "|---|---|---|---|---|",
    ]
    for name, values in rates.items():
        if name != TEN:
            ratios = " | ".join(f"{median[base] / median[name]:,.3g} ×" for base in ("kernel", LIKE_PEERS))
            lines.append(f"| {name} | {median[name]:,.0f} | {min(values):,.0f} - {max(values):,.0f} | {ratios} |")
    each = median["kernel"] / (10 * median[TEN])
    lines += ["", f"With 10 assets the kernel's time per asset-step is {each:.2f} × that with one.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
