"""Faults from other people's bug reports, written down when the rules were fixed: how many does an alert name?

    OMP_NUM_THREADS=1 python benchmarks/health/unseen.py --write

Nine lists of ten. None of a list was of a kind that stood in the gallery (`tests/support/faults.py`) or in a list
before it then. Each row names the report. `THEN` is how many were named by the rules as they stood: after each list
rules were added for some of what was missed. The fourth to the seventh were chosen by somebody who had not seen the
rules; the eighth by somebody who had, by the order of a search.
"""

import copy
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.health.blind import EIGHTH, FIFTH, FOURTH, NINTH, SEVENTH, SIXTH
from tests.support.faults import (
    AT,
    Fault,
    Put,
    _bootstrap_from_the_reset,
    _every_target,
    _never_cleared,
    _one_env_object,
    _one_seed,
    _partly_blind,
    _statistics_lost,
    a_tenth,
    hooks,
    method,
    patch,
    rollout,
    setting,
    targets,
    train,
    weights,
)  # fmt: skip

from leeward import DistributionalPPO
from leeward.rollout.buffer import RolloutBuffer

HERE = Path(__file__).parent


def dropout_while_collecting(model: DistributionalPPO, stack: ExitStack) -> None:
    model.policy.actor_mlp.append(nn.Dropout(0.3))
    model.policy.actor_mlp.train()
    right: Callable[[bool], None] = model.policy.set_training_mode

    def wrong(mode: bool) -> None:
        right(mode)
        model.policy.actor_mlp.train()

    model.policy.set_training_mode = wrong  # type: ignore[method-assign]


def frozen_layer(model: DistributionalPPO) -> None:
    for parameter in model.policy.action_head.net.parameters():
        parameter.requires_grad_(False)


def later(marks: torch.Tensor) -> torch.Tensor:  # (T, B)
    return torch.cat((marks[1:], torch.zeros_like(marks[:1])))


def first_weights(model: DistributionalPPO, stack: ExitStack) -> None:
    """Rollouts are made with the weights that the policy has now, whatever it learns."""
    first = copy.deepcopy(model.policy.state_dict())

    def wrong(right: Callable[..., int], *arguments: Any) -> int:
        learned = copy.deepcopy(model.policy.state_dict())
        model.policy.load_state_dict(first)
        steps = right(*arguments)
        model.policy.load_state_dict(learned)
        return steps

    method(lambda m: m.collector, "collect", wrong)(model, stack)


def shown(change: Callable[[Any], None]) -> Put:
    """What the envs show is changed, (B, F), on its way to the learner."""

    def wrong(right: Callable[[], Any]) -> Any:
        observation, *rest = right()
        change(observation)
        return observation, *rest

    return method(lambda model: model.env, "step_wait", wrong)


def first_for_all(observation: Any) -> None:
    observation[:] = observation[0]


def first_memory(buffer: RolloutBuffer) -> None:
    for part in buffer.memories:
        part[:] = part[:1].clone()


def normalised(samples: torch.Tensor) -> torch.Tensor:
    return (samples - samples.mean()) / samples.std()


ANY = ("–",)
THIRD = (
    (Fault("advantages of values in another unit", patch("leeward.maths.returns.gae",
           lambda right, r, v, n, *ends, **k: right(r, v / 3.0, n / 3.0, *ends, **k)), "", ANY, 3),
     "marlbenchmark/on-policy#13"),
    (Fault("rollouts are made with old weights", first_weights, "", ANY, 3), "ray-project/ray#58697"),
    (Fault("every env shows what the first one sees", shown(first_for_all), "", ANY, 3),
     "Farama-Foundation/PettingZoo#262"),
    (Fault("a part of the observation is always 0", method(lambda m: m.env, "step_wait", _partly_blind), "", ANY, 20,
           updates=25), "cage-challenge/CybORG#16"),
    (Fault("actions arrive scaled to a tenth", method(lambda m: m.env, "step_async", a_tenth), "", ANY, 30,
           updates=40),
     "UoA-CARES/cares_reinforcement_learning#22"),
    (Fault("ends are bootstrapped like time limits", patch("leeward.maths.returns.gae",
           lambda right, r, v, n, terminated, ended, **k: right(r, v, n, torch.zeros_like(terminated), ended, **k)),
           "", ANY, 3), "RLinf/RLinf#661"),
    (Fault("every sequence begins with the first memory", rollout(first_memory), "", ANY, 3), "allenai/allenact#77"),
    (Fault("rewards do not arrive", rollout(lambda b: b.rewards.zero_()), "", ANY, 3),
     "hill-a/stable-baselines#1167"),
    (Fault("the env changes the actions it is given", rollout(lambda b: b.actions.mul_(0.5)), "", ANY, 3),
     "mees/calvin#29"),
    (Fault("values learn normalised returns", targets(lambda now, _: replace(now, samples=normalised(now.samples))),
           "", ANY, 3, setup={"n_steps": 192}), "luchris429/model-free-opponent-shaping#1"),
)  # fmt: skip
SECOND = (
    (Fault("actions are stored as they were clipped", rollout(lambda b: b.actions.clamp_(-2.0, 2.0)), "", ANY, 3),
     "thu-ml/tianshou#312"),
    (Fault("ends are read one step late", patch("leeward.maths.returns.gae",
           lambda right, r, v, n, terminated, ended, **k: right(r, v, n, later(terminated), later(ended), **k)),
           "", ANY, 3), "anthonytorlucci/rlevo#342"),
    (Fault("rewards are stored one step late", rollout(lambda b: b.rewards.copy_(b.rewards.roll(1, 0))), "", ANY, 3),
     "openai/spinningup#50"),
    (Fault("the weight of the KL penalty grows without bound", lambda model, stack: None, "", ANY, 60, at=1,
           updates=60, setup={"kl_penalty": {"target": 1e-12, "ceiling": 1e12}, "n_steps": 24}),
     "ray-project/ray#18492"),
    (Fault("every value is compared with every target", method(lambda m: m.policy.critic, "loss", _every_target),
           "", ANY, 30, updates=40), "RLinf/RLinf#1568"),
    (Fault("gradients are never cleared", _never_cleared, "", ANY, 30, updates=40), "huggingface/trl#583"),
    (Fault("observations are stored one step late", rollout(
        lambda b: b.observations.copy_(b.observations.roll(-1, 0))), "", ANY, 3), "leggedrobotics/rsl_rl#222"),
    (Fault("the normaliser's statistics are lost", weights(_statistics_lost), "", ANY, 3,
           setup={"policy_kwargs": {"normalize_observations": True}}), "kuds/mesozoic-labs#131"),
    (Fault("an epoch ends after its first minibatch", method(lambda m: m.engine.updater, "_turns",
           lambda right, *a: islice(right(*a), 1)), "", ANY, 3), "bmazoure/ppo_jax#1"),
    (Fault("no gradient reaches the standard deviation", hooks(
        lambda m: [m.policy.action_head.log_std], torch.zeros_like), "", ANY, 3, at=1), "rlworkgroup/garage#281"),
)  # fmt: skip
FIRST = (
    (Fault("bootstrap from the reset observation", rollout(_bootstrap_from_the_reset), "", ANY, 3),
     "Motphys/UniLab#236"),
    (Fault("advantages leak over a time limit", patch("leeward.maths.returns.gae",
           lambda right, r, v, n, terminated, ended, **k: right(r, v, n, terminated, terminated, **k)), "", ANY, 3),
     "Toni-SM/skrl#449"),
    (Fault("one env object in every slot", _one_env_object, "", ANY, 3), "DLR-RM/stable-baselines3#1151"),
    (Fault("every env has the same seed", _one_seed, "", ANY, 3), "openai/baselines#529, pfnet/pfrl#156"),
    (Fault("advantages normalised along the wrong axis", targets(
        lambda now, _: replace(now, advantages=torch.zeros_like(now.advantages))), "", ANY, 3),
     "tensorflow/agents#651"),
    (Fault("the mean of the advantages counts padding", patch("leeward.maths.advantage.normalise",
           lambda right, *a, **k: right(*a, **k) + 0.3), "", ANY, 3), "NovaSky-AI/SkyRL#1305"),
    (Fault("entropy bonus far too large", setting(ent_coef=2.0), "", ANY, 60, updates=80,
           setup={"n_steps": 24, "learning_rate": 3e-2}), "openai/baselines#371, tensorforce/tensorforce#738"),
    (Fault("rewards instead of returns", patch("leeward.maths.returns.gae",
           lambda right, *a, **k: right(*a, gamma=0.0, lam=0.0)), "", ANY, 3), "natolambert/rlhf-book#216"),
    (Fault("dropout is on while collecting", dropout_while_collecting, "", ANY, 3), "DLR-RM/stable-baselines3#535"),
    (Fault("a layer is left frozen", weights(frozen_layer), "", ANY, 3), "neuralmagic/sparseml#965"),
)  # fmt: skip


BLIND = (FOURTH, FIFTH, SIXTH, SEVENTH, EIGHTH, NINTH)
LISTS = tuple(
    zip(
        ("First", "Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh", "Eighth", "Ninth"),
        (FIRST, SECOND, THIRD, *BLIND),
        strict=True,
    )
)
THEN = (7, 4, 8, 5, 6, 5, 3, 4, 4)  # by the rules as they stood when the list was written


def main(write: bool) -> None:
    lines = [
        "# Faults of other kinds", "",
        "`python benchmarks/health/unseen.py --write`. Ten faults a list, after other people's reports, written down",
        f"while the rules were frozen. Each begins in update {AT}, or in the first where the report says so; named is",
        "by a warning or an error, so an info is not enough. After each list rules were added for some of what was",
        "missed: the tables are of the present rules, and what counts is how many were named then. The fourth list to",
        "the seventh and the ninth were chosen by somebody who had not seen the rules. The eighth was by somebody who",
        "had. To leave nothing to choice, both are the first ten reports, in their order, among the answers to general",
        "searches for silent faults of PPO, of rollouts, of envs, of advantages, of memory and of trading envs, that",
        "say what was wrong and are of no kind before. What is still missed (a feature that shows the reward to come,",
        "the last of four frames that pays alone, a goal that may be left behind, a state that is shown one step late,",
        "a stack of frames that begins with zeros, a normaliser of a scale of its own) leaves envs that might as well",
        "be meant so: no look at what they give can tell.",
    ]  # fmt: skip
    for (title, faults), then in zip(LISTS, THEN, strict=True):
        lines += ["", f"## {title} list", "", "| fault | report | named by | in update |", "|---|---|---|---|"]
        named = 0
        for fault, report in faults:
            story = train(fault, fault.setup, fault.updates)
            loud = [alert for alert in story.alerts if alert.severity != "info" and alert.update >= fault.at]
            named += bool(loud)
            names = ", ".join(dict.fromkeys(alert.name for alert in loud)) or story.error or "–"
            lines.append(f"| {fault.name} | {report} | {names} | {loud[0].update if loud else '–'} |")
            sys.stdout.write(f"{lines[-1]}\n")
            sys.stdout.flush()
        lines += ["", f"Named by the rules as they stood then: {then} of {len(faults)}; by the present ones: {named}."]
    if write:
        (HERE / "RESULTS_unseen.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
