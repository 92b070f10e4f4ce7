"""The next step's distribution, and who learns from a constraint: the policy and the risk heads, never the critics."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from leeward import DistributionalPPO
from leeward.errors import ArgumentError

from ..support.models import build, learn, parameters_of
from ..support.risk_markets import GaussianEnv, GaussianMarket
from ..support.staggered_envs import Recorder, earning

ENVS = 3
TAIL = {"alpha": 0.2}


@pytest.fixture(scope="module")
def trained() -> DistributionalPPO:
    return learn(build(env=Recorder(earning(ENVS)), risk=TAIL), 3)


def observations(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 5)).astype(np.float32)


def test_the_step_is_a_distribution_in_the_unit_of_the_risk_variable(trained: DistributionalPPO) -> None:
    seen = observations(4, 1)
    step = trained.predict_distribution(seen).step
    assert step.quantiles.shape == (4, 32) and step.levels.shape == step.weights.shape == (32,)
    assert (np.diff(step.levels) > 0).all() and step.levels[0] > 0.0 and step.levels[-1] < 1.0
    assert (np.diff(step.quantiles) >= 0).all()
    assert step.weights.sum() == pytest.approx(1.0)
    assert step.weights[step.levels < 0.2].sum() == pytest.approx(0.2)  # the grid is fine inside the tail of the limit
    # Quantiles are steps of their widths: the value at risk is the first whose right edge reaches α, and the tail's
    # mean takes each step as far as it lies inside α.
    left = np.cumsum(step.weights) - step.weights
    for alpha in (0.03, 0.2, 0.6):
        inside = np.clip(alpha - left, 0.0, step.weights)
        assert_allclose(step.cvar(alpha), step.quantiles @ inside / alpha, rtol=1e-5, atol=1e-6)
        assert (step.cvar(alpha) <= step.var(alpha) + 1e-6).all()
        assert ((step.var(alpha) >= step.quantiles[:, 0]) & (step.var(alpha) <= step.quantiles[:, -1])).all()
    heads = trained.policy.risk_heads
    assert heads is not None
    with torch.no_grad():
        memory = trained.policy.initial_memory(4)
        latent = trained.policy.latents(torch.as_tensor(seen)[None], memory).critic[0]
        raw = heads.step_head(heads.step_mlp(latent)).double()
    decoded = (raw * heads.step_critic.std + heads.step_critic.mean).numpy()
    assert_allclose(step.quantiles, np.sort(decoded), rtol=1e-5, atol=1e-5)
    assert_allclose(step.mean, decoded @ step.weights, rtol=1e-5, atol=1e-5)


def test_the_step_reads_the_state_and_does_not_advance_it(trained: DistributionalPPO) -> None:
    _, state = trained.predict(observations(2, 2))
    assert state is not None
    kept = [part.copy() for part in state]
    ahead = observations(2, 3)
    first, second = (trained.predict_distribution(ahead, state).step.quantiles for _ in range(2))
    assert_array_equal(first, second)
    for part, old in zip(state, kept, strict=True):
        assert_array_equal(part, old)
    fresh = trained.predict_distribution(ahead).step.quantiles
    assert np.abs(first - fresh).max() > 1e-4  # it does read it
    begun = trained.predict_distribution(ahead, state, np.array([True, False])).step.quantiles
    assert_allclose(begun[0], fresh[0], rtol=1e-6, atol=1e-6)
    assert_allclose(begun[1], first[1], rtol=1e-6, atol=1e-6)


def test_a_model_without_risk_has_no_step_and_says_how_to_get_one() -> None:
    outlook = build().predict_distribution(observations(2, 1))
    assert not hasattr(outlook, "step")
    with pytest.raises(ArgumentError, match=r"train with risk=, e\.g\. risk=\{'alpha': 0\.05\}"):
        _ = outlook.step


# --- who learns -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["lstm", None])
def test_a_constraint_moves_the_policy_and_leaves_the_critics_where_their_own_loss_takes_them(memory: Any) -> None:
    """One step of plain gradient descent, so that the parameters show the gradient to the last bit."""
    descent = {"optimizer_class": torch.optim.SGD}

    def stepped(risk: Any) -> dict[str, torch.Tensor]:
        env = Recorder(earning(ENVS, action="discrete"))
        settings: dict[str, Any] = {"n_epochs": 1, "batch_size": None, "max_grad_norm": None, "learning_rate": 0.05}
        settings["levels"] = "uniform"  # tail levels look at alpha
        model = build(env=env, action="discrete", memory=memory, risk=risk, policy_kwargs=descent, **settings)
        return parameters_of(learn(model, 1).policy)

    limited_by = {"cvar_weight": 2.0, "lr_scale_end": None, "ent_coef": 0.0}
    plain, measuring, limited = (
        stepped(risk)
        # A limit below the quantile, so that costs are the same with and without it; no bonus of its own either.
        for risk in (None, {"alpha": 0.31}, {"alpha": 0.31, "limit": -9.0} | limited_by)
    )

    def differ(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
        return {name for name in one if name in other and not torch.equal(one[name], other[name])}

    assert differ(plain, measuring) == set()
    moved = differ(measuring, limited)
    actor = {"action_head", "actor_mlp"} | ({"actor_memory"} if memory else set())
    assert {name.split(".")[0] for name in moved} == actor
    assert {"action_head.net.weight", "action_head.net.bias"} <= moved


def test_the_trained_position_meets_the_closed_form() -> None:
    """(a) of benchmarks/risk in small: one Gaussian asset, the limit at half of the unconstrained tail."""
    market, here = GaussianMarket(), np.ones((1, 1), np.float32)

    def trained(limit: float | None, rollouts: int) -> tuple[float, float]:
        model = DistributionalPPO(
            "MlpPolicy",
            GaussianEnv(market, 64, seed=1),
            n_steps=32,
            batch_size=1024,
            n_epochs=4,
            learning_rate=3e-3,
            gamma=0.0,
            seed=1,
            device="cpu",
            policy_kwargs={"net_arch": [8]},
            risk={"alpha": market.alpha, "limit": limit},
        )
        model.learn(rollouts * 32 * 64)
        position = float(np.clip(model.predict(here, deterministic=True)[0][0, 0], 0.0, 1.0))
        return position, float(model.predict_distribution(here).step.cvar(market.alpha)[0])

    free, _ = trained(None, 20)
    assert free >= 0.9
    position, tail = trained(0.5 * market.tail, 40)
    assert position == pytest.approx(0.5, rel=0.15)
    assert tail == pytest.approx(float(market.cvar(position)), rel=0.1)
