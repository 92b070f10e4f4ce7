"""`leeward sweep`: Optuna proposes, every trial is a run, and a sweep that was stopped goes on as if it had not."""

import os
import re
import signal

import pytest

from leeward.config.load import load_config
from leeward.errors import ConfigError, RunDirectoryError
from leeward.market import prepare
from leeward.training.run_dir import RunDir
from leeward.training.trainer import Interrupted

from ..support.tiny_runs import TINY, leeward_here, settings

pytestmark = pytest.mark.ray  # Optuna is installed where Ray is: make ray

SPACE = "tune.space={ppo.learning_rate: {low: 1.0e-5, high: 1.0e-2, log: true}, ppo.n_epochs: {values: [1, 2]}}"
SHORT = (*TINY, "ppo.total_steps=960", "data.source=sample:synthetic", SPACE)


def _sweep(folder, *, resume=False):
    from leeward.training.sweep import Sweep

    config = load_config(None, SHORT)
    return Sweep(folder, config, prepare(config.data), resume=resume)


def _known(sweep):
    return [(trial.number, trial.state.name, trial.params, trial.values) for trial in sweep.study.trials]


def test_the_best_trial_is_an_ordinary_run_that_knows_how_many_there_were(tmp_path):
    arguments = ["--run-dir", str(tmp_path / "sweep"), "--trials", "2", "--set", "data.source=sample:synthetic"]
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    short = settings("ppo.total_steps=320", SPACE)
    code, _, err = leeward_here("sweep", str(tmp_path / "config.yaml"), *arguments, *short)
    assert code == 0, err
    best = RunDir.open(tmp_path / "sweep" / "best")
    found, known = best.record()["sweep"], _study(tmp_path / "sweep").trials
    assert best.record()["trials"] == 2
    assert found["score"] == max(trial.value for trial in known)
    assert found["settings"] == {
        "ppo.learning_rate": best.config().ppo.learning_rate,
        "ppo.n_epochs": best.config().ppo.n_epochs,
    }
    assert 1e-5 <= found["settings"]["ppo.learning_rate"] <= 1e-2
    assert (best.path / "report.html").is_file()
    code, _, err = leeward_here("backtest", str(best.path), "--quiet")
    assert code == 0, err
    code, _, err = leeward_here("sweep", str(tmp_path / "config.yaml"), *arguments, *short)
    assert code == 1 and "holds a sweep already; go on with --resume" in err


def test_a_sweep_that_goes_on_keeps_the_openings_of_its_best_run(tmp_path):
    sweep = _sweep(tmp_path / "sweep")
    sweep.run(1, lambda line: None)
    best = sweep.write_best()
    first, second = ({"time": time, "split": "test", "data": "d", "earlier": 0} for time in ("monday", "friday"))
    best.update_record(openings=[first])
    RunDir.open(tmp_path / "sweep" / "trials" / "0000").update_record(openings=[first, second])
    assert sweep.write_best().record()["openings"] == [first, second]
    os.replace(best.path, best.path.with_name(".best.old"))  # killed between the two renames
    RunDir.open(tmp_path / "sweep" / "trials" / "0000").update_record(openings=[])
    assert sweep.write_best().record()["openings"] == [first, second]
    assert sorted(path.name for path in best.path.parent.iterdir() if path.is_dir()) == ["best", "trials"]


def test_a_sweep_goes_on_with_its_own_config_alone_also_where_an_earlier_version_wrote_it(tmp_path):
    from leeward.training.sweep import Sweep

    _sweep(tmp_path / "sweep")
    journal = tmp_path / "sweep" / "study.journal"
    text = journal.read_text()
    journal.write_text(re.sub(r"\\n *clip_scale_end: null", "", text))
    assert journal.read_text() != text, "the config has this setting"
    _sweep(tmp_path / "sweep", resume=True)
    other = load_config(None, (*SHORT, "ppo.gamma=0.5"))
    with pytest.raises(ConfigError, match="was begun with another config"):
        Sweep(tmp_path / "sweep", other, prepare(other.data), resume=True)


def test_a_run_of_other_settings_is_not_taken_for_the_run_of_a_trial(tmp_path):
    path = tmp_path / "sweep" / "trials" / "0000"
    sweep = _sweep(tmp_path / "sweep")
    RunDir.create(path, load_config(None, SHORT))
    with pytest.raises(RunDirectoryError, match=r"trials/0000: trained with other settings than study\.journal has"):
        sweep.run(1, lambda line: None)


def _study(folder):
    import optuna

    file = optuna.storages.journal.JournalFileBackend(str(folder / "study.journal"))
    return optuna.load_study(study_name="leeward", storage=optuna.storages.JournalStorage(file))


def test_a_journal_that_ends_inside_a_line_goes_on_and_one_that_is_damaged_is_named(tmp_path):
    sweep = _sweep(tmp_path / "sweep")
    sweep.study.ask()
    journal = tmp_path / "sweep" / "study.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"op_code": 8, "wor')
    for _ in range(2):  # Optuna's own entry of the first opening is whole too
        assert [trial.number for trial in _sweep(tmp_path / "sweep", resume=True).study.trials] == [0]
    for damage in (b"[1]\n", b"[" * 100_000 + b"\n", b'{"op_code": 99}\n', b'{"op_code": 4}\n', b"\xff\n"):
        journal.write_bytes(whole + damage)
        with pytest.raises(RunDirectoryError, match=r"study\.journal.*restore"):
            _sweep(tmp_path / "sweep", resume=True)


def test_a_sweep_from_elsewhere_leads_to_nothing_outside_its_folder(tmp_path):
    _sweep(tmp_path / "sweep")
    (tmp_path / "sweep" / "best").symlink_to(tmp_path)
    with pytest.raises(RunDirectoryError, match="best: a link to"):
        _sweep(tmp_path / "sweep", resume=True)


def test_a_sweep_that_was_stopped_inside_a_trial_ends_as_one_that_was_not(tmp_path, monkeypatch):
    from leeward.training import sweep as module

    whole = _sweep(tmp_path / "whole")
    whole.run(3, lambda line: None)
    stopped, ended = _sweep(tmp_path / "stopped"), []

    def stop(progress):
        if len(ended) == 1 and progress.steps == 480:  # 3 of the 6 updates of the second trial
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(module, "_unseen", stop)
        stopped.run(3, ended.append)
    assert [state for _, state, *_ in _known(stopped)] == ["COMPLETE", "RUNNING"]
    again = _sweep(tmp_path / "stopped", resume=True)
    again.run(3, lambda line: None)
    assert _known(again) == _known(whole)


def test_bad_input_is_refused_before_anything_is_written(tmp_path):
    from leeward.training.sweep import Sweep

    with pytest.raises(ConfigError, match=r"tune.space: names nothing to search"):
        Sweep(tmp_path / "new", load_config(None, TINY), None, resume=False)
    with pytest.raises(RunDirectoryError, match="no sweep here"):
        _sweep(tmp_path / "new", resume=True)
    assert not (tmp_path / "new").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(RunDirectoryError, match="holds something else"):
        _sweep(tmp_path / "other")
