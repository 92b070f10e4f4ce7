"""Do returns come as the critic says, on other people's tasks? Of the final policy, as it explores.

    python benchmarks/learning/calibration.py --all               what is missing, in order
    python benchmarks/learning/calibration.py --table [--write]   the table of all stored runs

Agents are trained as in `run.py`. Then the final policy plays fresh episodes, and at every step the predicted quantiles
stand beside the discounted return that came, in the unit that was trained on. Values look beyond a time limit, so here
an episode goes on behind it; predictions count that were made before it, where training has been, and of these those
where what was not seen any more weighs 5 % at most.

- `gap`: mean distance of a quantile's level from the share of returns at or below it; 0.25 for a critic that knows
  the median alone
- `below 5 %`: the share of returns at or below the quantile of the level 0.05
- `error`: root mean square of return − predicted mean, over the standard deviation of the returns
"""

import pathlib
import statistics
import sys

import gymnasium
import numpy as np
from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from benchmarks.learning.run import form, train
from benchmarks.learning.tasks import JUDGING, Task
from benchmarks.stored import Row, Stored, command_line

from leeward import DistributionalPPO
from leeward.backtest.calibration import coverage, coverage_error

HERE = pathlib.Path(__file__).parent
RESULTS, PAGE = HERE / "results_calibration.jsonl", HERE / "RESULTS_calibration.md"
PLAYED = (
    "repeat_previous",
    "lunar_lander",
    "hopper",
    "half_cheetah",
)  # which draw anew at every step, as `predict` does
SEEDS = range(3)
N_ENVS, STEPS = 64, 4000
NEGLIGIBLE = 0.05


def discounted(
    rewards: np.ndarray, terminated: np.ndarray, ended: np.ndarray, gamma: float
) -> tuple[np.ndarray, np.ndarray]:  # (T, B) -> (T, B), (T, B)
    """Returns to the end of an episode, or to the last row, and how much what lies behind that would weigh."""
    returns, behind = np.zeros_like(rewards), np.zeros_like(rewards)
    following, weight = np.zeros(rewards.shape[1]), np.ones(rewards.shape[1])
    for t in reversed(range(len(rewards))):
        following = np.where(ended[t], 0.0, following)
        weight = np.where(terminated[t], 0.0, np.where(ended[t], 1.0, weight))
        returns[t] = following = rewards[t] + gamma * following
        behind[t] = weight = gamma * weight
    return returns, behind


def ages(ended: np.ndarray) -> np.ndarray:  # (T, B) -> (T, B)
    """How many steps of its episode lie before each."""
    found = np.zeros(ended.shape, int)
    for t in range(1, len(ended)):
        found[t] = np.where(ended[t - 1], 0, found[t - 1] + 1)
    return found


def play(model: DistributionalPPO, task: Task, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Levels (N,), predicted quantiles (n, N) and means (n,), and the returns that came (n,)."""
    envs, training = task.testing(10_000 + 100 * seed, N_ENVS, time_limit=False), model.get_env()
    normaliser = training if isinstance(training, VecNormalize) else None
    if isinstance(envs, VecNormalize):
        assert normaliser is not None
        sync_envs_normalization(normaliser, envs)
    model.policy.set_training_mode(False)
    limit = gymnasium.spec(task.env).max_episode_steps or np.inf
    observation, state, starts = envs.reset(), None, np.ones(N_ENVS, bool)
    quantiles, means, rewards, terminated, ended = [], [], [], [], []
    for _ in range(STEPS):
        assert isinstance(observation, np.ndarray)
        outlook = model.policy.predict_distribution(observation, state, starts)
        action, state = model.predict(observation, state=state, episode_start=starts)
        observation, reward, starts, infos = envs.step(action)
        quantiles.append(outlook.quantiles)
        means.append(outlook.mean)
        rewards.append(reward if normaliser is None else normaliser.normalize_reward(reward))
        ended.append(starts)
        terminated.append(starts & ~np.array([info.get("TimeLimit.truncated", False) for info in infos]))
    returns, behind = discounted(np.array(rewards, float), np.array(terminated), np.array(ended), model.settings.gamma)
    known = (behind <= NEGLIGIBLE) & (ages(np.array(ended)) < limit)
    return outlook.levels, np.array(quantiles)[known], np.array(means)[known], returns[known]


def run(name: str, seed: int) -> Row:
    model = train("leeward", JUDGING[name], seed)
    assert isinstance(model, DistributionalPPO)
    levels, quantiles, means, returns = play(model, JUDGING[name], seed)
    five = int(np.abs(levels - 0.05).argmin())
    return {
        "gap": round(coverage_error(levels, quantiles, returns), 4),
        "level": round(float(levels[five]), 4),
        "below": round(float(coverage(quantiles, returns)[five]), 4),
        "error": round(float(np.sqrt(((returns - means) ** 2).mean()) / returns.std()), 3),
        "returns": len(returns),
    }


def table() -> str:
    lines = [
        "# Do returns come as the critic says?",
        "",
        "`python benchmarks/learning/calibration.py --table --write`",
        "",
    ]
    lines += (__doc__ or "").partition("\n\n    ")[2].partition("\n\n")[2].splitlines()
    lines += ["", "| task | gap, median | by seed | below its 5 % | error | returns |", "|---|---|---|---|---|---|"]
    rows = Stored(RESULTS).rows
    for name in PLAYED:
        found = sorted((row for row in rows if row["task"] == name), key=lambda row: row["seed"])
        if found:
            gaps, below, errors, counts = ([row[key] for row in found] for key in ("gap", "below", "error", "returns"))
            lines.append(
                f"| {name} | {statistics.median(gaps):.3f} | {', '.join(f'{gap:.3f}' for gap in gaps)} "
                f"| {', '.join(f'{share:.1%}' for share in below)} | {', '.join(form(error) for error in errors)} "
                f"| {', '.join(f'{count:,}' for count in counts)} |"
            )
    return "\n".join([*lines, ""])


def everything() -> None:
    stored = Stored(RESULTS)
    for seed in SEEDS:
        for name in PLAYED:
            stored.ensure(lambda name=name, seed=seed: run(name, seed), task=name, seed=seed)  # type: ignore[misc]


if __name__ == "__main__":
    command_line(__doc__, table, PAGE, {"all": everything})
