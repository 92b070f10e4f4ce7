"""The model part of an audit, of any `DistributionalPPO` on any env: the learning chain and nothing else."""

from collections.abc import Callable
from typing import Any

from stable_baselines3.common.vec_env import VecEnv

from leeward.algorithm.ppo import DistributionalPPO
from leeward.audit.checks import Check, Parts, run_checks
from leeward.audit.engine import alerts, behaviour, gradients, options, recomputed, record, state
from leeward.audit.engine.twins import kept_random_state, play, twins_of
from leeward.audit.findings import Audit

__all__ = ["CHECKS", "MAKERS", "model"]

CHECKS = (
    Check("alerts", "which alerts fired, and why?", ("alerts",), alerts.alerts_tell),
    Check("rollout", "does a rollout hold what the envs gave?", ("scene", "replay"), record.record_agrees),
    Check("network", "are stored values and probabilities the network's?", ("scene", "replay"), record.network_agrees),
    Check("ratio", "is every ratio 1 before the first step?", ("scene",), gradients.ratio_is_one),
    Check("advantages", "are advantages what GAE says, in float64?", ("scene",), recomputed.advantages_agree),
    Check("normalisation", "are they priced and normalised once?", ("scene",), recomputed.weights_agree),
    Check("tail", "is the measured tail the mean of the worst outcomes?", ("scene",), recomputed.tail_agrees),
    Check("targets", "are value targets samples of the return?", ("scene",), recomputed.targets_agree),
    Check("losses", "are the losses what their equations give, in float64?", ("lesson",), recomputed.losses_agree),
    Check(
        "gradients", "does each loss reach its own part of the network alone?", ("lesson",), gradients.gradients_flow
    ),
    Check("learning", "does an update move every part, both critics too?", ("twins",), gradients.everything_learns),
    Check("observations", "does what it sees say something?", ("scene",), behaviour.observations_say_something),
    Check("actions", "does it try more than one thing?", ("scene",), behaviour.acts_in_more_than_one_way),
    Check("unit", "do predictions stay when the unit of the return moves?", ("twins",), state.unit_moves_nothing),
    Check("checkpoint", "does a file bring everything back?", ("twins", "model"), state.file_brings_back),
    Check("determinism", "does the same beginning give the same end?", ("twins",), state.same_twice),
    Check("idle_settings", "is every setting read by somebody?", ("model",), options.idle_settings),
)

# What the checks look at, made of "twins"; "model" is one of them.
MAKERS: dict[str, Callable[[Parts], Any]] = {
    "model": lambda parts: parts.get("twins").model(),
    "scene": lambda parts: play(parts.get("twins")),
    "replay": lambda parts: record.replay(parts.get("scene")),
    "lesson": lambda parts: recomputed.lesson(parts.get("twins")),
}


def model(
    model: DistributionalPPO, env: VecEnv | None = None, progress: Callable[[str], None] = lambda name: None
) -> Audit:
    """Look at a model; it and its envs stay as they are.

    What is done is done to copies. Where the model's own envs cannot be copied (they run in other processes, or hold
    something that cannot), pass others of the same kind as `env`.
    """
    own: dict[str, Callable[[Parts], Any]] = {
        "model": lambda parts: model,
        "twins": lambda parts: twins_of(model, env),
        "alerts": lambda parts: [alert.as_dict() for alert in model.alerts],
    }
    with kept_random_state():
        return run_checks(CHECKS, Parts(MAKERS | own), progress)
