"""Exit codes and one clean line: 1 for an error, 2 for usage."""

import builtins
import io
import json

import pytest
from rich.console import Console

from leeward import __version__
from leeward.cli.view import say


def files(folder):
    return sorted(path.name for path in folder.iterdir())


ERRORS = {
    "a config that is not there": (["train", "none.yaml"], "none.yaml: no such config file"),
    "bad YAML": (["train", "bad.yaml"], "bad.yaml: not YAML: "),
    "a list for a config": (
        ["train", "list.yaml"],
        "list.yaml: expected sections such as 'ppo:' and 'data:', got list",
    ),
    "an empty config": (
        ["train", "empty.yaml"],
        "empty.yaml: expected sections such as 'ppo:' and 'data:', the file says",
    ),
    "comments for a config": (
        ["train", "comments.yaml"],
        "the file says nothing; write what differs from the defaults",
    ),
    "a BOM for a config": (["train", "mark.yaml", "--seed", "1"], "or give no config for all of them"),
    "no keys for a config": (
        ["train", "braces.yaml"],
        "braces.yaml: expected sections such as 'ppo:' and 'data:', the ",
    ),
    "bytes for a config": (["train", "bytes.yaml"], "bytes.yaml: not YAML: "),
    "an unknown key": (["train", "key.yaml"], "key.yaml: unknown key 'ppo.clip_rang'; did you mean 'clip_range'?"),
    "an unknown key by --set": (["train", "--set", "ppo.zeal=1"], "unknown key 'ppo.zeal'; known: "),
    "a value out of range": (["train", "--set", "ppo.gamma=2"], "ppo.gamma: Input should be less than or equal to 1, "),
    "--set without =": (["train", "--set", "ppo.gamma"], "--set 'ppo.gamma': expected KEY=VALUE, for example "),
    "--set through a value": (["train", "--set", "seed.x=1"], "seed: expected a whole number, got {'x': 1}"),
    "--set with half a list": (["train", "--set", "policy.net_arch=[8"], "the value is not YAML: "),
    "a file of bars that is not there": (["train", "--data", "none.csv"], "none.csv: no such file"),
    "a sample that is not there": (["train", "--data", "sample:nasdak"], "no sample 'nasdak'; did you mean 'nasdaq'?"),
    "a run that is not there": (["train", "--resume", "none"], "none: no run here (no config.yaml)"),
    "a backtest of no run": (["backtest", "none"], "none: no run here (no config.yaml)"),
    "a report of no run": (["report", "none"], "none: no such run directory"),
    "a run directory that is a file": (["train", "--run-dir", "key.yaml"], "key.yaml: "),
}


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_is_one_line_on_stderr_and_exit_code_1(leeward, tmp_path, case):
    (tmp_path / "bad.yaml").write_text("ppo: [1, 2\n")
    (tmp_path / "list.yaml").write_text("- ppo\n")
    (tmp_path / "empty.yaml").write_text("")
    (tmp_path / "comments.yaml").write_text("# ppo:\n#   gamma: 0.9\n---\n")
    (tmp_path / "mark.yaml").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "braces.yaml").write_text("{}\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00\x81")
    (tmp_path / "key.yaml").write_text("ppo:\n  clip_rang: 0.1\n")
    before = files(tmp_path)
    arguments, message = ERRORS[case]
    result = leeward(*arguments)
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith("error: ") and message in result.err and result.err.count("\n") == 1, result.err
    assert files(tmp_path) == before, "an error leaves nothing behind"


USAGE = {
    "no command of ours": ["trian"],
    "steps below one": ["train", "--steps", "0"],
    "a seed that is no number": ["train", "--seed", "x"],
    "an option of nobody": ["train", "--stepz", "5"],
    "--verify without --resume": ["train", "--verify"],
    "--resume with --from": ["train", "--resume", "runs/a", "--from", "runs/b"],
    "--from with a config": ["train", "demo.yaml", "--from", "runs/a"],
    "--set without --data": ["backtest", "runs/a", "--set", "stamp=close"],
    "--resume with a seed": ["train", "--resume", "runs/a", "--seed", "0"],
    "--resume with a config": ["train", "demo.yaml", "--resume", "runs/a"],
    "--resume with --set": ["train", "--resume", "runs/a", "--set", "seed=1"],
    "--resume with --run-dir": ["train", "--resume", "runs/a", "--run-dir", "runs/b"],
    "--resume with --data": ["train", "--resume", "runs/a", "--data", "sample:nasdaq"],
    "an unknown split": ["backtest", "runs/a", "--split", "tset"],
    "the whole of no other bars": ["backtest", "runs/a", "--split", "whole"],
    "no run": ["backtest"],
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_usage_is_exit_code_2(leeward, case):
    result = leeward(*USAGE[case])
    assert result.code == 2
    assert result.out == "" and "Usage: leeward" in result.err


def test_several_wrong_keys_are_one_line_that_names_each(leeward):
    result = leeward("train", "--set", "ppo.gamma=2", "--set", "sed=1")
    where = "the defaults and the command line"
    assert result.code == 1 and result.err.count("\n") == 1
    assert result.err.startswith(f"error: {where}: ppo.gamma: ") and f" | {where}: unknown key 'sed'" in result.err


def test_of_several_wrong_bars_the_first_is_said_and_where_all_are(leeward, tmp_path):
    # Days 2, 3 and 4, on lines 3 to 5, cost nothing: four prices each, and a line a problem.
    lines = [f"2024-01-{day:02d}" + (",0" if 2 <= day <= 4 else ",10") * 4 for day in range(1, 29)]
    (tmp_path / "my bars.csv").write_text("\n".join(["time,open,high,low,close", *lines]))
    errors = [line for line in leeward("data", "check", "my bars.csv").out.splitlines() if ": error: " in line]
    result = leeward("train", "--data", "my bars.csv")
    assert result.code == 1 and result.err.count("error: ") == 1 == result.err.count("\n")
    assert result.err.startswith("error: my bars.csv row 3: price not positive: ")
    assert result.err.endswith(f" (and {len(errors) - 1} more: leeward data check 'my bars.csv')\n") and len(errors) > 2


def test_a_missing_package_names_the_extra_to_install(leeward, monkeypatch):
    real = builtins.__import__

    def without_plotly(name, *arguments, **keywords):
        if name.startswith("leeward.cli.train"):
            raise ModuleNotFoundError("No module named 'plotly'", name="plotly.offline")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without_plotly)
    result = leeward("train")
    assert (result.code, result.err) == (
        1,
        "error: this command needs the package 'plotly': pip install 'leeward[trading]'\n",
    )


def test_a_path_with_a_colon_or_a_yaml_word_is_only_a_path(leeward, tmp_path):
    """--data is taken as it is, not as YAML."""
    assert "yes: no such file" in leeward("train", "--data", "yes").err
    assert "my: file.csv: no such file" in leeward("train", "--data", "my: file.csv").err


def test_the_version_is_told(leeward):
    assert leeward("--version").out == f"leeward {__version__}\n"


def test_a_damaged_record_of_a_run_is_one_line(leeward, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 0\n")
    (run / "run.json").write_text("{")
    result = leeward("train", "--resume", "run")
    assert result.code == 1 and result.err.startswith("error: run/run.json: not JSON") and result.err.count("\n") == 1
    (run / "run.json").write_text(json.dumps([1]))
    assert "expected a JSON object, got list" in leeward("train", "--resume", "run").err


@pytest.mark.parametrize("arguments", [["report", "~/none"], ["train", "--resume=~/none"], ["verify", "~/none"]])
def test_a_tilde_is_the_home_directory_where_no_shell_says_so(arguments, leeward, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    result = leeward(*arguments)
    assert result.code == 1 and result.err.startswith(f"error: {tmp_path}/home/none: no "), result.err


@pytest.mark.parametrize(
    "arguments",
    [["train", "home.yaml"], ["train", "--set", "data.source=~/none.csv"], ["train", "--set=data.source=~/none.csv"]],
)
def test_a_tilde_in_a_config_is_the_home_directory_too(arguments, leeward, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home.yaml").write_text("data: {source: ~/none.csv}\n")
    result = leeward(*arguments)
    assert result.code == 1 and result.err.startswith(f"error: {tmp_path}/home/none.csv: no such file"), result.err


def test_a_tilde_elsewhere_stays_what_it_is_and_one_of_nobody_is_refused(leeward):
    assert "a~/none: no run here" in leeward("train", "--resume=a~/none").err
    assert "unknown key 'ppo.zeal'" in leeward("train", "--set=ppo.zeal=~").err
    result = leeward("train", "--run-dir=~nobody-of-this-name/x")
    assert result.code == 1 and "~nobody-of-this-name/x: nobody of this name has a home" in result.err
    result = leeward("train", "--set", "data.source=~nobody-of-this-name/x.csv")
    assert result.code == 1 and "~nobody-of-this-name/x.csv: nobody of this name has a home" in result.err


def test_a_tilde_behind_a_dot_is_the_name_of_a_file_here_as_the_message_says(leeward, tmp_path):
    lines = "".join(f"2024-01-{day:02d},10,11,9,10\n" for day in range(1, 29))
    (tmp_path / "~x.csv").write_text(f"time,open,high,low,close\n{lines}")
    assert "nobody of this name has a home directory here; write ./~ " in leeward("data", "check", "~x.csv").err
    result = leeward("data", "check", "./~x.csv")
    assert (result.code, result.err) == (0, "") and "28 bars" in result.out
    (tmp_path / "here.yaml").write_text("data: {source: ./~y.csv}\n")
    for arguments in (["here.yaml"], ["--set", "data.source=./~y.csv"], ["--data", "./~y.csv"]):
        assert leeward("train", *arguments).err.startswith("error: ~y.csv: no such file"), arguments


@pytest.mark.parametrize("path", ["a\nerror: b", "a\rb", "a\n", "a\u2028b"])
def test_a_path_of_several_lines_is_one_line_of_an_error(path, leeward):
    result = leeward("verify", path)
    assert result.code == 1 and len(result.err.splitlines()) == 1 and "holds a line break" in result.err


def test_nothing_in_a_message_steers_the_terminal(leeward):
    result = leeward("verify", "a\x1b[31m\u202eb\udcff")
    assert result.code == 1 and result.err.startswith(r"error: a\x1b[31m\u202eb\udcff: no run here")
    out = io.StringIO()
    say(Console(file=out), "two\nlines, \x1b]8;;http://elsewhere\x07 and [bold]a link[/bold]")
    assert out.getvalue() == "two\nlines, \\x1b]8;;http://elsewhere\\x07 and [bold]a link[/bold]\n"
