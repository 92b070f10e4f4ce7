"""The chart of the robustness curve."""

from leeward.backtest.robustness import RobustnessCurve
from leeward.backtest.strategies import AGENT, CASH, VOLATILITY_TARGET
from leeward.report.figure import Figure, line, numbers

__all__ = ["robustness_chart"]

# attack: the strategy whose line it is drawn with, name
_ATTACKS = {
    "random": (CASH, "random noise"),
    "critic": (VOLATILITY_TARGET, "towards low values"),
    "mad": (AGENT, "towards other actions"),
}
_SCORES = {"growth": ("log-growth a year", ".0%"), "sharpe": ("Sharpe ratio, a year", "")}


def robustness_chart(curve: RobustnessCurve) -> Figure:
    """Score against the radius of the perturbation, one line per attack."""
    unit, tickformat = _SCORES[curve.score]
    traces = []
    for attack, scores in curve.scores.items():
        style, name = _ATTACKS.get(attack, (attack, attack))
        traces.append(line(style, numbers(curve.epsilons), scores, name=name, mode="lines+markers", marker={"size": 5}))
    layout = {
        "xaxis": {"title": {"text": f"radius, {curve.norm}, in units of the features"}, "type": "linear"},
        "yaxis": {"title": {"text": unit}, "tickformat": tickformat},
    }
    note = f"Market features perturbed at every bar, gradient attacks take {curve.steps} steps. Radius 0 is clean."
    return Figure("robustness_curve", "Score under attack", note, traces, layout, wide=True)
