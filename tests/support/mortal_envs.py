"""CartPole in which something dies or stands still once: what trains it, or the process that is named in a file."""

import os
import signal
import time
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

__all__ = ["Mortal"]

_GONE = 600.0  # seconds: a worker ends as soon as it sees that its raylet did


class Mortal(CartPoleEnv):
    """Before its 40th step it kills once what `victim`, a file, names: "me", a process, or "node" and its raylet.

    With "still" its own process stands still instead. Without its raylet a worker trains on for a second or two, long
    enough for a whole population, and gets no further here: on a machine that is lost nothing does.
    """

    def __init__(self, victim: str) -> None:
        super().__init__()
        self.victim, self.steps = Path(victim), 0

    def step(self, action):
        self.steps += 1
        if self.steps == 40 and self.victim.is_file():
            who = self.victim.read_text()
            if who.startswith("node") and who != f"node {os.getppid()}":
                return super().step(action)  # it trains on another node
            self.victim.unlink()
            if who == "still":
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                os.kill(os.getpid() if who == "me" else int(who.removeprefix("node")), signal.SIGKILL)
            if who.startswith("node"):
                time.sleep(_GONE)
        return super().step(action)


gymnasium.register("Mortal-v0", Mortal, max_episode_steps=500)
