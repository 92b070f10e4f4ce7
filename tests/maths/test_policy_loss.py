"""The clipped surrogate, the two KL estimators and advantage-weighted regression."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.policy_loss import LOG_RATIO_LIMIT, awr_weights, clipped_surrogate, kl_k1, kl_k3, ratio

F64 = torch.float64


def test_the_surrogate_in_its_four_corners():
    # ε = 0.2. r = 1.5, A = 2: min(3, 1.2·2) = 2.4   r = 1.5, A = −2: min(−3, −2.4) = −3
    #          r = 0.5, A = 2: min(1, 0.8·2) = 1      r = 0.5, A = −2: min(−1, −1.6) = −1.6
    log_ratio = tensor([1.5, 1.5, 0.5, 0.5], dtype=F64).log()
    loss = clipped_surrogate(log_ratio, tensor([2.0, -2.0, 2.0, -2.0], dtype=F64), clip_range=0.2)
    assert_close(loss, tensor([-2.4, 3.0, -1.0, 1.6], dtype=F64))


def test_the_gradient_is_cut_only_where_the_step_would_go_further_out():
    log_ratio = tensor([1.5, 1.5, 0.5, 0.5], dtype=F64).log().requires_grad_()
    clipped_surrogate(log_ratio, tensor([2.0, -2.0, 2.0, -2.0], dtype=F64), clip_range=0.2).sum().backward()
    # d(−rA)/d log r = −rA: cut in corners 1 and 4; −1.5·−2 = 3 and −0.5·2 = −1 in the others.
    assert_close(log_ratio.grad, tensor([0.0, 3.0, -1.0, 0.0], dtype=F64))


def test_at_ratio_one_the_gradient_is_that_of_the_plain_policy_gradient():
    log_ratio = torch.zeros(3, dtype=F64, requires_grad=True)
    advantages = tensor([1.0, -2.0, 0.5], dtype=F64)
    clipped_surrogate(log_ratio, advantages, clip_range=0.2).sum().backward()
    assert_close(log_ratio.grad, -advantages)


@given(log_ratio=st.floats(-3, 3), advantage=st.floats(-10, 10), clip_range=st.floats(0.01, 0.9))
def test_the_surrogate_is_a_pessimistic_bound(log_ratio, advantage, clip_range):
    one = clipped_surrogate(tensor(log_ratio, dtype=F64), tensor(advantage, dtype=F64), clip_range=clip_range)
    assert float(one) >= -math.exp(log_ratio) * advantage - 1e-9
    assert float(one) >= -max(advantage * (1 + clip_range), advantage * (1 - clip_range)) - 1e-9


def test_the_ratio_survives_extreme_exponents_and_keeps_nan():
    found = ratio(tensor([30.0, -30.0, torch.inf, -torch.inf, torch.nan, 0.0]))
    limit = math.exp(LOG_RATIO_LIMIT)
    assert_close(found, tensor([limit, 1 / limit, limit, 1 / limit, torch.nan, 1.0]), equal_nan=True)


def test_nan_reaches_the_loss_and_a_huge_ratio_stays_finite():
    loss = clipped_surrogate(tensor([torch.nan, 1e4, -1e4]), tensor([1.0, -1.0, 1.0]), clip_range=0.2)
    assert torch.isfinite(loss).tolist() == [False, True, True]


def test_k1_and_k3_by_hand():
    # log r = ln 2: k1 = −0.693147, k3 = 2 − 1 − 0.693147 = 0.306853
    log_ratio = tensor([math.log(2.0)], dtype=F64)
    assert float(kl_k1(log_ratio)) == pytest.approx(-0.693147, abs=1e-6)
    assert float(kl_k3(log_ratio)) == pytest.approx(0.306853, abs=1e-6)


def test_both_estimators_are_unbiased_for_two_gaussians():
    # Actions come from the old policy N(0, 1); the new one is N(0.3, 1.2). Expectations by scipy's quadrature.
    old, new = stats.norm(0.0, 1.0), stats.norm(0.3, 1.2)
    exact = math.log(1.2) + (1.0 + 0.3**2) / (2 * 1.2**2) - 0.5

    def expected(estimator):
        def density(x):
            return old.pdf(x) * float(estimator(tensor(new.logpdf(x) - old.logpdf(x), dtype=F64)))

        return integrate.quad(density, -12, 12, limit=200)[0]

    assert expected(kl_k1) == pytest.approx(exact, abs=1e-6)
    assert expected(kl_k3) == pytest.approx(exact, abs=1e-6)


def test_k3_has_the_lower_variance():
    actions = torch.from_numpy(np.random.default_rng(0).normal(size=20_000))
    log_ratio = torch.from_numpy(stats.norm(0.1, 1.0).logpdf(actions) - stats.norm(0.0, 1.0).logpdf(actions))
    assert float(kl_k3(log_ratio).var()) < 0.1 * float(kl_k1(log_ratio).var())


@given(st.floats(-25, 25))
def test_k3_is_never_negative_and_zero_only_without_change(log_ratio):
    assert float(kl_k3(tensor(log_ratio, dtype=F64))) >= 0.0
    assert float(kl_k3(tensor(log_ratio, dtype=torch.float32))) >= 0.0
    assert float(kl_k3(tensor(0.0))) == 0.0


def test_awr_weights_by_hand():
    # β = 2: A = 2 → e; A = 0 → 1; A = −2 → 1/e; A = 1e6 → the cap, without overflow on the way.
    weights = awr_weights(tensor([2.0, 0.0, -2.0, 1e6], dtype=F64), beta=2.0, max_weight=20.0)
    assert_close(weights, tensor([math.e, 1.0, 1 / math.e, 20.0], dtype=F64))


def test_no_gradient_flows_through_awr_weights():
    advantages = torch.ones(3, requires_grad=True)
    assert not awr_weights(advantages, beta=1.0, max_weight=20.0).requires_grad


def test_a_huge_advantage_gets_the_cap_and_nan_stays_nan_in_float32():
    # exp(1000) is infinite in float32.
    weights = awr_weights(tensor([1000.0, torch.inf, torch.nan]), beta=1.0, max_weight=20.0)
    assert_close(weights, tensor([20.0, 20.0, torch.nan]), equal_nan=True)


@given(st.floats(-100, 100), st.floats(-100, 100), st.floats(0.1, 10), st.floats(1, 100))
def test_awr_weights_rise_with_the_advantage_up_to_the_cap(one, two, beta, cap):
    low, high = awr_weights(tensor(sorted((one, two)), dtype=F64), beta=beta, max_weight=cap)
    assert 0.0 <= float(low) <= float(high) <= cap * (1 + 1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: clipped_surrogate(torch.zeros(2, 3), torch.zeros(3, 2), clip_range=0.2),
            r"advantages must have the shape of log_ratio, \(2, 3\), got \(3, 2\)",
        ),
        (
            lambda: clipped_surrogate(torch.zeros(2), torch.zeros(2), clip_range=-0.1),
            "clip_range must be finite and not negative",
        ),
        (lambda: clipped_surrogate(torch.zeros(2), torch.zeros(2), clip_range=math.nan), "clip_range .* got nan"),
        (lambda: awr_weights(torch.zeros(2), beta=0.0, max_weight=20.0), "beta must be positive and finite, got 0.0"),
        (lambda: awr_weights(torch.zeros(2), beta=1.0, max_weight=-1.0), "max_weight must be positive .* got -1.0"),
    ],
)
def test_the_policy_loss_names_what_is_wrong(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
