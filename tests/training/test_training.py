"""What a training run leaves behind: metrics, scores, files."""

import csv
import json
import math
import shutil

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from leeward.algorithm import engine
from leeward.algorithm.checkpoint import read_checkpoint
from leeward.backtest import run_policy
from leeward.backtest.baselines import buy_and_hold
from leeward.config.load import load_config
from leeward.errors import RunDirectoryError, UnhealthyTraining
from leeward.market import prepare
from leeward.telemetry.metrics import REGISTRY, VALUE_DEV
from leeward.training import logs, tasks
from leeward.training.checkpoints import load_model, read_trainer_state
from leeward.training.logs import ProgressFile
from leeward.training.run_dir import RunDir
from leeward.training.tasks import MarketTask
from leeward.training.trade_metrics import Score, score_of
from leeward.training.trainer import train

from ..support.tiny_runs import TINY, train_here


@pytest.fixture(scope="module")
def run_here(tmp_path_factory):
    return train_here(tmp_path_factory.mktemp("here") / "run", "env.action=positions")


def rows(run):
    with run.progress_file.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_trading_metric_is_emitted_every_update_is_finite_and_moves(run_here):
    run, _, _ = run_here
    found = rows(run)
    assert len(found) == 12
    for name in (name for name in REGISTRY if name.startswith("trade/")):
        values = np.array([float(row[name]) for row in found])
        assert np.isfinite(values).all(), name
        if name == "trade/costs_dropped":
            assert (values == 0).all()
        else:
            assert len(set(values)) > 6, name


def test_trading_metrics_have_the_right_sign_and_size(run_here):
    run, _, _ = run_here
    for row in rows(run):
        assert 0 < float(row["trade/costs_fraction"]) < 0.01
        assert 0 < float(row["trade/turnover"]) < 1
        assert 0 < float(row["trade/exposure"]) <= 1
        assert -1 < float(row["trade/max_drawdown"]) < 0
        assert 0 < float(row["trade/n_trades"]) <= 160  # 8 envs × 20 steps, one asset


def test_progress_is_told_after_every_update(run_here):
    _, _, seen = run_here
    assert [progress.steps for progress in seen] == [160 * i for i in range(1, 13)]
    assert [progress.validation is None for progress in seen] == [True] * 3 + [
        False
    ] * 9  # scored after updates 3, 6, 9
    assert all(progress.metrics["trade/sharpe"] == progress.exploring.sharpe for progress in seen)


def test_alerts_of_a_run_are_a_file_and_a_text_for_tensorboard(tmp_path):
    run, _, _ = train_here(tmp_path / "run", "health.rules={policy_jumped: {threshold: 0.0}}", "ppo.total_steps=480")
    lines = [json.loads(line) for line in run.alerts_file.read_text(encoding="utf-8").splitlines()]
    told = next(line for line in lines if line["name"] == "policy_jumped")
    assert (told["severity"], told["metric"], told["threshold"]) == ("error", "train/approx_kl", 0.0)
    assert told["update"] in (1, 2) and told["value"] > 0.0
    events = EventAccumulator(str(run.tensorboard), size_guidance={"tensors": 0}).Reload()
    assert "alerts/policy_jumped/text_summary" in events.Tags()["tensors"]
    assert "alert/policy_jumped" in events.Tags()["scalars"]
    model = load_model(run.checkpoint_list()[-1])
    assert [alert.as_dict() for alert in model.alerts] == lines


def test_strict_ends_a_run_and_names_its_last_good_checkpoint(tmp_path, monkeypatch):
    right, calls = engine.computed_again, []

    def wrong_from_the_fourth_on(*arguments, **keywords):
        calls.append(1)
        return right(*arguments, **keywords) | ({VALUE_DEV: 1.0} if len(calls) > 1 else {})  # in every other update

    monkeypatch.setattr(engine, "computed_again", wrong_from_the_fourth_on)
    with pytest.raises(UnhealthyTraining, match=r"last good state is that after update 2: .*00000002/model\.zip"):
        train_here(tmp_path / "run", "health.strict=true")
    (line,) = [json.loads(line) for line in (tmp_path / "run" / "alerts.jsonl").read_text().splitlines()]
    assert (line["name"], line["update"]) == ("value_not_reproduced", 4)


def test_what_is_kept_is_the_best_score_on_validation(run_here):
    run, market, seen = run_here
    config = run.config()
    best = read_trainer_state(run.best)["best"]

    def growth(place):
        result = run_policy(load_model(place), market, config.env, split="validation", alpha=config.risk[0].alpha)
        return score_of(result, config.risk[0].alpha).growth

    # Scored after updates 3, 6 and 9, which a later row of progress tells, and after the last one.
    growths = {progress.validation.growth for progress in seen if progress.validation}
    growths.add(growth(run.checkpoint_list()[-1]))
    assert len(growths) > 1
    assert best["score"]["growth"] == max(growths)
    assert growth(run.best) == pytest.approx(max(growths), rel=1e-12)
    assert best["update"] % 3 == 0


def test_a_run_goes_on_from_its_last_checkpoint_and_ends_as_if_it_had_not_stopped(run_here, tmp_path):
    whole, market, _ = run_here
    run = RunDir(shutil.copytree(whole.path, tmp_path / "run"))
    seen = resumed(run, market)
    assert seen == [], "a finished run has nothing left to do"
    # As if it had died in its last update: of 12 updates, checkpoints are made after every second one.
    shutil.rmtree(run.checkpoint_list()[-1])
    seen = resumed(run, market)
    assert [progress.steps for progress in seen] == [160 * 11, 160 * 12]
    assert [place.name for place in run.checkpoint_list()] == ["00000010", "00000012"]
    for place in ("checkpoints/00000012", "best"):
        (_, tensors), (_, twins) = (read_checkpoint(each.path / place / "model.zip") for each in (whole, run))
        assert all(torch.equal(tensors[name], twins[name]) for name in tensors)
        assert read_trainer_state(whole.path / place) == read_trainer_state(run.path / place)
    assert [without_clock(row) for row in rows(run)] == [without_clock(row) for row in rows(whole)]


def resumed(run, market):
    seen = []
    with run.locked():
        train(run, market, seen.append, resume=True)
    return seen


def without_clock(row):
    return {name: value for name, value in row.items() if not name.startswith("time/") or "timesteps" in name}


def ranks(limit, score="growth", *scores):
    """Scores from best to worst, as a run with this limit ranks them."""
    settings = [*TINY, "data.source=sample:synthetic", f"risk.limit={limit}", f"validation.score={score}"]
    task = object.__new__(MarketTask)
    task.config = load_config(None, settings)
    return sorted(scores, key=task.rank, reverse=True)


def test_checkpoints_that_meet_the_limit_come_first():
    wild, calm = Score(0.5, 2.0, -0.3, -0.04), Score(0.1, 1.0, -0.1, -0.01)
    calmer = Score(0.05, 0.5, -0.1, -0.005)
    assert ranks("null", "growth", wild, calm, calmer) == [wild, calm, calmer]
    assert ranks(-0.02, "growth", calmer, wild, calm) == [calm, calmer, wild]
    assert ranks(-0.001, "growth", wild, calm, calmer) == [calmer, calm, wild], "none meets it: the mildest tail"


def test_the_limit_is_one_on_train_too():
    beyond, within = Score(0.5, 2.0, -0.3, -0.01, train_cvar=-0.021), Score(0.1, 1.0, -0.1, -0.01, train_cvar=-0.019)
    assert ranks(-0.02, "growth", beyond, within) == [within, beyond]
    assert ranks(-0.015, "growth", beyond, within) == [within, beyond], "none meets it: the mildest tail"
    assert ranks(-0.03, "growth", within, beyond) == [beyond, within]


@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_the_tail_on_train_is_that_of_the_policy_as_it_is_used(policy, tmp_path, monkeypatch):
    run, market, seen = train_here(
        tmp_path / "run", f"policy.name={policy}", "risk.limit=-0.02", "data.n_bars=3000", "ppo.n_steps=40"
    )
    config, agent = run.config(), load_model(run.best)
    whole = run_policy(agent, market, config.env, split="train", alpha=0.05, with_outlook=False)
    best = read_trainer_state(run.best)["best"]["score"]
    assert best["train_cvar"] == pytest.approx(whole.performance(0.05).cvar, rel=1e-6)
    assert {progress.validation.train_cvar for progress in seen if progress.validation} != {None}
    # Of a long split a part is looked at, in episodes that begin anywhere.
    monkeypatch.setattr(tasks, "_TAIL_STEPS", 1500)
    some = MarketTask(config, market)._tail_on_train(agent)
    assert some != best["train_cvar"]
    assert some == pytest.approx(best["train_cvar"], rel=0.25)


def test_an_account_that_never_moved_is_no_hindrance_to_a_better_one():
    flat, poor = Score(0.0, math.nan, 0.0, 0.0), Score(-0.1, -1.0, -0.1, -0.01)
    assert ranks("null", "sharpe", flat, poor) == [poor, flat]


def test_the_score_is_that_of_the_backtest():
    config = load_config(None, TINY)
    market = prepare(config.data)
    result = buy_and_hold(market, config.env, split="validation")
    score = score_of(result, 0.05)
    assert score.growth == pytest.approx(result.step_returns.sum() / (len(result.step_returns) / market.bars_per_year))
    assert score.max_drawdown <= 0 and score.cvar < 0


def test_a_line_that_was_cut_off_is_dropped_on_resume(tmp_path):
    path = tmp_path / "progress.csv"
    path.write_text("a,time/total_timesteps\n1.0,160.0\n2.0,320.0\n3.0,48")
    ProgressFile(path, 1000)
    assert path.read_text() == "a,time/total_timesteps\n1.0,160.0\n2.0,320.0\n"
    ProgressFile(path, 160)
    assert path.read_text() == "a,time/total_timesteps\n1.0,160.0\n"


@pytest.mark.parametrize("name", ["=1+1", "+a", "-a", "@a", "\ta", "'=a", "'a"])
def test_a_name_in_the_log_is_no_formula_to_a_spreadsheet_and_comes_back(name, tmp_path):
    path = tmp_path / "progress.csv"
    ProgressFile(path, None).write({name: 1.0, "time/total_timesteps": 160}, {}, step=160)
    ProgressFile(path, 160).write({name: 2.0, "time/total_timesteps": 320}, {}, step=320)
    assert path.read_text() == f"'{name},time/total_timesteps\n1.0,160.0\n2.0,320.0\n"
    assert [row[name] for row in ProgressFile.rows_of(path)] == ["1.0", "2.0"]


def test_a_log_of_a_long_run_is_thinned_in_the_same_way_whether_it_was_stopped_or_not(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_MOST_ROWS", 8)

    def write(log, first, last):
        for update in range(first, last + 1):
            log.write({"a": float(update), "time/total_timesteps": 160 * update}, {}, step=160 * update)

    def updates(path):
        return [int(float(line.split(",")[0])) for line in path.read_text().splitlines()[1:]]

    whole, stopped = tmp_path / "whole.csv", tmp_path / "stopped.csv"
    write(ProgressFile(whole, None), 1, 30)
    # At 28 every eighth of those before is kept (7 × 4 updates: 2 · 28 / 8 = 7, so 8), then all.
    assert updates(whole) == [1, 9, 17, 25, 29, 30]
    write(ProgressFile(stopped, None), 1, 21)
    write(ProgressFile(stopped, 160 * 18), 19, 30)
    assert stopped.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("text", ["a\n1\n", "time/total_timesteps\nx\n", 'time/total_timesteps\n"1\n', "\0\n1\n",
                                  "time/total_timesteps\n1,2\n", "time/total_timesteps,a\n1\n"])  # fmt: skip
def test_a_log_that_no_run_wrote_is_named(text, tmp_path):
    (tmp_path / "progress.csv").write_text(text)
    with pytest.raises(RunDirectoryError, match=r"progress\.csv: not the log of a run .* move it away"):
        ProgressFile(tmp_path / "progress.csv", 1000)


def test_a_new_column_is_added_to_every_row(tmp_path):
    file = ProgressFile(tmp_path / "progress.csv", None)
    file.write({"b": 1.5, "time/total_timesteps": 1}, {})
    file.write({"b": 2.5, "a": 0.1, "time/total_timesteps": 2}, {})
    assert file.path.read_text() == "a,b,time/total_timesteps\n,1.5,1.0\n0.1,2.5,2.0\n"


def test_old_checkpoints_are_pruned_and_leftovers_swept(tmp_path):
    run = RunDir(tmp_path)
    for name in ("00000002", "00000004", "00000006", ".00000008.123"):
        (run.checkpoints / name).mkdir(parents=True)
    (tmp_path / ".best.77").mkdir()
    (tmp_path / ".progress.csv.77").write_text("half")
    (tmp_path / ".lock").write_text("")
    assert [place.name for place in run.checkpoint_list()] == ["00000002", "00000004", "00000006"]
    (run.checkpoints / "00000000").write_text("no folder")  # put there by somebody else
    run.prune(2)
    run.sweep()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["00000004", "00000006"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoints"]


def test_several_limits_of_a_config_are_held_at_once(tmp_path):
    limits = "[{alpha: 0.1, limit: -0.02}, {alpha: 0.5, limit: -0.3}]"
    run, _, seen = train_here(tmp_path / "run", f"risk={limits}", "risk.1.limit=-0.003", "ppo.total_steps=640")
    held = load_model(run.checkpoint_list()[-1]).risk
    assert [(each.alpha, each.limit) for each in held] == [(0.1, -0.02), (0.5, -0.003)]
    assert {"risk/multiplier", "risk/multiplier/2"} <= seen[-1].metrics.keys()


def test_the_config_of_a_run_that_an_earlier_version_wrote_is_read(tmp_path):
    run = RunDir.create(tmp_path / "run", load_config(None, TINY))
    run.update_record(sha256={})  # leeward 0.1.0 kept none
    with run.config_file.open("a") as file:
        file.write("further_risks: []\n")  # and wrote this key
    assert run.config() == load_config(None, TINY)
