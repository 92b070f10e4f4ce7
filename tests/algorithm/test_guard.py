"""What a model does about its own health: it tells, stops, or goes back."""

import io
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from stable_baselines3.common.logger import KVWriter, Logger

from leeward import DistributionalPPO
from leeward.algorithm.checkpoint import read_checkpoint, restore
from leeward.algorithm.guard import _scaled
from leeward.errors import ConfigError, EnvironmentFault, UnhealthyTraining
from leeward.telemetry.alerts import Alert

from ..support.faults import hooks, knob, make, one_env, setting, weights
from ..support.models import Look, learn, parameters_of


class Then(Look):
    """Does something once, before the rollout of an update."""

    def __init__(self, update: int, act: Any) -> None:
        super().__init__(lambda model: None)
        self.update, self.act, self.done = update, act, False
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def _on_rollout_start(self) -> None:
        model = self.model
        assert isinstance(model, DistributionalPPO)
        self.weights[model.n_rollouts] = parameters_of(model.policy)
        if model.n_rollouts + 1 == self.update and not self.done:
            self.done = True
            self.act(model, ExitStack())


def names(model: DistributionalPPO) -> list[str]:
    return [alert.name for alert in model.alerts]


def test_an_error_is_told_and_training_goes_on_by_default() -> None:
    told: list[Alert] = []
    model = make(on_alert=told.append)
    learn(model, 7, Then(5, setting(learning_rate=3.0)))
    assert model.n_rollouts == 7
    assert told == model.alerts and "policy_jumped" in names(model)
    assert model.last_metrics["alert/policy_jumped"] in (0.0, 1.0)


def test_an_sb3_user_sees_alerts_with_verbose_1(capsys) -> None:
    learn(make(on_alert=None, verbose=1), 4, Then(3, setting(learning_rate=0.0)))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warn: learning_rate_zero")]
    assert len(lines) == 1 and "leeward explain learning_rate_zero" in lines[0]


def test_strict_stops_with_words_and_the_model_is_the_last_good_one() -> None:
    model, then = make(health={"strict": True}), Then(8, setting(learning_rate=3.0))
    with pytest.raises(UnhealthyTraining) as stopped:
        learn(model, 12, then)
    message = str(stopped.value)
    for part in (
        "health.strict ends training at update 8", "policy_jumped", "first seen in update 8", "Likely: a learning rate",
        "Try: lower learning_rate", "that after update 5, which the model holds now", "leeward explain policy_jumped",
    ):  # fmt: skip
        assert part in message
    now = parameters_of(model.policy)
    assert all(torch.equal(now[name], value) for name, value in then.weights[5].items())


def test_rollback_goes_back_with_a_smaller_rate_and_says_so() -> None:
    told: list[Alert] = []
    model = make(health={"rollback": True}, on_alert=told.append)
    learn(model, 16, Then(8, setting(learning_rate=3.0)))
    said = [alert for alert in told if alert.name == "rolled_back"]
    assert len(said) == 1 == model.guard.rollbacks
    assert "rollback 1 of 3 because of policy_jumped: back to the state after update 5" in said[0].message
    # Half of the rate of the good state, not of the one that was set since.
    assert model.learning_rate == pytest.approx(5e-4) and "learning_rate 0.0005" in said[0].message
    assert model.last_metrics["train/approx_kl"] < 0.1
    assert model.n_rollouts == 16, "what was spent is spent"
    copy = io.BytesIO()
    model.save(copy)
    copy.seek(0)
    for each in (model, DistributionalPPO.load(copy, env=model.env)):  # the rate returns after ten good updates
        learn(each, 1)
        assert each.learning_rate == pytest.approx(5e-4)
        learn(each, 2)
        assert each.learning_rate == pytest.approx(1e-3) and "learning_rate 0.001 again" in each.alerts[-1].message


def test_a_rate_that_made_the_policy_jump_becomes_as_small_as_its_kl_says() -> None:
    model = make(health={"rollback": True}, learning_rate=0.3)
    learn(model, 8)
    jump = next(alert for alert in model.alerts if alert.name == "policy_jumped")
    assert names(model).count("rolled_back") == 1 == model.guard.rollbacks
    # The KL of an update grows with the square of the rate, and 0.02 is a usual one.
    assert model.learning_rate == pytest.approx(0.3 * math.sqrt(0.02 / jump.value))
    assert model.learning_rate < 0.5 * 0.3


def test_each_rollback_lowers_the_rate_further_than_the_one_before() -> None:
    model = make(health={"rollback": True, "rules": {"policy_jumped": {"off": True}}})
    broken = hooks(lambda m: [m.policy.action_head.net.weight], lambda gradient: gradient * math.nan)
    with pytest.raises(UnhealthyTraining, match="after 3 of them"):
        learn(model, 20, Then(4, broken))
    said = [alert.message for alert in model.alerts if alert.name == "rolled_back"]
    # 1/2, 1/2 · 1/4, 1/2 · 1/4 · 1/8 of 1e-3
    assert [line.rpartition(" ")[2] for line in said] == ["0.0005", "0.000125", "1.56e-05"]


def test_rollback_and_several_processes_are_refused_together() -> None:
    with pytest.raises(ConfigError, match=r"health\.rollback works with one process, and n_jobs is 2"):
        make(health={"rollback": True}, n_jobs=2)


def test_rollbacks_are_bounded() -> None:
    model = make(health={"rollback": True, "max_rollbacks": 2})
    broken = hooks(lambda m: [m.policy.action_head.net.weight], lambda gradient: gradient * math.nan)
    with pytest.raises(UnhealthyTraining, match=r"after 2 of them, ends training .* minibatches_skipped"):
        learn(model, 20, Then(4, broken))
    assert names(model).count("rolled_back") == 2


def test_one_bad_reward_ends_training_or_is_survived() -> None:
    model = make()
    with pytest.raises(EnvironmentFault, match=r"env 1, step .* reward nan"):
        learn(model, 8, Then(4, one_env(shock=math.nan)))
    assert names(model)[-1] == "environment_fault" and model.alerts[-1].update == 4
    model = make(health={"rollback": True})
    learn(model, 8, Then(4, one_env(shock=math.nan)))
    assert names(model)[-2:] == ["environment_fault", "rolled_back"]
    assert model.learning_rate == 1e-3, "the step was not at fault"
    assert model.n_rollouts == 8 and model.num_timesteps == 8 * model.n_steps * model.n_envs


def test_weights_that_are_no_numbers_are_not_the_envs_fault() -> None:
    spoil = weights(lambda model: model.policy.action_head.net.weight.fill_(math.nan))
    with pytest.raises(EnvironmentFault):
        learn(broken := make(), 8, Then(4, spoil))
    assert names(broken) == ["training_diverged"]
    model = make(health={"rollback": True})
    learn(model, 8, Then(4, spoil))
    assert names(model) == ["training_diverged", "rolled_back"] and model.n_rollouts == 8


class Steps(KVWriter):
    """The steps of the rows that were logged, in rollouts."""

    def __init__(self, model: DistributionalPPO) -> None:
        self.size, self.rows = model.settings.n_steps * model.n_envs, list[float]()
        model.set_logger(Logger(folder=None, output_formats=[self]))

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        self.rows.append(step / self.size)

    def close(self) -> None:
        """Nothing is held open."""


def test_an_update_is_logged_once_a_failed_one_never_and_one_that_ends_training_too() -> None:
    model = make(health={"rollback": True})
    steps = Steps(model)
    learn(model, 8, Then(4, one_env(shock=math.nan)))
    assert names(model)[-2:] == ["environment_fault", "rolled_back"] and steps.rows == list(range(1, 9))
    model = make(health={"strict": True})
    steps = Steps(model)
    with pytest.raises(UnhealthyTraining, match="ends training at update 8"):
        model.learn(12 * steps.size, Then(8, setting(learning_rate=3.0)), log_interval=5)
    assert steps.rows == [5, 8]


def test_a_checkpoint_of_a_sick_model_is_no_state_to_go_back_to(tmp_path: Path) -> None:
    model = make(max_consecutive_skips=10_000)
    broken = hooks(lambda m: [m.policy.action_head.net.weight], lambda gradient: gradient * math.nan)
    learn(model, 6, Then(4, broken))
    errors = [alert.update for alert in model.alerts if alert.severity == "error"]
    assert errors == [4, 5] and model.guard.monitor.error_lasts, "not told in update 6, and still there"
    model.guard.keep(tmp_path / "sick.zip")
    assert not model.guard._good
    model = learn(make(), 2)
    model.guard.keep(tmp_path / "sound.zip")
    assert [good.update for good in model.guard._good] == [2]


def test_a_rule_that_is_off_stops_nothing() -> None:
    rules = {name: {"off": True} for name in ("policy_jumped", "gradient_exploded", "loss_exploded")}
    rules |= {name: {"off": True} for name in ("nonfinite_number", "log_ratio_nonfinite", "minibatches_skipped")}
    model = make(health={"strict": True, "rules": rules})
    learn(model, 7, Then(5, setting(learning_rate=0.3)))
    assert "policy_jumped" not in names(model)


def test_alerts_and_what_rules_remember_are_in_a_checkpoint() -> None:
    model = make()
    learn(model, 6, Then(3, knob(unit=1e4)))
    assert "observation_unscaled" in names(model)
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    again = DistributionalPPO.load(file)
    assert again.alerts == model.alerts
    assert again.guard.state_dict() == model.guard.state_dict()


def test_a_file_from_before_there_were_rules_has_none_yet() -> None:
    model, other = make(), make()
    learn(model, 3)
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    manifest, tensors = read_checkpoint(file)
    del manifest["state"]["health"]
    restore(other, manifest, tensors)
    assert other.alerts == [] and other.n_rollouts == 3


def test_a_rate_is_scaled_in_a_form_that_a_file_can_hold() -> None:
    from stable_baselines3.common.utils import LinearSchedule

    line = _scaled(LinearSchedule(1e-3, 1e-4, 0.5), 0.1)
    assert isinstance(line, LinearSchedule) and [line(x) for x in (1.0, 0.0)] == pytest.approx([1e-4, 1e-5])
    assert _scaled(lambda left: 2e-3 * left, 0.5) == pytest.approx(1e-3)


def test_wrong_keys_are_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(ConfigError, match=r"health\.rules: there is no rule 'plateu'; did you mean 'plateau'"):
        make(health={"rules": {"plateu": {"off": True}}})
    with pytest.raises(ConfigError, match=r"unknown key 'health\.stric'; did you mean 'strict'"):
        make(health={"stric": True})
    with pytest.raises(ConfigError, match="health: Input should be a valid dictionary or instance of Health"):
        make(health="strict")
