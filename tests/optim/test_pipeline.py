"""The actor's gradient and the critics' are clipped apart, whatever they share and whatever runs before."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leeward.algorithm.losses import gather, policy_losses, prepare_value_targets, value_losses
from leeward.optim.pipeline import GradientPipeline
from leeward.rollout.sequences import cut, minibatches

from ..support.models import build, collect, learn


class Doubling:
    """A stage that acts on each parameter's whole gradient."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.seen: list[Tensor] = []

    def apply(self) -> dict[Any, float]:
        for parameter in self.parameters:
            assert parameter.grad is not None
            self.seen.append(parameter.grad.clone())
            parameter.grad.mul_(2.0)
        return {}


def parts() -> tuple[nn.Parameter, nn.Parameter, nn.Parameter]:
    return tuple(nn.Parameter(torch.zeros(n)) for n in (2, 3, 4))


def pipeline(shares: bool = True, **kwargs: Any) -> tuple[GradientPipeline, nn.Parameter, nn.Parameter, nn.Parameter]:
    actor, critic, both = parts()
    made = GradientPipeline(
        [actor, critic, both], {}, critics=[critic], shared=[both] if shares else [], max_consecutive_skips=3, **kwargs
    )
    actor.grad, critic.grad = torch.full((2,), 3.0), torch.full((3,), 400.0)
    both.grad = torch.full((4,), 30.0)  # of the critics
    if shares:
        made.actor_shares[0].grad = torch.full((4,), -2.0)
    return made, actor, critic, both


def clipped(values: Tensor, norm: float) -> Tensor:
    return values * (norm / float(torch.linalg.vector_norm(values)))


@pytest.mark.parametrize("stage", [False, True])
def test_each_half_has_the_whole_limit_and_what_both_train_gets_the_sum(stage: bool) -> None:
    made, actor, critic, both = pipeline()
    doubling = Doubling([actor, critic, both])
    made.stages = [doubling] if stage else []
    report = made.apply(0, max_grad_norm=0.5)
    of_actor = clipped(torch.cat([torch.full((2,), 3.0), torch.full((4,), -2.0)]), 0.5)
    of_critics = clipped(torch.cat([torch.full((3,), 400.0), torch.full((4,), 30.0)]), 0.5)
    assert_close(actor.grad, of_actor[:2])
    assert_close(critic.grad, of_critics[:3])
    assert_close(both.grad, of_actor[2:] + of_critics[3:])
    if stage:
        assert_close(doubling.seen[2], torch.full((4,), 28.0))  # the whole gradient of what both train
    raw = torch.tensor([(2 * 9.0 + 4 * 4.0) ** 0.5, (3 * 160_000.0 + 4 * 900.0) ** 0.5])
    assert_close(report.raw, raw)
    assert_close(report.pre_clip, 2.0 * raw if stage else raw)
    assert_close(report.post_clip, torch.tensor([0.5, 0.5]), rtol=1e-5, atol=0)


def test_without_a_limit_both_halves_of_what_is_shared_are_added() -> None:
    made, actor, _, both = pipeline()
    report = made.apply(0, max_grad_norm=None)
    assert_close(both.grad, torch.full((4,), 28.0))
    assert_close(actor.grad, torch.full((2,), 3.0))
    assert torch.equal(report.post_clip, report.raw)


def test_a_gradient_that_is_not_finite_in_either_half_takes_no_step() -> None:
    for half in ("actor", "critic"):
        made, actor, critic, _ = pipeline()
        (actor if half == "actor" else critic).grad[0] = torch.inf
        assert not made.apply(0, max_grad_norm=0.5).step


@pytest.mark.parametrize("micro_batch_size", [None, 9])
def test_an_extractor_that_both_halves_train_gets_each_ones_gradient_clipped(micro_batch_size: int | None) -> None:
    model = build(
        observation="image", memory=None, batch_size=None, n_epochs=1, max_grad_norm=0.03,
        micro_batch_size=micro_batch_size,
    )  # fmt: skip
    learn(model, 1)
    collected, policy = collect(model), model.policy
    shared = policy.shared_parameters()
    assert shared and {id(p) for p in shared} == {id(p) for p in policy.actor_extractor.parameters()}
    change = model.engine.critic_unit
    state = change.returns.state_dict()
    unit = change.follow(policy, collected.targets.samples, collected.rollout, model.engine.plan(None))
    weights = model.engine._coefficients(1.0, 3)
    targets = prepare_value_targets(policy.critic, collected.targets.samples, unit, weights)
    change.returns.load_state_dict(state)  # so that training follows the same samples again
    sequences = cut(collected.rollout.starts.numpy(), 1)
    batch = next(minibatches(sequences, 3, None, np.random.default_rng(0), torch.device("cpu")))
    rows = gather(collected.rollout, collected.targets.advantages, batch)
    found = policy.evaluate(rows.observations, rows.actions, (), None)
    actor_side = [p for p in policy.parameters() if id(p) not in {id(q) for q in policy.critic_parameters()}]
    of_actor = _gradients(policy_losses(policy, rows, found.actor, weights).loss / 69, actor_side)
    critic_side = [*policy.critic_parameters(), *shared]
    of_critics = _gradients(value_losses(policy, rows, found.critic, targets, weights).loss / 69, critic_side)
    factors = [
        min(1.0, 0.03 / float(torch.stack([g.norm() for g in side.values()]).norm())) for side in (of_actor, of_critics)
    ]
    assert max(factors) < 1.0
    expected = [factors[0] * of_actor[id(p)] + factors[1] * of_critics[id(p)] for p in shared]
    model.train(collected)
    for parameter, gradient in zip(shared, expected, strict=True):
        assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)


def _gradients(loss: Tensor, parameters: list[nn.Parameter]) -> dict[int, Tensor]:
    found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
    return {id(p): g for p, g in zip(parameters, found, strict=True) if g is not None}
