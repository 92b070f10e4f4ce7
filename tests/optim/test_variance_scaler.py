"""The variance scaler: what counts as noise, what it does to gradients, and that it keeps its state."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from leeward.config.learning import VGS
from leeward.errors import ArgumentError
from leeward.optim import VarianceScaler
from leeward.telemetry import metrics
from leeward.telemetry.metrics import Numbers

SHAPES = [(4, 3), (5,), ()]
BETA = 0.9


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES]


def draw(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=dtype, generator=generator) for shape in SHAPES]


SIGNAL = draw(0)  # every element its own size and sign: heterogeneous


def feed(scaler: VarianceScaler, gradients: list[Tensor | None]) -> Numbers:
    for parameter, gradient in zip(scaler.parameters, gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.dtype).clone()
    return scaler.apply()


def noisy(step: int, size: float, *, signal: float = 1.0) -> list[Tensor]:
    return [signal * s + size * n for s, n in zip(SIGNAL, draw(1000 + step), strict=True)]


def alternating(step: int, size: float) -> list[Tensor]:
    """The same noise with changing sign: over two steps the mean is the signal."""
    return [s + (-1) ** step * size * n for s, n in zip(SIGNAL, draw(7), strict=True)]


def after(steps: int, gradients: Any, **options: Any) -> tuple[VarianceScaler, Numbers]:
    scaler = VarianceScaler(parameters(), **({"beta": BETA, "warmup": 0} | options))
    numbers: Numbers = {}
    for step in range(steps):
        numbers = feed(scaler, gradients(step))
    return scaler, numbers


# --- what is noise --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["element", "norm"])
def test_constant_heterogeneous_gradients_are_no_noise_and_are_left_exactly_as_they_are(mode):
    scaler, numbers = after(200, lambda _: SIGNAL, mode=mode)
    assert scaler.noise_to_signal().tolist() == [0.0, 0.0, 0.0]
    assert numbers[metrics.VGS_SCALING_FACTOR] == 1.0
    assert all(map(torch.equal, [p.grad for p in scaler.parameters], SIGNAL))


def test_noise_and_anticorrelated_noise_are_seen():
    assert (after(200, lambda step: noisy(step, 0.5))[0].noise_to_signal() > 0.05).all()
    assert (after(200, lambda step: alternating(step, 0.5))[0].noise_to_signal() > 0.05).all()


def test_alternating_noise_has_the_ratio_of_its_closed_form():
    # g = 3, −1, 3, ... With ρ = (1 − β)/(1 + β) = 1/19 the mean after a 3 is 1 + 2ρ, the mean square 5 + 4ρ, so
    # r = (5 + 4ρ − (1 + 2ρ)²) / (1 + 2ρ)² = 4 (1 − ρ²) / (1 + 2ρ)² = 3.265306
    scaler = VarianceScaler([nn.Parameter(torch.zeros(1, dtype=torch.float64))], beta=BETA, warmup=0)
    for step in range(401):
        scaler.parameters[0].grad = torch.tensor([1.0 + 2.0 * (-1) ** step], dtype=torch.float64)
        scaler.apply()
    assert scaler.noise_to_signal().item() == pytest.approx(3.265306, abs=1e-6)


def test_the_moments_are_the_weighted_mean_and_variance_of_the_raw_gradients():
    steps = 7
    history = [draw(50 + step, torch.float64) for step in range(steps)]
    scaler = VarianceScaler(parameters(torch.float64), beta=BETA, strength=5.0, warmup=0)
    for gradients in history:
        feed(scaler, list(gradients))
    raw = [(1.0 - BETA) * BETA ** (steps - 1 - k) for k in range(steps)]
    weights = [w / sum(raw) for w in raw]  # bias-corrected: they sum to 1
    noise_share = sum(w * w for w in weights)
    for i in range(len(SHAPES)):
        elements = [gradients[i].flatten().tolist() for gradients in history]
        noise = signal = 0.0
        for column in zip(*elements, strict=True):
            mean = sum(w * g for w, g in zip(weights, column, strict=True))
            noise += sum(w * (g - mean) ** 2 for w, g in zip(weights, column, strict=True))
            signal += mean * mean
        expected = noise / max(signal, noise_share * noise)
        assert float(scaler.noise_to_signal()[i]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mode", ["element", "norm"])
@pytest.mark.parametrize("scale", [1e-8, 3.7, 1e8])
def test_multiplying_every_gradient_changes_nothing(scale, mode):
    plain, numbers = after(60, lambda step: noisy(step, 0.7), mode=mode)
    scaled, other = after(60, lambda step: [scale * g for g in noisy(step, 0.7)], mode=mode)
    torch.testing.assert_close(scaled.noise_to_signal(), plain.noise_to_signal(), rtol=1e-4, atol=0)
    assert other[metrics.VGS_SCALING_FACTOR] == pytest.approx(numbers[metrics.VGS_SCALING_FACTOR], rel=1e-4)


def test_pure_noise_has_a_finite_ratio_and_zero_gradients_have_none():
    scaler, numbers = after(2000, lambda step: noisy(step, 1.0, signal=0.0), beta=0.99)
    assert (scaler.noise_to_signal() <= 199.0001).all()
    assert numbers[metrics.VGS_NOISE_TO_SIGNAL_P50] > 50.0
    assert numbers[metrics.VGS_SCALING_FACTOR] == pytest.approx(0.1)
    scaler, numbers = after(5, lambda _: [torch.zeros(shape) for shape in SHAPES])
    assert scaler.noise_to_signal().tolist() == [0.0, 0.0, 0.0]
    assert numbers[metrics.VGS_SCALING_FACTOR] == 1.0


def test_the_cheap_mode_sees_lengths_and_not_directions():
    turning, _ = after(100, lambda step: [(-1) ** step * s for s in SIGNAL], mode="norm")
    assert turning.noise_to_signal().tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-12)
    turning, _ = after(100, lambda step: [(-1) ** step * s for s in SIGNAL], mode="element")
    assert (turning.noise_to_signal() > 5.0).all()
    growing, _ = after(100, lambda step: noisy(step, 0.7), mode="norm")
    assert (growing.noise_to_signal() > 0.0).all()


# --- what is done about it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chosen", [{}, {"aggregate": "mean"}, {"aggregate": "median"}, {"per_tensor": True}, {"mode": "norm"}], ids=str
)
def test_the_factor_is_one_without_noise_and_falls_as_noise_grows(chosen):
    sizes = (0.0, 0.1, 0.2, 0.4, 0.8)
    options = {"strength": 0.5, "beta": 0.99} | chosen
    factors = [after(300, lambda step, n=n: noisy(step, n), **options)[1][metrics.VGS_SCALING_FACTOR] for n in sizes]
    assert factors[0] == 1.0
    assert all(a > b for a, b in itertools.pairwise(factors))
    assert factors[-1] >= 0.1


def test_the_factor_is_the_equation_and_reaches_the_gradients():
    scaler, numbers = after(30, lambda step: noisy(step, 1.0), strength=0.3, floor=0.01)
    ratio = float(scaler.noise_to_signal().quantile(0.9))
    assert numbers[metrics.VGS_NOISE_TO_SIGNAL_P90] == pytest.approx(ratio)
    assert numbers[metrics.VGS_NOISE_TO_SIGNAL_P50] == pytest.approx(float(scaler.noise_to_signal().median()))
    assert numbers[metrics.VGS_SCALING_FACTOR] == pytest.approx(1.0 / (1.0 + 0.3 * ratio))
    for parameter, raw in zip(scaler.parameters, noisy(29, 1.0), strict=True):
        torch.testing.assert_close(parameter.grad, raw * numbers[metrics.VGS_SCALING_FACTOR])


def test_each_tensor_can_have_its_own_factor():
    def mixed(step: int) -> list[Tensor]:
        return [noisy(step, 1.0)[0], SIGNAL[1], noisy(step, 3.0)[2]]

    scaler, numbers = after(50, mixed, per_tensor=True, strength=0.3)
    own = (1.0 / (1.0 + 0.3 * scaler.noise_to_signal())).clamp(min=0.1)
    assert own[1] == 1.0 > own[0]
    for parameter, raw, factor in zip(scaler.parameters, mixed(49), own, strict=True):
        torch.testing.assert_close(parameter.grad, raw * float(factor))
    assert numbers[metrics.VGS_SCALING_FACTOR] == pytest.approx(float(own.mean()))


def test_no_noise_however_large_makes_the_factor_leave_its_range():
    for size in (0.0, 1e-3, 1.0, 1e3, 1e12):
        for step_numbers in (after(n, lambda step, s=size: noisy(step, s), strength=10.0)[1] for n in (1, 2, 3, 40)):
            assert 0.1 - 1e-7 <= step_numbers[metrics.VGS_SCALING_FACTOR] <= 1.0


def test_statistics_are_of_raw_gradients():
    # If the scaled gradients were followed, the fed-back factor would show as a change of the mean.
    strong, _ = after(80, lambda step: noisy(step, 1.0), strength=5.0)
    weak, _ = after(80, lambda step: noisy(step, 1.0), strength=0.0)
    assert torch.equal(strong.noise_to_signal(), weak.noise_to_signal())


def test_warm_up_watches_and_leaves_gradients_alone():
    scaler = VarianceScaler(parameters(), beta=BETA, warmup=3, strength=1.0)
    for step in range(5):
        raw = noisy(step, 1.0)
        numbers = feed(scaler, list(raw))
        warming = step < 3
        assert numbers[metrics.VGS_WARMUP_ACTIVE] == float(warming)
        assert (numbers[metrics.VGS_SCALING_FACTOR] == 1.0) == warming
        assert all(map(torch.equal, [p.grad for p in scaler.parameters], raw)) == warming
    assert numbers[metrics.VGS_NOISE_TO_SIGNAL_P90] > 0.0


# --- gradients that are missing or not finite, state, arguments -----------------------------------------------------


def test_a_missing_gradient_keeps_its_own_history():
    scaler = VarianceScaler(parameters(torch.float64), beta=BETA, warmup=0)
    twin = VarianceScaler(parameters(torch.float64)[:1], beta=BETA, warmup=0)
    assert feed(scaler, [None, None, None]) == {}
    for step in range(8):
        first = noisy(step, 1.0)[0] if step % 3 else None
        feed(scaler, [first, *noisy(step, 1.0)[1:2], None])
        if first is not None:
            feed(twin, [first])
    ratios = scaler.noise_to_signal()
    assert ratios[0] == twin.noise_to_signal()[0] > 0.0
    assert math.isnan(ratios[2])


@pytest.mark.parametrize("mode", ["element", "norm"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("at", [0, 4])
def test_a_gradient_that_is_not_finite_leaves_no_trace_and_is_counted(bad, at, mode):
    scaler = VarianceScaler(parameters(), beta=BETA, warmup=0, mode=mode)
    for step in range(at):
        feed(scaler, noisy(step, 1.0))
    before = scaler.state_dict()
    poisoned = noisy(at, 1.0)
    poisoned[1][2] = bad
    assert feed(scaler, poisoned) == {}
    assert scaler.skipped_steps == 1
    state = scaler.state_dict()
    assert all(torch.equal(state[name], before[name]) for name in before if name != "steps")
    assert torch.equal(scaler.parameters[0].grad, poisoned[0])
    assert math.isfinite(feed(scaler, noisy(at, 1.0))[metrics.VGS_SCALING_FACTOR])


@pytest.mark.parametrize("mode", ["element", "norm"])
def test_state_makes_a_round_trip_bit_for_bit(mode):
    whole = VarianceScaler(parameters(), beta=BETA, warmup=4, mode=mode)
    first = VarianceScaler(parameters(), beta=BETA, warmup=4, mode=mode)
    second = VarianceScaler(parameters(), beta=BETA, warmup=4, mode=mode)
    for step in range(9):
        expected = feed(whole, noisy(step, 1.0))
        if step == 3:
            second.load_state_dict(first.state_dict())
            feed(first, noisy(99, 5.0))  # what was loaded is a copy
        found = feed(first if step < 3 else second, noisy(step, 1.0))
        assert found == expected
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(whole.parameters, second.parameters, strict=True))
    state = second.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in whole.state_dict().items())


def test_a_state_of_another_network_or_mode_is_refused():
    scaler = VarianceScaler(parameters())
    with pytest.raises(
        ArgumentError, match=r"entries differ, the first is 'mean\.0', expected torch\.Size\(\[4, 3\]\)"
    ):
        scaler.load_state_dict(VarianceScaler(parameters(), mode="norm").state_dict())
    with pytest.raises(ArgumentError, match="other parameters"):
        scaler.load_state_dict(VarianceScaler(parameters()[:2]).state_dict())


def test_settings_can_change_while_what_was_followed_stays():
    changed, _ = after(20, lambda step: noisy(step, 1.0), strength=5.0, warmup=0)
    whole, _ = after(20, lambda step: noisy(step, 1.0), strength=0.1, warmup=0, aggregate="mean")
    settings = {"beta": BETA, "floor": 0.1, "warmup": 0, "aggregate": "mean", "per_tensor": False}
    changed.configure(strength=0.1, mode="element", **settings)
    assert feed(changed, noisy(20, 1.0)) == feed(whole, noisy(20, 1.0))
    assert torch.equal(changed.noise_to_signal(), whole.noise_to_signal())
    with pytest.raises(ArgumentError, match="mode is 'element' and cannot become 'norm'; make a new one"):
        changed.configure(strength=0.5, mode="norm", **settings)
    assert changed.strength == 0.1


def test_half_precision_gradients_are_followed_in_single():
    scaler = VarianceScaler(parameters(torch.float16), warmup=0)
    feed(scaler, [1e-5 * g for g in noisy(0, 1.0)])
    feed(scaler, [1e-5 * g for g in noisy(1, 1.0)])
    assert (scaler.noise_to_signal() > 0.0).all()
    assert scaler.parameters[0].grad.dtype is torch.float16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 1.0}, r"beta must lie in \[0, 1\), got 1.0"),
        ({"strength": -0.1}, "strength must be a finite number of at least 0, got -0.1"),
        ({"floor": 0.0}, r"floor must lie in \(0, 1\], got 0.0"),
        ({"warmup": 1.5}, "warmup must be a whole number of steps of at least 0, got 1.5"),
        ({"mode": "elements"}, "unknown mode 'elements'; did you mean 'element'?"),
        ({"aggregate": "max"}, "unknown aggregate 'max'; known: mean, median, p90"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ArgumentError, match=f"VarianceScaler: {message}"):
        VarianceScaler(parameters(), **options)
    scaler = VarianceScaler(parameters())
    with pytest.raises(ArgumentError, match=f"VarianceScaler: {message}"):
        scaler.configure(**(VGS().model_dump() | options))
    with pytest.raises(ArgumentError, match="parameters is empty"):
        VarianceScaler([])
