"""A step that is computed a second time comes to the same, whatever is learned and by whichever settings."""

from typing import Any

import pytest
import torch

from leeward.telemetry import metrics as m

from ..support.models import Look, build, learn

DEPLOYED = {"alpha": 0.41, "limit": 0.1, "binds": "deployed", "deployed_share": 0.4}
KINDS: dict[str, dict[str, Any]] = {
    "quantiles": {},
    "Huber": {"kappa": 0.5},
    "atoms": {"critic": "categorical", "action": "discrete"},
    "a number": {"critic": "scalar", "memory": None},
    "several choices": {"action": "multidiscrete", "ent_coef": 0.01},
    "on or off": {"action": "multibinary", "ent_coef": 0.01},
    "squashed": {"action_distribution": "squashed", "ent_coef": 0.01},
    "gSDE": {"use_sde": True, "sde_sample_freq": 3},
    "clipped values": {"clip_range_vf": 0.1},
    "imitation and a KL penalty": {"awr": {}, "kl_penalty": {}},
    "scaled gradients": {"vgs": {"warmup": 1}},
    "in parts, with context": {"micro_batch_size": 7, "burn_in": 3},
    "a shared extractor": {"observation": "image", "policy_kwargs": {"share_features_extractor": True}},
    "weight decay": {
        "policy_kwargs": {"optimizer_class": torch.optim.AdamW, "optimizer_kwargs": {"weight_decay": 0.1}},
        "critic_learning_rate": 1e-3,
    },
    "envs that act as deployed": {
        "n_envs": 8,
        "risk": {"alpha": 0.41, "limit": 0.1, "binds": "deployed", "deployed_share": 0.4},
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_step_is_what_its_rollout_says(kind: str) -> None:
    model = build(**KINDS[kind])
    seen: list[dict[str, float]] = []
    learn(model, 4, Look(lambda model: seen.append(dict(model.last_metrics))))
    for k, numbers in enumerate((*seen[1:], model.last_metrics)):
        if k % 2:
            assert numbers[m.VALUE_DEV.name] < 1e-5
        else:  # the first step, then the second
            assert numbers[m.GRADIENT_DEV.name] < 1e-4
            assert numbers[m.OPTIMIZER_STEP_DEV.name] < 1e-4
        assert numbers[m.ROLLOUT_USED.name] == 1.0
        assert numbers[m.WEIGHTS_MOVED.name] == 0.0
        assert numbers.get(m.ACTION_SURPRISE.name, 0.0) < 6.0


def test_an_update_of_one_step_is_looked_at_every_fourth_time() -> None:
    model = build(n_epochs=1, batch_size=69)
    seen: list[bool] = []
    learn(model, 6, Look(lambda model: seen.append(m.GRADIENT_DEV.name in model.last_metrics)))
    assert seen[1:] == [True, False, False, False, True]


def test_weights_from_elsewhere_are_no_surprise() -> None:
    model = learn(build(), 2)
    model.set_parameters(build(seed=9).get_parameters())
    learn(model, 1)
    assert model.last_metrics[m.WEIGHTS_MOVED.name] == 0.0
