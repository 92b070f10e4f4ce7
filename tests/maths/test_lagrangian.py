"""The multiplier of a constraint value ≥ limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import ArgumentError
from leeward.maths.lagrangian import dual_ascent, pid_step

numbers = st.floats(-100, 100)


def test_the_multiplier_grows_while_the_tail_is_worse_than_its_limit():
    # limit −0.02, measured −0.05: gap 0.03; 1 + 10·0.03 = 1.3. Measured −0.01: gap −0.01; 1 − 0.1 = 0.9.
    assert dual_ascent(1.0, -0.05, limit=-0.02, lr=10.0, ceiling=100.0) == pytest.approx(1.3)
    assert dual_ascent(1.0, -0.01, limit=-0.02, lr=10.0, ceiling=100.0) == pytest.approx(0.9)


def test_the_ceiling_is_the_one_that_was_given():
    assert dual_ascent(49.0, -5.0, limit=0.0, lr=1.0, ceiling=50.0) == 50.0
    assert dual_ascent(10.0, -5.0, limit=0.0, lr=1.0, ceiling=50.0) == 15.0


def test_dual_ascent_does_not_wind_up_at_either_end():
    # However long the violation lasted, one step back leaves the ceiling at once; likewise at 0.
    multiplier = 0.0
    for _ in range(1000):
        multiplier = dual_ascent(multiplier, -1.0, limit=0.0, lr=1.0, ceiling=5.0)
    assert dual_ascent(multiplier, 1.0, limit=0.0, lr=1.0, ceiling=5.0) == 4.0
    for _ in range(1000):
        multiplier = dual_ascent(multiplier, 1.0, limit=0.0, lr=1.0, ceiling=5.0)
    assert dual_ascent(multiplier, -1.0, limit=0.0, lr=1.0, ceiling=5.0) == 1.0


def test_dual_ascent_finds_the_multiplier_of_a_closed_form_problem():
    # max 2w − w² s.t. −w ≥ −0.4. Best reply to λ: w = 1 − λ/2. The constraint binds at w = 0.4: λ = 1.2.
    multiplier = 0.0
    for _ in range(200):
        position = 1.0 - multiplier / 2.0
        multiplier = dual_ascent(multiplier, -position, limit=-0.4, lr=0.5, ceiling=10.0)
    assert multiplier == pytest.approx(1.2)


def test_one_pid_step_by_hand():
    # limit 0, value −2: gap 2, before 0.5. I = 1 + 0.1·2 = 1.2; λ = 0.5·2 + 1.2 + 0.2·(2 − 0.5) = 2.5
    found = pid_step(1.0, 0.5, -2.0, limit=0.0, kp=0.5, ki=0.1, kd=0.2, ceiling=10.0)
    assert found == pytest.approx((2.5, 1.2, 2.0))


def test_the_derivative_acts_only_while_the_violation_grows():
    # gap 1 after 3: the term is 0, not negative. λ = 0.5·1 + 1.1
    assert pid_step(1.0, 3.0, -1.0, limit=0.0, kp=0.5, ki=0.1, kd=9.0, ceiling=10.0)[0] == pytest.approx(1.6)


def test_the_integral_does_not_wind_up_at_either_end():
    integral = previous = 0.0
    for _ in range(1000):
        multiplier, integral, previous = pid_step(
            integral, previous, -1.0, limit=0.0, kp=0.0, ki=1.0, kd=0.0, ceiling=5.0
        )
    assert (multiplier, integral) == (5.0, 5.0)
    assert pid_step(integral, previous, 1.0, limit=0.0, kp=0.0, ki=1.0, kd=0.0, ceiling=5.0)[0] == 4.0
    for _ in range(1000):
        multiplier, integral, previous = pid_step(
            integral, previous, 1.0, limit=0.0, kp=0.0, ki=1.0, kd=0.0, ceiling=5.0
        )
    assert (multiplier, integral) == (0.0, 0.0)


@given(multiplier=st.floats(0, 10), one=numbers, two=numbers, limit=numbers)
def test_a_worse_tail_never_lowers_the_multiplier(multiplier, one, two, limit):
    worse, better = sorted((one, two))
    options = {"limit": limit, "lr": 0.1, "ceiling": 10.0}
    high, low = dual_ascent(multiplier, worse, **options), dual_ascent(multiplier, better, **options)
    assert 0.0 <= low <= high <= 10.0


@given(integral=st.floats(0, 10), previous=numbers, value=numbers, limit=numbers)
def test_with_the_integral_alone_pid_is_dual_ascent(integral, previous, value, limit):
    pid = pid_step(integral, previous, value, limit=limit, kp=0.0, ki=0.3, kd=0.0, ceiling=10.0)
    assert pid[0] == pid[1] == pytest.approx(dual_ascent(integral, value, limit=limit, lr=0.3, ceiling=10.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": float("nan")}, "measured value and its limit must be finite, got value nan, limit 0.0"),
        ({"limit": float("inf")}, "must be finite, got value 0.0, limit inf"),
        ({"lr": 0.0}, "lr must be positive and finite, got 0.0"),
        ({"ceiling": -1.0}, "ceiling must be positive and finite, got -1.0"),
        ({"multiplier": float("nan")}, "multiplier must be finite and not negative, got nan"),
        ({"multiplier": -0.5}, "multiplier must be finite and not negative, got -0.5"),
    ],
)
def test_dual_ascent_names_what_is_wrong(change, message):
    with pytest.raises(ArgumentError, match=message):
        dual_ascent(**({"multiplier": 0.0, "value": 0.0, "limit": 0.0, "lr": 1.0, "ceiling": 5.0} | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kp": -1.0}, "kp must be finite and not negative, got -1.0"),
        ({"kd": float("inf")}, "kd must be finite and not negative, got inf"),
        ({"integral": float("nan")}, "integral must be finite and not negative, got nan"),
        ({"previous": float("nan")}, "previous gap must be finite, got nan; start with 0"),
        ({"value": float("-inf")}, "got value -inf"),
    ],
)
def test_pid_names_what_is_wrong(change, message):
    call = {"integral": 0.0, "previous": 0.0, "value": 0.0, "limit": 0.0, "kp": 1.0, "ki": 1.0, "kd": 1.0}
    with pytest.raises(ArgumentError, match=message):
        pid_step(**(call | change), ceiling=5.0)
