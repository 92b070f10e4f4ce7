"""Ray starts in tests only inside a network namespace that has nothing but the loopback: `tools/alone.sh`."""

import socket

__all__ = ["is_alone", "refuse"]


def is_alone():
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def refuse(runtime_env):
    """Ray calls what RAY_RUNTIME_ENV_HOOK names, in every process, before it starts or joins a cluster."""
    raise RuntimeError("Ray starts in tests only where the network is the loopback alone; mark the test, run make ray")
