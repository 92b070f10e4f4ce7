"""Hidden layers behind a memory or an extractor."""

import torch
from stable_baselines3.common.torch_layers import create_mlp
from torch import Tensor, nn

__all__ = ["MLP", "head_behind"]


class MLP(nn.Sequential):
    """Modules in a row, of which linear layers with tanh run as one compiled function on a CPU.

    Whatever else stands in it, and whoever looks at what passes (a hook, a trace), finds the plain modules.
    """

    @classmethod
    def of(cls, inputs: int, layers: list[int], activation: type[nn.Module]) -> "MLP":
        """As SB3's `create_mlp`, without a last layer."""
        return cls(*create_mlp(inputs, -1, layers, activation))

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.compiled(inputs)
        return super().forward(inputs) if found is None else found  # type: ignore[no-untyped-call]

    def compiled(self, inputs: Tensor, head: tuple[Tensor, ...] = ()) -> Tensor | None:
        """What comes out of the layers, or of a head of this weight and bias behind them; None where they do not fit,
        or somebody looks at what passes."""
        hidden = self._of_tanh_layers() if inputs.dtype is torch.float32 and inputs.is_cpu else None
        if not hidden or _is_watched():
            return None
        from leeward.maths.tanh_layers import tanh_layers  # numba is loaded when a network computes

        return tanh_layers(inputs, hidden, head)

    def _of_tanh_layers(self) -> tuple[Tensor, ...] | None:
        """Weight and bias of each layer, if they are linear with tanh and nothing else; runs at every call."""
        parameters: tuple[Tensor, ...] = ()
        wanted: type[nn.Module] = nn.Linear
        for module in self._modules.values():
            assert module is not None
            own = _untouched(module, wanted)
            if own is None:
                return None
            parameters += own
            wanted = nn.Tanh if wanted is nn.Linear else nn.Linear
        return parameters if wanted is nn.Linear else None


def head_behind(layers: nn.Module, head: nn.Module, inputs: Tensor) -> Tensor:
    """What a head gives behind layers: by one compiled function where they are an `MLP`, and nobody watches either."""
    end = _untouched(head, nn.Linear)
    found = None
    if end is not None and type(layers) is MLP and not _hooks_of(layers):
        found = layers.compiled(inputs, end)
    return head(layers(inputs)) if found is None else found


def _is_watched() -> bool:
    """Whether somebody follows all modules, or takes what they do for something else than numbers."""
    return (
        torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        or torch.compiler.is_compiling()
        or torch.is_autocast_enabled("cpu")
        or torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
        or torch.nn.modules.module._has_any_global_hook()
    )


def _hooks_of(module: nn.Module) -> bool:
    """Whether somebody looks at what passes here, or has put a `forward` of their own in its place."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
    )


def _untouched(module: nn.Module, kind: type[nn.Module]) -> tuple[Tensor, ...] | None:
    """Weight and bias of a layer that nobody watches, nothing of a tanh; None of another, or without a bias."""
    if type(module) is not kind or _hooks_of(module):
        return None
    own = module._parameters
    if not own:
        return ()
    weight, bias = own.get("weight"), own.get("bias")  # by name: who prunes a layer puts them in another order
    return None if weight is None or bias is None or len(own) > 2 else (weight, bias)
