"""Sampling at its edges; equality with SB3's distributions is shown in tests/sb3."""

import pytest
import torch
from gymnasium import spaces

from leeward.networks.action_distributions import CategoricalHead, MultiCategoricalHead

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
