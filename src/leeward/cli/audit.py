"""`leeward audit`."""

import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leeward.audit.findings import Audit, Severity
from leeward.audit.run.whole import audit_run, write_audit
from leeward.cli.view import harmless, say

__all__ = ["audit_command"]

_COLOURS: dict[Severity, str] = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "cyan"}


def audit_command(path: Path, *, json_object: bool = False) -> None:
    """Run every check, print and write what was found; exit code 1 when something critical was."""
    console = Console(stderr=json_object)
    with console.status("audit ...") as status:
        audit = audit_run(path, lambda name: status.update(f"audit: {name} ..."))
    if json_object:
        sys.stdout.write(json.dumps(audit.as_dict(), indent=1, ensure_ascii=False) + "\n")
    else:
        _print(console, audit)
    write_audit(path, audit)
    if not json_object:
        say(console, f"Files: {path / 'audit.md'}, {path / 'audit.json'}")
    if audit.is_critical:
        raise SystemExit(1)


def _print(console: Console, audit: Audit) -> None:
    if audit.findings:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for finding in audit.findings:
            title, detail, remedy = map(harmless, (finding.title, finding.detail, finding.remedy))
            words = Text.assemble((f"{title}\n", "bold"), f"{detail}\n", (f"→ {remedy}", "dim"))
            table.add_row(Text(finding.severity, _COLOURS[finding.severity]), Text(finding.check, "dim"), words)
        console.print(table)
    if audit.passed:
        say(console, f"Passed: {', '.join(audit.passed)}.")
    for each in audit.not_run:
        say(console, f"Could not run: {each.check}: {each.why}")
    say(console, audit.summary)
