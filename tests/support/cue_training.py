"""The model that is trained on a cue task."""

from typing import Any

from leeward import DistributionalPPO

from .cue_tasks import Row, cue_envs

__all__ = ["train"]

POLICIES = {"vector": "Mlp", "Dict": "MultiInput", "image": "Cnn"}


def train(row: Row, seed: int, steps: int = 20_000) -> DistributionalPPO:
    """One set of hyper-parameters serves every row."""
    _, seen, memory, critic = row
    kwargs: dict[str, Any] = {"net_arch": [32]}
    if memory != "none":
        kwargs |= {"cell": memory, "lstm_hidden_size": 24}
    if seen == "image":
        kwargs |= {"features_extractor_kwargs": {"features_dim": 32}}
    return DistributionalPPO(
        POLICIES[seen] + ("Policy" if memory == "none" else "LstmPolicy"),
        cue_envs(row, seed),
        n_steps=48,
        batch_size=96,
        n_epochs=8,
        learning_rate=1e-3,
        gamma=0.5,
        ent_coef=0.003,
        critic=critic,
        policy_kwargs=kwargs,
        seed=seed,
        device="cpu",
    ).learn(steps)
