"""Before the first step of an update the policy is the one of the rollout, so every ratio is 1."""

from typing import Any

import pytest

from leeward import DistributionalPPO

from ..support.models import Look, build, learn, ratio_deviation

SETTINGS: dict[str, dict[str, Any]] = {
    "lstm": {},
    "gru": {"memory": "gru"},
    "no memory": {"memory": None},
    "two layers": {"policy_kwargs": {"n_lstm_layers": 2}},
    "shared lstm": {"policy_kwargs": {"shared_lstm": True, "enable_critic_lstm": False}},
    "no critic lstm": {"policy_kwargs": {"enable_critic_lstm": False}},
    "unshared extractors": {"policy_kwargs": {"share_features_extractor": False}},
    "single critic": {"twin_critics": False},
    "categorical critic": {"critic": "categorical"},
    "observation normaliser": {"policy_kwargs": {"normalize_observations": True}},
    "squashed": {"action_distribution": "squashed"},
    "gsde": {"use_sde": True, "sde_sample_freq": 4},
    "squashed gsde": {"use_sde": True, "policy_kwargs": {"squash_output": True, "log_std_init": -1.0}},
    "discrete": {"action": "discrete"},
    "multidiscrete, gru": {"action": "multidiscrete", "memory": "gru"},
    "multibinary": {"action": "multibinary"},
    "dict": {"observation": "dict", "policy_kwargs": {"normalize_observations": True}},
    "image": {"observation": "image"},
    "image, no memory": {"observation": "image", "memory": None},
    "sequences of 1": {"sequence_length": 1},
    "sequences of 5": {"sequence_length": 5},
    "sequences of 23": {"sequence_length": 23},
    "sequences beyond the rollout": {"sequence_length": 100},
    "burn-in": {"burn_in": 4},
    "burn-in longer than a sequence": {"burn_in": 9, "sequence_length": 5},
    "refreshed": {"refresh_memory": True},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_ratio_is_one_before_the_first_step_of_an_update(name: str) -> None:
    model = build(batch_size=None, learning_rate=3e-3, **SETTINGS[name])
    look = Look(ratio_deviation)
    learn(model, 3, look)
    assert model.rollout_buffer is not None
    starts = model.rollout_buffer.starts[1:]
    assert starts.any(0).all() and len({tuple(column) for column in starts.T.tolist()}) == 3  # staggered resets inside
    assert max(look.seen) <= 1e-5
    assert model.last_metrics["train/ratio_first_minibatch_max_dev"] <= 1e-5
    assert ratio_deviation(model) > 1e-3  # the update did move the policy, so that 1 is not the answer to everything


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_fifty_updates_later_every_ratio_still_starts_at_one(memory: str) -> None:
    model = build(
        memory=memory, learning_rate=3e-3, n_steps=11, n_epochs=1, policy_kwargs={"normalize_observations": True}
    )
    look = Look(lambda model: ratio_deviation(model) if model.n_rollouts in (10, 50) else None)
    learn(model, 51, look)
    deviations = [deviation for deviation in look.seen if deviation is not None]
    assert len(deviations) == 2 and max(deviations) <= 1e-4


def _zero(model: DistributionalPPO) -> None:
    for part in model.rollout_buffer.memories:
        part.zero_()


def _shift(model: DistributionalPPO) -> None:
    """Each sequence gets the memory of the one before it."""
    for part in model.rollout_buffer.memories:
        part.copy_(part.roll(1, 0))


@pytest.mark.parametrize("memory", ["lstm", "gru"])
@pytest.mark.parametrize("spoil", [_zero, _shift])
def test_a_wrong_memory_shows_in_the_ratio_and_in_its_metric(memory: str, spoil: Any) -> None:
    model = build(memory=memory, batch_size=None)
    seen = []

    def see(model: DistributionalPPO) -> None:
        assert ratio_deviation(model) <= 1e-5
        spoil(model)
        seen.append(ratio_deviation(model))

    learn(model, 1, Look(see))
    assert seen[0] > 1e-2
    assert model.last_metrics["train/ratio_first_minibatch_max_dev"] == pytest.approx(seen[0], rel=1e-3)


def test_dropout_acts_in_the_update_only() -> None:
    kwargs = {"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.4}}
    model = build(policy_kwargs=kwargs, batch_size=None, n_epochs=1, learning_rate=0.0)
    look = Look(ratio_deviation)
    learn(model, 2, look)
    assert max(look.seen) <= 1e-5
    assert model.last_metrics["train/ratio_first_minibatch_max_dev"] <= 1e-5
    # With a learning rate of 0 and one minibatch nothing but dropout can move a log-ratio.
    assert model.last_metrics["train/log_ratio_max_abs"] > 1e-2
    plain = build(policy_kwargs={"n_lstm_layers": 2}, batch_size=None, n_epochs=1, learning_rate=0.0)
    learn(plain, 2)
    assert plain.last_metrics["train/log_ratio_max_abs"] <= 1e-5
