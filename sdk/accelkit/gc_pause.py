"""Starting quickly. Imports nothing of the project."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection inside; afterwards as before.

    ``import torch`` leaves 170,000 objects and a collector that is about to look at all of them: the next few thousand allocations, whoever
    makes them, cost 70 ms. Importing and configuring makes objects that stay, so that a pass in the middle of it finds nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
