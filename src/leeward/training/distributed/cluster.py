"""Ray, as Leeward starts it on this machine or joins it by address."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from leeward.errors import ArgumentError

__all__ = ["cluster"]

# Bytes; Ray takes no less. Checkpoints travel by path, so that a container's 64 MB of shared memory are no matter.
_OBJECT_STORE = 80 * 2**20


@contextmanager
def cluster(address: str | None, *, cpus: int) -> Iterator[None]:
    """Ray is there inside: of one's own with so many CPUs, which ends with this process, or the one at `address`.

    One's own has no dashboard, which runs anybody's code, and asks for a token unless RAY_AUTH_MODE says otherwise.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent home
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        ray.init(
            "local",  # else Ray would join whatever RAY_ADDRESS or an older session offers
            num_cpus=cpus,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE,
            _node_ip_address="127.0.0.1",  # nobody else can join it, so nobody else needs to reach it
            **quiet,
        )
    else:
        try:
            ray.init(address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ArgumentError(
                f"--address {address}: no Ray cluster answers ({reason}); start one with `ray start --head`, or leave "
                "--address out to start Ray on this machine"
            ) from None
    try:
        yield
    finally:
        ray.shutdown()
