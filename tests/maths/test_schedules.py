"""Values over training."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.errors import ArgumentError
from leeward.maths.schedules import constant, cosine, linear

SCHEDULES = {"constant": constant, "linear": linear, "cosine": cosine}
values = st.floats(-1e3, 1e3)


def test_each_schedule_at_the_quarter():
    # From 8 to 4: linear 8 − 1 = 7; cosine 4 + ½·4·(1 + cos 45°) = 4 + 2·1.7071 = 7.41421
    assert constant(0.25, 8.0, 4.0) == 8.0
    assert linear(0.25, 8.0, 4.0) == 7.0
    assert cosine(0.25, 8.0, 4.0) == pytest.approx(7.41421, abs=1e-5)


@pytest.mark.parametrize("name", ["linear", "cosine"])
@given(start=values, end=values, one=st.floats(0, 1), two=st.floats(0, 1))
def test_a_schedule_meets_both_ends_and_never_turns_back(name, start, end, one, two):
    schedule = SCHEDULES[name]
    assert schedule(0.0, start, end) == pytest.approx(start, abs=1e-9)
    assert schedule(1.0, start, end) == pytest.approx(end, abs=1e-9)
    early, late = sorted((one, two))
    direction = 1.0 if end >= start else -1.0
    assert direction * (schedule(late, start, end) - schedule(early, start, end)) >= -1e-9


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_progress_beyond_its_range_is_held_at_the_ends(name):
    schedule = SCHEDULES[name]
    assert schedule(-3.0, 1.0, 2.0) == schedule(0.0, 1.0, 2.0)
    assert schedule(1.5, 1.0, 2.0) == schedule(1.0, 1.0, 2.0)


@pytest.mark.parametrize("name", list(SCHEDULES))
def test_progress_must_be_a_number(name):
    with pytest.raises(ArgumentError, match=r"progress must be a finite number in \[0, 1\], got nan"):
        SCHEDULES[name](float("nan"), 1.0, 2.0)
