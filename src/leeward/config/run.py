"""The config of a whole run: data, environment, learner, checkpoints. `configs/reference.yaml` shows every key."""

from typing import Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from leeward.config.base import Frozen
from leeward.config.learning import AWR, VGS, Adversary, Entropy, KLPenalty, Optimizer, Risk, ValueClip
from leeward.config.trading import DataConfig, EnvConfig

__all__ = ["BacktestConfig", "CheckpointConfig", "PPOConfig", "PolicyConfig", "RunConfig", "ValidationConfig"]

_N_TAIL = 8  # levels below alpha of the tail grid; see docs/ideas/quantiles.md


class PolicyConfig(Frozen):
    """The network."""

    name: Literal["MlpPolicy", "MlpLstmPolicy"] = Field("MlpLstmPolicy", description="without or with memory")
    cell: Literal["lstm", "gru"] = Field("lstm", description="kind of memory")
    lstm_hidden_size: PositiveInt = Field(64, description="width of the memory")
    net_arch: tuple[PositiveInt, ...] = Field((64, 64), description="widths of the MLPs of actor and critics")
    action_distribution: Literal["auto", "gaussian", "squashed"] = Field(
        "squashed", description="for weights: squashed into the bounds, or clipped to them as Stable-Baselines3 does"
    )
    log_std_init: float = Field(0.0, description="for weights: ln of the first standard deviation")


class PPOConfig(Frozen):
    """The learner; names are those of `DistributionalPPO`."""

    total_steps: PositiveInt = Field(500_000, description="env steps of the whole run")
    n_envs: PositiveInt = Field(64, description="envs stepped together")
    n_steps: PositiveInt = Field(128, description="steps of each env per rollout")
    n_jobs: PositiveInt = Field(1, description="processes that share the envs; see docs/several-processes.md")
    batch_size: PositiveInt | None = Field(1024, description="real steps per minibatch; None: the whole rollout")
    n_epochs: PositiveInt = Field(4, description="passes over each rollout")
    learning_rate: PositiveFloat = Field(1e-3, description="of the first update")
    learning_rate_schedule: Literal["constant", "linear"] = Field("linear", description="linear: to 0 at the end")
    critic_learning_rate: PositiveFloat | None = Field(
        None, description="of what the critics alone use, on the same schedule; None: the same rate"
    )
    optimizer: Optimizer = Optimizer()
    gamma: float = Field(0.9, ge=0, le=1, description="discount per bar")
    gae_lambda: float = Field(0.95, ge=0, le=1, description="λ of advantages and value targets")
    clip_range: PositiveFloat = Field(0.2, description="of the policy's ratio")
    normalize_advantage: Literal["global", "per_env", "none"] = Field("global", description="once per rollout")
    ent_coef: NonNegativeFloat = Field(0.0, description="weight of the entropy bonus at the start")
    vf_coef: NonNegativeFloat = Field(0.5, description="weight of the value loss")
    max_grad_norm: PositiveFloat | None = Field(0.5, description="None: gradients are not clipped")
    target_kl: PositiveFloat | None = Field(None, description="nats; None: no KL stop")
    critic: Literal["quantile", "categorical", "scalar"] = Field("quantile", description="kind of value distribution")
    n_quantiles: PositiveInt = Field(32, description="quantile critics: number of levels")
    levels: Literal["tail", "uniform"] = Field("tail", description="quantile critics: where the levels stand")
    n_atoms: PositiveInt = Field(51, description="categorical critics: number of atoms")
    kappa: NonNegativeFloat = Field(0.0, description="Huber threshold in units of the return scale; 0: pinball")
    twin_critics: bool = Field(True, description="two critics; the smaller mean is the baseline")
    value_targets: Literal["distributional", "scalar"] = Field("distributional", description="what critics learn from")
    sequence_length: PositiveInt | None = Field(None, description="steps of back-propagation; None: the default of 32")
    value_clip: ValueClip | None = Field(None, description="hold value predictions near the rollout's; None: off")
    entropy: Entropy | None = Field(None, description="decay of the entropy bonus and of the noise; None: off")
    kl_penalty: KLPenalty | None = Field(None, description="adaptive KL penalty; None: off")
    awr: AWR | None = Field(None, description="advantage-weighted regression beside the surrogate; None: off")
    vgs: VGS | None = Field(None, description="scale gradients down while they are mostly noise; None: off")
    adversary: Adversary | None = Field(None, description="train against perturbed observations; None: off")

    @model_validator(mode="after")
    def _parts_fit(self) -> "PPOConfig":
        if self.n_jobs > self.n_envs:
            raise ValueError(f"n_jobs {self.n_jobs} processes share n_envs {self.n_envs}; each needs at least one env")
        if self.critic == "quantile" and self.levels == "tail" and self.n_quantiles <= _N_TAIL:
            raise ValueError(
                f"levels: tail puts {_N_TAIL} levels into the tail, so n_quantiles must be above {_N_TAIL}, "
                f"got {self.n_quantiles}; or use levels: uniform"
            )
        if self.critic == "categorical" and self.value_clip and self.value_clip.mode not in ("disable", "mean_only"):
            raise ValueError(
                f"value_clip.mode {self.value_clip.mode} does not exist for a categorical critic; use mean_only"
            )
        return self


class ValidationConfig(Frozen):
    """How the checkpoint that is backtested is chosen: by its score on the validation split."""

    every_updates: PositiveInt = Field(10, description="updates between two scores")
    score: Literal["growth", "sharpe"] = Field("growth", description="log-growth a year, or the Sharpe ratio")


class CheckpointConfig(Frozen):
    """Checkpoints to resume from. The best on validation is kept beside them."""

    every_updates: PositiveInt = Field(10, description="updates between two checkpoints")
    keep_last: PositiveInt = Field(2, description="how many are kept")


class BacktestConfig(Frozen):
    """The evidence."""

    n_draws: PositiveInt = Field(2000, description="draws of the block bootstrap")
    n_offsets: PositiveInt = Field(1000, description="shifts of the timing null")


class RunConfig(Frozen):
    """Everything a run depends on, apart from versions and hardware."""

    seed: NonNegativeInt = Field(0, description="of the network, the noise, the minibatches and the episodes")
    data: DataConfig = DataConfig()
    env: EnvConfig = EnvConfig()
    policy: PolicyConfig = PolicyConfig()
    ppo: PPOConfig = PPOConfig()
    risk: Risk = Risk()
    further_risks: tuple[Risk, ...] = Field(
        (), description="more limits, each a mapping like `risk`, held at once; reports judge `risk` itself"
    )
    validation: ValidationConfig = ValidationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    backtest: BacktestConfig = BacktestConfig()

    @model_validator(mode="after")
    def _limit_is_a_log_return(self) -> "RunConfig":
        for each in (self.risk, *self.further_risks):
            each.check_log_return()
        return self
