"""Stable-Baselines3 VecEnvs: the batched trading env, and the running return as a wrapper."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from leeward.config.trading import EnvConfig
from leeward.env import kernel as k
from leeward.env.actions import make_actions
from leeward.env.infos import Infos
from leeward.env.running_return import extended_space
from leeward.env.simulation import Simulation, Step, cut_state, join_states
from leeward.env.trading_env import Data, as_config, as_market, observation_space
from leeward.errors import CheckpointError
from leeward.market import Market

__all__ = ["RunningReturnVecEnv", "TradingVecEnv"]


class TradingVecEnv(VecEnv):
    """B accounts in one market, stepped by one call of the kernel; episodes start again by themselves.

    `info_arrays` is the info of the last step as one (B,) array per key: the fast way. `infos` are mappings that read
    the same arrays when looked at; finished envs carry terminal_observation, TimeLimit.truncated and Monitor's episode
    {r, l, t}.
    """

    risk_unit = "log-return"  # of info["step_return"], the variable of a risk limit

    def __init__(
        self,
        data: Data = "sample:nasdaq",
        n_envs: int = 1,
        *,
        split: str = "train",
        seed: int = 0,
        first_env: int = 0,
        stagger: bool = True,
        config: EnvConfig | None = None,
        **settings: Any,
    ) -> None:
        self.simulation = Simulation(
            as_market(data),
            config or as_config(settings),
            n_envs=n_envs,
            split=split,
            seed=seed,
            first_env=first_env,
            stagger=stagger,
        )
        self.actions = make_actions(self.simulation.config, self.simulation.n_assets)
        self.render_mode: str | None = None
        self._step: Step | None = None
        self._arrays: dict[str, NDArray[Any]] | None = None
        self._targets = np.zeros((n_envs, self.simulation.n_assets))
        self._next_seed: int | None = None
        self._born = time.monotonic()
        super().__init__(n_envs, observation_space(self.simulation), self.actions.space)

    def reset(self) -> NDArray[np.float32]:
        """All envs in new windows. After `seed` the streams begin anew, otherwise they go on."""
        if self._next_seed is not None:
            self.simulation.reseed(self._next_seed)
            self._next_seed = None
        self._reset_seeds()
        self._reset_options()
        return self.simulation.restart()

    def step_async(self, actions: NDArray[Any]) -> None:
        self._targets = self.actions.targets(actions)

    def step_wait(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], Any]:
        simulation = self.simulation
        step = self._step = simulation.step(self._targets)
        self._arrays = None
        dones = step.ends[0] | step.ends[1]
        infos: Any = Infos(step, self._finished(step, dones) if step.n_ended else {})
        return step.observations, step.rewards.astype(np.float32), dones, infos

    def _finished(self, step: Step, dones: NDArray[np.bool_]) -> dict[int, dict[str, Any]]:
        """What SB3 expects of envs whose episode ended in this step."""
        elapsed = round(time.monotonic() - self._born, 6)
        reward, length = step["episode_reward"], step["episode_length"]
        return {
            env: {
                "terminal_observation": self.simulation.final_observations[env].copy(),
                "TimeLimit.truncated": bool(step.ends[1, env]),
                "episode": {"r": float(reward[env]), "l": int(length[env]), "t": elapsed},
            }
            for env in np.flatnonzero(dones).tolist()
        }

    @property
    def info_arrays(self) -> dict[str, NDArray[Any]]:
        """One (B,) array per key of the last step's info, and `terminated` and `truncated`; empty before it."""
        if self._arrays is None:
            if self._step is None:
                return {}
            self._arrays = dict(zip(k.INFO_NAMES, self._step.info, strict=True))
            self._arrays["terminated"], self._arrays["truncated"] = self._step.ends
        return self._arrays

    def observe(self) -> NDArray[np.float32]:
        """(B, D) observations as things stand, e.g. after `load_state_dict`."""
        return self.simulation.observe()

    @property
    def final_observations(self) -> NDArray[np.float32]:
        """(B, D) last observations of the episodes that ended in the last step; other rows are older. Copy to keep."""
        return self.simulation.final_observations

    @property
    def observation_names(self) -> tuple[str, ...]:
        return self.simulation.observation_names

    @property
    def attackable(self) -> NDArray[np.bool_]:
        return self.simulation.attackable

    def state_dict(self) -> dict[str, Any]:
        return self.simulation.state_dict() | {"next_seed": self._next_seed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        next_seed = state.get("next_seed")
        if next_seed is not None and type(next_seed) is not int:
            raise CheckpointError(f"the state of the envs: next_seed is {next_seed!r:.40}; take an older checkpoint")
        self.simulation.load_state_dict(state)
        self._next_seed = next_seed

    def shard(self, first: int, count: int) -> Callable[[], VecEnv]:
        """A function that makes `count` of the envs elsewhere, as they stand and with their own streams."""
        simulation = self.simulation
        return partial(
            _remade,
            cut_state(self.state_dict(), slice(first, first + count)),
            simulation.market,
            count,
            split=simulation.split.name,
            first_env=simulation.first_env + first,
            stagger=simulation.stagger,
            config=simulation.config,
        )

    def join(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take over the states of shards that together hold all envs, in their order."""
        self.load_state_dict(join_states(states))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Key the streams by `seed` at the next reset; env i draws from (seed, i)."""
        if seed is not None:
            self._next_seed = seed
        return [seed] * self.num_envs

    def close(self) -> None:
        """Nothing to release."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise AttributeError(
            f"the envs of a TradingVecEnv share their settings; make another one to change {attr_name!r}"
        )

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise AttributeError(
            f"the envs of a TradingVecEnv are not separate objects; {method_name!r} cannot be called on one"
        )

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None) -> list[bool]:
        """True for Monitor, whose work is done here."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]


def _remade(state: Mapping[str, Any], market: Market, n_envs: int, **settings: Any) -> TradingVecEnv:
    env = TradingVecEnv(market, n_envs, **settings)
    env.load_state_dict(state)
    return env


class RunningReturnVecEnv(VecEnvWrapper):
    """`RunningReturn` for a VecEnv: the sum of step returns (or rewards) of the episode is the last observation."""

    shows_running_return = True

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv, observation_space=extended_space(venv.observation_space))
        self._totals = np.zeros(venv.num_envs)

    def reset(self) -> NDArray[Any]:
        self._totals[:] = 0.0
        return self._extended(cast("NDArray[Any]", self.venv.reset()))

    def step_wait(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_], Any]:
        observations, rewards, dones, infos = self.venv.step_wait()
        if isinstance(self.venv, TradingVecEnv):
            self._totals += self.venv.info_arrays["step_return"]
        else:
            gains = (info.get("step_return", reward) for info, reward in zip(infos, rewards, strict=True))
            self._totals += np.fromiter(gains, np.float64, self.num_envs)
        for env in np.flatnonzero(dones).tolist():
            last = infos[env]["terminal_observation"]
            infos[env]["terminal_observation"] = np.append(last, np.asarray(self._totals[env], dtype=last.dtype))
        self._totals[dones] = 0.0
        return self._extended(cast("NDArray[Any]", observations)), rewards, dones, infos

    def _extended(self, observations: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate((observations, self._totals[:, None].astype(observations.dtype)), axis=1)

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """What the wrapped envs have; what an adversary may perturb has one entry more, since the observation has."""
        found = super().get_attr(attr_name, indices)
        return [np.append(each, False) for each in found] if attr_name == "attackable" else found

    def observe(self) -> NDArray[Any]:
        """(B, D + 1) as things stand; the wrapped env must be able to say so."""
        return self._extended(self.venv.observe())  # type: ignore[attr-defined]

    def state_dict(self) -> dict[str, Any]:
        return {"venv": self.venv.state_dict(), "totals": self._totals.copy()}  # type: ignore[attr-defined]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        totals = np.asarray(state["totals"])
        if totals.shape != self._totals.shape or totals.dtype != self._totals.dtype or not np.isfinite(totals).all():
            raise CheckpointError(f"the state of the envs: totals must be {self.num_envs} finite numbers")
        self.venv.load_state_dict(state["venv"])  # type: ignore[attr-defined]
        self._totals[:] = totals

    def shard(self, first: int, count: int) -> Callable[[], VecEnv]:
        """A function that makes `count` of the envs elsewhere, if the wrapped env can."""
        inner = self.venv.shard(first, count)  # type: ignore[attr-defined]
        return partial(_wrapped_again, inner, self._totals[first : first + count].copy())

    def join(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take over the states of shards that together hold all envs, in their order."""
        self.venv.join([state["venv"] for state in states])  # type: ignore[attr-defined]
        self._totals[:] = np.concatenate([state["totals"] for state in states])


def _wrapped_again(inner: Callable[[], VecEnv], totals: NDArray[np.float64]) -> RunningReturnVecEnv:
    env = RunningReturnVecEnv(inner())
    env._totals[:] = totals
    return env
