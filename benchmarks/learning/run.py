"""Does it learn? Leeward and RecurrentPPO on three small control tasks, five seeds each.

    python benchmarks/learning/run.py --system leeward --task cartpole --seed 0      one run, one line of JSON
    python benchmarks/learning/run.py --table                                        the table of all stored runs

Settings are RL-Zoo's published, tuned ones (`ppo` for CartPole-v1; `ppo_lstm`'s CartPoleNoVel-v1 and PendulumNoVel-v1,
the last used on Pendulum-v1), `normalize: True` included, the same for both systems; whatever only Leeward has is at
its default. The score is the mean of 100 deterministic episodes with the final weights. Nothing was tuned on these
seeds.
"""

import argparse
import json
import pathlib
import statistics
import time
from typing import Any

import gymnasium
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

from leeward import DistributionalPPO

RESULTS = pathlib.Path(__file__).with_name("results.jsonl")


class WithoutVelocities(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
    """CartPole's positions alone, so that the velocities must be remembered."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        high = np.array([9.6, 0.84], dtype=np.float32)
        self.observation_space = gymnasium.spaces.Box(-high, high)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


def linear(start: float) -> Any:
    return lambda remaining: remaining * start


RECURRENT_NET = {
    "lstm_hidden_size": 64, "enable_critic_lstm": True, "net_arch": {"pi": [64], "vf": [64]},
    "ortho_init": False, "activation_fn": torch.nn.ReLU,
}  # fmt: skip
CARTPOLE = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20}
PENDULUM = {"n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "learning_rate": 1e-3}
TASKS: dict[str, dict[str, Any]] = {
    "cartpole": {
        "env": "CartPole-v1", "wrapper": None, "normalise": False, "n_envs": 8, "steps": 100_000, "policy": "MlpPolicy",
        "settings": lambda: CARTPOLE | {"learning_rate": linear(1e-3), "clip_range": linear(0.2)},
    },
    "cartpole_no_velocity": {
        "env": "CartPole-v1", "wrapper": WithoutVelocities, "normalise": True,
        "n_envs": 8, "steps": 100_000, "policy": "MlpLstmPolicy",
        "settings": lambda: CARTPOLE
        | {"learning_rate": linear(1e-3), "clip_range": linear(0.2), "policy_kwargs": dict(RECURRENT_NET)},
    },
    "pendulum": {
        "env": "Pendulum-v1", "wrapper": None, "normalise": True,
        "n_envs": 4, "steps": 150_000, "policy": "MlpLstmPolicy",
        "settings": lambda: PENDULUM | {"use_sde": True, "sde_sample_freq": 4, "policy_kwargs": dict(RECURRENT_NET)},
    },
}  # fmt: skip


def train(system: str, task: dict[str, Any], seed: int) -> BaseAlgorithm:
    settings = task["settings"]()
    env = make_vec_env(task["env"], task["n_envs"], seed=seed, wrapper_class=task["wrapper"])
    if task["normalise"]:
        env = VecNormalize(env, gamma=settings["gamma"])
    peer = RecurrentPPO if task["policy"].endswith("LstmPolicy") else PPO
    algorithm = DistributionalPPO if system == "leeward" else peer
    return algorithm(task["policy"], env, seed=seed, **settings).learn(task["steps"])


def run(system: str, name: str, seed: int) -> None:
    torch.set_num_threads(1)
    task = TASKS[name]
    begin = time.perf_counter()
    model = train(system, task, seed)
    seconds = time.perf_counter() - begin
    env = make_vec_env(task["env"], 10, seed=10_000 + seed, wrapper_class=task["wrapper"])
    if task["normalise"]:
        env = VecNormalize(env, training=False, norm_reward=False)
        sync_envs_normalization(model.get_env(), env)
    score, spread = evaluate_policy(model, env, n_eval_episodes=100, deterministic=True)
    line = {"task": name, "system": system, "seed": seed, "score": score, "spread": spread, "seconds": round(seconds)}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line)


def table() -> str:
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    lines = ["| task | system | median | scores by seed |", "|---|---|---|---|"]
    for name in TASKS:
        for system in ("leeward", "peer"):
            found = {row["seed"]: row["score"] for row in rows if (row["task"], row["system"]) == (name, system)}
            if found:
                scores = ", ".join(f"{found[seed]:.0f}" for seed in sorted(found))
                lines.append(f"| {name} | {system} | {statistics.median(found.values()):.1f} | {scores} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=["leeward", "peer"])
    parser.add_argument("--task", choices=list(TASKS))
    parser.add_argument("--seed", type=int)
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
    else:
        run(arguments.system, arguments.task, arguments.seed)


if __name__ == "__main__":
    main()
