"""Attacks on the observation and the balls they stay in."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import tensor
from torch.testing import assert_close

from leeward.errors import ArgumentError
from leeward.maths.perturbation import (
    BALLS,
    METHODS,
    ascend,
    ascent_direction,
    fgsm_step,
    pgd_step,
    project,
    random_in_ball,
    size_in_ball,
)

F64 = torch.float64


def row(*numbers: float) -> torch.Tensor:
    return tensor(numbers, dtype=F64)


def sizes(delta, ball):  # (S, F) -> (S,)
    return delta.abs().amax(-1) if ball == "linf" else delta.norm(dim=-1)


def test_projection_by_hand():
    # linf, ε = 2: each feature is cut. l2, ε = 2.5: (3, 4) has norm 5, so it is halved.
    assert_close(project(row(3.0, -4.0, 1.0), epsilon=2.0, ball="linf"), row(2.0, -2.0, 1.0))
    assert_close(project(row(3.0, 4.0), epsilon=2.5, ball="l2"), row(1.5, 2.0))
    two = project(torch.stack([row(3.0, 4.0), row(0.3, 0.4)]), epsilon=2.5, ball="l2")  # each row by itself
    assert_close(two, torch.stack([row(1.5, 2.0), row(0.3, 0.4)]))


def test_one_pgd_step_by_hand():
    # linf: δ + 0.5·sign(g) = (0.5, −0.9), cut at 0.7. l2: δ + 1·(0.6, 0.8) = (0.6, 1.8), norm 1.897 → 1.
    moved = pgd_step(row(0.0, -0.4), row(9.0, -3.0), step=0.5, epsilon=0.7, ball="linf")
    assert_close(moved, row(0.5, -0.7))
    moved = pgd_step(row(0.0, 1.0), row(3.0, 4.0), step=1.0, epsilon=1.0, ball="l2")
    assert_close(moved, row(0.6, 1.8) / (0.36 + 3.24) ** 0.5)


def test_fgsm_goes_to_the_edge_of_the_ball():
    assert_close(fgsm_step(row(0.1, -7.0, 0.0), epsilon=0.2, ball="linf"), row(0.2, -0.2, 0.0))
    assert_close(fgsm_step(row(3.0, 4.0), epsilon=0.5, ball="l2"), row(0.3, 0.4))


def test_forbidden_features_do_not_move_and_take_no_share_of_the_step():
    # Feature 0 is forbidden: the whole l2 step goes along feature 1, though feature 0 has the larger slope.
    mask = tensor([False, True])
    for ball in BALLS:
        assert_close(
            pgd_step(row(0.0, 0.0), row(40.0, 3.0), step=0.5, epsilon=1.0, ball=ball, mask=mask), row(0.0, 0.5)
        )


def test_a_forbidden_feature_cannot_poison_the_others():
    mask = tensor([False, True])
    for ball in BALLS:
        moved = pgd_step(row(0.0, 0.0), row(torch.nan, 3.0), step=0.5, epsilon=1.0, ball=ball, mask=mask)
        assert_close(moved, row(0.0, 0.5))


@pytest.mark.parametrize("ball", list(BALLS))
def test_a_zero_gradient_moves_nothing_and_a_zero_ball_holds_nothing(ball):
    zero = torch.zeros(3, 4, dtype=F64)
    assert torch.equal(pgd_step(zero, zero, step=1.0, epsilon=1.0, ball=ball), zero)
    assert torch.equal(project(torch.ones(3, 4, dtype=F64), epsilon=0.0, ball=ball), zero)


@given(seed=st.integers(0, 10_000), ball=st.sampled_from(sorted(BALLS)), epsilon=st.floats(0.01, 10))
def test_the_attack_stays_in_the_ball_and_projecting_twice_changes_nothing(seed, ball, epsilon):
    rng = np.random.default_rng(seed)
    delta, gradient = (torch.from_numpy(rng.normal(scale=5, size=(3, 6))) for _ in range(2))
    moved = pgd_step(delta, gradient, step=2.0, epsilon=epsilon, ball=ball)
    assert bool((sizes(moved, ball) <= epsilon * (1 + 1e-12)).all())
    assert_close(project(moved, epsilon=epsilon, ball=ball), moved, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 10_000), ball=st.sampled_from(sorted(BALLS)))
def test_no_other_point_of_the_ball_raises_a_linear_objective_more(seed, ball):
    rng = np.random.default_rng(seed)
    gradient = torch.from_numpy(rng.normal(size=(1, 5)))
    best = (gradient * fgsm_step(gradient, epsilon=0.3, ball=ball)).sum()
    others = project(torch.from_numpy(rng.normal(size=(200, 5))), epsilon=0.3, ball=ball)
    assert float((gradient * others).sum(-1).max()) <= float(best) + 1e-9


def test_steps_climb_a_curved_objective_to_its_top_inside_the_ball():
    # −‖x − (0.2, −0.1)‖², whose top lies inside the ball of 1.
    delta, top = torch.zeros(1, 2, dtype=F64), row(0.2, -0.1)
    for _ in range(200):
        delta = pgd_step(delta, -2 * (delta - top), step=0.005, epsilon=1.0, ball="l2")
    assert_close(delta[0], top, rtol=0, atol=0.01)


def test_directions_have_unit_size():
    gradient = torch.from_numpy(np.random.default_rng(0).normal(size=(4, 6)))
    for ball in BALLS:
        assert_close(sizes(ascent_direction(gradient, ball=ball), ball), torch.ones(4, dtype=F64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ball": "l1"}, "unknown ball 'l1'; known: l2, linf"),
        ({"epsilon": -0.1}, "epsilon must be finite and not negative, got -0.1"),
        ({"epsilon": float("inf")}, "epsilon must be finite and not negative, got inf"),
        ({"step": float("nan")}, "step must be finite and not negative, got nan"),
        ({"gradient": torch.zeros(4, 3)}, r"gradient must have the shape of delta, \(2, 3\), got \(4, 3\)"),
        ({"mask": torch.ones(3)}, "mask must be bool, got torch.float32"),
        ({"mask": torch.ones(2, dtype=torch.bool)}, r"mask needs one entry per feature, \(3,\), got \(2,\)"),
    ],
)
def test_an_attack_names_what_is_wrong(change, message):
    call = {"delta": torch.zeros(2, 3), "gradient": torch.zeros(2, 3), "step": 0.1, "epsilon": 1.0, "ball": "l2"}
    with pytest.raises(ArgumentError, match=message):
        pgd_step(**(call | change))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("ball", BALLS)
def test_random_points_fill_the_ball_evenly_and_spare_what_is_masked(ball):
    mask = tensor([True, False, True, True])
    points = random_in_ball((4000, 4), epsilon=0.5, ball=ball, generator=seeded(), mask=mask)
    size = size_in_ball(points, ball=ball)
    assert float(size.max()) <= 0.5 + 1e-6 and not points[:, 1].any()
    # Three free features: half of the volume lies within 0.5^(1/3) of the radius.
    assert float((size <= 0.5 * 0.5 ** (1 / 3)).float().mean()) == pytest.approx(0.5, abs=0.03)
    assert_close(points.mean(0), torch.zeros(4), atol=0.03, rtol=0)
    assert torch.equal(points, random_in_ball((4000, 4), epsilon=0.5, ball=ball, generator=seeded(), mask=mask))


def test_the_size_is_the_norm_that_the_ball_bounds():
    delta = torch.stack([row(3.0, -4.0), row(0.0, 0.0)])
    assert_close(size_in_ball(delta, ball="linf"), row(4.0, 0.0))
    assert_close(size_in_ball(delta, ball="l2"), row(5.0, 0.0))


@pytest.mark.parametrize("ball", BALLS)
@pytest.mark.parametrize("method", METHODS)
def test_an_attack_on_a_linear_objective_ends_in_its_best_point(method, ball):
    # max g·δ over the free features: ε‖g‖₁ in the box, ε‖g‖₂ in the sphere; feature 1 is out of reach.
    slope, mask = torch.tensor([3.0, -9.0, -4.0]), tensor([True, False, True])
    start = random_in_ball((7, 3), epsilon=0.2, ball=ball, generator=seeded(1), mask=mask)
    found = ascend(
        lambda delta: delta @ slope,
        start,
        method=method,
        steps=40,
        step=0.05,
        epsilon=0.2,
        ball=ball,
        mask=mask,
        noise=0.5,
        generator=seeded(2),
    )
    best = 0.2 * 7.0 if ball == "linf" else 0.2 * 5.0
    assert_close(found.delta @ slope, torch.full((7,), best), rtol=0.02, atol=0.0)
    assert not found.delta[:, 1].any() and not found.delta.requires_grad
    assert_close(found.start, start @ slope)
    assert float(size_in_ball(found.delta, ball=ball).max()) <= 0.2 + 1e-6


@pytest.mark.parametrize("ball", BALLS)
def test_an_attack_climbs_a_curved_objective_step_by_step(ball):
    curvature = torch.tensor([1.0, 5.0])
    start = random_in_ball((64, 2), epsilon=0.3, ball=ball, generator=seeded(3))

    def objective(delta):
        return (curvature * delta.square()).sum(-1)

    reached = []
    for steps in (1, 3, 30):
        found = ascend(objective, start, method="pgd", steps=steps, step=0.1, epsilon=0.3, ball=ball)
        reached.append(float(objective(found.delta).mean()))
    assert float(objective(start).mean()) < reached[0] < reached[1] <= reached[2] + 1e-6
    assert reached[2] == pytest.approx(0.09 * (6.0 if ball == "linf" else 5.0), rel=0.01)


def test_noise_stirs_a_search_that_has_no_slope():
    still = ascend(lambda d: 0.0 * d, torch.zeros(5, 3), method="pgd", steps=2, step=0.1, epsilon=1.0, ball="linf")
    assert not still.delta.any()
    stirred = ascend(
        lambda d: 0.0 * d, torch.zeros(5, 3), method="sgld", steps=2, step=0.1, epsilon=1.0, ball="linf", noise=1.0,
        generator=seeded(),
    )  # fmt: skip
    assert bool(stirred.delta.any())


def test_an_attack_refuses_what_it_cannot_do():
    settings = {"steps": 2, "step": 0.1, "epsilon": 1.0, "ball": "l2"}
    with pytest.raises(ArgumentError, match="unknown method 'gdp'"):
        ascend(torch.sum, row(1.0), method="gdp", **settings)
    with pytest.raises(ArgumentError, match="at least 1 step, got 0"):
        ascend(torch.sum, row(1.0), method="pgd", **(settings | {"steps": 0}))
    with pytest.raises(ArgumentError, match="sgld draws noise in every step and needs a generator"):
        ascend(torch.sum, row(1.0), method="sgld", **settings)
    with pytest.raises(ArgumentError, match="epsilon"):
        random_in_ball((2, 2), epsilon=-1.0, ball="l2", generator=seeded())
