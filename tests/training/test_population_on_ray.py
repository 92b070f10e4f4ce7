"""Populations on a real Ray: the same as in one process, whoever is killed."""

import signal

import pytest
import yaml

from leeward.config.load import load_config
from leeward.training.population.log import read_events
from leeward.training.population.population import Population

from ..support.populations import CARTPOLE, TRADING, config_of, finish
from ..support.tiny_runs import finish as finish_process
from ..support.tiny_runs import leeward, leeward_here

pytestmark = pytest.mark.ray

CLOCK = ("seconds", "training_seconds")
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def without_clock(value):
    if isinstance(value, dict):
        return {key: without_clock(each) for key, each in value.items() if key not in CLOCK}
    return [without_clock(each) for each in value] if isinstance(value, list) else value


def story(folder, *left_out):
    """What the log tells, in an order that does not depend on who was faster."""
    events = [without_clock(event) for event in read_events(folder / "population.jsonl")]
    kept = [event for event in events if event["event"] not in ("finished", *left_out)]
    return sorted(kept, key=lambda event: (event.get("round", -1), event["event"], event.get("member", -1)))


def written(folder, settings, *more):
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config_of(settings, *more).model_dump(mode="json")))
    return path


def test_a_population_on_ray_is_what_it_is_in_one_process(tmp_path):
    config, members = written(tmp_path, TRADING), ("--members", "3")
    code, _, err = leeward_here("tune", str(config), *members, "--run-dir", str(tmp_path / "ray"))
    assert code == 0, err
    here = finish(Population.create(tmp_path / "here", load_config(config), 3, "population"))
    assert story(tmp_path / "ray") == story(tmp_path / "here") and here.exploits == 2
    assert (tmp_path / "ray" / "best" / "report.html").is_file()
    code, _, err = leeward_here("tune", str(config), *members, "--run-dir", str(tmp_path / "ray"))
    assert code == 1 and "holds a population already; go on with --resume" in err


def mortal(tmp_path):
    victim = tmp_path / "victim"
    settings = [each for each in CARTPOLE if not each.startswith("gym.")]
    more = ("gym.id=tests.support.mortal_envs:Mortal-v0", f"gym.kwargs={{victim: {victim}}}")
    return written(tmp_path, settings, *more), victim


def test_a_member_that_is_killed_is_trained_again_and_nothing_is_lost(tmp_path):
    config, victim = mortal(tmp_path)
    finish(Population.create(tmp_path / "here", load_config(config), 2, "population"))
    victim.write_text("me")
    code, _, err = leeward_here("tune", str(config), "--members", "2", "--run-dir", str(tmp_path / "ray"))
    assert code == 0, err
    assert not victim.exists() and "crashed" in {event["event"] for event in story(tmp_path / "ray")}
    assert story(tmp_path / "ray", "crashed") == story(tmp_path / "here")


def test_a_driver_that_is_killed_is_resumed_and_comes_to_the_same_end(tmp_path):
    config, victim = mortal(tmp_path)
    finish(Population.create(tmp_path / "here", load_config(config), 2, "population"))
    command = ("tune", str(config), "--members", "2", "--run-dir", str(tmp_path / "ray"))
    driver = leeward(*command)
    victim.write_text(str(driver.pid))  # its members take seconds to start
    # The pipes end when all that it has started is gone: nothing is left that could block the next start.
    assert finish_process(driver)[0] == -signal.SIGKILL
    code, _, err = leeward_here(*command, "--resume")
    assert code == 0, err
    assert story(tmp_path / "ray") == story(tmp_path / "here")


@pytest.fixture
def cluster():
    """One node of one core; a driver joins it by its address."""
    from ray.cluster_utils import Cluster

    head = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
    yield head
    head.shutdown()


def test_a_node_that_is_killed_under_its_member_costs_nothing_but_time(cluster, tmp_path):
    config, victim = mortal(tmp_path)
    whole = finish(Population.create(tmp_path / "here", load_config(config), 2, "population"))
    second = cluster.add_node(**NODE)
    (raylet,) = second.all_processes["raylet"]
    victim.write_text(f"node {raylet.process.pid}")
    command = ("tune", str(config), "--members", "2", "--run-dir", str(tmp_path / "ray"))
    driver = leeward(*command, "--address", cluster.address)
    # Reaped, as init does it: beside a zombie a worker takes its node for alive, and trains on.
    assert raylet.process.wait(timeout=300) == -signal.SIGKILL
    code, _, err = finish_process(driver)
    assert code == 0, err
    assert "crashed" in {event["event"] for event in story(tmp_path / "ray")}
    assert story(tmp_path / "ray", "crashed") == story(tmp_path / "here")
    assert Population.open(tmp_path / "ray").best == whole.best


def test_a_process_that_stands_still_under_its_member_costs_nothing_but_time(cluster, tmp_path, monkeypatch):
    config, victim = mortal(tmp_path)
    whole = finish(Population.create(tmp_path / "here", load_config(config), 2, "population"))
    victim.write_text("still")
    # Seconds, not minutes, until the driver asks a process that says nothing whether it is there; and as many that a
    # busy machine is not taken for one that stands still.
    monkeypatch.setenv("RAY_grpc_client_keepalive_time_ms", "10000")
    monkeypatch.setenv("RAY_grpc_client_keepalive_timeout_ms", "10000")
    command = ("tune", str(config), "--members", "2", "--run-dir", str(tmp_path / "ray"))
    code, _, err = finish_process(leeward(*command, "--address", cluster.address))
    assert code == 0, err
    reasons = [event["reason"] for event in story(tmp_path / "ray") if event["event"] == "crashed"]
    assert any(reason.startswith("ActorUnavailableError") for reason in reasons), reasons
    assert story(tmp_path / "ray", "crashed") == story(tmp_path / "here")
    assert Population.open(tmp_path / "ray").best == whole.best
