"""What comes out of a population: its best member as an ordinary run, and the schedule it followed."""

import os
import shutil
from pathlib import Path

from leeward.config.load import dump_config
from leeward.config.run import RunConfig
from leeward.durable import write_atomically
from leeward.market import prepare
from leeward.telemetry.metrics import TOTAL_TIMESTEPS
from leeward.training.checkpoints import copy_checkpoint, load_model
from leeward.training.logs import AlertFile, ProgressFile
from leeward.training.population.log import FILE
from leeward.training.population.orders import folder_of, place_of
from leeward.training.population.population import Best, Population
from leeward.training.run_dir import RunDir
from leeward.training.tasks import task_of

__all__ = ["BEST", "SCHEDULE", "keep_best", "schedule_of", "write_best"]

BEST, SCHEDULE = "best", "schedule.yaml"
_KEPT = "kept"


def keep_best(population: Population) -> None:
    """Put the best checkpoint so far where no member prunes it; before the next orders are given out."""
    best = population.best
    if best is None:
        return
    place = _kept(population, best)
    if not place.is_dir():
        copy_checkpoint(population.folder / place_of(best.member, best.updates), place)
    for other in place.parent.iterdir():
        if other != place:
            shutil.rmtree(other)


def _kept(population: Population, best: Best) -> Path:
    return population.folder / _KEPT / f"{best.round:04d}-{best.member:04d}"


def write_best(population: Population, *, trials: int) -> RunDir:
    """`best/`: config, checkpoint, log and alerts of the best, which backtest, report, audit and train go on with.

    `trials` is the number of settings that were tried, for whoever asks how much of a result is luck.
    """
    best, folder = population.winner, population.folder
    target = folder / BEST
    if target.is_dir():  # from before: what was done with it since, and openings of its test split, stay
        run = RunDir.open(target)
        run.update_record(trials=trials)
        write_atomically(target / FILE, (folder / FILE).read_bytes())
        return run
    # Made elsewhere and renamed: what is called best/ is whole.
    new = folder / f".{BEST}.new"
    shutil.rmtree(new, ignore_errors=True)
    lineage = population.lineage(best)
    run = RunDir.create(new, population.config_of(best.member, lineage[-1].requested))
    config = run.config()
    task_of(config, None if config.gym is not None else prepare(config.data)).bind(run)
    kept = _kept(population, best)
    for place in (run.checkpoints / f"{best.updates:08d}", run.best):
        copy_checkpoint(kept, place)
    AlertFile(run.alerts_file, load_model(kept).alerts)
    ProgressFile.of_rows(run.progress_file, [row for order in lineage for row in _rows(folder, order.member)
                                             if order.begins < _steps(row) <= order.steps])  # fmt: skip
    run.update_record(
        trials=trials,
        population={"mode": population.mode, "member": best.member, "step": best.step, "score": best.standing.value},
    )
    write_atomically(new / FILE, (folder / FILE).read_bytes())
    write_atomically(new / SCHEDULE, dump_config(schedule_of(population, best)))
    os.replace(new, target)
    return RunDir.open(target)


def schedule_of(population: Population, best: Best) -> RunConfig:
    """The config of the population with the settings that led to its best, step by step; `leeward tune --replay`."""
    config, turns = population.config, dict[int, dict[str, float]]()
    assert config.tune is not None
    for order in population.lineage(best):
        if not turns or [*turns.values()][-1] != order.requested:
            turns[order.begins] = order.requested
    tune = config.tune.model_copy(update={"schedule": turns})
    return config.with_values(turns[0]).model_copy(update={"tune": tune})


def _rows(folder: Path, member: int) -> list[dict[str, str]]:
    return ProgressFile.rows_of(RunDir(folder / folder_of(member)).progress_file)


def _steps(row: dict[str, str]) -> int:
    return int(float(row[TOTAL_TIMESTEPS.name]))
