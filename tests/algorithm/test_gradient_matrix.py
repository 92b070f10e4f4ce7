"""Every loss term × every parameter group of the real network: zero where it must be, non-zero where it must flow."""

from typing import Any

import numpy as np
import pytest
import torch

from leeward import DistributionalPPO
from leeward.algorithm.losses import (
    Coefficients,
    Losses,
    gather,
    policy_losses,
    prepare_value_targets,
    value_losses,
)
from leeward.algorithm.ppo import Collected
from leeward.algorithm.return_scale import UnitChange
from leeward.algorithm.state_adversary import StateAdversary
from leeward.config.learning import AWR, Adversary, ValueClip
from leeward.rollout.sequences import cut, minibatches

from ..support.models import build, coefficients, collect, learn, learn_keeping

ACTOR = {"actor_extractor", "extractor", "actor_memory", "actor_mlp", "action_head", "log_std"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "separate": {},
    "shared": {"policy_kwargs": {"shared_lstm": True, "enable_critic_lstm": False}},
    "no critic lstm": {"policy_kwargs": {"enable_critic_lstm": False}},
    "no memory": {"memory": None},
    "unshared extractors": {"policy_kwargs": {"share_features_extractor": False}},
}
HEADS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "squashed": {"action_distribution": "squashed"},
    "discrete": {"action": "discrete"},
    "gsde": {"use_sde": True},
}
# Images, so that the extractor has parameters of its own.
TERMS = (
    "surrogate",
    "entropy",
    "value 1",
    "value 2",
    "awr",
    "kl penalty",
    "cost value",
    "step",
    "robust kl",
    "value shift",
)
# Exploration does not fade: after so few rollouts every ratio would be clipped.
RISK = [{"alpha": 0.4, "limit": 0.0, "std_scale_end": 1.0}, {"alpha": 0.7, "cvar_weight": 0.5, "std_scale_end": 1.0}]


def terms_of(
    model: DistributionalPPO, collected: Collected, change: UnitChange, critic_clip: str
) -> dict[str, torch.Tensor]:
    """Each term by itself, on all rows of a rollout that the policy has since moved away from."""
    buffer, learned_from, policy = collected.rollout, collected.targets, model.policy
    weights = coefficients(ValueClip(mode=critic_clip), kl_penalty=1.0, awr=AWR())
    targets = prepare_value_targets(policy.critic, learned_from.samples, change, weights)
    sequences = cut(buffer.starts.numpy(), model.engine.plan(None).sequence_length)
    batch = next(minibatches(sequences, 3, None, np.random.default_rng(0), torch.device("cpu")))
    times, envs = (torch.as_tensor(x)[batch.sequences] for x in (sequences.times, sequences.envs))
    rows = gather(buffer, learned_from.advantages, batch)
    memory = buffer.memory_before(times, envs)

    assert model.engine.risk_control is not None and learned_from.risk is not None
    risk = model.engine.risk_control.encode(buffer, learned_from.risk.costs)

    def losses(weights: Coefficients, silence: str = "") -> Losses:
        actor, critic = policy.evaluate(rows.observations, rows.actions, memory, rows.action_masks)
        assert critic.risk is not None
        if silence:  # of the two losses of the risk heads, the other one alone
            still = {silence: getattr(critic.risk, silence).detach()}
            critic = critic._replace(risk=critic.risk._replace(**still))
        value = value_losses(policy, rows, critic, targets, weights, risk)
        return Losses(policy_losses(policy, rows, actor, weights), value)

    # A radius at which the perturbed rows differ from the clean ones by more than rounding.
    adversary = StateAdversary(policy, Adversary(epsilon=0.1, value_weight=1.0))
    attack = adversary.begin(buffer.rewards.numel(), 0.0, torch.Generator().manual_seed(0), 0)
    assert attack is not None
    found = losses(weights)
    plain = losses(Coefficients(**{**vars(weights), "awr": None, "kl_penalty": 1.0}))
    return {
        "surrogate": found.policy.surrogate,
        "entropy": found.policy.loss - found.policy.policy,
        "value 1": found.value.per_critic[0],
        "value 2": found.value.per_critic[1],
        "awr": found.policy.awr,
        "kl penalty": plain.policy.policy - plain.policy.surrogate,
        "cost value": losses(weights, "step").value.risk,
        "step": losses(weights, "costs").value.risk,
        "robust kl": attack.robust_kl(rows, memory)[0],
        "value shift": attack.value_shift(rows, memory),
    }


def expected_groups(term: str, layout: str, head: str, groups: set[str]) -> set[str]:
    if term in ("cost value", "step"):  # heads that read the critic's features and train nothing else
        return {"cost_mlp", "cost_heads"} if term == "cost value" else {"step_mlp", "step_head"}
    if term.startswith("value"):
        critics = "12" if term == "value shift" else term[-1]
        own = {f"critic{i}_{part}" for i in critics for part in ("mlp", "head")}
        if layout == "shared":  # the critics read the actor's memory without training it
            return own
        return own | ({"critic_memory", "critic_extractor", "extractor"} & groups)
    if term == "entropy" and head in ("gaussian", "gsde"):  # gSDE reads the latent without training it, as in SB3
        return {"log_std"}
    return ACTOR & groups


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_term_reaches_its_own_parameters_and_no_others(layout: str, head: str) -> None:
    clip = "mean_only" if head == "squashed" else "disable"
    settings: dict[str, Any] = LAYOUTS[layout] | {"action_distribution": "gaussian"} | HEADS[head]
    model = build(observation="image", n_steps=11, learning_rate=3e-4, gain=0.5, risk=RISK, **settings)
    collected, change = learn_keeping(model, 2)
    groups = model.policy.parameter_groups()
    listed = [id(p) for group in groups.values() for p in group]
    assert sorted(listed) == sorted(id(p) for p in model.policy.parameters())  # each once, none forgotten
    terms = terms_of(model, collected, change, clip)
    assert set(terms) == set(TERMS)
    for term, value in terms.items():
        flows = expected_groups(term, layout, head, set(groups))
        gradients = torch.autograd.grad(
            value, [p for g in groups.values() for p in g], allow_unused=True, retain_graph=True
        )
        found = iter(gradients)
        for name, group in groups.items():
            norms = [0.0 if g is None else float(g.abs().max()) for g in (next(found) for _ in group)]
            if name in flows:
                assert max(norms) > 1e-7, f"{term} does not reach {name}"
                # Every tensor of the group learns, not just one of them.
                assert min(norms) > 0.0, f"{term} does not reach all of {name}: {norms}"
            else:
                assert max(norms) == 0.0, f"{term} leaks into {name}"


def test_an_update_moves_every_parameter_of_the_network() -> None:
    model = build(observation="image", n_steps=11, risk=RISK)
    before = [p.detach().clone() for p in model.policy.parameters()]
    learn(model, 1)
    for (name, p), old in zip(model.policy.named_parameters(), before, strict=True):
        assert not torch.equal(p, old), name
    collect(model)
