"""The page: whole when the run is whole, shorter when it is not, and always one file that needs no network."""

import errno
import json
import os
import re
from importlib.resources import files

import pytest

from leeward.errors import RunDirectoryError
from leeward.report.build import render, write_report
from leeward.report.data import load_run
from leeward.report.sections import sections_of

EVERYTHING = ["result", "risk", "edge", "positions", "outlook", "robustness", "control", "training"]
EVERYTHING += ["numbers", "health"]


def without_plotly(page: str) -> str:
    """The page without the library's own source, which is 4 MB of other people's text."""
    start, end = page.index('id="figures"'), page.index("</body>", page.rindex('"use strict";'))
    figures = page[start : page.index("</script>", start)]
    return page[:start] + figures + page[page.rindex('"use strict";') : end]


def figures_of(page: str) -> dict:
    start = page.index(">", page.index('id="figures"')) + 1
    return json.loads(page[start : page.index("</script>", start)])


@pytest.fixture(scope="module")
def page(whole_run):
    return render(load_run(whole_run), load_run(whole_run))


def test_a_whole_run_has_every_section(whole_run):
    run = load_run(whole_run)
    assert [section.key for section in sections_of(run, run)] == EVERYTHING


def test_every_figure_has_its_place_in_the_page(page):
    places = re.findall(r'<div class="plot" id="([^"]+)"', page)
    assert places == list(figures_of(page))
    assert len(places) == len(set(places)) >= 16


def test_no_two_things_of_the_page_have_the_same_id(page):
    # A chart with the id of its section would be drawn over the section.
    ids = re.findall(r'\sid="([^"]+)"', without_plotly(page))
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("progress.csv", "training"),
        ("alerts.jsonl", "health"),
        ("backtest/test/outlook.npz", "outlook"),
        ("backtest/test/robustness.json", "robustness"),
    ],
)
def test_a_section_without_its_source_is_left_out(run_copy, name, section):
    (run_copy / name).unlink()
    run = load_run(run_copy)
    assert [s.key for s in sections_of(run, run)] == [key for key in EVERYTHING if key != section]


def test_a_bare_run_is_a_short_page_without_a_trace_of_what_is_missing(bare_run):
    run = load_run(bare_run)
    assert [section.key for section in sections_of(run, None)] == ["result", "risk", "edge", "positions", "numbers"]
    text = without_plotly(render(run))
    assert "No limit set" in text
    for word in ("the limit", "config.yaml</summary>", 'id="fan"', 'id="train_', "control_equity"):
        assert word not in text, word


def test_the_page_asks_nobody_for_anything(page):
    text = without_plotly(page)
    assert set(re.findall(r'\b(?:src|href|action)\s*=\s*"?(#|data:|[^"\s>]*)', text)) == {"#", "data:"}
    assert "@import" not in text
    assert "url(" not in text


def test_verdicts_and_the_short_table_come_before_any_chart(page):
    first_plot = page.index('class="plot"')
    for headline in ("Signal", "Limit kept", "Buy and hold", "90 % interval"):
        assert 0 < page.index(headline) < first_plot, headline


def test_a_name_with_markup_stays_text(run_copy):
    path = run_copy / "backtest" / "test" / "positions.csv"
    path.write_text(path.read_text().replace("control", "</script><b>"))
    trades = run_copy / "backtest" / "test" / "trades.csv"
    trades.write_text(trades.read_text().replace("control", "</script><b>"))
    (run_copy / "config.yaml").write_text("name: <img src=x>\n")
    page = render(load_run(run_copy))
    assert "</script><b>" not in page
    assert "<img" not in without_plotly(page)
    assert "&lt;/script&gt;&lt;b&gt;, price" in json.dumps(figures_of(page))


def test_a_name_that_steers_a_terminal_or_is_no_text_is_an_escape(run_copy):
    hostile = run_copy.rename(run_copy.with_name("a\x1b[31mb\udcff"))
    (hostile / "run.json").write_text(json.dumps({"machine": "c\x1b[31m", "versions": {"torch": "\x9b2J"}}))
    page = without_plotly(write_report(hostile).read_text(encoding="utf-8"))
    assert r"a\x1b[31mb\udcff" in page and r"c\x1b[31m" in page
    assert not {"\x1b", "\x9b"} & set(page)


def test_the_same_run_gives_the_same_bytes(whole_run, page):
    assert render(load_run(whole_run), load_run(whole_run)) == page


def test_the_report_is_written_beside_the_run(run_copy, tmp_path):
    assert write_report(run_copy) == run_copy / "report.html"
    assert (run_copy / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert write_report(run_copy, path=tmp_path / "x.html") == tmp_path / "x.html"


def test_every_colour_a_figure_names_is_in_both_themes(page):
    named = set(re.findall(r"var\(--([\w-]+)\)", json.dumps(figures_of(page))))
    style = files("leeward.report").joinpath("assets", "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r"(?::root[^{]*)\{([^}]*--paper[^}]*)\}", style)
    assert len(blocks) == 3  # light, dark by preference, dark by choice
    for block in blocks:
        assert named <= set(re.findall(r"--([\w-]+):", block))
    assert re.findall(r"--[\w-]+: [^;]+", blocks[1]) == re.findall(r"--[\w-]+: [^;]+", blocks[2])


def test_what_is_wrong_with_a_directory_is_said(tmp_path, run_copy):
    with pytest.raises(RunDirectoryError, match=r"nowhere: no such run directory"):
        load_run(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunDirectoryError, match=r"no finished backtest in it; run `leeward backtest`"):
        load_run(tmp_path / "empty")
    (run_copy / "alerts.jsonl").write_text('{"severity": "warn"}\n{broken\n')
    with pytest.raises(RunDirectoryError, match=r"alerts\.jsonl line 2: not JSON"):
        load_run(run_copy)
    (run_copy / "alerts.jsonl").write_text("[1]\n")
    with pytest.raises(RunDirectoryError, match=r"alerts\.jsonl line 1: expected a JSON object, got list"):
        load_run(run_copy)


def test_half_a_line_at_the_end_is_left_out(run_copy):
    for half in ('{"severity": "er', '{"message": "−'):  # the second ends inside a character
        (run_copy / "alerts.jsonl").write_bytes(b'{"severity": "warn"}\n' + half.encode()[:-1])
        assert load_run(run_copy).alerts == ({"severity": "warn"},)
    (run_copy / "alerts.jsonl").write_text('{"severity": "warn"}\n{"severity": "error"}')
    assert [alert["severity"] for alert in load_run(run_copy).alerts] == ["warn", "error"]
    (run_copy / "population.jsonl").write_text('{"event": "population"}\n{"event": "ord')
    assert load_run(run_copy).population == ({"event": "population"},)


@pytest.mark.parametrize("name", ["alerts.jsonl", "population.jsonl", "progress.csv", "config.yaml", "run.json"])
def test_a_file_without_end_is_not_read_to_its_end(name, run_copy):
    with (run_copy / name).open("wb") as file:
        file.truncate(1 << 40)  # of holes: it takes no room on the disk
    with pytest.raises(RunDirectoryError, match=rf"{re.escape(name)}: more than \S+ bytes"):
        load_run(run_copy)


def test_half_of_a_pair_is_no_text(run_copy):
    (run_copy / "run.json").write_text('{"seed": "\\ud800"}')
    with pytest.raises(RunDirectoryError, match=r"run\.json: not JSON \(.*surrogates not allowed"):
        load_run(run_copy)
    (run_copy / "run.json").write_text('{"seed": "\\ud83d\\ude00"}')  # a whole pair
    assert load_run(run_copy).run == {"seed": "\U0001f600"}


def test_a_report_is_whole_or_the_old_one(run_copy, monkeypatch):
    path = write_report(run_copy)
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as found:
        write_report(run_copy)
    assert str(run_copy) in str(found.value.filename)
    assert path.read_bytes() == before and not list(run_copy.glob(".report*"))


def test_warnings_about_the_bars_and_the_first_line_stand_above_the_verdicts(run_copy):
    path = run_copy / "backtest" / "test" / "metrics.json"
    metrics = json.loads(path.read_text()) | {"warnings": ["bars.csv row 7: warning: unadjusted split"]}
    path.write_text(json.dumps(metrics))
    page = render(load_run(run_copy))
    above = page[: page.index('class="verdict ')]
    assert "bars.csv row 7: warning: unadjusted split" in above and 'class="headline"' in above


def test_every_table_has_a_title(run_copy):
    page = render(load_run(run_copy))
    assert page.count("<caption>") == page.count("<table>") >= 3


def test_what_an_audit_found_is_a_section(run_copy):
    finding = {
        "check": "books",
        "severity": "critical",
        "title": "It does not add up",
        "detail": "1 < 2",
        "remedy": "x",
    }
    (run_copy / "audit.json").write_text(json.dumps({"findings": [finding], "passed": ["ratio"], "not_run": []}))
    page = write_report(run_copy).read_text()
    section = page.split('<section id="audit">')[1].split("</section>")[0]
    assert "Checks that passed: 1; that could not run: 0." in section
    assert '<tr><th scope="row">critical</th><td>It does not add up</td><td>1 &lt; 2</td><td>x</td></tr>' in section


def test_an_audit_that_found_nothing_says_so_and_none_is_no_section(run_copy):
    assert '<section id="audit">' not in write_report(run_copy).read_text()
    (run_copy / "audit.json").write_text(json.dumps({"findings": [], "passed": ["ratio"], "not_run": []}))
    assert "Nothing was found" in write_report(run_copy).read_text()


def test_an_audit_that_is_something_else_is_an_error(run_copy):
    (run_copy / "audit.json").write_text('{"findings": 3}')
    with pytest.raises(RunDirectoryError, match=r"audit\.json: findings must be a list; run `leeward audit` again"):
        write_report(run_copy)
