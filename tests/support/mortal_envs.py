"""CartPole in which something dies once: the process that trains it, or the one that is named in a file."""

import os
import signal
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

__all__ = ["Mortal"]


class Mortal(CartPoleEnv):
    """Before its 40th step it kills once what `victim`, a file, names: "me", or a process."""

    def __init__(self, victim: str) -> None:
        super().__init__()
        self.victim, self.steps = Path(victim), 0

    def step(self, action):
        self.steps += 1
        if self.steps == 40 and self.victim.is_file():
            who = self.victim.read_text()
            self.victim.unlink()
            os.kill(os.getpid() if who == "me" else int(who), signal.SIGKILL)
        return super().step(action)


gymnasium.register("Mortal-v0", Mortal, max_episode_steps=500)
