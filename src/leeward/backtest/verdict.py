"""What a result shows, in sentences chosen by rule from numbers: control, risk, edge.

control   the learner is given a market with a planted signal: how much of the best growth did it find on unseen bars?
risk      the measured tail beside its limit: kept, broken, or not distinguishable
edge      Sharpe ratio against buy and hold, and against the agent's own positions at other times
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy import stats

from leeward.backtest.bootstrap import Interval
from leeward.backtest.wording import number, percent, share
from leeward.errors import ArgumentError

__all__ = [
    "Outcome",
    "Verdict",
    "Tail",
    "Edge",
    "control_verdict",
    "risk_verdict",
    "edge_verdict",
    "smallest_detectable",
]

FOUND, PARTLY = 0.8, 0.2  # shares of the best growth
TIMING = 95.0  # percentile above which positions are better timed than chance
CARRIED = 0.5  # of the training Sharpe ratio; below it the result did not carry over


class Outcome(StrEnum):
    GOOD = "good"
    OPEN = "open"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A headline of a few words, what it rests on, and whether it is good news."""

    subject: str
    headline: str
    sentence: str
    outcome: Outcome

    @property
    def line(self) -> str:
        """As a terminal prints it."""
        return f"{self.subject.capitalize()}: {self.headline.lower()}. {self.sentence}"


@dataclass(frozen=True, slots=True)
class Tail:
    """CVaR of the risk variable on one split, with its interval."""

    split: str
    measured: float
    interval: Interval


@dataclass(frozen=True, slots=True)
class Edge:
    """What the edge verdict looks at; Sharpe ratios are annualised."""

    sharpe_in: float | None  # on train; None when it was not measured
    sharpe_out: float  # on the judged split
    sharpe_hold: float  # buy and hold, judged split
    difference: Interval  # 90 %, agent − buy and hold
    timing_percentile: float  # of the agent among its own shifted positions
    seeds: int
    assumptions: str  # fills and costs, such as "filled at the next open, 1 bp commission"
    in_sample: str = ""  # which decisions the agent has learned from; empty: none
    openings: int | None = None  # of sealed bars, this one included; None: these are none
    against_cash: Interval | None = None  # 90 %, growth a year of the agent − cash; None: not measured
    idle: bool = False  # it never held anything


def smallest_detectable(error: float, *, mass: float = 0.9, power: float = 0.8) -> float:
    """The smallest true difference whose interval of `mass` would exclude 0 with probability `power`.

    (z₍₁₊mass₎/₂ + z_power) · standard error: 2.49 standard errors at 90 % and 80 %.
    """
    return float((stats.norm.ppf((1.0 + mass) / 2.0) + stats.norm.ppf(power)) * error)


def control_verdict(shares: Sequence[float]) -> Verdict:
    """`shares`: growth on unseen bars over that of the best policy, one per seed; the worst seed decides."""
    if not shares:
        raise ArgumentError("the control verdict needs the growth of at least one seed, got none")
    worst, many = min(shares), len(shares) > 1
    amount = f"{percent(worst, 0)} of the growth of the best clipped-linear policy on unseen bars" + (
        f", worst of {len(shares)} seeds" if many else ""
    )
    market = "On a synthetic market with a planted signal the agent reached"
    if worst >= FOUND:
        return Verdict("control", "Signal found", f"{market} {amount}: it learns what is there to learn.", Outcome.GOOD)
    if worst >= PARTLY:
        return Verdict("control", "Signal partly found", f"{market} only {amount}.", Outcome.OPEN)
    return Verdict(
        "control",
        "Signal missed",
        f"{market} {amount}: it did not find a signal that is there, so nothing below can be trusted.",
        Outcome.BAD,
    )


def risk_verdict(
    tails: Sequence[Tail], *, judged: str, alpha: float, limit: float | None, baselines: Mapping[str, float]
) -> Verdict:
    """Kept when the whole interval of the judged split is inside the limit, broken when all of it is outside."""
    by_split = {tail.split: tail for tail in tails}
    if judged not in by_split:
        raise ArgumentError(f"the risk verdict needs the tail of the judged split {judged!r}, got {sorted(by_split)}")
    tail = by_split[judged]
    measured = (
        f"The worst {share(alpha)} of bars on {judged} averaged {percent(tail.measured)} "
        f"(90 % interval {percent(tail.interval.low)} to {percent(tail.interval.high)})"
    )
    others = [f"{name} {percent(value)}" for name, value in baselines.items()]
    others += [f"{t.split} {percent(t.measured)}" for t in tails if t.split != judged]
    beside = f" Beside it: {', '.join(others)}." if others else ""
    if limit is None:
        return Verdict("risk", "No limit set", f"{measured}.{beside}", Outcome.OPEN)
    against = f"the limit of {percent(limit)}"
    if tail.interval.low >= limit:
        return Verdict("risk", "Limit kept", f"{measured}, inside {against}.{beside}", Outcome.GOOD)
    if tail.interval.high < limit:
        return Verdict("risk", "Limit broken", f"{measured}, beyond {against}.{beside}", Outcome.BAD)
    side = "inside" if tail.measured >= limit else "beyond"
    return Verdict(
        "risk",
        "Not distinguishable",
        f"{measured}, {side} {against}, but the interval contains it.{beside}",
        Outcome.OPEN,
    )


def edge_verdict(edge: Edge, *, judged: str) -> Verdict:
    """An edge needs both: the interval of the difference to buy and hold above 0, and timing above chance.

    Nothing is claimed about decisions that the agent has learned from, nor about an agent that never traded.
    """
    if edge.idle:
        sentence = f"It held nothing on {judged}, so there is nothing to judge: neither an edge nor its absence."
        return Verdict("edge", "Stayed in cash", sentence, Outcome.OPEN)
    said = edge.in_sample
    if said:
        sentence = (
            f"{said}: a Sharpe ratio of {number(edge.sharpe_out)} there, against "
            f"{number(edge.sharpe_hold)} for buy and hold, says nothing about an edge on bars it has not seen."
        )
        return Verdict("edge", "Not judged, in sample", sentence, Outcome.OPEN)
    low, high = edge.difference.low, edge.difference.high
    versus = (
        f"Sharpe {number(edge.sharpe_out)} on {judged} against {number(edge.sharpe_hold)} for buy and hold "
        f"(90 % interval of the difference {number(low)} to {number(high)}); "
        f"better timed than {percent(edge.timing_percentile / 100.0, 0)} of its own positions at other times."
    )
    carried = _carried(edge, judged)
    power = (
        f" {_seeds(edge.seeds)}; a window of this length shows a true difference of "
        f"{number(smallest_detectable(edge.difference.error))} four times in five. Assumed: {edge.assumptions}."
    )
    if edge.openings is not None:
        power += f" {_openings(edge.openings)}"
    cash = edge.against_cash
    if cash is not None and cash.high < 0.0:
        than = f" It grew {percent(-cash.high)} to {percent(-cash.low)} a year less than cash (90 % interval)."
        return Verdict("edge", "No edge, worse than cash", f"{versus}{than}{carried}{power}", Outcome.BAD)
    if low > 0.0 and edge.timing_percentile > TIMING:
        return Verdict("edge", "Evidence of an edge", f"{versus}{carried}{power}", Outcome.GOOD)
    if high < 0.0:
        return Verdict("edge", "No edge, worse than holding", f"{versus}{carried}{power}", Outcome.BAD)
    return Verdict("edge", "No evidence of an edge", f"{versus}{carried}{power}", Outcome.OPEN)


def _carried(edge: Edge, judged: str) -> str:
    if edge.sharpe_in is None:
        return ""
    both = f"Sharpe on train {number(edge.sharpe_in)}"
    if edge.sharpe_in > 0.0 and edge.sharpe_out < CARRIED * edge.sharpe_in:
        return f" {both}: most of it did not carry over to {judged}."
    return f" {both}."


def _openings(count: int) -> str:
    if count == 1:
        return "These test bars were opened for the first time."
    return f"These test bars have been opened {count} times, which makes every result on them worth less."


def _seeds(count: int) -> str:
    return "One seed" if count == 1 else f"{count} seeds"
