"""Every setting of `DistributionalPPO`, described once: type, range, unit, meaning, and whether it can change while
training goes on.

Derived from here: what the constructor accepts, what a checkpoint stores, the keys of `ppo:` in a config file,
`configs/reference.yaml` and the tables of `docs/from-sb3.md`. Defaults are RecurrentPPO's where it has the argument.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PlainValidator,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

from leeward.config.base import Frozen
from leeward.config.health import Health
from leeward.config.learning import AWR, VGS, Adversary, Entropy, KLPenalty, Risk, ValueClip

__all__ = ["N_TAIL", "LearnerSettings", "Rate", "Schedule", "Settings", "Width", "is_structural", "one_or_several"]

N_TAIL = 8  # levels below alpha of the tail grid; see docs/ideas/quantiles.md
_LARGEST = 1e12  # of any number in a config
_TAIL_ALPHA = 0.05  # the tail that the levels look at when no constraint names one


Schedule = Callable[[float], float]  # of the remaining progress, which runs from 1 to 0


def _number_or_schedule(value: Any, *, positive: bool) -> float | Schedule:
    if callable(value):
        return value  # type: ignore[no-any-return]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if is_number and abs(value) <= _LARGEST else math.nan  # an int may be beyond any float
    if not math.isfinite(number) or number < 0.0 or (positive and number == 0.0):
        least = "a positive number" if positive else "a number of at least 0"
        raise ValueError(f"expected {least}, or in Python a function of the remaining progress, got {value!r}")
    return number


def _normalisation(value: Any) -> bool | str:
    if not isinstance(value, bool) and value not in ("global", "per_env", "none"):
        raise ValueError(f"expected true, false, 'global', 'per_env' or 'none', got {value!r}")
    return value  # type: ignore[no-any-return]


Rate = Annotated[float | Schedule, PlainValidator(partial(_number_or_schedule, positive=False))]
Width = Annotated[float | Schedule, PlainValidator(partial(_number_or_schedule, positive=True))]
_STRUCTURAL: JsonDict = {"structural": True}  # decides what the network or its optimiser is made of


def is_structural(field: FieldInfo) -> bool:
    """Whether a setting is fixed once a model is built."""
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("structural"))


class LearnerSettings(Frozen):
    """The learner's settings, those of `ppo:` in a config file. Names are the constructor's."""

    learning_rate: Rate = Field(3e-4, description="step size of the optimiser; in Python a schedule too")
    critic_learning_rate: Rate | None = Field(
        None,
        description="step size or schedule of what the critics alone use; a shared extractor learns at learning_rate; "
        "None: one rate for all",
    )
    n_steps: PositiveInt = Field(128, le=1_000_000, description="steps of each env per rollout")
    batch_size: PositiveInt | None = Field(
        128, description="real steps per minibatch, as near as whole sequences allow; None: the whole rollout"
    )
    micro_batch_size: PositiveInt | None = Field(
        None, description="real steps per backward pass; gradients add up to those of the minibatch; None: all at once"
    )
    n_epochs: PositiveInt = Field(10, description="passes over each rollout")
    gamma: float = Field(0.99, ge=0, le=1, description="discount per step")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="λ of advantages and value targets")
    clip_range: Width = Field(0.2, description="of the policy's ratio")
    clip_range_vf: Width | None = Field(
        None, description="radius of the value clip, standard deviations of the return; None: value_clip's own"
    )
    normalize_advantage: Annotated[bool | str, PlainValidator(_normalisation)] = Field(
        True, description="once per rollout: global, per_env or none; true is global, false is none"
    )
    ent_coef: NonNegativeFloat = Field(0.0, description="weight of the entropy bonus at the start")
    vf_coef: NonNegativeFloat = Field(0.5, description="weight of the value loss")
    max_grad_norm: PositiveFloat | None = Field(0.5, description="largest gradient norm; None: not clipped")
    use_sde: bool = Field(
        False, description="state-dependent exploration (gSDE) for Box actions", json_schema_extra=_STRUCTURAL
    )
    sde_sample_freq: int = Field(-1, ge=-1, description="gSDE: steps between two draws of its noise; -1: one a rollout")
    target_kl: PositiveFloat | None = Field(
        None, description="nats: an update stops before the step that passes 1.5 × this; None: it does not"
    )
    stats_window_size: PositiveInt = Field(100, le=100_000, description="episodes behind rollout/ep_rew_mean")
    critic: Literal["quantile", "categorical", "scalar"] = Field(
        "quantile",
        description="kind of value distribution; scalar: a plain squared error, for comparison",
        json_schema_extra=_STRUCTURAL,
    )
    n_quantiles: PositiveInt = Field(
        32, le=10_000, description="quantile critics: number of levels", json_schema_extra=_STRUCTURAL
    )
    levels: Literal["tail", "uniform"] = Field(
        "tail",
        description=f"quantile critics: tail puts {N_TAIL} levels below the smallest alpha of the constraints "
        f"({_TAIL_ALPHA} without one), uniform spreads them evenly",
        json_schema_extra=_STRUCTURAL,
    )
    n_atoms: int = Field(
        51, ge=3, le=10_000, description="categorical critics: number of atoms", json_schema_extra=_STRUCTURAL
    )
    kappa: NonNegativeFloat = Field(
        0.0, description="quantile critics: Huber threshold, standard deviations of the return; 0: pinball"
    )
    twin_critics: bool = Field(
        True,
        description="two critics; the smaller mean is the baseline, their mean is the distribution shown",
        json_schema_extra=_STRUCTURAL,
    )
    value_targets: Literal["distributional", "scalar"] = Field(
        "distributional", description="samples of the return, or its λ-return, whose tails are too mild"
    )
    n_target_samples: PositiveInt = Field(32, le=10_000, description="samples of the return per step")
    sequence_length: PositiveInt | None = Field(
        None, description="steps of back-propagation through time; None: 32, or the rollout if that is shorter"
    )
    burn_in: NonNegativeInt = Field(
        0, description="steps that warm the memory up before a sequence and count in no loss"
    )
    refresh_memory: bool = Field(False, description="recompute the stored memories before each epoch but the first")
    max_consecutive_skips: PositiveInt = Field(
        10, description="minibatches in a row whose loss or gradient is not finite, before training stops"
    )
    value_clip: ValueClip | None = Field(None, description="hold value predictions near the rollout's; None: off")
    entropy: Entropy | None = Field(None, description="decay of the entropy bonus and of the noise; None: off")
    kl_penalty: KLPenalty | None = Field(None, description="adaptive KL penalty; None: off")
    awr: AWR | None = Field(None, description="advantage-weighted regression beside the surrogate; None: off")
    vgs: VGS | None = Field(
        None,
        description="scale gradients down while they are mostly noise, see docs/ideas/variance-scaling.md; None: off",
    )
    adversary: Adversary | None = Field(
        None, description="train against perturbed observations, see docs/ideas/state-adversary.md; None: off"
    )
    n_jobs: PositiveInt = Field(
        1,
        description="processes that train one model together, each with a share of the envs; see "
        "docs/several-processes.md",
        json_schema_extra=_STRUCTURAL,
    )

    @property
    def normalisation(self) -> str:
        """The mode that `normalize_advantage` stands for."""
        if isinstance(self.normalize_advantage, bool):
            return "global" if self.normalize_advantage else "none"
        return self.normalize_advantage

    @model_validator(mode="after")
    def _parts_fit(self) -> "LearnerSettings":
        if self.critic == "quantile" and self.levels == "tail" and self.n_quantiles <= N_TAIL:
            raise ValueError(
                f"levels: tail puts {N_TAIL} levels into the tail, so n_quantiles must be above {N_TAIL}, "
                f"got {self.n_quantiles}; or use levels: uniform"
            )
        if self.critic == "categorical" and self.value_clip and self.value_clip.mode not in ("disable", "mean_only"):
            raise ValueError(
                f"value_clip.mode {self.value_clip.mode} does not exist for a categorical critic; use mean_only"
            )
        return self


class Settings(LearnerSettings):
    """All that `DistributionalPPO` takes, but for what is Python's own: the policy's class, env, device, log, seed."""

    action_distribution: Literal["auto", "gaussian", "squashed"] = Field(
        "auto",
        description="Box actions: clipped to their bounds as in SB3, or squashed into them by tanh; auto: gaussian, "
        "and squashed under a constraint",
        json_schema_extra=_STRUCTURAL,
    )
    risk: tuple[Risk, ...] = Field((), description="limits on the tail, one or several; see docs/ideas/risk.md")
    health: Health = Field(
        Health(), description="what a run does about its own health alerts; see docs/reading-a-run.md"
    )

    @field_validator("health", mode="before")
    @classmethod
    def _watched_always(cls, value: Any) -> Any:
        return Health() if value is None else value

    @field_validator("risk", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return one_or_several(value)

    @model_validator(mode="after")
    def _one_process_goes_back(self) -> "Settings":
        if self.health.rollback and self.n_jobs > 1:
            raise ValueError(
                f"health.rollback works with one process, and n_jobs is {self.n_jobs}; set n_jobs to 1, or use "
                "health.strict"
            )
        return self

    @property
    def tail_alpha(self) -> float:
        """The tail that `levels` look at."""
        # A grid with half of its levels below alpha needs an alpha of at most one half.
        return min([0.5, *(each.alpha for each in self.risk)]) if self.risk else _TAIL_ALPHA

    def resolved_action_distribution(self, *, bounded_box: bool) -> str:
        """`auto` is SB3's clipped Gaussian, but squashed under a constraint (docs/ideas/risk.md says why)."""
        if self.action_distribution != "auto":
            return self.action_distribution
        return "squashed" if self.is_constrained and bounded_box and not self.use_sde else "gaussian"

    @property
    def is_constrained(self) -> bool:
        """Whether a constraint changes behaviour, rather than being measured only."""
        return any(each.is_active for each in self.risk)


def one_or_several(value: Any) -> Any:
    """One constraint is a list of one, none an empty list."""
    if value is None:
        return ()
    if not isinstance(value, Mapping | Risk | list | tuple):
        raise ValueError(f"expected keys and values such as limit: -0.02, or a list of them, got {value!r}")
    return (value,) if isinstance(value, Mapping | Risk) else value
