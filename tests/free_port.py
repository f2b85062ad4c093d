"""A port on which no process listens."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """Return a free port below the range from which the system takes ports for outgoing connections."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
