"""Exits and forks of a process in which torch has threads of its own: gloo's, and autograd's of each device."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from pathlib import Path

_THREADS = ("pt_gloo_runloop", "pt_autograd_")
_LOOK_SECONDS = 0.001
_MOST_SECONDS = 5.0
_LOOKS = 3


@functools.cache
def wait_for_threads_at_exit() -> None:
    """Have ``wait_for_threads`` called as the process exits, once."""
    atexit.register(wait_for_threads)


@functools.cache
def wait_for_threads_before_forks() -> None:
    """Have ``wait_for_threads`` called before each fork of this process (a DataLoader forks its workers), where Python needs it.

    Before 3.11.10 a forked process waits for ever if another thread of its parent was about to take or to give back Python's lock for the
    first or last time: https://github.com/python/cpython/issues/112275. A thread of gloo is, right after a collective.
    """
    if sys.version_info < (3, 11, 10) and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=wait_for_threads)


def wait_for_threads() -> None:
    """Return when torch's threads have nothing to do, at most five seconds later. To be called before the process exits or forks.

    At exit: a thread of gloo lets go of a collective's tensors when the program has gone on already; one of autograd takes Python's lock
    when it starts, which the first backward pass does not wait for if the thread is another device's. If Python is gone by then, the
    thread is ended inside of C++ that cannot be left, and the process aborts after all its work:
    https://github.com/pytorch/pytorch/issues/190489.
    A group that something still refers to (a global model does) keeps its threads after ``destroy_process_group``.

    Linux only: elsewhere a process cannot see the state of its threads, and this returns at once.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    quiet = 0
    while quiet < _LOOKS and time.monotonic() < deadline:
        states = _states()
        if not states:
            return
        quiet = quiet + 1 if states == {"S"} else 0
        time.sleep(_LOOK_SECONDS)  # without Python's lock, which such a thread may be waiting for: it is asleep then too


def _states() -> set[str]:
    """The kernel's letters for the states of those threads: proc(5), /proc/pid/stat."""
    states = set()
    for path in Path("/proc/self/task").glob("*/stat"):
        try:
            _, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("(")
        except OSError:  # it has ended
            continue
        thread, _, rest = rest.rpartition(")")
        if thread.startswith(_THREADS):
            states.add(rest.split()[0])
    return states
