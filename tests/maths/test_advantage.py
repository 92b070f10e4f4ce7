"""Advantage normalisation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.advantage import below_floor, normalise

F64 = torch.float64


def test_four_advantages_by_hand():
    # Mean 4, deviations −3, −1, 1, 3: variance (9 + 1 + 1 + 9)/4 = 5.
    result = normalise(tensor([[1.0, 3.0], [5.0, 7.0]], dtype=F64))
    assert_close(result, tensor([[-3.0, -1.0], [1.0, 3.0]], dtype=F64) / 5**0.5)


def test_per_env_gives_each_column_its_own_mean_and_scale():
    # Column 0: 0, 2 → mean 1, std 1. Column 1: 0, 200 → mean 100, std 100. Both become −1, 1.
    numbers = tensor([[0.0, 0.0], [2.0, 200.0]], dtype=F64)
    assert_close(normalise(numbers, mode="per_env"), tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=F64))
    assert torch.equal(normalise(numbers, mode="none"), numbers)


@pytest.mark.parametrize("mode", ["global", "per_env"])
@pytest.mark.parametrize("level", [0.0, 0.1, -7.3, 1e6])
def test_advantages_without_spread_become_exact_zeros(mode, level):
    constant = torch.full((5, 3), level, dtype=F64)
    noisy = constant + 1e-9 * torch.from_numpy(np.random.default_rng(0).normal(size=(5, 3)))
    for numbers in (constant, noisy):
        assert torch.equal(normalise(numbers, mode=mode), torch.zeros(5, 3, dtype=F64))
        assert bool(below_floor(numbers, mode=mode).all())


def test_the_floor_grows_with_the_size_of_the_advantages():
    # std 1e-4 around 1e6: above the absolute floor, 1e-8, but below 1e-6 of the largest advantage.
    numbers = 1e6 + 1e-4 * torch.from_numpy(np.random.default_rng(0).normal(size=(5, 3)))
    assert torch.equal(normalise(numbers), torch.zeros(5, 3, dtype=F64))
    assert float(normalise(numbers, rel_floor=1e-12).std(correction=0)) == pytest.approx(1.0)


def test_small_but_real_spread_is_kept_and_the_floor_says_so():
    numbers = torch.from_numpy(1e-4 * np.random.default_rng(0).normal(size=(5, 3)))
    assert float(normalise(numbers).std(correction=0)) == pytest.approx(1.0)
    assert not bool(below_floor(numbers).any())


def test_only_the_env_without_spread_becomes_zero():
    numbers = torch.from_numpy(np.random.default_rng(0).normal(size=(6, 3)))
    numbers[:, 1] = 2.5
    result = normalise(numbers, mode="per_env")
    assert below_floor(numbers, mode="per_env").tolist() == [[False, True, False]]
    assert torch.equal(result[:, 1], torch.zeros(6, dtype=F64))
    assert_close(result[:, [0, 2]].std(0, correction=0), torch.ones(2, dtype=F64))


@given(seed=st.integers(0, 10_000), scale=st.floats(1e-3, 1e5), shift=st.floats(-100, 100))
def test_mean_zero_std_one_and_no_sight_of_unit_or_offset(seed, scale, shift):
    numbers = torch.from_numpy(np.random.default_rng(seed).normal(size=(7, 4)))
    result = normalise(numbers)
    assert float(result.mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(result.std(correction=0)) == pytest.approx(1.0)
    assert_close(normalise(numbers * scale + shift * scale), result, rtol=0, atol=1e-6)


def test_padding_neither_counts_nor_leaks_even_as_nan():
    real = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 3)))
    padded = torch.cat([real, torch.full((2, 3), torch.nan, dtype=F64)])
    mask = torch.arange(6).unsqueeze(-1).expand(6, 3) < 4
    for mode in ("global", "per_env"):
        result = normalise(padded, mask, mode=mode)
        assert_close(result[:4], normalise(real, mode=mode))
        assert torch.equal(result[4:], torch.zeros(2, 3, dtype=F64))


def test_an_env_without_a_real_row_has_no_spread_to_miss():
    numbers = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 3)))
    mask = torch.tensor([True, True, False]).expand(4, 3)
    assert below_floor(numbers, mask, mode="per_env").tolist() == [[False, False, False]]
    numbers[:, 1] = 0.5
    assert below_floor(numbers, mask, mode="per_env").tolist() == [[False, True, False]]


def test_float32_statistics_do_not_lose_the_spread_on_a_large_mean():
    # float32 resolves 1e4 to 0.001; statistics in float32 would err by far more than that.
    numbers = 1e4 + torch.randn(64, 33, generator=torch.Generator().manual_seed(0))
    result = normalise(numbers)
    assert result.dtype == torch.float32
    assert float(result.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(result.std(correction=0)) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("advantages", "options", "message"),
    [
        (torch.zeros(4, 2), {"mode": "gloabl"}, "unknown advantage normalisation 'gloabl'; did you mean 'global'"),
        (
            torch.zeros(4, 2),
            {"mask": torch.ones(2, 4, dtype=torch.bool)},
            r"shape of advantages, \(4, 2\), got \(2, 4\)",
        ),
        (torch.zeros(4, 2), {"mask": torch.zeros(4, 2, dtype=torch.bool)}, "mask selects no advantage"),
        (torch.zeros(4, 2), {"mask": torch.ones(4, 2)}, "mask must be bool, got torch.float32"),
        (torch.zeros(0, 2), {}, "mask selects no advantage"),
        (torch.full((4, 2), torch.nan), {}, r"advantages must be finite, got 8 NaN .* first at index \(0, 0\)"),
        (torch.zeros(4, 2), {"abs_floor": 0.0}, "abs_floor must be positive and finite, got 0.0"),
        (torch.zeros(4, 2), {"rel_floor": -1.0}, "rel_floor must be finite and not negative, got -1.0"),
    ],
)
def test_normalisation_names_what_is_wrong(advantages, options, message):
    with pytest.raises(ArgumentError, match=message):
        normalise(advantages, **options)
