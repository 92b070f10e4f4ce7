"""A metric is written down once, as a constant of the registry."""

import ast
import pickle
from pathlib import Path

import pytest

from leeward.telemetry import metrics
from leeward.telemetry.metrics import REGISTRY, Metric, find

SOURCE = Path(__file__).parents[2] / "src" / "leeward"
HOME = SOURCE / "telemetry" / "metrics.py"
RUNBOOK = SOURCE / "telemetry" / "rules.py"  # speaks of metrics to people; test_rules.py holds the names


def texts(path: Path) -> list[str]:
    """Every text in a file that is not a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    ]


def test_no_name_of_a_metric_is_written_outside_the_registry():
    found = [
        f"{path.relative_to(SOURCE)}: {text}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path not in (HOME, RUNBOOK)
        for text in texts(path)
        if find(text) is not None
    ]
    assert found == []


def test_the_test_above_sees_a_name(tmp_path):
    path = tmp_path / "module.py"
    path.write_text('"""train/loss"""\nx = {"train/loss": 1.0, "lstm/h_mean_layer1": 2.0}\n', encoding="utf-8")
    assert [find(text) for text in texts(path)] == [metrics.LOSS, metrics.LSTM_H_MEAN]


def test_every_constant_is_registered_and_every_registered_metric_is_a_constant():
    constants = [value for value in vars(metrics).values() if isinstance(value, Metric)]
    assert sorted(m.name for m in constants) == sorted(REGISTRY)


def test_no_two_metrics_share_a_name():
    names = [value.name for value in vars(metrics).values() if isinstance(value, Metric)]
    assert len(names) == len(set(names))


def test_a_family_has_members_with_the_same_unit_and_way_of_combining():
    member = metrics.LSTM_GRAD_NORM.of(module="actor", layer=1)
    assert member.name == "train/lstm_grad_norm/actor/1"
    assert (member.unit, member.combine, member.needs) == (
        metrics.LSTM_GRAD_NORM.unit,
        metrics.LSTM_GRAD_NORM.combine,
        metrics.LSTM_GRAD_NORM.needs,
    )
    assert find("train/lstm_grad_norm/actor/1") == metrics.LSTM_GRAD_NORM
    with pytest.raises(KeyError, match="has no place <step>"):
        metrics.LSTM_H_MEAN.of(step=3)


def test_the_second_of_several_alike_is_numbered():
    assert metrics.RISK_GAP.numbered(1) is metrics.RISK_GAP
    assert metrics.RISK_GAP.numbered(2).name == "risk/gap/2"
    assert find("risk/gap/2") == metrics.RISK_GAP
    assert metrics.RISK_GAP.numbered(2) == metrics.RISK_GAP.numbered(2) != metrics.RISK_GAP


def test_a_metric_that_was_sent_to_another_process_is_the_same():
    sent = pickle.loads(pickle.dumps(metrics.RISK_GAP.numbered(2)))
    assert sent == metrics.RISK_GAP.numbered(2) and {sent: 1.0} == {metrics.RISK_GAP.numbered(2): 1.0}


def test_a_name_that_is_none_is_not_found():
    assert find("train/lossy") is None and find("loss") is None
