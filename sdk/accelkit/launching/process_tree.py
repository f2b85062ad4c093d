"""End processes together with everything that they started."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterable

import psutil

from accelkit import child_processes

_PR_SET_CHILD_SUBREAPER = 36  # prctl(2)
_TERMINATE_SECONDS = 1.0
_ROUNDS = 5


def adopt_orphans() -> None:
    """On Linux, make this process the parent of processes that its children leave behind, so that ``end_descendants`` finds them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return all living descendants of this process (or of process ``pid``).

    The list does not contain the guard process, which kills this process's remaining children when this process has ended.
    """
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in found if process.pid != child_processes.guard.pid and _is_alive(process)]


def end(processes: Iterable[psutil.Process]) -> None:
    """Send SIGTERM to processes, and SIGKILL to those that are still alive a second later."""
    processes = list(processes)
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=_TERMINATE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=_TERMINATE_SECONDS)


def end_descendants() -> None:
    """End all descendants of this process, including those that are started in the meantime.

    Makes at most ``_ROUNDS`` rounds, and stops earlier if no descendants are left.
    """
    for _ in range(_ROUNDS):
        left = descendants()
        if not left:
            return
        end(left)


def _is_alive(process: psutil.Process) -> bool:
    try:
        alive: bool = process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
    return alive
