"""The end of a process in which torch has threads of its own: gloo's, and autograd's of each device."""

from __future__ import annotations

import atexit
import functools
import time
from pathlib import Path

_THREADS = ("pt_gloo_runloop", "pt_autograd_")
_LOOK_SECONDS = 0.001
_MOST_SECONDS = 5.0
_LOOKS = 3


@functools.cache
def settle_at_exit() -> None:
    """Have ``settle`` called as the process exits, once."""
    atexit.register(settle)


def settle() -> None:
    """Return when torch's threads have nothing to do, at most five seconds later. To be called as the process exits.

    A thread of gloo lets go of a collective's tensors when the program has gone on already; one of autograd takes Python's lock when it
    starts, which the first backward pass does not wait for if the thread is another device's. If Python is gone by then, the thread is
    ended inside of C++ that cannot be left, and the process aborts after all its work: https://github.com/pytorch/pytorch/issues/190489.
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
