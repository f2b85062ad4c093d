"""A tracker that passes logged values to a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accelkit.tracking.tracker import Scalar, Tracker


class CallableTracker(Tracker):
    """A tracker that passes the values and the step of each call to ``rt.log`` to a function.

    Args:
        function: A function that is called as ``function(values, step)``, on the main process only. ``values`` is a dict. If the program
            continues from a checkpoint and repeats some steps, the function is called again for these steps. If the function raises an
            exception, the Runtime warns once and no longer calls the function.
    """

    def __init__(self, function: Callable[[dict[str, Scalar], int], Any]) -> None:
        self.name = getattr(function, "__qualname__", type(function).__qualname__)
        self._function = function

    def log(self, values: Mapping[str, Scalar], step: int) -> None:
        self._function(dict(values), step)
