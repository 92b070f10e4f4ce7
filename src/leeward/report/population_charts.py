"""The population that a run was found by: who took over from whom, with which settings, and what it came to."""

from collections.abc import Iterator, Sequence
from typing import Any

from leeward.errors import RunDirectoryError, one_line
from leeward.report.figure import Figure, Trace, color, numbers, plain
from leeward.report.tables import Table

__all__ = ["PopulationStory"]

Event = dict[str, Any]
_MOST_ROWS = 40  # of the table
_FACTORS = 10.0  # from so many times the smallest value on, settings are drawn on a log axis


class PopulationStory:
    """population.jsonl, as far as a page tells it."""

    def __init__(self, events: Sequence[Event]) -> None:
        try:
            self._read(events)
            self.sentence, self.charts, self.table = _sentence(self), _charts(self), _take_overs(self)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise RunDirectoryError(
                f"population.jsonl: not the events of a population ({type(error).__name__}: {one_line(error)}); "
                "restore it"
            ) from None

    def _read(self, events: Sequence[Event]) -> None:
        kinds = {kind: [event for event in events if event["event"] == kind] for kind in
                 ("population", "orders", "interval", "exploit", "compared")}  # fmt: skip
        head = kinds["population"][0]
        self.members, self.searched = int(head["members"]), [str(key) for key in head["searched"]]
        self.mode = str(head["mode"])
        self.exploits = kinds["exploit"]
        # (round, member) -> what it was told, and what it came to
        self.orders = {(each["round"], order["member"]): order for each in kinds["orders"] for order in each["orders"]}
        if self.members > len({member for _, member in self.orders}):
            raise ValueError(f"{self.members:,} members, and fewer that have orders")
        self.outcomes = {(each["round"], each["member"]): each["outcome"] for each in kinds["interval"]}
        self.compared = kinds["compared"][-1] if kinds["compared"] else None
        scored = {key: outcome["value"] for key, outcome in self.outcomes.items() if outcome["value"] is not None}
        self.best = max(scored, key=lambda key: (scored[key], -key[0], -key[1])) if scored else None

    def lineage(self) -> list[tuple[int, int]]:
        """(round, member) of what led to the best, the first one first."""
        found: list[tuple[int, int]] = []
        if self.best is not None:
            number, member = self.best
            for i in range(number, -1, -1):
                found.append((i, member))
                source = self.orders[i, member]["source"]
                member = member if source is None else source
        return found[::-1]

    def of(self, member: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        """Its orders and outcomes, round by round."""
        for (number, whose), outcome in sorted(self.outcomes.items()):
            if whose == member:
                yield self.orders[number, member], outcome


def _sentence(story: PopulationStory) -> str:
    words = f"{story.members} members, {len(story.exploits)} take-overs"
    if story.mode == "replay":
        words = f"{story.members} members that replay a schedule on fresh seeds"
    text = f"{words}; scores are of validation. The line of the best is drawn strong."
    if story.compared is None:
        return text
    ours, theirs = (story.compared[name]["score"] for name in ("population", "random"))
    verdict = "better by a standard error or more" if story.compared["better"] else "no better"
    return f"{text} At the same budget random search found {theirs:.4g}, the population {ours:.4g}: it is {verdict}."


def _charts(story: PopulationStory) -> list[Figure]:
    """Scores, the tree of take-overs, and one chart for each setting that was searched."""
    return [_scores(story), _tree(story), *(_setting(story, key) for key in story.searched)]


def _scores(story: PopulationStory) -> Figure:
    drawn = [_faint(f"member {member}", [outcome["step"] for _, outcome in story.of(member)],
                    [_number(outcome["value"]) for _, outcome in story.of(member)])
             for member in range(story.members)]  # fmt: skip
    line = story.lineage()
    steps = [story.outcomes[key]["step"] for key in line]
    drawn.append(_strong("what led to the best", steps, [_number(story.outcomes[key]["value"]) for key in line]))
    note = "score on validation at each comparison"
    return Figure("population_scores", "Scores of the members", note, drawn, _layout("score"), wide=True)


def _tree(story: PopulationStory) -> Figure:
    drawn = []
    for member in range(story.members):
        steps = [step for order, outcome in story.of(member) for step in (order["begins"], outcome["step"])]
        drawn.append(_faint(f"member {member}", steps, [float(member)] * len(steps)))
    for each in story.exploits:
        at, ends = [each["step"]] * 2, [float(each["source"]), float(each["member"])]
        passed = _faint(f"{each['member']} takes over from {each['source']}", at, ends)
        style = {"color": color("ink-3"), "width": 1, "dash": "dot"}
        # A dot at the end that takes over.
        drawn.append(
            passed | {"mode": "lines+markers", "line": style, "marker": {"color": color("ink-3"), "size": [0, 6]}}
        )
    steps, places = [], []
    for number, member in story.lineage():
        order = story.orders[number, member]
        steps += [order["begins"], story.outcomes[number, member]["step"]]
        places += [float(member)] * 2
    drawn.append(_strong("what led to the best", steps, places))
    layout = _layout("member")
    layout["yaxis"] |= {"dtick": max(1, story.members // 8), "autorange": "reversed", "tickformat": "d"}
    height = min(520, 160 + 22 * story.members)
    note = "dotted, to the dot: weights, optimiser and statistics pass on"
    return Figure("population_tree", "Who took over from whom", note, drawn, layout, height=height, wide=True)


def _setting(story: PopulationStory, key: str) -> Figure:
    def path(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[list[float], list[float]]:
        steps = [step for order, outcome in pairs for step in (order["begins"], outcome["step"])]
        return steps, [float(order["requested"][key]) for order, _ in pairs for _ in range(2)]

    drawn = [_faint(f"member {member}", *path(list(story.of(member)))) for member in range(story.members)]
    line = [(story.orders[place], story.outcomes[place]) for place in story.lineage()]
    drawn.append(_strong("what led to the best", *path(line)))
    values = [float(order["requested"][key]) for order in story.orders.values() if key in order["requested"]]
    layout = _layout("")
    if min(values) > 0.0 and max(values) > _FACTORS * min(values):
        layout["yaxis"] |= {"type": "log", "dtick": "D2", "tickformat": ".0e"}
    name = "population_" + key.replace(".", "_")
    return Figure(name, plain(key), "as requested, and as the live objects said", drawn, layout, height=200)


def _take_overs(story: PopulationStory) -> Table | None:
    """The last take-overs, with the settings they brought."""
    shown = story.exploits[-_MOST_ROWS:]
    if not shown:
        return None
    heading = ("Step", "Member", "Takes over from", *story.searched)
    rows = tuple(
        (f"{each['step']:,}", str(each["member"]), str(each["source"]),
         *(f"{each['live'][key]:.4g}" for key in story.searched))
        for each in shown
    )  # fmt: skip
    last = f", the last {_MOST_ROWS} of {len(story.exploits)}" if len(story.exploits) > _MOST_ROWS else ""
    return Table(heading, rows, f"Take-overs, with the settings read back{last}")


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _faint(name: str, x: Sequence[float], y: Sequence[float]) -> Trace:
    style = {"color": color("ink-4"), "width": 1.2}
    return {"type": "scatter", "mode": "lines", "name": name, "x": list(x), "y": numbers(y), "line": style}


def _strong(name: str, x: Sequence[float], y: Sequence[float]) -> Trace:
    return _faint(name, x, y) | {"line": {"color": color("accent"), "width": 2.4}}


def _layout(unit: str) -> dict[str, Any]:
    return {
        "xaxis": {"title": {"text": "env steps of each member"}, "type": "linear", "tickformat": "~s"},
        "yaxis": {"title": {"text": unit}, "tickformat": "~g"},
        "showlegend": False,
    }
