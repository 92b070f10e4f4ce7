"""Every rule fires on the recorded history of a real run with one thing changed, and is quiet on it as it was recorded.

Faults that a run can be given stand in `tests/faults`; here is the rest: what takes long to come about, or depends on
a setting that the recorded run does not have.
"""

from typing import Any

import pytest

from leeward.telemetry import metrics as m
from leeward.telemetry.health import Facts
from leeward.telemetry.metrics import Metric, find
from leeward.telemetry.monitor import Monitor
from leeward.telemetry.rules import RULES

from ..support.faults import FAULTS, make
from ..support.models import learn

UPDATES = 70
History = list[dict[Metric, float]]
# What a run without these settings does not report, as a healthy one would.
HEALTHY: dict[Metric, float] = {
    m.BC_LOSS_RATIO: 0.2, m.VF_CLIP_ACTIVE_FRAC: 0.3, m.SUPPORT_OUTSIDE_FRACTION: 0.001, m.KL_STOP_EPOCH: 2.0,
    m.EVAL_EXPLAINED_VARIANCE: 0.9, m.EVAL_CALIBRATION_ERROR: 0.05, m.ADVERSARY_OBJECTIVE_GAIN: 0.1,
    m.VECNORMALIZE_MEAN_DRIFT: 0.01, m.TRADE_TURNOVER: 0.5, m.TRADE_COSTS_FRACTION: 1e-4, m.TOP_ACTION_SHARE: 0.5,
    m.RISK_GAP: -0.001, m.RISK_LIMIT: -0.02, m.RISK_TAIL_SAMPLES: 50.0, m.RISK_MULTIPLIER: 0.5,
    m.RISK_CVAR_STANDARD_ERROR: 0.0001, m.DORMANT_UNITS: 0.0, m.ROUND_FPS: 1000.0,
}  # fmt: skip


def constant(**values: float) -> Any:
    """Metrics that have another value in every update."""
    return lambda update: {getattr(m, name): value for name, value in values.items()}


def swinging(update: int) -> dict[Metric, float]:
    return {m.POLICY_ENTROPY: 0.2 if update % 2 else 1.0}


# rule: (what is other than recorded, facts)
CHANGED: dict[str, tuple[Any, dict[str, Any]]] = {
    "nonfinite_number": (constant(VALUE_LOSS=float("nan")), {}),
    "log_ratio_nonfinite": (constant(LOG_RATIO_NONFINITE=1.0), {}),
    "gradient_clip_broken": (lambda update: {m.GRAD_NORM_POST_CLIP_MAX_OF.of(half="actor"): 0.6}, {}),
    "support_moved_values": (constant(POPART_MAX_SHIFT=9.0, RET_STD=1.0), {"support": True}),
    "loss_exploded": (constant(VALUE_LOSS=1e7), {}),
    "updates_huge": (lambda update: {m.UPDATE_RATIO.of(module="actor_mlp"): 9.0}, {}),
    "advantages_without_spread": (constant(WARN_ADVANTAGES_STD_BELOW_FLOOR=1.0), {}),
    "log_ratio_large": (constant(LOG_RATIO_MAX_ABS=15.0), {}),
    "log_ratio_clamped": (constant(LOG_RATIO_CLAMPED_FRACTION=0.02), {}),
    "policy_moves_away": (constant(SURROGATE_DIRECTION=-0.2), {}),
    "policy_clipped": (constant(CLIP_FRACTION=0.97), {}),
    "updates_cut_short": (constant(KL_STOP_EPOCH=0.0), {}),
    "kl_stop_at_once": (constant(KL_STOP_EPOCH=0.0), {}),
    "exploration_growing": (lambda update: {m.STD: 1.0 + 0.1 * update}, {}),
    "entropy_low_at_start": (constant(POLICY_ENTROPY=0.1), {"max_entropy": 1.1}),
    "entropy_oscillating": (swinging, {"max_entropy": 1.1}),
    "one_action": (constant(TOP_ACTION_SHARE=1.0), {}),
    "actions_unscaled": (constant(ACTION_SPREAD=0.001), {}),
    "imitation_outweighs": (constant(BC_LOSS_RATIO=2.0), {}),
    "feature_constant": (constant(OBS_CONSTANT=0.4), {}),
    "normaliser_off": (constant(OBS_NORMALISED_SPREAD=6.0), {}),
    "observation_drift": (constant(VECNORMALIZE_MEAN_DRIFT=2.0), {}),
    "return_outlier": (constant(RETURN_OUTLIER=150.0), {}),
    "return_scale_fallen": (lambda update: {m.RET_STD: 1.0 if update < 9 else 1e-3}, {}),
    "advantage_outlier": (constant(ADVANTAGES_NORM_MAX_ABS=30.0), {}),
    "advantage_mean_off": (constant(ADVANTAGES_NORM_MEAN=-0.3), {}),
    "critic_worse_than_constant": (constant(EXPLAINED_VARIANCE=-1.0), {}),
    "critic1_vanishing": (constant(CRITIC1_GRAD_NORM=0.0), {}),
    "quantiles_cross": (constant(QUANTILE_CROSSING_SIZE=0.2), {}),
    "support_left": (constant(SUPPORT_OUTSIDE_FRACTION=0.2), {}),
    "calibration_poor": (constant(CALIBRATION_ERROR=0.4), {}),
    "validation_calibration_poor": (constant(EVAL_CALIBRATION_ERROR=0.4), {}),
    "market_memorised": (constant(EXPLAINED_VARIANCE=0.9, EVAL_EXPLAINED_VARIANCE=0.1), {}),
    "value_clip_always": (constant(VF_CLIP_ACTIVE_FRAC=0.99), {}),
    "value_clip_idle": (constant(VF_CLIP_ACTIVE_FRAC=0.0), {}),
    "gradient_large": (constant(GRAD_NORM_RAW_MAX=80.0), {}),
    "gradient_exploded": (constant(GRAD_NORM_RAW_MAX=1e6), {}),
    "memory_gradient_large": (lambda update: {m.LSTM_GRAD_NORM.of(module="actor", layer=0): 80.0}, {}),
    "memory_gradient_vanishing": (lambda update: {m.LSTM_GRAD_NORM.of(module="critic", layer=0): 0.0}, {}),
    "exploration_collapsed": (lambda update: {m.STD: 1.0 if update < 9 else 0.01}, {}),
    "updates_tiny": (lambda update: dict.fromkeys(_PARTS, 1e-09), {}),
    "policy_not_moving": (constant(KL_EXACT=0.0, CLIP_FRACTION=0.0), {}),
    "tail_thin": (constant(RISK_TAIL_SAMPLES=3.0), {}),
    "limit_broken": (constant(RISK_GAP=0.01), {}),
    "tail_far_outside": (constant(RISK_GAP=0.1), {}),
    "multiplier_climbing": (lambda update: {m.RISK_MULTIPLIER: 1.1**update, m.RISK_GAP: 0.01}, {"progress": 0.95}),
    "risk_budget_unused": (constant(RISK_GAP=-0.019, RISK_MULTIPLIER=0.0), {"progress": 0.6}),
    "multiplier_at_ceiling": (constant(RISK_MULTIPLIER=100.0), {}),
    "adversary_does_not_climb": (constant(ADVERSARY_OBJECTIVE_GAIN=0.0), {}),
    "costs_zero": (constant(TRADE_COSTS_FRACTION=0.0), {}),
    "exposure_constant": (constant(TRADE_EXPOSURE=1.0), {}),
    "no_better_than_start": (lambda update: {m.EP_REW_MEAN: -0.1 * update}, {"progress": 0.6}),
    "return_collapsed": (lambda update: {m.EP_REW_MEAN: float(update if update < 30 else 1), m.EP_REW_STD: 1.0}, {}),
    "plateau": (lambda update: {m.EP_REW_MEAN: -float(update)}, {"progress": 0.6}),
    "throughput_halved": (lambda update: {m.ROUND_FPS: 1000.0 if update < 30 else 300.0}, {}),
}  # fmt: skip
_PARTS: list[Metric] = []


@pytest.fixture(scope="module")
def recorded() -> History:
    """The numbers of a real run, update by update, as its rules saw them."""
    model, seen = make(n_steps=16, n_epochs=2, batch_size=24), []
    judge = model.guard.monitor.judge

    def looked(numbers: Any, facts: Facts) -> Any:
        seen.append(dict(model.guard.monitor._pending) | {metric.name: value for metric, value in numbers.items()})
        return judge(numbers, facts)

    model.guard.monitor.judge = looked  # type: ignore[method-assign]
    learn(model, UPDATES)
    history = []
    for row in seen:
        numbers = {_metric(name): value for name, value in row.items()}
        history.append(numbers | HEALTHY | {m.TRADE_EXPOSURE: 0.5 + 0.01 * (len(history) % 7)})
    _PARTS[:] = [metric for metric in history[0] if metric.name.startswith("train/update_ratio/")]
    return history


def _metric(name: str) -> Metric:
    found = find(name)
    assert found is not None
    return Metric(name, found.unit, found.meaning)


def judged(history: History, changed: Any, facts: dict[str, Any]) -> set[str]:
    monitor = Monitor()
    known: dict[str, Any] = {"max_grad_norm": 0.5, "ceilings": (100.0,), "progress": 0.4}
    for update, numbers in enumerate(history, 1):
        monitor.judge(numbers | changed(update), Facts(**(known | facts | {"update": update})))
    return {alert.name for alert in monitor.alerts}


@pytest.mark.parametrize("name", CHANGED)
def test_a_rule_fires_on_a_history_with_its_fault_and_is_quiet_without(name: str, recorded: History) -> None:
    changed, facts = CHANGED[name]
    assert name in judged(recorded, changed, facts)
    assert name not in judged(recorded, lambda update: {}, {key: facts[key] for key in facts if key != "progress"})


def test_every_rule_is_seen_to_fire_somewhere() -> None:
    in_runs = {name for fault in FAULTS for name in fault.alerts}
    by_errors = {"training_diverged", "rolled_back"}  # of an error: tests/algorithm/test_guard.py
    assert set(RULES) - in_runs - set(CHANGED) - by_errors == set()
