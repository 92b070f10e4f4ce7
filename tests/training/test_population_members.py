"""Real members, carried out in this process: what they take over, what is read back, and what comes out."""

import shutil
import sys

import pytest
import torch

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.algorithm.engine import Engine
from leeward.algorithm.guard import Guard
from leeward.config.load import load_config
from leeward.errors import SettingNotApplied, UnhealthyTraining
from leeward.market import prepare
from leeward.training.checkpoints import load_model, model_file
from leeward.training.logs import ProgressFile
from leeward.training.population.best import write_best
from leeward.training.population.exploit import check_applied, put_in_force, take_over
from leeward.training.population.member import carry_out
from leeward.training.population.orders import place_of
from leeward.training.population.population import Population
from leeward.training.run_dir import RunDir
from leeward.training.tasks import task_of
from leeward.training.trainer import make_model, train

from ..support.populations import CARTPOLE, TRADING, carry_on, config_of, finish
from ..support.tiny_runs import leeward_here

KINDS = {"trading": TRADING, "cartpole": CARTPOLE}


@pytest.fixture(scope="module")
def trading(tmp_path_factory):
    """A population on a market, and its best as a run."""
    folder = tmp_path_factory.mktemp("population")
    population = finish(Population.create(folder, config_of(TRADING), 3, "population"))
    return population, write_best(population, trials=population.trials)


def task_of_config(config):
    return task_of(config, None if config.gym is not None else prepare(config.data))


def events(population, kind):
    return [event for event in population.log.events if event["event"] == kind]


def test_every_take_over_reads_back_what_was_requested(trading):
    population, _ = trading
    found = events(population, "exploit")
    assert len(found) == population.exploits == 2  # one in each of two comparisons
    for event in found:
        assert event["requested"] == event["live"] and event["member"] != event["source"]
        assert event["requested"].keys() == population.config.tune.space.keys()
    assert events(population, "population")[0]["kept"]["ppo.max_grad_norm"] == 0.5, "what is not searched is named"


def test_the_rate_in_the_optimiser_is_that_of_the_schedule_at_that_progress(trading):
    population, _ = trading
    for event in events(population, "interval"):
        outcome, order = event["outcome"], population.history[event["round"]][event["member"]]
        # Linear to 0 at the end of 384 steps; the first update of an interval comes after 64 of them.
        remaining = 1.0 - (order.begins + 64) / 384
        assert outcome["lr_applied"] == pytest.approx(order.requested["ppo.learning_rate"] * remaining, rel=1e-12)
        assert outcome["lr_applied"] == outcome["lr_expected"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strategy", ["copy", "reset"])
def test_what_is_taken_over_is_the_source_to_the_bit_and_settings_are_new(tmp_path, kind, strategy):
    config = config_of(KINDS[kind], f"tune.optimizer_strategy={strategy}")
    population = Population.create(tmp_path, config, 2, "population")
    for _ in range(2):
        carry_on(population)
    (order,) = [order for order in population.pending if order.source is not None]
    source = tmp_path / order.start
    model = take_over(source, task_of_config(config), seed=7)
    live = put_in_force(model, config, order.requested, strategy)
    assert live == order.requested
    model.save(tmp_path / "taken.zip")
    (manifest, tensors), (told, theirs) = (read_checkpoint(p) for p in (tmp_path / "taken.zip", model_file(source)))
    names = {name for name in theirs if name.startswith(("policy/", "vgs/"))}
    moments = {name for name in theirs if name.startswith("optimizer/")}
    assert names and moments
    assert all(torch.equal(tensors[name], theirs[name]) for name in names)
    if strategy == "copy":
        assert all(torch.equal(tensors[name], theirs[name]) for name in moments)
    else:
        assert not any(name.startswith("optimizer/") for name in tensors)
    own = {"counters": {**told["state"]["counters"], "stream_seed": 7}}
    if strategy == "reset":  # its steps begin anew, and the health rules with them
        own["health"] = manifest["state"]["health"]
    assert manifest["state"] == told["state"] | own, "multipliers, statistics, schedules and counts; the seed is new"
    assert manifest["arguments"]["n_epochs"] == order.requested["ppo.n_epochs"]


def test_a_setting_that_is_not_applied_is_an_error_that_names_both_values(monkeypatch):
    config = config_of(CARTPOLE)
    model = make_model(config, task_of_config(config).env(0))
    honest = Engine.put_in_force

    def forgetful(engine, settings, remaining):
        honest(engine, settings.model_copy(update={"learning_rate": engine.settings.learning_rate}), remaining)

    monkeypatch.setattr(Engine, "put_in_force", forgetful)
    with pytest.raises(SettingNotApplied, match=r"ppo.learning_rate 0.005 was requested, 0.001 is live"):
        put_in_force(model, config, {"ppo.learning_rate": 0.005, "ppo.n_epochs": 2}, "copy")
    assert check_applied(model, {"ppo.n_epochs": 2}) == {"ppo.n_epochs": 2}


def test_a_member_whose_optimiser_has_another_rate_stops_and_others_go_on(tmp_path, monkeypatch):
    population = Population.create(tmp_path, config_of(CARTPOLE, "ppo.critic_learning_rate=null",
        "tune.space={ppo.learning_rate: {low: 1e-4, high: 1e-2, log: true}}"), 3, "population")  # fmt: skip
    honest = Engine._set_learning_rates

    def stale(engine, remaining):
        honest(engine, remaining)
        if remaining < 1.0:  # in an update, not when the model is made
            engine.policy.optimizer.param_groups[0]["lr"] = 1e-5

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "_set_learning_rates", stale)
        _, outcome = carry_on(population)
    assert "the optimiser's learning rate was 1e-05 in update 1" in outcome.stopped
    finish(population)
    assert [event["member"] for event in events(population, "stopped")] == [0]
    assert population.is_finished and 0 not in population.outcomes


def test_a_health_error_ends_a_member_and_its_place_goes_to_a_copy_of_the_best(tmp_path, monkeypatch):
    population = Population.create(tmp_path, config_of(CARTPOLE), 2, "population")

    def troubled(guard):
        raise UnhealthyTraining("value_loss is 1e9")

    with monkeypatch.context() as patch:
        patch.setattr(Guard, "act", troubled)
        _, outcome = carry_on(population)
    assert outcome.ended == "value_loss is 1e9"
    carry_on(population)
    assert [(order.member, order.source) for order in population.pending] == [(0, 1), (1, None)]
    assert finish(population).is_finished


def test_an_order_that_was_carried_out_is_not_carried_out_again(trading, monkeypatch):
    population, _ = trading
    order = population.history[-1][0]
    monkeypatch.setattr("leeward.training.population.member._interval", None)
    again = carry_out(population.folder, population.config_of(0, order.requested), order)
    assert again.as_dict() == events(population, "interval")[-3]["outcome"]


def test_a_member_that_takes_over_from_nobody_is_an_ordinary_run_to_the_bit(tmp_path):
    config = config_of(TRADING)
    population = finish(Population.create(tmp_path / "p", config, 2, "random"))
    plain = RunDir.create(tmp_path / "plain", population.config_of(1, population.history[0][1].requested))
    with plain.locked():
        train(plain, prepare(config.data), lambda progress: None, resume=False)
    (_, ours), (_, theirs) = (
        read_checkpoint(model_file(place)) for place in (tmp_path / "p" / place_of(1, 6), plain.checkpoint_list()[-1])
    )
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_best_is_an_ordinary_run_that_knows_how_many_settings_were_tried(trading, tmp_path):
    population, best = trading
    run = RunDir.open(shutil.copytree(best.path, tmp_path / "best"))
    assert run.record()["trials"] == 3 + population.exploits
    agent = load_model(run.best_checkpoint())
    assert agent.num_timesteps == population.best.step
    requested = population.lineage(population.best)[-1].requested
    assert (run.config().ppo.gamma, agent.gamma) == (requested["ppo.gamma"],) * 2
    rows = ProgressFile.rows_of(run.progress_file)
    assert [int(float(row["time/total_timesteps"])) for row in rows] == [*range(64, population.best.step + 1, 64)]
    assert any(row.get("population/lr_applied") for row in rows)
    for command in ("backtest", "report", "audit", "verify"):
        code, out, err = leeward_here(command, str(run.path))
        assert (code, err) == (0, ""), (command, out, err)
    assert "Population" in (run.path / "report.html").read_text(encoding="utf-8")


def test_a_best_that_is_there_keeps_what_was_done_with_it(trading):
    population, best = trading
    opened = [{"time": "now", "split": "test", "data": "x", "earlier": 0}]
    best.update_record(openings=opened)
    again = write_best(population, trials=99)
    assert (again.record()["openings"], again.record()["trials"]) == (opened, 99)
    best.update_record(openings=[], trials=population.trials)


def test_a_population_is_no_run_and_says_where_its_best_is(trading):
    population, _ = trading
    for command in ("backtest", "report"):
        code, _, err = leeward_here(command, str(population.folder))
        assert code == 1 and "a population; its best run is" in err


def test_what_the_best_followed_can_be_replayed_on_fresh_seeds(trading, tmp_path):
    population, best = trading
    config = load_config(best.path / "schedule.yaml")
    lineage = population.lineage(population.best)
    assert config.tune.schedule[0] == lineage[0].requested
    replay = finish(Population.create(tmp_path, config, 1, "replay"))
    for order in lineage:
        assert replay.history[order.round][0].requested == order.requested
    assert [event["outcome"]["live"] for event in events(replay, "interval")][: len(lineage)] == [
        order.requested for order in lineage
    ]


def test_without_ray_the_command_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("leeward.cli.tune", "leeward.training.population.places"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "config.yaml").write_text("tune: {space: {}}")
    code, out, err = leeward_here("tune", str(tmp_path / "config.yaml"), "--members", "2")
    assert (code, out) == (1, "")
    assert err == "error: this command needs the package 'ray': pip install 'leeward[ray]'\n"
