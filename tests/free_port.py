"""A port on which no process listens."""

from __future__ import annotations

import contextlib
import os
import random
import socket


def free_port() -> int:
    """Return a free port below the range from which the system takes ports for outgoing connections.

    Each worker of pytest-xdist takes its ports from a range of its own, because a port stays free until a process listens on it.
    """
    worker, num_workers = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    size = 15000 // num_workers
    while True:
        port = 15000 + worker * size + random.randrange(size)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
