"""Simulation: B accounts in one market, stepped together by the kernel.

It knows nothing of gymnasium or Stable-Baselines3; `TradingEnv`, `TradingVectorEnv`, `TradingVecEnv` and the backtest
are thin layers over it. Arrays it returns are new each step: they may be kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from leeward.config.trading import EnvConfig
from leeward.env import kernel as k
from leeward.env.costs import price_panel, rates, terms
from leeward.errors import ArgumentError, CheckpointError, EnvironmentFault
from leeward.market import Market
from leeward.market.bars import FloatArray

__all__ = ["Simulation", "Step", "cut_state", "join_states"]

INFO_INDEX = {name: i for i, name in enumerate(k.INFO_NAMES)}
_STATE = ("book", "held", "clock", "ring")


@dataclass(slots=True)
class Step:
    """What one step gave, for B environments."""

    observations: NDArray[np.float32]  # (B, D), of the new episode where one ended
    rewards: FloatArray  # (B,)
    ends: NDArray[np.bool_]  # (2, B): terminated, truncated
    info: FloatArray  # (INFO, B), rows named by kernel.INFO_NAMES
    orders: FloatArray  # (B, A) signed notional traded
    n_ended: int

    @property
    def terminated(self) -> NDArray[np.bool_]:
        return np.asarray(self.ends[0])

    @property
    def truncated(self) -> NDArray[np.bool_]:
        return np.asarray(self.ends[1])

    def __getitem__(self, name: str) -> FloatArray:
        """(B,) of one entry of the info, by name."""
        return np.asarray(self.info[INFO_INDEX[name]])


class Simulation:
    """B flat accounts in random windows of a split, or in one explicit window.

    Environment i draws its windows from a stream of its own, keyed by (seed, first_env + i); `stagger` cuts the first
    episode of each to a random length, so that episodes do not all end in the same step.
    """

    def __init__(
        self,
        market: Market,
        config: EnvConfig | None = None,
        *,
        n_envs: int = 1,
        split: str = "train",
        seed: int = 0,
        first_env: int = 0,
        stagger: bool = False,
    ) -> None:
        if n_envs < 1:
            raise ArgumentError(f"n_envs must be at least 1, got {n_envs}")
        self.market, self.config = market, config or EnvConfig()
        self.n_envs, self.n_assets, self.split = n_envs, len(market.bars.assets), market.split(split)
        self.first_env, self.stagger = first_env, stagger
        self._panel, self._rates = price_panel(market.bars), rates(self.config)
        self._terms = terms(self.config, market.bars.assets)
        self._inputs = market.inputs.reshape(len(market.bars), -1)  # (n, A (F + 1)), a view
        self._years = market.bars.years_since_previous
        self.observation_size = self._inputs.shape[1] + 2 * self.n_assets + 1
        self.book = np.zeros((n_envs, k.BOOK))
        self.held = np.zeros((n_envs, 2, self.n_assets))
        self.clock = np.zeros((n_envs, k.CLOCK), dtype=np.int64)
        self.ring = np.zeros((n_envs, self.config.drawdown_bars))
        self.final_observations = np.zeros((n_envs, self.observation_size), dtype=np.float32)
        self._auto, self._started = True, False
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Begin every stream anew; takes effect at the next `restart`."""
        self.seed = int(seed)
        steps = self.split.n_decisions
        if self.config.episode_bars is not None:
            steps = min(steps, self.config.episode_bars)
        window = (self.split.start, self.split.n_bars, steps, self.seed & (2**63 - 1), self.first_env, self.stagger)
        self._window = np.array(window, dtype=np.int64)
        self.clock[:, k.EPISODE] = 0

    def restart(self) -> NDArray[np.float32]:
        """Every environment flat at the start of its next random window; ended ones will start again by themselves."""
        self._auto = self._started = True
        k.begin_all(self._window, self._rates, self.book, self.held, self.clock, self.ring)
        return self.observe()

    def place(self, start: int, end: int, *, trade_from: int | None = None) -> NDArray[np.float32]:
        """Every environment flat at bar `start`; the last mark is at the close of bar `end` − 1.

        Before `trade_from` the account stays flat whatever the targets, and earns nothing: warm-up of a recurrent
        memory. Nothing starts again by itself: an account that ended stays in cash.
        """
        trade_from = start if trade_from is None else trade_from
        if not 0 <= start <= trade_from < end - 1 or end > len(self._panel):
            raise ArgumentError(
                f"a window needs 0 <= start <= trade_from < end - 1 and end <= {len(self._panel)} bars, "
                f"got start {start}, trade_from {trade_from}, end {end}"
            )
        self._auto, self._started = False, True
        k.place_all(start, end - 1, trade_from, self._rates, self.book, self.held, self.clock, self.ring)
        return self.observe()

    def place_on_split(self, name: str, *, warm_up: bool = True) -> NDArray[np.float32]:
        """The whole of a split, after its warm-up bars if wanted."""
        split = self.market.split(name)
        return self.place(split.warmup if warm_up else split.start, split.end, trade_from=split.start)

    def hold_at_end(self) -> None:
        """From now on no environment starts again by itself."""
        self._auto = False

    def step(self, targets: FloatArray) -> Step:
        """Decide at close t (targets (B, A), NaN: leave the asset alone), fill at open t + 1, mark at close t + 1."""
        if targets.shape != (self.n_envs, self.n_assets) or targets.dtype != np.float64:
            raise ArgumentError(
                f"targets must be float64 of shape {(self.n_envs, self.n_assets)}, got {targets.dtype} {targets.shape}"
            )
        if not self._started:
            raise EnvironmentFault("step before the first reset; call restart() or place() first")
        if not self._auto and self.clock[0, k.BAR] >= self.clock[0, k.END]:
            raise EnvironmentFault(
                f"step after the end of the window at bar {self.clock[0, k.END]}; call place() again"
            )
        n = self.n_envs
        info, orders, rewards = np.zeros((k.INFO, n)), np.zeros((n, self.n_assets)), np.empty(n)
        observations = np.empty((n, self.observation_size), dtype=np.float32)
        ends = np.empty((2, n), dtype=np.bool_)
        n_ended = k.step_all(
            targets, self._panel, self._inputs, self._years, self._rates, self._terms, self._window, self._auto,
            self.book, self.held, self.clock, self.ring,
            orders, info, observations, self.final_observations, rewards, ends,
        )  # fmt: skip
        return Step(observations, rewards, ends, info, orders, n_ended)

    def observe(self) -> NDArray[np.float32]:
        """(B, D) observations as things stand."""
        out = np.empty((self.n_envs, self.observation_size), dtype=np.float32)
        k.observe_all(self._panel, self._inputs, self.book, self.held, self.clock, out)
        return out

    @property
    def bar(self) -> NDArray[np.int64]:
        """(B,) index of the bar whose close was seen last."""
        return self.clock[:, k.BAR]

    @property
    def equity(self) -> FloatArray:
        return self.book[:, k.EQUITY]

    @property
    def cash(self) -> FloatArray:
        return self.book[:, k.CASH]

    @property
    def units(self) -> FloatArray:
        return self.held[:, k.UNITS]

    @property
    def weights(self) -> FloatArray:
        """(B, A) share of equity in each asset at the last close."""
        prices = self._panel[self.bar, :, k.CLOSE]  # (B, A)
        return np.asarray(self.units * prices / self.equity[:, None])

    @property
    def observation_names(self) -> tuple[str, ...]:
        """D names, in the order of the observation."""
        assets = self.market.bars.assets
        market = (f"{asset}/{name}" for asset in assets for name in (*self.market.feature_names, "valid"))
        account = (f"{asset}/{name}" for name in ("weight", "return_since_entry") for asset in assets)
        return (*market, *account, "drawdown")

    @property
    def attackable(self) -> NDArray[np.bool_]:
        """(D,) what an adversary may perturb: market features, but no flag, no calendar and no state of the account."""
        per_asset = np.append(self.market.attackable, False)
        account = np.zeros(2 * self.n_assets + 1, dtype=np.bool_)
        return np.concatenate((np.tile(per_asset, self.n_assets), account))

    def state_dict(self) -> dict[str, Any]:
        """Plain arrays and numbers; restores a simulation of the same market and config exactly."""
        state: dict[str, Any] = {name: getattr(self, name).copy() for name in _STATE}
        state["rng"] = {"bit_generator": "SplitMix64 of (seed, env, episode)", "seed": self.seed}
        state |= {"auto": self._auto, "started": self._started, "fingerprint": self.market.fingerprint}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave. The kernel trusts what it reads, so that every value is looked at here."""
        lacking = [name for name in (*_STATE, "rng", "auto", "started", "fingerprint") if name not in state]
        if lacking:
            raise CheckpointError(f"the state of the envs lacks {', '.join(lacking)}; take an older checkpoint")
        if state["fingerprint"] != self.market.fingerprint:
            raise CheckpointError(
                f"the state is of other bars ({str(state['fingerprint'])[:12]}…) than this market "
                f"({self.market.fingerprint[:12]}…); give the data the run was made with"
            )
        for name in _STATE:
            mine, saved = getattr(self, name), np.asarray(state[name])
            if saved.shape != mine.shape or saved.dtype != mine.dtype:
                raise CheckpointError(
                    f"state {name}: expected {mine.dtype} {mine.shape}, got {saved.dtype} {saved.shape}; "
                    "the number of envs, assets or env.drawdown_bars differs"
                )
        seed = state["rng"].get("seed") if isinstance(state["rng"], Mapping) else None
        if type(seed) is not int or abs(seed) >= 2**64:
            raise CheckpointError(f"the state of the envs has the seed {seed!r:.40}; take an older checkpoint")
        if type(state["auto"]) is not bool or type(state["started"]) is not bool:
            raise CheckpointError("the state of the envs: auto and started must be true or false")
        found = [np.asarray(state[name]) for name in _STATE]
        if state["started"]:
            self._check_ranges(*found, auto=state["auto"])
        elif any(each.any() for each in found):
            raise CheckpointError("the state of the envs: not started, and yet not all zero; take an older checkpoint")
        self.reseed(seed)
        for name in _STATE:
            getattr(self, name)[...] = state[name]
        self._auto, self._started = state["auto"], state["started"]

    def _check_ranges(
        self, book: FloatArray, held: FloatArray, clock: NDArray[np.int64], ring: FloatArray, *, auto: bool
    ) -> None:
        """Bars inside the window, a window inside the bars, and amounts that an account can have."""
        first, last = (self.split.start, self.split.end - 1) if auto else (0, len(self._panel) - 1)
        bar, end, trade_from = clock[:, k.BAR], clock[:, k.END], clock[:, k.TRADE_FROM]
        # Those that start again by themselves have always a bar before them; others share a window, and may stand at
        # its end: `step` asks the first of them.
        ahead = bar < end if auto else (bar <= end) & (bar == bar[0]) & (end == end[0])
        sound = {
            "clock": (first <= bar) & ahead & (end <= last) & (trade_from >= first) & (trade_from <= end)
            & (clock[:, k.EPISODE] >= 0) & (clock[:, k.EPISODE] < 2**62) & (clock[:, k.LENGTH] >= 0)
            & (clock[:, k.LENGTH] <= len(self._panel)) & np.isin(clock[:, k.ENDED], (0, 1)),
            "book": np.isfinite(book).all(axis=1) & (book[:, k.EQUITY] > 0.0) & (book[:, k.PEAK] >= book[:, k.EQUITY]),
            "held": np.isfinite(held).all(axis=(1, 2))
            & ((held[:, k.UNITS] == 0.0) | (held[:, k.ENTRY] > 0.0)).all(axis=1),
            "ring": (np.isfinite(ring) & (ring >= 0.0)).all(axis=1),
        }  # fmt: skip
        checked: dict[str, NDArray[Any]] = {"clock": clock, "book": book, "held": held, "ring": ring}
        for name, good in sound.items():
            if not good.all():
                env = int(np.argmin(good))
                raise CheckpointError(
                    f"the state of the envs: {name} of env {env} holds what no account can have, "
                    f"{checked[name][env].ravel().tolist()!r:.80}; take an older checkpoint"
                )
        shown = np.empty((self.n_envs, self.observation_size), dtype=np.float32)
        k.observe_all(self._panel, self._inputs, book, held, clock, shown)
        if not np.isfinite(shown).all():
            env = int(np.argmin(np.isfinite(shown).all(axis=1)))
            raise CheckpointError(
                f"the state of the envs: what env {env} owns cannot be shown in numbers; take an older checkpoint"
            )


def cut_state(state: Mapping[str, Any], envs: slice) -> dict[str, Any]:
    """The part of some envs in a state that `state_dict` gave."""
    return {key: value[envs].copy() if key in _STATE else value for key, value in state.items()}


def join_states(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a simulation from those of its parts, in the order of their envs."""
    whole = {key: np.concatenate([part[key] for part in parts]) for key in _STATE}
    return dict(parts[0]) | whole
