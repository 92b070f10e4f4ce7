"""The quick tanh is tanh."""

import torch
from torch import nn
from torch.testing import assert_close

from leeward.networks.activations import Tanh, with_quick_tanh


def test_value_and_slope_are_those_of_torch_also_where_it_saturates() -> None:
    x = torch.cat([torch.linspace(-4.0, 4.0, 40_001), torch.tensor([-100.0, -20.0, 0.0, 1e-8, 20.0, 100.0])])
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    values, exact = Tanh()(ours), torch.tanh(theirs)
    assert_close(values, exact, rtol=0, atol=2.4e-7)
    values.sum().backward()
    exact.sum().backward()
    assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-6)
    assert not torch.equal(ours.grad, torch.ones_like(x))


def test_only_a_plain_tanh_is_replaced() -> None:
    class Own(nn.Tanh):
        """Somebody's own activation."""

    layers = with_quick_tanh([nn.Linear(2, 2), nn.Tanh(), nn.ReLU(), Own()])
    assert [type(layer) for layer in layers] == [nn.Linear, Tanh, nn.ReLU, Own]
