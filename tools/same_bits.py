"""Does a change leave training as it was? Short runs of every kind, and a fingerprint of the weights each ends with.

    python -m tools.same_bits FILE [WORD ...]         write the fingerprints of all runs, or of those with a word
    python -m tools.same_bits FILE --of CHECKOUT      the same with the package of another checkout
    python -m tools.same_bits --compare FILE FILE     say which runs differ, in weights or in metrics

Envs come from this checkout, so that two versions of the package meet the same ones.
"""

import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def cases() -> dict[str, Callable[[], Any]]:
    """Every run, by name; what it needs is imported here, after the package has been chosen."""
    import numpy as np
    import torch
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    from tests.support import risk_markets as markets
    from tests.support.staggered_envs import Staggered

    from leeward import DistributionalPPO
    from leeward.optim import UPGD, UPGDW, AdaptiveUPGD

    names = {"vector": "Mlp", "dict": "MultiInput", "image": "Cnn"}

    class Masked(Staggered):
        def action_masks(self) -> Any:
            masks = np.ones(3, dtype=bool)
            masks[self.rng.integers(3)] = False
            return masks

    def maker(index: int, kind: type[Staggered], **kwargs: Any) -> Callable[[], Any]:
        return lambda: Monitor(kind(index, **kwargs))

    def small(
        memory: str | None = "lstm", seen: str = "vector", action: str = "box", *, envs: int = 3, rollouts: int = 3,
        masked: bool = False, normalised: bool = False, taught: bool = False, network: Any = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        kind = Masked if masked else Staggered
        functions = [maker(i, kind, observation=seen, action=action) for i in range(envs)]
        env: Any = functions if kwargs.get("n_jobs", 1) > 1 else DummyVecEnv(functions)
        settings: dict[str, Any] = {"net_arch": [7]}
        settings |= {"lstm_hidden_size": 8, "cell": memory} if memory else {}
        settings |= {"features_extractor_kwargs": {"features_dim": 16}} if seen == "image" else {}
        arguments: dict[str, Any] = {
            "n_steps": 23, "batch_size": 20, "n_epochs": 2, "sequence_length": 6, "n_quantiles": 9, "n_atoms": 11,
            "n_target_samples": 4, "seed": 3, "device": "cpu",
        } | kwargs  # fmt: skip
        model = DistributionalPPO(
            names[seen] + ("LstmPolicy" if memory else "Policy"),
            VecNormalize(env) if normalised else env,
            policy_kwargs=settings | (network or {}),
            **arguments,
        )
        torch.nn.init.orthogonal_(model.policy.action_head.net.weight)
        if taught:
            rng = np.random.default_rng(0)
            shown = rng.normal(size=(50, 5)).astype(np.float32), rng.uniform(-1, 1, size=(50, 2)).astype(np.float32)
            model.pretrain(*shown, epochs=2, batch_size=16)
        return model.learn(rollouts * 23 * envs)

    def task(name: str, policy: str, envs: int, **settings: Any) -> Any:
        env = make_vec_env(name, envs, seed=0)
        env = VecNormalize(env, gamma=settings["gamma"]) if policy == "MlpLstmPolicy" else env
        return DistributionalPPO(policy, env, seed=0, **settings).learn(12_000)

    def limited(market: Any, env: Any, share: float, envs: int, policy: str = "MlpPolicy", **kwargs: Any) -> Any:
        risk = {"limit": share * market.tail} | kwargs.pop("risk", {})
        kwargs = {"gamma": 0.0} | kwargs
        model = DistributionalPPO(policy, env(market, envs, seed=0), seed=0, risk=risk, **kwargs)
        return model.learn(3 * envs * 128)

    def falls(start: float) -> Callable[[float], float]:
        return lambda remaining: 1e-3 * start + start * remaining

    cart = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20}
    swing = {"n_steps": 1024, "gamma": 0.9, "learning_rate": 1e-3, "use_sde": True, "sde_sample_freq": 4}
    recurrent = {"lstm_hidden_size": 64, "net_arch": [64], "ortho_init": False}
    lstm = {"lstm_hidden_size": 32}
    runs: dict[str, Callable[[], Any]] = {
        "cartpole": lambda: task("CartPole-v1", "MlpPolicy", 8, **cart, learning_rate=falls(1e-3)),
        "cartpole with memory": lambda: task("CartPole-v1", "MlpLstmPolicy", 8, **cart, policy_kwargs=recurrent),
        "pendulum": lambda: task("Pendulum-v1", "MlpLstmPolicy", 4, **swing, policy_kwargs=recurrent),
        "gaussian": lambda: limited(markets.GaussianMarket(), markets.GaussianEnv, 0.5, 16),
        "crash": lambda: limited(markets.CrashMarket(), markets.CrashEnv, 0.5, 128),
        "pair": lambda: limited(markets.PairMarket(), markets.PairEnv, 0.5, 16),
        "episode": lambda: limited(
            markets.EpisodeMarket(), markets.EpisodeEnv, 0.5, 64, gamma=1.0, risk={"measure": "episode_return"}
        ),
        "regimes": lambda: limited(
            markets.RegimeMarket(), markets.RegimeEnv, 0.4, 16, "MlpLstmPolicy", policy_kwargs=lstm
        ),
        "deployed": lambda: limited(markets.GaussianMarket(), markets.GaussianEnv, 0.5, 16, risk={"binds": "deployed"}),
    }
    clips = ("mean_only", "mean_and_variance", "per_quantile")
    variants: dict[str, dict[str, Any]] = {
        "huber": {"kappa": 0.7, "levels": "uniform"}, "awr": {"awr": {}},
        "kl penalty": {"kl_penalty": {"target": 1e-4}, "learning_rate": 3e-3},
        "kl stop": {"target_kl": 1e-3, "learning_rate": 3e-3}, "vgs": {"vgs": {"warmup": 3}},
        "vgs by norm": {"vgs": {"warmup": 3, "mode": "norm", "per_tensor": True}},
        "adamw": {"network": {"optimizer_class": torch.optim.AdamW, "optimizer_kwargs": {"weight_decay": 0.01}}},
        "sgd": {"network": {"optimizer_class": torch.optim.SGD}, "critic_learning_rate": 1e-2},
        "upgd": {"network": {"optimizer_class": UPGD}}, "upgdw": {"network": {"optimizer_class": UPGDW}},
        "adaptive upgd": {"network": {"optimizer_class": AdaptiveUPGD}},
        "adversary": {"adversary": {"warmup": 1, "epsilon_end": 0.2, "value_weight": 0.1}},
        "adversary, categorical": {"critic": "categorical", "adversary": {"method": "sgld", "norm": "l2"}},
        "masks": {"action": "discrete", "masked": True}, "dict": {"seen": "dict", "action": "multidiscrete"},
        "image": {"seen": "image", "action": "multibinary", "memory": None},
        "image, gru": {"seen": "image", "memory": "gru", "network": {"share_features_extractor": False}},
        "shared lstm": {"network": {"shared_lstm": True, "enable_critic_lstm": False}},
        "two layers, dropout": {"network": {"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.2}}},
        "burn-in, refresh": {"burn_in": 3, "refresh_memory": True}, "micro-batches": {"micro_batch_size": 7},
        "sde": {"use_sde": True, "sde_sample_freq": 4},
        "squashed": {"action_distribution": "squashed", "ent_coef": 0.01},
        "entropy": {"ent_coef": 0.02, "entropy": {"end": 0.0, "std_scale_end": 0.5}, "rollouts": 5},
        "plateau": {"ent_coef": 0.02, "entropy": {"end": 0.0, "plateau_updates": 2, "plateau_slope": 9}, "rollouts": 5},
        "per env": {"normalize_advantage": "per_env"}, "no clip": {"normalize_advantage": False, "max_grad_norm": None},
        "normaliser": {"network": {"normalize_observations": True}},
        "vecnormalize": {"normalised": True, "risk": {"limit": -0.5}},
        "two rates": {"critic_learning_rate": falls(1e-2)},
        "one minibatch": {"batch_size": None}, "measured": {"risk": {"alpha": 0.1}}, "taught": {"taught": True},
        "two limits": {"risk": [{"alpha": 0.2, "limit": -1.0}, {"measure": "episode_return", "limit": 1.0}]},
        "two processes": {"n_jobs": 2, "envs": 5, "critic": "categorical", "risk": {"alpha": 0.2, "limit": -1.0}},
    }  # fmt: skip
    for critic in ("quantile", "categorical", "scalar"):
        variants[critic] = {"critic": critic}
        variants[f"{critic}, one, without memory"] = {"critic": critic, "twin_critics": False, "memory": None}
        variants[f"{critic}, scalar targets"] = {"critic": critic, "value_targets": "scalar"}
        for mode in clips[:1] if critic == "categorical" else clips:
            clip = {"mode": mode, "radius": 0.01}
            variants[f"{critic}, {mode}"] = {"critic": critic, "value_clip": clip, "learning_rate": 3e-3}
    return runs | {name: lambda kwargs=kwargs: small(**kwargs) for name, kwargs in variants.items()}


def fingerprint(model: Any) -> dict[str, Any]:
    """Of weights and moments, whatever their names; and every metric of the last update."""
    import torch

    moments = [entry.values() for entry in model.policy.optimizer.state_dict()["state"].values()]
    tensors = [*model.policy.parameters(), *(v for each in moments for v in each if isinstance(v, torch.Tensor))]
    prints = sorted(hashlib.sha256(t.detach().cpu().contiguous().numpy().tobytes()).hexdigest() for t in tensors)
    metrics = {name: repr(value) for name, value in sorted(model.last_metrics.items())}
    return {"weights": hashlib.sha256("".join(prints).encode()).hexdigest()[:16], "metrics": metrics}


def record(path: Path, words: list[str]) -> None:
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = {}
    for name, run in cases().items():
        if not words or any(word in name for word in words):
            found[name] = fingerprint(run())
            print(f"{found[name]['weights']}  {name}", flush=True)
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")


def compare(first: Path, second: Path) -> int:
    """How many runs differ in weights; those and changed metrics are printed."""
    left, right = (json.loads(path.read_text(encoding="utf-8")) for path in (first, second))
    different = 0
    for name in right.keys() & left.keys():
        one, other = left[name], right[name]
        changed = [
            key
            for key in one["metrics"].keys() & other["metrics"].keys()
            if one["metrics"][key] != other["metrics"][key]
        ]
        new = sorted(one["metrics"].keys() ^ other["metrics"].keys())
        if one["weights"] != other["weights"]:
            different += 1
            print(f"{name}: other weights")
        elif changed or new:
            print(f"{name}: the same weights; metrics that changed: {sorted(changed)}, that came or went: {new}")
    print(f"{len(right.keys() & left.keys())} runs compared, {different} with other weights")
    return different


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--compare"]:
        return min(compare(Path(arguments[1]), Path(arguments[2])), 1)
    path, *words = arguments
    if "--of" in words:
        place = words.index("--of")
        source = Path(words[place + 1]).resolve() / "src"
        rest = words[:place] + words[place + 2 :]
        command = [sys.executable, "-m", "tools.same_bits", path, *rest]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(source)}, check=False).returncode
    record(Path(path), words)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
