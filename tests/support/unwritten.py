"""Memory that nobody wrote holds what shows: NaN, or a number nobody would write. Left alone it is most often 0."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

NUMBER = 0x55


def show_unwritten_memory() -> None:
    """`empty` and `empty_like` of NumPy and torch, as everything here calls them, for the rest of this process."""
    for name in ("empty", "empty_like"):
        setattr(np, name, _filled(getattr(np, name), _fill_array))
        setattr(torch, name, _filled(getattr(torch, name), _fill_tensor))


def _filled(make: Callable[..., Any], fill: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(make, assigned=("__name__", "__doc__"), updated=())
    def made(*args: Any, **kwargs: Any) -> Any:
        found = make(*args, **kwargs)
        fill(found)
        return found

    return made


def _fill_array(array: Any) -> None:
    if array.dtype.kind in "fc":
        array.fill(np.nan)
    elif array.dtype.kind in "biu":
        array.fill(NUMBER)


def _fill_tensor(tensor: torch.Tensor) -> None:
    if tensor.is_floating_point() and tensor.itemsize > 1 and tensor.device.type == "cpu":  # "meta" has no memory
        with torch.no_grad():
            tensor.fill_(torch.nan)
