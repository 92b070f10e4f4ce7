"""`leeward`: the commands, thin. Exit codes: 0 good, 1 an error in one clean line, 2 usage, 128 + n after signal n."""

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

import leeward
from leeward.durable import at_home
from leeward.errors import LeewardError, MissingExtra, one_line, printable

__all__ = [
    "audit",
    "backtest",
    "bench",
    "data_check",
    "data_fetch",
    "doctor",
    "explain",
    "main",
    "report",
    "sweep",
    "train",
    "tune",
    "verify",
]

_EXTRAS = dict.fromkeys(("pandas", "plotly", "jinja2", "arch"), "trading") | {
    "ray": "ray",
    "optuna": "sweep",
    "ccxt": "exchange",
    "pyarrow": "parquet",
}

_NO_MEMORY = "out of memory; use fewer or shorter rollouts (ppo.n_envs, ppo.n_steps), or a smaller network"
# Torch, oneDNN below it ("could not execute a primitive") and threads have no class of their own for it.
_SAID_WITHOUT_MEMORY = ("allocate memory", "bad_alloc", "start new thread", "a primitive")
_FULL = (
    "the disk that holds it is full, of bytes or of files (`df -h` and `df -i` tell): make room and run the command "
    "again, what was complete is still there"
)
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EROFS: "the disk may only be read; choose a directory on another one",
    errno.EACCES: "you may not write or read it; change its owner or mode, or choose another directory",
    errno.ENOENT: "it is gone, or its directory is; a run that was moved is continued where it is now",
    errno.EMFILE: "too many files are open; close some, or raise `ulimit -n`",
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Check and fetch bars.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"leeward {leeward.__version__}\n")
        raise typer.Exit


@app.callback()
def _leeward(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Trading agents that know their own tail risk."""


Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a config key; may be given often.")
]
Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="YAML; the defaults without one.")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run goes; runs/<config>-<time> without it.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Env steps (ppo.total_steps).")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the run.")] = None,
    data: Annotated[str | None, typer.Option(help="Bars: a file, a directory or sample:NAME (data.source).")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that share the envs (ppo.n_jobs).")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="The same on a Ray cluster, or by Ray on this machine.")
    ] = None,
    address: Annotated[str | None, typer.Option(help="With --workers: the cluster to join, or auto.")] = None,
    settings: Settings = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Continue this run; with --steps to a new total.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="With --resume: replay an update first.")] = False,
    parent: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Begin with that run's best checkpoint and config.")
    ] = None,
    track: Annotated[
        Literal["trackio", "mlflow"] | None, typer.Option(help="Copy metrics and alerts there; local and offline.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the result.")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object per update on stdout.")] = False,
) -> None:
    """Train an agent, choose its checkpoint on validation, backtest it there, and write the report."""
    if workers is not None and jobs is not None:
        raise typer.BadParameter("--workers and --jobs are two ways to start the same processes; give one of them")
    if address is not None and workers is None:
        raise typer.BadParameter("--address goes with --workers")
    given = {"ppo.total_steps": steps, "seed": seed, "data.source": data, "ppo.n_jobs": jobs}
    shortcuts = {key: value for key, value in given.items() if value is not None}
    others = {key: value for key, value in shortcuts.items() if key != "ppo.total_steps"}
    if resume is not None and (config or run_dir or settings or others or parent):
        raise typer.BadParameter(
            "--resume continues a run with its own config; only --steps, --workers, --address, --verify, --track, "
            "--quiet and --json go with it"
        )
    if verify and resume is None:
        raise typer.BadParameter("--verify goes with --resume")
    if parent is not None and config is not None:
        raise typer.BadParameter("--from takes the config of that run; change it with --set")
    if workers is not None:
        shortcuts["ppo.n_jobs"] = workers
    from leeward.cli.train import Start, train_command

    start = Start(config, run_dir, settings or [], shortcuts, resume, parent, workers, address)
    train_command(start, verify=verify, track=track, quiet=quiet, json_lines=json_lines)


@app.command()
def sweep(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML with tune.space: what to search.")],
    trials: Annotated[int, typer.Option(min=1, help="Trials in all.")] = 20,
    run_dir: Annotated[Path | None, typer.Option(help="Where it goes; runs/<config>-<time> without it.")] = None,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the sweep in --run-dir.")] = False,
) -> None:
    """Search for settings with Optuna: every trial is a run, and the best is one that all commands take."""
    if resume and run_dir is None:
        raise typer.BadParameter("--resume goes with --run-dir")
    from leeward.cli.sweep import sweep_command

    sweep_command(config, settings or [], run_dir, trials=trials, resume=resume)


@app.command()
def tune(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="YAML with a section tune.")],
    members: Annotated[int, typer.Option(min=1, help="How many train side by side.")],
    run_dir: Annotated[Path | None, typer.Option(help="Where all goes; runs/<config>-<time> without it.")] = None,
    settings: Settings = None,
    address: Annotated[str | None, typer.Option(help="A Ray cluster, or auto; without it this machine.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the population in --run-dir.")] = False,
    replay: Annotated[bool, typer.Option("--replay", help="Follow tune.schedule on fresh seeds.")] = False,
    compare: Annotated[
        Literal["random"] | None, typer.Option(help="What random search finds at the same budget.", show_choices=True)
    ] = None,
) -> None:
    """Train a population on Ray: the worst members take over from the best, and settings move with them."""
    if resume and run_dir is None:
        raise typer.BadParameter("--resume goes with --run-dir, where the population is")
    if replay and compare is not None:
        raise typer.BadParameter("--replay searches nothing, so there is nothing to compare")
    from leeward.cli.tune import Search, tune_command

    tune_command(Search(config, members, run_dir, settings or [], address, resume, replay, compare=compare is not None))


@app.command()
def backtest(
    run: Run,
    split: Annotated[
        Literal["train", "validation", "test", "whole"] | None,
        typer.Option(help="Without it: validation, or the whole of --data. test opens the seal.", show_choices=True),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Other bars, scaled as in training.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="How to read --data: a key of data.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Write the files, print nothing.")] = False,
    robustness: Annotated[bool, typer.Option("--robustness", help="Under attack too; shown in the report.")] = False,
) -> None:
    """Run the trained agent over a split, beside its baselines, and write metrics, series and trades."""
    if split == "whole" and data is None:
        raise typer.BadParameter("--split whole goes with --data")
    if settings and data is None:
        raise typer.BadParameter("--set goes with --data: the run's own bars are read as its config says")
    from leeward.cli.backtest import backtest_command

    chosen = split or ("whole" if data else "validation")
    backtest_command(run, chosen, data, settings or [], quiet=quiet, robustness=robustness)


@app.command()
def report(
    run: Run,
    control: Annotated[Path | None, typer.Option(help="The run on the control market, shown beside it.")] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; RUN/report.html without it.")] = None,
) -> None:
    """Write one self-contained HTML file, and print the verdicts."""
    from leeward.cli.backtest import report_command

    report_command(run, control, out)


@app.command()
def verify(run: Run) -> None:
    """Say which files of a run are as they were written, one line each; exit code 1 when one is damaged."""
    from leeward.cli.verify import verify_command

    verify_command(run)


@app.command()
def explain(
    alert: Annotated[
        str | None, typer.Argument(metavar="ALERT", help="The name of an alert; without it all are listed.")
    ] = None,
) -> None:
    """Say what a health alert means, why it may fire, how to check it, and what to do."""
    from leeward.telemetry.pages import explanation

    sys.stdout.write(explanation(alert))


@app.command()
def audit(
    run: Run,
    json_object: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say what is wrong with a run, the worst first, and write audit.md and audit.json; exit code 1 when critical."""
    from leeward.cli.audit import audit_command

    audit_command(run, json_object=json_object)


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="YAML; the defaults without one.")] = None,
    settings: Settings = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run would go; runs/ without it.")] = None,
) -> None:
    """Before a long run: will it go well here? Small tasks with known answers, the machine, the data, and how long."""
    from leeward.cli.doctor import doctor_command

    doctor_command(config, settings or [], run_dir)


@app.command()
def bench(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="YAML; the defaults without one.")] = None,
    settings: Settings = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="No other shape is begun after so many seconds.")] = 25.0,
) -> None:
    """How fast training is here, where its time goes, and which numbers of envs and threads are the fastest."""
    from leeward.cli.bench import bench_command

    bench_command(config, settings or [], seconds)


@data_app.command("check")
def data_check(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A file, a directory or sample:NAME.")],
    settings: Settings = None,
    json_object: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Say what these bars are, how they would be split, and what is wrong with them, one line per problem."""
    from leeward.cli.data import check_command

    check_command(source, settings or [], json_object=json_object)


@data_app.command("fetch")
def data_fetch(
    exchange: Annotated[str, typer.Argument(help="A ccxt exchange, for example binance.")],
    symbol: Annotated[str, typer.Argument(help="For example BTC/USDT.")],
    timeframe: Annotated[str, typer.Argument(help="For example 4h.")],
    since: Annotated[str, typer.Option(help="First day, YYYY-MM-DD (UTC).")],
    out: Annotated[Path | None, typer.Option(help="CSV to write or continue.")] = None,
) -> None:
    """Download bars from an exchange into a CSV; run again to continue it."""
    from leeward.cli.data import fetch_command

    fetch_command(exchange, symbol, timeframe, since, out)


def main() -> None:
    """Run the command line; errors of ours are one line on stderr and exit code 1."""
    if any(len(f"{argument}.".splitlines()) > 1 for argument in sys.argv[1:]):
        _fail("an argument holds a line break, so that no message could be one line; rename the path, or use a config")
    try:
        app([_at_home(argument) for argument in sys.argv[1:]], prog_name="leeward")
    except LeewardError as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a directory that may not be written, a file where a directory should be
        _fail(_words(error))
    except MemoryError:
        _fail(_NO_MEMORY)
    except RuntimeError as error:
        if not any(words in str(error) for words in _SAID_WITHOUT_MEMORY):
            raise
        _fail(f"{_NO_MEMORY} ({one_line(error)})")
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in _EXTRAS:
            raise
        _fail(str(MissingExtra(package, _EXTRAS[package], "this command")))


def _at_home(argument: str) -> str:
    """`~` is the home directory in `--option=~/x` as well, where no shell puts it in."""
    option, equals, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
    return f"{option}{equals}{at_home(value)}" if value.startswith("~") else argument


def _words(error: OSError) -> str:
    if not error.filename:
        return str(error)
    advice = _ADVICE.get(error.errno or 0)
    name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else error.filename
    return f"{name}: {error.strerror}" + (f"; {advice}" if advice else "")


def _fail(message: str) -> NoReturn:
    """One failure is one line, however many parts its message has."""
    sys.stderr.write(f"error: {' | '.join(printable(line) for line in message.splitlines())}\n")
    raise SystemExit(1)
