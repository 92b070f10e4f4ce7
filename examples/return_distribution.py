"""For RL researchers: PPO that knows the whole distribution of its return, on any Gymnasium env.

    python examples/return_distribution.py [--env Acrobot-v1] [--steps 60000] [--critic quantile]

Trains for half a minute, then plays fresh episodes with the policy as it acts (stochastic) and compares what the critic
predicted in each state with the return that followed. Calibrated means: the return falls below the predicted q-quantile
in a share q of the states, in the tail too. The learning rate falls to 0, because a distribution is always that of one
policy: while the policy still improves, the critic runs behind it.
"""

import argparse

import numpy as np
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

from leeward import DistributionalPPO

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
ENVS, PLAYED = 16, 1500


def play(model: DistributionalPPO, env_id: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predicted quantiles (n, levels), predicted means (n,) and the discounted returns (n,) that followed."""
    env = make_vec_env(env_id, n_envs=ENVS, seed=1000)
    seen, state, start = env.reset(), None, np.ones(ENVS, dtype=bool)
    quantiles, means, rewards, ended, cut = [], [], [], [], []
    for _ in range(PLAYED):
        outlook = model.predict_distribution(seen, state=state, episode_start=start)
        quantiles.append(np.stack([outlook.var(level) for level in LEVELS], -1))
        means.append(outlook.mean)
        action, state = model.predict(seen, state=state, episode_start=start)
        seen, reward, start, infos = env.step(action)
        rewards.append(reward)
        ended.append(start)
        cut.append([bool(info.get("TimeLimit.truncated", False)) for info in infos])
    # Backwards; a return is unknown (NaN) where the episode's own end was not seen.
    following = np.full(ENVS, np.nan)
    returns = np.empty((PLAYED, ENVS))
    for t in reversed(range(PLAYED)):
        following = np.where(cut[t], np.nan, np.where(ended[t], 0.0, following))
        returns[t] = following = rewards[t] + model.gamma * following
    known = np.isfinite(returns)
    return np.stack(quantiles)[known], np.stack(means)[known], returns[known]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="Acrobot-v1")
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--critic", default="quantile", choices=["quantile", "categorical"])
    arguments = parser.parse_args()

    env = make_vec_env(arguments.env, n_envs=ENVS, seed=0)
    model = DistributionalPPO(
        "MlpPolicy",
        env,
        critic=arguments.critic,
        n_steps=128,
        batch_size=256,
        n_epochs=5,
        learning_rate=LinearSchedule(1e-3, 0.0, 1.0),
        seed=0,
    )
    model.learn(arguments.steps)

    quantiles, means, returns = play(model, arguments.env)
    if len(returns) == 0:
        raise SystemExit(f"no episode ended by itself in {PLAYED} steps, so no whole return is there to compare with")
    print(
        f"{len(returns)} states whose return is known; mean return {returns.mean():.2f}, predicted {means.mean():.2f}"
    )
    print("  level   share of returns below the predicted quantile")
    for i, level in enumerate(LEVELS):
        print(f"  {level:5.2f}   {(returns < quantiles[:, i]).mean():5.3f}")


if __name__ == "__main__":
    main()
