"""Adapter for Hugging Face Accelerate's trackers.

The module does not import Accelerate. A program that passes an Accelerate tracker has already imported Accelerate.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from accelkit.errors import UsageError
from accelkit.tracking.tracker import Outcome, Scalar, Tracker
from accelkit.tracking.values import flat


class AccelerateTracker(Tracker):
    """A tracker that passes values to an Accelerate ``GeneralTracker``, or to an object with the same methods.

    If a program logs values again after a resume, the values are passed to the ``GeneralTracker`` again, because a ``GeneralTracker`` does
    not report which steps it has already recorded.

    Args:
        tracker: The ``GeneralTracker``. accelkit calls its methods on the main process only. Accelerate's own check of the rank is not
            needed, so accelkit disables the check: it sets the tracker's attribute ``main_process_only`` to False.
    """

    def __init__(self, tracker: Any) -> None:
        self.name = str(getattr(tracker, "name", type(tracker).__qualname__))
        self._tracker = tracker
        self._is_started = False

    def open(self, state: Mapping[str, Any] | None) -> None:
        _start_accelerate()
        with contextlib.suppress(AttributeError):  # a property that cannot be set
            self._tracker.main_process_only = False
        if not self._is_started and hasattr(self._tracker, "start"):  # older versions of Accelerate start trackers in the constructor
            self._tracker.start()
        self._is_started = True

    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        self._tracker.log(dict(values), step=step)

    def log_hyperparameters(self, values: Mapping[str, Any]) -> None:
        self._tracker.store_init_configuration(flat(values))

    def close(self, outcome: Outcome) -> None:
        self._tracker.finish()

    def rewind(self, state: Mapping[str, Any] | None) -> None:
        pass  # a run that was finished cannot be continued


def _start_accelerate() -> None:
    """Create Accelerate's ``PartialState`` on the CPU, without creating a process group. Does nothing if Accelerate is not imported.

    Accelerate's trackers write log messages. Writing a log message raises an error if no ``PartialState`` exists.

    Raises:
        UsageError: If the job has several processes, and they have not joined the process group. In this case, ``PartialState`` would
            create a process group in which the other processes of the job do not take part.
    """
    accelerate, distributed = sys.modules.get("accelerate"), sys.modules.get("torch.distributed")
    if not hasattr(accelerate, "PartialState"):
        return
    state: Any = getattr(accelerate, "PartialState")  # noqa: B009 # not known to be there
    has_joined = distributed is not None and distributed.is_initialized()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not has_joined:  # this is how Accelerate tells that there are several processes
        raise UsageError(
            "an Accelerate tracker was used before the processes of the job had joined the process group",
            why="Accelerate would create a process group on the main process alone, and wait for the others",
            hint="call rt.prepare(...) before rt.log(...)",
        )
    state(cpu=True)
