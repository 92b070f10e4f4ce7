"""One small model per idea: the dicts of `DistributionalPPO`'s constructor. `config.settings` puts them together."""

from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from leeward.config.base import Frozen
from leeward.errors import ConfigError

__all__ = ["AWR", "VGS", "Adversary", "Entropy", "KLPenalty", "Optimizer", "Risk", "ValueClip"]

ScheduleName = Literal["constant", "linear", "cosine"]
Memory = Annotated[float, Field(ge=0, lt=1)]


class ValueClip(Frozen):
    """Hold value predictions near those of the rollout."""

    mode: Literal["disable", "mean_only", "mean_and_variance", "per_quantile"] = Field(
        "mean_only", description="what is held; see docs/ideas/clipping.md"
    )
    radius: PositiveFloat = Field(0.2, description="how far it may move, in standard deviations of the return")
    max_std_factor: float = Field(2.0, ge=1, description="mean_and_variance: largest growth of the standard deviation")


class Entropy(Frozen):
    """How the entropy bonus and the exploration noise change over training; `ent_coef` is where the bonus starts."""

    end: float | None = Field(None, ge=0, description="coefficient at the end of training; None = it does not decay")
    schedule: ScheduleName = Field("linear", description="shape of the decay")
    floor: float = Field(0.0, ge=0, description="the coefficient never falls below this")
    plateau_updates: PositiveInt | None = Field(
        None, description="start the decay only when entropy has been flat for this many updates; None = at once"
    )
    plateau_slope: PositiveFloat = Field(1e-3, description="what counts as flat, nats per update")
    std_scale_end: PositiveFloat | None = Field(
        None, description="Gaussian actions: factor on the standard deviation at the end of training; None = 1"
    )
    std_scale_schedule: ScheduleName = Field("linear", description="shape of that annealing")

    @model_validator(mode="after")
    def _floor_below_end(self) -> "Entropy":
        if self.end is not None and self.end < self.floor:
            raise ValueError(f"end {self.end} lies below the floor {self.floor}")
        if self.plateau_updates is not None and self.end is None:
            raise ValueError("plateau_updates decides when the decay starts, so it needs an `end` to decay to")
        return self


class KLPenalty(Frozen):
    """β · KL(old ‖ new) in the loss, with β driven towards a target (Schulman et al. 2017, eq. 8)."""

    target: PositiveFloat = Field(0.01, description="nats per update, analytic KL")
    initial: PositiveFloat = Field(1.0, description="β of the first update")
    ceiling: PositiveFloat = Field(100.0, description="β never exceeds this")


class AWR(Frozen):
    """Advantage-weighted regression on the rollout's own actions, beside the clipped surrogate."""

    coef: PositiveFloat = Field(0.1, description="weight of the term in the loss")
    beta: PositiveFloat = Field(1.0, description="temperature, in standard deviations of the advantage")
    max_weight: PositiveFloat = Field(20.0, description="largest weight of a sample")


class Risk(Frozen):
    """CVaR_α(X) ≥ limit, by a multiplier that follows the measured tail; see docs/ideas/risk.md."""

    measure: Literal["step_return", "episode_return"] = Field(
        "step_return", description="X: the return of one step, or their sum over an episode"
    )
    alpha: float = Field(0.05, gt=0, le=1, description="tail mass")
    limit: float | None = Field(None, description="least CVaR allowed, in the unit of X; None: measured only")
    binds: Literal["rollout", "deployed"] = Field(
        "rollout", description="whose tail: the policy as it explores, or the deterministic one"
    )
    deployed_share: float = Field(0.5, gt=0, lt=1, description="binds deployed: share of envs that act without noise")
    controller: Literal["pid", "dual"] = Field("pid", description="how the multiplier follows the gap")
    learning_rate: PositiveFloat = Field(0.1, description="growth of the multiplier per rollout and relative gap")
    proportional: float = Field(3.0, ge=0, description="pid: part of the multiplier that is the gap itself")
    derivative: float = Field(0.0, ge=0, description="pid: reaction to a growing violation")
    ceiling: PositiveFloat = Field(100.0, description="the multiplier never exceeds this")
    warmup: int = Field(0, ge=0, description="updates before the multiplier moves")
    smoothing: float = Field(
        0.5, gt=0, le=1, description="weight of the newest rollout in the tail the multiplier sees; 1: no smoothing"
    )
    margin: float = Field(
        0.5, ge=0, description="standard errors of the measured tail by which the multiplier keeps it inside the limit"
    )
    cvar_weight: float = Field(0.0, ge=0, description="fixed weight of CVaR in the objective, beside any limit")
    gamma: float | None = Field(
        None, ge=0, le=1, description="discount of the cost; None: that of the return, 1 for whole episodes"
    )
    gae_lambda: float | None = Field(
        None, ge=0, le=1, description="λ of the cost's advantage; None: that of the return, 1 for whole episodes"
    )
    std_scale_end: PositiveFloat | None = Field(
        None,
        description="Gaussian actions: `entropy.std_scale_end` where no `entropy` is given; 1: no annealing; None: "
        "0.05, or 0.5 when it binds the deployed policy",
    )
    ent_coef: float = Field(
        0.03,
        ge=0,
        description="discrete actions: weight of the entropy bonus at the start, falling to 0, where "
        "`ent_coef` is 0 and no `entropy` is given; 0: none",
    )
    lr_scale_end: PositiveFloat | None = Field(
        0.3, description="factor on a constant learning rate at the end of training, linear; None: it stays constant"
    )
    clip_scale_end: PositiveFloat | None = Field(
        None,
        description="factor on a constant `clip_range` at the end of training, linear; None: 1, it stays constant, or "
        "0.3 when it binds the deployed policy",
    )

    @property
    def exploration_end(self) -> float:
        """To what share exploration fades. The tail of the policy as it explores holds its noise; that of the deployed
        policy does not, and there the noise that is left is what can still steer."""
        if self.std_scale_end is not None:
            return self.std_scale_end
        return 0.5 if self.binds == "deployed" else 0.05

    @property
    def clip_end(self) -> float:
        """To what share the clip falls. An update moves the policy by its clip times its noise, so one of them has to
        fall, or the last rollouts decide where it ends."""
        if self.clip_scale_end is not None:
            return self.clip_scale_end
        return 0.3 if self.binds == "deployed" else 1.0

    @property
    def is_active(self) -> bool:
        """Whether it changes behaviour, or measures only."""
        return self.limit is not None or self.cvar_weight > 0.0

    def check_log_return(self) -> None:
        """A limit on log-returns lies in [−1, 0]; anything else was meant in another unit."""
        limit = self.limit
        if limit is not None and not -1.0 <= limit <= 0.0:
            meant = -limit if 0.0 < limit <= 1.0 else -abs(limit) / 100.0
            raise ConfigError(
                f"risk.limit is {limit:g}, but the tail of a trading env is a log-return: a fraction between -1 and 0, "
                f"losses negative; did you mean {meant:g} ({100 * meant:g} %)?"
            )


class VGS(Frozen):
    """Scale gradients down while they are mostly noise; see docs/ideas/variance-scaling.md."""

    beta: float = Field(0.99, ge=0, lt=1, description="memory of the averages, per minibatch")
    strength: NonNegativeFloat = Field(0.1, description="factor = 1 / (1 + strength × noise-to-signal)")
    floor: float = Field(0.1, gt=0, le=1, description="the factor never falls below this")
    warmup: NonNegativeInt = Field(100, description="minibatches at the start that are only watched")
    mode: Literal["element", "norm"] = Field("element", description="moments of each element, or of each norm (cheap)")
    aggregate: Literal["p90", "mean", "median"] = Field("p90", description="how tensors' ratios become one")
    per_tensor: bool = Field(False, description="each tensor has a factor of its own, and nothing is aggregated")


PerFeature = tuple[PositiveFloat, ...] | dict[str, tuple[PositiveFloat, ...]]
Features = tuple[bool, ...] | dict[str, tuple[bool, ...]]


class Adversary(Frozen):
    """Train against perturbed observations; see docs/ideas/state-adversary.md."""

    method: Literal["fgsm", "pgd", "sgld"] = Field("pgd", description="how a perturbation is sought")
    norm: Literal["linf", "l2"] = Field("linf", description="ball: each feature by itself, or all of a row together")
    epsilon: PositiveFloat = Field(0.05, description="radius, in units of the observation as the network sees it")
    epsilon_end: PositiveFloat | None = Field(None, description="radius at the end of training; None: it stays")
    epsilon_schedule: ScheduleName = Field("linear", description="shape of that growth")
    steps: PositiveInt = Field(3, description="pgd and sgld: steps of the search")
    step_size: PositiveFloat | None = Field(None, description="length of a step over epsilon; None: 2.5 / steps")
    noise: NonNegativeFloat = Field(0.5, description="sgld: noise beside a gradient of RMS 1, over the step's number")
    warmup: NonNegativeInt = Field(0, description="updates at the start without it")
    kl_weight: PositiveFloat = Field(0.1, description="weight of KL(clean ‖ perturbed) in the policy's loss")
    value_weight: PositiveFloat | None = Field(
        None, description="weight of the critics' shift under attack, relative to vf_coef; None: off"
    )
    keys: tuple[str, ...] | None = Field(
        None, description="Dict observations: the parts that are attacked; None: every Box of floats"
    )
    scale: PerFeature | None = Field(None, description="one factor on epsilon per feature; None: 1 for all")
    mask: Features | None = Field(
        None, description="which features may be perturbed; None: what the env marks as attackable, or all"
    )

    @model_validator(mode="after")
    def _radius_grows_or_stays(self) -> "Adversary":
        if self.epsilon_end is not None and self.epsilon_end < self.epsilon:
            raise ValueError(f"epsilon_end {self.epsilon_end} lies below epsilon {self.epsilon}; the radius only grows")
        if self.epsilon_end is not None and self.epsilon_schedule == "constant":
            raise ValueError("a constant epsilon_schedule has no epsilon_end; leave one of them out")
        return self


_ADAM = {"betas", "eps"}
_UTILITY = {"beta_utility", "sigma", "scaling", "protecting"}
_OPTIMIZERS = {
    "adam": _ADAM | {"weight_decay"},
    "adamw": _ADAM | {"weight_decay"},
    "upgd": _UTILITY | {"weight_decay"},
    "upgdw": _ADAM | _UTILITY | {"weight_decay"},
    "adaptive_upgd": _ADAM | _UTILITY | {"weight_decay"},
}


class Optimizer(Frozen):
    """The optimiser; None leaves a setting at its default. The utility optimisers: docs/ideas/upgd.md."""

    name: Literal["adam", "adamw", "upgd", "upgdw", "adaptive_upgd"] = Field("adam", description="which one")
    betas: tuple[Memory, Memory] | None = Field(None, description="all but upgd: memory of Adam's two moments")
    eps: PositiveFloat | None = Field(None, description="all but upgd: added to the root of the second moment")
    weight_decay: NonNegativeFloat | None = Field(None, description="decoupled but for adam")
    beta_utility: float | None = Field(None, ge=0, lt=1, description="utility optimisers: memory of the utility")
    sigma: NonNegativeFloat | None = Field(
        None, description="noise in units of the gradient (upgd) or as a fraction of the step (upgdw, adaptive_upgd)"
    )
    scaling: Literal["global", "local"] | None = Field(
        None, description="utility optimisers: relative to the largest utility of all weights, or of the tensor"
    )
    protecting: bool | None = Field(None, description="utility optimisers: gate the gradient too, or the noise alone")

    @model_validator(mode="after")
    def _settings_belong_to_it(self) -> "Optimizer":
        foreign = self.settings().keys() - _OPTIMIZERS[self.name]
        if foreign:
            raise ValueError(
                f"{self.name} has no {', '.join(sorted(foreign))}; it takes {', '.join(sorted(_OPTIMIZERS[self.name]))}"
            )
        return self

    def settings(self) -> dict[str, Any]:
        """What was set, as keywords of the optimiser's class."""
        return self.model_dump(exclude={"name"}, exclude_none=True)
