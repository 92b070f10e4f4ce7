"""The config of a whole run: data, environment, learner, checkpoints. `configs/reference.yaml` shows every key."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    PositiveInt,
    SerializerFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from leeward.config.base import Frozen
from leeward.config.health import Health
from leeward.config.learning import Optimizer, Risk
from leeward.config.settings import LearnerSettings, one_or_several
from leeward.config.trading import DataConfig, EnvConfig
from leeward.config.tune import GymConfig, TuneConfig, put

__all__ = ["BacktestConfig", "CheckpointConfig", "PPOConfig", "PolicyConfig", "RunConfig", "ValidationConfig"]


Layer = Annotated[int, Field(gt=0, le=65_536)]


class PolicyConfig(Frozen):
    """The network."""

    name: Literal["MlpPolicy", "MlpLstmPolicy"] = Field("MlpLstmPolicy", description="without or with memory")
    cell: Literal["lstm", "gru"] = Field(
        "lstm", description="kind of memory; None as a policy argument is the policy's own, an LSTM or none"
    )
    lstm_hidden_size: PositiveInt = Field(64, le=65_536, description="width of the memory")
    n_lstm_layers: PositiveInt = Field(1, le=64, description="layers of the memory")
    shared_lstm: bool = Field(False, description="the critics read the actor's memory; needs enable_critic_lstm: false")
    enable_critic_lstm: bool = Field(True, description="the critics have a memory of their own")
    net_arch: tuple[Layer, ...] = Field((64, 64), max_length=64, description="widths of the MLPs of actor and critics")
    share_features_extractor: bool = Field(True, description="actor and critics read one extractor")
    ortho_init: bool = Field(True, description="orthogonal initialisation, as in Stable-Baselines3")
    normalize_observations: bool = Field(
        False, description="a normaliser inside the policy and its checkpoint, frozen during a rollout and its update"
    )
    action_distribution: Literal["auto", "gaussian", "squashed"] = Field(
        "squashed", description="for weights: squashed into the bounds, or clipped to them as Stable-Baselines3 does"
    )
    log_std_init: float = Field(0.0, ge=-20, le=10, description="for weights: ln of the first standard deviation")
    full_std: bool = Field(True, description="gSDE: one standard deviation per feature and action, or per feature")
    use_expln: bool = Field(False, description="gSDE: standard deviations grow slowly above 1")
    squash_output: bool = Field(False, description="gSDE: through tanh")

    def keywords(self) -> dict[str, Any]:
        """The policy's own arguments, as `policy_kwargs` has them."""
        left_out = {"name", "action_distribution"} | (set() if self.name == "MlpLstmPolicy" else {"cell"})
        return self.model_dump(exclude=left_out) | {"net_arch": list(self.net_arch)}


# What suits bars, where it is not what suits Stable-Baselines3's tasks.
_FOR_TRADING = {
    "batch_size": 1024,
    "n_epochs": 4,
    "learning_rate": 1e-3,
    "gamma": 0.9,
    "normalize_advantage": "global",
}


class PPOConfig(LearnerSettings):
    """The learner; names are those of `DistributionalPPO`."""

    total_steps: PositiveInt = Field(500_000, description="env steps of the whole run")
    n_envs: PositiveInt = Field(64, le=65_536, description="envs stepped together")
    learning_rate_schedule: Literal["constant", "linear"] = Field("linear", description="linear: to 0 at the end")
    optimizer: Optimizer = Optimizer()

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, values: Any) -> Any:
        return _FOR_TRADING | values if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _envs_for_every_process(self) -> "PPOConfig":
        if self.n_jobs > self.n_envs:
            raise ValueError(f"n_jobs {self.n_jobs} processes share n_envs {self.n_envs}; each needs at least one env")
        return self

    def keywords(self) -> dict[str, Any]:
        """The constructor's own arguments, without those that are shaped by the schedule of the learning rate."""
        own = LearnerSettings.model_fields.keys() - {"learning_rate", "critic_learning_rate"}
        return {name: getattr(self, name) for name in LearnerSettings.model_fields if name in own}


class ValidationConfig(Frozen):
    """How the checkpoint that is backtested is chosen: by its score on the validation split."""

    every_updates: PositiveInt | None = Field(
        None, description="updates between two scores; None: 10, and fewer where a run would have less than ten scores"
    )
    score: Literal["growth", "sharpe"] = Field("growth", description="log-growth a year, or the Sharpe ratio")

    def turn(self, updates: int) -> int:
        """Updates between two scores of a run that has so many."""
        return self.every_updates or max(1, min(10, updates // 10))


class CheckpointConfig(Frozen):
    """Checkpoints to resume from. The best on validation is kept beside them."""

    every_updates: PositiveInt = Field(10, description="updates between two checkpoints")
    keep_last: PositiveInt = Field(2, description="how many are kept")


class BacktestConfig(Frozen):
    """The evidence."""

    n_draws: PositiveInt = Field(2000, le=1_000_000, description="draws of the block bootstrap")
    n_offsets: PositiveInt = Field(1000, le=1_000_000, description="shifts of the timing null")


_MARKET = ("data", "env")  # what `gym` replaces


class RunConfig(Frozen):
    """Everything a run depends on, apart from versions and hardware."""

    seed: int = Field(0, ge=0, lt=2**32, description="of the network, the noise, the minibatches and the episodes")
    data: DataConfig = DataConfig()
    env: EnvConfig = EnvConfig()
    gym: GymConfig | None = Field(None, description="an env of Gymnasium instead of `data` and `env`; None: a market")
    policy: PolicyConfig = PolicyConfig()
    ppo: PPOConfig = PPOConfig()
    risk: tuple[Risk, ...] = Field(
        (Risk(),), min_length=1, description="one limit, or a list of them held at once; reports judge the first"
    )
    health: Health = Health()
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    backtest: BacktestConfig = BacktestConfig()
    tune: TuneConfig | None = Field(
        None, description="what a population searches; see docs/population.md; None: nothing"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_kind_of_env(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("gym") is not None:
            given = [name for name in _MARKET if name in values]
            if given:
                raise ValueError(f"gym: an env of Gymnasium replaces {' and '.join(given)}; leave one of them out")
        return values

    @model_validator(mode="after")
    def _limit_is_a_log_return(self) -> "RunConfig":
        for each in self.risk if self.gym is None else ():
            each.check_log_return()
        return self

    @model_validator(mode="after")
    def _scores_are_of_a_market(self) -> "RunConfig":
        score = None if self.tune is None else self.tune.score
        if self.gym is not None and (score is not None or self.validation.score != "growth"):
            raise ValueError(
                "an env of Gymnasium has one score, the mean return of its episodes; leave tune.score and "
                "validation.score out"
            )
        if score == "growth_within_limit" and self.risk[0].limit is None:
            raise ValueError("tune.score: growth_within_limit needs a limit, and risk.limit is None")
        return self

    @model_validator(mode="after")
    def _what_is_searched_is_allowed(self) -> "RunConfig":
        for key, dimension in self.tune.space.items() if self.tune is not None else ():
            for value in dimension.ends:
                self._part_with(key, value, where=f"tune.space: {key}")
        for step, settings in self.tune.schedule.items() if self.tune is not None else ():
            for key, value in settings.items():
                self._part_with(key, value, where=f"tune.schedule: {step}: {key}")
        return self

    def with_values(self, values: Mapping[str, Any]) -> "RunConfig":
        """This config with some settings changed, by their keys of a config: ppo.learning_rate, risk.proportional."""
        changed = self
        for key, value in values.items():
            changed = changed.model_copy(update=changed._part_with(key, value, where=key))
        return changed

    def _part_with(self, key: str, value: Any, *, where: str) -> dict[str, Any]:
        section, *path = key.split(".")
        if section == "risk" and not path[0].isdecimal():
            path = ["0", *path]  # as a config with one limit has it
        return {section: put(getattr(self, section), path, value, where=where)}

    @model_serializer(mode="wrap")
    def _written_without_what_is_replaced(self, handler: SerializerFunctionWrapHandler) -> Any:
        written = handler(self)
        return {name: part for name, part in written.items() if self.gym is None or name not in _MARKET}

    @field_validator("risk", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return one_or_several(value)

    @field_serializer("risk")
    def _written_as_read(self, risk: tuple[Risk, ...]) -> Any:
        return risk[0] if len(risk) == 1 else list(risk)
