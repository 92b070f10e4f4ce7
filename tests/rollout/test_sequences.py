"""Sequences: every real step once, resets at their heads, the rollout's own numbers reproduced from them."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from leeward.algorithm.update import _micro_batches
from leeward.maths.nested import forget, map_observation
from leeward.rollout.sequences import cut, memory_times, minibatches

from ..support.models import build, collect, evaluate_rollout, learn

CPU = torch.device("cpu")


@given(
    st.integers(1, 40),
    st.integers(1, 7),
    st.integers(1, 45),
    st.integers(0, 9),
    st.integers(1, 300),
    st.integers(0, 99),
)
def test_every_step_is_in_exactly_one_sequence_of_an_epoch(
    T: int, B: int, length: int, burn_in: int, size: int, seed: int
):
    rng = np.random.default_rng(seed)
    starts = rng.random((T, B)) < rng.choice([0.0, 0.1, 0.6])
    sequences = cut(starts, length, burn_in)
    stored = set(memory_times(T, length, burn_in))
    for time, env in zip(sequences.times, sequences.envs, strict=True):
        assert starts[time, env] or time in stored  # it can start from somewhere
    seen, sizes = np.zeros(T * B, dtype=int), []
    for batch in minibatches(sequences, B, size, rng, CPU):
        rows, mask = batch.rows.numpy(), batch.mask.numpy()
        np.add.at(seen, rows[mask], 1)
        sizes.append(int(mask.sum()))
        assert batch.n_real == sizes[-1] > 0
        # A start after the first row of a sequence would need a reset in its middle.
        inside = starts.ravel()[rows[1:]] & (rows[1:] != rows[:-1])
        assert not inside.any()
        # Rows of a sequence are consecutive steps of one env.
        moved = rows[1:] - rows[:-1]
        assert set(np.unique(moved)) <= {0, B}
        for part in _micro_batches(batch, max(1, size // 3)):
            assert part.n_real == int(part.mask.sum())
    assert (seen == 1).all()
    # Parts are whole sequences, so each is off its share of the whole by less than one sequence at either edge.
    parts = max(1, round(T * B / size))
    longest = int((sequences.lengths - sequences.context).max())
    assert len(sizes) <= parts
    assert max(sizes) <= T * B / parts + longest
    assert min(sizes) > 0


def test_micro_batches_hold_the_sequences_of_their_minibatch_once_each():
    starts = np.random.default_rng(5).random((29, 4)) < 0.2
    sequences = cut(starts, 6, 3)
    batch = next(minibatches(sequences, 4, None, np.random.default_rng(6), CPU))
    parts = list(_micro_batches(batch, 25))
    assert len(parts) > 3
    assert torch.cat([part.sequences for part in parts]).tolist() == batch.sequences.tolist()
    rows = torch.cat([part.rows[part.mask] for part in parts])
    assert sorted(rows.tolist()) == list(range(29 * 4))


@pytest.mark.parametrize("memory", ["lstm", "gru", None])
@pytest.mark.parametrize("burn_in", [0, 4])
def test_acting_step_by_step_equals_evaluating_sequences(memory: str | None, burn_in: int) -> None:
    model = build(memory=memory, burn_in=burn_in, learning_rate=3e-3)
    learn(model, 2)
    buffer = collect(model).rollout
    found = evaluate_rollout(model)
    assert_close(found["log_prob"], buffer.log_probs, atol=1e-5, rtol=0)
    assert_close(found["values"], buffer.raw_values, atol=1e-5, rtol=0)
    assert float(found["values"].std(0).min()) > 1e-3  # values vary, so that equality says something


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_the_stored_memory_is_the_one_before_the_step(memory: str) -> None:
    model = build(memory=memory, sequence_length=4)
    buffer, policy = collect(model).rollout, model.policy
    # One env at a time, one step at a time, reset by hand; nothing is shared with the collector but `latents`.
    for env in range(3):
        state = policy.initial_memory(1)
        for t in range(23):
            if buffer.starts[t, env]:
                state = policy.initial_memory(1)
            if t % 4 == 0:
                stored = buffer.memory_before(torch.tensor([t]), torch.tensor([env]))
                for part, expected in zip(stored, state, strict=True):
                    assert_close(part, expected, atol=1e-6, rtol=0)
            with torch.no_grad():
                state = policy.latents(buffer.observations[t : t + 1, env : env + 1], state).memory


@pytest.mark.parametrize("memory", ["lstm", "gru"])
def test_what_happened_in_one_episode_cannot_change_the_next(memory: str) -> None:
    model = build(memory=memory, n_steps=31)
    buffer = collect(model).rollout
    before = evaluate_rollout(model)
    # Everything before each env's last episode start is made up anew.
    clock = torch.arange(31)[:, None]
    last = torch.where(buffer.starts, clock, -1).amax(0)  # (B,)
    earlier = clock < last  # (T, B)
    assert 0 < int(earlier.sum()) < earlier.numel()
    assert isinstance(buffer.observations, torch.Tensor)
    buffer.observations[earlier] += 3.0
    for part in buffer.memories:
        for t, slot in buffer.memory_slots.items():
            part[slot][:, earlier[t] | buffer.starts[t]] = 5.0
    after = evaluate_rollout(model)
    for name in ("log_prob", "values"):
        assert torch.equal(before[name][~earlier], after[name][~earlier])
        assert not torch.equal(before[name][earlier], after[name][earlier])


@pytest.mark.parametrize("burn_in", [0, 3])
def test_a_refreshed_memory_equals_an_unroll_from_the_rollouts_first_step(burn_in: int) -> None:
    model = build(burn_in=burn_in, learning_rate=1e-2, n_epochs=3)
    collected = collect(model)
    model._update_current_progress_remaining(0, 1)
    buffer, policy, updater = collected.rollout, model.policy, model.engine.updater
    first = tuple(part[0].clone() for part in buffer.memories)
    model.train(collected)
    assert isinstance(buffer.observations, torch.Tensor)
    sequences = cut(buffer.starts.numpy(), 6, burn_in)
    stale = buffer.memory_before(torch.as_tensor(sequences.times), torch.as_tensor(sequences.envs))
    fresh = updater._refreshed(buffer, sequences, stale)
    states, running = [], first
    with torch.no_grad():
        for t in range(23):
            running = forget(running, buffer.starts[t])
            states.append(running)
            running = policy.latents(buffer.observations[t : t + 1], running).memory
    moved = 0.0
    for i, (t, env, context) in enumerate(zip(sequences.times, sequences.envs, sequences.context, strict=True)):
        for k in range(len(fresh)):
            if context == 0:
                assert_close(fresh[k][:, i], states[t][k][:, env], atol=1e-5, rtol=0)
                moved = max(moved, float((fresh[k][:, i] - stale[k][:, i]).abs().max()))
            else:  # burn-in refreshes these by itself
                assert torch.equal(fresh[k][:, i], stale[k][:, i])
    if burn_in == 0:
        assert moved > 1e-3


def test_a_refresh_is_without_dropout() -> None:
    model = build(policy_kwargs={"n_lstm_layers": 2, "lstm_kwargs": {"dropout": 0.5}})
    buffer = collect(model).rollout
    sequences = cut(buffer.starts.numpy(), 6)
    stored = buffer.memory_before(torch.as_tensor(sequences.times), torch.as_tensor(sequences.envs))
    model.policy.set_training_mode(True)
    fresh = model.engine.updater._refreshed(buffer, sequences, stored)
    assert model.policy.training
    for part, expected in zip(fresh, stored, strict=True):  # the weights are those of the rollout
        assert_close(part, expected, atol=1e-6, rtol=0)


def test_observations_of_a_dict_keep_their_rows_together() -> None:
    model = build(observation="dict")
    buffer = collect(model).rollout
    assert isinstance(buffer.observations, dict)
    shapes = map_observation(lambda value: torch.tensor(value.shape), buffer.observations)
    assert isinstance(shapes, dict)
    assert shapes["place"].tolist() == [23, 3, 4] and shapes["phase"].tolist() == [23, 3]
    assert evaluate_rollout(model)["log_prob"].shape == (23, 3)
