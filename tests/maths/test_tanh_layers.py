"""Tanh layers as one function: against torch's own modules, values and gradients."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from leeward.maths.tanh_layers import _squash, tanh_layers

R, F, H, G = 7, 3, 5, 4  # rows, features, units of the layers


def squashed(values: Tensor) -> Tensor:
    found = values.clone()
    _squash(found.view(-1).numpy())
    return found


def layers(seed: int = 0, scale: float = 1.0) -> nn.Sequential:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(F, H), nn.Tanh(), nn.Linear(H, G), nn.Tanh())
    for parameter in made.parameters():
        parameter.data *= scale
    return made


def test_every_size_of_number_is_squashed_to_within_3e_7():
    # Every 101st float32 from 1e-10 to 20, both signs; the relative error of small ones is as small.
    sizes = np.arange(0x2F000000, 0x41A00000, 101, dtype=np.uint32).view(np.float32)
    values = torch.from_numpy(np.concatenate([sizes, -sizes]))
    exact = values.double().tanh()
    assert_close(squashed(values).double(), exact, atol=0.0, rtol=3e-7)


def test_tanh_is_odd_bounded_and_zero_at_zero():
    values = torch.linspace(0.0, 50.0, 1001)
    assert torch.equal(squashed(-values), -squashed(values))
    assert float(squashed(values).max()) <= 1.0
    assert float(squashed(torch.zeros(1))) == 0.0


def test_infinities_end_at_one_and_nan_stays_nan():
    found = squashed(torch.tensor([torch.inf, -torch.inf, torch.nan, 1.0]))
    assert_close(found[:2], torch.tensor([1.0, -1.0]), atol=3e-7, rtol=0.0)
    assert found[2].isnan() and not found[3].isnan()


@pytest.mark.parametrize("scale", [1.0, 8.0])  # 8: most units are saturated
@pytest.mark.parametrize("shape", [(R, F), (2, R, F), (0, F), (F,)], ids=str)
def test_values_and_all_gradients_are_those_of_torchs_modules(shape: tuple[int, ...], scale: float):
    plain = layers(scale=scale)
    parameters = tuple(plain.parameters())
    inputs = torch.randn(shape, requires_grad=True)
    pull = torch.randn((*shape[:-1], G))  # a gradient of another size at every output
    wanted = torch.autograd.grad((plain(inputs) * pull).sum(), (inputs, *parameters))
    found = tanh_layers(inputs, parameters)
    assert_close(found, plain(inputs), atol=2e-6 * scale, rtol=0.0)
    slopes = torch.autograd.grad((found * pull).sum(), (inputs, *parameters))
    for slope, other in zip(slopes, wanted, strict=True):
        assert_close(slope, other, atol=1e-5 * scale, rtol=1e-4)


def test_a_head_is_a_layer_without_tanh():
    plain, head = layers(), nn.Linear(G, 2)
    parameters, ends = tuple(plain.parameters()), tuple(head.parameters())
    inputs, pull = torch.randn(R, F, requires_grad=True), torch.randn(R, 3, 2)[:, 1]  # a part of a larger table
    wanted = torch.autograd.grad((head(plain(inputs)) * pull).sum(), (inputs, *parameters, *ends))
    found = tanh_layers(inputs, parameters, ends)
    assert_close(found, head(plain(inputs)), atol=2e-6, rtol=0.0)
    slopes = torch.autograd.grad((found * pull).sum(), (inputs, *parameters, *ends))
    for slope, other in zip(slopes, wanted, strict=True):
        assert_close(slope, other, atol=1e-5, rtol=1e-4)


def test_inputs_that_need_no_gradient_get_none():
    parameters = tuple(layers().parameters())
    inputs = torch.randn(R, F)
    tanh_layers(inputs, parameters).sum().backward()
    assert inputs.grad is None and all(p.grad is not None for p in parameters)


def test_without_gradients_the_same_numbers_come_out():
    parameters, inputs = tuple(layers().parameters()), torch.randn(2, R, F)
    with torch.no_grad():
        bare = tanh_layers(inputs, parameters)
    assert not bare.requires_grad and torch.equal(bare, tanh_layers(inputs, parameters))


def test_inputs_that_are_not_contiguous_are_read_in_their_order():
    parameters = tuple(layers().parameters())
    inputs = torch.randn(R, 2, F).transpose(0, 1)
    assert torch.equal(tanh_layers(inputs, parameters), tanh_layers(inputs.contiguous(), parameters))
