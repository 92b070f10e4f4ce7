"""Running moments, and the rescale of a linear head."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.normalisation import merge_moments, popart_rescale

F64 = torch.float64


def moments(sample):  # (n, F) -> count, mean, Σ (x − mean)²
    return float(len(sample)), sample.mean(0), (sample - sample.mean(0)).square().sum(0)


def test_two_samples_merged_by_hand():
    # {1, 3}: mean 2, M2 2. {7}: mean 7, M2 0. Together {1, 3, 7}: mean 11/3, M2 = 2 + 25·2·1/3 = 18.6667
    found = merge_moments(
        2, tensor([2.0], dtype=F64), tensor([2.0], dtype=F64), 1, tensor([7.0], dtype=F64), tensor([0.0], dtype=F64)
    )
    assert found[0] == 3
    assert_close(torch.stack(found[1:]), tensor([[11 / 3], [56 / 3]], dtype=F64))


@given(seed=st.integers(0, 10_000), first=st.integers(0, 9), second=st.integers(1, 9))
def test_merging_equals_the_moments_of_the_whole(seed, first, second):
    whole = torch.from_numpy(np.random.default_rng(seed).normal(loc=1e6, size=(first + second, 3)))
    empty = (0.0, torch.zeros(3, dtype=F64), torch.zeros(3, dtype=F64))
    count, mean, squares = merge_moments(*(moments(whole[:first]) if first else empty), *moments(whole[first:]))
    expected = moments(whole)
    assert count == expected[0]
    assert_close(mean, expected[1], rtol=1e-14, atol=0)
    assert_close(squares, expected[2], rtol=1e-6, atol=1e-9)


def test_nothing_merged_with_nothing_is_nothing():
    zero = torch.zeros(2)
    assert merge_moments(0, zero, zero, 0, zero, zero)[0] == 0.0


def test_a_head_rescaled_by_hand():
    # old N(10, 2), new N(0, 4): W' = W·2/4, b' = (2b + 10 − 0)/4
    weight, bias = popart_rescale(tensor([[4.0, 8.0]]), tensor([1.0]), (10.0, 2.0), (0.0, 4.0))
    assert_close(weight, tensor([[2.0, 4.0]]))
    assert_close(bias, tensor([3.0]))


def shift_of_decoded_outputs(dtype, old, new, seed=0):
    """Largest move of a decoded output, relative to max(old std, |old mean|)."""
    generator = torch.Generator().manual_seed(seed)
    N, H, S = 7, 5, 11
    weight, bias = torch.randn(N, H, generator=generator, dtype=dtype), torch.randn(N, generator=generator, dtype=dtype)
    hidden = torch.randn(S, H, generator=generator, dtype=dtype)
    new_weight, new_bias = popart_rescale(weight, bias, old, new)
    assert new_weight.dtype == new_bias.dtype == dtype
    before = (hidden @ weight.T + bias).double() * old[1] + old[0]
    after = (hidden @ new_weight.T + new_bias).double() * new[1] + new[0]
    return float((after - before).abs().max()) / max(old[1], abs(old[0]))


@pytest.mark.parametrize(("dtype", "factor"), [(F64, 1e6), (torch.float32, 1e2)])
def test_decoded_outputs_do_not_move_when_the_scale_does(dtype, factor):
    for old, new in [
        ((0.0, 1.0), (0.0, factor)),
        ((0.0, factor), (0.0, 1.0)),
        ((3.0, 1.0), (-3.0 * factor, factor)),
        ((5.0 * factor, factor), (2.0, 1.0)),
    ]:
        assert shift_of_decoded_outputs(dtype, old, new) <= 1e-5


@given(mean=st.floats(-1e3, 1e3), new_mean=st.floats(-1e3, 1e3), std=st.floats(1e-3, 1e3), new_std=st.floats(1e-3, 1e3))
def test_rescaling_there_and_back_is_the_identity(mean, new_mean, std, new_std):
    weight, bias = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=F64), torch.ones(3, dtype=F64)
    there = popart_rescale(weight, bias, (mean, std), (new_mean, new_std))
    back = popart_rescale(*there, (new_mean, new_std), (mean, std))
    assert_close(back[0], weight, rtol=1e-9, atol=1e-9)
    assert_close(back[1], bias, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bias": torch.zeros(2)}, r"one entry per row of weight, \(3,\), got \(2,\)"),
        ({"weight": torch.zeros(3)}, r"weight must be \(N, H\), got shape \(3,\)"),
        ({"weight": torch.full((3, 2), torch.nan)}, "weight must be finite, got 6 NaN"),
        ({"old": (0.0, 0.0)}, "old_std must be positive and finite, got 0.0"),
        ({"new": (0.0, float("inf"))}, "new_std must be positive and finite, got inf"),
        ({"new": (float("nan"), 1.0)}, "means must be finite, got 1 NaN"),
    ],
)
def test_the_rescale_names_what_is_wrong(change, message):
    call = {"weight": torch.zeros(3, 2), "bias": torch.zeros(3), "old": (0.0, 1.0), "new": (0.0, 1.0)}
    with pytest.raises(ArgumentError, match=message):
        popart_rescale(**(call | change))


def test_merging_names_what_is_wrong():
    zero = torch.zeros(2)
    with pytest.raises(ArgumentError, match="count must be finite and not negative, got -1"):
        merge_moments(-1, zero, zero, 1, zero, zero)
    with pytest.raises(ArgumentError, match=r"other_mean must have the shape of mean, \(2,\), got \(3,\)"):
        merge_moments(1, zero, zero, 1, torch.zeros(3), zero)
