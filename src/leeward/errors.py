"""Every exception Leeward raises on purpose.

LeewardError
├── ArgumentError (also a ValueError)      a function was called with a value it cannot take
│   └── ShapeError                         a tensor has the wrong shape
├── ConfigError (also a ValueError)        a config file, `--set` or keyword is wrong
├── DataError (also a ValueError)          market data is wrong; names file and row
├── EnvironmentFault                       an env gave something no learner can use; names env and step
├── CheckpointError                        a file is not a checkpoint, is damaged or does not fit
├── MissingExtra (also an ImportError)     an optional dependency is not installed; says which extra to install
├── RunDirectoryError                      a run directory is missing, locked or of another kind
├── SettingNotApplied                      a live model does not have a setting that was asked for; names both values
├── WorkerFault                            a process of a run with n_jobs stopped; names it
└── TrainingDiverged                       training cannot go on
    ├── NonFiniteUpdate                    too many updates in a row had a loss or gradient that is not finite
    └── UnhealthyTraining                  a health rule saw an error, and the settings say to stop

Each message says where, what was expected, what came, and what to do.
"""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ArgumentError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EnvironmentFault",
    "LeewardError",
    "MissingExtra",
    "NonFiniteUpdate",
    "RunDirectoryError",
    "SettingNotApplied",
    "ShapeError",
    "TrainingDiverged",
    "UnhealthyTraining",
    "WorkerFault",
    "did_you_mean",
    "printable",
]


class LeewardError(Exception):
    """Root of every error Leeward raises on purpose."""


class ArgumentError(LeewardError, ValueError):
    """A function was called with a value it cannot take."""


class ShapeError(ArgumentError):
    """A tensor has the wrong shape."""


class ConfigError(LeewardError, ValueError):
    """A config file, `--set` or keyword is wrong."""


class DataError(LeewardError, ValueError):
    """Market data is wrong."""


class EnvironmentFault(LeewardError):
    """An environment gave an observation, reward or action space no learner can use."""


class CheckpointError(LeewardError):
    """A file is not a checkpoint of ours, is damaged, or does not fit the model."""


class MissingExtra(LeewardError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'leeward[{extra}]'")
        self.package, self.extra, self.purpose = package, extra, purpose


class RunDirectoryError(LeewardError):
    """A run directory is missing, locked by another process, or of another kind."""


class SettingNotApplied(LeewardError):
    """What a live model says of a setting is not what was asked for."""


class WorkerFault(LeewardError):
    """A process of a run with n_jobs stopped, so the others cannot go on."""


class TrainingDiverged(LeewardError):
    """Training cannot go on."""


class NonFiniteUpdate(TrainingDiverged):
    """Too many updates in a row had a loss or a gradient that is not finite."""


class UnhealthyTraining(TrainingDiverged):
    """A health rule of severity error fired, and `health.strict` or exhausted rollbacks end training."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suffix for an error message: the nearest known word, or all of them."""
    names = sorted(known)
    near = get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def printable(text: str) -> str:
    """A text of one line with what steers a terminal, turns its direction or hides in it written as an escape."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
