"""TCP ports of this machine that are free, and names under which this machine can be reached. Does not import torch."""

from __future__ import annotations

import contextlib
import socket

_LOCAL = "localhost"


def free_ports(count: int) -> list[int]:
    """Return ``count`` distinct ports that no process of this machine is using."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def is_free(port: int) -> bool:
    """Return whether a process can listen on this port at all addresses of this machine."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def is_this_machine(address: str) -> bool:
    """Return whether this host name or address belongs to this machine, so that a process can listen on it."""
    try:
        found = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(_can_listen(family, place) for family, _, _, _, place in found)


def _can_listen(family: int, place: tuple[str | int, ...]) -> bool:
    try:
        with socket.socket(family) as one:
            one.bind(place)
    except OSError:
        return False
    return True


def own_host() -> str:
    """Return this machine's host name, as a scheduler would give it, or ``localhost`` if the machine cannot be reached by that name."""
    name = socket.gethostname()
    return name if is_this_machine(name) else _LOCAL
