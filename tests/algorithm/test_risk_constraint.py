"""The constraint on real rollouts, beside the same arithmetic by hand: tail, cost, advantage, multiplier."""

import math
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecNormalize

from leeward import DistributionalPPO
from leeward.algorithm.checkpoint import read_checkpoint
from leeward.algorithm.ppo import Collected
from leeward.algorithm.risk_constraint import Constraint
from leeward.config.learning import Risk
from leeward.maths import cvar
from leeward.networks.policy import DistributionalPolicy
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Metric

from ..support.models import Look, build, collect, learn, learn_seeing, parameters_of, recorded
from ..support.risk_ledger import Ledger, discounted_sum
from ..support.risk_markets import GaussianEnv, GaussianMarket
from ..support.staggered_envs import Recorder, earning

STEPS, ENVS = 23, 3  # α · 69 is not whole for any α used here
ONE = {"alpha": 0.31, "limit": -0.4}
EPISODES = {"measure": "episode_return", "alpha": 0.37, "limit": 0.3}
CASES: dict[str, list[dict[str, Any]]] = {
    "one, pid": [ONE | {"derivative": 0.7, "smoothing": 0.3}],
    "one, dual": [ONE | {"controller": "dual", "learning_rate": 0.4}],
    "a weight instead of a limit": [ONE | {"limit": None, "cvar_weight": 0.6}],
    "one step and episodes": [ONE | {"cvar_weight": 0.2}, EPISODES | {"gamma": 0.5, "gae_lambda": 0.7}],
    "episodes": [EPISODES],
    "exploring and deployed": [ONE, {"alpha": 0.45, "limit": -0.2, "binds": "deployed", "deployed_share": 0.4}],
}


def costs_of(policy: DistributionalPolicy, seen: torch.Tensor) -> torch.Tensor:  # (B, K)
    """The predicted cost-to-go of observations, by a policy without memory."""
    costs = policy.costs(policy.critic_latent(seen, ()))
    assert costs is not None
    return costs


def constrained(risk: Any, env: Any = None, **kwargs: Any) -> DistributionalPPO:
    """A model without memory on a recorded env: predictions can be repeated from the observations alone."""
    return build(memory=None, env=Recorder(earning(ENVS)) if env is None else env, risk=risk, **kwargs)


def judged(model: DistributionalPPO, collected: Collected, ledgers: list[Ledger], unit: float = 1.0) -> None:
    """One rollout by hand, against what the model made of it; `unit` is what its rewards were divided by."""
    buffer, targets, record, policy = collected.rollout, collected.targets, recorded(model), model.policy
    assert buffer.risk is not None and targets.risk is not None
    numbers = {metric.name: value for metric, value in targets.numbers.items()}
    T, B = buffer.shape
    rollout = slice(len(record.dones) - T, None)
    variable, dones = record.variable()[rollout], np.array(record.dones[rollout])
    terminated = dones & ~np.array(record.truncated[rollout])
    deployed = np.zeros(B, bool) if buffer.risk.deployed is None else buffer.risk.deployed.numpy()

    def predicted(column: torch.Tensor) -> np.ndarray:
        return column.numpy().astype(np.float64)

    values = predicted(policy.critic.pessimistic(buffer.raw_values))
    next_values = predicted(policy.critic.pessimistic(buffer.raw_next_values))
    rewards = predicted(buffer.rewards)
    weighed = discounted_sum(rewards, values, next_values, terminated, dones, model.gamma, model.gae_lambda) * unit
    total = 1.0
    seen = np.array(record.successors[rollout])
    if (normaliser := model.get_vec_normalize_env()) is not None:
        assert not normaliser.norm_obs  # the record is of observations as they came
    with torch.no_grad():
        successors = predicted(torch.stack([costs_of(policy, torch.as_tensor(row)) for row in seen]))
    for k, ledger in enumerate(ledgers):
        risk = ledger.risk
        costs = ledger.costs(variable, dones, deployed)
        ahead = predicted(buffer.risk.costs[..., k])
        whole = risk.measure == "episode_return"  # a plain sum, that reaches its first step undiminished
        default_discount, default_lambda = (1.0, 1.0) if whole else (model.gamma, model.gae_lambda)
        cost_advantages = discounted_sum(
            costs,
            ahead,
            successors[..., k],
            dones if risk.measure == "episode_return" else terminated,  # its return is complete at a time limit too
            dones,
            default_discount if risk.gamma is None else risk.gamma,
            default_lambda if risk.gae_lambda is None else risk.gae_lambda,
        )
        weight = ledger.multiplier + risk.cvar_weight
        weighed, total = weighed - weight * cost_advantages, total + weight
        found = model.engine.risk_control.constraints[k]
        place = "" if k == 0 else f"/{k + 1}"
        close = {"rel": 1e-9, "abs": 1e-12}
        assert found.quantile == pytest.approx(ledger.nu, **close)
        assert found.tail == pytest.approx(ledger.tail, **close)
        assert found.multiplier == pytest.approx(ledger.multiplier, **close)
        assert numbers[f"risk/cvar_measured{place}"] == pytest.approx(ledger.measured, **close)
        assert numbers[f"risk/var_measured{place}"] == pytest.approx(ledger.value_at_risk, **close)
        assert numbers[f"risk/tail_samples{place}"] == pytest.approx(ledger.n_tail, **close)
        assert numbers[f"risk/multiplier{place}"] == pytest.approx(ledger.multiplier, **close)
        if risk.limit is not None:
            assert numbers[f"risk/gap{place}"] == pytest.approx(risk.limit - ledger.measured, **close)
        assert_allclose(targets.risk.costs[..., k].numpy(), cost_advantages + ahead, rtol=1e-5, atol=5e-6)
    assert_allclose(targets.risk.advantages.numpy(), weighed / total / unit, rtol=1e-5, atol=2e-6)
    learned = weighed[:, ~deployed]
    expected = np.zeros((T, B))
    expected[:, ~deployed] = (learned - learned.mean()) / learned.std()
    assert_allclose(targets.advantages.numpy(), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
@pytest.mark.parametrize("case", CASES)
def test_tail_cost_multiplier_and_advantage_are_those_of_the_equations(case: str) -> None:
    model = constrained(CASES[case], n_steps=STEPS)
    ledgers = [Ledger(Risk(**risk), ENVS) for risk in CASES[case]]
    learn_seeing(model, 5, lambda collected: judged(model, collected, ledgers))
    for ledger in ledgers:
        assert ledger.multiplier > 0.01 or ledger.risk.limit is None  # otherwise little was compared
        assert math.modf(ledger.n_tail)[0] > 0.01
    assert any((record := recorded(model)).truncated[t].any() for t in range(STEPS))
    assert any((record.dones[t] & ~record.truncated[t]).any() for t in range(STEPS))


def test_costs_are_weighed_against_rewards_in_the_unit_before_vecnormalize() -> None:
    env = VecNormalize(Recorder(earning(ENVS, tells=())), norm_obs=False, gamma=0.9)
    model = constrained(ONE, env, n_steps=STEPS)
    ledger = Ledger(Risk(**ONE), ENVS)
    units: list[float] = []

    def see(collected: Collected) -> None:
        units.append(float(np.sqrt(env.ret_rms.var + env.epsilon)))
        judged(model, collected, [ledger], units[-1])

    learn_seeing(model, 4, see)
    assert min(units) > 1.5 and len(set(units)) == 4
    assert ledger.multiplier > 0.1


@pytest.mark.filterwarnings("ignore:risk. the limit -0.4 may be broken")  # of some rollouts nobody knows yet
def test_heads_keep_their_predictions_when_their_unit_changes() -> None:
    model = constrained([ONE, ONE | {"alpha": 0.8}], n_steps=STEPS)
    learn(model, 2)
    buffer, heads, policy = collect(model).rollout, model.policy.risk_heads, model.policy
    assert buffer.risk is not None and heads is not None and model.engine.risk_control is not None

    def predictions() -> tuple[torch.Tensor, torch.Tensor, list[float]]:
        seen = buffer.observations[4]
        with torch.no_grad():
            units = [*heads.cost_stds.tolist(), float(heads.step_critic.std)]
            return costs_of(policy, seen), heads.step(policy.critic_latent(seen, ())).values, units

    costs, steps, units = predictions()
    buffer.risk.step_returns.mul_(7.0)  # a wilder rollout
    model.engine.risk_control.encode(buffer, 5.0 * buffer.risk.costs + 1.0)
    moved_costs, moved_steps, moved_units = predictions()
    assert all(abs(new / old - 1.0) > 0.05 for new, old in zip(moved_units, units, strict=True))
    assert_allclose(moved_costs, costs, rtol=1e-4, atol=1e-5)
    assert_allclose(moved_steps, steps, rtol=1e-4, atol=1e-5)


def test_the_step_head_learns_from_the_risk_variable_in_its_own_unit() -> None:
    model = constrained(ONE, n_steps=STEPS)
    collected, heads = collect(model), model.policy.risk_heads
    risk = collected.targets.risk
    assert heads is not None and risk is not None and model.engine.risk_control is not None
    encoded = model.engine.risk_control.encode(collected.rollout, risk.costs)
    variable = recorded(model).variable()
    mean, std = heads.step_critic.unit
    assert mean == pytest.approx(variable.mean(), rel=1e-12)
    assert std == pytest.approx(variable.std(), rel=1e-12)
    decoded = encoded.step[0].double() * std + mean
    assert_allclose(decoded.reshape(STEPS, ENVS), variable, rtol=1e-5, atol=1e-6)
    decoded = encoded.costs.double() * heads.cost_stds + heads.cost_means
    assert_allclose(decoded.reshape(STEPS, ENVS, 1), risk.costs, rtol=1e-5, atol=1e-6)


# --- episodes ---------------------------------------------------------------------------------------------------------


def whole_episodes(record: Recorder, begin: int = 0) -> dict[tuple[int, int], float]:
    """Return of each episode that ended in the record from `begin` on, where one began, by (last step, env)."""
    variable, dones = record.variable(), np.array(record.dones)
    found = {}
    for b in range(ENVS):
        ends = begin + np.flatnonzero(dones[begin:, b])
        for start, end in zip([begin, *(ends + 1)], ends, strict=False):
            found[int(end), b] = float(variable[start : end + 1, b].sum())
    return found


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
def test_an_episode_is_the_sum_of_its_steps_over_rollouts_and_costs_on_its_last_step_alone() -> None:
    # Without discount and λ the target of the cost critic is the cost itself.
    risk = EPISODES | {"gamma": 0.0, "gae_lambda": 0.0}
    model = constrained(risk, Recorder(earning(ENVS, ends=0.07)), n_steps=11)

    def see(collected: Collected) -> tuple[np.ndarray, float]:
        return collected.targets.risk.costs[..., 0].numpy(), model.engine.risk_control.constraints[0].quantile

    seen = learn_seeing(model, 14, see)
    episodes = whole_episodes(recorded(model))
    assert len(episodes) > 20 and not np.array(recorded(model).dones)[:11].any(0).all()  # some outlast a rollout
    for rollout, (costs, nu) in enumerate(seen):
        for t in range(11):
            for b in range(ENVS):
                total = episodes.get((11 * rollout + t, b))
                expected = 0.0 if total is None else max(max(nu, risk["limit"]) - total, 0.0) / 0.37
                assert costs[t, b] == pytest.approx(expected, abs=2e-6)
    assert sum((costs > 1e-3).sum() for costs, _ in seen) > 3


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
@pytest.mark.parametrize("again", ["learn anew", "another number of envs"])
def test_an_episode_cut_by_a_reset_does_not_count_into_the_next_one(again: str, tmp_path: Any) -> None:
    risk = EPISODES | {"gamma": 0.0, "gae_lambda": 0.0}
    model = learn(constrained(risk, Recorder(earning(ENVS, ends=0.07)), n_steps=11), 2)
    begin = len(recorded(model).dones)
    n_envs = ENVS
    if again == "another number of envs":
        model.save(tmp_path / "m")
        n_envs, begin = 5, 0
        model = DistributionalPPO.load(tmp_path / "m", Recorder(earning(n_envs, ends=0.07)))
    first = model.engine.risk_control.constraints[0]
    kept = len(first.bound.rollouts)
    model.learn(11 * n_envs)
    record = recorded(model)
    variable, dones = record.variable()[begin:], np.array(record.dones)[begin:]
    running = np.zeros(n_envs)
    for gains, over in zip(variable, dones, strict=True):
        running = np.where(over, 0.0, running + gains)
    assert_allclose(first.running, running, rtol=1e-12)
    assert np.abs(running).min() > 0.01 and kept > 0
    if n_envs == ENVS:
        totals = [total for (end, _), total in sorted(whole_episodes(record, begin).items())]
        assert_allclose(first.bound.rollouts[-1], totals, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
def test_just_enough_rollouts_are_pooled() -> None:
    # 10 / 0.37 = 27.03: at least 28 episodes, and without the oldest rollout there would be fewer.
    model = constrained(EPISODES, n_steps=STEPS)
    counts: list[int] = []

    def see(model: DistributionalPPO) -> None:
        counts.append(int(model.rollout_buffer.ended.sum()))
        sizes = [len(part) for part in model.engine.risk_control.constraints[0].bound.rollouts]
        assert sizes == counts[-len(sizes) :]
        assert sum(sizes[1:]) < 28 and (sum(sizes) >= 28 or sizes == counts)
        totals = [total for (end, _), total in sorted(whole_episodes(recorded(model)).items())]
        pooled = torch.cat(model.engine.risk_control.constraints[0].bound.rollouts)
        assert_allclose(pooled, totals[-sum(sizes) :], rtol=1e-12)

    learn(model, 8, Look(see))
    assert len(model.engine.risk_control.constraints[0].bound.rollouts) < 8


def test_a_thin_tail_warns_once_and_is_pooled_until_it_has_ten_samples() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = learn(constrained(ONE | {"alpha": 0.04}, n_steps=STEPS), 6)  # 0.04 · 69 = 2.76 per rollout
    assert [str(w.message) for w in caught if "risk: the tail" in str(w.message)] == [
        "risk: the tail is measured on alpha · samples = 0.04 · 69 = 2.8 outcomes, fewer than 10; rollouts are pooled "
        "until there are enough. More envs or steps per rollout measure it sooner"
    ]
    assert model.last_metrics["risk/tail_samples"] == pytest.approx(0.04 * 4 * 69)


# --- measured only ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalise", ["global", "none"])
def test_a_constraint_that_only_measures_changes_no_bit_of_what_is_learned(normalise: str) -> None:
    """Without the global clip, which the risk heads' gradients have their share in, and at levels that do not look at
    alpha."""
    dropout = {"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.3}}

    def trained(risk: Any) -> DistributionalPPO:
        env = VecNormalize(Recorder(earning(ENVS)), gamma=0.9)
        settings = {"policy_kwargs": dropout, "max_grad_norm": None, "normalize_advantage": normalise}
        return learn(build(env=env, risk=risk, levels="uniform", **settings), 3)

    plain, measuring = trained(None), trained([{"alpha": 0.31}, {"measure": "episode_return", "alpha": 0.5}])
    assert measuring.last_metrics["risk/cvar_measured"] < 0.0 < measuring.last_metrics["risk/tail_samples"]
    assert "risk/grad_norm" not in measuring.last_metrics  # nothing pulls
    assert_allclose(recorded(measuring).actions, recorded(plain).actions, rtol=0, atol=0)
    after = parameters_of(measuring.policy)
    assert {name for name, p in parameters_of(plain.policy).items() if not torch.equal(p, after[name])} == set()


# --- the multiplier ---------------------------------------------------------------------------------------------------

MARKET = GaussianMarket()


def on_gaussian(limit_share: float, **risk: Any) -> tuple[DistributionalPPO, list[float], list[float]]:
    """Multiplier and measured tail of 6 rollouts; the limit is a share of the tail at position 1 (a new policy holds
    about half)."""
    model = DistributionalPPO(
        "MlpPolicy",
        GaussianEnv(MARKET, 32, seed=1),
        n_steps=32,
        batch_size=512,
        n_epochs=1,
        gamma=0.0,
        seed=1,
        device="cpu",
        risk={"limit": limit_share * MARKET.tail} | risk,
    )
    wanted = (metrics.RISK_MULTIPLIER, metrics.RISK_CVAR_MEASURED)
    seen = learn_seeing(model, 6, lambda collected: [collected.targets.numbers[metric] for metric in wanted])
    return model, *map(list, zip(*seen, strict=True))


@pytest.mark.parametrize("controller", ["pid", "dual"])
def test_the_multiplier_rises_from_0_under_violation_and_stays_0_under_a_loose_limit(controller: str) -> None:
    model, path, _ = on_gaussian(0.05, controller=controller)
    assert min(path) > 0.0 and model.engine.risk_control is not None
    if controller == "dual":  # pid also follows the ups and downs of the gap itself
        assert all(later > earlier for earlier, later in pairwise(path))
    else:
        assert model.engine.risk_control.constraints[0].integral > 0.3
    assert path[-1] > 0.3 and model.last_metrics["risk/gap"] > 0.0
    model, path, _ = on_gaussian(1.5, controller=controller)
    assert path == [0.0] * 6 and model.last_metrics["risk/gap"] < 0.0


def outcomes(tail: float, spread: float, n: int = 4000) -> torch.Tensor:  # (n, 1)
    """The worst 5 % are all at `tail`, the others are spread evenly from 0 on."""
    worst = n // 20
    return torch.cat([torch.full((worst,), tail), torch.linspace(0.0, spread, n - worst)]).double()[:, None]


def observed(constraint: Constraint, steps: torch.Tensor) -> torch.Tensor:  # (T, 1) -> costs (T, 1)
    return constraint.observe(steps, torch.zeros_like(steps, dtype=torch.bool), torch.zeros(1, dtype=torch.bool))[0]


@pytest.mark.parametrize("controller", ["pid", "dual"])
def test_how_many_rollouts_a_multiplier_needs_does_not_depend_on_the_spread_of_what_is_limited(controller: str) -> None:
    def rollouts_to(multiplier: float, spread: float, unit: float) -> int:
        risk = Risk(limit=-1.0 * unit, controller=controller, proportional=0.0, margin=0.0)
        constraint = Constraint(risk, 1)
        for count in range(1, 200):
            observed(constraint, unit * outcomes(-2.0, spread))
            if constraint.multiplier >= multiplier:
                return count
        raise AssertionError(f"the multiplier is {constraint.multiplier} after {count} rollouts")

    # It grows by a tenth of 1 + λ in each rollout, and ln(1 + 10) / ln(1.1) = 25.2.
    assert {rollouts_to(10.0, spread, unit) for spread in (0.5, 2.0, 10.0) for unit in (1e-3, 1.0)} == {26}
    # A gap of a seventeenth of the standard deviation is not worth hurrying for.
    assert rollouts_to(10.0, 60.0, 1.0) > 100


def test_a_tail_that_sits_on_its_lowest_value_still_costs() -> None:
    # A tenth of all outcomes are ruin, so the 5 % quantile is ruin too, and nothing lies below it.
    ruin = torch.cat([torch.full((100,), -7.0), torch.linspace(-2.0, 5.0, 900)]).double()[:, None]
    constraint = Constraint(Risk(limit=-3.0), 1)
    costs = observed(constraint, ruin)
    assert constraint.quantile == -7.0
    assert (costs[:100] == (7.0 - 3.0) / 0.05).all() and (costs[100:] == 0.0).all()
    # Without a limit there is nothing that ν could not fall below; inside the limit ν is the quantile alone.
    assert (observed(Constraint(Risk(cvar_weight=1.0), 1), ruin) == 0.0).all()
    inside = Constraint(Risk(limit=-9.0), 1)
    assert (observed(inside, ruin) == 0.0).all() and inside.quantile == -7.0


def test_nothing_but_the_tail_is_watched_during_the_warm_up() -> None:
    _, path, tails = on_gaussian(0.05, warmup=3)
    assert path[:3] == [0.0] * 3 and path[3] > 0.0 and len(set(tails)) == 6


def test_a_limit_that_cannot_be_met_is_said_once_with_the_best_tail_and_training_goes_on() -> None:
    # A gain in the worst 5 % is impossible here.
    with pytest.warns(UserWarning, match="multiplier is at its ceiling of 5 and the limit 0.01 is not met") as caught:
        model, path, tails = on_gaussian(0.01 / MARKET.tail, ceiling=5.0, controller="dual", learning_rate=1.0)
    assert path[0] < path[-1] == 5.0 and model.n_rollouts == 6
    (message,) = [str(w.message) for w in caught if "is not met" in str(w.message)]
    best = max(tails[: path.index(5.0) + 1])
    assert tails[0] < best < 0.0 and f"the mildest tail measured so far is {best:.4g}" in message


def test_the_multiplier_can_pass_1() -> None:
    _, path, _ = on_gaussian(0.05, learning_rate=0.3)
    assert path[-1] > 2.0


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
def test_a_checkpoint_holds_multipliers_tails_pools_and_units(tmp_path: Any) -> None:
    model = learn(constrained([ONE, EPISODES], n_steps=STEPS), 3)
    model.save(tmp_path / "m")
    kept = read_checkpoint(tmp_path / "m")[0]["state"]["risk"]
    assert kept["constraints"][0]["multiplier"] == model.engine.risk_control.constraints[0].multiplier > 0.1
    loaded = DistributionalPPO.load(tmp_path / "m")
    assert loaded.risk == model.risk
    assert loaded.engine.risk_control.state_dict() == model.engine.risk_control.state_dict()
    for name in ("multiplier", "integral", "previous_gap", "quantile", "tail", "best"):
        assert kept["constraints"][1][name] not in (None, 0.0), name
    assert any(kept["constraints"][1]["running"]) and len(kept["constraints"][1]["bound"]) > 1


def test_weights_of_another_model_bring_the_units_of_their_risk_heads() -> None:
    source = learn(constrained(ONE, n_steps=STEPS), 2)
    taken = learn(constrained(ONE, Recorder(earning(ENVS, tells=())), n_steps=STEPS, seed=8), 1)
    taken.set_parameters(source.get_parameters())
    seen = recorded(source).successors[0]
    expected = source.predict_distribution(seen).step.quantiles
    prices = costs_of(source.policy, torch.as_tensor(seen)).detach()
    collected = collect(taken)
    assert_allclose(taken.predict_distribution(seen).step.quantiles, expected, rtol=0, atol=0)
    taken.engine.risk_control.encode(collected.rollout, collected.targets.risk.costs)  # the unit goes on from theirs
    assert_allclose(taken.predict_distribution(seen).step.quantiles, expected, rtol=1e-4, atol=1e-5)
    assert_allclose(costs_of(taken.policy, torch.as_tensor(seen)).detach(), prices, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
@pytest.mark.parametrize("controller", ["pid", "dual"])
@pytest.mark.parametrize("binds", ["rollout", "deployed"])
def test_a_multiplier_holds_while_no_outcome_is_fresh(controller: str, binds: str) -> None:
    risk = Risk(alpha=0.5, limit=1.0, measure="episode_return", controller=controller, binds=binds, warmup=0)
    constraint = Constraint(risk, ENVS)
    deployed = torch.tensor([False, False, True])

    def observe(ends: bool) -> dict[Metric, float]:
        gains = torch.full((7, ENVS), -1.0, dtype=torch.float64)
        gains[0] -= torch.arange(ENVS)
        ended = torch.zeros(7, ENVS, dtype=torch.bool)
        ended[-1] = ends
        return constraint.observe(gains, ended, deployed)[1]

    observe(ends=True)
    held = constraint.state_dict()
    assert held["multiplier"] > 0.0
    for _ in range(11):
        found = observe(ends=False)
        assert found[metrics.RISK_MULTIPLIER] == held["multiplier"]
    for name in ("integral", "previous_gap", "tail", "quantile", "widest"):
        assert constraint.state_dict()[name] == held[name]
    observe(ends=True)
    assert constraint.multiplier != held["multiplier"]


class StopIn(BaseCallback):
    """Asks once to stop, in the middle of a rollout."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.n_calls != self.step


@pytest.mark.filterwarnings("ignore:risk. the (tail is measured on|limit is on the return)")
def test_what_a_stopped_rollout_earned_stays_in_the_total_of_its_episode() -> None:
    model = constrained(EPISODES, Recorder(earning(ENVS, ends=0.07)), n_steps=11)
    learn(model, 1)
    model.learn(11 * ENVS, reset_num_timesteps=False, callback=StopIn(6))
    model.learn(11 * ENVS, reset_num_timesteps=False)
    record = recorded(model)
    assert len(record.dones) == 11 + 6 + 11
    running = np.zeros(ENVS)
    for gains, over in zip(record.variable(), record.dones, strict=True):
        running = np.where(over, 0.0, running + gains)
    first = model.engine.risk_control.constraints[0]
    assert_allclose(first.running, running, rtol=1e-12)
    crossing = [total for (end, _), total in sorted(whole_episodes(record).items()) if end >= 17]
    assert_allclose(first.bound.rollouts[-1], crossing, rtol=1e-12)
    assert np.array(record.dones)[17:].any() and not np.array(record.dones)[:17].any(0).all()


def test_the_end_of_training_says_whether_the_limit_was_kept(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, *_ = on_gaussian(1.5)
        assert capsys.readouterr().out == ""
        model.verbose = 1
        model.learn(32 * 32, reset_num_timesteps=False)
    (verdict,) = model.engine.risk_control.verdicts()
    last = model.engine.risk_control.constraints[0].bound.judged
    measured = float(cvar.from_samples(last, 0.05))
    assert verdict.kept and f"the worst 0.05 of a step average {measured:.4g} ± " in verdict.sentence
    assert verdict.sentence in capsys.readouterr().out and "for the policy as it explores" in verdict.sentence


@pytest.mark.parametrize(
    ("risk", "why"),
    [
        ({"limit": 0.01, "ceiling": 5.0, "learning_rate": 1.0}, "at its ceiling of 5, so perhaps no policy can keep"),
        ({"limit": 0.01, "learning_rate": 0.1}, "still climbs: train longer"),
        ({"limit": 0.01, "learning_rate": 0.1, "warmup": 9}, "still climbs: train longer"),
    ],
)
@pytest.mark.filterwarnings("ignore:risk. the multiplier is at its ceiling")
def test_a_broken_limit_is_announced_with_what_may_help(risk: dict[str, Any], why: str) -> None:
    with pytest.warns(UserWarning, match="the limit 0.01 is broken by") as caught:
        model, *_ = on_gaussian(
            0.01 / MARKET.tail, controller="dual", **{k: v for k, v in risk.items() if k != "limit"}
        )
    (message,) = [str(each.message) for each in caught if "is broken by" in str(each.message)]
    assert why in message
    constraint = model.engine.risk_control.constraints[0]
    assert f"broken by {0.01 - float(cvar.from_samples(constraint.bound.judged, 0.05)):.3g}:" in message
    constraint.rises, constraint.multiplier = 0, 0.7
    constraint.updates = 99
    assert "has settled at 0.7: train longer, or raise" in constraint.verdict().sentence


@pytest.mark.filterwarnings("ignore:risk")
def test_a_limit_that_is_broken_by_a_tenth_of_the_standard_deviation_is_not_called_kept() -> None:
    # CVaR of a normal variable is −1.755 at α = 0.1. Of 128 outcomes it is known to 0.18, of the last 2,000 to 0.045.
    constraint = Constraint(Risk(alpha=0.1, limit=-1.755 + 0.1), n_envs=1)
    verdict = after_rollouts(constraint, *torch.randn(200, 128, generator=torch.Generator().manual_seed(0))).verdict()
    assert verdict is not None and verdict.kept is False


@pytest.mark.filterwarnings("ignore:risk")
@pytest.mark.parametrize(("room", "kept"), [(-0.5, True), (0.5, None), (1.5, False)])
def test_of_a_limit_that_is_missed_within_the_error_nobody_knows(room: float, kept: bool | None) -> None:
    constraint = Constraint(Risk(alpha=0.1, limit=-1.0), n_envs=1)
    after_rollouts(constraint, *torch.randn(200, 128, generator=torch.Generator().manual_seed(0)))
    outcomes = constraint.bound.judged
    assert outcomes is not None
    measured, error = float(cvar.from_samples(outcomes, 0.1)), float(cvar.standard_error(outcomes, 0.1))
    constraint.config = Risk(alpha=0.1, limit=measured + room * error)
    verdict = constraint.verdict()
    assert verdict is not None and verdict.kept is kept
    assert (f"may be broken by {0.5 * error:.3g}: the worst 0.1 of a step" in verdict.sentence) == (kept is None)


@pytest.mark.filterwarnings("ignore:risk")
def test_outcomes_are_kept_for_a_verdict_of_the_policy_that_is_bound_alone() -> None:
    constraint = Constraint(Risk(alpha=0.1, limit=-1.0, binds="deployed"), n_envs=2)
    for outcomes in torch.randn(200, 128, 2, generator=torch.Generator().manual_seed(0)):
        constraint.observe(outcomes.double(), torch.ones(128, 2, dtype=torch.bool), torch.tensor([False, True]))
    assert [len(each.rollouts) for each in (constraint.learning, constraint.bound)] == [1, 16]


def after_rollouts(constraint: Constraint, *rollouts: torch.Tensor) -> Constraint:
    """After rollouts of one env, each step an outcome."""
    for outcomes in rollouts:
        ended, deployed = torch.ones(len(outcomes), 1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
        constraint.observe(outcomes.double()[:, None], ended, deployed)
    return constraint


@pytest.mark.filterwarnings("ignore:risk")
@pytest.mark.parametrize(("before", "now"), [(-10.0, 0.0), (0.0, -10.0)], ids=["became good", "went bad"])
def test_a_verdict_is_of_the_policy_as_it_became(before: float, now: float) -> None:
    # 8 outcomes a rollout at α = 0.05: a tail is measured on 25 rollouts, and 200 outcomes in it would be 500.
    constraint = Constraint(Risk(alpha=0.05, limit=-3.0), n_envs=1)
    generator = torch.Generator().manual_seed(0)
    rollouts = torch.randn(400, 8, generator=generator)
    rollouts[:300] += before
    rollouts[300:] += now
    verdict = after_rollouts(constraint, *rollouts).verdict()
    assert verdict is not None and verdict.kept == (now == 0.0)
    assert len(constraint.bound.rollouts) == 40  # a tenth of them
    assert len(constraint.bound.measured) == 25


def test_what_is_kept_for_a_verdict_is_bounded() -> None:
    # At α = 0.001 200 outcomes in the tail are 200,000; a rollout alone has the ten that a tail is measured on.
    constraint = Constraint(Risk(alpha=0.001, limit=-3.0), n_envs=1)
    after_rollouts(constraint, *torch.zeros(80, 12_000))
    assert len(constraint.bound.rollouts) == 5  # the first that are 50,000
    assert len(constraint.bound.measured) == 1
