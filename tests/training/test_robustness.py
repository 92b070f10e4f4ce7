"""A run against an adversary, by its config; and its score under attack, by the command line."""

import sys
from functools import partial

import pandas as pd
import pytest

from leeward.backtest.robustness import read_curve, robustness_curve
from leeward.cli import main
from leeward.report.data import load_run
from leeward.report.sections import sections_of
from leeward.training import testing

from ..support.tiny_runs import train_here


def test_a_run_trains_against_an_adversary_and_is_scored_under_attack(tmp_path, monkeypatch, capsys):
    # A wide ball: a policy that has hardly learned yet differs by less than float32 can tell on a narrow one.
    wide = ("ppo.adversary.norm=l2", "ppo.adversary.epsilon=5.0")
    settings = ("ppo.adversary.warmup=1", *wide, "ppo.total_steps=640")
    run, _, _ = train_here(tmp_path / "run", *settings)
    log = pd.read_csv(run.progress_file)
    assert log["adversary/epsilon"].tolist() == [0.0, 5.0, 5.0, 5.0]
    assert (log["adversary/robust_kl"][1:] > 0.0).all() and log["adversary/robust_kl"][:1].isna().all()

    monkeypatch.setattr(testing, "robustness_curve", partial(robustness_curve, epsilons=(0.1,), steps=1))  # quick
    monkeypatch.setattr(sys, "argv", ["leeward", "backtest", str(run.path), "--robustness", "--quiet"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code, capsys.readouterr().err
    curve = read_curve(run.path / "backtest" / "validation")
    assert curve is not None and curve.split == "validation" and curve.score == "growth"
    assert set(curve.scores) == {"random", "critic", "mad"} and curve.epsilons == (0.0, 0.1)
    assert "robustness" in [section.key for section in sections_of(load_run(run.path), None)]
