"""The section about the population that a run was found by."""

import json

import pytest

from leeward.errors import RunDirectoryError
from leeward.report.population_charts import PopulationStory

KEY = "ppo.learning_rate"


def order(member, number, rate, source=None):
    return {"member": member, "round": number, "begins": 100 * number, "requested": {KEY: rate}, "source": source}


def interval(member, number, value):
    return {
        "event": "interval",
        "member": member,
        "round": number,
        "outcome": {"step": 100 * number + 100, "value": value},
    }


# 0 is better at first; then 1 takes over from it, with another rate, and becomes the best.
EVENTS = [
    {"event": "population", "members": 2, "mode": "population", "searched": [KEY]},
    {"event": "orders", "round": 0, "orders": [order(0, 0, 1e-3), order(1, 0, 1e-1)]},
    interval(0, 0, 2.0),
    interval(1, 0, None),
    {"event": "orders", "round": 1, "orders": [order(0, 1, 1e-3), order(1, 1, 2e-3, source=0)]},
    {"event": "exploit", "member": 1, "source": 0, "step": 100, "requested": {KEY: 2e-3}, "live": {KEY: 2e-3}},
    interval(0, 1, 3.0),
    interval(1, 1, 5.0),
]
COMPARED = {"event": "compared", "random": {"score": 4.9}, "population": {"score": 5.0}, "better": False}


def curve(figure, name):
    (trace,) = [trace for trace in figure.data if trace["name"] == name]
    return list(zip(trace["x"], trace["y"], strict=True))


def test_the_strong_line_leads_to_the_best_through_whom_it_took_over_from():
    scores, tree, rates = PopulationStory(EVENTS).charts
    assert curve(scores, "what led to the best") == [(100, 2.0), (200, 5.0)]
    assert curve(scores, "member 1") == [(100, None), (200, 5.0)], "a score that is none is a gap"
    assert curve(tree, "what led to the best") == [(0, 0.0), (100, 0.0), (100, 1.0), (200, 1.0)]
    assert curve(tree, "1 takes over from 0") == [(100, 0.0), (100, 1.0)]
    assert curve(rates, "what led to the best") == [(0, 1e-3), (100, 1e-3), (100, 2e-3), (200, 2e-3)]
    assert rates.layout["yaxis"]["type"] == "log"


def test_the_table_shows_what_the_live_objects_said():
    table = PopulationStory(EVENTS).table
    assert table.rows == (("100", "1", "0", "0.002"),)
    assert PopulationStory(EVENTS[:5]).table is None


def test_a_population_that_is_no_better_than_random_search_says_so():
    assert "random search" not in PopulationStory(EVENTS).sentence
    said = PopulationStory([*EVENTS, COMPARED]).sentence
    assert "2 members, 1 take-overs" in said and "random search found 4.9, the population 5: it is no better." in said
    assert "it is better by a standard error" in PopulationStory([*EVENTS, COMPARED | {"better": True}]).sentence


@pytest.mark.parametrize(
    "events",
    [
        [{"event": "orders"}],
        [{"no": 1}],
        [*EVENTS[:2], {"event": "interval", "round": 0}],
        [EVENTS[0] | {"members": 10**12}, *EVENTS[1:]],
        [EVENTS[0] | {"searched": ["other"]}, *EVENTS[1:]],
        [*EVENTS, COMPARED | {"random": {"score": "many"}}],
        [*EVENTS, {"event": "exploit", "member": {}, "source": 0, "step": "x", "live": []}],
    ],
)
def test_events_of_something_else_are_an_error_that_names_the_file(events):
    with pytest.raises(RunDirectoryError, match=r"population.jsonl: not the events of a population"):
        PopulationStory(json.loads(json.dumps(events)))
