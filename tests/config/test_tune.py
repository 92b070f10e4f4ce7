"""`tune:` and `gym:`: what may be searched, inside which bounds, and what is refused before anything starts."""

import pytest
import yaml
from hypothesis import given
from hypothesis.strategies import booleans, floats

from leeward.algorithm.live_settings import changed_settings, read_setting
from leeward.config.load import dump_config, load_config
from leeward.config.settings import Settings
from leeward.config.tune import SEARCHABLE, Dimension, is_whole, setting_of
from leeward.errors import ConfigError

# What must be on for a setting to be there.
SECTIONS = ("ppo.adversary={value_weight: 1.0}", "ppo.vgs={}", "ppo.critic_learning_rate=1e-3", "ppo.target_kl=0.1")


def space(text, *more):
    return load_config(None, [f"tune.space={{{text}}}", *more])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ppo.learnin_rate: {low: 1, high: 2}", "'ppo.learnin_rate' cannot be searched; did you mean 'ppo.learning_ra"),
        ("ppo.n_quantiles: {low: 10, high: 20}", "'ppo.n_quantiles' cannot be searched"),
        ("data.seed: {low: 1, high: 2}", "'data.seed' cannot be searched"),
        ("risk.limit: {low: -0.1, high: 0}", "'risk.limit' cannot be searched"),
        ("ppo.gamma: {low: 0.9, high: 0.5}", "tune.space.ppo.gamma: low must be below high, got 0.9 and 0.5"),
        ("ppo.gamma: {low: 0.5, high: 0.5}", "low must be below high, got 0.5 and 0.5"),
        ("ppo.gamma: {low: 0.5}", "low and high go together, got 0.5 and None"),
        ("ppo.gamma: {}", "expected low and high, or values"),
        ("ppo.gamma: {low: 0.5, high: 0.9, values: [0.5, 0.9]}", "expected low and high, or values"),
        ("ppo.gamma: {values: [0.9]}", "at least 2"),
        ("ppo.gamma: {values: [0.9, 0.5]}", "values must rise, each once, got [0.9, 0.5]"),
        ("ppo.gamma: {values: [0.5, 0.9], log: true}", "log goes with low and high"),
        ("ppo.gamma: {low: 0.5, high: 1.5}", "ppo.gamma: gamma: Input should be less than or equal to 1, got 1.5"),
        ("ppo.gamma: {values: [0.5, 1.5]}", "less than or equal to 1, got 1.5"),
        ("ppo.gamma: 0.9", "tune.space.ppo.gamma: Input should be a valid dictionary"),
        ("ppo.gamma: {low: '0.5', high: 0.9}", "expected a number without quotes, got the text '0.5'"),
        ("ppo.gamma: {low: true, high: 0.9}", "true and false are neither"),
        ("ppo.gamma: {low: 0.5, hihg: 0.9}", "unknown key 'tune.space.ppo.gamma.hihg'; did you mean 'high'?"),
        ("ppo.ent_coef: {low: 0, high: 0.1, log: true}", "log needs a low above 0, got 0"),
        ("ppo.ent_coef: {low: -0.1, high: 0.1}", "ent_coef: Input should be greater than or equal to 0, got -0.1"),
        ("ppo.n_epochs: {low: 1.5, high: 4}", "n_epochs: expected a whole number, got 1.5"),
        ("ppo.vgs.strength: {low: 0.1, high: 0.2}", "ppo.vgs.strength: its section is off"),
        ("risk.1.proportional: {low: 1, high: 2}", "'1' is no place in a list of 1"),
        ("risk.margin: {low: 0, high: 1}, risk.0.margin: {low: 0, high: 1}", "named twice"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused(text, said):
    with pytest.raises(ConfigError) as error:
        space(text)
    assert said in str(error.value)


@pytest.mark.parametrize("key", SEARCHABLE)
def test_every_setting_that_can_be_searched_is_a_live_one_and_is_set_by_its_key(key):
    config = load_config(None, SECTIONS)
    bounds = (1, 2) if is_whole(key) else (0.25, 0.75)
    searched = space(f"{key}: {{low: {bounds[0]}, high: {bounds[1]}}}", *SECTIONS)
    after = searched.with_values({key: bounds[1]})
    assert after != searched and yaml.safe_load(dump_config(after)) != yaml.safe_load(dump_config(searched))
    settings = Settings(risk=config.risk, **{n: getattr(config.ppo, n) for n in ("adversary", "vgs", "target_kl")})
    rates = {"learning_rate": 0.1, "critic_learning_rate": 0.1}
    live = changed_settings(settings.model_copy(update=rates), {setting_of(key): bounds[1]})
    assert read_setting(live, setting_of(key)) == bounds[1]


def test_a_limit_of_a_list_is_searched_by_its_place():
    two = ["risk=[{alpha: 0.1}, {alpha: 0.2}]"]
    config = space("risk.1.proportional: {low: 1, high: 2}", *two)
    assert [each.proportional for each in config.with_values({"risk.1.proportional": 2.0}).risk] == [3.0, 2.0]
    assert setting_of("risk.1.proportional") == "risk.1.proportional"
    assert setting_of("risk.proportional") == "risk.0.proportional"


@given(floats(0, 1), booleans())
def test_every_share_is_inside_the_bounds_and_comes_back(share, log):
    dimension = Dimension(low=1e-5, high=1e-2, log=log)
    value = dimension.at(share)
    assert 1e-5 <= value <= 1e-2
    assert dimension.share_of(value) == pytest.approx(share, abs=1e-9)


def test_the_middle_of_a_log_dimension_is_the_geometric_mean():
    # ln(1e-5 · 1e-3) / 2 = ln 1e-4
    assert Dimension(low=1e-5, high=1e-3, log=True).at(0.5) == pytest.approx(1e-4)
    assert Dimension(low=1.0, high=3.0).at(0.5) == 2.0


def test_a_share_of_values_is_one_of_them_and_each_has_its_part():
    dimension = Dimension(values=(0.1, 0.2, 0.3))
    assert [dimension.at(share) for share in (0.0, 0.3, 0.4, 0.7, 1.0)] == [0.1, 0.1, 0.2, 0.3, 0.3]
    assert [dimension.at(dimension.share_of(value)) for value in (0.1, 0.2, 0.3)] == [0.1, 0.2, 0.3]


def test_a_gym_env_replaces_the_market_in_a_config_and_in_what_is_written(tmp_path):
    config = load_config(None, ["gym.id=CartPole-v1", "gym.kwargs={sutton_barto_reward: true}", "risk.limit=-3"])
    assert not {"data", "env"} & yaml.safe_load(dump_config(config)).keys()
    path = tmp_path / "run.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config
    for setting in ("data.seed=1", "env.action=positions"):
        with pytest.raises(ConfigError, match=f"replaces {setting.partition('.')[0]}; leave one of them out"):
            load_config(None, ["gym.id=CartPole-v1", setting])


@pytest.mark.parametrize("value", [".inf", "[1, .nan]", "2020-01-01", "{a: {1: 2}}", "!!binary eA=="])
def test_an_argument_of_an_env_that_the_file_of_a_run_cannot_hold_is_refused(value):
    with pytest.raises(ConfigError, match=r"gym\.kwargs: expected texts, finite numbers, true, false, null, lists"):
        load_config(None, ["gym.id=CartPole-v1", f"gym.kwargs={{g: {value}}}"])


@pytest.mark.parametrize("setting", ["tune.score=sharpe", "validation.score=sharpe"])
def test_a_gym_env_has_no_score_of_a_market(setting):
    with pytest.raises(ConfigError, match="one score, the mean return of its episodes; leave"):
        load_config(None, ["gym.id=CartPole-v1", setting])


def test_a_score_inside_the_limit_needs_one():
    with pytest.raises(ConfigError, match="growth_within_limit needs a limit"):
        load_config(None, ["tune.score=growth_within_limit"])
    assert load_config(None, ["tune.score=growth_within_limit", "risk.limit=-0.02"]).tune.score == "growth_within_limit"


@pytest.mark.parametrize("turn", ["{ppo.learning_rate: true}", "{ppo.learning_rate: '0.001'}"])
def test_a_schedule_is_of_numbers_at_every_depth(turn):
    with pytest.raises(ConfigError, match=r"tune\.schedule: expected a number"):
        load_config(None, [f"tune.schedule={{0: {turn}}}"])
    with pytest.raises(ConfigError, match=r"tune\.schedule: expected a number or a text"):
        load_config(None, ["tune.schedule={false: {}}"])
