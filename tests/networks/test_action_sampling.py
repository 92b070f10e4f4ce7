"""Sampling at its edges; equality with SB3's distributions is shown in test_action_distributions.py."""

import pytest
import torch
from gymnasium import spaces

from leeward.networks.action_distributions import CategoricalHead, GaussianHead, MultiCategoricalHead

NEARLY_ONE = 1.0 - 2.0**-24  # the largest uniform number there is in float32


@pytest.mark.parametrize("seed", range(20))
def test_a_masked_action_is_never_drawn_however_the_probabilities_round(seed: int) -> None:
    logits = 3.0 * torch.randn(64, 13, generator=torch.Generator().manual_seed(seed))
    logits[:, -4:] = -1e8  # the last four are masked
    logits[::2, 0] = -1e8  # and the first, in every other row
    logs = logits.log_softmax(-1)
    head = CategoricalHead(spaces.Discrete(13), 1)
    for uniform in (0.0, 0.5, NEARLY_ONE):
        drawn = head.sample(logs, torch.full((64, 1), uniform))
        assert torch.isfinite(head.log_prob(logs, drawn)).all()
        assert float(head.log_prob(logs, drawn).min()) > -100.0


def test_each_part_of_a_multidiscrete_action_is_drawn_by_its_own_probabilities() -> None:
    head = MultiCategoricalHead(spaces.MultiDiscrete([2, 4]), 1)
    logs = torch.tensor([0.25, 0.75, 0.0, 0.0, 1.0, 0.0]).log()
    noise = torch.tensor([[0.2, 0.0], [0.3, 0.0], [0.2, NEARLY_ONE]])
    assert head.sample(logs.expand(3, 6), noise).tolist() == [[0.0, 2.0], [1.0, 2.0], [0.0, 2.0]]


def test_the_divergence_of_almost_equal_gaussians_is_not_lost_in_rounding() -> None:
    head = GaussianHead(spaces.Box(-1.0, 1.0, (1,)), 1, 0.0)
    log_std = -0.7
    old = torch.tensor([[0.0, log_std]] * 3, requires_grad=True)
    new = torch.tensor([[0.0, log_std], [1e-5, log_std], [0.0, log_std + 1e-3]], requires_grad=True)
    found = head.kl(old, new)
    # Δμ²/2σ² = ½ · 1e-10 · e^1.4; ½ (e^−2e-3 − 1 + 2e-3) ≈ (1e-3)².
    assert float(found[0].detach()) == 0.0
    torch.testing.assert_close(found[1].detach(), torch.tensor(0.5e-10 * 4.0552), rtol=1e-3, atol=0.0)
    torch.testing.assert_close(found[2].detach(), torch.tensor(1e-6), rtol=2e-3, atol=0.0)
    (gradient,) = torch.autograd.grad(found[0], new)
    assert not gradient.any()
