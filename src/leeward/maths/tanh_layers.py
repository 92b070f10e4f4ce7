"""Layers h ← tanh(h Wᵀ + b) and a linear one behind them, float32 on a CPU: with the way back one autograd function.

Who asks for second derivatives has them from torch's own operations.

torch takes 2 ns for a tanh, longer than for the products of a layer of 64 units. Here it is a rational function, odd,
of degree 13 over 6, on [−7.9, 7.9], beyond which it stands still: the one that Eigen and XLA compute with. It errs by
less than 3e-7, a handful of float32's last digits, and takes a twentieth of the time.
"""

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

__all__ = ["tanh_layers"]

_END = np.float32(7.90531110763549805)
_A1, _A3, _A5, _A7, _A9, _A11, _A13 = (
    np.float32(each)
    for each in (
        4.89352455891786e-03,
        6.37261928875436e-04,
        1.48572235717979e-05,
        5.12229709037114e-08,
        -8.60467152213735e-11,
        2.00018790482477e-13,
        -2.76076847742355e-16,
    )
)
_B0, _B2, _B4, _B6 = (
    np.float32(each)
    for each in (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)
)


# nogil: actor and critics may each have a thread.
@numba.njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"})
def _squash(values: Any) -> None:
    """(n,) in place: of two arrays the compiler would have to suspect that they overlap."""
    for i in range(values.size):
        x = values[i]
        x = _END if x > _END else x  # comparisons that leave NaN alone
        x = -_END if x < -_END else x
        s = x * x
        above = x * ((((((_A13 * s + _A11) * s + _A9) * s + _A7) * s + _A5) * s + _A3) * s + _A1)
        values[i] = above / (((_B6 * s + _B4) * s + _B2) * s + _B0)


def _forward(inputs: Tensor, squashed: int, parameters: tuple[Tensor, ...]) -> list[Tensor]:  # (R, F) -> each (R, H)
    """What every layer reads, and what the last one gives."""
    found = [inputs]
    for layer, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        hidden = torch.addmm(bias, found[-1], weight.t())
        if layer < squashed:
            _squash(hidden.view(-1).numpy())
        found.append(hidden)
    return found


class _TanhLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, squashed: int, *parameters: Tensor) -> Tensor:
        found = _forward(inputs.reshape(-1, inputs.shape[-1]), squashed, parameters)
        ctx.save_for_backward(inputs, *parameters, *found[1:])
        ctx.squashed = squashed
        return found[-1].view(*inputs.shape[:-1], found[-1].shape[-1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs, *saved = ctx.saved_tensors
        n = len(saved) // 3
        parameters, weights = saved[: 2 * n], saved[: 2 * n : 2]
        if torch.is_grad_enabled():
            return _twice_differentiable(inputs, ctx.squashed, parameters, gradient, ctx.needs_input_grad)
        found = [inputs.reshape(-1, inputs.shape[-1]), *saved[2 * n :]]
        gradient = gradient.reshape(found[n].shape)
        slopes = list[Tensor | None]()
        for layer in reversed(range(n)):
            if layer < ctx.squashed:
                gradient = torch.ops.aten.tanh_backward(gradient, found[layer + 1])  # g (1 − h²)
            slopes += [gradient.sum(0), gradient.t().mm(found[layer])]
            if layer > 0 or ctx.needs_input_grad[0]:
                gradient = gradient.mm(weights[layer])
        slopes += [None, gradient.view(inputs.shape) if ctx.needs_input_grad[0] else None]
        return tuple(reversed(slopes))


def _twice_differentiable(
    inputs: Tensor, squashed: int, parameters: list[Tensor], gradient: Tensor, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The same slopes, with a way back of their own; `needed` is of inputs, `squashed` and the parameters."""
    hidden = inputs
    for layer, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
        hidden = torch.nn.functional.linear(hidden, weight, bias)
        hidden = hidden.tanh() if layer < squashed else hidden
    wanted = [each for each, need in zip((inputs, *parameters), (needed[0], *needed[2:]), strict=True) if need]
    slopes = iter(torch.autograd.grad(hidden, wanted, gradient, create_graph=True))
    return tuple(next(slopes) if need else None for need in needed)


def tanh_layers(inputs: Tensor, parameters: tuple[Tensor, ...], head: tuple[Tensor, ...] = ()) -> Tensor:
    """(..., F), weight (H, F) and bias (H,) of each layer -> (..., H) of the last; float32 on a CPU. `head` is weight
    and bias of a layer without tanh behind them."""
    squashed, parameters = len(parameters) // 2, parameters + head
    if torch.is_grad_enabled():
        found: Tensor = _TanhLayers.apply(inputs, squashed, *parameters)  # type: ignore[no-untyped-call]
        return found
    rows = _forward(inputs.reshape(-1, inputs.shape[-1]), squashed, parameters)[-1]
    return rows.view(*inputs.shape[:-1], rows.shape[-1])
