"""The entropy coefficient: monotone, never under its floor; a plateau only decides when the decay starts."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leeward.algorithm.entropy import EntropySchedule
from leeward.config.learning import Entropy
from leeward.errors import ConfigError

from ..support.models import Look, build, learn

entropies = st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=40)


@given(
    entropies,
    st.sampled_from(["linear", "cosine"]),
    st.sampled_from([None, 2, 5]),
    st.floats(0.0, 0.02),
    st.floats(0.0, 0.02),
)
def test_the_coefficient_falls_monotonically_and_never_under_its_floor(seen, shape, plateau, end, floor):
    end = max(end, floor)
    config = Entropy(end=end, floor=floor, schedule=shape, plateau_updates=plateau, plateau_slope=0.5)
    schedule = EntropySchedule()
    coefficients = []
    for k, entropy in enumerate(seen):
        progress = (k + 1) / len(seen)
        coefficients.append(schedule.effective(progress, 0.02, config))
        schedule.observe(entropy, progress, config)
    assert all(later <= earlier + 1e-15 for earlier, later in pairwise(coefficients))
    assert min(coefficients) >= floor
    if plateau is None:
        assert coefficients[-1] == pytest.approx(end, abs=1e-12)


def test_a_plateau_starts_the_decay_and_does_nothing_else() -> None:
    schedule, config = EntropySchedule(), Entropy(end=0.0, plateau_updates=3, plateau_slope=0.01)
    for k, entropy in enumerate([2.0, 1.5, 1.0, 0.5], start=1):  # falling by 0.5: no plateau
        schedule.observe(entropy, k / 10, config)
        assert schedule.effective(k / 10, 0.04, config) == 0.04
    schedule.observe(0.5, 0.5, config)
    schedule.observe(0.5, 0.6, config)  # three equal ones: flat, slope 0
    assert schedule.decay_from == 0.6
    # Whatever comes now, the decay has begun and goes on: 0.04 · (1 − (p − 0.6)/0.4).
    schedule.observe(9.0, 0.7, config)
    assert schedule.effective(0.6, 0.04, config) == 0.04
    assert schedule.effective(0.7, 0.04, config) == pytest.approx(0.03)
    assert schedule.effective(1.0, 0.04, config) == pytest.approx(0.0)


def test_a_slope_of_entropies_is_the_least_squares_one() -> None:
    schedule = EntropySchedule()
    assert schedule.slope() == 0.0
    for value in (1.0, 3.0, 2.0):  # centred −1, 0, 1 times deviations −1, 1, 0: (1 + 0 + 0)/2
        schedule.observe(value, 0.0, Entropy())
    assert schedule.slope() == pytest.approx(0.5)


def test_a_floor_above_the_end_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"end 0.001 lies below the floor 0.01"):
        build(entropy={"end": 0.001, "floor": 0.01})


def test_the_schedule_acts_in_training_and_is_in_the_record() -> None:
    model = build(ent_coef=0.08, entropy={"end": 0.0, "std_scale_end": 0.25}, n_epochs=1)
    seen = []
    model._update_current_progress_remaining(0, 1)
    look = Look(lambda m: seen.append(dict(m.last_metrics)))
    learn(model, 4, look)
    seen.append(dict(model.last_metrics))
    # Four rollouts: progress 1/4, 2/4, 3/4, 1
    assert [m["train/ent_coef_nominal"] for m in seen[1:]] == pytest.approx([0.06, 0.04, 0.02, 0.0])
    assert [m["train/ent_coef_effective"] for m in seen[1:]] == pytest.approx([0.06, 0.04, 0.02, 0.0])
    # The noise is annealed from the next rollout on: a factor of 0.25 at the end, 1 − 3/4 · 0.75 in the last rollout.
    log_scale = model.policy.action_head.log_scale
    assert float(log_scale) == pytest.approx(math.log(0.25))
    learned = float(model.policy.action_head.log_std.detach().exp().mean())
    assert seen[1]["train/std"] == pytest.approx(1.0, abs=1e-3)
    assert seen[4]["train/std"] == pytest.approx(learned * 0.4375, rel=0.05)


def test_more_entropy_is_kept_when_it_is_paid_for() -> None:
    # Gradient of the entropy alone on log_std is 1 per dimension, so the bonus raises it against the same rollout.
    plain, paid = (learn(build(ent_coef=c, n_epochs=1, batch_size=None), 1) for c in (0.0, 5.0))
    after = [model.policy.action_head.log_std.detach() for model in (plain, paid)]
    assert float((after[1] - after[0]).min()) > 0.0


def test_a_floor_holds_from_the_first_update_on() -> None:
    model = learn(build(ent_coef=0.001, entropy={"floor": 0.03}, n_epochs=1), 1)
    assert model.last_metrics["train/ent_coef_nominal"] == 0.001
    assert model.last_metrics["train/ent_coef_effective"] == 0.03
