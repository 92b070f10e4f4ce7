"""Write report.html: everything inline, so that the file can be mailed, opened offline, and read on a phone."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, select_autoescape
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from leeward.backtest.judgement import headline, judge
from leeward.backtest.verdict import Verdict
from leeward.backtest.wording import percent, share
from leeward.durable import write_atomically
from leeward.errors import printable
from leeward.report.data import ReportData, load_run
from leeward.report.openings import openings_list
from leeward.report.sections import Section, sections_of
from leeward.report.tables import summary_table

__all__ = ["write_report", "render"]


def write_report(main_run: Path, *, control_run: Path | None = None, path: Path | None = None) -> Path:
    """Make the report of a run (beside its control run, if there is one); by default runs/<name>/report.html."""
    main = load_run(main_run)
    control = None if control_run is None else load_run(control_run)
    target = path or main_run / "report.html"
    write_atomically(target, render(main, control))
    return target


def render(main: ReportData, control: ReportData | None = None) -> str:
    """The page as text; the same input gives the same bytes."""
    sections = sections_of(main, control)
    metrics = main.backtest.metrics
    environment = Environment(autoescape=select_autoescape(default=True), undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_asset("page.html")).render(
        name=main.name,
        metrics=metrics,
        alpha=share(metrics.alpha),
        limit=None if metrics.limit is None else percent(metrics.limit),
        judged=main.judged,
        headline=headline(metrics),
        verdicts=_verdicts(main, control),
        summary=summary_table(metrics),
        sections=sections,
        config=main.config,
        facts=_facts(main),
        # Markup: our own files and escaped JSON, never input.
        style=Markup(_asset("page.css")),
        script=Markup(_asset("page.js")),
        plotly=Markup(get_plotlyjs()),
        figures=Markup(_figures(sections)),
    )


def _verdicts(main: ReportData, control: ReportData | None) -> tuple[Verdict, ...]:
    splits = {name: stored.metrics for name, stored in main.splits.items()}
    controls = None if control is None else {name: stored.metrics for name, stored in control.splits.items()}
    return judge(splits, controls)


def _figures(sections: list[Section]) -> str:
    specs = {figure.key: figure.spec() for section in sections for figure in section.figures}
    # "<" cannot end the script element from inside a string when it is written as an escape.
    return json.dumps(specs, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _facts(main: ReportData) -> dict[str, str]:
    """Where this came from: fingerprints, versions, seed."""
    facts = {f"fingerprint, {name}": value for name, value in main.backtest.metrics.fingerprints.items()}
    words = {"openings": openings_list(main.run)} if "openings" in main.run else {}
    return facts | {key: _text(value) for key, value in main.run.items()} | words


def _text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _asset(name: str) -> str:
    return files("leeward.report").joinpath("assets", name).read_text(encoding="utf-8")
