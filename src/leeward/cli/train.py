"""`leeward train`."""

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from leeward.algorithm.risk_constraint import LimitVerdict
from leeward.backtest import Metrics
from leeward.backtest.baselines import buy_and_hold
from leeward.backtest.strategies import AGENT
from leeward.backtest.wording import percent, share
from leeward.cli.backtest import print_problems, print_verdicts
from leeward.cli.view import JsonLines, LiveView, PlainLines, Silent, View, say
from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.errors import ArgumentError, ConfigError, DataError
from leeward.market import Market, load, prepare
from leeward.report import write_report
from leeward.training.checkpoints import newest_whole, read_steps, read_trainer_state
from leeward.training.gym_envs import check_gym
from leeward.training.mirrors import require
from leeward.training.run_dir import RunDir, new_folder
from leeward.training.tasks import EPISODES, task_of
from leeward.training.testing import backtest_run
from leeward.training.trainer import EndedAtOnce, Interrupted, Progress, replay_one_update, train

__all__ = ["Start", "train_command"]


@dataclass(frozen=True)
class Start:
    """Where a training begins: a config, a run to go on with, or a run whose checkpoint is the beginning."""

    config: Path | None
    run_dir: Path | None
    settings: list[str]
    shortcuts: dict[str, Any]
    resume: Path | None
    parent: Path | None
    workers: int | None = None  # of a Ray cluster
    address: str | None = None  # of the cluster; None: this machine


def train_command(
    start: Start, *, verify: bool = False, track: str | None = None, quiet: bool, json_lines: bool
) -> None:
    """Train (or go on), backtest on validation, report. A signal that asks for an end gives the exit code 128 + its own
    number, with the run saved."""
    if track is not None:
        require(track)
    console = Console(stderr=json_lines)
    trained = train if start.workers is None else _by_workers(start.workers, start.address)
    parent = None if start.parent is None else RunDir.open(start.parent)
    run, market = _resumed(start) if start.resume is not None else _begun(start, parent)
    with run.locked():
        if verify:
            say(console, replay_one_update(run, market, lambda line: say(console, line)))
        if start.resume is not None and (total := start.shortcuts.get("ppo.total_steps")) is not None:
            # After the replay: over another total schedules are at another point.
            reached, _ = newest_whole(run.checkpoint_list(), read_steps)  # training names what is passed over
            run.extend(total, reached or 0)
        if market is not None:
            print_problems(console, market.bars)
            if not quiet:
                say(console, _tail_on_train(market, run.config()))
        try:
            with _view(console, quiet=quiet, json_lines=json_lines) as view, _warnings_in_words(console):
                limits = trained(
                    run,
                    market,
                    view.update,
                    resume=start.resume is not None,
                    parent=parent,
                    notice=lambda line: say(console, line),
                    tell=view.alert,
                    track=track,
                )
        except Interrupted as end:
            say(console, f"Stopped after a whole update. Continue with: leeward train --resume {run.path}")
            raise SystemExit(128 + end.number) from None
        except EndedAtOnce as end:
            say(console, f"Stopped at once. Continue from the last checkpoint: leeward train --resume {run.path}")
            raise SystemExit(128 + end.number) from None
        if market is None:
            _say_score(console, run, limits, json_lines=json_lines)
            return
        if not quiet:
            say(console, "Backtest on validation and report ...")
        with console.status("") as status:
            result = backtest_run(run, market, "validation", lambda text: status.update(f"validation: {text} ..."))
        result.write(run.path / "backtest" / "validation")
        report = write_report(run.path)
    if json_lines:
        JsonLines.write(_result(run, report, result.metrics, limits))
        return
    print_verdicts(console, {"validation": result.metrics})
    if not all(limit.kept for limit in limits):
        longer = 2 * run.config().ppo.total_steps
        say(console, f"To train longer for the limit: leeward train --resume {run.path} --steps {longer}")
    say(console, f"Run: {run.path}\nReport: {report}")
    if not run.record().get("openings"):
        say(console, f"The test split stays sealed until: leeward backtest {run.path} --split test")


def _by_workers(workers: int, address: str | None) -> Callable[..., list[LimitVerdict]]:
    """`train` on a Ray cluster; said to be missing, where it is, before anything is written."""
    from leeward.training.distributed.workers import train_with_workers

    def trained(
        run: RunDir, market: Market | None, show: Callable[[Progress], None], **options: Any
    ) -> list[LimitVerdict]:
        if run.config().ppo.n_jobs != workers:
            raise ArgumentError(
                f"{run.path}: has {run.config().ppo.n_jobs} processes (ppo.n_jobs); go on with --workers "
                f"{run.config().ppo.n_jobs}, or without it on this machine: another number is another run"
            )
        task_of(run.config(), market).bind(run)  # the workers read what is bound
        return train_with_workers(run, workers, address, show, **options)

    return trained


def _say_score(console: Console, run: RunDir, limits: list[LimitVerdict], *, json_lines: bool) -> None:
    """What came of a run without a market: the score of its best checkpoint."""
    best = read_trainer_state(run.best_checkpoint())["best"]
    if json_lines:
        score = {"run": str(run.path), "best": best, "limits": [asdict(limit) for limit in limits]}
        JsonLines.write(score)
        return
    say(
        console,
        f"Best: {best['score']['mean_return']:g}, the mean return of {EPISODES} deterministic episodes, after "
        f"{best['steps']:,} steps. There is no market, so no backtest and no report.\nRun: {run.path}",
    )


def _resumed(start: Start) -> tuple[RunDir, Market | None]:
    assert start.resume is not None
    run = RunDir.open(start.resume)
    return run, None if run.config().gym is not None else run.market()


def _begun(start: Start, parent: RunDir | None) -> tuple[RunDir, Market | None]:
    """A new run. Its bars are read before the directory is made: a wrong file leaves nothing behind."""
    config = load_config(start.config if parent is None else parent.config_file, start.settings, start.shortcuts)
    if config.gym is not None:
        if parent is not None:
            raise ConfigError("--from goes on from a run on a market; an env of Gymnasium is trained from the start")
        check_gym(config.gym)
        market = None
    elif parent is None:
        market = prepare(config.data)
    else:
        parent.best_checkpoint()
        bars = parent.trained_on().fitted(load(config.data.source, config.data))
        market = prepare(config.data, bars=bars, scaler=parent.checked_scaler())
        if "train" not in market.splits:
            raise DataError(f"{bars.source}: {len(bars)} bars are too few to split for training")
    stem = start.config.stem if start.config is not None else "run"
    folder = start.run_dir or new_folder(Path("runs"), f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    run = RunDir.create(folder, config)
    if parent is not None:
        run.inherit(parent)
    return run, market


@contextmanager
def _warnings_in_words(console: Console) -> Iterator[None]:
    """What the learner warns of is one line like the others, without the file and the line of code it came from."""

    def show(message: Warning | str, *where: Any, **how: Any) -> None:
        say(console, f"warning: {message}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _view(console: Console, *, quiet: bool, json_lines: bool) -> View:
    if json_lines:
        return JsonLines()
    if quiet:
        return Silent()
    return LiveView(console) if console.is_terminal else PlainLines(console)


def _tail_on_train(market: Market, config: RunConfig) -> str:
    """What a limit could be measured by."""
    alpha = config.risk[0].alpha
    tail = buy_and_hold(market, config.env, split="train").performance(alpha).cvar
    limit = config.risk[0].limit
    against = "no limit is set (risk.limit)" if limit is None else f"the limit is {percent(limit, signed=True)}"
    return (
        f"Tail on train: the worst {share(alpha)} of bars average {percent(tail, signed=True)} for buy and hold, "
        f"{percent(0.0, signed=True)} in cash; {against}."
    )


def _result(run: RunDir, report: Path, metrics: Metrics, limits: list[LimitVerdict]) -> dict[str, Any]:
    return {
        "run": str(run.path),
        "report": str(report),
        "validation": metrics.strategies[AGENT].performance,
        "limits": [asdict(limit) for limit in limits],
    }
