"""Settings every test shares, the order of files, unwritten memory, where Ray may start, how long a test may wait."""

import os
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings
from tests.support.alone import is_alone, refuse
from tests.support.unwritten import show_unwritten_memory

# With several workers each takes the next file when it has done its last: begun first, these leave nobody alone at the
# end. Order matters little, as long as the longest is here and the last files are short.
LONG = (
    "training/test_resume.py", "algorithm/test_worker_pool.py", "faults/test_gallery.py",
    "training/test_seal.py", "training/test_interrupt.py",
    "algorithm/test_replicas.py", "algorithm/test_live_settings.py", "algorithm/test_two_threads.py",
    "architecture/test_doc_blocks.py", "telemetry/test_metrics.py", "support/test_risk_markets.py",
    "training/test_example.py", "audit/test_doctor.py", "audit/test_whole_runs.py",
)  # fmt: skip

# Derandomised: a run that was green stays green on the same code. No deadline: machines differ, equations do not.
settings.register_profile("leeward", derandomize=True, deadline=None, database=None, max_examples=60)
# A failing example is not made smaller where only the failure counts: for mutants.
settings.register_profile("mutants", settings.get_profile("leeward"), phases=(Phase.explicit, Phase.generate))
settings.load_profile("leeward")
show_unwritten_memory()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path, len(LONG)))


def pytest_configure() -> None:
    if not is_alone():
        os.environ["RAY_RUNTIME_ENV_HOOK"] = f"{refuse.__module__}.{refuse.__name__}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("ray") is None:
        return
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: make ray")
    if not is_alone():
        pytest.skip("Ray starts in tests only where the network is the loopback alone: make ray")


@pytest.fixture
def bounded():
    """A wait without end is a test that fails."""

    def late(*_: Any) -> None:
        raise AssertionError("still waiting after 60 s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
