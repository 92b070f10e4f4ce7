"""The config of a whole run: file, --set, dump, reference."""

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from leeward.config.learning import Risk
from leeward.config.load import dump_config, load_config, read_config
from leeward.config.reference import model_of, reference_yaml
from leeward.config.run import PPOConfig, RunConfig
from leeward.config.settings import LearnerSettings
from leeward.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"


def keys(model: type[BaseModel], prefix: str = ""):
    """(key.path, default) of every value, through sections that are off too."""
    for name, field in model.model_fields.items():
        inner = model_of(field.annotation)
        if inner is None:
            yield prefix + name, field.get_default(call_default_factory=True)
        else:
            yield from keys(inner, f"{prefix}{name}.")


EVERY_KEY = dict(keys(RunConfig))


def plain(value):
    return list(value) if isinstance(value, tuple) else value


def at(config, key):
    for name in key.split("."):
        config = getattr(config[0] if isinstance(config, tuple) else config, name)
    return config


def test_the_reference_file_is_what_the_code_says():
    assert (CONFIGS / "reference.yaml").read_text(encoding="utf-8") == reference_yaml()


def test_the_reference_file_is_the_defaults_and_names_every_key():
    assert load_config(CONFIGS / "reference.yaml") == RunConfig()
    text = reference_yaml()
    assert all(f"{key.split('.')[-1]}: " in text for key in EVERY_KEY)


@pytest.mark.parametrize("key", EVERY_KEY)
def test_every_key_is_reachable_by_set(key):
    default = EVERY_KEY[key]
    config = load_config(None, [f"{key}={yaml.safe_dump(plain(default), default_flow_style=True).splitlines()[0]}"])
    assert at(config, key) == default
    if key == "gym.kwargs":  # whatever the env takes
        return
    with pytest.raises(ConfigError, match=key.split(".")[-1]):
        load_config(None, [f"{key}={{such: [a value], as: [this]}}"])


def test_set_changes_one_key_and_leaves_its_neighbours(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("ppo:\n  gamma: 0.5\n  clip_range: 0.3\n")
    config = load_config(path, ["ppo.gamma=0.6", "env.costs.commission_bps=7"])
    assert (config.ppo.gamma, config.ppo.clip_range, config.env.costs.commission_bps) == (0.6, 0.3, 7.0)
    assert config.env.costs.half_spread_bps == RunConfig().env.costs.half_spread_bps


def test_one_limit_is_a_mapping_and_several_are_a_list(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("risk:\n  alpha: 0.1\n")
    one = load_config(path, ["risk.limit=-0.02"])
    assert one.risk == (Risk(alpha=0.1, limit=-0.02),)
    assert yaml.safe_load(dump_config(one))["risk"]["alpha"] == 0.1
    path.write_text("risk:\n  - alpha: 0.1\n  - measure: episode_return\n    alpha: 0.2\n")
    several = load_config(path, ["risk.0.limit=-0.02", "risk.1.limit=-0.3"])
    assert several.risk == (Risk(alpha=0.1, limit=-0.02), Risk(measure="episode_return", alpha=0.2, limit=-0.3))
    assert [each["alpha"] for each in yaml.safe_load(dump_config(several))["risk"]] == [0.1, 0.2]
    assert load_config(None).risk == (Risk(),)


def test_the_config_of_a_run_of_an_earlier_version_is_read(tmp_path):
    """leeward 0.1.0 kept all limits but the first apart, and wrote an empty list where there were none."""
    path = tmp_path / "config.yaml"
    path.write_text("seed: 4\nrisk:\n  limit: -0.02\nfurther_risks:\n  - alpha: 0.2\n    limit: -0.3\n")
    assert read_config(path).risk == (Risk(limit=-0.02), Risk(alpha=0.2, limit=-0.3))
    path.write_text("seed: 4\nfurther_risks:\n  - alpha: 0.2\n")
    assert read_config(path).risk == (Risk(), Risk(alpha=0.2))
    path.write_text("seed: 4\nrisk:\n  limit: -0.02\nfurther_risks: []\n")
    assert read_config(path).risk == (Risk(limit=-0.02),)
    path.write_text("seed: 4\nfurther_risk: []\n")
    with pytest.raises(ConfigError, match="unknown key 'further_risk'"):
        read_config(path)
    path.write_text("seed: 4\nfurther_risks: 5\n")
    with pytest.raises(ConfigError, match="further_risks: expected a list of limits, got 5; restore the file"):
        read_config(path)


def test_the_learner_takes_every_setting_of_the_constructor():
    assert PPOConfig.model_fields.keys() - LearnerSettings.model_fields.keys() == {
        "total_steps",
        "n_envs",
        "learning_rate_schedule",
        "optimizer",
    }
    keywords = PPOConfig(gamma=0.5, burn_in=3).keywords()
    assert keywords.keys() == LearnerSettings.model_fields.keys() - {"learning_rate", "critic_learning_rate"}
    assert (keywords["gamma"], keywords["burn_in"]) == (0.5, 3)


def test_a_later_set_wins_over_an_earlier_one_and_over_a_shortcut():
    assert load_config(None, ["seed=2", "seed=3"], {"seed": 1}).seed == 3


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["ppo.entropy.end=0.0", "ppo.awr.coef=0.5", "ppo.value_clip.mode=per_quantile", "ppo.kl_penalty.target=0.02"],
        ["risk=[{limit: -0.1}, {measure: episode_return, binds: deployed}]", "ppo.learning_rate=2e-4"],
        ["ppo.burn_in=2", "ppo.micro_batch_size=16", "ppo.refresh_memory=true", "ppo.clip_range_vf=0.3"],
        ["data.features=[log_return_1]", "policy.net_arch=[]", "ppo.batch_size=null", "data.source='a: é.csv'"],
    ],
)
def test_a_config_comes_back_equal_from_its_dump(tmp_path, settings):
    config = load_config(None, settings)
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize("name", ["control", "demo", "reference"])
def test_the_configs_that_are_shipped_are_valid(name):
    assert load_config(CONFIGS / f"{name}.yaml").data.source.startswith("sample:")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["ppo.n_quantiles=8"], "n_quantiles must be above 8, got 8; or use levels: uniform"),
        (
            ["ppo.critic=categorical", "ppo.value_clip.mode=per_quantile"],
            "value_clip.mode per_quantile does not exist for a categorical critic; use mean_only",
        ),
        (["risk.limit=0.02"], "risk.limit is 0.02, but .* did you mean -0.02"),
        (["risk.limit=-5"], "risk.limit is -5, but .* did you mean -0.05"),
        (["risk=[{}, {limit: 3.0}]"], "risk.limit is 3, but .* did you mean -0.03"),
        (["risk=[]"], "risk: Tuple should have at least 1 item after validation, not 0, got \\[\\]"),
        (["risk=[{}, {}]", "risk.2.limit=-0.1"], "--set 'risk.2.limit=-0.1': '2' is no place in a list of 2"),
        (["risk=[{}, {}]", "risk.².limit=-0.1"], "'²' is no place in a list of 2"),
        (["risk=[{}, {}]", "risk.limit=-0.1"], "--set 'risk.limit=-0.1': 'limit' is no place in a list of 2"),
        (["further_risks=[{limit: -0.1}]"], "unknown key 'further_risks'"),
        (["data.splits.train=0.9"], "train \\+ validation must leave bars for the test split"),
        (["ppo.gamma.x=1", "ppo.gamma.y=1"], "ppo.gamma: Input should be a valid number"),
        (["ppo.n_envs=2", "ppo.n_jobs=3"], "n_jobs 3 processes share n_envs 2; each needs at least one env"),
        (["seed=1", "seed.x=1"], "'seed' is a value, not a section"),
        (["env.min_weight=1"], "min_weight must be below max_weight, got 1.0 and 1.0"),
        (["seed"], "--set 'seed': expected KEY=VALUE"),
        (["=3"], "--set '=3': expected KEY=VALUE"),
        (["policy.net_arch=[8"], "--set 'policy.net_arch=\\[8': the value is not YAML"),
        (["ppo.gama=0.5"], "unknown key 'ppo.gama'; did you mean 'gamma'"),
    ],
)
def test_parts_that_do_not_fit_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)


def test_a_small_uniform_critic_is_allowed():
    assert load_config(None, ["ppo.n_quantiles=8", "ppo.levels=uniform"]).ppo.n_quantiles == 8
