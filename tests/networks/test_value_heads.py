"""The contract of critics. A new kind is one line in `CRITICS` here and in `networks.value_heads`."""

from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leeward.config.learning import ValueClip
from leeward.config.settings import Settings
from leeward.networks import value_heads
from leeward.networks.value_heads import Critic, LinearCritic, Unit, make_critic

T, B, C, M, H = 4, 6, 2, 7, 5  # all sizes differ, and differ from the numbers of outputs
CRITICS = {
    "quantile": {"n_quantiles": 24},
    "quantile, uniform levels": {"critic": "quantile", "levels": "uniform", "n_quantiles": 3},
    "categorical": {"critic": "categorical", "n_atoms": 13},
    "scalar": {"critic": "scalar"},
}
FIRST, SECOND = Unit(3.0, 2.0), Unit(-1.0, 5.0)


@pytest.fixture(params=CRITICS.values(), ids=CRITICS)
def critic(request) -> Critic:
    return make_critic(Settings.read(request.param, where="test"))


def heads_of(critic: Critic, seed: int = 0) -> list[nn.Linear]:
    torch.manual_seed(seed)
    return [nn.Linear(H, critic.outputs) for _ in range(C)]


def outputs(heads: list[nn.Linear], latent: Tensor) -> Tensor:  # (..., H) -> (..., C, N)
    return torch.stack([head(latent) for head in heads], -2)


def started(critic: Critic, seed: int = 0) -> tuple[list[nn.Linear], Tensor, Tensor]:
    """Heads after a first rollout whose returns have the first unit; what they read, and samples of the return."""
    heads, latent = heads_of(critic, seed), torch.randn(T, B, H)
    samples = FIRST.mean + FIRST.std * torch.randn(T, B, M)
    with torch.no_grad():
        critic.start(FIRST, samples, heads, outputs(heads, latent))
    return heads, latent, samples


def test_every_kind_that_can_be_named_is_in_the_table():
    kinds = get_args(Settings.model_fields["critic"].annotation)
    assert set(value_heads.CRITICS) == set(kinds) == {CRITICS[k].get("critic", "quantile") for k in CRITICS}


def test_before_the_first_rollout_nothing_is_predicted(critic):
    heads = heads_of(critic)
    for head in heads:
        head.bias.data.copy_(critic.initial_bias())
    assert critic.unit == Unit(0.0, 0.0)
    if isinstance(critic, LinearCritic):
        assert torch.equal(critic.merge(outputs(heads, torch.randn(B, H))).mean, torch.zeros(B))


def test_the_merged_distribution_has_the_mean_of_the_critics_means(critic):
    heads, latent, _ = started(critic)
    raw = outputs(heads, latent)
    assert_close(critic.merge(raw).mean, critic.means(raw).mean(-1))
    assert critic.means(raw).shape == (T, B, C)


def test_pessimism_is_the_smaller_mean(critic):
    heads, latent, _ = started(critic)
    raw = outputs(heads, latent)
    first, second = critic.means(raw).unbind(-1)
    assert torch.equal(critic.pessimistic(raw), torch.minimum(first, second))
    assert bool((first < second).any()) and bool((first > second).any())


def test_one_critic_alone_is_its_own_merger(critic):
    heads, latent, _ = started(critic)
    raw = outputs(heads[:1], latent)
    merged, alone = critic.merge(raw), critic.distribution(raw[..., 0, :])
    assert_close(merged.mean, alone.mean)
    assert_close(merged.cvar(0.25), alone.cvar(0.25))


def test_the_loss_has_one_number_per_step_and_critic_and_falls_towards_the_targets(critic):
    _, _, samples = started(critic)
    targets = critic.encode(samples.flatten(0, 1), kappa=0.0)
    wanted = tuple(None if table is None else table.reshape(T, B, *table.shape[1:]) for table in targets)
    torch.manual_seed(1)
    raw = torch.randn(T, B, C, critic.outputs, requires_grad=True)
    optimiser = torch.optim.Adam([raw], lr=0.05)
    first = critic.loss(raw, wanted, kappa=0.0)
    assert first.shape == (T, B, C)
    for _ in range(400):
        optimiser.zero_grad()
        critic.loss(raw, wanted, kappa=0.0).sum().backward()
        optimiser.step()
    assert float(critic.loss(raw.detach(), wanted, kappa=0.0).sum()) < 0.9 * float(first.detach().sum())
    # The mean of M samples, to the coarseness of the grid of quantiles or atoms.
    gap = (critic.merge(raw.detach()).mean - samples.mean(-1)).abs().mean()
    assert float(gap) < 0.25 * FIRST.std


def test_each_critic_has_a_loss_of_its_own(critic):
    heads, latent, samples = started(critic)
    wanted = tuple(
        None if table is None else table.reshape(T, B, *table.shape[1:])
        for table in critic.encode(samples.flatten(0, 1), kappa=0.0)
    )
    raw = outputs(heads, latent).detach()
    both = critic.loss(raw, wanted, kappa=0.0)
    assert_close(both[..., :1], critic.loss(raw[..., :1, :], wanted, kappa=0.0))
    assert_close(both.flip(-1), critic.loss(raw.flip(-2), wanted, kappa=0.0))


@pytest.mark.parametrize("unit", [SECOND, Unit(3.0, 0.01)])
def test_a_change_of_unit_leaves_predictions_where_they_are(critic, unit):
    heads, latent, _ = started(critic)
    with torch.no_grad():
        before = critic.merge(outputs(heads, latent)).mean
        critic.rescale(unit, heads)
        after = critic.merge(outputs(heads, latent)).mean
    assert critic.unit == unit
    assert_close(after, before, rtol=0, atol=1e-5 * max(FIRST.std, abs(FIRST.mean)))


def test_old_outputs_are_restated_in_the_present_unit(critic):
    heads, latent, _ = started(critic)
    with torch.no_grad():
        old, frame = outputs(heads, latent), critic.frame()
        critic.rescale(SECOND, heads)
        clip = ValueClip(mode="mean_only", radius=1e-3)
        _, acted = critic.hold_near(outputs(heads, latent), critic.restate(old, frame), clip)
    assert not acted.any(), "nothing was learned, so nothing is held back"


def test_old_probabilities_are_restated_on_the_support_that_has_moved():
    critic = make_critic(Settings.read(CRITICS["categorical"], where="test"))
    heads, latent, samples = started(critic)
    with torch.no_grad():
        old, frame = outputs(heads, latent), critic.frame()
        before = critic.means(old)
        critic.refit(3.0 * samples, heads, lambda: [latent.flatten(0, 1)] * C)  # wider, and around another middle
        restated = critic.restate(old, frame)
    assert not torch.equal(critic.support, frame)
    assert_close((restated * critic.support.float()).sum(-1), before, rtol=0, atol=1e-4)


def test_what_is_far_from_the_old_is_held_and_what_is_near_is_not(critic):
    heads, latent, _ = started(critic)
    with torch.no_grad():
        raw, frame = outputs(heads, latent), critic.frame()
        old = critic.restate(raw, frame)
        torch.manual_seed(4)
        moved = raw + torch.linspace(-3.0, 3.0, T * B * C).reshape(T, B, C, 1) * torch.rand(critic.outputs)
        near, acted_near = critic.hold_near(moved, old, ValueClip(mode="mean_only", radius=1e6))
        held, acted = critic.hold_near(moved, old, ValueClip(mode="mean_only", radius=0.05))
    assert not acted_near.any()
    assert_close(critic.means(near), critic.means(moved), rtol=1e-4, atol=1e-4)
    assert acted.shape == (T, B, C) and 0.5 < float(acted.mean()) < 1.0
    far, still = ((critic.means(x) - critic.means(raw)).abs() for x in (moved, held))
    assert bool((still <= far + 1e-4).all()) and float(still.mean()) < 0.5 * float(far.mean())


def test_what_is_held_moves_by_the_radius_in_units_of_the_return(critic):
    # A radius of 0.1 standard deviations of 2 is 0.2 in the return's own unit, however its outputs are scaled.
    heads, latent, _ = started(critic)
    with torch.no_grad():
        raw = outputs(heads, latent)
        # Every mean goes up: numbers by two deviations, logits towards the upper atoms.
        moved = raw + (2.0 if isinstance(critic, LinearCritic) else torch.linspace(-4.0, 4.0, critic.outputs))
        held, acted = critic.hold_near(
            moved, critic.restate(raw, critic.frame()), ValueClip(mode="mean_only", radius=0.1)
        )
    assert bool(acted.all()) and float((critic.means(moved) - critic.means(raw)).min()) > 0.4
    assert_close(critic.means(held) - critic.means(raw), torch.full((T, B, C), 0.2), rtol=0, atol=0.02)


def test_what_a_first_rollout_is_said_to_have_predicted_is_what_the_heads_then_predict(critic):
    heads, latent = heads_of(critic), torch.randn(T, B, H)
    samples = FIRST.mean + FIRST.std * torch.randn(T, B, M)
    with torch.no_grad():
        said = critic.start(FIRST, samples, heads, outputs(heads, latent))
        assert_close(said, outputs(heads, latent))
    assert critic.unit == (0.0, FIRST.std)  # around 0, whatever the samples' mean is
    assert float(critic.means(said).abs().mean()) < 0.5 * FIRST.std


def test_the_distance_is_zero_for_the_same_and_grows(critic):
    heads, latent, _ = started(critic)
    raw = outputs(heads, latent).detach()
    step = torch.randn_like(raw)
    near, far = (critic.distance(raw, raw + size * step) for size in (0.1, 0.2))
    assert critic.distance(raw, raw).shape == (T, B)
    assert_close(critic.distance(raw, raw), torch.zeros(T, B), atol=1e-6, rtol=0)
    assert bool((near > 0).all()) and float(far.mean()) > 3.0 * float(near.mean())  # a squared distance: 4 ×


def test_levels_come_back_with_the_weights_that_were_trained_at_them():
    there = make_critic(Settings.read({"n_quantiles": 11, "risk": {"alpha": 0.3}}, where="test"))
    here = make_critic(Settings.read({"n_quantiles": 11}, where="test"))
    assert not torch.equal(here.levels, there.levels)
    here.load_state_dict(there.state_dict())
    assert torch.equal(here.levels, there.levels) and torch.equal(here.weights, there.weights)


@pytest.mark.parametrize(("alphas", "tail"), [((), 0.05), ((0.2,), 0.2), ((0.2, 0.01), 0.01), ((0.9,), 0.5)])
def test_the_tail_grid_looks_at_the_smallest_alpha_of_the_constraints(alphas, tail):
    settings = Settings.read({"risk": [{"alpha": alpha} for alpha in alphas]}, where="test")
    levels = make_critic(settings).levels
    assert int((levels < tail).sum()) == 8
