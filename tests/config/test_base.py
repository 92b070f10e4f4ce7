"""What every config model shares."""

import numpy as np
import pytest
from pydantic import Field, PositiveFloat, ValidationError, model_validator

from leeward.config.base import Frozen
from leeward.errors import ConfigError


class Stop(Frozen):
    target: PositiveFloat | None = None
    tolerance: float = Field(1.5, gt=1)


class Limit(Frozen):
    measure: str
    alpha: float = 0.05


class Cap(Frozen):
    ceiling: float


class Learner(Frozen):
    n_steps: int = 128
    stop: Stop | None = None
    limits: tuple[Limit, ...] = ()
    named: dict[str, Stop] = Field(default_factory=dict)
    either: Stop | Cap = Stop()
    twin: bool = True
    names: tuple[str | float, ...] = ()

    @model_validator(mode="after")
    def _enough_steps(self) -> "Learner":
        if self.n_steps < 2:
            raise ValueError(f"n_steps must be at least 2, got {self.n_steps}")
        return self


def test_values_become_a_model_with_its_defaults():
    learner = Learner.read({"stop": {"target": 0.02}, "limits": [{"measure": "step_return"}]}, where="run.yaml")
    assert learner.stop == Stop(target=0.02, tolerance=1.5)
    assert learner.limits == (Limit(measure="step_return", alpha=0.05),)
    assert Learner.read({}, where="run.yaml").stop is None


def test_numbers_of_numpy_are_numbers():
    learner = Learner.read({"n_steps": np.int64(7), "stop": {"target": np.float32(0.5)}, "twin": np.False_}, where="x")
    assert (learner.n_steps, learner.stop, learner.twin) == (7, Stop(target=0.5), False)
    assert type(learner.n_steps) is int and type(learner.stop.target) is float


def test_a_config_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        Learner().n_steps = 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_step": 3}, "run.yaml: unknown key 'n_step'; did you mean 'n_steps'?"),
        ({"stop": {"targe": 1}}, "run.yaml: unknown key 'stop.targe'; did you mean 'target'?"),
        ({"stop": {"zzz": 1}}, "run.yaml: unknown key 'stop.zzz'; known: target, tolerance"),
        (
            {"limits": [{"measure": "x"}, {"measure": "y", "alhpa": 0.1}]},
            "run.yaml: unknown key 'limits.1.alhpa'; did you mean 'alpha'?",
        ),
        ({"named": {"kl": {"tolerence": 2}}}, "run.yaml: unknown key 'named.kl.tolerence'; did you mean 'tolerance'?"),
        ({"limits": [{"alpha": 0.1}]}, "run.yaml: limits.0.measure: this key is required"),
        ({"stop": {"target": -1}}, "run.yaml: stop.target: Input should be greater than 0, got -1"),
        ({"stop": {"tolerance": float("nan")}}, "run.yaml: stop.tolerance: Input should be a finite number, got nan"),
        (
            {"limits": [{"measure": "x", "alpha": float("inf")}]},
            "limits.0.alpha: Input should be a finite number, got inf",
        ),
        ({"n_steps": 1}, "run.yaml: n_steps must be at least 2, got 1"),
        ({"n_steps": True}, "run.yaml: n_steps: expected a number or a text, got True; true and false are neither"),
        ({"stop": {"target": True}}, "run.yaml: stop.target: expected a number or a text, got True"),
        ({"stop": {"target": np.True_}}, "run.yaml: stop.target: expected a number or a text, got True"),
        ({"names": ["a", False]}, "run.yaml: names: expected a number or a text, got ['a', False]"),
        (
            {"n_steps": "many"},
            "run.yaml: n_steps: expected a number without quotes, got the text 'many'",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_what_to_write(values, message):
    with pytest.raises(ConfigError) as raised:
        Learner.read(values, where="run.yaml")
    assert message in str(raised.value)


def test_a_union_names_the_keys_of_the_member_that_was_tried():
    with pytest.raises(ConfigError) as raised:
        Learner.read({"either": {"ceilin": 2.0}}, where="run.yaml")
    assert "unknown key 'either.Cap.ceilin'; did you mean 'ceiling'?" in str(raised.value)
    with pytest.raises(ConfigError) as raised:
        Learner.read({"either": {"toleranc": 2.0}}, where="run.yaml")
    assert "unknown key 'either.Cap.toleranc'; known: ceiling" in str(raised.value)


def test_every_problem_has_its_own_line():
    with pytest.raises(ConfigError) as raised:
        Learner.read({"n_step": 3, "stop": {"target": 0}}, where="--set")
    assert [line.split(":")[0] for line in str(raised.value).splitlines()] == ["--set", "--set"]


def test_a_long_value_is_shortened():
    with pytest.raises(ConfigError) as raised:
        Learner.read({"n_steps": list(range(100))}, where="run.yaml")
    assert len(str(raised.value)) < 160


def test_a_file_that_holds_no_mapping_is_refused():
    with pytest.raises(ConfigError, match=r"run.yaml: expected keys and values, got list \['a'\]"):
        Learner.read(["a"], where="run.yaml")
