"""The example for quants runs as it stands, with fewer steps."""

import json
import runpy
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_bars.py"


def test_the_example_trains_tests_and_reports_and_its_opening_is_on_the_record(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--steps", "1000", "--limit", "-0.02", "--open-test"])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert "The same test bars were opened 0 times before." in printed
    assert "the limit of −2.00 %" in printed
    run = tmp_path / "runs" / "own-bars"
    assert [entry["split"] for entry in json.loads((run / "run.json").read_text())["openings"]] == ["test"]
    assert (run / "report.html").is_file()
