"""Faults of several processes that train together."""

from tools.mutants import row

__all__ = ["MUTANTS"]

PEERS, UPDATE, PPO = "algorithm/peers", "algorithm/update", "algorithm/ppo"
ONE = "parallel/test_engine.py::test_several_processes_learn_what_one_learns"
TOLD = "parallel/test_peers.py"


MUTANTS = [
    row(
        "jobs: gradients are averaged by process, not by step",
        PEERS,
        "self._sum(torch.cat((flat * n_real, ends)))",
        "self._sum(torch.cat((flat * (n_real > 0), ends)))",
        f"{TOLD}::test_joined_gradients_are_the_mean_over_the_steps_of_all",
    ),
    row(
        "jobs: a parameter nobody used gets a gradient of zero",
        PEERS,
        "part.view_as(parameter) if there else None",
        "part.view_as(parameter)",
        f"{TOLD}::test_joined_gradients_are_the_mean_over_the_steps_of_all",
    ),
    row(
        "jobs: the return scale is that of the own envs",
        "algorithm/return_scale",
        "peers.moments(targets)",
        "ALONE.moments(targets)",
        ONE,
    ),
    row(
        "jobs: advantages are normalised over the own envs",
        "algorithm/targets",
        "Targets(peers.own(normalised), samples, verdict, metrics)",
        "Targets(advantage.normalise(learned, None, mode=normalisation), samples, verdict, metrics)",
        ONE,
    ),
    row(
        "jobs: each process has a tail of its own",
        "algorithm/risk_constraint",
        "constraint.observe(step_returns, ended, quiet)",
        "constraint.observe(step_returns + peers.rank, ended, quiet)",
        ONE,
    ),
    row(
        "jobs: the intercept is solved for the own envs",
        "algorithm/critic_scale",
        "peers.average(targets.mean() - predicted.mean((0, 1)))",
        "targets.mean() - predicted.mean((0, 1))",
        ONE,
    ),
    row(
        "jobs: each process stops by its own KL",
        UPDATE,
        "n_real, used, kl_sum = lesson.peers.join_gradients(self.pipeline.parameters, own, used, kl_sum)",
        "n_real, used, _ = lesson.peers.join_gradients(self.pipeline.parameters, own, used, kl_sum)",
        ONE,
    ),
    row(
        "jobs: the observations of the own envs normalise",
        PPO,
        "self.peers.columns(x).flatten(0, 1)",
        "x.flatten(0, 1)",
        ONE,
    ),
    row(
        "jobs: every process draws the noise of the first envs",
        PPO,
        "            first_env=self.peers.first_env,\n",
        "",
        ONE,
    ),
    row(
        "jobs: replicas that differ go on",
        PEERS,
        "if int(extremes[0]) != -int(extremes[1]):",
        "if False:",
        f"{TOLD}::test_replicas_that_differ_in_one_bit_are_noticed",
    ),
]
