"""Faults of several processes that train together."""

from tools.mutants import row

__all__ = ["MUTANTS"]

GROUP, UPDATE, ENGINE = "algorithm/parallel/process_group", "algorithm/update", "algorithm/engine"
ONE = "algorithm/test_replicas.py::test_several_processes_learn_what_one_learns"
TOLD = "algorithm/test_process_group.py"
PEERS = "algorithm/test_peers.py"


HALF = "test_a_worker_that_gives_half_a_message_is_named_and_whether_it_is_stopped"
POOL, STOPPED = "algorithm/test_worker_pool.py", "test_a_worker_that_is_stopped_is_named_and_not_waited_for_without_end"


MUTANTS = [
    row(
        "a stopped worker is waited for in the middle of an update",
        f"{GROUP}:finish",
        "look()",
        "None",
        f"{POOL}::{STOPPED}[in_a_rollout]",
    ),
    row(
        "the answer of a stopped worker is waited for",
        "algorithm/parallel/worker_pool:WorkerPool._receive",
        "self._stopped.fault()",
        "None",
        f"{POOL}::{STOPPED}[between_two]",
    ),
    row(
        "a stopped worker is sent its orders without end",
        "algorithm/parallel/worker_pool:WorkerPool._order",
        "limit_waits(channel, _STUCK)",
        "pass",
        f"{POOL}::{STOPPED}[at_the_start]",
    ),
    row(
        "half an answer is no answer, whoever is stopped",
        "algorithm/parallel/worker_pool:WorkerPool._receive",
        'kind == "half"',
        "False",
        f"{POOL}::{HALF}",
    ),
    row(
        "a worker that takes nothing is called stopped",
        "algorithm/parallel/worker_pool:_Stopped.silence",
        "_is_stopped(self._processes[rank - 1])",
        "True",
        f"{POOL}::{HALF}",
    ),
    row(
        "a worker that takes nothing of an order does not listen",
        "algorithm/parallel/worker_pool:WorkerPool._order",
        "raise self._lost(self._stopped.silence(rank)) from None",
        "raise",
        f"{POOL}::{STOPPED}[at_the_start]",
    ),
    row(
        "Ctrl-C waits for a stopped worker whose pipe is full",
        "algorithm/parallel/worker_pool:_end",
        "os.set_blocking(channel.fileno(), False)",
        "pass",
        f"{POOL}::test_ctrl_c_is_heard_while_a_worker_is_stopped[at_the_start]",
    ),
    row(
        "a worker that was stopped for a moment is given up",
        "algorithm/parallel/worker_pool:_Stopped.fault",
        "now - since > _STUCK",
        "True",
        f"{POOL}::test_a_worker_that_is_continued_in_time_changes_nothing",
    ),
    row(
        "a worker is stopped since it was first seen so",
        "algorithm/parallel/worker_pool:_Stopped.fault",
        "self._since.clear()",
        "pass",
        f"{POOL}::test_a_worker_that_was_continued_unseen_is_stopped_anew",
    ),
    row(
        "jobs: gradients are averaged by process, not by step",
        f"{GROUP}:SeveralProcesses.join_gradients",
        "self._sum(torch.cat((flat * n_real, ends)))",
        "self._sum(torch.cat((flat * (n_real > 0), ends)))",
        f"{TOLD}::test_joined_gradients_are_the_mean_over_the_steps_of_all",
    ),
    row(
        "jobs: a parameter nobody used gets a gradient of zero",
        f"{GROUP}:SeveralProcesses.join_gradients",
        "part.view_as(parameter) if there else None",
        "part.view_as(parameter)",
        f"{TOLD}::test_joined_gradients_are_the_mean_over_the_steps_of_all",
    ),
    row(
        "jobs: the return scale is that of the own envs",
        "algorithm/return_scale:ReturnScale.update",
        "group.moments(targets)",
        "SINGLE_PROCESS.moments(targets)",
        ONE,
    ),
    row(
        "jobs: advantages are normalised over the own envs",
        "algorithm/targets:make_targets",
        "group.own(normalised)",
        "advantage.normalise(raw if priced is None else priced.advantages, None, mode=settings.normalisation)",
        ONE,
    ),
    row(
        "jobs: each process has a tail of its own",
        "algorithm/risk_constraint:RiskControl.price",
        "constraint.observe(step_returns, ended, deployed)",
        "constraint.observe(step_returns + group.rank, ended, deployed)",
        ONE,
    ),
    row(
        "jobs: each process stops by its own KL",
        f"{UPDATE}:Updater._minibatch",
        "n_real, used, learned, kl_sum = inputs.group.join_gradients(\n"
        "    self.pipeline.parameters, own, used, learned, kl_sum\n"
        ")",
        "n_real, used, _, _ = inputs.group.join_gradients(self.pipeline.parameters, own, used, learned, kl_sum)",
        ONE,
    ),
    row(
        "jobs: the observations of the own envs normalise",
        f"{ENGINE}:Engine._adapt",
        "now.group.columns(x).flatten(0, 1)",
        "x.flatten(0, 1)",
        ONE,
    ),
    row(
        "jobs: every process draws the noise of the first envs",
        "algorithm/ppo:DistributionalPPO.collect",
        "now.group.first_env",
        "0",
        ONE,
    ),
    row(
        "jobs: replicas that differ go on",
        f"{GROUP}:SeveralProcesses.check_replicas",
        "int(extremes[0]) != -int(extremes[1])",
        "False",
        f"{TOLD}::test_replicas_that_differ_in_one_bit_are_noticed",
    ),
    row(
        "peers: those that others started are not told of a setting",
        "algorithm/parallel/peers:PeerPool.settings",
        "self._peers.order(settings_order(settings, fresh_optimizer=fresh_optimizer))",
        "pass",
        f"{PEERS}::test_peers_train_what_the_processes_of_this_machine_train",
    ),
    row(
        "workers: a run is not handed over to the first of them",
        "training/run_dir:RunDir.lent",
        "_lock(file, fcntl.LOCK_UN)",
        "pass",
        "training/test_run_dir.py::test_a_run_that_is_lent_can_be_held_by_another_until_it_is_taken_back",
    ),
]
