"""What the agent sees and does: observations that say nothing or drown each other, and a policy that does one thing."""

from collections.abc import Iterator

import numpy as np
from gymnasium import spaces

from leeward.audit.engine.twins import Scene
from leeward.audit.findings import Fault
from leeward.maths.nested import Observation

__all__ = ["acts_in_more_than_one_way", "observations_say_something"]


def observations_say_something(scene: Scene) -> Iterator[Fault]:
    """Not all of it is constant, and no number is of another order of magnitude than a network expects."""
    seen = scene.collected.rollout.observations
    columns = dict(_columns(seen))
    if columns and all(float(values.std(0).max()) == 0.0 for values in columns.values()):
        yield Fault(
            "high",
            "The observation never changes",
            f"All {sum(values.shape[1] for values in columns.values())} numbers of it are the same at every step and "
            "in "
            "every env, so that nothing can be told apart.",
            "Look at what the env shows.",
        )
        return
    if scene.model.policy.observation_normaliser is not None:
        return  # the network sees them normalised
    large = scene.model.settings.health.threshold("observation_unscaled")
    for name, values in columns.items():
        size = np.sqrt(np.square(values, dtype=np.float64).mean(0))  # (F,)
        if values.dtype.kind == "f" and float(size.max()) > large:
            f = int(size.argmax())
            yield Fault(
                "medium",
                "A number of the observation is of another order of magnitude",
                f"Number {f}{name} has mean {values[:, f].mean():.4g} and standard deviation {values[:, f].std():.4g}; "
                "a "
                "network reads numbers near 1, and this one drowns the others.",
                "Scale it in the env, or set normalize_observations.",
            )


def _columns(observation: Observation) -> Iterator[tuple[str, np.ndarray]]:
    """(T·B, F) of each part, with a suffix for its name."""
    parts = observation.items() if isinstance(observation, dict) else [("", observation)]
    for name, part in parts:
        flat = part.flatten(0, 1).flatten(1) if part.ndim > 2 else part.flatten(0, 1)[:, None]
        yield f" of {name}" if name else "", flat.cpu().numpy()


def acts_in_more_than_one_way(scene: Scene) -> Iterator[Fault]:
    """Exploring, a policy tries something else now and then."""
    model, rollout = scene.model, scene.collected.rollout
    deployed = None if rollout.risk is None else rollout.risk.deployed
    actions = rollout.actions if deployed is None else rollout.actions[:, ~deployed]
    done = model.policy.action_head.to_env(actions.flatten(0, 1)).cpu().numpy().reshape(actions[..., 0].numel(), -1)
    if isinstance(model.action_space, spaces.Box):
        low, high = model.action_space.low.ravel(), model.action_space.high.ravel()
        span = np.where(np.isfinite(high - low), high - low, 1.0)
        shares = [float(np.mean(np.abs(done - row) <= 1e-3 * span)) for row in (np.median(done, axis=0), low, high)]
    else:
        _, counts = np.unique(done, axis=0, return_counts=True)
        shares = [float(counts.max()) / len(done)]
    always = model.settings.health.threshold("one_action")
    if max(shares) > always:
        yield Fault(
            "medium",
            "The policy always does the same",
            f"While it explores, {max(shares):.1%} of its actions are one: it learns nothing about any other.",
            "Raise ent_coef, lower learning_rate, or look whether every other action is punished.",
        )
