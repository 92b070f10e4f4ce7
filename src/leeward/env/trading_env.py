"""TradingEnv: one account in one market, as a gymnasium environment (`leeward/Trading-v0`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leeward.config.trading import DataConfig, EnvConfig
from leeward.env import kernel as k
from leeward.env.actions import make_actions
from leeward.env.simulation import Simulation
from leeward.market import Bars, Market, prepare

__all__ = ["Data", "TradingEnv", "as_config", "as_market", "observation_space"]

Data = Market | Bars | DataConfig | pd.DataFrame | Mapping[str, Any] | str | Path


def as_market(data: Data) -> Market:
    """A market of whatever was given: prepared already, bars, a frame, a file, sample:NAME, or a data config."""
    if isinstance(data, Market):
        return data
    if isinstance(data, DataConfig):
        return prepare(data)
    if isinstance(data, Mapping):
        return prepare(DataConfig.read(data, where="data"))
    return prepare(bars=data)


def as_config(settings: EnvConfig | Mapping[str, Any] | None) -> EnvConfig:
    return settings if isinstance(settings, EnvConfig) else EnvConfig.read(settings or {}, where="TradingEnv")


def observation_space(simulation: Simulation) -> gym.spaces.Box:
    """Bounds that hold: features by their clip, weights by the margin call, the rest by its definition."""
    clip = simulation.market.scaler.clip
    maintenance = simulation.config.account.maintenance
    feature = np.inf if clip is None else clip
    weight = np.inf if maintenance == 0.0 else 1.0 / maintenance
    n_features, n_assets = len(simulation.market.feature_names), simulation.n_assets
    ones = np.ones(n_assets)
    per_asset = [*[feature] * n_features, 1.0]
    high = np.concatenate((np.tile(per_asset, n_assets), weight * ones, k.ENTRY_RETURN_LIMIT * ones, [0.0]))
    per_asset = [*[-feature] * n_features, 0.0]
    low = np.concatenate((np.tile(per_asset, n_assets), -weight * ones, -k.ENTRY_RETURN_LIMIT * ones, [-1.0]))
    return gym.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


class TradingEnv(gym.Env[NDArray[np.float32], Any]):
    """Decide at close t, fill at open t + 1, mark at close t + 1; reward = log of the equity ratio, after all costs.

    `data` is a prepared Market, Bars, a DataFrame, a file, sample:NAME or a data config; keywords are the keys of
    EnvConfig (`episode_bars=256`, `min_weight=-1.0`, `costs={"commission_bps": 0.5}`), or one EnvConfig as `config`.

    `reset(options={"start": bar, "end": bar, "trade_from": bar})` replays an explicit window, `{"split": name}` a whole
    split from flat with its warm-up bars; without options the window is random, from the stream of the seed.
    """

    risk_unit = "log-return"  # of info["step_return"], the variable of a risk limit

    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium's own name and type

    def __init__(
        self,
        data: Data = "sample:nasdaq",
        *,
        split: str = "train",
        config: EnvConfig | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        self.simulation = Simulation(as_market(data), config or as_config(settings), n_envs=1, split=split)
        self.actions = make_actions(self.simulation.config, self.simulation.n_assets)
        self.action_space = self.actions.space
        self.observation_space: gym.Space[Any] = observation_space(self.simulation)
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        fresh = self._np_random is None
        super().reset(seed=seed)
        simulation, options = self.simulation, options or {}
        if seed is not None:
            simulation.reseed(seed)
        elif fresh:
            simulation.reseed(int(self.np_random.integers(2**62)))
        if "split" in options:
            observations = simulation.place_on_split(options["split"], warm_up=options.get("warm_up", True))
        elif "start" in options:
            observations = simulation.place(options["start"], options["end"], trade_from=options.get("trade_from"))
        else:
            observations = simulation.restart()
        # One episode at a time: a gymnasium env waits for its reset.
        simulation.hold_at_end()
        return observations[0], {"bar": int(simulation.bar[0]), "equity": float(simulation.equity[0])}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        step = self.simulation.step(self.actions.targets(np.asarray(action)))
        info: dict[str, Any] = dict(zip(k.INFO_NAMES, step.info[:, 0].tolist(), strict=True))
        return step.observations[0], float(step.rewards[0]), bool(step.ends[0, 0]), bool(step.ends[1, 0]), info

    @property
    def observation_names(self) -> tuple[str, ...]:
        return self.simulation.observation_names

    @property
    def attackable(self) -> NDArray[np.bool_]:
        return self.simulation.attackable
