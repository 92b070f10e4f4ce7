"""Monitors say what is so: each number against one derived by hand, on real models and rollouts."""

import math
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch.testing import assert_close

from leeward import DistributionalPPO
from leeward.algorithm import update_metrics
from leeward.algorithm.return_scale import CriticUnit
from leeward.algorithm.update_metrics import PolicyStatistics, UpdateResult, add_gradients, add_start, critics_ratio
from leeward.errors import ShapeError
from leeward.maths.diagnostics import crossing_rate, crossing_size
from leeward.networks.action_distributions import ActionHead
from leeward.networks.actor_critic import ActorEvaluation
from leeward.networks.lstm import Recurrence
from leeward.networks.observation_normaliser import ObservationNormaliser
from leeward.optim.pipeline import GradientReport
from leeward.rollout.sequences import cut, minibatches
from leeward.telemetry import metrics
from leeward.telemetry.health import Facts
from leeward.telemetry.monitor import Monitor
from leeward.telemetry.tally import Tally

from ..support.models import build, collect, learn
from ..support.staggered_envs import Recorder, Staggered, staggered

tensor = torch.tensor


# --- advantages and returns -------------------------------------------------------------------------------------------


def test_advantages_are_told_raw_and_normalised_apart():
    raw, values = tensor([[4.0, -2.0], [1.0, 1.0]]), tensor([[0.0, 3.0], [-1.0, 2.0]])
    normalised = tensor([[1.5, -1.25], [0.0, 0.0]])
    found = update_metrics.advantage_numbers(raw, values, normalised)
    assert found[metrics.ADVANTAGE_MIN] == -2.0
    assert found[metrics.ADVANTAGE_MAX] == 4.0
    assert found[metrics.ADVANTAGE_MEAN_RAW] == 1.0
    assert found[metrics.ADVANTAGE_STD_RAW] == pytest.approx(math.sqrt((9 + 9 + 0 + 0) / 4))
    assert found[metrics.ADVANTAGES_NORM_MAX_ABS] == 1.5
    assert found[metrics.ADVANTAGES_NORM_MEAN] == pytest.approx(0.0625)
    # λ-returns 4, 1, 0, 3: variance 2.5; what the values leave of it is the variance of the advantages, 4.5.
    assert found[metrics.EXPLAINED_VARIANCE] == pytest.approx(1.0 - 4.5 / 2.5)


def test_returns_that_do_not_vary_have_no_explained_variance():
    raw, values = tensor([[1.0, 2.0]]), tensor([[2.0, 1.0]])
    assert metrics.EXPLAINED_VARIANCE not in update_metrics.advantage_numbers(raw, values, raw)


@pytest.mark.parametrize(
    ("samples", "warned"),
    [
        ([200.5, 199.5] * 50, False),  # far from 0, and nothing is far from their mean: σ = 0.5
        ([0.0] * 9998 + [1.0, -1.0], False),  # σ = √(2/10000) = 0.0141: 1 is 70.7 σ away
        ([0.0] * 39_998 + [1.0, -1.0], True),  # σ = √(2/40000) = 0.0071: 141 σ
    ],
)
def test_returns_are_extreme_by_their_distance_from_the_mean(samples, warned):
    unit = CriticUnit()
    values = tensor(samples)[:, None]
    unit.returns.update(values)
    found = unit._numbers(values)
    found |= Monitor().judge(found, Facts())[0]
    assert found[metrics.WARN_EXCESSIVE_RETURN_SCALING] == float(warned)
    expected = pytest.approx(float(values.double().std(correction=0))) if warned else 0.0
    assert found[metrics.WARN_RET_STD_TRIGGERING_SCALING] == expected
    assert found[metrics.VALUE_TARGET_SCALE] == pytest.approx(1.0 / unit.returns.std)


def test_the_normaliser_says_how_far_its_moments_moved():
    normaliser = ObservationNormaliser(Staggered(0).observation_space)
    first = torch.zeros(4, 5)
    first[:, 0] = tensor([-1.0, 1.0, -1.0, 1.0])  # mean 0, std 1
    assert normaliser.update(first) == (0.0, 0.0)
    second = torch.zeros(4, 5)
    second[:, 0] = tensor([3.0, 5.0, 3.0, 5.0])  # mean 4, std 1; together: mean 2, variance 1 + 4 = 5
    mean, std = normaliser.update(second)
    assert mean == pytest.approx(2.0 / math.sqrt(5.0))
    assert std == pytest.approx((math.sqrt(5.0) - 1.0) / math.sqrt(5.0))


# --- the policy -------------------------------------------------------------------------------------------------------


class Head(ActionHead):
    """An action head whose entropy is its parameter, so that it can be chosen."""

    def entropy(self, parameters: torch.Tensor) -> torch.Tensor:
        return parameters[..., 0]

    def kl(self, before: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
        return (now - before)[..., 0]


def rows_of(log_ratio: torch.Tensor, parameters: torch.Tensor, mask: torch.Tensor) -> tuple[Any, Any, Any]:
    advantages = torch.ones_like(log_ratio)
    before = torch.zeros_like(parameters)
    rows: Any = SimpleNamespace(mask=mask, learned=mask, advantages=advantages, action_parameters=before)
    actor: Any = SimpleNamespace(action_parameters=parameters)
    losses: Any = SimpleNamespace(log_ratio=log_ratio)
    return rows, actor, losses


def test_the_policys_numbers_are_those_of_its_real_rows():
    log_ratio = tensor([[0.0, math.log(1.5), -25.0], [11.0, 0.05, 99.0]])
    parameters = tensor([[[2.0], [4.0], [-3.0]], [[1.0], [1.0], [70.0]]])
    mask = tensor([[True, True, True], [True, True, False]])  # the last is padding
    statistics, tally = PolicyStatistics(Head(), 0.2), Tally()
    statistics.add(*rows_of(log_ratio, parameters, mask), finite=True)
    statistics.flush(tally)
    found = tally.read()
    assert found[metrics.POLICY_ENTROPY] == pytest.approx(1.0)  # (2 + 4 − 3 + 1 + 1)/5
    assert found[metrics.ENTROPY_LOSS] == pytest.approx(-1.0)
    assert found[metrics.POLICY_ENTROPY_MIN] == -3.0
    assert found[metrics.POLICY_ENTROPY_MAX] == 4.0
    assert found[metrics.KL_EXACT] == pytest.approx(1.0)
    assert found[metrics.LOG_RATIO_MAX_ABS] == 25.0
    assert found[metrics.LOG_RATIO_EXTREME_FRACTION] == pytest.approx(2 / 5)  # 25 and 11
    assert found[metrics.LOG_RATIO_CLAMPED_FRACTION] == pytest.approx(1 / 5)  # 25
    assert found[metrics.CLIP_FRACTION] == pytest.approx(3 / 5)  # ratios 1.5, e^−20, e^11
    assert found[metrics.APPROX_KL_K1] == pytest.approx(-(0.0 + math.log(1.5) - 25.0 + 11.0 + 0.05) / 5, rel=1e-5)
    assert found[metrics.LOG_RATIO_NONFINITE] == 0.0


def test_log_ratios_that_are_not_finite_are_counted_by_kind_and_in_no_mean():
    log_ratio = tensor([[math.nan, math.inf, -math.inf, 0.1]])
    statistics, tally = PolicyStatistics(Head(), 0.2), Tally()
    mask = torch.ones(1, 4, dtype=torch.bool)
    statistics.add(*rows_of(log_ratio, torch.ones(1, 4, 1), mask), finite=False)
    statistics.flush(tally)
    assert tally.read() == {
        metrics.LOG_RATIO_NAN_COUNT: 1.0,
        metrics.LOG_RATIO_INF_COUNT: 2.0,
        metrics.LOG_RATIO_NONFINITE: 3.0,
    }


@pytest.mark.parametrize("ent_coef", [0.0, 0.01])
def test_an_entropy_that_is_not_joint_over_the_actions_dimensions_raises(ent_coef):
    model = build(ent_coef=ent_coef)
    model.policy.action_head.entropy = lambda parameters: parameters[..., :2]  # one number per dimension
    with pytest.raises(ShapeError, match=r"joint over the action's dimensions.* expected \(.*\), got \(.*, 2\)"):
        learn(model, 1)


def awr_ratio(model: DistributionalPPO) -> float:
    learn(model, 1)
    return float(model.last_metrics["train/bc_loss_ratio"])


def test_the_share_of_imitation_is_that_of_its_gradient():
    # One minibatch. At its start every ratio is 1, so the surrogate's gradient is −Σ A ∇ ln π and that of AWR is
    # −c Σ w ∇ ln π: with a huge temperature every w is 1, and with c = 3 the ratio is 3 |Σ ∇ ln π| / |Σ A ∇ ln π|.
    one, three = (awr_ratio(build(awr={"coef": coef, "beta": 1e9}, batch_size=None, n_epochs=1)) for coef in (1.0, 3.0))
    assert three == pytest.approx(3.0 * one, rel=1e-4)
    model = build(awr={"coef": 1.0, "beta": 1e9}, batch_size=None, n_epochs=1)
    _, callback = model._setup_learn(10**9, CallbackList([]))
    model.collector.reset(model._last_obs)
    collected = model.collect(callback)
    rollout = collected.rollout
    evaluation, batch = whole_rollout(model, rollout)
    head = list(model.policy.action_head.parameters())
    rows = batch.rows.flatten()
    advantages = collected.targets.advantages.flatten()[rows].reshape(batch.rows.shape)

    def norm(weights: torch.Tensor) -> torch.Tensor:
        total = (weights * evaluation.log_prob).masked_fill(~batch.mask, 0.0).sum()
        gradients = torch.autograd.grad(total, head, retain_graph=True)
        return torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients]))

    expected = norm(torch.ones_like(advantages)) / norm(advantages)
    assert one == pytest.approx(float(expected), rel=1e-3)


def whole_rollout(model: DistributionalPPO, rollout: Any) -> Any:
    """The whole rollout as one batch, through the actor."""
    plan = model.engine.plan(None)
    sequences = cut(rollout.starts.numpy(), plan.sequence_length, plan.burn_in)
    batch = next(minibatches(sequences, rollout.shape[1], None, np.random.default_rng(0), torch.device("cpu")))
    times, envs = (torch.as_tensor(x[batch.sequences.numpy()]) for x in (sequences.times, sequences.envs))
    rows = batch.rows.flatten()

    def pick(table: torch.Tensor) -> torch.Tensor:
        return table.flatten(0, 1)[rows].reshape(*batch.rows.shape, *table.shape[2:])

    found = model.policy.evaluate_actor(
        pick(rollout.observations), pick(rollout.actions), rollout.memory_before(times, envs)
    )
    return found, batch


# --- rewards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm_reward", "unit"), [(False, 1.0), (True, 1.0), (True, 1e3)])
def test_the_spread_of_rewards_is_the_one_before_any_normalisation(norm_reward: bool, unit: float):
    recorder = Recorder(staggered(3, unit=unit))
    model = build(env=VecNormalize(recorder, norm_obs=False, norm_reward=norm_reward))
    found = collect(model).targets.numbers
    given = np.array(recorder.rewards)
    assert found[metrics.REWARD_STD] == pytest.approx(given.std(), rel=1e-6)
    paid = np.sort(np.abs(given[given != 0.0]))
    assert found[metrics.REWARD_SIZE] == pytest.approx(paid[(len(paid) - 1) // 2], rel=1e-6)
    assert found[metrics.WARN_REWARD_CONSTANT] == 0.0


class Unending(gymnasium.Wrapper):
    """An env whose episodes are only ever cut from outside."""

    def step(self, action):
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, False, terminated or truncated, info


@pytest.mark.parametrize(
    ("reward", "ends", "alike"), [(0.0, True, True), (-1.0, True, False), (-1.0, False, True), (0.0, False, True)]
)
def test_rewards_are_constant_where_no_return_can_differ(reward: float, ends: bool, alike: bool):
    def make():
        env = Staggered(0, unit=0.0, offset=reward)
        return env if ends else Unending(env)

    model = build(env=VecNormalize(DummyVecEnv([make]), norm_obs=False))
    if not alike:
        learn(model, 10)
    else:
        learn(model, 9)  # too few to be worth a word
        with pytest.warns(UserWarning, match="no two returns differed in 10 rollouts"):
            learn(model, 10)
    assert model.last_metrics["warn/reward_constant"] == float(alike)
    assert model.last_metrics["train/reward_std"] == 0.0


# --- gradients --------------------------------------------------------------------------------------------------------


def report(raw: float, pre: float, post: float) -> GradientReport:
    """Of each norm the actor has 0.6 and the critics 0.8: 3² + 4² = 5²."""
    halves = tensor([0.6, 0.8])
    return GradientReport(True, raw * halves, pre * halves, post * halves, torch.zeros(0), {})


def test_a_peak_of_the_gradient_norm_is_not_lost_in_its_mean():
    tally = Tally()
    for norms in ((1.0, 0.5, 0.5), (1322.0, 661.0, 0.5), (1.0, 0.5, 0.25)):
        add_gradients(tally, [], report(*norms), 10, skips_count=True)
    found = tally.read()
    assert found[metrics.GRAD_NORM_RAW] == pytest.approx(1324.0 / 3)
    assert found[metrics.GRAD_NORM_RAW_MAX] == 1322.0
    assert found[metrics.GRAD_NORM_PRE_CLIP] == pytest.approx(662.0 / 3)
    assert found[metrics.GRAD_NORM_PRE_CLIP_MAX] == 661.0
    assert found[metrics.GRAD_NORM_POST_CLIP] == pytest.approx(1.25 / 3)
    assert found[metrics.GRAD_NORM_POST_CLIP_MAX] == 0.5
    assert found[metrics.GRAD_NORM_PRE_CLIP_OF.of(half="actor")] == pytest.approx(0.6 * 662.0 / 3)
    assert found[metrics.GRAD_NORM_PRE_CLIP_OF.of(half="critic")] == pytest.approx(0.8 * 662.0 / 3)
    assert found[metrics.GRAD_NORM_PRE_CLIP_MAX_OF.of(half="critic")] == pytest.approx(0.8 * 661.0)
    assert found[metrics.GRAD_NORM_POST_CLIP_OF.of(half="actor")] == pytest.approx(0.6 * 1.25 / 3)
    assert found[metrics.GRAD_NORM_POST_CLIP_MAX_OF.of(half="actor")] == pytest.approx(0.3)


def test_what_is_clipped_is_never_above_what_it_was_before():
    model = learn(build(learning_rate=1e-2), 3)
    found = model.last_metrics
    for suffix in ("", "_max"):
        assert found[f"train/grad_norm_post_clip{suffix}"] <= found[f"train/grad_norm_pre_clip{suffix}"] * (1 + 1e-6)
        assert found[f"train/grad_norm_pre_clip{suffix}"] <= found[f"train/grad_norm_raw{suffix}"] * (1 + 1e-6)
    for half in ("actor", "critic"):
        assert found[f"train/grad_norm_post_clip_max/{half}"] <= 0.5 * (1 + 1e-5)


def test_the_gradient_norm_of_a_memory_is_that_of_one_layer():
    model = build(policy_kwargs={"n_lstm_layers": 2})
    groups = update_metrics.gradient_groups(model.policy)
    for name, memory in (("actor", model.policy.actor_memory), ("critic", model.policy.critic_memory)):
        for layer in range(2):
            own = groups[metrics.LSTM_GRAD_NORM.of(module=name, layer=layer)]
            assert [id(p) for p in own] == [id(p) for p in memory.core.all_weights[layer]]
    assert len(groups[metrics.CRITIC1_GRAD_NORM]) == len(groups[metrics.CRITIC2_GRAD_NORM]) == 4
    assert {id(p) for p in groups[metrics.CRITIC_TRUNK_GRAD_NORM]} == {
        id(p) for p in model.policy.critic_memory.parameters()
    }


@pytest.mark.parametrize(
    ("first", "second", "ratio", "imbalance", "vanishing"),
    [
        (2.0, 1.0, 2.0, 0.0, (0.0, 0.0)),
        (101.0, 1.0, 101.0, 1.0, (0.0, 0.0)),
        (99.0, 1.0, 99.0, 0.0, (0.0, 0.0)),
        (1.0, 101.0, 1 / 101, 1.0, (0.0, 0.0)),
        (1.0, 0.0, None, 0.0, (0.0, 1.0)),  # dead, and no ratio of 10^30
        (0.9e-8, 1.0, None, 0.0, (1.0, 0.0)),
        (1.0, 0.9e-8, None, 0.0, (0.0, 1.0)),
        (1.1e-8, 1e-8, 1.1, 0.0, (0.0, 0.0)),
    ],
)
def test_both_critics_learn_or_it_is_said_which_does_not(first, second, ratio, imbalance, vanishing):
    norms = {metrics.CRITIC1_GRAD_NORM: first, metrics.CRITIC2_GRAD_NORM: second}
    found = critics_ratio(norms)
    found |= Monitor().judge(norms | found, Facts())[0]
    assert found.get(metrics.CRITICS_GRAD_RATIO) == (None if ratio is None else pytest.approx(ratio))
    assert found[metrics.WARN_TWIN_CRITICS_GRADIENT_IMBALANCE] == imbalance
    assert found[metrics.WARN_CRITIC1_VANISHING_GRADIENTS] == vanishing[0]
    assert found[metrics.WARN_CRITIC2_VANISHING_GRADIENTS] == vanishing[1]


def test_a_single_critic_has_no_ratio():
    alone = {metrics.CRITIC1_GRAD_NORM: 1.0}
    assert critics_ratio(alone) == {}
    assert Monitor().judge(alone, Facts())[0] == {metrics.WARN_CRITIC1_VANISHING_GRADIENTS: 0.0}


# --- memory -----------------------------------------------------------------------------------------------------------


def test_the_activity_of_a_memory_is_what_torch_computes_inside():
    torch.manual_seed(0)
    for cell in ("lstm", "gru"):
        memory = Recurrence(cell, 3, 5, 2, {})
        before = tuple(torch.randn(2, 4, 5) for _ in range(memory.parts))
        features = torch.randn(4, 3)
        with torch.no_grad():
            _, after = memory(features[None], before)
        activity = memory.activity(features, before)
        for layer, (gates, squashed) in enumerate(activity):
            assert gates.shape == (4, 15 if cell == "lstm" else 10)
            assert bool(((gates > 0) & (gates < 1)).all())
            if cell == "lstm":
                assert_close(squashed, after[1][layer].tanh())
                assert_close(gates[:, 10:] * squashed, after[0][layer])
            else:
                update = gates[:, 5:]
                assert_close((1 - update) * squashed + update * before[0][layer], after[0][layer])


def with_memory(model: DistributionalPPO) -> dict[str, float]:
    learn(model, 1)
    return model.last_metrics


def test_each_layer_of_each_memory_has_numbers_of_its_own():
    model = build(policy_kwargs={"n_lstm_layers": 2})
    learn(model, 2)
    rollout = model.rollout_buffer
    assert rollout is not None
    for prefix, place in (("lstm", 0), ("lstm_critic", 2)):
        for layer in range(2):
            h, c = rollout.memories[place][:, layer], rollout.memories[place + 1][:, layer]
            found = {
                key: model.last_metrics[f"{prefix}/{key}_layer{layer}"]
                for key in ("h_mean", "h_std", "h_norm", "c_mean", "c_norm")
            }
            assert found == pytest.approx(
                {
                    "h_mean": float(h.mean()),
                    "h_std": float(h.std(correction=0)),
                    "h_norm": float(h.norm(dim=-1).mean()),
                    "c_mean": float(c.mean()),
                    "c_norm": float(c.norm(dim=-1).mean()),
                },
                rel=1e-5,
                abs=1e-7,
            )
    assert model.last_metrics["lstm/h_norm_layer0"] != model.last_metrics["lstm/h_norm_layer1"]


def push(model: DistributionalPPO, gate: int, value: float) -> None:
    """Set one gate of the actor's first layer (0 input, 1 forget, 2 candidate, 3 output) by its bias alone."""
    core = model.policy.actor_memory.core
    size = core.hidden_size
    with torch.no_grad():
        for weight in (core.weight_ih_l0, core.weight_hh_l0):
            weight[gate * size : (gate + 1) * size] = 0.0
        core.bias_hh_l0[gate * size : (gate + 1) * size] = 0.0
        core.bias_ih_l0[gate * size : (gate + 1) * size] = value


def test_a_healthy_memory_is_not_saturated():
    assert with_memory(build())["lstm/saturation_layer0"] < 0.1


def test_a_full_cell_behind_a_half_open_gate_is_saturated():
    model = build(ends=0.0)
    for gate, value in ((0, 20.0), (1, 20.0), (2, 20.0), (3, 0.0)):  # c grows by 1 each step; the output is half open
        push(model, gate, value)
    found = with_memory(model)
    # Sequences start at steps 0, 6, 12 and 18: the cell is at 1, tanh 0.76, in the first, and full in the others.
    assert found["lstm/saturation_layer0"] == 0.75
    assert found["lstm/h_norm_layer0"] <= 0.5 * math.sqrt(8)  # |h| stays below 0.5, and shows nothing


def test_gates_that_are_shut_are_saturated_though_the_cell_is_empty():
    model = build()
    for gate in (0, 1, 3):
        push(model, gate, -20.0)
    found = with_memory(model)
    assert found["lstm/saturation_layer0"] == 1.0
    assert found["lstm/c_norm_layer0"] < 1e-6


def test_half_of_the_gates_is_half():
    model = build()
    push(model, 0, math.log(0.96 / 0.04))  # 0.96: stuck
    push(model, 1, math.log(0.94 / 0.06))  # 0.94: not
    push(model, 3, math.log(0.04 / 0.96))  # 0.04: stuck
    assert with_memory(model)["lstm/saturation_layer0"] == pytest.approx(2 / 3)


def test_the_norm_after_a_reset_is_compared_with_the_norm_at_large():
    starts = torch.zeros(12, 1, dtype=torch.bool)
    starts[2] = True  # steps 2 to 6 are young; what came before the rollout is not known to be
    mask = torch.ones(12, 1, dtype=torch.bool)
    hidden = torch.full((12, 1, 4), 2.0)  # norm 4
    hidden[2:7] = 0.5  # norm 1
    rows: Any = SimpleNamespace(mask=mask, index=torch.arange(12), log_probs=torch.zeros(12, 1))
    actor = ActorEvaluation(torch.zeros(12, 1), torch.zeros(12, 1, 1), hidden)
    tally = Tally()
    add_start(tally, starts, rows, actor)
    # five of 1 and seven of 4: mean 33/12
    assert tally.read()[metrics.LSTM_H_NORM_AFTER_RESET_RATIO] == pytest.approx(12 / 33)
    assert tally.read()[metrics.RATIO_FIRST_MINIBATCH_MAX_DEV] == 0.0


# --- critics and costs ------------------------------------------------------------------------------------------------


def test_crossings_are_told_by_their_share_and_by_their_size():
    # Steps +1, −0.5, +2 and −0.1, 0, +1: two of six are backwards. Sorted: 0, 0.5, 1, 2.5 and −0.1, −0.1, 0, 0.9, so
    # that the quantiles move by 0, 0.5, 0.5, 0 and 0.1, 0, 0.1, 0: with weights 0.4, 0.3, 0.2, 0.1 by 0.25 and 0.06.
    quantiles, weights = tensor([[0.0, 1.0, 0.5, 2.5], [0.0, -0.1, -0.1, 0.9]]), tensor([0.4, 0.3, 0.2, 0.1])
    assert float(crossing_rate(quantiles)) == pytest.approx(2 / 6)
    assert float(crossing_size(quantiles, weights)) == pytest.approx((0.25 + 0.06) / 2)
    assert float(crossing_size(tensor([0.0, 0.0, 1.0]), torch.full((3,), 1 / 3))) == 0.0


class Costly(Staggered):
    """Says what each step cost; one env once says something that is no number."""

    def __init__(self, index: int, **kwargs: Any) -> None:
        super().__init__(index, **kwargs)
        self.index, self.count = index, 0

    def step(self, action: Any) -> Any:
        seen, reward, terminated, truncated, info = super().step(action)
        self.count += 1
        info["reward_costs_fraction"] = math.inf if (self.index, self.count) == (1, 4) else 0.25 * self.index
        return seen, reward, terminated, truncated, info


def test_costs_are_read_from_any_envs_info_and_those_that_are_not_finite_are_counted():
    model = build(memory=None, env=DummyVecEnv([lambda i=i: Costly(i) for i in range(3)]))
    found = with_memory(model)
    assert found["trade/costs_dropped"] == 1.0
    # 23 steps of 0, 22 of 0.25, 23 of 0.5
    assert found["trade/costs_fraction"] == pytest.approx((22 * 0.25 + 23 * 0.5) / 68)


def test_an_env_that_says_nothing_of_costs_has_none():
    found = with_memory(build(memory=None, env=staggered(2)))
    assert not [name for name in found if name.startswith("trade/")]


def test_controllers_get_a_typed_result():
    seen: list[UpdateResult] = []
    model = build(kl_penalty={}, risk={"alpha": 0.2, "limit": -0.5})
    plain = model.engine._control

    def control(result: UpdateResult, *rest: Any) -> Any:
        seen.append(result)
        return plain(result, *rest)

    model.engine._control = control
    learn(model, 1)
    (result,) = seen
    assert result.policy_entropy == model.last_metrics["train/policy_entropy"]
    assert result.kl_exact == model.last_metrics["train/kl_exact"]
    assert result.risk_grad_norm == model.last_metrics["risk/grad_norm"]
    assert result.stopped_in == model.n_epochs
