"""For Stable-Baselines3 users: change one import, keep the rest.

    python examples/swap_the_import.py [--steps 30000]

Trains on CartPole without velocities (an agent without memory cannot solve it), with SB3's own envs, callbacks
and evaluation; then reads what SB3 does not have: the distribution of the return.
"""

import argparse
import tempfile
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium.wrappers import TransformObservation
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from leeward import DistributionalPPO  # was: from sb3_contrib import RecurrentPPO


def without_velocities() -> gymnasium.Env:
    env = gymnasium.make("CartPole-v1")
    places = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    return TransformObservation(env, lambda seen: seen[[0, 2]], places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30_000)
    steps = parser.parse_args().steps
    env, test_env = make_vec_env(without_velocities, n_envs=8, seed=0), make_vec_env(without_velocities, seed=1)

    model = DistributionalPPO(
        "MlpLstmPolicy",
        env,
        n_steps=128,
        batch_size=256,
        learning_rate=1e-3,
        policy_kwargs={"lstm_hidden_size": 64},
        seed=0,
    )
    with tempfile.TemporaryDirectory() as folder:
        best = EvalCallback(test_env, best_model_save_path=folder, eval_freq=steps // 40, n_eval_episodes=5, verbose=0)
        model.learn(steps, callback=best)
        model = DistributionalPPO.load(Path(folder) / "best_model", env=env)  # safetensors and JSON, no pickle

    mean, std = evaluate_policy(model, test_env, n_eval_episodes=20)
    print(f"reward of the best model over 20 episodes: {mean:.0f} ± {std:.0f} (at most 500)")

    seen, state, start = test_env.reset(), None, np.ones(1, dtype=bool)
    for step in range(60):
        if step % 20 == 0:
            outlook = model.predict_distribution(seen, state=state, episode_start=start)
            print(
                f"step {step:2d}: discounted return from here: mean {outlook.mean[0]:5.1f}, "
                f"worst 5 % {outlook.cvar(0.05)[0]:5.1f}"
            )
        action, state = model.predict(seen, state=state, episode_start=start, deterministic=True)
        seen, _, start, _ = test_env.step(action)


if __name__ == "__main__":
    main()
