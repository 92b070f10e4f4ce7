"""YAML that is damaged or made to do harm is one clean line; every leaf of the reference refuses what it cannot be."""

import copy
import json
import math
import re
from pathlib import Path

import pytest
import yaml

from leeward.config import yaml_text
from leeward.config.load import dump_config, load_config
from leeward.config.run import RunConfig
from leeward.errors import ConfigError

REFERENCE = yaml.safe_load((Path(__file__).parents[2] / "configs" / "reference.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 3000, "more than 20 levels"),
        ("a: " * 3000, "not YAML"),
        ("a: &x [1, 1]\nb: [*x, *x]\n", "references"),
        ("seed: 1\nppo:\n  gamma: 0.5\n  gamma: 0.9\n", "the key 'gamma' stands twice"),
        ("seed: 1\nseed: 2\n", "the key 'seed' stands twice"),
        ("seed: !!python/object/apply:os.system [touch x]\n", "not YAML"),
        ("seed: " + "9" * 5000 + "\n", "not YAML"),
        ("seed: 2024-13-45\n", "not YAML"),
        ("? [1, 2]\n: 3\n", "not YAML"),
        ("seed: '\x00'", "not YAML"),
        ("# " + "x" * (1 << 20), "too long"),
        ("a: [" + "1, " * 20_000 + "]", "more than 20,000 values"),
        ("a: !!int '" + "1:" * 1000 + "1'", "is no number"),
    ],
    ids=[
        "deep",
        "wide",
        "alias",
        "twice",
        "twice above",
        "code",
        "digits",
        "date",
        "list key",
        "nul",
        "long",
        "many",
        "base 60",
    ],
)
def test_a_text_that_no_config_is_gives_one_clean_line(text, words, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=words) as found:
        load_config(path)
    assert len(str(found.value).splitlines()) == 1 and str(found.value).startswith(f"{path}: ")


def test_bytes_that_are_no_text_are_named(tmp_path):
    (tmp_path / "c.yaml").write_bytes(b"seed: \xff\xfe")
    with pytest.raises(ConfigError, match="not YAML"):
        load_config(tmp_path / "c.yaml")


def leaves(value, path=()):
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from leaves(each, (*path, key))
    else:
        yield path


def with_leaf(path, value):
    changed = copy.deepcopy(REFERENCE)
    here = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return changed


ABSURD = (math.nan, math.inf, -math.inf, 1e300, -1e300, 10**30, 2**63, [[1]], {"a": 1})


@pytest.mark.parametrize("path", list(leaves(REFERENCE)), ids=".".join)
def test_a_leaf_refuses_what_no_setting_is(path):
    for value in ABSURD:
        with pytest.raises(ConfigError):
            RunConfig.read(with_leaf(path, value), where="here")
    for value in (True, False):
        try:
            config = RunConfig.read(with_leaf(path, value), where="here")
        except ConfigError:
            continue
        found = config
        for key in path:
            found = getattr(found, key)
        assert found is value, "true is true, and no number"


@pytest.mark.parametrize(
    ("key", "number"),
    [("ppo.n_envs", 8), ("ppo.batch_size", 64), ("risk.limit", -0.01),
     ("env.positions", [0.5, 1]), ("policy.net_arch", [8]), ("env.costs.commission_tiers", [[0, 1]]),
     ("env.account.weight_limits", {"1": [0, 1]}), ("data.splits.embargo_bars", 3)],
)  # fmt: skip
def test_a_text_is_no_number_whatever_it_spells(key, number):
    quoted = re.sub(r"(?<![\w'\"])-?[\d.]+(e-\d+)?(?![\w'\"])", r"'\g<0>'", json.dumps(number))
    load_config(None, [f"{key}={json.dumps(number)}"])
    assert quoted != json.dumps(number)
    with pytest.raises(ConfigError, match=rf"{key.split('.')[-1]}: expected a number without quotes, got the text"):
        load_config(None, [f"{key}={quoted}"])


def test_numbers_are_those_of_yaml_1_2_and_come_back_equal(tmp_path):
    text = b"[3e-4, 1E5, 1.5e3, -.5, 1:30, 1_000, '7', 010, -08, 0o10, 0x1F, 0b11, 1__0]"
    values = yaml_text.read(text, where="")
    assert values == [0.0003, 100000.0, 1500.0, -0.5, "1:30", 1000, "7", 10, -8, 8, 31, "0b11", "1__0"]
    texts = [*values, "1e5", "3e-4", ".5", "2020-01-01", "null", "", "000001", "010", "0o10", "0x1F", "1_0"]
    assert yaml_text.read(yaml_text.write(texts).encode(), where="") == texts
    config = load_config(None, ["data.assets={'1e5': '3e-4', '000001': null}", "ppo.learning_rate=3e-4"])
    (tmp_path / "c.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "c.yaml") == config and config.ppo.learning_rate == 0.0003


@pytest.mark.parametrize(
    "setting",
    ["ppo.optimizer.betas=[1.5, 2]", "seed=4294967296", "env.max_weight=1e300", "env.costs.commission_bps=20000",
     "data.time_zone=Moon/Base", "data.time_zone=../../etc/passwd", "data.adjust=1", "ppo.n_envs=1000000"],
)  # fmt: skip
def test_what_would_fail_much_later_is_refused_at_once(setting):
    with pytest.raises(ConfigError, match=setting.split("=")[0]):
        load_config(None, [setting])


def test_off_is_a_name_and_true_is_a_truth_value(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("health:\n  rules:\n    plateau: {off: true}\n")
    rules = load_config(path).health.rules
    assert rules["plateau"].off is True
    words = {"off": "off", "on": "on", "no": "no", "yes": "yes", "y": "y", "true": True, "FALSE": False}
    assert yaml_text.read(", ".join(words).join("[]").encode(), where="") == list(words.values())
    assert yaml_text.read(yaml_text.write(words).encode(), where="") == words
