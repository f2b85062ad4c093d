"""TCP ports of this machine that are free, and names under which this machine can be reached. Does not import torch."""

from __future__ import annotations

import itertools
import random
import socket

_LOCAL = "localhost"


# Below the ports that systems give to outgoing connections (by default 32768 to 60999 on Linux, 49152 to 65535 on macOS and Windows). Such
# a connection could take a port between the call to `free_ports` and the moment at which a process listens on that port.
RANGE = range(15000, 30000)


def free_ports(count: int, within: range = RANGE) -> list[int]:
    """Return ``count`` distinct ports that are free on this machine, chosen at random from ``within``.

    Raises:
        OSError: If fewer than ``count`` ports in ``within`` are free.
    """
    source = random.SystemRandom()  # another process may have set the same seed
    found = list(itertools.islice(filter(is_free, source.sample(within, len(within))), count))
    if len(found) < count:
        raise OSError(f"only {len(found)} of the ports {within[0]} to {within[-1]} are free; {count} are needed")
    return found


def is_free(port: int) -> bool:
    """Return whether this port is free on every IPv4 address of this machine."""
    try:
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


def is_this_machine(address: str) -> bool:
    """Return whether this host name or address belongs to this machine, that is, whether a process here can listen on it."""
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
