"""Leeward's env with another learner, and Leeward's learner with another env; a tear sheet of the first.

python examples/other_learners.py [--steps 20000] [--out tear_sheet.html]
"""

import argparse
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

from leeward import DistributionalPPO
from leeward.env.sb3 import TradingVecEnv
from leeward.market import prepare
from leeward.report import tear_sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path("tear_sheet.html"))
    parser.add_argument("--draws", type=int, default=2_000)
    options = parser.parse_args()

    # Stable-Baselines3's PPO, trained on the first 65 % of the bars and shown everything after them.
    market = prepare()
    theirs = PPO("MlpPolicy", TradingVecEnv(market, 16, seed=0), n_steps=128, device="cpu", seed=0)
    theirs.learn(options.steps)
    unseen = str(market.bars.time[market.split("test").start])[:10]
    sheet = tear_sheet(
        theirs,
        market,
        path=options.out,
        name="PPO of Stable-Baselines3",
        unseen_from=unseen,
        n_draws=options.draws,
        n_offsets=options.draws,
    )
    print(f"Stable-Baselines3 on Leeward's env: {sheet}")

    # Leeward's learner on any other env.
    ours = DistributionalPPO("MlpPolicy", make_vec_env("CartPole-v1", 4, seed=0), n_steps=64, device="cpu", seed=0)
    ours.learn(min(options.steps, 2_000))
    outlook = ours.predict_distribution(ours.get_env().reset())
    print(f"Leeward on CartPole: expected return {float(outlook.mean[0]):.1f}")


if __name__ == "__main__":
    main()
