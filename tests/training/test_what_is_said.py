"""What a command tells a person: whether the limit was kept on train and what to do, and what it is busy with."""

import json
import warnings

from leeward.training.run_dir import RunDir

from ..support.tiny_runs import leeward_here, settings


def train(path, limit, *options):
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # the command shows them; in the tests they are errors
        return leeward_here(
            *("train", "--data", "sample:synthetic", "--run-dir", str(path), *options, *settings(f"risk.limit={limit}"))
        )


def test_a_limit_that_was_not_kept_on_train_is_said_once_with_what_to_do(tmp_path):
    code, out, err = train(tmp_path / "run", -1e-4)  # less than the costs of one trade
    assert (code, err) == (0, "")
    (said,) = [line for line in out.splitlines() if "limit -0.0001 is broken by" in line]
    assert said.startswith("warning: risk: ") and "train longer" in said
    assert f"To train longer for the limit: leeward train --resume {tmp_path / 'run'} --steps 3840" in out


def test_a_limit_that_was_kept_needs_no_words_but_a_pipeline_may_read_it(tmp_path):
    code, out, err = train(tmp_path / "run", -0.9, "--json")
    assert code == 0 and "limit -0.9" not in err and "To train longer" not in err
    (found,) = json.loads(out.splitlines()[-1])["limits"]
    assert found["kept"] is True and found["sentence"].startswith("risk: the limit -0.9 is kept: the worst 0.05")
    code, out, _ = leeward_here("train", "--resume", str(tmp_path / "run"), "--quiet")  # it is at its end already
    assert code == 0 and "Report: " in out and "To train longer" not in out
    assert "stays sealed until" in out
    RunDir.open(tmp_path / "run").update_record(openings=[{"split": "test"}])
    assert "stays sealed" not in leeward_here("train", "--resume", str(tmp_path / "run"), "--quiet")[1]


def test_a_backtest_says_in_a_terminal_what_it_is_busy_with(trained, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # as rich knows a terminal
    code, out, err = leeward_here("backtest", str(trained))
    assert (code, err) == (0, "")
    assert "validation: the bootstrap, 0 of 50 draws ..." in out  # the last words stand until the end
