"""Two defaults that were chosen by measurement: how long a sequence is, and how bounded actions are drawn.

    python benchmarks/learning/defaults.py [--write]

Seeds 10 to 12, apart from those of `run.py`. Score: mean of 100 deterministic episodes with the final weights.
- sequence_length 8 and 32 on CartPole without velocities, RL-Zoo's `ppo_lstm` settings (rollouts have 32 steps);
- "gaussian" (clipped, as in SB3) and "squashed" actions on Pendulum-v1, RL-Zoo's `ppo` settings without gSDE, which has
  a form of its own, 60,000 steps.
"""

import argparse
import pathlib
import statistics
import sys
from typing import Any

import torch
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.learning.tasks import RECURRENT_NET, TASKS, OnlyPositions

from leeward import DistributionalPPO

SEEDS = (10, 11, 12)
WITHOUT_VELOCITIES = TASKS["cartpole"].settings | {"policy_kwargs": RECURRENT_NET}
PENDULUM = {"n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "learning_rate": 1e-3}


def score(
    env_id: str, wrapper: Any, n_envs: int, policy: str, steps: int, seed: int, settings: dict[str, Any]
) -> float:
    env = VecNormalize(make_vec_env(env_id, n_envs, seed=seed, wrapper_class=wrapper), gamma=settings["gamma"])
    model = DistributionalPPO(policy, env, seed=seed, **settings).learn(steps)
    fresh = VecNormalize(
        make_vec_env(env_id, 10, seed=10_000 + seed, wrapper_class=wrapper), training=False, norm_reward=False
    )
    sync_envs_normalization(env, fresh)
    return float(evaluate_policy(model, fresh, n_eval_episodes=100, deterministic=True)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="store the table beside this script")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| what | setting | median | by seed |", "|---|---|---|---|"]

    def add(what: str, setting: str, scores: list[float]) -> None:
        each = ", ".join(f"{value:.0f}" for value in scores)
        lines.append(f"| {what} | {setting} | {statistics.median(scores):.0f} | {each} |")
        print(lines[-1], flush=True)

    for length in (8, 32):
        settings = WITHOUT_VELOCITIES | {"sequence_length": length}
        found = [score("CartPole-v1", OnlyPositions, 8, "MlpLstmPolicy", 100_000, seed, settings) for seed in SEEDS]
        add("CartPole without velocities", f"sequence_length {length}", found)
    for kind in ("gaussian", "squashed"):
        settings = PENDULUM | {"action_distribution": kind, "batch_size": 128}
        found = [score("Pendulum-v1", None, 4, "MlpPolicy", 60_000, seed, settings) for seed in SEEDS]
        add("Pendulum-v1, no gSDE", f"action_distribution {kind}", found)
    table = "\n".join(["# Defaults", "", "`python benchmarks/learning/defaults.py --write`", "", *lines, ""])
    if arguments.write:
        pathlib.Path(__file__).with_name("RESULTS_defaults.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
