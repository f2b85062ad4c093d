"""The end of a process that was a member of a process group."""

from __future__ import annotations

import time
from pathlib import Path

_GLOO_THREADS = "pt_gloo_runloop"
_LOOK_SECONDS = 0.001
_MOST_SECONDS = 5.0
_LOOKS = 3


def settle() -> None:
    """Return when gloo's threads have nothing to do, at most five seconds later. To be called as the process exits.

    Such a thread lets go of a collective's tensors when the program has gone on already. If Python is gone by then, the thread is ended
    inside of C++ that cannot be left, and the process aborts after all its work: https://github.com/pytorch/pytorch/issues/190489. A group
    that something still refers to (a global model does) keeps its threads after ``destroy_process_group``.

    Linux only: elsewhere a process cannot see the state of its threads, and this returns at once.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    quiet = 0
    while quiet < _LOOKS and time.monotonic() < deadline:
        states = _states_of(_GLOO_THREADS)
        if not states:
            return
        quiet = quiet + 1 if states == {"S"} else 0
        time.sleep(_LOOK_SECONDS)  # without Python's lock, which such a thread may be waiting for: it is asleep then too


def _states_of(name: str) -> set[str]:
    """The kernel's letters for the states of this process's threads of that name: proc(5), /proc/pid/stat."""
    states = set()
    for path in Path("/proc/self/task").glob("*/stat"):
        try:
            _, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("(")
        except OSError:  # it has ended
            continue
        thread, _, rest = rest.rpartition(")")
        if thread == name:
            states.add(rest.split()[0])
    return states
