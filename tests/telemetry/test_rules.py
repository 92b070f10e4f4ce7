"""The table of rules: complete, in words that name what is there, and read by one pair of eyes, the monitor's."""

import json
import math
import re
from dataclasses import fields
from pathlib import Path

import pytest

from leeward.config.health import Health
from leeward.errors import ArgumentError, ConfigError
from leeward.telemetry import metrics
from leeward.telemetry.alerts import Alert, announce
from leeward.telemetry.health import Facts
from leeward.telemetry.metrics import Metric, find
from leeward.telemetry.monitor import Monitor
from leeward.telemetry.pages import explanation, metrics_page
from leeward.telemetry.rules import RULES

KL = metrics.APPROX_KL


def run(monitor: Monitor, metric: Metric, values: list[float], first: int = 1) -> list[Alert]:
    """The alerts of one update after another, each with one number."""
    return [
        alert
        for update, value in enumerate(values, first)
        for alert in monitor.judge({metric: value}, Facts(update=update))[1]
    ]


@pytest.mark.parametrize("name", RULES)
def test_a_rule_says_what_why_and_what_to_do_about_it(name: str) -> None:
    rule = RULES[name]
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name) and rule.name == name
    assert min(map(len, (rule.what, rule.cause, rule.remedy, rule.check))) > 8
    assert (rule.judge is None) == (rule.reads == ())
    assert rule.persistence >= 1 and rule.rearm >= 1 and rule.window >= 1
    texts = " ".join((rule.what, rule.cause, rule.remedy, rule.check))
    named = re.findall(r"\b(?:train|rollout|risk|trade|eval|lstm|debug|adversary|warn|error|time)/[\w/<>]+", texts)
    assert [each for each in named if find(each) is None] == []


def test_every_series_of_a_rule_keeps_the_name_it_has() -> None:
    series = {rule.series.name for rule in RULES.values() if rule.series is not None}
    beside = {rule.beside[0].name for rule in RULES.values() if rule.beside is not None}
    warnings = {name for name in metrics.REGISTRY if name.startswith("warn/")}
    # These two are 0 or 1 by themselves, and have no threshold.
    assert series | beside | {"warn/reward_constant", "warn/advantages_std_below_floor"} == warnings


@pytest.mark.parametrize(
    ("spread", "size", "steps", "named"),
    [
        (1000.0, 1000.0, 2048, {"reward_unit_changed"}),
        (1e6, 1.0, 2048, {"reward_outlier"}),
        (100.0, 1.0, 2048, set()),  # the first time that a goal is reached
        (1000.0, 1000.0, 8, set()),  # of eight steps nothing follows
    ],
)
def test_a_goal_that_is_reached_is_no_other_unit(spread: float, size: float, steps: int, named: set[str]) -> None:
    monitor = Monitor()
    for update in range(1, 8):
        last = update == 7
        numbers = {metrics.REWARD_STD: spread if last else 1.0, metrics.REWARD_SIZE: size if last else 1.0}
        monitor.judge(numbers, Facts(update=update, steps=steps))
    assert {alert.name for alert in monitor.alerts} == named


def test_an_alert_is_raised_once_and_again_only_after_it_was_quiet() -> None:
    rule = RULES["policy_jumped"]
    monitor, bad, good = Monitor(), 2.0, 0.01
    assert [alert.update for alert in run(monitor, KL, [good, bad, bad, bad])] == [2]
    assert run(monitor, KL, [good] * (rule.rearm - 1) + [bad], first=5) == []
    assert len(run(monitor, KL, [good] * rule.rearm + [bad], first=40)) == 1


def test_a_rule_with_persistence_waits_and_says_since_when() -> None:
    monitor, metric = Monitor(), metrics.OBS_LARGEST
    assert RULES["observation_unscaled"].persistence == 2
    assert run(monitor, metric, [500.0, 1.0, 500.0]) == []
    (alert,) = run(monitor, metric, [500.0], first=4)
    assert (alert.update, monitor.since(alert)) == (4, 3)
    assert alert.message.endswith("rollout/obs_largest gives 500, above 100 since update 3")


def test_what_is_not_a_number_is_on_the_wrong_side() -> None:
    names = {alert.name for alert in run(Monitor(), KL, [math.nan])}
    assert names == {"policy_jumped", "nonfinite_number"}


def test_a_threshold_is_changed_and_a_rule_is_off_by_its_name() -> None:
    monitor = Monitor()
    health = Health.read({"rules": {"policy_jumped": {"threshold": 5.0}, "kl_stop_at_once": {"off": True}}}, where="x")
    monitor.configure(health.thresholds, health.off)
    assert run(monitor, KL, [2.0]) == []
    assert [alert.threshold for alert in run(monitor, KL, [6.0])] == [5.0]
    assert run(monitor, metrics.KL_STOP_EPOCH, [0.0] * 5) == []
    with pytest.raises(ConfigError, match=r"x: rules: there is no rule 'policy_jump'; did you mean 'policy_jumped'\?"):
        Health.read({"rules": {"policy_jump": {}}}, where="x")


def test_the_series_follows_the_threshold_that_is_set() -> None:
    monitor = Monitor()
    numbers = {metrics.CRITIC1_GRAD_NORM: 1.0, metrics.CRITIC2_GRAD_NORM: 0.1, metrics.CRITICS_GRAD_RATIO: 10.0}
    series = metrics.WARN_TWIN_CRITICS_GRADIENT_IMBALANCE
    assert monitor.judge(numbers, Facts())[0][series] == 0.0
    monitor.configure({"critics_imbalanced": 5.0}, frozenset())
    assert monitor.judge(numbers, Facts())[0][series] == 1.0


def test_once_a_rule_has_fired_its_series_says_whether_it_still_holds() -> None:
    monitor, series = Monitor(), metrics.ALERT.of(rule="policy_jumped")
    told = [monitor.judge({KL: kl}, Facts(update=i))[0].get(series) for i, kl in enumerate([0.1, 2.0, 2.0, 0.1], 1)]
    assert told == [None, 1.0, 1.0, 0.0]


def test_a_restored_monitor_goes_on_as_if_it_had_not_stopped() -> None:
    values = [500.0, 1.0, 500.0, 500.0, 1.0, 500.0]
    straight = run(Monitor(), metrics.OBS_LARGEST, values)
    for cut in range(len(values)):
        first, second = Monitor(), Monitor()
        run(first, metrics.OBS_LARGEST, values[:cut])
        first.note({metrics.EVAL_CALIBRATION_ERROR: 0.9})
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        run(second, metrics.OBS_LARGEST, values[cut:], first=cut + 1)
        assert second.alerts == straight
        assert second.state_dict()["rules"]["validation_calibration_poor"][0] == (cut < len(values))


def test_wall_clock_is_no_state_of_a_run() -> None:
    monitor = Monitor()
    run(monitor, metrics.ROUND_FPS, [1000.0] * 25 + [100.0] * 7)
    assert [alert.name for alert in monitor.alerts] == ["throughput_halved"]
    state = monitor.state_dict()
    assert (state["past"], state["rules"]) == ({}, {})


def test_the_second_constraint_is_judged_too() -> None:
    monitor = Monitor()
    numbers = {metrics.RISK_MULTIPLIER: 1.0, metrics.RISK_MULTIPLIER.numbered(2): 50.0}
    (alert,) = monitor.judge(numbers, Facts(ceilings=(100.0, 50.0)))[1]
    assert (alert.name, alert.metric) == ("multiplier_at_ceiling", "risk/multiplier/2")


def test_an_alert_is_a_line_of_json_and_back() -> None:
    (alert,) = run(Monitor(), KL, [2.0])
    assert [field.name for field in fields(alert)] == [
        "name", "severity", "update", "metric", "value", "threshold", "message", "cause", "remedy"
    ]  # fmt: skip
    assert Alert.from_dict(json.loads(alert.as_json())) == alert
    bad = Alert("x", "warn", 1, "m", math.nan, 0.0, "", "", "")
    assert json.loads(bad.as_json())["value"] is None
    assert math.isnan(Alert.from_dict(json.loads(bad.as_json())).value)


def test_a_person_sees_an_alert_on_stdout_or_by_the_logger(capsys, caplog) -> None:
    (alert,) = run(Monitor(), KL, [2.0])
    announce(alert, verbose=1)
    assert capsys.readouterr().out == f"{alert.line}\n"
    announce(alert)
    assert capsys.readouterr().out == ""
    assert [(record.name, record.levelname, record.message) for record in caplog.records] == [
        ("leeward", "ERROR", alert.line)
    ]
    assert "Try: lower learning_rate" in alert.line and "leeward explain policy_jumped" in alert.line


def test_explain_prints_the_entry_of_the_runbook() -> None:
    rule = RULES["dormant_units"]
    text = explanation("dormant_units")
    for part in (rule.what, rule.cause, rule.remedy, rule.check, "2 updates in a row", "above 0.5"):
        assert part in text
    assert all(name in explanation(None) for name in RULES)
    with pytest.raises(ArgumentError, match="did you mean 'dormant_units'"):
        explanation("dormant_unit")


def test_the_runbook_has_an_entry_for_every_rule_and_every_metric_links_to_its_rules() -> None:
    page = metrics_page()
    assert page == (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
    for rule in RULES.values():
        assert f"\n### {rule.name}\n" in page
    assert "[policy_jumped](#policy_jumped) > 1" in page
