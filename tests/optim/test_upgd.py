"""The utility optimisers against their equations, computed by hand, and against everything that could break them."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leeward.errors import ArgumentError, TrainingDiverged
from leeward.optim import UPGD, UPGDW, AdaptiveUPGD
from leeward.optim.gaussian import PER_WORD, _grid, fill_standard_normal
from leeward.optim.upgd import UtilityOptimizer
from leeward.telemetry import metrics

SHAPES = [(3, 4), (5,), (2, 1, 2)]  # 12, 5 and 4 weights: the last draw of noise is cut off
CLASSES = [UPGD, UPGDW, AdaptiveUPGD]
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)


def weights(dtype: torch.dtype = torch.float64, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, dtype=dtype, generator=generator)) for shape in SHAPES]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in SHAPES]


def give(parameters: list[nn.Parameter], found: list[Tensor | None]) -> None:
    for parameter, gradient in zip(parameters, found, strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.dtype).clone()


def drawn(generator: torch.Generator, counts: list[int]) -> list[list[float]]:
    """The noise that one batch of tensors with these numbers of weights takes from `generator`."""
    room = math.ceil(sum(counts) / PER_WORD) * PER_WORD
    flat = torch.empty(room, dtype=torch.float64)
    fill_standard_normal(flat, generator)
    return [part.tolist() for part in flat[: sum(counts)].split(counts)]


class ByHand:
    """The equations of the docstrings, weight by weight, in Python's floats."""

    def __init__(self, parameters: list[nn.Parameter], optimizer: UtilityOptimizer, generator: torch.Generator) -> None:
        self.w = [p.detach().flatten().tolist() for p in parameters]
        self.u, self.m, self.v = ([[0.0] * len(w) for w in self.w] for _ in range(3))
        self.t = [0] * len(self.w)
        self.options, self.generator = optimizer.param_groups[0], generator
        self.adam = not isinstance(optimizer, UPGD)

    def direction(self, i: int, g: list[float]) -> list[float]:
        if not self.adam:
            return g
        (b1, b2), eps, t = self.options["betas"], self.options["eps"], self.t[i]
        found = []
        for k, each in enumerate(g):
            self.m[i][k] = b1 * self.m[i][k] + (1 - b1) * each
            self.v[i][k] = b2 * self.v[i][k] + (1 - b2) * each * each
            found.append(self.m[i][k] / (1 - b1**t) / (math.sqrt(self.v[i][k] / (1 - b2**t)) + eps))
        return found

    def step(self, found: list[Tensor | None]) -> None:
        o, sign = self.options, -1.0 if self.options["maximize"] else 1.0
        here = [i for i, g in enumerate(found) if g is not None]
        g = {i: [sign * x for x in found[i].flatten().tolist()] for i in here}
        corrected, directions = {}, {}
        for i in here:
            self.t[i] += 1
            beta = o["beta_utility"]
            for k, w in enumerate(self.w[i]):
                self.u[i][k] = beta * self.u[i][k] - (1 - beta) * g[i][k] * w
            corrected[i] = [u / (1 - beta ** self.t[i]) for u in self.u[i]]
            directions[i] = self.direction(i, g[i])
        largest = max(abs(u) for i in here for u in corrected[i])
        noise = dict(zip(here, drawn(self.generator, [len(g[i]) for i in here]), strict=True)) if o["sigma"] else {}
        for i in here:
            eta = max(map(abs, corrected[i])) if o["scaling"] == "local" else largest
            unit = math.sqrt(sum(d * d for d in directions[i]) / len(directions[i])) if self.adam else 1.0
            for k, d in enumerate(directions[i]):
                gate = 2.0 / (1.0 + math.exp(corrected[i][k] / eta))
                kick = o["sigma"] * unit * noise[i][k] if o["sigma"] else 0.0
                move = gate * (d + kick) if o["protecting"] else d + gate * kick
                self.w[i][k] = (1 - o["lr"] * o["weight_decay"]) * self.w[i][k] - o["lr"] * move

    def gap(self, parameters: list[nn.Parameter]) -> float:
        return max(
            abs(a - b)
            for p, w in zip(parameters, self.w, strict=True)
            for a, b in zip(p.detach().flatten().tolist(), w, strict=True)
        )


@every_class
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scaling": "local"},
        {"protecting": False},
        {"maximize": True, "beta_utility": 0.5},
        {"sigma": 0.7, "protecting": False, "scaling": "local"},
        {"sigma": 0.0, "beta_utility": 0.0},
    ],
    ids=str,
)
def test_steps_follow_the_equation_of_the_docstring(cls, options):
    parameters = weights()
    optimizer = cls(parameters, lr=0.1, weight_decay=0.3, generator=torch.Generator().manual_seed(5), **options)
    assert optimizer.param_groups[0]["weight_decay"] == 0.3
    by_hand = ByHand(parameters, optimizer, torch.Generator().manual_seed(5))
    for step in range(4):
        found: list[Tensor | None] = list(gradients(step))
        if step in (0, 2):
            found[1] = None  # its own step count, and so its own bias correction, stays behind
        give(parameters, found)
        optimizer.step()
        by_hand.step(found)
        assert by_hand.gap(parameters) <= 1e-12, f"step {step}"


@every_class
def test_single_precision_follows_the_equation_too(cls):
    parameters = weights(torch.float32)
    optimizer = cls(parameters, lr=0.01, sigma=0.0)
    by_hand = ByHand(parameters, optimizer, torch.Generator())
    give(parameters, list(gradients(0)))
    by_hand.step([p.grad.double() for p in parameters])
    optimizer.step()
    assert by_hand.gap(parameters) <= 1e-7 * max(abs(x) for w in by_hand.w for x in w)


def test_one_step_of_upgd_in_figures():
    # g w = 2, −1, 0 -> u = −.2, .1, 0 -> û = −2, 1, 0 (β .9, t 1); η = 2 -> ratios −1, .5, 0
    # gates 2/(1 + e^−1) = 1.462117, 2/(1 + e^.5) = 0.755081, 1
    # w − .1 · gate · g: 1 − .1·1.462117·2 = .707577; 1 + .1·.755081 = 1.075508; 0 − .1·1·3 = −.3
    weight = nn.Parameter(torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64))
    weight.grad = torch.tensor([2.0, -1.0, 3.0], dtype=torch.float64)
    UPGD([weight], lr=0.1, beta_utility=0.9, sigma=0.0).step()
    torch.testing.assert_close(
        weight.data, torch.tensor([0.7075765, 1.0755081, -0.3], dtype=torch.float64), atol=1e-6, rtol=0
    )


@every_class
def test_a_neutral_weight_moves_by_the_learning_rate_of_its_plain_relative(cls):
    # Utility 0 (the weight is 0): gate 1. The relative is SGD, or Adam.
    for protecting in (True, False):
        weight, plain = (nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2))
        other = nn.Parameter(torch.ones(1, dtype=torch.float64))  # sets the scale of utility
        relative = torch.optim.SGD([plain], lr=0.1) if cls is UPGD else torch.optim.Adam([plain], lr=0.1)
        optimizer = cls([weight, other], lr=0.1, sigma=0.0, protecting=protecting)
        for parameter in (weight, plain, other):
            parameter.grad = torch.full_like(parameter, 0.7)
        optimizer.step()
        relative.step()
        torch.testing.assert_close(weight, plain, atol=1e-12, rtol=0)


# --- protection -----------------------------------------------------------------------------------------------------


def gates_for(utilities: list[float], **options: Any) -> list[float]:
    """Gates of weights with these utilities −g·w after one step: the step taken over −lr · g."""
    size = math.sqrt(max(map(abs, utilities)))
    weight = nn.Parameter(torch.full((len(utilities),), size, dtype=torch.float64))
    weight.grad = -torch.tensor(utilities, dtype=torch.float64) / size
    UPGD([weight], lr=1e-3, sigma=0.0, **options).step()
    return ((weight.data - size) / (-1e-3 * weight.grad)).tolist()


@pytest.mark.parametrize("scaling", ["global", "local"])
@pytest.mark.parametrize(
    "utilities",
    [[-3.0, -1.0, -2.0], [5.0, -1.0, 2.0], [1e6, 1.0, -1.0, 2.0], [-1e6, 1.0, -1.0], [1e-30, -1e-30, 2e-30]],
    ids=str,
)
def test_a_more_useful_weight_is_never_less_protected(utilities, scaling):
    gates = gates_for(utilities, scaling=scaling)
    by_utility = [gate for _, gate in sorted(zip(utilities, gates, strict=True))]
    assert by_utility == sorted(by_utility, reverse=True)
    assert by_utility[0] > by_utility[-1]
    assert all(0.5 < gate < 1.5 for gate in gates)


@pytest.mark.parametrize("utility", [-2.0, 2.0])
def test_equal_utilities_are_protected_equally(utility):
    gates = gates_for([utility] * 4)
    assert max(gates) - min(gates) < 1e-9
    assert (gates[0] > 1.0) == (utility < 0.0)


@every_class
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_weights_zero_gradients_and_the_smallest_utilities_make_no_nan(cls, dtype):
    tiny = torch.finfo(dtype).smallest_normal
    for weight, gradient in ((0.0, 1.0), (1.0, 0.0), (tiny, 1e-3), (1.0, tiny)):
        parameter = nn.Parameter(torch.full((3,), weight, dtype=dtype))
        optimizer = cls([parameter])
        for _ in range(3):
            parameter.grad = torch.tensor([gradient, 0.0, -gradient], dtype=dtype)
            optimizer.step()
        assert torch.isfinite(parameter).all()


def test_global_scaling_looks_over_all_groups_and_local_over_the_tensor():
    small, large = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))

    def step(scaling: str) -> list[float]:
        for parameter, utility in ((small, 1.0), (large, 100.0)):
            parameter.data.fill_(1.0)
            parameter.grad = torch.tensor([-utility, 0.0], dtype=torch.float64)
        UPGD([{"params": [small]}, {"params": [large]}], lr=1e-3, sigma=0.0, scaling=scaling).step()
        return [float((p.data[0] - 1.0) / (-1e-3 * p.grad[0])) for p in (small, large)]

    most = 2.0 / (1.0 + math.e)  # 0.537883
    assert step("local") == pytest.approx([most, most], abs=1e-9)
    assert step("global") == pytest.approx([2.0 / (1.0 + math.exp(0.01)), most], abs=1e-9)


# --- gradients that are missing or not finite -----------------------------------------------------------------------


@every_class
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(cls, bad):
    parameters, twins = weights(torch.float32), weights(torch.float32)
    optimizer, twin = cls(parameters), cls(twins)
    for step in range(3):
        found = gradients(step)
        for each, own in ((parameters, optimizer), (twins, twin)):
            give(each, list(found))
            own.step()
        if step == 1:
            before = copy.deepcopy(optimizer.state_dict())
            parameters[0].grad[1, 2] = bad
            optimizer.step()
            assert optimizer.skipped_steps == 1
            assert_same(optimizer.state_dict() | {"skipped_steps": 0}, before)
    assert all(map(torch.equal, parameters, twins)), "a skipped step leaves no trace"
    assert twin.skipped_steps == 0


@every_class
def test_a_missing_gradient_leaves_its_weights_alone_and_out_of_the_maximum(cls):
    parameters = weights()
    optimizer = cls(parameters, sigma=0.0)
    give(parameters, [1e6 * gradients(0)[0], gradients(0)[1], gradients(0)[2]])
    optimizer.step()
    give(parameters, [None, *gradients(1)[1:]])
    before, utility = parameters[0].detach().clone(), optimizer.state[parameters[0]]["utility"].clone()
    optimizer.step()
    assert torch.equal(parameters[0], before)
    assert torch.equal(optimizer.state[parameters[0]]["utility"], utility)
    assert optimizer.numbers()[metrics.UPGD_UTILITY_MAX] < 100.0
    give(parameters, [None, None, None])
    optimizer.step()


def test_a_weight_that_is_not_finite_is_an_error_that_says_so():
    weight = nn.Parameter(torch.tensor([1.0, math.nan]))
    weight.grad = torch.ones(2)
    with pytest.raises(TrainingDiverged, match="a weight is NaN, infinite or too large"):
        UPGD([weight]).step()


def test_gradients_that_are_sparse_or_complex_are_refused():
    table = nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(ArgumentError, match=r"dense gradients of real weights, got one of layout torch\.sparse_coo"):
        UPGD(table.parameters()).step()
    weight = nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    weight.grad = torch.zeros_like(weight)
    with pytest.raises(ArgumentError, match=r"dtype torch\.complex64; give that parameter to another optimiser"):
        UPGD([weight]).step()


# --- state ----------------------------------------------------------------------------------------------------------


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b)
    else:
        assert a == b


def run(optimizer: UtilityOptimizer, parameters: list[nn.Parameter], steps: range) -> None:
    for step in steps:
        give(parameters, list(gradients(step)))
        optimizer.step()


def by_state_dict(cls: Any, optimizer: UtilityOptimizer, parameters: list[nn.Parameter]) -> UtilityOptimizer:
    fresh = cls(parameters, lr=0.5, generator=torch.Generator().manual_seed(77))
    fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return fresh


def by_pickle(cls: Any, optimizer: UtilityOptimizer, parameters: list[nn.Parameter]) -> UtilityOptimizer:
    copied = pickle.loads(pickle.dumps(optimizer))
    for mine, theirs in zip(parameters, copied.param_groups[0]["params"], strict=True):
        assert torch.equal(mine, theirs)
    parameters[:] = copied.param_groups[0]["params"]
    return copied


@every_class
@pytest.mark.parametrize("way", [by_state_dict, by_pickle], ids=lambda way: way.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_resuming_at_step_k_changes_nothing_bit_for_bit(cls, way: Callable[..., UtilityOptimizer], dtype):
    parameters = weights(dtype)
    whole = cls(parameters, sigma=0.1, generator=torch.Generator().manual_seed(9))
    run(whole, parameters, range(7))

    resumed_parameters = weights(dtype)
    first = cls(resumed_parameters, sigma=0.1, generator=torch.Generator().manual_seed(9))
    run(first, resumed_parameters, range(3))
    torch.manual_seed(1)
    second = way(cls, first, resumed_parameters)
    run(second, resumed_parameters, range(3, 7))
    assert all(map(torch.equal, parameters, resumed_parameters))
    assert_same(whole.state_dict(), second.state_dict())


@every_class
def test_noise_comes_from_the_generator_alone(cls):
    def end(seed: int | None) -> list[Tensor]:
        parameters = weights()
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        run(cls(parameters, sigma=0.5, generator=generator), parameters, range(2))
        return [p.detach() for p in parameters]

    torch.manual_seed(3)
    state = torch.get_rng_state()
    one = end(1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert all(map(torch.equal, one, end(1)))
    assert not torch.equal(one[0], end(2)[0])
    assert all(map(torch.equal, end(None), end(0))), "None is a generator of seed 0"


@pytest.mark.parametrize("cls", [UPGDW, AdaptiveUPGD])
def test_the_moments_of_an_adam_are_gone_on_from(cls):
    parameters = weights()
    adam = torch.optim.Adam(parameters, lr=0.01, betas=(0.8, 0.99))
    run(adam, parameters, range(3))
    optimizer = cls(parameters, sigma=0.25)
    optimizer.load_state_dict(adam.state_dict())
    group = optimizer.param_groups[0]
    assert (group["lr"], group["betas"], group["sigma"]) == (0.01, (0.8, 0.99), 0.25)
    run(optimizer, parameters, range(3, 5))
    assert float(optimizer.state[parameters[0]]["step"]) == 5.0


# --- torch's conventions --------------------------------------------------------------------------------------------


@every_class
def test_a_closure_is_called_with_gradients_on_and_its_loss_comes_back(cls):
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = cls([weight], lr=0.1, sigma=0.0)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 4.0
    assert weight.item() < 2.0
    assert cls([nn.Parameter(torch.zeros(1))]).step() is None


@every_class
def test_groups_have_their_own_options_and_schedulers_reach_them(cls):
    parameters = weights()
    optimizer = cls([{"params": parameters[:1], "lr": 0.0, "sigma": 0.0}, {"params": parameters[1:]}], lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    before = [p.detach().clone() for p in parameters]
    give(parameters, list(gradients(0)))
    optimizer.step()
    scheduler.step()
    assert torch.equal(parameters[0], before[0])
    assert not torch.equal(parameters[1], before[1])
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.05]


def test_maximising_is_minimising_the_negative():
    one, other = weights(), weights()
    up, down = AdaptiveUPGD(one, maximize=True), AdaptiveUPGD(other)
    for step in range(3):
        give(one, list(gradients(step)))
        give(other, [-g for g in gradients(step)])
        up.step()
        down.step()
    assert all(map(torch.equal, one, other))


@every_class
def test_mixed_dtypes_and_empty_tensors_share_one_optimiser(cls):
    parameters = [
        nn.Parameter(torch.ones(3)),
        nn.Parameter(torch.ones(2, dtype=torch.float64)),
        nn.Parameter(torch.ones(0)),
    ]
    optimizer = cls(parameters)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert all(p.max().item() < 1.0 for p in parameters[:2])


@every_class
def test_it_learns_a_least_squares_problem(cls):
    generator = torch.Generator().manual_seed(0)
    inputs, truth = torch.randn(64, 5, generator=generator), torch.arange(5.0)
    weight = nn.Parameter(torch.zeros(5))
    optimizer = cls([weight], lr=0.05, sigma=1e-3)
    for _ in range(600):
        optimizer.zero_grad()
        (inputs @ weight - inputs @ truth).square().mean().backward()
        optimizer.step()
    assert float((weight.detach() - truth).abs().max()) < 0.1


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (UPGD, {"lr": -1.0}, "UPGD: lr must be a finite number of at least 0, got -1.0"),
        (UPGD, {"lr": math.nan}, "UPGD: lr must be a finite number of at least 0, got nan"),
        (UPGD, {"beta_utility": 1.0}, r"UPGD: beta_utility must be a number in \[0, 1\), got 1.0"),
        (UPGD, {"sigma": math.inf}, "UPGD: sigma must be a finite number of at least 0, got inf"),
        (UPGDW, {"weight_decay": -0.1}, "UPGDW: weight_decay must be a finite number of at least 0, got -0.1"),
        (UPGDW, {"betas": (0.9, 1.0)}, r"UPGDW: betas must be two numbers in \[0, 1\), got 1.0"),
        (UPGDW, {"betas": (0.9,)}, r"UPGDW: betas must be two numbers in \[0, 1\), got \(0.9,\)"),
        (AdaptiveUPGD, {"eps": 0.0}, "AdaptiveUPGD: eps must be a finite number above 0, got 0.0"),
        (AdaptiveUPGD, {"scaling": "globl"}, "AdaptiveUPGD: unknown scaling 'globl'; did you mean 'global'?"),
        (AdaptiveUPGD, {"protecting": 1}, "AdaptiveUPGD: protecting must be True or False, got 1"),
        (UPGD, {"generator": 3}, "UPGD: generator must be a torch.Generator or None, got 3"),
    ],
)
def test_bad_options_are_named(cls, options, message):
    with pytest.raises(ArgumentError, match=message):
        cls(weights(), **options)
    if "generator" not in options:
        with pytest.raises(ArgumentError, match=message):
            cls([{"params": weights(), **options}])


# --- metrics and noise ----------------------------------------------------------------------------------------------


@every_class
def test_metrics_describe_the_last_step(cls):
    parameters = [nn.Parameter(torch.randn(200, 90, generator=torch.Generator().manual_seed(1)))]
    optimizer = cls(parameters, lr=0.1, sigma=0.5)
    assert optimizer.numbers() == {}
    parameters[0].grad = torch.randn(200, 90, generator=torch.Generator().manual_seed(2))
    before = parameters[0].detach().clone()
    quiet = [nn.Parameter(before.clone())]
    quiet[0].grad = parameters[0].grad.clone()
    cls(quiet, lr=0.1, sigma=0.0).step()
    optimizer.step()
    numbers = optimizer.numbers()
    expected = float((before * parameters[0].grad).abs().max())  # û of the first step is −g·w
    assert numbers[metrics.UPGD_UTILITY_MAX] == pytest.approx(expected, rel=1e-5)
    gates = 2.0 / (1.0 + (-before * parameters[0].grad / expected).exp())
    assert numbers[metrics.UPGD_GATE_MEAN] == pytest.approx(float(gates.mean()), rel=1e-5)
    added = float((parameters[0] - quiet[0]).detach().square().mean().sqrt())
    assert numbers[metrics.UPGD_NOISE_RMS] == pytest.approx(added, rel=0.02)


def test_noise_is_standard_normal_and_independent():
    plane = torch.view_as_real(_grid(torch.device("cpu"))).double()
    for coordinate in plane.unbind(-1):
        levels = torch.arange(1, len(coordinate) + 1) / len(coordinate)
        assert float((torch.special.ndtr(coordinate.sort().values) - levels).abs().max()) < 5e-4
        assert abs(float(coordinate.mean())) < 1e-9
        assert float(coordinate.square().mean()) == pytest.approx(1.0, abs=1e-6)
        assert float(coordinate.pow(4).mean()) == pytest.approx(3.0, abs=0.03)
    assert abs(float(plane.prod(-1).mean())) < 1e-8

    draws = torch.empty(2**20)
    fill_standard_normal(draws, torch.Generator().manual_seed(0))
    for lag in (1, 2, 3, 4, 8, 2**16):
        assert abs(float((draws[lag:] * draws[:-lag]).mean())) < 4e-3  # four standard errors
        assert abs(float((draws[lag:].square() * draws[:-lag].square()).mean()) - 1.0) < 0.02


def test_noise_of_one_generator_is_the_same_in_every_precision():
    found = []
    for dtype in (torch.float32, torch.float64):
        out = torch.empty(3 * PER_WORD, dtype=dtype)
        fill_standard_normal(out, torch.Generator().manual_seed(2))
        found.append(out.double())
    assert torch.equal(*found)
