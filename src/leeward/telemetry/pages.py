"""What is written from the registry and the rules: `docs/metrics.md`, and what `leeward explain` prints."""

from leeward.errors import ArgumentError, did_you_mean
from leeward.telemetry.health import Rule
from leeward.telemetry.metrics import SECTIONS, Metric
from leeward.telemetry.rules import RULES

__all__ = ["explanation", "metrics_page"]

_NOTES = {
    "Risk": "With several constraints the second has the same metrics under names that end in `/2`, the third in `/3`, "
    "and so on: `risk/gap/2`."
}
_MEANINGS = {
    "error": "a number that no run that works has: look at once (`health.strict` stops on it)",
    "warn": "something is likely wrong",
    "info": "worth knowing; it may be what the task allows",
}


def metrics_page() -> str:
    """`docs/metrics.md`: every metric, then the runbook of all rules."""
    lines = [
        "# Metrics and alerts",
        "",
        "Generated from `leeward.telemetry`; a test keeps the two equal. The [runbook](#runbook) explains every alert, "
        "[reading a run](reading-a-run.md) how to go about it.",
        "",
    ]
    for title, metrics in SECTIONS.items():
        lines += [f"## {title}", "", "| metric | unit | meaning | judged by | needs |", "|---|---|---|---|---|"]
        lines += [_row(f"`{m.name}`", m.unit, m.meaning, _judges(m), m.needs) for m in metrics]
        lines.append("")
        if title in _NOTES:
            lines += [_NOTES[title], ""]
    lines += ["## Runbook", "", "`leeward explain NAME` prints an entry. Severities:", ""]
    lines += [f"- **{name}**: {meaning}" for name, meaning in _MEANINGS.items()]
    lines += ["", "`health.rules.NAME: {threshold: …, off: true}` in a config, or `health={\"rules\": …}` in Python, "
              "changes one.", ""]  # fmt: skip
    for rule in RULES.values():
        lines += [f"### {rule.name}", "", f"**{rule.severity}** when {_when(rule)}.", ""]
        lines += [
            f"- Likely cause: {rule.cause}.",
            f"- What to do: {rule.remedy}.",
            f"- How to check: {rule.check}.",
            "",
        ]
    return "\n".join(lines)


def explanation(name: str | None) -> str:
    """The runbook entry of one alert as plain text, or a list of all."""
    if name is None:
        width = max(len(rule.name) for rule in RULES.values())
        return "".join(f"{rule.name:{width}}  {rule.severity:5}  {rule.what}\n" for rule in RULES.values())
    if name not in RULES:
        raise ArgumentError(f"there is no alert {name!r}; {did_you_mean(name, RULES)}")
    rule = RULES[name]
    reads = ", ".join(metric.name for metric in rule.reads) or "an error that stops a round"
    return (
        f"{rule.name} ({rule.severity}: {_MEANINGS[rule.severity].replace('`', '')})\n"
        f"  fires when    {_when(rule)}\n"
        f"  reads         {reads}\n"
        f"  likely cause  {rule.cause}\n"
        f"  what to do    {rule.remedy}\n"
        f"  how to check  {rule.check}\n"
        f"  to change it  health.rules.{rule.name}: {{threshold: {rule.threshold:g}, off: false}}\n"
    )


def _when(rule: Rule) -> str:
    if rule.judge is None:
        return rule.what
    text = f"{rule.what}, is {rule.fires} {rule.threshold:g}"
    if rule.persistence > 1:
        text += f", {rule.persistence} updates in a row"
    if rule.warmup:
        text += f", after the first {rule.warmup}"
    if rule.least:
        text += f", in rollouts of {rule.least} steps or more"
    return f"{text}; fires again after {rule.rearm} updates without it"


def _judges(metric: Metric) -> str:
    """The rules that read a metric first, as links into the runbook, with their thresholds."""
    return "; ".join(
        f"[{rule.name}](#{rule.name}) {'>' if rule.fires == 'above' else '<'} {rule.threshold:g}"
        for rule in RULES.values()
        if metric in rule.reads[:1]
    )


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
