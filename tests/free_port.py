"""A port on which no process listens."""

from __future__ import annotations

import os

from accelkit_conformance.oracle.free_ports import RANGE, free_ports


def free_port() -> int:
    """Return a free port below the range from which the system takes ports for outgoing connections.

    Each worker of pytest-xdist takes its ports from a range of its own, because a port stays free until a process listens on it.
    """
    worker, num_workers = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    (port,) = free_ports(1, RANGE[worker::num_workers])
    return port
