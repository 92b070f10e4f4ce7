"""Which setting may stand in the way of a task, by what is usual."""

from collections.abc import Callable

from leeward.config.run import RunConfig

__all__ = ["suspects"]

_DELAY = 3  # steps between action and reward of the delayed task
_FAINT = 0.3  # weight of a reward below which an action is hardly credited with it


def suspects(config: RunConfig, task: str) -> list[str]:
    """Settings that are far from usual and that this task cannot do without, the most likely first."""
    return [words(config) for tasks, is_so, words in _RULES if (tasks is None or task in tasks) and is_so(config)]


def _rate(config: RunConfig) -> float:
    rate = config.ppo.learning_rate
    return float(rate(1.0)) if callable(rate) else float(rate)


def _clip(config: RunConfig) -> float:
    clip = config.ppo.clip_range
    return float(clip(1.0)) if callable(clip) else float(clip)


Words = Callable[[RunConfig], str]
# the tasks that need it (None: all), whether it is so, what is said
_RULES: tuple[tuple[tuple[str, ...] | None, Callable[[RunConfig], bool], Words], ...] = (
    (None, lambda c: _rate(c) == 0.0, lambda c: "ppo.learning_rate is 0, so nothing is ever learned"),
    (
        None,
        lambda c: 0.0 < _rate(c) < 3e-5,
        lambda c: f"ppo.learning_rate is {_rate(c):g}, which hardly moves a weight; 1e-4 to 3e-3 is usual",
    ),
    (
        None,
        lambda c: _rate(c) > 2e-2,
        lambda c: f"ppo.learning_rate is {_rate(c):g}, with which updates overshoot; 1e-4 to 3e-3 is usual",
    ),
    (
        ("memory",),
        lambda c: c.policy.name == "MlpPolicy",
        lambda c: (
            "policy.name is MlpPolicy, which has no memory: what it must know has to be in the observation, "
            "or take MlpLstmPolicy"
        ),
    ),
    (
        ("memory",),
        lambda c: c.ppo.sequence_length is not None and c.ppo.sequence_length < 3,
        lambda c: (
            f"ppo.sequence_length is {c.ppo.sequence_length}, so no gradient reaches what was seen two steps before"
        ),
    ),
    (
        ("memory",),
        lambda c: c.policy.lstm_hidden_size < 4,
        lambda c: f"policy.lstm_hidden_size is {c.policy.lstm_hidden_size}: too narrow to remember with",
    ),
    (
        ("delayed reward",),
        lambda c: c.ppo.gamma**_DELAY < _FAINT,
        lambda c: f"ppo.gamma is {c.ppo.gamma:g}, so a reward three steps later weighs {c.ppo.gamma**_DELAY:.2g}",
    ),
    (
        ("tail",),
        lambda c: c.risk[0].learning_rate < 1e-3,
        lambda c: f"risk.learning_rate is {c.risk[0].learning_rate:g}: the multiplier never rises far enough to bind",
    ),
    (
        ("tail",),
        lambda c: c.risk[0].ceiling < 1.0,
        lambda c: f"risk.ceiling is {c.risk[0].ceiling:g}: the return always outweighs the limit",
    ),
    (
        ("tail",),
        lambda c: c.risk[0].warmup > 20,
        lambda c: f"risk.warmup is {c.risk[0].warmup} updates in which the limit is only measured",
    ),
    (
        None,
        lambda c: c.ppo.ent_coef > 0.1,
        lambda c: f"ppo.ent_coef is {c.ppo.ent_coef:g}: being random pays more than the task; 0 to 0.02 is usual",
    ),
    (
        None,
        lambda c: _clip(c) < 0.02,
        lambda c: f"ppo.clip_range is {_clip(c):g}, so an update may hardly move the policy; 0.1 to 0.3 is usual",
    ),
    (
        None,
        lambda c: c.ppo.max_grad_norm is not None and c.ppo.max_grad_norm < 0.01,
        lambda c: f"ppo.max_grad_norm is {c.ppo.max_grad_norm:g}: gradients are cut to nearly nothing",
    ),
    (
        None,
        lambda c: c.ppo.target_kl is not None and c.ppo.target_kl < 1e-3,
        lambda c: f"ppo.target_kl is {c.ppo.target_kl:g}, so updates stop at once",
    ),
    (
        None,
        lambda c: c.ppo.vf_coef == 0.0,
        lambda c: "ppo.vf_coef is 0, so the critics learn nothing",
    ),
    (
        None,
        lambda c: c.policy.log_std_init < -4.0,
        lambda c: f"policy.log_std_init is {c.policy.log_std_init:g}: it explores nearly nothing",
    ),
    (
        None,
        lambda c: c.ppo.adversary is not None and c.ppo.adversary.epsilon > 0.5,
        lambda c: "ppo.adversary bends observations beyond recognition (epsilon)",
    ),
)
