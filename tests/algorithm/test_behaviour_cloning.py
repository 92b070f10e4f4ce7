"""`pretrain`: the actor learns a dataset's mapping, with and without memory, and nothing else is touched."""

from typing import Any

import numpy as np
import pytest
import torch

from leeward import DistributionalPPO
from leeward.algorithm.behaviour_cloning import _memories, _sequences
from leeward.errors import ArgumentError, ShapeError

from ..support.models import build, learn, parameters_of

CLONE: dict[str, Any] = {"policy_kwargs": {"net_arch": [32], "lstm_hidden_size": 24}, "max_grad_norm": None}
NO_MEMORY: dict[str, Any] = {"policy_kwargs": {"net_arch": [32]}, "max_grad_norm": None, "memory": None}


def seen(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 5)).astype(np.float32)


def acts(model: DistributionalPPO, observations: np.ndarray, starts: np.ndarray | None = None) -> np.ndarray:
    """The deterministic policy, step by step through time."""
    state, found = None, []
    for t, row in enumerate(observations):
        begun = None if starts is None else starts[[t]]
        action, state = model.predict(row[None], state=state, episode_start=begun, deterministic=True)
        found.append(action[0])
    return np.array(found)


@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
def test_a_known_mapping_is_learned_without_memory(distribution: str) -> None:
    model = build(action_distribution=distribution, **NO_MEMORY)
    mapping = np.random.default_rng(1).normal(size=(5, 2)) * 0.3
    x = seen(1500)
    losses = model.pretrain(x, (x @ mapping).clip(-2, 3), epochs=25, batch_size=50, learning_rate=3e-3)
    assert len(losses) == 25 and losses[-1] < losses[0] - 0.03
    fresh = seen(300, seed=2)
    error = acts(model, fresh) - (fresh @ mapping).clip(-2, 3)
    assert float(np.abs(error).mean()) < 0.12


def test_choices_are_learned() -> None:
    model = build(action="discrete", **NO_MEMORY)
    x = seen(1500)
    model.pretrain(x, x[:, :3].argmax(1), epochs=20, batch_size=50, learning_rate=3e-3)
    fresh = seen(300, seed=2)
    assert (acts(model, fresh) == fresh[:, :3].argmax(1)).mean() > 0.93


def test_a_policy_with_memory_learns_what_only_memory_can_tell() -> None:
    """The right action is the sign of what was seen one step before; at the start of an episode it is the middle one.
    Episodes are longer than a sequence, so that half of what is learned needs the memory before it."""
    model = build(action="discrete", **CLONE)
    starts = np.zeros(1600, dtype=bool)
    starts[::16] = True
    x = seen(1600)
    before = np.roll(x[:, 0], 1)
    actions = np.where(starts, 1, np.where(before > 0.0, 2, 0))
    losses = model.pretrain(x, actions, epochs=30, batch_size=64, learning_rate=1e-2, episode_starts=starts)
    assert losses[-1] < 0.35 < losses[0]
    fresh, begun = seen(320, seed=3), starts[:320]
    right = np.where(begun, 1, np.where(np.roll(fresh[:, 0], 1) > 0.0, 2, 0))
    assert (acts(model, fresh, begun) == right).mean() > 0.88
    blind = build(action="discrete", **NO_MEMORY)
    blind.pretrain(x, actions, epochs=10, batch_size=64, learning_rate=1e-2, episode_starts=starts)
    assert (acts(blind, fresh) == right).mean() < 0.65


def test_sequences_start_from_the_memory_the_episode_has_there() -> None:
    model = learn(build(), 1)
    starts = np.zeros(40, dtype=bool)
    starts[[0, 7, 8, 21]] = True
    sequences, places = _sequences(starts, 6)
    # Episodes of 7, 1, 13 and 19 steps: 2, 1, 3 and 4 sequences.
    assert sequences.times.tolist() == [0, 6, 7, 8, 14, 20, 21, 27, 33, 39]
    assert sequences.lengths.tolist() == [6, 1, 1, 6, 6, 1, 6, 6, 6, 1]
    assert places.tolist() == [0, 1, 0, 0, 1, 2, 0, 1, 2, 3]
    x = seen(40)
    memory = _memories(model.policy, torch.as_tensor(x), sequences.times, places, 6)
    state: Any = None
    for t in range(40):
        if t in sequences.times:
            k = sequences.times.tolist().index(t)
            for part, whole in enumerate(memory):
                expected = np.zeros_like(whole[:, k]) if starts[t] else state[part][:, 0]
                np.testing.assert_allclose(whole[:, k].numpy(), expected, atol=1e-6)
        _, state = model.predict(x[[t]], state=state, episode_start=starts[[t]])


def test_critics_noise_and_the_optimiser_are_left_as_they_were() -> None:
    model = learn(build(), 2)
    before, rates = parameters_of(model.policy), model.policy.optimizer.state_dict()
    moments = [entry["exp_avg"].clone() for entry in rates["state"].values()]
    x = seen(200)
    model.pretrain(x, x[:, :2].clip(-2, 3), epochs=2, batch_size=40)
    moved = {name for name, p in parameters_of(model.policy).items() if not torch.equal(p, before[name])}
    assert moved and all(name.startswith(("actor_memory", "actor_mlp", "action_head.net")) for name in moved)
    after = [entry["exp_avg"] for entry in model.policy.optimizer.state_dict()["state"].values()]
    assert all(torch.equal(a, b) for a, b in zip(moments, after, strict=True))
    assert all(p.grad is None for p in model.policy.parameters()) and not model.policy.training
    learn(model, 1)


def test_a_fresh_normaliser_takes_its_scale_from_the_dataset() -> None:
    model = build(memory=None, policy_kwargs={"normalize_observations": True})
    x = 7.0 * seen(400)
    model.pretrain(x.clip(-9, 9), x[:, :2].clip(-2, 3), epochs=1, batch_size=100)
    normaliser = model.policy.observation_normaliser
    assert normaliser is not None and not normaliser.fresh
    unit = normaliser.unit("observation")
    np.testing.assert_allclose(unit, x.clip(-9, 9).std(0), rtol=1e-4)
    model.pretrain(3.0 * x.clip(-3, 3), x[:, :2].clip(-2, 3), epochs=1, batch_size=100)
    assert torch.equal(normaliser.unit("observation"), unit)  # type: ignore[arg-type]


def test_the_same_call_gives_the_same_weights() -> None:
    x = seen(150)
    models = [build(), build()]
    losses = [model.pretrain(x, x[:, :2].clip(-2, 3), epochs=2, batch_size=30) for model in models]
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(*(m.policy.parameters() for m in models), strict=True))


@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "multibinary", "box"])
@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
def test_an_action_comes_back_from_the_heads_own_form(action: str, distribution: str) -> None:
    model = build(action=action, memory=None, action_distribution=distribution)
    given = np.stack([model.action_space.sample() for _ in range(50)])
    head = model.policy.action_head
    own = head.from_env(torch.as_tensor(given))
    assert own.shape == (50, head.action_size) and bool(torch.isfinite(own).all())
    np.testing.assert_allclose(head.to_env(own).numpy(), given, atol=1e-3)


def test_a_squashed_action_at_its_bound_has_a_finite_loss() -> None:
    model = build(memory=None, action_distribution="squashed")
    x = seen(60)
    edge = np.where(x[:, :2] > 0, 3.0, -2.0)
    assert np.isfinite(model.pretrain(x, edge, epochs=1, batch_size=20)).all()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epochs": 0}, ArgumentError, "pretrain: epochs must be a whole number of at least 1, got 0"),
        ({"batch_size": 2.5}, ArgumentError, "batch_size must be a whole number"),
        ({"learning_rate": -1.0}, ArgumentError, "learning_rate must be positive, got -1"),
        ({"observations": np.zeros((9, 4), np.float32)}, ShapeError, r"observations must be \(n, 5\), got \(9, 4\)"),
        ({"observations": {"a": np.zeros((9, 5))}}, ArgumentError, "observations must be as Box.*got dict"),
        ({"observations": np.full((9, 5), np.nan)}, ArgumentError, "observations must be finite, got .*row 0"),
        ({"actions": np.zeros((8, 2))}, ShapeError, r"actions must be \(9, 2\), one per observation.*got \(8, 2\)"),
        ({"actions": np.full((9, 2), 3.5)}, ArgumentError, r"action \[3.5 3.5\] in row 0 is outside Box"),
        ({"actions": np.full((9, 2), np.inf)}, ArgumentError, "actions must be finite"),
        ({"episode_starts": np.zeros(4)}, ShapeError, r"episode_starts must be \(9,\).*got \(4,\)"),
    ],
)
def test_a_dataset_that_does_not_fit_is_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments: dict[str, Any] = {"epochs": 1, "batch_size": 3}
    arguments |= {"observations": np.zeros((9, 5), np.float32), "actions": np.zeros((9, 2))} | change
    model = build()
    before = parameters_of(model.policy)
    with pytest.raises(error, match=message):
        model.pretrain(arguments.pop("observations"), arguments.pop("actions"), **arguments)
    assert all(torch.equal(p, before[name]) for name, p in parameters_of(model.policy).items())


def test_a_dict_dataset_needs_its_keys() -> None:
    model = build(observation="dict", memory=None)
    data = {"place": np.zeros((6, 4), np.float32), "phase": np.zeros(6, np.int64)}
    assert len(model.pretrain(data, np.zeros((6, 2)), epochs=1, batch_size=3)) == 1
    with pytest.raises(ArgumentError, match=r"need the keys \['phase', 'place'\], got \['place'\]"):
        model.pretrain({"place": data["place"]}, np.zeros((6, 2)), epochs=1, batch_size=3)
    with pytest.raises(ShapeError, match=r"the same number of rows.*'phase': 5"):
        model.pretrain(data | {"phase": np.zeros(5, np.int64)}, np.zeros((6, 2)), epochs=1, batch_size=3)
