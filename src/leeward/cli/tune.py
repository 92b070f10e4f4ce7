"""`leeward tune`."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from stable_baselines3.common.logger import Logger

from leeward.cli.backtest import print_verdicts
from leeward.cli.view import say
from leeward.config.load import load_config
from leeward.config.run import RunConfig
from leeward.errors import ConfigError, RunDirectoryError, SettingNotApplied
from leeward.market import prepare
from leeward.report import write_report
from leeward.telemetry.metrics import (
    POPULATION_EXPLOITS,
    POPULATION_SCORE_BEST,
    POPULATION_SCORE_MEDIAN,
    POPULATION_SCORE_WORST,
    TOTAL_TIMESTEPS,
)
from leeward.training.gym_envs import check_gym
from leeward.training.logs import make_logger
from leeward.training.population.best import SCHEDULE, keep_best, write_best
from leeward.training.population.compare import leads
from leeward.training.population.orders import Order, Outcome
from leeward.training.population.population import Mode, Population, check
from leeward.training.run_dir import RunDir, new_folder
from leeward.training.testing import backtest_run

__all__ = ["Search", "tune_command"]

Run = Callable[..., None]  # carries out the orders of a population
_SCORES = {"best": POPULATION_SCORE_BEST, "median": POPULATION_SCORE_MEDIAN, "worst": POPULATION_SCORE_WORST}
_RANDOM = "random"  # where the members of a random search go, beside those of the population


@dataclass(frozen=True)
class Search:
    """What is asked of `leeward tune`."""

    config: Path
    members: int
    run_dir: Path | None
    settings: list[str]
    address: str | None
    resume: bool
    replay: bool
    compare: bool


def tune_command(search: Search) -> None:
    """Train a population (or go on), write its best as an ordinary run, backtest it on validation, and report."""
    from leeward.training.population.places import run_on_ray  # which says what to install

    console, run = Console(), partial(run_on_ray, address=search.address)
    config = load_config(search.config, search.settings)
    mode: Mode = "replay" if search.replay else "population"
    check(config, search.members, mode)
    if config.gym is not None:
        check_gym(config.gym)
    else:
        prepare(config.data)  # a wrong file leaves nothing behind
    folder = search.run_dir or new_folder(Path("runs"), f"{search.config.stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    if not search.resume:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise RunDirectoryError(f"{folder}: no population here; start one without --resume")
    try:
        with RunDir(folder).locked():
            population = _begun_or_resumed(search, folder, config, mode)
            _carry_through(console, population, run)
            trials = population.trials
            if search.compare:
                trials += _compare_random(console, population, run)
            best = write_best(population, trials=trials)
            population.finish()
            if config.gym is None:
                _backtest_and_report(console, best)
    except KeyboardInterrupt:
        say(console, f"Stopped. Go on with the same command and --run-dir {folder} --resume")
        raise SystemExit(130) from None
    _say_what_came_out(console, population, best, trials)
    if population.faults:
        raise SettingNotApplied("\n".join(population.faults))


def _backtest_and_report(console: Console, best: RunDir) -> None:
    say(console, "Backtest of the best on validation and report ...")
    result = backtest_run(best, best.market(), "validation")
    result.write(best.path / "backtest" / "validation")
    write_report(best.path)
    print_verdicts(console, {"validation": result.metrics})


def _begun_or_resumed(search: Search, folder: Path, config: RunConfig, mode: Mode) -> Population:
    if not search.resume:
        return Population.create(folder, config, search.members, mode)
    population = Population.open(folder)
    if (population.config, population.members, population.mode) != (config, search.members, mode):
        raise ConfigError(
            f"{folder}: its population was begun with another config, number of members or --replay; resume it with "
            "those it has, or choose another --run-dir"
        )
    return population


def _carry_through(console: Console, population: Population, run: Run) -> None:
    """All orders, with a line and a row of the log for each comparison."""
    keep_best(population)
    told = [event for event in population.log.events if event["event"] == "comparison"]
    folder, begun_at = population.folder, told[-1]["step"] if told else None
    logger = make_logger(folder / "progress.csv", folder / "tensorboard", begun_at, lambda metrics: None)
    seen = len(told)

    def reported(order: Order, outcome: Outcome) -> None:
        nonlocal seen
        keep_best(population)
        if outcome.ended or outcome.stopped:
            say(console, f"Member {order.member} cannot go on: {outcome.stopped or outcome.ended}")
        events = [event for event in population.log.events if event["event"] == "comparison"]
        for event in events[seen:]:
            _log(logger, event)
            say(console, _line(population, event))
        seen = len(events)

    try:
        if population.pending:
            run(population, reported=reported)
    finally:
        logger.close()


def _log(logger: Logger, event: dict[str, Any]) -> None:
    for metric in (*_SCORES.values(), POPULATION_EXPLOITS):
        if event[metric.name] is not None:
            logger.record(metric.name, event[metric.name])
    logger.record(TOTAL_TIMESTEPS.name, event["step"])
    logger.dump(int(event["step"]))


def _line(population: Population, event: dict[str, Any]) -> str:
    steps = f"{int(event['step']):,} of {population.rounds.steps(len(population.rounds) - 1):,} steps"
    scores = [f"{name} {_score(event[metric.name])}" for name, metric in _SCORES.items()]
    return f"{steps} | score {', '.join(scores)} | {event[POPULATION_EXPLOITS.name]} taken over"


def _score(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _compare_random(console: Console, population: Population, run: Run) -> int:
    """The same members, each with the settings it began with to its end; returns how many."""
    folder = population.folder / _RANDOM
    say(console, "Random search with the same first settings and the same budget ...")
    found = Population.open(folder) if (folder / "population.jsonl").is_file() else Population.create(
        folder, population.config, population.members, "random"
    )  # fmt: skip
    with RunDir(folder).locked():
        _carry_through(console, found, run)
    ours, theirs = population.winner, found.winner
    is_better = ours.standing.value > theirs.standing.value and leads(ours.standing, theirs.standing, margin=1.0)
    population.tell_comparison(theirs, is_better=is_better)
    verdict = "better by a standard error or more" if is_better else "no better"
    say(
        console,
        f"At the same budget: population {ours.standing.value:.4g}, random search {theirs.standing.value:.4g}; the "
        f"population is {verdict}.",
    )
    return found.members


def _say_what_came_out(console: Console, population: Population, best: RunDir, trials: int) -> None:
    found = population.winner
    say(
        console,
        f"Best: score {found.standing.value:.4g}, member {found.member} after {found.step:,} steps; {trials} settings "
        f"were tried.\nRun: {best.path}\nWhat it followed, to replay on other seeds: {best.path / SCHEDULE}",
    )
