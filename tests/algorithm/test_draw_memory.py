"""Random numbers that begin anew are seen, also after a resume; those of a sound run never repeat."""

import io
import re

import pytest
import torch

from leeward import DistributionalPPO
from leeward.algorithm.draw_memory import DrawMemory, fingerprint
from leeward.errors import CheckpointError
from leeward.telemetry import metrics

from ..support.faults import make
from ..support.models import Look, build, learn


def told(model: DistributionalPPO) -> list[int]:
    return [alert.update for alert in model.alerts if alert.name == "random_numbers_repeat"]


def resumed(model: DistributionalPPO) -> DistributionalPPO:
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    return DistributionalPPO.load(file, model.env, force_reset=False)


def test_a_fingerprint_is_of_the_numbers_and_not_of_the_rollouts_length() -> None:
    noise = torch.rand(20, 3, 2, generator=torch.Generator().manual_seed(1))
    other = torch.rand(20, 3, 2, generator=torch.Generator().manual_seed(2))
    assert fingerprint(noise) == fingerprint(noise[:9]) != fingerprint(other)


def test_of_fewer_than_four_numbers_nothing_is_said() -> None:
    assert fingerprint(torch.zeros(1, 3, 1)) is None
    memory = DrawMemory()
    assert [memory.look(None), memory.look(None)] == [0.0, 0.0]
    assert fingerprint(torch.zeros(2, 2, 1)) is not None


def test_numbers_of_the_start_and_of_the_last_rollouts_are_known_again() -> None:
    memory = DrawMemory()
    assert not any(memory.look(k) for k in range(200))
    # The first 32 and the last 64 are remembered.
    assert [memory.look(k) for k in (0, 31, 32, 135, 199)] == [1.0, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", [{}, {"action": "discrete"}, {"use_sde": True}, {"n_envs": 1}])
def test_a_sound_run_never_draws_the_same_again(kind: dict[str, object]) -> None:
    """In several calls of learn, with its seed set again, and after a resume."""
    seen: list[float] = []
    look = Look(lambda model: seen.append(model.last_metrics.get(metrics.DRAWS_REPEATED.name, 0.0)))
    model = learn(build(on_alert=lambda alert: None, **kind), 3, look)  # type: ignore[arg-type]
    model.set_random_seed(3)
    learn(model, 2, look)
    model = learn(resumed(model), 2, look)
    assert model.n_rollouts == 7 and set(seen) == {0.0} and told(model) == []
    assert len(model.draw_memory.state_dict()["first"]) == 7


def test_a_model_from_a_file_that_draws_from_the_start_is_told() -> None:
    model = resumed(learn(make(), 4))
    model.guard.on_alert = lambda alert: None
    model.n_rollouts = 0
    learn(model, 2)
    assert told(model) == [1]
    assert model.last_metrics[metrics.DRAWS_REPEATED.name] == 1.0


def test_a_rollout_that_was_not_learned_from_may_be_made_again() -> None:
    def spoil_once(model: DistributionalPPO) -> None:
        if model.n_rollouts == 2 and not model.guard.rollbacks:
            model.env.envs[0].unwrapped.knobs["nan"] = True  # type: ignore[union-attr]

    model = make(health={"rollback": True})
    model.learn(1000, lambda local, _: local["self"].num_timesteps < 100)
    learn(model, 5, Look(spoil_once))
    assert model.guard.rollbacks == 1 and told(model) == []


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"first": [1.5], "last": []}, "of random numbers it remembers 1.5, expected a whole number"),
        ({"first": [], "last": [-1]}, "of random numbers it remembers -1, expected a whole number"),
        ({"first": [1] * 33, "last": []}, "random numbers of 33 and 0 rollouts, expected 32 and 64 at most"),
    ],
)
def test_a_damaged_memory_is_refused(state: dict[str, list[int]], message: str) -> None:
    with pytest.raises(CheckpointError, match=re.escape(message)):
        DrawMemory().load_state_dict(state)
