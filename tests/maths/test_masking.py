"""Means over the real entries of a padded tensor."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.masking import masked_mean


def test_the_mean_counts_real_entries_only():
    # (1 + 2 + 6)/3, not /6
    values = tensor([[1.0, 2.0, 100.0], [6.0, 100.0, 100.0]])
    mask = tensor([[True, True, False], [True, False, False]])
    assert float(masked_mean(values, mask)) == 3.0


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_padding_that_is_not_finite_reaches_neither_mean_nor_gradient(poison):
    values = tensor([2.0, poison, 4.0], requires_grad=True)
    mean = masked_mean(values, tensor([True, False, True]))
    mean.backward()
    assert mean.item() == 3.0
    assert_close(values.grad, tensor([0.5, 0.0, 0.5]))


@given(st.lists(st.tuples(st.floats(-100, 100), st.booleans()), min_size=1, max_size=30))
def test_the_masked_mean_is_the_mean_of_what_the_mask_selects(pairs):
    values = tensor([value for value, _ in pairs], dtype=torch.float64)
    mask = tensor([real for _, real in pairs])
    if bool(mask.any()):
        assert_close(masked_mean(values, mask), values[mask].mean(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.bool), "mask selects no entry"),
        (torch.ones(3, 2, dtype=torch.bool), r"shape of values, \(2, 3\), got \(3, 2\)"),
        (torch.ones(2, 3), "mask must be bool, got torch.float32"),
    ],
)
def test_a_mask_that_cannot_work_is_refused(mask, message):
    with pytest.raises(ArgumentError, match=message):
        masked_mean(torch.zeros(2, 3), mask)
