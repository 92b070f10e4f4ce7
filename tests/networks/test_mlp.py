"""Hidden layers: compiled where they are linear with tanh on a CPU, plain modules for everything and everyone else."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrizations, parametrize, prune
from torch.testing import assert_close

from leeward.maths import tanh_layers
from leeward.networks.mlp import MLP, head_behind

S, F = 5, 3


def mlp(activation: type[nn.Module] = nn.Tanh, layers: tuple[int, ...] = (7, 4)) -> MLP:
    torch.manual_seed(0)
    return MLP.of(F, list(layers), activation)


def plainly(made: MLP, inputs: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = nn.Sequential.forward(made, inputs)
    return found


def prune_and_keep(layer: nn.Linear) -> None:
    prune.remove(prune.l1_unstructured(layer, "weight", amount=0.5), "weight")


def weight_normed(layer: nn.Linear) -> None:
    parametrize.remove_parametrizations(parametrizations.weight_norm(layer), "weight")


def is_compiled(made: MLP, inputs: torch.Tensor) -> bool:
    with mock.patch.object(tanh_layers, "tanh_layers", wraps=tanh_layers.tanh_layers) as seen:
        made(inputs)
    return seen.called


def test_layers_with_tanh_are_compiled_and_compute_what_the_modules_do():
    made, inputs = mlp(), torch.randn(2, S, F)
    assert is_compiled(made, inputs)
    assert_close(made(inputs), plainly(made, inputs), atol=1e-6, rtol=0.0)


def test_weights_go_by_the_names_that_checkpoints_know():
    assert list(mlp().state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_part_of_the_layers_is_cut_out_as_of_other_modules_in_a_row():
    made, inputs = mlp(), torch.randn(S, F)
    assert_close(made[2:](made[:2](inputs)), made(inputs))


@pytest.mark.parametrize("made", [mlp(nn.ReLU), mlp(layers=())], ids=["relu", "no layer"])
def test_other_layers_are_plain_modules(made: MLP):
    inputs = torch.randn(S, F)
    assert not is_compiled(made, inputs)
    assert torch.equal(made(inputs), plainly(made, inputs))


def test_a_layer_that_somebody_put_in_its_place_computes():
    made, inputs = mlp(), torch.randn(S, F)
    made[1] = nn.ReLU()
    assert torch.equal(made(inputs), plainly(made, inputs))
    made = mlp()
    made[2] = nn.Linear(7, 4, bias=False)
    assert torch.equal(made(inputs), plainly(made, inputs))
    made = mlp()
    made.append(nn.Linear(4, 2))
    assert made(inputs).shape == (S, 2)


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_a_head_reads_the_last_layer(activation: type[nn.Module]):
    made, inputs, head = mlp(activation), torch.randn(2, S, F), nn.Linear(4, 6)
    assert_close(head_behind(made, head, inputs), head(plainly(made, inputs)), atol=1e-6, rtol=0.0)


@pytest.mark.parametrize("head", [nn.Linear(4, 6, bias=False), nn.Sequential(nn.Linear(4, 6), nn.ReLU())], ids=str)
def test_a_head_of_another_kind_computes_by_itself(head: nn.Module):
    made, inputs = mlp(), torch.randn(S, F)
    assert_close(head_behind(made, head, inputs), head(plainly(made, inputs)), atol=1e-6, rtol=0.0)


def test_a_hook_on_a_head_is_called():
    made, head, calls = mlp(), nn.Linear(4, 6), list[object]()
    head.register_forward_hook(lambda *seen: calls.append(seen[0]))
    head_behind(made, head, torch.randn(S, F))
    assert calls == [head]


def test_float64_keeps_its_digits():
    made, inputs = mlp().double(), torch.randn(S, F, dtype=torch.float64)
    assert torch.equal(made(inputs), plainly(made, inputs))


@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("way", ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"])
def test_a_hook_on_a_layer_is_called(layer: int, way: str):
    made, calls = mlp(), list[object]()
    getattr(made[layer], way)(lambda *seen: calls.append(seen[0]))
    made(torch.randn(S, F, requires_grad=True)).sum().backward()
    assert calls == [made[layer]]


@pytest.mark.parametrize("place", ["a layer", "the layers", "the head"])
def test_a_forward_that_somebody_has_put_in_the_place_of_a_modules_own_is_called(place: str):
    made, head, calls = mlp(), nn.Linear(4, 6), list[object]()
    module = {"a layer": made[1], "the layers": made, "the head": head}[place]
    own, inputs = module.forward, torch.randn(S, F)
    wanted = head(plainly(made, inputs))
    module.forward = lambda inputs: (calls.append(module), own(inputs))[1]
    assert_close(head_behind(made, head, inputs), wanted, atol=1e-6, rtol=0.0)
    assert calls == [module]


def test_a_trace_holds_the_layers_and_not_the_numbers_of_one_input():
    made, inputs = mlp(), torch.randn(S, F)
    with pytest.warns(DeprecationWarning):
        traced = torch.jit.trace(made, torch.randn(S, F))
    assert_close(traced(inputs), made(inputs), atol=1e-6, rtol=0.0)


def test_a_hook_on_all_layers_is_called_with_what_they_read_and_give_and_not_with_a_heads():
    made, head, calls = mlp(), nn.Linear(4, 6), list[tuple[object, ...]]()
    made.register_forward_hook(lambda *seen: calls.append(seen))
    inputs = torch.randn(S, F)
    head_behind(made, head, inputs)
    ((module, read, given),) = calls
    assert module is made and len(read) == 1 and read[0] is inputs
    assert given.shape == (S, 4)


def test_a_head_stands_behind_modules_of_another_class_too():
    plain, head, inputs = nn.Sequential(nn.Linear(F, 4), nn.Tanh()), nn.Linear(4, 6), torch.randn(S, F)
    assert torch.equal(head_behind(plain, head, inputs), head(plain(inputs)))


def test_who_follows_all_modules_sees_every_layer():
    made, calls = mlp(), list[object]()
    handle = nn.modules.module.register_module_forward_hook(lambda *seen: calls.append(seen[0]))
    try:
        made(torch.randn(S, F))
    finally:
        handle.remove()
    assert calls == [*made, made]


def test_layers_run_under_autocast():
    made, inputs = mlp(), torch.randn(S, F)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made(inputs), plainly(made, inputs))
        assert made(inputs).dtype is torch.bfloat16


def test_layers_are_transformed_as_other_functions_are():
    made, inputs = mlp(), torch.randn(S, F)
    slopes = torch.func.vmap(torch.func.grad(lambda row: made(row).sum()))(inputs)
    wanted = torch.func.vmap(torch.func.grad(lambda row: plainly(made, row).sum()))(inputs)
    assert_close(slopes, wanted)


@pytest.mark.parametrize("shape", [prune_and_keep, weight_normed], ids=["pruned", "weights that were normed"])
def test_layers_whose_parameters_were_registered_anew_are_read_by_name(shape: Callable[[nn.Linear], object]):
    made, inputs = mlp(), torch.randn(S, F)
    shape(made[0])
    assert list(made[0]._parameters) == ["bias", "weight"]
    assert_close(made(inputs), plainly(made, inputs), atol=1e-6, rtol=0.0)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own, for its first dual number
def test_slopes_go_forward_through_the_plain_modules():
    made, inputs, along = mlp(), torch.randn(S, F), torch.randn(S, F)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(made(forward_ad.make_dual(inputs, along))).tangent
        wanted = forward_ad.unpack_dual(plainly(made, forward_ad.make_dual(inputs, along))).tangent
    assert_close(found, wanted)


@pytest.mark.parametrize("needs", ["inputs", "parameters", "both"])
def test_second_derivatives_are_those_of_the_modules(needs: str):
    def penalty(run: object) -> list[torch.Tensor]:
        made, head = mlp(), nn.Linear(4, 2)
        with torch.no_grad():
            head.weight.copy_(torch.linspace(-1.0, 1.0, 8).view(2, 4))
        made.requires_grad_(needs != "inputs")
        inputs = torch.linspace(-1.0, 2.0, 2 * S * F).view(2, S, F).requires_grad_(needs != "parameters")
        of = [inputs] if needs != "parameters" else list(made.parameters())
        out = head_behind(made, head, inputs) if run == "compiled" else head(plainly(made, inputs))
        slopes = torch.autograd.grad(out.square().sum(), of, create_graph=True)
        wanted = [*made.parameters(), head.weight] if needs != "inputs" else [inputs, head.weight]
        return list(torch.autograd.grad(sum(slope.square().sum() for slope in slopes), wanted))

    found, plain = penalty("compiled"), penalty("plain")
    assert all(float(each.abs().max()) > 1e-3 for each in plain)
    for ours, theirs in zip(found, plain, strict=True):
        assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
