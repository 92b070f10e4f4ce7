"""Learn the small tasks with the settings of a config, and say what stands in the way where one is not learned."""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from leeward.algorithm.ppo import DistributionalPPO
from leeward.audit.doctor.suspects import suspects
from leeward.audit.doctor.tasks import TASKS, Gamble, Remembering, TailTask, Task, action_space
from leeward.config.health import Health
from leeward.config.run import RunConfig
from leeward.errors import TrainingDiverged
from leeward.training.trainer import make_model

__all__ = ["PROBES", "Probe", "probe_model", "run_probe", "run_probes"]

PROBES: tuple[type[Task], ...] = (*TASKS, TailTask)
_ENVS, _STEPS = 16, 32
_MOST_STEPS = 16  # of the optimiser per rollout
_ROUNDS = {"one action": 15, "observation": 15, "delayed reward": 20, "memory": 30, "tail": 30}
_LEARNED = 0.7  # of the best score
_LOOKS = 64  # episodes of a score
_EVERY = 3  # rounds between two scores
_SETTLED = 3  # scores in a row that a limit must be kept


@dataclass(frozen=True)
class Probe:
    """What came of one task."""

    name: str
    learned: bool
    score: float  # 1: the best policy; 0: one that knows nothing
    steps: int
    words: str  # what it needs, or what stands in the way
    wanted: bool = True  # False where the config asks for a policy that cannot: it is told, and no fault


def run_probes(
    config: RunConfig, seconds: float = math.inf, progress: Callable[[str], None] = lambda name: None
) -> Iterator[Probe]:
    """Each task, learned by a small model with these settings; it stops as soon as it is learned, or time is up."""
    end = time.monotonic() + seconds
    for kind in PROBES:
        progress(kind.name)
        yield run_probe(config, kind, end)


def run_probe(config: RunConfig, kind: type[Task], end: float = math.inf) -> Probe:
    """One task; `end` is on the monotonic clock."""
    model, watch = probe_model(config, kind), _Watch(kind, config, end)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a limit that is not kept, or a thin tail: the score sees it
            model.learn(_ROUNDS[kind.name] * _STEPS * _ENVS, callback=watch)
    except TrainingDiverged as error:
        found = [*suspects(config, kind.name), str(error)]
        return Probe(kind.name, False, 0.0, model.num_timesteps, f"training stopped: {'; '.join(found)}")
    score = watch.look()
    if score >= _LEARNED:
        return Probe(kind.name, True, score, model.num_timesteps, f"it is able {kind.needs}")
    if watch.late:
        words = f"time was up before it was able {kind.needs}: this machine is slow, or busy"
        return Probe(kind.name, False, score, model.num_timesteps, words, wanted=False)
    found = suspects(config, kind.name)
    words = "; ".join(found) if found else "no single setting stands out: go back to the defaults one by one"
    chosen = kind is Remembering and config.policy.name == "MlpPolicy"
    return Probe(
        kind.name, False, score, model.num_timesteps, f"it is not able {kind.needs}: {words}", wanted=not chosen
    )


def probe_model(config: RunConfig, kind: type[Task]) -> DistributionalPPO:
    """A model of the config's network, optimiser, rates and weights, on small envs; as many minibatches per rollout."""
    ppo, space = config.ppo, action_space(config.env)
    env = DummyVecEnv([_maker(kind, space, config, seed) for seed in range(_ENVS)])
    parts = 1 if ppo.batch_size is None else round(ppo.n_envs * ppo.n_steps / ppo.batch_size)
    parts = max(1, min(parts, _MOST_STEPS // ppo.n_epochs))
    own: dict[str, Any] = {
        "n_steps": _STEPS,
        "batch_size": max(1, _ENVS * _STEPS // parts),
        "n_jobs": 1,
        "micro_batch_size": None,
    }
    if ppo.adversary is not None:  # what it says of single features is said of the trading env's
        own["adversary"] = ppo.adversary.model_copy(update={"keys": None, "scale": None, "mask": None})
    limit = Gamble.of(config.risk[0].alpha, config.env).limit
    risk = config.risk[0].model_copy(update={"limit": limit, "measure": "step_return"})
    probe = config.model_copy(
        update={
            "ppo": ppo.model_copy(update=own),
            "risk": (risk,) if kind is TailTask else (),
            "health": Health(),
        }
    )
    model = make_model(probe, env, on_alert=lambda alert: None)  # of a toy task: its score tells
    model.set_logger(Logger(folder=None, output_formats=[]))
    return model


def _maker(kind: type[Task], space: Any, config: RunConfig, seed: int) -> Callable[[], Task]:
    if kind is TailTask:
        return lambda: TailTask(space, seed, Gamble.of(config.risk[0].alpha, config.env))
    return lambda: kind(space, seed)


class _Watch(BaseCallback):
    """Scores the deterministic policy now and then, and ends the training when the task is learned."""

    def __init__(self, kind: type[Task], config: RunConfig, end: float) -> None:
        super().__init__()
        self.kind, self.config, self.end, self.rounds, self.good, self.late = kind, config, end, 0, 0, False

    def _on_rollout_start(self) -> None:
        if self.rounds and self.rounds % _EVERY == 0:
            self.good = self.good + 1 if self.look() >= _LEARNED else 0
        self.rounds += 1

    def _on_step(self) -> bool:
        self.late = time.monotonic() > self.end
        # A position on its way from too little to too much passes the right one: a limit must stay kept.
        return not self.late and self.good < (_SETTLED if self.kind is TailTask else 1)

    def look(self) -> float:
        """The score of the deterministic policy."""
        model = self.model
        assert isinstance(model, DistributionalPPO)
        task = _maker(self.kind, model.action_space, self.config, 1000)()
        places, rewards = [], []
        for _ in range(_LOOKS if self.kind is not TailTask else 1):
            seen, _ = task.reset()
            state, start, total, over = None, np.ones(1, dtype=bool), 0.0, False
            while not over:
                action, state = model.predict(seen[None], state=state, episode_start=start, deterministic=True)
                places.append(task.place(action[0]))
                seen, reward, over, _, _ = task.step(action[0])
                total, start = total + reward, np.zeros(1, dtype=bool)
            rewards.append(total)
        return task.gamble.score(places[0]) if isinstance(task, TailTask) else float(np.mean(rewards))
