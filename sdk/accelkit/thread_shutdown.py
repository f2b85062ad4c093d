"""Safe exits and forks of a process in which torch runs threads: the threads of gloo, and autograd's thread for each device."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from pathlib import Path

_THREADS = ("pt_gloo_runloop", "pt_autograd_")
_LOOK_SECONDS = 0.001
_MOST_BUSY_SECONDS = 5.0
_MOST_SECONDS = 60.0
_LOOKS = 3


@functools.cache
def wait_for_threads_at_exit() -> None:
    """Register ``wait_for_torch_threads`` to be called when the process exits. Further calls have no effect."""
    atexit.register(wait_for_torch_threads)


@functools.cache
def wait_for_threads_before_forks() -> None:
    """Register ``wait_for_torch_threads`` to be called before each fork of this process.

    Does nothing in Python 3.11.10 or newer.

    Older versions of Python have a bug that can make a forked process, such as a DataLoader worker, hang
    (https://github.com/python/cpython/issues/112275). The process hangs if the fork happens while another thread of the parent process is
    about to take the GIL for the first time or to release it for the last time. Right after a collective, a gloo thread may be in this
    state.
    """
    if sys.version_info < (3, 11, 10) and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=wait_for_torch_threads)


def wait_for_torch_threads() -> None:
    """Wait until torch's threads are idle. Call this function before the process exits or forks.

    The wait ends early after one minute, or as soon as the threads have used five seconds of processor time. The second limit does not
    count the time that a thread waits for a processor, which may be long on a busy machine. The function works on Linux only, because it
    reads the states of the threads from /proc/self/task. Elsewhere, it returns immediately.

    After a call to torch has returned, torch's threads may still have work to do for which they need the GIL:

    - After a collective, a gloo thread releases the tensors of the collective.
    - The first backward pass starts an autograd thread for each device. Each of these threads takes the GIL when it starts. The backward
      pass does not wait for the threads of devices that it does not use.
    - After a backward pass, an autograd thread may take the GIL again to release the objects of the backward pass.

    If Python shuts down before a thread has finished this work, the thread is terminated inside C++ code that cannot be unwound. The
    process then aborts, although the program has finished: https://github.com/pytorch/pytorch/issues/190489.

    A process group that is still referenced (for example by a global model) keeps its threads after ``destroy_process_group``, so such
    threads may still exist at exit.
    """
    deadline = time.monotonic() + _MOST_SECONDS
    quiet = 0
    states, first = _look()
    busy = first
    while states and quiet < _LOOKS and busy - first < _MOST_BUSY_SECONDS and time.monotonic() < deadline:
        quiet = quiet + 1 if states == {"S"} else 0
        time.sleep(_LOOK_SECONDS)  # sleeping releases the GIL, for which such a thread may be waiting
        states, busy = _look()


def _look() -> tuple[set[str], float]:
    """Return the states of torch's threads, as the letters that the kernel uses, and the processor time of these threads in seconds.

    Both are read from the file /proc/self/task/tid/stat of each thread. It has the same fields as /proc/pid/stat, which proc(5) describes.
    """
    states, ticks = set(), 0
    for path in Path("/proc/self/task").glob("*/stat"):
        try:
            _, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("(")
        except OSError:  # the thread has already ended
            continue
        thread, _, rest = rest.rpartition(")")
        if thread.startswith(_THREADS):
            fields = rest.split()
            states.add(fields[0])
            ticks += int(fields[11]) + int(fields[12])  # utime and stime
    return states, ticks / os.sysconf("SC_CLK_TCK") if states else 0.0
