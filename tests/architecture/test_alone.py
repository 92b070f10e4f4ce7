"""Ray starts in tests only where nobody else can reach it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.alone import is_alone

ROOT = Path(__file__).parents[2]
WRAPPER = ROOT / "tools" / "alone.sh"


def _run(*command, **variables):
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | variables, cwd=ROOT, check=False)


def test_the_wrapper_leaves_the_loopback_and_nothing_else():
    found = _run(WRAPPER, sys.executable, "-c", "import socket; print(socket.if_nameindex())")
    if "no network namespace" in found.stderr:
        pytest.skip(found.stderr)
    assert found.stdout == "[(1, 'lo')]\n", found.stderr


def test_the_wrapper_names_in_one_line_what_is_missing(tmp_path):
    for program in ("bash", "dirname", "id"):
        (tmp_path / program).symlink_to(shutil.which(program))
    found = _run(shutil.which("bash"), WRAPPER, "true", PATH=str(tmp_path))
    assert (found.returncode, found.stderr) == (1, "tools/alone.sh: unshare is missing; install util-linux\n")
    (tmp_path / "unshare").symlink_to(shutil.which("unshare"))
    found = _run(shutil.which("bash"), WRAPPER, "true", PATH=str(tmp_path))
    assert (found.returncode, found.stderr) == (1, "tools/alone.sh: ip is missing; install iproute2\n")


def test_ray_is_refused_in_tests_elsewhere_also_in_a_process_they_start():
    ray = pytest.importorskip("ray")
    if is_alone():
        pytest.skip("this is where Ray may start")
    with pytest.raises(RuntimeError, match="only where the network is the loopback alone"):
        ray.init(address="local")
    found = _run(sys.executable, "-c", "import ray; ray.init(address='local')", PYTHONPATH=f"{ROOT}")
    assert "only where the network is the loopback alone" in found.stderr


@pytest.mark.ray
def test_ray_starts_in_the_wrapper_without_a_dashboard():
    import ray

    context = ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=80 * 2**20)
    try:
        assert not context.dashboard_url
        assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    finally:
        ray.shutdown()
