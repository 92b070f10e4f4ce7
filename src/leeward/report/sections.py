"""The sections of the page, in order. A section whose source is not there is left out, never drawn empty."""

from dataclasses import dataclass

from leeward.backtest.strategies import BEST_POLICY
from leeward.report.data import ReportData
from leeward.report.figure import Figure
from leeward.report.openings import seal_sentence
from leeward.report.outlook_charts import outlook_charts
from leeward.report.population_charts import PopulationStory
from leeward.report.portfolio_charts import portfolio_charts
from leeward.report.position_charts import choice_sentence, costs_chart, position_charts
from leeward.report.returns_charts import (
    distribution_chart,
    drawdown_chart,
    equity_chart,
    months_chart,
    rolling_charts,
)
from leeward.report.risk_charts import differences_chart, sharpes_chart, tails_chart, timing_chart
from leeward.report.robustness_chart import robustness_chart
from leeward.report.tables import Table, full_table, tails_table, trades_table
from leeward.report.training_charts import training_charts

__all__ = ["Section", "sections_of"]


@dataclass(frozen=True, eq=False)
class Section:
    """A heading, a sentence, charts and perhaps a table."""

    key: str
    title: str
    text: str
    figures: tuple[Figure, ...] = ()
    table: Table | None = None
    small: bool = False  # small multiples, three in a row


def sections_of(main: ReportData, control: ReportData | None) -> list[Section]:
    """All sections that have something to show."""
    made = [_result(main), _risk(main), _edge(main), _positions(main), _outlook(main), _robustness(main)]
    made += [_control(control), _training(main), _population(main), _numbers(main), _audit(main), _alerts(main)]
    return [section for section in made if section is not None and (section.figures or section.table)]


def _result(main: ReportData) -> Section:
    stored = main.backtest
    figures = [equity_chart(stored), drawdown_chart(stored), distribution_chart(stored), months_chart(stored)]
    text = f"On {main.judged}, {_window(main)}, after costs; the baselines pay the same ones."
    text = f"{text} {seal_sentence(main.run, main.judged)}".rstrip()
    return Section("result", "Result", text, _there(figures))


def _risk(main: ReportData) -> Section:
    rolling = [figure for figure in rolling_charts(main.backtest) if figure.key == "rolling_cvar"]
    text = "The tail is one number, the mean log-return of the worst bars, measured and never taken from the critic."
    if main.backtest.metrics.limit is not None:
        text += " The limit is on it."
    return Section("risk", "Risk", text, _there([tails_chart(main.splits), *rolling]), tails_table(main.backtest))


def _edge(main: ReportData) -> Section:
    metrics = main.backtest.metrics
    rolling = [figure for figure in rolling_charts(main.backtest) if figure.key == "rolling_sharpe"]
    figures = [sharpes_chart(main.splits), *rolling, differences_chart(metrics), timing_chart(metrics)]
    text = "Is it more than holding the market, and more than the luck of when it was in it?"
    return Section("edge", "Edge", text, _there(figures))


def _positions(main: ReportData) -> Section:
    figures = [*portfolio_charts(main.backtest), *position_charts(main.backtest), costs_chart(main.backtest)]
    text = "Decided at a close, filled at the next open. A trade runs from flat, or a change of sign, to the next."
    text = f"{text} {choice_sentence(main.backtest)}".rstrip()
    return Section("positions", "Positions", text, _there(figures), trades_table(main.backtest))


def _outlook(main: ReportData) -> Section | None:
    figures = outlook_charts(main.backtest)
    if not figures:
        return None
    return Section("outlook", "Outlook", "What the agent expected, before it knew.", tuple(figures))


def _robustness(main: ReportData) -> Section | None:
    curve = main.robustness.get(main.judged)
    if curve is None:
        return None
    text = f"What is left on {main.judged} when someone bends what the agent sees. Its account and all flags stay true."
    return Section("robustness", "Robustness", text, (robustness_chart(curve),))


def _control(control: ReportData | None) -> Section | None:
    if control is None or BEST_POLICY not in control.backtest.metrics.strategies:
        return None
    figure = equity_chart(control.backtest, "control_equity", title="Planted signal")
    text = "A synthetic market with a signal that is known to be there, on bars the agent has not seen."
    return Section("control", "Control", text, (figure,))


def _training(main: ReportData) -> Section | None:
    if main.progress is None:
        return None
    figures = training_charts(main.progress, limit=main.backtest.metrics.limit)
    return Section("training", "Training", "One point per logged update.", tuple(figures), small=True)


def _population(main: ReportData) -> Section | None:
    if not main.population:
        return None
    story = PopulationStory(main.population)
    return Section("population", "Population", story.sentence, tuple(story.charts), story.table)


def _numbers(main: ReportData) -> Section:
    text = (
        "Statistics of simple returns per bar; VaR and CVaR of log-returns. Sharpe and Sortino are in excess of cash. "
        f"A year has {main.backtest.metrics.bars_per_year:.1f} bars."
    )
    return Section("numbers", "All numbers", text, table=full_table(main.backtest.metrics))


def _audit(main: ReportData) -> Section | None:
    """What `leeward audit` found, the worst first, as its file says it."""
    if main.audit is None:
        return None
    findings, passed, left = (main.audit[name] for name in ("findings", "passed", "not_run"))
    text = "What `leeward audit` found, the worst first. "
    text += f"Checks that passed: {len(passed)}; that could not run: {len(left)}."
    wanted = ("severity", "title", "detail", "remedy")
    rows = tuple(tuple(str(finding.get(name, "")) for name in wanted) for finding in findings)
    nothing = (("–", "Nothing was found", "", ""),)
    heading = ("Severity", "What", "Measured", "What to do")
    return Section("audit", "Audit", text, table=Table(heading, rows or nothing, "Findings"))


def _alerts(main: ReportData) -> Section | None:
    if not main.alerts:
        return None
    wanted = ("severity", "update", "name", "message", "cause", "remedy")
    heading = tuple(name.capitalize() for name in wanted)
    rows = tuple(tuple(str(alert.get(name, "")) for name in wanted) for alert in main.alerts[-50:])
    more = f" The last 50 of {len(main.alerts)}." if len(main.alerts) > 50 else ""
    return Section(
        "health", "Health alerts", f"What the run said about itself.{more}", table=Table(heading, rows, "Alerts")
    )


def _window(main: ReportData) -> str:
    metrics = main.backtest.metrics
    return f"{metrics.start[:10]} to {metrics.end[:10]}"


def _there(figures: list[Figure | None] | list[Figure]) -> tuple[Figure, ...]:
    return tuple(figure for figure in figures if figure is not None)
