"""Pause the garbage collector, to make startup and short processes faster. This module imports no other module of the project."""

from __future__ import annotations

import atexit
import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Disable garbage collection inside the ``with`` block, and restore the previous setting at its end.

    After ``import torch``, about 170,000 objects exist that the collector has not examined. The next few thousand allocations anywhere in
    the program start a collection of all these objects, which takes 70 ms. That collection would free nothing, because the imported
    modules keep these objects alive.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def pause_collector_until_exit() -> None:
    """Disable garbage collection for the rest of this process, including the collections that the interpreter makes when it exits.

    This is for child processes of accelkit that end after a few seconds. A process that imports torch and then exits spends a third of its
    time looking for garbage, although there is hardly any.
    """
    gc.disable()
    atexit.register(gc.freeze)
