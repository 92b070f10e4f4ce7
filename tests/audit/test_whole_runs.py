"""`leeward audit` on whole runs and on broken ones: what can be looked at is, the rest says why; nothing changes."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import pytest

from leeward.audit.run.whole import CHECKS, audit_run

from ..support.tiny_runs import leeward_here

NAMES = [check.name for check in CHECKS]


def contents(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def audited(finished, tmp_path_factory):
    """(exit code, stdout, stderr, the run before and after, its directory) of an audit by the command line."""
    path = Path(shutil.copytree(finished, tmp_path_factory.mktemp("runs") / "audited"))
    before = contents(path)
    code, out, err = leeward_here("audit", str(path), "--json")
    return code, out, err, before, contents(path), path


def accounted(found: dict) -> list[str]:
    """The checks that are told of, each once."""
    told = {finding["check"] for finding in found["findings"]}
    return [*told, *found["passed"], *(each["check"] for each in found["not_run"])]


def test_a_healthy_run_passes(audited) -> None:
    code, out, err, *_ = audited
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert [finding for finding in found["findings"] if finding["severity"] == "critical"] == []
    engine = NAMES[2 : NAMES.index("idle_settings")]
    assert set(engine) <= set(found["passed"])
    assert {"files", "features", "scaler", "account", "books", "backtest", "seal", "versions"} <= set(found["passed"])


def test_the_result_has_the_shape_that_is_promised(audited) -> None:
    found = json.loads(audited[1])
    assert found.keys() == {"findings", "passed", "not_run"}
    assert sorted(accounted(found)) == sorted(NAMES)
    for finding in found["findings"]:
        assert finding.keys() == {"check", "severity", "title", "detail", "remedy"} and all(finding.values())
    assert all(each.keys() == {"check", "why"} and each["why"] for each in found["not_run"])


def test_an_audit_changes_nothing_but_its_own_files(audited) -> None:
    _, out, _, before, after, path = audited
    assert {name for name in after if before.get(name) != after[name]} == {"audit.md", "audit.json"}
    assert before.keys() <= after.keys()
    assert json.loads((path / "audit.json").read_text()) == json.loads(out)
    assert json.loads((path / "run.json").read_text())["openings"] == []
    # The lock is free: a training may go on at once.
    assert leeward_here("verify", str(path))[0] == 0


def test_the_page_says_what_was_found_and_passed(audited) -> None:
    *_, path = audited
    page, found = (path / "audit.md").read_text(), json.loads((path / "audit.json").read_text())
    assert page.startswith("# Audit of audited\n\nFound: ")
    for finding in found["findings"]:
        assert f"## {finding['severity']}: {finding['title']}\n\n{finding['detail']}" in page
    assert "- `books`: does a second ledger agree?" in page


def test_a_person_sees_a_table(run_copy) -> None:
    (run_copy / "scaler.json").write_text("{}")
    code, out, err = leeward_here("audit", str(run_copy))
    assert (code, err) == (1, "")
    words = " ".join(out.split())
    assert "critical files scaler.json is damaged" in words
    assert "Could not run: books: the bars of the run cannot be had" in words
    assert "## Could not run" in (run_copy / "audit.md").read_text()
    assert "Passed: " in words and "Found: 1 critical" in words and "audit.md" in words


def gone(name: str):
    def remove(run: Path) -> None:
        path = run / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def without_checkpoints(run: Path) -> None:
    gone("checkpoints")(run)
    gone("best")(run)


def cut_off(name: str):
    def cut(run: Path) -> None:
        for path in run.glob(name):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut


def of_an_older_version(run: Path) -> None:
    """What a run had before checkpoints of format 4, sums, the record of its bars and alerts."""
    for path in run.glob("*/*/model.zip"):
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        parts["manifest.json"] = json.dumps(json.loads(parts["manifest.json"]) | {"version": 3}).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)
    shutil.rmtree(run / "best")
    shutil.copytree(sorted((run / "checkpoints").iterdir())[-1], run / "best")
    for path in (*run.rglob("sha256.json"), run / "bars.npz", run / "alerts.jsonl"):
        path.unlink()
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({key: record[key] for key in ("seed", "data_fingerprint")}))


def of_other_bars(run: Path) -> None:
    text = (run / "config.yaml").read_text().replace("bars.csv", "gone.csv")
    (run / "config.yaml").write_text(text)
    record = json.loads((run / "run.json").read_text())
    record["sha256"].pop("config.yaml")
    (run / "run.json").write_text(json.dumps(record))


def in_the_first_update(run: Path) -> None:
    """Killed before anything was saved."""
    for name in ("checkpoints", "best", "backtest", "progress.csv", "report.html", "tensorboard"):
        gone(name)(run)


BROKEN = {
    # what was done, some checks that still pass, one that cannot run if there is one, why
    "no checkpoint": (without_checkpoints, {"features", "books", "options"}, "advantages", "there is no checkpoint"),
    "no best": (gone("best"), {"advantages", "books"}, "backtest", "no best checkpoint"),
    "half a checkpoint": (cut_off("checkpoints/*/model.zip"), {"advantages", "books"}, None, ""),
    "data gone": (of_other_bars, {"options", "seal"}, "features", "the bars of the run cannot be had"),
    "no config": (gone("config.yaml"), {"seal"}, "advantages", "config.yaml is missing"),
    "half a record": (cut_off("run.json"), set(), "seal", "run.json"),
    "half a log": (cut_off("progress.csv"), {"advantages", "books", "options"}, None, ""),
    "no log": (gone("progress.csv"), {"advantages"}, "options", "progress.csv holds no update"),
    "half a backtest": (cut_off("backtest/*/equity.csv"), {"advantages"}, "books", "equity.csv"),
    "no backtest": (gone("backtest"), {"advantages"}, "var", "there is no backtest"),
    "half a scaler": (cut_off("scaler.json"), {"options"}, "features", "scaler.json"),
    "an older version": (
        of_an_older_version,
        {"advantages", "checkpoint", "features", "books"},
        "alerts",
        "wrote none",
    ),
    "killed in the first update": (in_the_first_update, {"features", "seal"}, "ratio", "there is no checkpoint"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_run_is_looked_at_as_far_as_it_goes(run_copy, name: str) -> None:
    harm, passes, cannot, why = BROKEN[name]
    harm(run_copy)
    before = contents(run_copy)
    found = audit_run(run_copy).as_dict()
    assert contents(run_copy) == before
    assert sorted(accounted(found)) == sorted(NAMES)
    assert passes <= set(found["passed"])
    told = {each["check"]: each["why"] for each in found["not_run"]}
    assert cannot is None or why in told[cannot], told
    assert not any("Error:" in reason for reason in told.values()), told


def test_where_nothing_of_a_run_is_there_is_one_line(tmp_path) -> None:
    code, out, err = leeward_here("audit", str(tmp_path))
    assert (code, out) == (1, "") and err.startswith(f"error: {tmp_path}: no run here") and err.count("\n") == 1
    code, _, err = leeward_here("audit", str(tmp_path / "nowhere"))
    assert code == 1 and "no run here" in err
