"""Learning rates and everything else that changes with the progress of training, at one moment of it.

`remaining` runs from 1 to 0, as Stable-Baselines3's schedules have it.
"""

from stable_baselines3.common.utils import FloatSchedule

from leeward.algorithm.entropy import EntropySchedule
from leeward.algorithm.kl_stop import KLPenaltyController
from leeward.algorithm.losses import Coefficients
from leeward.config.learning import Entropy, ValueClip
from leeward.config.settings import Schedule, Settings
from leeward.maths import schedules

__all__ = ["clip_range", "coefficients", "exploration", "learning_rates", "start_of", "value_clip"]


def learning_rates(settings: Settings, remaining: float) -> list[float]:
    """One for each group of the optimiser: the actor's and everybody's, and the critics' if they have their own."""
    ends = [each.lr_scale_end for each in settings.risk if each.is_active and each.lr_scale_end is not None]
    return [
        _fading(rate, remaining, ends)
        for rate in (settings.learning_rate, settings.critic_learning_rate)
        if rate is not None
    ]


def clip_range(settings: Settings, remaining: float) -> float:
    """How far an update may move the policy's ratio."""
    return _fading(settings.clip_range, remaining, [each.clip_end for each in settings.risk if each.is_active])


def _fading(setting: float | Schedule, remaining: float, ends: list[float]) -> float:
    """A setting at this moment. A constant falls under a constraint, to the smallest share in `ends`: what is left of
    its noise at the end is how far the tail stays from its limit (docs/ideas/risk.md)."""
    value = float(FloatSchedule(setting)(remaining))
    return value if callable(setting) or not ends else value * schedules.linear(1.0 - remaining, 1.0, min(ends))


def value_clip(settings: Settings, remaining: float) -> ValueClip:
    """`clip_range_vf` is the radius where it is given, and switches clipping on by itself."""
    if settings.clip_range_vf is None:
        return settings.value_clip or ValueClip(mode="disable")
    radius = FloatSchedule(settings.clip_range_vf)(remaining)
    return (settings.value_clip or ValueClip()).model_copy(update={"radius": radius})


def exploration(settings: Settings, *, discrete: bool) -> tuple[float, Entropy]:
    """Where the entropy bonus starts, and how it and the noise of actions change.

    Without `entropy=` exploration fades under a constraint: continuous actions as far as `Risk.exploration_end` says.
    Discrete ones get a bonus, or the policy has committed itself before the multiplier knows what it has to pay for.
    """
    active = [each for each in settings.risk if each.is_active]
    if settings.entropy is not None or not active:
        return settings.ent_coef, settings.entropy or Entropy()
    if discrete and settings.ent_coef == 0.0:
        return max(each.ent_coef for each in active), Entropy(end=0.0)
    return settings.ent_coef, Entropy(std_scale_end=min(each.exploration_end for each in active))


def coefficients(
    settings: Settings,
    remaining: float,
    *,
    policy_weight: float,
    outlook_weight: float,
    value_unit: float,
    discrete: bool,
    entropy: EntropySchedule,
    kl_penalty: KLPenaltyController | None,
) -> Coefficients:
    """What weighs and shapes the losses of an update.

    `value_unit` brings the critic's loss to the units of a squared error, so that `vf_coef` weighs every kind of critic
    alike.
    """
    ent_coef, changes = exploration(settings, discrete=discrete)
    return Coefficients(
        clip_range=clip_range(settings, remaining),
        policy_weight=policy_weight,
        outlook_weight=outlook_weight,
        value_weight=settings.vf_coef * value_unit,
        risk_weight=settings.vf_coef,
        ent_coef=entropy.effective(1.0 - remaining, ent_coef, changes),
        kappa=settings.kappa,
        value_clip=value_clip(settings, remaining),
        kl_penalty=0.0 if kl_penalty is None else kl_penalty.coefficient,
        awr=settings.awr,
    )


def start_of(rate: float | Schedule | None) -> float | None:
    """The number that a rate starts from."""
    return None if rate is None else float(FloatSchedule(rate)(1.0))
