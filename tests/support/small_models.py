"""Models that train in milliseconds on any env, made as a user of Stable-Baselines3 makes them."""

from typing import Any

from leeward import DistributionalPPO

__all__ = ["build", "small", "states"]


def small(policy: str = "MlpLstmPolicy", **more: Any) -> dict[str, Any]:
    """Policy arguments of a network that trains in milliseconds."""
    kwargs: dict[str, Any] = {"net_arch": [8]} | more
    return kwargs | ({"lstm_hidden_size": 8} if "Lstm" in policy else {})


def build(policy: str, env: Any, **arguments: Any) -> DistributionalPPO:
    """A small model: 16 steps per rollout, two epochs, on the CPU."""
    kwargs = small(policy, **arguments.pop("policy_kwargs", {}))
    settings: dict[str, Any] = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3, "device": "cpu"}
    return DistributionalPPO(policy, env, policy_kwargs=kwargs, **(settings | arguments))


def states(model: DistributionalPPO) -> dict[str, Any]:
    """The state of every small owner of the engine, as plain data."""
    return {name: owner.state_dict() for name, owner in model.engine.owners().items()}
