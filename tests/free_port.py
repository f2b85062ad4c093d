"""A port on which nobody listens."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port() -> int:
    """Below those that the system gives to anybody's connections meanwhile."""
    while True:
        port = random.randrange(15000, 30000)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port
