"""Without Ray and Optuna everything works but what needs them, and that says what to install."""

import subprocess
import sys

import pytest

from ..support.tiny_runs import settings

# A finder that comes before all others, so that what is installed is not found either.
BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("ray", "optuna"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""


def _run(code, *arguments, cwd=None):
    command = [sys.executable, "-c", BLOCKED + code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_finder_of_these_tests_hides_what_is_installed():
    for package in ("ray", "optuna"):
        found = _run(f"import {package}.train")
        assert f"No module named '{package}'" in found.stderr


def test_all_other_commands_are_imported_without_them():
    found = _run(
        "import leeward, pkgutil, importlib, leeward.cli\n"
        "names = {module.name for module in pkgutil.iter_modules(leeward.cli.__path__)} - {'sweep', 'tune'}\n"
        "for name in names: importlib.import_module(f'leeward.cli.{name}')\n"
        "print('train' in names)"
    )
    assert (found.stdout, found.stderr) == ("True\n", "")


def test_a_run_is_trained_judged_audited_and_verified_without_them(tmp_path):
    commands = [
        ["train", "--data", "sample:synthetic", "--run-dir", "run", "--quiet", *settings("ppo.total_steps=320")],
        ["backtest", "run", "--split", "train", "--quiet"],
        ["report", "run"],
        ["verify", "run"],
        ["audit", "run"],
        ["explain", "memory_saturated"],
    ]
    for command in commands:
        found = _run("from leeward.cli import main; main()", *command, cwd=tmp_path)
        assert (found.returncode, found.stderr) == (0, ""), command


@pytest.mark.parametrize(
    ("arguments", "package", "extra"),
    [
        (["train", "--workers", "2", "--run-dir", "new"], "ray", "ray"),
        (["tune", "config.yaml", "--members", "2", "--run-dir", "new"], "ray", "ray"),
        (["sweep", "config.yaml", "--run-dir", "new"], "optuna", "sweep"),
    ],
)
def test_a_command_that_needs_them_says_in_one_line_what_to_install(tmp_path, arguments, package, extra):
    (tmp_path / "config.yaml").write_text(
        "tune: {space: {ppo.learning_rate: {low: 1.0e-5, high: 1.0e-2, log: true}}}\n"
    )
    found = _run("from leeward.cli import main; main()", *arguments, cwd=tmp_path)
    assert found.returncode == 1
    assert found.stderr == f"error: this command needs the package '{package}': pip install 'leeward[{extra}]'\n"
    assert not (tmp_path / "new").exists()  # nothing was written before it was said
