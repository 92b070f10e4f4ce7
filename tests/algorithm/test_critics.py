"""Critics: clipping against one's own past, targets without pessimism, a rescale that moves no prediction."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from leeward import DistributionalPPO
from leeward.algorithm import schedules
from leeward.algorithm.losses import (
    Coefficients,
    Rows,
    ValueTargets,
    gather,
    policy_losses,
    prepare_value_targets,
    value_losses,
)
from leeward.algorithm.ppo import Collected
from leeward.algorithm.return_scale import ReturnScale, UnitChange
from leeward.algorithm.targets import make_targets
from leeward.config.learning import ValueClip
from leeward.config.settings import Settings
from leeward.maths import advantage, categorical, quantile, returns, value_clipping
from leeward.networks import categorical_support as supports
from leeward.networks.actor_critic import Evaluation
from leeward.networks.value_heads import CategoricalCritic
from leeward.rollout.sequences import cut, minibatches
from leeward.telemetry import metrics

from ..support.models import Look, build, coefficients, collect, evaluate_rollout, learn, learn_keeping, parameters_of
from ..support.staggered_envs import staggered


def apart(model: DistributionalPPO, by: float = 1.0) -> DistributionalPPO:
    """Make the two critics disagree: the second predicts more, and more widely."""
    first, second = (head for head in model.policy.value_heads)
    with torch.no_grad():
        second.bias.copy_(1.5 * first.bias + by)
    return model


def minibatch_of(model: DistributionalPPO, collected: Collected) -> tuple[Rows, Evaluation]:
    """One minibatch with padding, as the policy sees it now."""
    buffer = collected.rollout
    sequences = cut(buffer.starts.numpy(), 6)
    batch = next(minibatches(sequences, 3, 40, np.random.default_rng(2), torch.device("cpu")))
    assert 0 < int(batch.mask.sum()) < batch.mask.numel()  # there is padding
    rows = gather(buffer, collected.targets.advantages, batch)
    times, envs = (torch.as_tensor(x)[batch.sequences] for x in (sequences.times, sequences.envs))
    return rows, model.policy.evaluate(rows.observations, rows.actions, buffer.memory_before(times, envs))


def prepared(model: DistributionalPPO, clip: ValueClip) -> tuple[Rows, Evaluation, ValueTargets, Coefficients]:
    """Two updates, and one minibatch with padding of the last rollout, which the policy has moved away from since."""
    collected, change = learn_keeping(model, 2)
    weights = coefficients(clip)
    targets = prepare_value_targets(model.policy.critic, collected.targets.samples, change, weights)
    return *minibatch_of(model, collected), targets, weights


def follow(model: DistributionalPPO, collected: Collected, samples: Tensor) -> UnitChange:
    """Change the critics' unit as if the rollout had returned `samples`."""
    return model.engine.critic_unit.follow(model.policy, samples, collected.rollout, model.engine.plan(None))


QUANTILE_MODES = ("mean_only", "mean_and_variance", "per_quantile")


@pytest.mark.parametrize("mode", QUANTILE_MODES)
def test_each_quantile_critic_is_clipped_against_its_own_past(mode: Any) -> None:
    model = apart(build(learning_rate=3e-3))
    rows, evaluation, targets, weights = prepared(model, ValueClip(mode=mode, radius=0.05))
    found = value_losses(model.policy, rows, evaluation.critic, targets, weights)
    ordered = targets.encoded[0]
    assert targets.old is not None and ordered is not None
    levels, grid = model.policy.critic.levels, model.policy.critic.weights
    assert levels is not None
    index = rows.index.reshape(rows.mask.shape)[rows.mask]  # (n,) real rows
    for c in (0, 1):
        new, old, wanted = evaluation.critic.values[rows.mask][:, c], targets.old[index, c], ordered[index]
        held = value_clipping.clip_quantiles(new, old, radius=0.05, mode=mode, weights=grid)
        loss = quantile.huber_loss(new, wanted, levels, kappa=0.0)
        clipped = quantile.huber_loss(held, wanted, levels, kappa=0.0)
        assert_close(found.per_critic[c], torch.maximum(loss, clipped).sum(), rtol=1e-5, atol=1e-5)
        assert not torch.equal(loss, clipped)
    swapped = replace(targets, old=targets.old.flip(1))
    other = value_losses(model.policy, rows, evaluation.critic, swapped, weights)
    assert float((other.per_critic - found.per_critic).detach().abs().min()) > 1e-2


def test_each_categorical_critic_is_clipped_against_its_own_past() -> None:
    model = build(critic="categorical", learning_rate=3e-3)
    with torch.no_grad():
        model.policy.value_heads[1].bias[:4] += 1.0
    clip = ValueClip(mode="mean_only", radius=0.02)
    rows, evaluation, targets, weights = prepared(model, clip)
    found = value_losses(model.policy, rows, evaluation.critic, targets, weights)
    critic = model.policy.critic
    (probs,) = targets.encoded
    assert isinstance(critic, CategoricalCritic) and targets.old is not None and probs is not None
    index = rows.index.reshape(rows.mask.shape)[rows.mask]
    radius = 0.02 * float(model.policy.critic.std)
    for c in (0, 1):
        logits, wanted = evaluation.critic.values[rows.mask][:, c], probs[index]
        held = value_clipping.clip_categorical(
            logits.softmax(-1), targets.old[index, c], critic.support.float(), radius=radius, mode="mean_only"
        )
        loss = categorical.cross_entropy(logits, wanted)
        clipped = categorical.cross_entropy(held.clamp(min=1e-8).log(), wanted)
        assert_close(found.per_critic[c], torch.maximum(loss, clipped).sum(), rtol=1e-5, atol=1e-5)
    swapped = replace(targets, old=targets.old.flip(1))
    other = value_losses(model.policy, rows, evaluation.critic, swapped, weights)
    assert float((other.per_critic - found.per_critic).detach().abs().min()) > 1e-3


def test_the_radius_of_clip_range_vf_is_the_one_that_acts() -> None:
    def clip(**settings: Any) -> ValueClip:
        return schedules.value_clip(Settings.read(settings, where="test"), 0.5)

    assert clip().mode == "disable"
    assert clip(value_clip={"mode": "per_quantile", "radius": 0.05}) == ValueClip(mode="per_quantile", radius=0.05)
    both = clip(value_clip={"mode": "per_quantile", "radius": 0.05}, clip_range_vf=lambda remaining: 0.6 * remaining)
    assert both == ValueClip(mode="per_quantile", radius=0.3)
    assert clip(clip_range_vf=0.3) == ValueClip(radius=0.3)


@pytest.mark.parametrize("critic", ["quantile", "categorical", "scalar"])
def test_what_padding_holds_cannot_matter(critic: str) -> None:
    model = build(critic=critic)
    rows, evaluation, targets, weights = prepared(model, ValueClip(mode="mean_only", radius=0.05))
    padded = ~rows.mask
    actor, critic = evaluation
    spoilt_actor = actor._replace(
        log_prob=actor.log_prob.masked_fill(padded, torch.nan),
        action_parameters=actor.action_parameters.masked_fill(padded[..., None], torch.nan),
    )
    found, other = (policy_losses(model.policy, rows, each, weights) for each in (actor, spoilt_actor))
    assert torch.equal(found.loss, other.loss)
    spoilt_critic = critic._replace(values=critic.values.masked_fill(padded[..., None, None], 1e9))
    values = [value_losses(model.policy, rows, each, targets, weights) for each in (critic, spoilt_critic)]
    assert torch.equal(values[0].loss, values[1].loss)
    assert torch.equal(values[0].per_critic, values[1].per_critic)


@pytest.mark.parametrize(
    ("critic", "mode"),
    [*((critic, mode) for critic in ("quantile", "scalar") for mode in QUANTILE_MODES), ("categorical", "mean_only")],
)
def test_without_learning_nothing_is_clipped_however_the_scale_moves(critic: str, mode: str) -> None:
    """Old and new predictions are compared in one unit, also right after the first rollout brought the first one."""
    clip = {"mode": mode, "radius": 1e-4}
    model = build(critic=critic, learning_rate=0.0, value_clip=clip, batch_size=None)
    if critic != "categorical":
        apart(model)
    scales = []
    for _ in range(3):
        model.learn(69, reset_num_timesteps=False)
        scales.append(model.last_metrics["train/ret_std"])
        assert model.last_metrics["train/vf_clip_active_frac"] == 0.0
        assert model.last_metrics["train/critic_loss_clipped"] == pytest.approx(
            model.last_metrics["train/critic_loss_unclipped"], abs=1e-6
        )
    assert len(set(scales)) == 3
    model.learning_rate = 1e-2
    model.learn(69, reset_num_timesteps=False)
    assert model.last_metrics["train/vf_clip_active_frac"] > 0.1


@pytest.mark.parametrize("critic", ["quantile", "categorical"])
def test_pessimism_feeds_the_advantages_and_not_the_value_targets(critic: str) -> None:
    model = build(critic=critic, ends=0.1)
    learn(model, 1)
    with torch.no_grad():
        bias = model.policy.value_heads[1].bias
        assert isinstance(bias, Tensor)
        bias.add_(1.0 if critic == "quantile" else torch.linspace(0.0, 9.0, len(bias)))
    buffer, policy = collect(model).rollout, model.policy
    std = policy.critic.unit.std
    values, following = (policy.critic.means(raw) for raw in (buffer.raw_values, buffer.raw_next_values))
    gap = (following[..., 1] - following[..., 0])[~buffer.terminated]
    assert float(gap.min()) > 0.05 * std  # the second critic is the optimist everywhere
    ends = (buffer.terminated, buffer.ended)
    for distributional in (True, False):
        settings = Settings(
            gamma=0.9,
            gae_lambda=0.0,
            n_target_samples=500,
            value_targets="distributional" if distributional else "scalar",
            normalize_advantage="global",
        )
        found = make_targets(policy, buffer, settings, generator=torch.Generator().manual_seed(0))
        # λ = 0: the target's mean is r + γ·(mean of both critics), whatever the smaller of the two says.
        both = buffer.rewards + 0.9 * ~buffer.terminated * following.mean(-1)
        smaller = buffer.rewards + 0.9 * ~buffer.terminated * following.amin(-1)
        spread = 2.0 * std / 500 if distributional else 1e-5 * std
        assert_close(found.samples.mean(-1), both, atol=4 * spread, rtol=0)
        assert float((found.samples.mean(-1) - smaller)[~buffer.terminated].min()) > 0.02 * std
        raw = returns.gae(buffer.rewards, values.amin(-1), following.amin(-1), *ends, gamma=0.9, lam=0.0)
        assert_close(found.raw_advantages, raw)
        assert_close(found.values, values.amin(-1))


def test_distributional_targets_have_the_spread_that_scalar_ones_lack() -> None:
    model = apart(build(ends=0.05))
    learn(model, 1)
    rollout = collect(model).rollout
    spreads = {}
    for kind in ("distributional", "scalar"):
        generator = torch.Generator().manual_seed(0)
        settings = Settings(
            gamma=0.9, gae_lambda=0.5, n_target_samples=64, value_targets=kind, normalize_advantage="global"
        )
        found = make_targets(model.policy, rollout, settings, generator=generator)
        spreads[kind] = found.samples.shape[-1], float(found.samples.std(-1, correction=0).mean())
    assert spreads["scalar"] == (1, 0.0)
    samples, spread = spreads["distributional"]
    assert samples == 64 and spread > 0.5 * float(model.policy.critic.std)


def test_advantages_are_normalised_once() -> None:
    model = build()
    collected = collect(model)
    buffer, targets = collected.rollout, collected.targets
    assert torch.equal(targets.raw_advantages, buffer.advantages)
    assert torch.equal(targets.advantages, advantage.normalise(buffer.advantages, mode="global"))
    assert abs(float(buffer.advantages.std(correction=0)) - 1.0) > 1e-2  # raw ones are not of unit spread by themselves
    assert float(targets.advantages.std(correction=0)) == pytest.approx(1.0, abs=1e-5)
    rows, evaluation = minibatch_of(model, collected)
    index = rows.index.reshape(rows.mask.shape)[rows.mask]
    own = targets.advantages.flatten()[index]
    assert torch.equal(rows.advantages[rows.mask], own)
    assert abs(float(own.mean())) > 0.02  # a minibatch has a mean of its own, which a second pass would remove
    found = policy_losses(model.policy, rows, evaluation.actor, coefficients(ValueClip(mode="disable")))
    assert_close(found.surrogate, -own.sum(), atol=1e-3, rtol=0)  # every ratio is still 1


@pytest.mark.parametrize(("given", "mode"), [(True, "global"), (False, "none"), ("per_env", "per_env")])
def test_each_way_to_normalise_advantages(given: Any, mode: str) -> None:
    collected = collect(build(normalize_advantage=given))
    buffer, targets = collected.rollout, collected.targets
    assert_close(targets.advantages, advantage.normalise(buffer.advantages, mode=mode))
    flat = float(targets.advantages.mean(0).abs().max())  # the means of the envs
    assert (flat < 1e-5) == (mode == "per_env")


@pytest.mark.parametrize("critic", ["quantile", "scalar"])
def test_a_change_of_the_return_scale_moves_no_prediction(critic: str) -> None:
    model = apart(build(critic=critic, learning_rate=3e-3))
    learn(model, 3)
    collected, policy = collect(model), model.policy
    before = policy.critic.merge(evaluate_rollout(model)["values"]).values
    old_std, old_mean = float(policy.critic.std), float(policy.critic.mean)
    heads = parameters_of(policy)
    change = follow(model, collected, 40.0 * collected.targets.samples + 70.0)
    assert float(policy.critic.std) > 3.0 * old_std  # the scale did change
    assert not torch.equal(heads["value_heads.0.weight"], parameters_of(policy)["value_heads.0.weight"])
    after = policy.critic.merge(evaluate_rollout(model)["values"]).values
    # Float32 heads in the new unit: 1e-5 of the larger of old and new scale.
    unit = max(old_std, abs(old_mean), float(policy.critic.std), abs(float(policy.critic.mean)))
    assert float((before - after).abs().max()) <= 1e-5 * unit
    assert 0.0 <= change.numbers[metrics.POPART_MAX_SHIFT] <= 1e-5 * unit


@pytest.mark.parametrize("critic", ["quantile", "categorical", "scalar"])
@pytest.mark.parametrize("mean", [-60.0, 60.0])
def test_a_critic_starts_at_zero_and_follows_the_mean_by_learning_alone(critic: str, mean: float) -> None:
    model = build(critic=critic, env=staggered(3, shift=mean))
    collected = collect(model)
    assert float(collected.targets.values.abs().max()) < 1e-6 * abs(mean)  # before the first rollout nothing is known
    follow(model, collected, collected.targets.samples)
    scale = model.engine.critic_unit.returns
    assert scale.mean / mean > 1.0 and abs(scale.mean) > scale.std
    predicted = model.policy.critic.means(evaluate_rollout(model)["values"])
    assert float((predicted / scale.std).abs().mean()) < 0.5, "the mean of the returns was taken over"
    learn(model, 1)
    assert set(model.last_metrics).isdisjoint({"train/value_intercept_step"})


def test_training_leaves_decoded_values_where_they_are_at_every_rescale() -> None:
    model = build(learning_rate=3e-3)
    for k in range(6):
        model.learn(69, reset_num_timesteps=False)
        found = model.last_metrics
        if k > 0:
            assert found["train/popart_max_shift"] <= 1e-5 * max(found["train/ret_std"], abs(found["train/ret_mean"]))
        assert float(model.policy.critic.std) == found["train/ret_std"]
        assert float(model.policy.critic.mean) == found["train/ret_mean"]
        assert 1.0 / found["train/ret_std"] == found["train/value_target_scale"]


def test_the_return_scale_weighs_rollouts_alike_at_first_and_keeps_the_spread_about_its_mean() -> None:
    scale = ReturnScale(window=4, steps=8)
    scale.update(torch.tensor([[1.0, 3.0]]))  # mean 2, variance 1
    assert (scale.mean, scale.std) == (2.0, 1.0)
    scale.update(torch.tensor([[6.0, 10.0]]))  # mean 8, variance 4; together: mean 5, variance (1 + 4)/2 + 3² = 11.5
    assert scale.mean == 5.0 and scale.variance == pytest.approx(11.5)
    for _ in range(60):
        scale.update(torch.tensor([[99.0, 101.0]]))
    assert scale.mean == pytest.approx(100.0, abs=1e-4) and scale.std == pytest.approx(1.0, abs=1e-2)
    scale.update(torch.tensor([[100.0, 100.0]]))
    kept = scale.std
    other = ReturnScale()
    other.load_state_dict(scale.state_dict())
    assert other.state_dict() == scale.state_dict() and kept > 0.5


def test_short_rollouts_are_averaged_over_as_many_steps_as_long_ones() -> None:
    short, long = ReturnScale(window=2, steps=80), ReturnScale(window=2, steps=80)
    for scale, n_steps, times in ((short, 1, 4000), (long, 40, 100)):
        for k in range(times):
            scale.update(torch.full((n_steps, 1), float(k % 2)))
    assert short.mean == pytest.approx(0.5, abs=0.01) and short.std == pytest.approx(0.5, abs=0.01)
    assert long.mean == pytest.approx(0.67, abs=0.01)  # the last of two counts half, that before it a quarter


@pytest.mark.parametrize("unit", [1e-7, 1.0, 1e6])
def test_the_return_scale_has_no_unit_of_its_own(unit: float) -> None:
    scale = ReturnScale()
    scale.update(unit * torch.tensor([[1.0, 3.0]], dtype=torch.float64))
    assert scale.std == pytest.approx(unit) and scale.mean == pytest.approx(2.0 * unit)


def test_targets_that_do_not_vary_are_measured_by_their_size_until_one_does() -> None:
    scale = ReturnScale()
    scale.update(torch.zeros(4, 3))
    assert scale.std == 0.0  # nothing is known
    scale.update(torch.full((4, 3), -7.3))
    assert scale.mean == pytest.approx(-3.65) and scale.std == pytest.approx(3.65)
    constant = ReturnScale()
    constant.update(torch.full((4, 3), -7.3))
    assert constant.std == pytest.approx(7.3)
    constant.update(torch.full((4, 3), -7.3))
    assert constant.std == pytest.approx(7.3)


def test_a_support_moves_with_hysteresis() -> None:
    support = torch.linspace(-2.0, 2.0, 11)
    inside = torch.linspace(-1.5, 1.5, 1000)
    assert not supports.needs_move(inside, support)
    some, many = inside.clone(), inside.clone()
    some[:9], many[:11] = 2.1, 2.1  # 0.9 % and 1.1 % outside
    assert not supports.needs_move(some, support)
    assert supports.needs_move(many, support)
    assert not supports.needs_move(torch.linspace(0.0, 1.05, 1000), support)  # 26 % of it used
    assert supports.needs_move(torch.linspace(0.0, 0.95, 1000), support)  # 24 %
    new = supports.fitting_support(3.0 * inside + 1.0, 11)
    # The range −3.5 … 5.5 is the middle half of −8 … 10; from there targets may grow or shrink by 1.9 without a move.
    assert_close(new, torch.linspace(-8.0, 10.0, 11, dtype=torch.float64), atol=0.05, rtol=0)
    for constant in (1000.0, -1e-6):  # atoms stay apart, in whatever unit
        assert float(supports.fitting_support(torch.full((10,), constant), 11).diff().min()) > 1e-6 * abs(constant)
    for factor in (1.9, 1.0, 1 / 1.9):
        assert not supports.needs_move(factor * 3.0 * inside + 1.0, new)


@pytest.mark.parametrize("burn_in", [0, 4])
def test_a_moved_support_hardly_moves_predictions_and_says_by_how_much(burn_in: int) -> None:
    model = build(critic="categorical", n_atoms=31, learning_rate=3e-3, burn_in=burn_in)
    learn(model, 3)
    collected = collect(model)
    samples, critic = collected.targets.samples, model.policy.critic
    assert isinstance(critic, CategoricalCritic)
    old = critic.support.clone()
    assert follow(model, collected, samples).numbers[metrics.POPART_MAX_SHIFT] == 0.0
    assert torch.equal(old, critic.support)  # it stays while it fits
    before = critic.merge(evaluate_rollout(model)["values"]).mean
    found = follow(model, collected, 2.5 * (samples - samples.mean()) + samples.mean()).numbers
    assert found[metrics.SUPPORT_OUTSIDE_FRACTION] > supports.OUTSIDE
    assert not torch.equal(old, critic.support)
    after = critic.merge(evaluate_rollout(model)["values"]).mean
    std = float(before.std()) + float(critic.std)
    assert 0.0 < found[metrics.POPART_MAX_SHIFT] < 0.05 * std
    assert float((after - before).abs().max()) < 0.05 * std


def test_a_fresh_critic_predicts_the_marginal_distribution_of_the_first_rollout() -> None:
    model = build(learning_rate=0.0, n_steps=200)
    learn(model, 1)
    predicted = model.predict_distribution(model._last_obs)
    # A standardised normal in the scale of the first rollout: its 5 % quantile is 1.645 σ below its mean.
    mean, std = float(model.policy.critic.mean), float(model.policy.critic.std)
    assert float(predicted.var(0.05).mean()) == pytest.approx(mean - 1.645 * std, abs=0.6 * std)
    assert float(predicted.mean.mean()) == pytest.approx(mean, abs=0.5 * std)


def test_reading_a_distribution_does_not_advance_the_memory() -> None:
    model = learn(build(), 1)
    look = Look(lambda _: None)
    learn(model, 1, look)
    observation, starts = model._last_obs, np.zeros(3, dtype=bool)
    assert isinstance(observation, np.ndarray)
    state = model.predict(observation, deterministic=True)[1]
    assert state is not None
    kept = tuple(part.copy() for part in state)
    one = model.predict_distribution(observation, state, starts)
    two = model.predict_distribution(observation, state, starts)
    assert np.array_equal(one.quantiles, two.quantiles)
    assert all(np.array_equal(part, copy) for part, copy in zip(state, kept, strict=True))
    elsewhere = model.predict_distribution(observation)
    assert not np.array_equal(one.quantiles, elsewhere.quantiles)  # the memory is read


CONSTANT = {
    "exactly one": {"unit": 0.0, "offset": 1.0},
    "a thousand and a little": {"unit": 0.5, "offset": 1000.0},
    "nothing at all": {"unit": 0.0, "offset": 0.0},
}


@pytest.mark.parametrize("critic", ["quantile", "categorical", "scalar"])
@pytest.mark.parametrize("rewards", CONSTANT)
@pytest.mark.parametrize("gamma", [0.0, 0.99])
def test_rewards_that_hardly_vary_are_learned_by_every_critic(critic: str, rewards: str, gamma: float) -> None:
    model = build(critic=critic, gamma=gamma, learning_rate=1e-2, env=staggered(3, **CONSTANT[rewards]))
    learn(model, 4)
    collected = collect(model)
    scale = abs(float(collected.targets.samples.mean()))
    assert bool(torch.isfinite(collected.targets.values).all())
    assert float((collected.targets.values - collected.targets.samples.mean(-1)).abs().mean()) <= scale
    assert bool(torch.isfinite(collected.targets.advantages).all())
