"""The quick step is torch's own, bit for bit."""

import pytest
import torch
from torch import nn

from leeward.optim.adam import Adam, AdamW
from leeward.optim.build import build_optimizer

SETTINGS = [
    {},
    {"weight_decay": 0.1},
    {"amsgrad": True, "eps": 1e-5},
    {"maximize": True, "betas": (0.5, 0.9), "lr": 0.3},
]


def weights(seed: int = 0) -> list[nn.Parameter]:
    draws = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=draws)) for shape in ((5, 3), (7,), (), (2, 3, 4))]


def gradients(parameters: list[nn.Parameter], number: int, missing: set[int]) -> None:
    draws = torch.Generator().manual_seed(100 + number)
    for i, p in enumerate(parameters):
        gradient = torch.randn(p.shape, generator=draws)
        p.grad = None if i in missing else gradient


def groups(parameters: list[nn.Parameter]) -> list[dict]:
    return [{"params": parameters[:3], "lr": 0.01}, {"params": parameters[3:], "lr": 0.1}]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("ours", "theirs"), [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)])
def test_every_step_is_torchs(ours, theirs, settings):
    """Parameters get their first gradient at different steps, so their own steps differ."""
    a, b = weights(), weights()
    quick, slow = ours(groups(a), **settings), theirs(groups(b), fused=True, **settings)
    for number in range(12):
        missing = {1, 3} if number < 2 else {2} if number == 7 else set()
        for parameters, optimizer in ((a, quick), (b, slow)):
            gradients(parameters, number, missing)
            optimizer.step()
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), number
    assert sorted({float(quick.state[p]["step"]) for p in a}) == [10.0, 11.0, 12.0]


def test_a_state_goes_from_one_to_the_other_and_back():
    a, b = weights(), weights()
    quick, slow = Adam(groups(a)), torch.optim.Adam(groups(b), fused=True)
    for number in range(9):
        if number in (3, 6):
            quick_state, slow_state = quick.state_dict(), slow.state_dict()
            quick, slow = Adam(groups(a)), torch.optim.Adam(groups(b), fused=True)
            quick.load_state_dict(slow_state)
            slow.load_state_dict(quick_state)
        for parameters, optimizer in ((a, quick), (b, slow)):
            gradients(parameters, number, {0} if number < 4 else set())
            optimizer.step()
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), number


def test_a_closure_is_called_and_hooks_run():
    (p,) = parameters = [nn.Parameter(torch.ones(3))]
    quick, seen = Adam(parameters), []
    quick.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        quick.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    assert float(quick.step(closure).detach()) == 3.0
    assert seen == ["after"] and bool((p < 1.0).all())


def test_who_asks_for_another_step_gets_torchs():
    def built(cls, **settings):
        return type(build_optimizer([{"params": weights(), "lr": 0.1}], cls, settings))

    assert built(torch.optim.Adam) is Adam and built(torch.optim.AdamW) is AdamW
    mixed = [{"params": [*weights(), nn.Parameter(torch.zeros(2, dtype=torch.float64))], "lr": 0.1}]
    assert type(build_optimizer(mixed, torch.optim.Adam, {})) is torch.optim.Adam
    for settings in ({"foreach": True}, {"fused": False}, {"differentiable": True}):
        assert built(torch.optim.Adam, **settings) is torch.optim.Adam


def test_scaled_gradients_are_unscaled_before_the_step():
    """As torch's scaler does for every optimiser that does not say it can do it itself."""
    found = []
    for kind in (Adam, torch.optim.Adam):
        (p,) = parameters = [nn.Parameter(torch.tensor([1.0, -2.0]))]
        optimizer, scaler = kind(parameters, eps=1.0), torch.amp.GradScaler("cpu", init_scale=64.0)
        for factor in (1.0, torch.inf, 1.0):
            optimizer.zero_grad()
            scaler.scale((factor * p).square().sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        found.append(p.detach())
    assert torch.allclose(*found, rtol=1e-6, atol=0.0)
