"""The update: micro-batches, the finite guard and the KL stop, on real rollouts."""

from typing import Any

import pytest
import torch
from torch import Tensor

from leeward import DistributionalPPO
from leeward.algorithm import update
from leeward.algorithm.kl_stop import KLPenaltyController
from leeward.algorithm.ppo import Collected
from leeward.config.learning import KLPenalty
from leeward.errors import NonFiniteUpdate
from leeward.rollout import streams
from leeward.rollout.sequences import cut, minibatches

from ..support.models import Look, build, collect, largest_gap, learn, parameters_of

SGD: dict[str, Any] = {
    "batch_size": None,
    "n_epochs": 1,
    "max_grad_norm": None,
    "learning_rate": 0.5,
    # So that a difference of the gradient is a difference of the parameters, and not of its sign alone.
    "policy_kwargs": {"optimizer_class": torch.optim.SGD},
}


@pytest.mark.parametrize("size", [1, 10, 33])
def test_micro_batches_add_up_to_one_batch(size: int) -> None:
    whole, parts = learn(build(**SGD), 1), learn(build(**SGD, micro_batch_size=size), 1)
    assert largest_gap(parameters_of(whole.policy), parameters_of(build().policy)) > 1e-2
    assert largest_gap(parameters_of(whole.policy), parameters_of(parts.policy)) <= 1e-6
    for name in ("train/loss", "train/policy_entropy", "train/critic1_loss", "train/grad_norm_raw"):
        assert parts.last_metrics[name] == pytest.approx(whole.last_metrics[name], rel=1e-4)


def test_a_micro_batch_that_is_not_finite_is_left_out_and_the_others_make_up_the_whole() -> None:
    """Equal to one batch of the other rows alone, so the weights renormalise."""
    spoilt = torch.arange(6, 9)  # t = 2, all three envs

    def spoil(model: DistributionalPPO) -> None:
        assert model.rollout_buffer is not None
        model.rollout_buffer.log_probs.view(-1)[spoilt] = torch.nan

    model, twin = build(**SGD, micro_batch_size=9), build(**SGD)
    learn(model, 1, Look(spoil))
    collected = collect(twin)
    sound = _rows_of_sound_micro_batches(collected, set(spoilt.tolist()), size=9)
    assert 0 < len(sound) < 69
    _train_on(twin, collected, sound)
    assert largest_gap(parameters_of(model.policy), parameters_of(twin.policy)) <= 1e-6
    assert largest_gap(parameters_of(model.policy), parameters_of(build().policy)) > 1e-2
    assert model.last_metrics["error/log_ratio_nan_count"] == 3
    assert 1 <= model.last_metrics["train/skipped_minibatches"] <= 3


def _rows_of_sound_micro_batches(collected: Collected, spoilt: set[int], size: int) -> Tensor:
    """What the first update of a model sees of its rollout when micro-batches with a spoilt row are left out."""
    sequences = cut(collected.rollout.starts.numpy(), 6)
    rng = streams.generator(3, streams.SHUFFLE, 0)
    batch = next(minibatches(sequences, 3, None, rng, torch.device("cpu")))
    parts = [part.rows[part.mask] for part in update._micro_batches(batch, size)]
    return torch.cat([rows for rows in parts if not spoilt & set(rows.tolist())])


def _train_on(model: DistributionalPPO, collected: Collected, rows: Tensor) -> None:
    """An update of the whole rollout in which only `rows` count."""

    def only(*arguments: Any) -> Any:
        for batch in minibatches(*arguments):
            mask = batch.mask & torch.isin(batch.rows, rows)
            yield batch._replace(mask=mask, n_real=int(mask.sum()))

    model._update_current_progress_remaining(0, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update, "minibatches", only)
        model.train(collected)


INJECTED = {"nan": torch.nan, "inf": torch.inf, "minus inf": -torch.inf, "+30": 30.0, "-30": -30.0}


@pytest.mark.parametrize("name", INJECTED)
def test_extreme_log_ratios_are_counted_and_leave_the_parameters_finite(name: str) -> None:
    model = build(batch_size=None, n_epochs=1)
    before = parameters_of(model.policy)

    def inject(model: DistributionalPPO) -> None:
        buffer = model.rollout_buffer
        assert buffer is not None
        # log ratio = new − old = injected, in four rows
        buffer.log_probs[3, 1] -= INJECTED[name]
        buffer.log_probs[10:13, 2] -= INJECTED[name]

    learn(model, 1, Look(inject))
    metrics, after = model.last_metrics, parameters_of(model.policy)
    assert all(torch.isfinite(p).all() for p in after.values())
    assert metrics["error/log_ratio_nan_count"] == (4 if name == "nan" else 0)
    assert metrics["error/log_ratio_inf_count"] == (4 if "inf" in name else 0)
    assert metrics["error/log_ratio_nonfinite"] == (0 if "30" in name else 4)
    skipped = "30" not in name
    assert metrics["train/skipped_minibatches"] == float(skipped)
    assert (_learned(before, after) == 0.0) == skipped
    if not skipped:
        assert metrics["train/log_ratio_clamped_fraction"] == pytest.approx(4 / 69)
        assert metrics["train/log_ratio_extreme_fraction"] == pytest.approx(4 / 69)
        assert metrics["train/log_ratio_max_abs"] == pytest.approx(30.0, abs=1e-3)


def test_a_finite_loss_with_a_gradient_that_is_not_takes_no_step() -> None:
    model = build(batch_size=None, n_epochs=1)
    before = parameters_of(model.policy)
    model.policy.value_heads[1].weight.register_hook(lambda grad: grad * torch.nan)
    learn(model, 1)
    assert model.last_metrics["train/skipped_minibatches"] == 1
    assert model.last_metrics["error/log_ratio_nonfinite"] == 0
    assert _learned(before, parameters_of(model.policy)) == 0.0


def _learned(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> float:
    """How far a step of the first update moved the weights. The biases of the value heads move without one, when the
    unit of the critics takes in the mean of the first returns."""
    moved = [{name: p for name, p in side.items() if not _is_value_bias(name)} for side in (before, after)]
    return largest_gap(*moved)


def _is_value_bias(name: str) -> bool:
    return name.startswith("value_heads.") and name.endswith(".bias")


def _spoil_everything(model: DistributionalPPO) -> None:
    assert model.rollout_buffer is not None
    model.rollout_buffer.log_probs.fill_(torch.nan)


def test_training_stops_after_too_many_skips_in_a_row_with_the_last_good_weights() -> None:
    # Three minibatches of about 20 steps: 69 steps / 20 -> round(3.45) = 3; two epochs: 6.
    model = build(max_consecutive_skips=7, batch_size=20)
    learn(model, 1, Look(_spoil_everything))
    assert model.last_metrics["train/skipped_minibatches"] == 6
    before = parameters_of(model.policy)
    with pytest.raises(
        NonFiniteUpdate, match=r"update 1: 7 minibatches in a row.*last good step.*max_consecutive_skips"
    ):
        model.learn(69, Look(_spoil_everything), reset_num_timesteps=False)
    # The rescale of the heads leaves what they predict; everything else is untouched.
    for name, p in parameters_of(model.policy).items():
        if not name.startswith("value_heads"):
            assert torch.equal(p, before[name])


def test_a_sound_minibatch_ends_a_row_of_skips() -> None:
    model = build(max_consecutive_skips=7, batch_size=20)
    learn(model, 1, Look(_spoil_everything))
    assert model.engine.updater.pipeline.guard.consecutive == 6
    model.learn(69, reset_num_timesteps=False)
    assert model.engine.updater.pipeline.guard.consecutive == 0


def test_the_kl_stop_acts_before_the_step_and_the_next_update_has_all_epochs_again() -> None:
    kwargs: dict[str, Any] = {"n_epochs": 5, "batch_size": None, "learning_rate": 0.02}
    model = build(target_kl=0.01, **kwargs)
    learn(model, 1)
    stopped_in = model.last_metrics["train/kl_stop_epoch"]
    assert 1 <= stopped_in < 5
    assert model.last_metrics["train/approx_kl"] > 0  # the KL of the step that was not taken is in the record
    # With one minibatch per epoch, an update stopped in epoch k took exactly the k steps before it.
    shorter = build(**(kwargs | {"n_epochs": int(stopped_in)}))
    learn(shorter, 1)
    assert largest_gap(parameters_of(model.policy), parameters_of(shorter.policy)) == 0.0
    # A gentle step next: nothing of the stop is left.
    model.learning_rate = 1e-5
    model.learn(69, reset_num_timesteps=False)
    assert model.last_metrics["train/kl_stop_epoch"] == 5


def test_no_target_means_no_stop() -> None:
    model = build(n_epochs=5, batch_size=None, learning_rate=0.02)
    learn(model, 1)
    assert model.last_metrics["train/kl_stop_epoch"] == 5
    assert model.last_metrics["train/approx_kl"] > 0.015


def test_the_kl_penalty_holds_the_policy_back_and_follows_its_target() -> None:
    kwargs: dict[str, Any] = {"n_epochs": 6, "batch_size": None, "learning_rate": 0.01}
    free = learn(build(**kwargs), 1)
    held = learn(build(kl_penalty={"target": 1e-4, "initial": 50.0, "ceiling": 150.0}, **kwargs), 1)
    assert held.last_metrics["train/kl_exact"] < 0.5 * free.last_metrics["train/kl_exact"]
    controller, config = held.engine.kl_controller, held.kl_penalty
    assert controller is not None
    assert held.last_metrics["train/kl_penalty"] == 50.0
    assert controller.coefficient == 100.0  # above 1.5 × target: doubled
    controller.observe(2e-4, config)
    assert controller.coefficient == 150.0  # never above the ceiling
    controller.observe(1e-4, config)
    assert controller.coefficient == 150.0  # within: unchanged
    controller.observe(5e-5, config)
    assert controller.coefficient == 75.0


def test_a_kl_penalty_comes_back_after_a_long_quiet_time() -> None:
    config = KLPenalty(target=1e-2, initial=0.5)
    controller = KLPenaltyController(config)
    for _ in range(2000):
        controller.observe(0.0, config)
    assert 0.0 < controller.coefficient == 0.5 / 1024
    for _ in range(10):
        controller.observe(1.0, config)
    assert controller.coefficient == 0.5


def test_the_norm_after_the_clip_is_the_one_of_the_step() -> None:
    model = build(max_grad_norm=0.05, n_epochs=1, batch_size=None)
    learn(model, 1)
    metrics = model.last_metrics
    assert metrics["train/grad_norm_pre_clip"] == metrics["train/grad_norm_raw"]
    critics = model.policy.critic_parameters()
    own = {id(p) for p in critics}
    halves = {"actor": [p for p in model.policy.parameters() if id(p) not in own], "critic": critics}
    for half, parameters in halves.items():
        assert metrics[f"train/grad_norm_pre_clip/{half}"] > 0.05
        assert metrics[f"train/grad_norm_post_clip/{half}"] == pytest.approx(0.05, rel=1e-4)
        taken = torch.stack([p.grad.norm() for p in parameters if p.grad is not None]).norm()
        assert float(taken) == pytest.approx(0.05, rel=1e-4)
    assert metrics["train/grad_norm_post_clip"] == pytest.approx(0.05 * 2**0.5, rel=1e-4)


def test_critic_gradient_norms_are_those_of_the_critics_own_parameters() -> None:
    model = build(max_grad_norm=None, n_epochs=1, batch_size=None)
    learn(model, 1)
    for i in (0, 1):
        own = [*model.policy.critic_mlps[i].parameters(), *model.policy.value_heads[i].parameters()]
        norm = torch.stack([p.grad.norm() for p in own if p.grad is not None]).norm()
        assert model.last_metrics[f"train/critic{i + 1}_grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert model.policy.critic_memory is not None
    trunk = torch.stack([p.grad.norm() for p in model.policy.critic_memory.parameters() if p.grad is not None]).norm()
    assert model.last_metrics["train/critic_trunk_grad_norm"] == pytest.approx(float(trunk), rel=1e-5)
    ratio = model.last_metrics["train/critic1_grad_norm"] / model.last_metrics["train/critic2_grad_norm"]
    assert model.last_metrics["train/critics_grad_ratio"] == pytest.approx(ratio)
    assert model.last_metrics["warn/twin_critics_gradient_imbalance"] == 0.0


def test_a_critic_that_does_not_learn_is_noticed() -> None:
    model = build(n_epochs=1, batch_size=None)
    for p in (*model.policy.critic_mlps[1].parameters(), *model.policy.value_heads[1].parameters()):
        p.register_hook(torch.zeros_like)
    learn(model, 1)
    assert model.last_metrics["warn/critic2_vanishing_gradients"] == 1.0
    assert model.last_metrics["warn/critic1_vanishing_gradients"] == 0.0
    assert model.last_metrics["warn/twin_critics_gradient_imbalance"] == 0.0  # it is dead, and that alone is said
    assert "train/critics_grad_ratio" not in model.last_metrics


def test_a_healthy_run_of_a_thousand_steps_hardly_ever_meets_the_clamp_of_the_log_ratio() -> None:
    model = build(memory=None, n_epochs=10, learning_rate=3e-3)
    clamped, clipped = [], []
    while _optimiser_steps(model) < 1000:
        model.learn(1, reset_num_timesteps=False)
        clamped.append(model.last_metrics["train/log_ratio_clamped_fraction"])
        clipped.append(model.last_metrics["train/clip_fraction"])
    assert max(clamped) < 0.01
    assert max(clipped) > 0.01  # ratios do leave 1, so that a clamp too near would have been met


def _optimiser_steps(model: DistributionalPPO) -> int:
    return max((int(state["step"]) for state in model.policy.optimizer.state.values()), default=0)


def test_no_limit_on_the_gradient_leaves_it_as_it_is() -> None:
    settings: dict[str, Any] = {"batch_size": None, "n_epochs": 1, "vf_coef": 100.0}
    norms = {limit: learn(build(max_grad_norm=limit, **settings), 1) for limit in (None, 0.01)}
    found = {limit: model.last_metrics["train/grad_norm_post_clip"] for limit, model in norms.items()}
    raw = norms[None].last_metrics["train/grad_norm_raw"]
    assert raw > 1.0  # so that the default would have clipped it
    assert found == {None: raw, 0.01: pytest.approx(0.01 * 2**0.5, rel=1e-3)}


def test_two_updates_from_one_state_are_equal_bit_for_bit() -> None:
    one = learn(build(), 2)
    other = learn(build(), 2)
    assert largest_gap(parameters_of(one.policy), parameters_of(other.policy)) == 0.0
    assert one.last_metrics == other.last_metrics
