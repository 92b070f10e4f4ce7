"""Who takes over from whom, with which settings: decided without training."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers

from leeward.config.load import load_config
from leeward.config.tune import Dimension
from leeward.errors import ConfigError, RunDirectoryError, TrainingDiverged
from leeward.training.population.compare import Standing, better, leads, take_overs
from leeward.training.population.log import FILE, EventLog, read_events
from leeward.training.population.orders import Outcome
from leeward.training.population.population import Population, Rounds
from leeward.training.population.space import draw, explore

from ..support.populations import TRADING, config_of

SPACE = {
    "ppo.learning_rate": Dimension(low=1e-4, high=1e-1, log=True),
    "ppo.clip_range": Dimension(values=(0.1, 0.2, 0.3)),
    "ppo.n_epochs": Dimension(low=1, high=10),
}


def rng(seed=0):
    return np.random.default_rng(seed)


def flat(value, n=4):
    return Standing(value, (value,) * n)


@given(integers(0, 2**32))
def test_settings_stay_inside_their_bounds_however_often_they_move(seed):
    stream = rng(seed)
    (settings,) = draw(SPACE, 1, stream)
    for _ in range(30):
        settings = explore(SPACE, settings, stream)
        assert 1e-4 <= settings["ppo.learning_rate"] <= 1e-1
        assert settings["ppo.clip_range"] in (0.1, 0.2, 0.3)
        assert type(settings["ppo.n_epochs"]) is int and 1 <= settings["ppo.n_epochs"] <= 10


def test_first_settings_are_spread_over_every_dimension():
    rates = sorted(settings["ppo.learning_rate"] for settings in draw(SPACE, 3, rng()))
    # Three decades, three members: one in each.
    assert [math.floor(math.log10(rate)) for rate in rates] == [-4, -3, -2]
    assert sorted(settings["ppo.clip_range"] for settings in draw(SPACE, 3, rng())) == [0.1, 0.2, 0.3]


def test_a_setting_moves_up_or_down_by_a_tenth_of_its_width_or_is_drawn_anew():
    moved = [
        explore(SPACE, {"ppo.learning_rate": 1e-2, "ppo.clip_range": 0.2, "ppo.n_epochs": 5}, rng(s))
        for s in range(400)
    ]
    # A tenth of three decades: a factor of 10^0.3.
    steps = [round(math.log10(each["ppo.learning_rate"] / 1e-2), 9) for each in moved]
    assert {0.3, -0.3} <= set(steps)
    drawn = sum(abs(abs(step) - 0.3) > 1e-9 for step in steps)
    assert 60 <= drawn <= 140, "a quarter of 400, give or take"
    assert {each["ppo.clip_range"] for each in moved} == {0.1, 0.2, 0.3}


def test_a_setting_at_its_bound_comes_back_from_it():
    moved = {
        explore(SPACE, {"ppo.learning_rate": 1e-1, "ppo.clip_range": 0.1, "ppo.n_epochs": 1}, rng(s))[
            "ppo.learning_rate"
        ]
        for s in range(40)
    }
    assert 1e-1 not in moved


def test_a_rate_that_a_rollback_has_moved_away_comes_back_into_the_space():
    moved = {"ppo.learning_rate": 1e-6, "ppo.clip_range": 0.05, "ppo.n_epochs": 5}
    for seed in range(20):
        found = explore(SPACE, moved, rng(seed))
        assert 1e-4 <= found["ppo.learning_rate"] <= 1e-1 and found["ppo.clip_range"] in (0.1, 0.2, 0.3)


def test_the_last_quarter_takes_over_from_the_first():
    standings = {member: flat(float(member)) for member in range(8)}
    assert set(take_overs(standings, margin=1.0, rng=rng())) == {0, 1}
    assert set(take_overs(standings, margin=1.0, rng=rng()).values()) <= {6, 7}
    assert take_overs({0: flat(0.0)}, margin=0.0, rng=rng()) == {}


def test_nobody_takes_over_from_nan_and_nan_takes_over():
    standings = {0: flat(math.nan), 1: flat(1.0), 2: flat(2.0), 3: flat(math.inf)}
    found = {seed: take_overs(standings, margin=1.0, rng=rng(seed)) for seed in range(20)}
    assert all(set(each.values()) == {2} and set(each) <= {0, 3} for each in found.values())
    assert take_overs({0: flat(math.nan), 1: flat(math.nan)}, margin=0.0, rng=rng()) == {}
    assert not better(flat(math.nan), None) and better(flat(1.0), None) and not better(flat(math.nan), flat(-9.0))


def test_a_member_that_has_ended_takes_over_whatever_its_rank_and_is_no_source():
    standings = {0: Standing(9.0, (9.0,), ended=True), 1: flat(1.0), 2: flat(2.0), 3: flat(3.0)}
    assert take_overs(standings, margin=100.0, rng=rng()) == {0: 3}


def test_a_lead_counts_in_standard_errors_over_paired_windows():
    base = np.array([5.0, -3.0, 2.0, 8.0])
    one, other = (Standing(v, tuple(base + d)) for v, d in ((2.0, np.array([1.0, 3.0, 1.0, 3.0])), (0.0, 0.0)))
    # Differences 1, 3, 1, 3: standard deviation 2/√3, standard error 1/√3 = 0.577; a lead of 2 is 3.46 of them.
    assert leads(one, other, margin=3.46) and not leads(one, other, margin=3.47)
    assert not leads(other, one, margin=1e-9) and leads(other, one, margin=0.0), "0 is always"
    assert not leads(flat(1.0), flat(1.0), margin=1.0), "no lead, however sure"


def test_intervals_are_whole_rollouts_and_the_last_ends_with_the_run():
    # 4 envs × 16 steps = 64 a rollout; an interval of 100 is 2 of them, 384 steps are 6.
    rounds = Rounds.of(config_of(TRADING))
    assert [rounds.steps(i) for i in range(len(rounds))] == [128, 256, 384]
    rounds = Rounds.of(config_of(TRADING, "ppo.total_steps=400"))
    assert [rounds.steps(i) for i in range(len(rounds))] == [128, 256, 384, 448]
    assert len(Rounds.of(config_of(TRADING, "tune.interval=null", "ppo.total_steps=64000"))) == 20


@pytest.mark.parametrize(
    ("settings", "members", "mode", "said"),
    [
        (["tune.space={}"], 4, "population", "nothing is searched"),
        ([], 1, "population", "two members or more"),
        (["ppo.n_jobs=2"], 4, "population", "each in one process"),
        ([], 4, "replay", "nothing to replay"),
        (["tune.schedule={0: {ppo.gamma: 0.9}, 100: {ppo.gamma: 0.8}}"], 4, "replay", "step 100 is not at the end of"),
    ],
)
def test_what_cannot_become_a_population_is_refused_before_a_directory_is_made(tmp_path, settings, members, mode, said):
    with pytest.raises(ConfigError, match=said):
        Population.create(tmp_path / "p", config_of(TRADING, *settings), members, mode)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("schedule", ["{5: {}}", "{0: {}, -1: {}}", "{0: {ppo.gama: 0.9}}", "{0: {ppo.gamma: 2}}"])
def test_a_schedule_that_cannot_be_followed_is_refused(schedule):
    with pytest.raises(ConfigError, match="schedule"):
        load_config(None, [f"tune.schedule={schedule}"])


def outcome_of(order, value):
    return Outcome(order.steps, value, (value,) * 4, began=order.requested, live=order.requested)


def report(population, values):
    for order in population.pending:
        population.report(order, outcome_of(order, values[order.member]))


def test_a_population_is_refused_twice_in_one_directory(tmp_path):
    Population.create(tmp_path, config_of(TRADING), 2, "population")
    with pytest.raises(RunDirectoryError, match="holds a population already; go on with --resume"):
        Population.create(tmp_path, config_of(TRADING), 2, "population")
    with pytest.raises(RunDirectoryError, match="no population here"):
        Population.open(tmp_path / "elsewhere")


def test_wherever_a_driver_is_killed_the_next_one_comes_to_the_same_end(tmp_path):
    whole = Population.create(tmp_path / "whole", config_of(TRADING), 4, "population")
    values = [0.1, 0.4, 0.2, 0.3]
    while whole.pending:
        report(whole, values)
    lines = (tmp_path / "whole" / FILE).read_text().splitlines(keepends=True)
    assert len(lines) > 20 and whole.exploits == 2
    for kept in range(1, len(lines)):
        for torn in ("", lines[kept][: len(lines[kept]) // 2]):
            folder = tmp_path / f"{kept}-{bool(torn)}"
            folder.mkdir()
            (folder / FILE).write_text("".join(lines[:kept]) + torn)
            again = Population.open(folder)
            while again.pending:
                report(again, values)
            assert (folder / FILE).read_text() == "".join(lines)
            assert (again.best, again.trials, again.is_finished) == (whole.best, whole.trials, True)


def test_a_member_that_crashes_is_tried_again_and_ends_after_three_times(tmp_path):
    population = Population.create(tmp_path, config_of(TRADING), 3, "population")
    order = population.pending[0]
    population.crashed(order, "gone")
    population.crashed(order, "gone")
    assert order in population.pending
    population.crashed(order, "gone")
    assert order not in population.pending
    report(population, [math.nan, 1.0, 2.0])
    taken = {each.member: each.source for each in population.pending}
    assert taken == {0: 2, 1: None, 2: None}, "its place goes to a copy of the best, and 1 leads nobody"
    assert "crashed 3 times: gone" in (tmp_path / FILE).read_text()


def test_a_member_whose_settings_were_not_applied_stops_for_good(tmp_path):
    population = Population.create(tmp_path, config_of(TRADING), 3, "population")
    population.report(population.pending[0], Outcome(0, stopped="lr 1 was requested, 2 is live"))
    report(population, [math.nan, 1.0, 2.0])
    assert [order.member for order in population.pending] == [1, 2]


def test_a_population_in_which_nobody_can_go_on_says_why(tmp_path):
    population = Population.create(tmp_path, config_of(TRADING), 2, "population")
    population.report(population.pending[0], Outcome(0, ended="value_loss is 1e9"))
    with pytest.raises(TrainingDiverged, match=r"no member can go on\. member 0: value_loss is 1e9; member 1: lost"):
        population.report(population.pending[0], Outcome(0, ended="lost"))


def test_a_population_without_any_score_has_no_best_and_says_so(tmp_path):
    population = Population.create(tmp_path, config_of(TRADING), 2, "population")
    while population.pending:
        report(population, [math.nan, math.nan])
    assert population.is_finished
    with pytest.raises(TrainingDiverged, match="no member ever had a score"):
        population.finish()


def test_random_search_begins_alike_and_changes_nothing_and_a_replay_follows_its_schedule(tmp_path):
    config = config_of(TRADING)
    first = Population.create(tmp_path / "a", config, 3, "population")
    alone = Population.create(tmp_path / "b", config, 3, "random")
    begun = {order.member: order.requested for order in alone.pending}
    assert begun == {order.member: order.requested for order in first.pending}
    assert [alone.seed(member) for member in range(3)] == [first.seed(member) for member in range(3)]
    report(alone, [1.0, 2.0, 3.0])
    assert {order.member: order.requested for order in alone.pending} == begun
    followed = config_of(TRADING, "tune.schedule={0: {ppo.gamma: 0.9}, 256: {ppo.gamma: 0.8}}")
    replay = Population.create(tmp_path / "c", followed, 2, "replay")
    seen = []
    while replay.pending:
        seen.append([(order.requested["ppo.gamma"], order.changed) for order in replay.pending])
        report(replay, [1.0, 2.0])
    assert seen == [[(0.9, False)] * 2, [(0.9, False)] * 2, [(0.8, True)] * 2]
    assert {replay.seed(member) for member in range(2)}.isdisjoint(first.seed(member) for member in range(3))


def test_the_lineage_of_the_best_leads_through_whom_it_took_over_from(tmp_path):
    population = Population.create(tmp_path, config_of(TRADING), 4, "population")
    for values in ([1.0, 2.0, 3.0, 4.0], [9.0, 2.0, 3.0, 4.0]):
        report(population, values)
    # 0 was last after the first round and took over from 3; it is the best after the second.
    lineage = population.lineage(population.best)
    assert [(order.member, order.source) for order in lineage] == [(3, None), (0, 3)]


def test_a_thousand_members_are_decided_on():
    standings = {member: flat(float(member)) for member in range(1000)}
    found = take_overs(standings, margin=1.0, rng=rng())
    assert len(found) == 250 and min(found.values()) >= 750


@pytest.mark.parametrize("part", ["kept", "members", "members/0000", "population.jsonl"])
def test_a_population_from_elsewhere_leads_to_nothing_outside_its_folder(part, tmp_path):
    population, outside = tmp_path / "population", tmp_path / "outside"
    Population.create(population, config_of(TRADING), 2, "population")
    outside.mkdir()
    (population / part).parent.mkdir(exist_ok=True)
    if part == FILE:
        (population / FILE).rename(outside / FILE)
    (population / part).symlink_to(outside / (part if part == FILE else ""))
    with pytest.raises(RunDirectoryError, match=rf"{part}: a link to"):
        Population.open(population)


@pytest.mark.parametrize(
    ("number", "path", "value"),
    [
        (0, ("members",), 10**12),
        (0, ("members",), "2"),
        (0, ("mode",), "other"),
        (1, ("round",), 7),
        (1, ("orders",), 3),
        (1, ("orders", 0, "member"), "../../outside"),
        (1, ("orders", 0, "member"), 2),
        (1, ("orders", 0, "start"), "../../outside"),
        (1, ("orders", 0, "updates"), -1),
        (1, ("orders", 0, "requested"), []),
        (2, ("member",), {}),
        (2, ("outcome",), "none"),
        (2, ("outcome", "windows"), ["x"]),
        (2, ("outcome", "live"), {"ppo.learning_rate": "x"}),
        (2, ("outcome", "value"), {}),
    ],
)
def test_an_event_that_no_population_wrote_is_an_error_that_names_the_file(number, path, value, tmp_path):
    report(Population.create(tmp_path, config_of(TRADING), 2, "population"), [1.0, 2.0])
    events = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    here = events[number]
    for name in path[:-1]:
        here = here[name]
    here[path[-1]] = value
    (tmp_path / FILE).write_text("".join(f"{json.dumps(event)}\n" for event in events))
    with pytest.raises(RunDirectoryError, match=rf"{FILE}: .*restore the file"):
        Population.open(tmp_path)


def test_a_damaged_log_is_named_with_its_line(tmp_path):
    log = EventLog(tmp_path / FILE)
    log.write("population", members=2)
    (tmp_path / FILE).write_text(json.dumps({"event": "x"}) + "\n[1]\n")
    with pytest.raises(RunDirectoryError, match="line 2: expected a JSON object"):
        read_events(tmp_path / FILE)
    (tmp_path / FILE).write_text("{\n")
    with pytest.raises(RunDirectoryError, match="line 1: not JSON"):
        read_events(tmp_path / FILE)
