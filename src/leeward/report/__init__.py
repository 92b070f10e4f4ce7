"""The tear sheet: one self-contained HTML file made from the files of a run."""

from leeward.report.build import render, write_report
from leeward.report.data import ReportData, load_run
from leeward.report.tear_sheet import tear_sheet

__all__ = ["ReportData", "load_run", "render", "tear_sheet", "write_report"]
