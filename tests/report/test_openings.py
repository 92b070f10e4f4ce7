"""The report says how often the test bars had been looked at, from the record of the run alone."""

import json

import pytest

from leeward.report.build import render
from leeward.report.data import load_run
from leeward.report.openings import openings_list, seal_sentence


def record(*earlier, data="abc"):
    """run.json of a run whose openings found that many before them."""
    entry = {"split": "test", "data": data}
    found = [entry | {"time": f"2026-01-0{i}", "earlier": count} for i, count in enumerate(earlier, start=1)]
    return {"data_fingerprint": "abc", "openings": found}


WORTH = ": the more often, the less a result on them is worth."


@pytest.mark.parametrize(
    ("earlier", "sentence"),
    [
        ([0], "This run has opened these bars once."),
        ([0, 1], f"This run has opened these bars twice{WORTH}"),
        ([2], f"This run has opened these bars once, and runs beside it twice by then{WORTH}"),
        # the third found 5 before it: two of this run, so three of others
        (
            [0, 2, 5],
            f"This run has opened these bars 3 times, and runs beside it 3 times by then{WORTH}",
        ),
        ([], "No opening of these bars is on the record."),
    ],
)
def test_the_sentence_counts_this_run_and_those_beside_it(earlier, sentence):
    assert seal_sentence(record(*earlier), "test") == sentence


def test_a_report_on_validation_says_whether_the_seal_is_whole():
    assert seal_sentence(record(), "validation") == "The test split is sealed."
    assert seal_sentence(record(0), "validation") == "This run has opened its test bars once."
    assert seal_sentence({"seed": 1}, "validation") == seal_sentence({"openings": 3}, "test") == ""


def test_openings_of_other_bars_and_entries_of_others_do_not_count():
    assert seal_sentence(record(0, 1, data="other"), "test") == "No opening of these bars is on the record."
    mixed = record(0)
    mixed["openings"] += ["?", {"time": "2026-01-09", "split": "whole", "data": "abc"}]  # a count was not kept then
    assert seal_sentence(mixed, "test") == f"This run has opened these bars twice{WORTH}"
    assert openings_list(mixed) == "2026-01-01 (test, 0 before), 2026-01-09 (whole, unknown before)"
    assert openings_list(record()) == "none"


def test_the_page_says_it_in_words(run_copy):
    (run_copy / "run.json").write_text(json.dumps(record(0, 1)))
    page = render(load_run(run_copy))
    assert "This run has opened these bars twice" in page[: page.index('class="plot"')]
    assert "<dt>openings</dt><dd>2026-01-01 (test, 0 before), 2026-01-02 (test, 1 before)</dd>" in page
