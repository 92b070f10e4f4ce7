"""The critic learns the distribution of the return where that is known, and a scalar target does not give it."""

from typing import Any

import numpy as np
import pytest
from scipy.stats import expon, norm

from leeward import DistributionalPPO

from ..support.chain_env import Chain


def trained(env: Chain, rollouts: int, **kwargs: Any) -> DistributionalPPO:
    arguments: dict[str, Any] = {
        "n_steps": env.length,
        "batch_size": None,
        "n_epochs": 8,
        "gamma": 1.0,
        "gae_lambda": 0.0,
        "levels": "uniform",
        "n_quantiles": 8,
        "twin_critics": False,
        "learning_rate": lambda remaining: 0.02 * remaining,
        "vf_coef": 5.0,
        "max_grad_norm": None,
        "policy_kwargs": {"net_arch": []},
        "seed": 0,
        "device": "cpu",
    }
    model = DistributionalPPO("MlpPolicy", env, **(arguments | kwargs))
    return model.learn(rollouts * env.length * env.num_envs)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    return 5.0 - 2.0 * rng.exponential(size=n)


@pytest.mark.parametrize("critic", ["quantile", "categorical"])
def test_the_quantiles_of_a_single_reward_are_learned(critic: str) -> None:
    model = trained(Chain(400, 1, skewed), 30, critic=critic)
    outlook = model.predict_distribution(np.ones((1, 1), np.float32))
    levels = np.array([0.1, 0.25, 0.5, 0.75, 0.9])
    found = np.array([outlook.var(float(level))[0] for level in levels])
    # 5 − 2·Exp: its τ-quantile is 5 − 2·F⁻¹(1 − τ); one standard deviation is 2, an atom of 51 about 0.4 wide.
    np.testing.assert_allclose(found, 5.0 - 2.0 * expon.ppf(1.0 - levels), atol=0.5)
    assert outlook.mean[0] == pytest.approx(3.0, abs=0.25)


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return 1.0 + rng.normal(size=n)


def spread_at_the_start(model: DistributionalPPO) -> float:
    """Distance from the 1/16 to the 15/16 quantile of the return, in that of a standard normal: its σ."""
    outlook = model.predict_distribution(np.eye(4, dtype=np.float32)[:1])
    return float((outlook.quantiles[0, -1] - outlook.quantiles[0, 0]) / (2.0 * norm.ppf(15 / 16)))


def test_targets_with_a_distribution_learn_the_spread_of_the_return_and_scalar_ones_do_not() -> None:
    # Four rewards N(1, 1): the return at the start is N(4, 4), σ = 2. A bootstrap with the mean leaves σ = 1.
    models = {kind: trained(Chain(200, 4, normal), 40, value_targets=kind) for kind in ("distributional", "scalar")}
    for model in models.values():
        outlook = model.predict_distribution(np.eye(4, dtype=np.float32)[:1])
        assert outlook.mean[0] == pytest.approx(4.0, abs=0.4)
    assert spread_at_the_start(models["distributional"]) == pytest.approx(2.0, abs=0.3)
    assert spread_at_the_start(models["scalar"]) == pytest.approx(1.0, abs=0.3)
