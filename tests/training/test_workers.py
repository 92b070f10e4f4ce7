"""`--workers` on real Ray: the bits of `--jobs`, whoever dies meanwhile."""

import csv
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from leeward.algorithm.checkpoint import read_checkpoint
from leeward.config.load import load_config
from leeward.errors import RunDirectoryError, WorkerFault
from leeward.market import prepare
from leeward.training.run_dir import RunDir
from leeward.training.trainer import Interrupted, train

from ..support.tiny_runs import TINY, finish, leeward, leeward_here, settings, train_here

# Ray's own warnings are Ray's to heed.
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]

ENDLESS = ("ppo.total_steps=10000000", "seed=3", "data.source=sample:synthetic", "ppo.n_jobs=2")


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of two nodes with one CPU each."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    cluster.second = cluster.add_node(**node)
    cluster.replace_second = lambda: _replace(cluster, node)
    yield cluster
    cluster.shutdown()


def _replace(cluster, node):
    cluster.remove_node(cluster.second, allow_graceful=False)
    cluster.second = cluster.add_node(**node)


def _begin(path, *more):
    config = load_config(None, [*TINY, *more])
    run, market = RunDir.create(path, config), prepare(config.data)
    run.bind(market)
    return run, market


def _with_workers(run, workers, address, show, notices):
    from leeward.training.distributed.workers import train_with_workers

    with run.locked():
        return train_with_workers(
            run, workers, address, show, resume=False, notice=notices.append, tell=lambda alert: None
        )


def _rows(run):
    with run.progress_file.open(newline="") as file:
        found = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in found]


def _assert_same(run, other):
    """The newest checkpoints and all logged metrics are the same, bit for bit."""
    one, two = run.checkpoint_list()[-1], other.checkpoint_list()[-1]
    assert one.name == two.name
    tensors, expected = (read_checkpoint(place / "model.zip")[1] for place in (one, two))
    assert tensors.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(tensors[name], value)] == []
    assert (one / "env.safetensors").read_bytes() == (two / "env.safetensors").read_bytes()
    assert _rows(run) == _rows(other)


def _worker_of_ray():
    """The number of a process in which Ray Train trains, in this network namespace."""
    here = os.readlink("/proc/self/ns/net")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if b"RayTrainWorker" in (process / "cmdline").read_bytes() and os.readlink(process / "ns/net") == here:
                return int(process.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError("no worker of Ray Train is alive")


def test_a_node_and_a_worker_are_killed_and_the_run_has_the_bits_of_one_that_was_never_disturbed(two_nodes, tmp_path):
    # Endless, so that each kill hits it while it trains, however slow the machine; in the end a signal stops it.
    run, market = _begin(tmp_path / "disturbed", *ENDLESS)
    notices, known = [], []

    def disturb(progress):
        newest = run.checkpoint_list()[-1:]
        losses = len([line for line in notices if "was lost" in line])
        if newest in ([], known[-1:]) or losses != len(known):
            return
        known.extend(newest)
        if losses == 0:
            two_nodes.replace_second()
        elif losses == 1:
            os.kill(_worker_of_ray(), signal.SIGKILL)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        _with_workers(run, 2, two_nodes.address, disturb, notices)
    assert len(known) == 3, notices

    other, _ = _begin(tmp_path / "undisturbed", *ENDLESS)
    end = int(run.checkpoint_list()[-1].name)
    sessions = []

    @contextmanager
    def until_the_same_update(session):
        sessions.append(session)
        yield

    def stop(progress):
        if progress.steps == end * 160:  # 8 envs × 20 steps an update
            sessions[0].interrupted = signal.SIGINT

    with other.locked(), pytest.raises(Interrupted):
        train(other, market, stop, resume=False, interruptible=until_the_same_update)
    _assert_same(run, other)


def test_one_worker_is_the_plain_run_bit_for_bit(two_nodes, tmp_path):
    run, _ = _begin(tmp_path / "worker", "data.source=sample:synthetic")
    seen, notices = [], []
    assert _with_workers(run, 1, two_nodes.address, seen.append, notices) == []
    plain, _, expected = train_here(tmp_path / "plain")
    _assert_same(run, plain)
    assert [progress.steps for progress in seen] == [progress.steps for progress in expected]
    assert notices == []


def test_two_workers_learn_from_the_first_rollout_what_one_process_learns_with_all_envs(two_nodes, tmp_path):
    # The whole rollout is one minibatch and value targets have no noise of their own: only the rounding may differ.
    whole = ("data.source=sample:synthetic", "ppo.total_steps=160", "ppo.n_epochs=1", "ppo.batch_size=null",
             "ppo.value_targets=scalar", "ppo.learning_rate_schedule=constant")  # fmt: skip
    run, _ = _begin(tmp_path / "workers", *whole, "ppo.n_jobs=2")
    assert _with_workers(run, 2, two_nodes.address, lambda progress: None, []) == []
    plain, _, _ = train_here(tmp_path / "plain", *whole)
    two, one = (each.checkpoint_list()[-1] for each in (run, plain))
    # Where every env stands after the same actions: its cash, its holdings, its bar.
    assert (two / "env.safetensors").read_bytes() == (one / "env.safetensors").read_bytes()
    weights, expected = (read_checkpoint(place / "model.zip")[1] for place in (two, one))
    policy = [name for name in expected if name.startswith("policy/")]
    assert_close([weights[name] for name in policy], [expected[name] for name in policy], atol=1e-5, rtol=0)


def test_the_command_starts_ray_by_itself_and_ends_with_a_report(tmp_path):
    arguments = ["--data", "sample:synthetic", "--run-dir", str(tmp_path / "run"), "--quiet", "--workers", "2"]
    code, out, err = finish(leeward("train", *arguments, *settings("ppo.total_steps=320")))
    # Ray says by itself that this network leads nowhere.
    assert (code, [line for line in err.splitlines() if "network_util.cc" not in line]) == (0, [])
    assert f"Report: {tmp_path / 'run' / 'report.html'}" in out.replace("\n", "")


def test_another_number_of_workers_than_the_run_has_is_refused(trained):
    code, _, err = leeward_here("train", "--resume", str(trained), "--workers", "3")
    assert code == 1
    assert "has 1 processes (ppo.n_jobs); go on with --workers 1, or without it" in err


def test_gloo_is_told_the_interface_that_has_the_address_of_the_node():
    from leeward.training.distributed.roles import interface_of

    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(WorkerFault, match=r"no network interface has the address 10.9.8.7 .*\(lo 127.0.0.1\)"):
        interface_of("10.9.8.7")


def test_a_directory_that_is_only_called_the_same_is_refused(begun):
    from leeward.training.distributed.roles import SEEN, Assignment, find_run

    run, _ = begun
    (run.path / SEEN).write_text("left by another start")
    with pytest.raises(RunDirectoryError, match="choose a --run-dir on a disk that all nodes share"):
        find_run(Assignment(str(run.path), "left by this start", "", resume=False, parent=None, desk=None))
