"""What an audit says: findings by severity, the checks that passed, and those that could not run, with the reason."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["SEVERITIES", "Audit", "Fault", "Finding", "NotRun", "Severity"]

Severity = Literal["critical", "high", "medium", "low"]
SEVERITIES: tuple[Severity, ...] = ("critical", "high", "medium", "low")


@dataclass(frozen=True)
class Fault:
    """What a check found, before it is known which check that was."""

    severity: Severity
    title: str
    detail: str
    remedy: str


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong."""

    check: str
    severity: Severity
    title: str
    detail: str  # what was measured, with its numbers
    remedy: str


@dataclass(frozen=True)
class NotRun:
    """A check that could not run, and why."""

    check: str
    why: str


@dataclass(frozen=True)
class Audit:
    """All that was found, the worst first."""

    findings: tuple[Finding, ...] = ()
    passed: tuple[str, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    questions: dict[str, str] = field(default_factory=dict)  # check -> what it asks, for people

    @property
    def is_critical(self) -> bool:
        return any(finding.severity == "critical" for finding in self.findings)

    @property
    def summary(self) -> str:
        """One line: how many of each."""
        counts = [(sum(f.severity == severity for f in self.findings), severity) for severity in SEVERITIES]
        worst = ", ".join(f"{count} {severity}" for count, severity in counts if count) or "nothing"
        plural = "s" if len(self.passed) != 1 else ""
        return f"Found: {worst}. {len(self.passed)} check{plural} passed, {len(self.not_run)} could not run."

    def __add__(self, other: "Audit") -> "Audit":
        """Both together."""
        found = sorted(self.findings + other.findings, key=lambda finding: SEVERITIES.index(finding.severity))
        return Audit(
            tuple(found), self.passed + other.passed, self.not_run + other.not_run, self.questions | other.questions
        )

    def as_dict(self) -> dict[str, Any]:
        """As `audit.json` has it."""
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "passed": list(self.passed),
            "not_run": [asdict(each) for each in self.not_run],
        }

    def markdown(self, title: str) -> str:
        """As `audit.md` has it."""
        lines = [f"# Audit of {title}", "", self.summary, ""]
        for finding in self.findings:
            lines += [f"## {finding.severity}: {finding.title}", "", finding.detail, ""]
            lines += [f"*What to do:* {finding.remedy}", "", f"Check: `{finding.check}`", ""]
        lines += self._listed("Passed", [(name, self.questions.get(name, "")) for name in self.passed])
        lines += self._listed("Could not run", [(each.check, each.why) for each in self.not_run])
        return "\n".join(lines).rstrip() + "\n"

    @staticmethod
    def _listed(heading: str, entries: Sequence[tuple[str, str]]) -> list[str]:
        if not entries:
            return []
        items = [f"- `{name}`" + (f": {' '.join(words.split())}" if words else "") for name, words in entries]
        return [f"## {heading}", "", *items, ""]
