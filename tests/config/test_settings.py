"""What the learner's settings take, from Python and from a file, and what a run on bars starts from."""

import math
from pathlib import Path
from typing import Any

import pytest

from leeward.config.learning import Risk
from leeward.config.load import load_config, read_config
from leeward.config.run import PPOConfig, RunConfig
from leeward.config.settings import LearnerSettings, Settings
from leeward.errors import ConfigError


@pytest.mark.parametrize(
    "values",
    [
        {"gamma": True},
        {"n_steps": True},
        {"adversary": {"scale": [1.0, True]}},
        {"gamma": math.nan},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"learning_rate": "much"},
        {"learning_rate": "1e-3"},
        {"learning_rate": 10**400},
        {"gamma": "1"},
        {"clip_range": 0.0},
        {"vf_coef": math.inf},
    ],
)
def test_true_is_no_number_and_a_number_is_finite(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(ConfigError, match=f"^here: {name}"):
        Settings.read(values, where="here")


def test_what_is_a_number_and_what_is_a_switch_are_taken() -> None:
    found = Settings.read({"learning_rate": 1e-3, "gamma": 1, "twin_critics": False, "ent_coef": 0}, where="here")
    assert (found.learning_rate, found.gamma, found.twin_critics, found.ent_coef) == (1e-3, 1.0, False, 0.0)


def test_one_limit_or_several() -> None:
    one, two = {"alpha": 0.1, "limit": -0.02}, {"alpha": 0.2}
    expected = (Risk(alpha=0.1, limit=-0.02), Risk(alpha=0.2))
    for given, found in ((None, ()), (one, expected[:1]), (Risk(**one), expected[:1]), ([one, two], expected)):
        assert Settings.read({"risk": given}, where="here").risk == found
    assert load_config(None, ["risk=[{alpha: 0.1, limit: -0.02}, {alpha: 0.2}]"]).risk == expected
    with pytest.raises(ConfigError, match="here: risk: expected keys and values such as limit"):
        Settings.read({"risk": -0.02}, where="here")


def test_limits_that_an_earlier_version_kept_apart_are_read(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("risk: {alpha: 0.1}\nfurther_risks: [{alpha: 0.2}, {alpha: 0.3}]\n")
    assert [each.alpha for each in read_config(file).risk] == [0.1, 0.2, 0.3]


def test_what_suits_bars_is_the_default_of_a_run_and_can_be_changed() -> None:
    names = ("batch_size", "n_epochs", "learning_rate", "gamma", "normalize_advantage")
    for_bars, elsewhere = RunConfig().ppo, Settings()
    assert [getattr(for_bars, name) for name in names] == [1024, 4, 1e-3, 0.9, "global"]
    assert [getattr(elsewhere, name) for name in names] == [128, 10, 3e-4, 0.99, True]
    changed = load_config(None, ["ppo.batch_size=64", "ppo.gamma=0.5"]).ppo
    assert (changed.batch_size, changed.gamma, changed.n_epochs) == (64, 0.5, 4)


def test_every_setting_of_a_run_reaches_the_learner() -> None:
    keywords = PPOConfig(burn_in=3, gamma=0.5).keywords()
    assert keywords.keys() | {"learning_rate", "critic_learning_rate"} == LearnerSettings.model_fields.keys()
    assert (keywords["burn_in"], keywords["gamma"]) == (3, 0.5)
