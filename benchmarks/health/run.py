"""False alarms: thirty healthy runs and the demo, and what the health rules say of them.

    OMP_NUM_THREADS=1 python benchmarks/health/run.py --all

CartPole, Pendulum, Acrobot, tasks that need a memory, and 20 seeds of the demo's markets, with and without a limit,
with both critics. Every run is a line of `results.jsonl`; RESULTS.md counts the alerts. Thresholds were set on seeds
below 20; these runs have others.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.learning.tasks import OnlyPositions, linear
from benchmarks.stored import Stored
from tests.support.cue_tasks import Cue

from leeward import DistributionalPPO
from leeward.config.load import load_config
from leeward.env.sb3 import TradingVecEnv
from leeward.market import prepare
from leeward.training.trainer import make_model

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CRITICS = ("quantile", "categorical")
DEMO_STEPS, TRADING_STEPS = 300_000, 100_000
FRESH = 70  # no threshold was set on this seed or a later one
Row = dict[str, Any]


def alerts_of(model: DistributionalPPO) -> Row:
    told = [[alert.name, alert.severity, alert.update, alert.metric, alert.value] for alert in model.alerts]
    return {"updates": model.n_rollouts, "alerts": told, "score": model.last_metrics.get("rollout/ep_rew_mean")}


def classic(task: str, critic: str) -> Row:
    """The settings of RL-Zoo, as far as they go."""
    common: dict[str, Any] = {"critic": critic, "seed": FRESH, "device": "cpu"}
    if task == "CartPole-v1":
        env: Any = make_vec_env(task, 8, seed=FRESH)
        zoo = {"n_steps": 32, "batch_size": 256, "n_epochs": 20, "gamma": 0.98, "gae_lambda": 0.8}
        falling = {"learning_rate": linear(1e-3), "clip_range": linear(0.2)}
        model = DistributionalPPO("MlpPolicy", env, **zoo, **falling, **common)
        return alerts_of(model.learn(40_000))
    if task == "Pendulum-v1":
        env = make_vec_env(task, 4, seed=FRESH)
        model = DistributionalPPO("MlpPolicy", env, n_steps=1024, batch_size=64, gamma=0.9, learning_rate=1e-3,
                                  use_sde=True, sde_sample_freq=4, **common)  # fmt: skip
        return alerts_of(model.learn(40_000))
    if task == "Acrobot-v1":
        env = VecNormalize(make_vec_env(task, 16, seed=FRESH), gamma=0.99)
        model = DistributionalPPO("MlpPolicy", env, n_steps=256, batch_size=128, n_epochs=4, gae_lambda=0.94, **common)
        return alerts_of(model.learn(80_000))
    if task == "CartPole without velocities":
        env = make_vec_env("CartPole-v1", 8, seed=FRESH, wrapper_class=OnlyPositions)
        model = DistributionalPPO("MlpLstmPolicy", env, n_steps=50, batch_size=128, gamma=0.99, learning_rate=7e-4,
                                  ent_coef=0.0, policy_kwargs={"lstm_hidden_size": 64}, **common)  # fmt: skip
        return alerts_of(model.learn(50_000))
    env = DummyVecEnv([lambda i=i: Monitor(Cue("Discrete", "vector", True, 100 + i)) for i in range(8)])  # type: ignore[misc]
    model = DistributionalPPO("MlpLstmPolicy", env, n_steps=48, batch_size=96, learning_rate=3e-3, gamma=0.9,
                              policy_kwargs={"lstm_hidden_size": 16, "net_arch": [16]}, **common)  # fmt: skip
    return alerts_of(model.learn(20_000))


TASKS = ("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "CartPole without velocities", "cue to remember")


def trading(place: int) -> Row:
    """The demo's market or the control's; every second place with a limit, both critics, with memory and without."""
    limit = "-0.02" if place % 2 else "null"
    settings = [f"risk.limit={limit}", f"ppo.critic={CRITICS[place // 4 % 2]}", f"seed={FRESH + place}"]
    settings += [f"ppo.total_steps={DEMO_STEPS if place < 4 else TRADING_STEPS}"]
    if place >= 16:
        settings += ["policy.name=MlpLstmPolicy", "ppo.n_envs=16"]
    return market("demo.yaml" if place % 4 < 2 else "control.yaml", settings)


def market(name: str, settings: list[str]) -> Row:
    config = load_config(ROOT / "configs" / name, settings)
    env = TradingVecEnv(prepare(config.data), config.ppo.n_envs, config=config.env, seed=config.seed)
    model = make_model(config, env)
    return alerts_of(model.learn(config.ppo.total_steps)) | {"settings": settings}


def page(rows: list[Row]) -> str:
    counts: Counter[str] = Counter(alert[1] for row in rows for alert in row["alerts"])
    lines = [
        "# Health rules on healthy runs",
        "",
        "`OMP_NUM_THREADS=1 python benchmarks/health/run.py --all` makes the runs; each is a line of `results.jsonl`.",
        "Thresholds were set on other seeds of these tasks, and stood still while the runs were made.",
        "",
        f"{len(rows)} runs: {counts['error']} errors, {counts['warn']} warnings, {counts['info']} infos.",
        "",
        "| run | updates | errors and warnings | infos |",
        "|---|---|---|---|",
    ]
    for row in rows:
        loud = ", ".join(f"{a[0]} (update {a[2]}, {a[4]:.3g})" for a in row["alerts"] if a[1] != "info") or "–"
        quiet = ", ".join(f"{a[0]} ({a[2]})" for a in row["alerts"] if a[1] == "info") or "–"
        lines.append(f"| {row['run']} | {row['updates']} | {loud} | {quiet} |")
    return "\n".join(lines) + "\n"


def main(make: bool, words: list[str]) -> None:
    store = Stored(HERE / "results.jsonl")
    runs = [(f"{task}, {critic}", lambda t=task, c=critic: classic(t, c)) for task in TASKS for critic in CRITICS]
    runs += [(f"trading, seed {FRESH + place}", lambda p=place: trading(p)) for place in range(20)]
    runs += [("the demo", lambda: market("demo.yaml", []))]
    for name, run in runs:
        if make and all(word in name for word in words):
            store.ensure(run, run=name)
            sys.stdout.write(f"{json.dumps(store.find(run=name))}\n")
            sys.stdout.flush()
    (HERE / "RESULTS.md").write_text(page(store.rows), encoding="utf-8")


if __name__ == "__main__":
    main("--all" in sys.argv[1:], [word for word in sys.argv[1:] if word != "--all"])
