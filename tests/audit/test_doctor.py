"""The small tasks are learned by settings that can learn them, and where they are not, the words name the setting."""

import math
import shutil
from collections import namedtuple
from unittest import mock

import numpy as np
import pytest
from gymnasium import spaces

from leeward.audit.doctor import examination
from leeward.audit.doctor.examination import examine
from leeward.audit.doctor.probes import PROBES, probe_model, run_probe, run_probes
from leeward.audit.doctor.suspects import suspects
from leeward.audit.doctor.tasks import Gamble, Remembering, Seeing, TailTask, Task, Waiting, action_space
from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.config.trading import EnvConfig

from ..support.tiny_runs import TINY, leeward_here

# A network that learns the same in a tenth of the time.
SMALL = ("policy.lstm_hidden_size=16", "policy.net_arch=[16]", "ppo.n_epochs=2", "ppo.learning_rate=0.003")
BOX, CHOICE = spaces.Box(-1.0, 1.0, (1,), np.float32), spaces.Discrete(3)


def config(*settings: str) -> RunConfig:
    return load_config(None, [*SMALL, *settings])


# --- the tasks have the answers that are claimed ----------------------------------------------------------------------


def play(task: Task, act) -> float:
    """The mean return of 200 episodes."""
    totals = []
    for _ in range(200):
        seen, _ = task.reset()
        total, over, memory = 0.0, False, None
        while not over:
            action, memory = act(seen, memory)
            seen, reward, over, _, _ = task.step(action)
            total += reward
        totals.append(total)
    return float(np.mean(totals))


def up(seen, memory):
    return np.array([1.0]), memory


def as_seen(seen, memory):
    return np.array([np.sign(seen[0])]), memory


def as_remembered(seen, memory):
    memory = seen[0] if memory is None else memory
    return np.array([memory]), memory


def undecided(seen, memory):
    return np.array([0.0]), memory


@pytest.mark.parametrize(("kind", "best"), [(Task, up), (Seeing, as_seen), (Waiting, up), (Remembering, as_remembered)])
def test_the_best_policy_scores_one_and_one_that_knows_nothing_zero(kind, best) -> None:
    assert play(kind(BOX, 0), best) == pytest.approx(1.0)
    assert abs(play(kind(BOX, 0), undecided)) < 1e-9


def test_without_memory_the_cue_is_lost() -> None:
    assert abs(play(Remembering(BOX, 0), as_seen)) < 0.25


def test_the_gamble_has_the_tail_that_is_claimed() -> None:
    # alpha 0.05: the worst twentieth are all crashes: 0.2 + 1.5 · 0.1 − 1.5 = −1.15 of a position.
    gamble = Gamble.of(0.05, EnvConfig())
    assert gamble.tail == pytest.approx(-1.15) and gamble.limit == pytest.approx(0.3 * -1.15)
    task = TailTask(BOX, 0, gamble)
    outcomes = np.sort([task.reward(1.0) for _ in range(20_000)])
    assert outcomes[:1000].mean() == pytest.approx(-1.15) and outcomes.mean() == pytest.approx(0.2, abs=0.02)
    assert [gamble.score(place) for place in (0.0, 0.3, 0.45, 1.0)] == pytest.approx([0.0, 1.0, 0.0, 0.0])
    of_three = Gamble.of(0.05, EnvConfig(action="positions"))
    assert [of_three.score(place) for place in (0.0, 0.5, 1.0)] == pytest.approx([0.0, 0.5 / 0.6, 0.0])
    of_two = Gamble.of(0.05, EnvConfig(action="positions", positions=(0.0, 1.0)))
    assert [of_two.score(place) for place in (0.0, 1.0)] == [1.0, 0.0]


def test_actions_are_those_of_the_trading_env() -> None:
    assert action_space(EnvConfig(min_weight=-1.0)) == spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert action_space(EnvConfig(action="positions")) == CHOICE
    assert [Task(CHOICE, 0).place(choice) for choice in range(3)] == [0.0, 0.5, 1.0]


# --- learning ---------------------------------------------------------------------------------------------------------


def test_the_default_settings_learn_every_task() -> None:
    found = list(run_probes(RunConfig()))
    assert [probe.name for probe in found] == [kind.name for kind in PROBES]
    assert all(probe.learned for probe in found), found


def test_positions_without_memory_learn_all_that_needs_none() -> None:
    settings = config("env.action=positions", "policy.name=MlpPolicy")
    for kind in (Task, Seeing, Waiting, TailTask):
        assert run_probe(settings, kind).learned, kind


@pytest.mark.parametrize(
    ("settings", "kind", "words"),
    [
        (("ppo.learning_rate=0",), Task, "ppo.learning_rate is 0"),
        (("ppo.learning_rate=1e-7",), Seeing, "ppo.learning_rate is 1e-07, which hardly moves a weight"),
        (("ppo.gamma=0",), Waiting, "ppo.gamma is 0, so a reward three steps later weighs 0"),
        (("ppo.ent_coef=10",), Seeing, "ppo.ent_coef is 10: being random pays more"),
        (("risk.learning_rate=1e-9", "risk.proportional=0"), TailTask, "risk.learning_rate is 1e-09"),
        (("risk.ceiling=1e-6",), TailTask, "risk.ceiling is 1e-06"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_a_task_that_is_not_learned_names_the_setting(settings, kind, words) -> None:
    probe = run_probe(config(*settings), kind)
    assert not probe.learned and probe.wanted
    assert words in probe.words, probe


def test_a_policy_without_memory_is_told_and_no_fault() -> None:
    probe = run_probe(config("policy.name=MlpPolicy"), Remembering)
    assert (probe.learned, probe.wanted) == (False, False)
    assert "policy.name is MlpPolicy, which has no memory" in probe.words


def test_time_that_is_up_is_told() -> None:
    probe = run_probe(config(), Task, end=-math.inf)
    assert (probe.learned, probe.wanted) == (False, False) and "time was up" in probe.words


@pytest.mark.parametrize(
    ("setting", "task", "words"),
    [
        ("ppo.learning_rate=0.5", "tail", "ppo.learning_rate is 0.5, with which updates overshoot"),
        ("ppo.sequence_length=1", "memory", "ppo.sequence_length is 1"),
        ("policy.lstm_hidden_size=2", "memory", "policy.lstm_hidden_size is 2"),
        ("risk.warmup=99", "tail", "risk.warmup is 99 updates"),
        ("ppo.clip_range=0.001", "one action", "ppo.clip_range is 0.001"),
        ("ppo.max_grad_norm=0.0001", "one action", "ppo.max_grad_norm is 0.0001"),
        ("ppo.target_kl=0.00001", "one action", "ppo.target_kl is 1e-05"),
        ("ppo.vf_coef=0", "one action", "ppo.vf_coef is 0"),
        ("policy.log_std_init=-9", "one action", "policy.log_std_init is -9"),
        ("ppo.adversary={epsilon: 2.0}", "one action", "ppo.adversary bends observations"),
    ],
)
def test_a_setting_far_from_usual_is_suspected(setting: str, task: str, words: str) -> None:
    assert [found for found in suspects(load_config(None, [setting]), task) if words in found]
    assert suspects(RunConfig(), task) == []


# --- the whole examination --------------------------------------------------------------------------------------------

BASE = [setting for setting in TINY if "n_bars" not in setting]
Usage = namedtuple("Usage", "total used free")


def told(folder, *settings: str) -> dict[tuple[str, str], str]:
    """(subject, outcome) -> words, without the small tasks."""
    given = load_config(None, [*BASE, "data.source=sample:synthetic", "data.n_bars=600", *settings])
    found = list(examine(given, folder, seconds=-math.inf))
    return {(each.subject, each.outcome): each.words for each in found if not each.subject.startswith("task")}


def test_machine_data_time_and_disk_are_told(tmp_path) -> None:
    found = told(tmp_path / "runs" / "new")
    assert "torch" in found["versions", "good"] and "ppo.n_jobs 1" in found["threads", "good"]
    assert "600 bars, 1 asset, " in found["data", "good"]
    assert "1,920 steps at" in found["time", "good"] and "5 scores on validation" in found["time", "good"]
    assert f"are free at {tmp_path}" in found["disk", "good"]
    assert "risk.limit is not set" in found["settings", "note"]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("setting", "subject", "outcome", "words"),
    [
        ("ppo.total_steps=300", "settings", "warning", "are 2 updates of 160 steps: too few"),
        ("ppo.batch_size=999", "settings", "warning", "ppo.batch_size 999 is larger than a rollout of 160"),
        ("risk.limit=-0.01", "settings", "warning", "risk.alpha 0.05 of a rollout of 160 steps are 8.0 outcomes"),
        ("risk.limit=-0.9", "data", "note", "may never bind"),
        ("env.episode_bars=9999", "data", "warning", "env.episode_bars 9999 is more than"),
        ("data.source=nowhere.csv", "data", "error", "nowhere.csv"),
    ],
)
def test_what_will_go_wrong_is_told(tmp_path, setting, subject, outcome, words) -> None:
    assert words in told(tmp_path, setting)[subject, outcome]


def test_alerts_of_a_toy_task_are_not_shown(caplog, capsys) -> None:
    model = probe_model(load_config(None, ["policy.name=MlpPolicy"]), PROBES[0])
    model.learn(3 * model.settings.n_steps * model.n_envs)
    assert model.alerts and not caplog.records and capsys.readouterr() == ("", "")


def test_too_many_processes_and_too_small_a_disk_are_told(tmp_path) -> None:
    with mock.patch.object(shutil, "disk_usage", lambda path: Usage(1, 1, 1000)):
        assert "0 MB are free" in told(tmp_path, "ppo.n_jobs=1")["disk", "error"]
    with mock.patch.object(examination.os, "cpu_count", lambda: 1):
        assert "more processes than cores" in told(tmp_path, "ppo.n_jobs=3")["threads", "warning"]


def test_the_exit_code_tells(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(examination, "_PROBES_SECONDS", -math.inf)
    settings = [f"--set={setting}" for setting in (*BASE, "data.source=sample:synthetic", "data.n_bars=600")]
    code, out, err = leeward_here("doctor", *settings)
    assert (code, err) == (0, "") and "Ready to train. 5 warnings to read first." in out
    code, out, err = leeward_here("doctor", *settings, "--set=data.source=nowhere.csv")
    assert (code, err) == (1, "") and "Not yet: what is marked error will go wrong." in out
    code, _, err = leeward_here("doctor", "--set=ppo.gama=1")
    assert code == 1 and err.startswith("error: ") and "gamma" in err
