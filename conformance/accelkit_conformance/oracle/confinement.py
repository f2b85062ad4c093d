"""Context manager that keeps a plugin from starting programs, sending signals and opening connections. A plugin that tries to reach its
scheduler sees the same errors as on a machine without that scheduler."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

_PROGRAMS = ("subprocess.Popen", "os.system", "os.posix_spawn", "os.spawn", "os.exec", "os.fork", "os.forkpty")
_CONNECTIONS = (
    "socket.connect", "socket.sendto", "socket.sendmsg",
    "socket.getaddrinfo", "socket.getnameinfo", "socket.gethostbyname", "socket.gethostbyaddr",  # getfqdn() calls gethostbyaddr
)  # fmt: skip
_SIGNALS = ("os.kill", "os.killpg", "signal.pthread_kill")

_attempts: list[list[str]] = []
_is_watching: list[bool] = []


@contextlib.contextmanager
def confined() -> Iterator[list[str]]:
    """Context manager in which this process can neither start a program, nor connect to anything, nor send a signal.

    An attempt to start a program or to connect raises the same OSError as on a machine without the program or the service. An attempt to
    send a signal raises PermissionError. The context manager yields a list, to which a description of each attempt is appended.
    """
    if not _is_watching:
        _is_watching.append(True)
        sys.addaudithook(_watch)
    _attempts.append([])
    try:
        yield _attempts[-1]
    finally:
        _attempts.pop()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not _attempts:
        return
    if event in _PROGRAMS:
        program = str(arguments[0]) if arguments else "a program"
        _attempts[-1].append(f"start {program}")
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    if event in _CONNECTIONS:
        _attempts[-1].append("connect to a service")
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    if event in _SIGNALS:
        _attempts[-1].append("send a signal to a process")
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
