"""A network that a file describes is built only as large as the file's own weights are."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from leeward.errors import CheckpointError

__all__ = ["bounded_build"]

# Of weights: building also makes copies to initialise them, moments, and what the file left out with its optimiser.
_TIMES, _ALWAYS = 8, 1 << 22
_FEW = 64  # tensors that are always free: each costs kilobytes, however small it is
_FACTORIES = {"empty", "empty_strided", "full", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros",
              "ones", "rand", "randn", "zeros"}  # fmt: skip


class bounded_build(TorchDispatchMode):
    """Inside, `n_tensors` tensors of `in_file` numbers and what goes with them can be made, and not much more."""

    def __init__(self, in_file: int, n_tensors: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.in_file, self.n_tensors, self.made, self.calls = in_file, n_tensors, 0, 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in _FACTORIES:
            size = next((each for each in args if isinstance(each, list | tuple)), ())
            self.made += math.prod(size)
            self.calls += 1
            if self.calls > _TIMES * (self.n_tensors + _FEW):
                raise CheckpointError(
                    f"the file describes a network of more tensors than {self.calls:,}, and holds {self.n_tensors:,}; "
                    "its arguments and its weights do not belong together"
                )
            if self.made > _TIMES * self.in_file + _ALWAYS:
                raise CheckpointError(
                    f"the file describes a network with a tensor of {list(size)}, and holds {self.in_file:,} numbers "
                    "in all; its arguments and its weights do not belong together"
                )
        return func(*args, **(kwargs or {}))
