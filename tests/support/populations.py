"""Tiny populations, carried out in this process: what Ray would do, one order after the other."""

from leeward.config.load import load_config
from leeward.training.population.best import keep_best
from leeward.training.population.member import carry_out

__all__ = ["CARTPOLE", "TRADING", "carry_on", "config_of", "finish"]

_SMALL = ("policy.net_arch=[8]", "ppo.n_quantiles=12", "tune.margin=0")
TRADING = (
    *_SMALL, "data.source=sample:synthetic", "data.n_bars=200", "data.features=[return_1]", "risk.alpha=0.25",
    "risk.limit=-0.005", "policy.lstm_hidden_size=4", "ppo.n_envs=4", "ppo.n_steps=16", "ppo.batch_size=64",
    "ppo.n_epochs=1", "ppo.total_steps=384", "tune.interval=100", "env.episode_bars=30", "backtest.n_draws=20",
    "backtest.n_offsets=10",
    "tune.space={ppo.learning_rate: {low: 1e-4, high: 1e-2, log: true}, ppo.clip_range: {values: [0.1, 0.2, 0.3]}, "
    "ppo.n_epochs: {low: 1, high: 3}, ppo.batch_size: {values: [16, 32]}, ppo.gamma: {low: 0.8, high: 0.99}, "
    "ppo.gae_lambda: {low: 0.8, high: 0.99}, ppo.ent_coef: {low: 0, high: 0.01}, ppo.vf_coef: {low: 0.2, high: 1}, "
    "risk.proportional: {low: 1, high: 5}, risk.learning_rate: {low: 0.05, high: 0.2, log: true}}",
)  # fmt: skip
CARTPOLE = (
    *_SMALL, "gym.id=CartPole-v1", "policy.name=MlpPolicy", "ppo.n_envs=2", "ppo.n_steps=16", "ppo.batch_size=16",
    "ppo.n_epochs=1", "ppo.total_steps=128", "tune.interval=32", "ppo.critic_learning_rate=1e-3", "ppo.vgs={}",
    "ppo.adversary={value_weight: 0.1}",
    "tune.space={ppo.learning_rate: {low: 1e-4, high: 1e-2, log: true}, ppo.n_epochs: {values: [1, 2]}, "
    "ppo.critic_learning_rate: {low: 1e-4, high: 1e-2, log: true}, ppo.vgs.strength: {low: 0.05, high: 0.5}, "
    "ppo.adversary.epsilon: {low: 0.01, high: 0.1}, ppo.adversary.kl_weight: {low: 0.01, high: 0.2}, "
    "ppo.adversary.value_weight: {low: 0.01, high: 0.2}}",
)  # fmt: skip


def config_of(settings, *more):
    return load_config(None, [*settings, *more])


def carry_on(population):
    """Carry out the next order."""
    order = population.pending[0]
    outcome = carry_out(population.folder, population.config_of(order.member, order.requested), order)
    population.report(order, outcome)
    keep_best(population)
    return order, outcome


def finish(population):
    while population.pending:
        carry_on(population)
    return population
