"""Search instead of a population: Optuna proposes settings inside `tune.space`, and each trial is an ordinary run.

study.journal   what Optuna knows: every trial, its settings, its scores and what became of it
trials/<n>/     the run of a trial
best/           the run of the best trial, with the number of trials in its run.json
"""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import optuna
import torch
from optuna.trial import TrialState

from leeward.config.load import dump_config, written_config
from leeward.config.run import RunConfig
from leeward.config.tune import is_whole
from leeward.durable import exchange, put_back, read_lines, write_atomically
from leeward.errors import ConfigError, RunDirectoryError, TrainingDiverged, UnhealthyTraining, one_line
from leeward.market import Market
from leeward.telemetry.alerts import Alert
from leeward.training.checkpoints import load_model
from leeward.training.run_dir import RunDir, refuse_links
from leeward.training.tasks import Scored, task_of
from leeward.training.trainer import Progress, Session, interruptible, learn, make_model, pick_up, seed_of

__all__ = ["Sweep", "check_folder"]

_STUDY, _TRIALS, _BEST = "study.journal", "trials", "best"
_NEW, _OLD = f".{_BEST}.new", f".{_BEST}.old"  # while one best run takes the place of another
_FIRST = 5  # trials that are never pruned, because there is nothing to compare them with


def check_folder(folder: Path, *, resume: bool) -> None:
    """Whether a sweep may begin in a folder, or go on."""
    found = (folder / _STUDY).exists()
    if found and not resume:
        raise RunDirectoryError(f"{folder}: holds a sweep already; go on with --resume, or choose another --run-dir")
    if resume and not found:
        raise RunDirectoryError(f"{folder}: no sweep here (no {_STUDY}); leave --resume out to begin one")
    if not found and folder.exists() and any(path.name != ".lock" for path in folder.iterdir()):
        raise RunDirectoryError(f"{folder}: holds something else; choose an empty or new --run-dir")
    # Trials are trained below it, and `best` is removed when there is a better one.
    refuse_links((*(folder / name for name in (_STUDY, _TRIALS, _BEST, _NEW, _OLD)), *folder.glob("trials/*")))


class Sweep:
    """One search, in one folder that is locked."""

    def __init__(self, folder: Path, config: RunConfig, market: Market | None, *, resume: bool) -> None:
        if config.tune is None or not config.tune.space:
            raise ConfigError("tune.space: names nothing to search; see docs/population.md for how to write it")
        self.folder, self.config, self.market = folder, config, market
        check_folder(folder, resume=resume)
        folder.mkdir(parents=True, exist_ok=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = _study(folder / _STUDY, _updates(config) // 3)
        begun = self.study.user_attrs.get("config")
        if begun is None:
            self.study.set_user_attr("config", dump_config(config))
        # By what it means: a version with one setting more writes another text.
        elif written_config(str(begun).encode("utf-8", "replace"), where=f"{folder / _STUDY}: config") != config:
            raise ConfigError(
                f"{folder}: was begun with another config; resume it with that, or choose another --run-dir"
            )

    def run(self, trials: int, said: Callable[[str], None]) -> None:
        """Until there are so many trials; one that was cut off goes on from its last checkpoint first."""
        for frozen in self.study.get_trials(states=(TrialState.RUNNING,)):
            self._carry_out(optuna.trial.Trial(self.study, frozen._trial_id), said)
        while (number := len(self.study.trials)) < trials:
            # Keyed by the number of the trial: a sweep that was stopped proposes what it would have proposed.
            self.study.sampler = optuna.samplers.TPESampler(seed=seed_of(self.config.seed, number))
            self._carry_out(self.study.ask(), said)

    def _carry_out(self, trial: optuna.Trial, said: Callable[[str], None]) -> None:
        settings = self._proposed(trial)
        words = ", ".join(f"{key} {value:.4g}" for key, value in settings.items())
        state, value, end = TrialState.COMPLETE, math.nan, ""
        try:
            value = self._score(trial, self.config.with_values(settings))
            if math.isnan(value):  # it never wins, and teaches Optuna nothing
                state, end = TrialState.FAIL, "no score"
        except optuna.TrialPruned:
            state, end = TrialState.PRUNED, "pruned: behind the median of those before it"
        except (TrainingDiverged, UnhealthyTraining) as error:
            state, end = TrialState.FAIL, str(error)
        self.study.tell(trial, value if state is TrialState.COMPLETE else None, state=state)
        said(f"Trial {trial.number}: {end or f'score {value:.4g}'} with {words}")

    def _proposed(self, trial: optuna.Trial) -> dict[str, float]:
        assert self.config.tune is not None
        found: dict[str, float] = {}
        for key, where in self.config.tune.space.items():
            if where.values is not None:
                found[key] = trial.suggest_categorical(key, where.values)
            elif is_whole(key):
                found[key] = trial.suggest_int(key, *where.ends, log=where.log)
            else:
                found[key] = trial.suggest_float(key, *where.ends, log=where.log)
        return found

    def _score(self, trial: optuna.Trial, config: RunConfig) -> float:
        """Train the run of a trial, or go on with it; how its best checkpoint does on validation."""
        run, task = self._run_of(trial.number, config), task_of(config, self.market)
        torch.set_num_threads(min(2, torch.get_num_threads()))  # as in `trainer.train`
        run.sweep()
        task.bind(run)
        checkpoints = run.checkpoint_list()
        if checkpoints:
            model, state = pick_up(checkpoints[-1], task, config)
        else:
            model, state = make_model(config, task.env(config.seed)), {"best": None, "updates": 0}
        session = _Trial(run, config, task, state, _unseen)
        session.trial = trial
        with run.locked(), interruptible(session):
            learn(model, session, go_on=bool(checkpoints), resume_at=model.num_timesteps if checkpoints else None,
                  tell=_in_the_file)  # fmt: skip
        return task.score(load_model(run.best_checkpoint())).value

    def _run_of(self, number: int, config: RunConfig) -> RunDir:
        path = self.folder / _TRIALS / f"{number:04d}"
        if not (path / "config.yaml").is_file():
            return RunDir.create(path, config)
        run = RunDir.open(path)
        if run.config() != config:
            raise RunDirectoryError(
                f"{path}: trained with other settings than {_STUDY} has for trial {number}; restore the journal from a "
                "copy, or move this run away"
            )
        return run

    def write_best(self) -> RunDir | None:
        """`best/`: the run of the best trial, which every other command takes; None where no trial has a score."""
        if not self.study.get_trials(states=(TrialState.COMPLETE,)):
            return None
        best = self.study.best_trial
        # Made elsewhere and renamed: what is called best/ is whole.
        new, target = self.folder / _NEW, self.folder / _BEST
        put_back(target)
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(
            self.folder / _TRIALS / f"{best.number:04d}", new, symlinks=True, ignore=shutil.ignore_patterns(".*")
        )
        opened = RunDir(target).record().get("openings", [])  # who has looked at the test bars has looked
        with RunDir.open(new).edited_record() as record:
            record["openings"] = [*opened, *(each for each in record.get("openings", []) if each not in opened)]
            record["trials"] = len(self.study.trials)
            record["sweep"] = {"trial": best.number, "score": best.value, "settings": best.params}
        exchange(new, target)
        return RunDir.open(target)


def _study(path: Path, warmup: int) -> optuna.Study:
    """The journal of a sweep, without what a process that was killed inside its last line left of it: Optuna would
    write on behind that, and never read the file again."""
    if path.is_file() and not path.read_bytes().endswith(b"\n"):
        write_atomically(path, "".join(f"{json.dumps(entry)}\n" for entry in read_lines(path)))
    elif path.is_file():
        read_lines(path)
    try:
        file = optuna.storages.journal.JournalFileBackend(str(path))
        return optuna.create_study(
            storage=optuna.storages.JournalStorage(file),
            study_name="leeward",
            direction="maximize",
            pruner=optuna.pruners.MedianPruner(n_startup_trials=_FIRST, n_warmup_steps=warmup),
            load_if_exists=True,
        )
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise RunDirectoryError(
            f"{path}: not the journal of a sweep ({type(error).__name__}: {one_line(error)}); restore it from a copy"
        ) from None


class _Trial(Session):
    """Tells Optuna every score, and ends where a trial is pruned."""

    trial: optuna.Trial

    def _validate(self) -> Scored:
        scored = super()._validate()
        told = self.trial.study.trials[self.trial.number].intermediate_values
        if self.updates not in told:  # else it is trained again, after a kill
            self.trial.report(scored.value, self.updates)
        if self.trial.should_prune():
            raise optuna.TrialPruned
        return scored


def _updates(config: RunConfig) -> int:
    return -(-config.ppo.total_steps // (config.ppo.n_envs * config.ppo.n_steps))


def _unseen(progress: Progress) -> None:
    """A trial speaks when it has ended."""


def _in_the_file(alert: Alert) -> None:
    """alerts.jsonl of the trial's run holds it."""
