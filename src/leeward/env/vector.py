"""TradingVectorEnv: B accounts as a gymnasium VectorEnv; an env that ended starts again in the same step."""

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from leeward.config.trading import EnvConfig
from leeward.env import kernel as k
from leeward.env.actions import make_actions
from leeward.env.simulation import Simulation
from leeward.env.trading_env import Data, as_config, as_market, observation_space
from leeward.market.bars import FloatArray

__all__ = ["TradingVectorEnv"]


class TradingVectorEnv(VectorEnv[NDArray[np.float32], NDArray[Any], NDArray[Any]]):
    """The same accounts as TradingEnv, all stepped by one call of the kernel.

    Autoreset in the same step: where an episode ended, info["final_obs"] and info["final_info"] hold its last step.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - gymnasium's own

    def __init__(
        self,
        data: Data = "sample:nasdaq",
        num_envs: int = 1,
        *,
        split: str = "train",
        stagger: bool = False,
        config: EnvConfig | None = None,
        **settings: Any,
    ) -> None:
        market = as_market(data)
        self.simulation = Simulation(
            market, config or as_config(settings), n_envs=num_envs, split=split, stagger=stagger
        )
        self.actions = make_actions(self.simulation.config, self.simulation.n_assets)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = observation_space(self.simulation), self.actions.space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        fresh = self._np_random is None
        super().reset(seed=seed)
        if seed is not None:
            self.simulation.reseed(seed)
        elif fresh:
            self.simulation.reseed(int(self.np_random.integers(2**62)))
        observations = self.simulation.restart()
        return observations, {"bar": self.simulation.bar.copy(), "equity": self.simulation.equity.copy()}

    def step(
        self, actions: NDArray[Any]
    ) -> tuple[NDArray[np.float32], FloatArray, NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        step = self.simulation.step(self.actions.targets(actions))
        infos: dict[str, Any] = dict(zip(k.INFO_NAMES, step.info, strict=True))
        if step.n_ended:
            done = step.ends[0] | step.ends[1]
            last = np.full(self.num_envs, None, dtype=object)
            for env in np.flatnonzero(done):
                last[env] = self.simulation.final_observations[env].copy()
            infos |= {
                "final_obs": last,
                "_final_obs": done,
                "final_info": {name: row.copy() for name, row in infos.items()},
                "_final_info": done,
            }
        return step.observations, step.rewards, step.ends[0], step.ends[1], infos

    @property
    def attackable(self) -> NDArray[np.bool_]:
        return self.simulation.attackable
