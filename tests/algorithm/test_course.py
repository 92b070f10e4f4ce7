"""Whether schedules are told the progress of the steps that were trained, by a count of its own."""

import io
from typing import Any

from leeward import DistributionalPPO
from leeward.telemetry import metrics

from ..support.faults import make
from ..support.models import Look

ROLLOUT = 48 * 3  # steps


class Watched:
    """A model whose every update says how far its schedules are from their course."""

    def __init__(self, model: DistributionalPPO) -> None:
        self.model, self.off = model, list[float]()

    def learn(self, steps: int, see: Any = lambda model: None, **arguments: Any) -> None:
        before = self.model.n_rollouts

        def look(model: DistributionalPPO) -> None:
            if model.n_rollouts > before:
                self.off.append(model.last_metrics[metrics.PROGRESS_DEV.name])
            see(model)

        self.model.learn(steps, Look(look), **arguments)
        self.off.append(self.model.last_metrics[metrics.PROGRESS_DEV.name])


def named(model: DistributionalPPO) -> list[int]:
    return [alert.update for alert in model.alerts if alert.name == "schedule_off_course"]


def test_training_in_several_calls_with_a_last_rollout_past_the_end_is_on_its_course() -> None:
    watched = Watched(make())
    watched.learn(2 * ROLLOUT + 50)  # three rollouts
    watched.learn(2 * ROLLOUT + 1, reset_num_timesteps=False)
    watched.learn(ROLLOUT)
    assert len(watched.off) == 3 + 3 + 1 and max(watched.off) < 1e-12


def test_rollouts_of_another_length_from_the_middle_on_are_counted_as_they_are() -> None:
    watched = Watched(make())

    def longer(model: DistributionalPPO) -> None:
        if model.n_rollouts == 1:
            model.set_hyperparameters(n_steps=60)

    watched.learn(4 * ROLLOUT, longer)
    assert watched.model.num_timesteps == 2 * 48 * 3 + 2 * 60 * 3 and max(watched.off) < 1e-12


def test_training_goes_on_after_a_stop_inside_a_rollout_and_from_a_file() -> None:
    model = make()
    model.learn(5 * ROLLOUT, lambda local, _: local["self"].num_timesteps < 100)
    assert model.n_rollouts == 0
    watched = Watched(model)
    watched.learn(2 * ROLLOUT, reset_num_timesteps=False)
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    resumed = Watched(DistributionalPPO.load(file, model.env, force_reset=False))
    resumed.learn(2 * ROLLOUT, reset_num_timesteps=False)
    assert max(watched.off + resumed.off) < 1e-12


def test_a_round_that_failed_and_is_made_again_counts_once() -> None:
    def spoil_once(model: DistributionalPPO) -> None:
        if model.n_rollouts == 2 and not model.guard.rollbacks:
            model.env.envs[0].unwrapped.knobs["nan"] = True  # type: ignore[union-attr]

    watched = Watched(make(health={"rollback": True}))
    watched.learn(5 * ROLLOUT, spoil_once)
    assert watched.model.guard.rollbacks == 1 and max(watched.off) < 1e-12


def test_a_total_that_somebody_else_writes_is_told() -> None:
    def shorten(model: DistributionalPPO) -> None:
        if model.n_rollouts == 2:
            model._total_timesteps //= 2

    model = make()
    model.learn(6 * ROLLOUT, Look(shorten))
    assert named(model) == [3]
