"""A request to stop, which any process can make and all processes receive at the same step."""

from __future__ import annotations

from accelkit.runtime.collectives.collectives import Collectives


class StopTrigger:
    """A flag that any process can set. All processes read the flag at the same step and get the same result.

    Args:
        collectives: The collectives of the job, used to combine the values that the processes set.
    """

    def __init__(self, collectives: Collectives) -> None:
        self._collectives = collectives
        self._is_set = False

    def set(self) -> None:
        """Set the flag on this process. The other processes learn of it only through ``check``."""
        self._is_set = True

    def check(self) -> bool:
        """Return whether any process has called ``set`` since the last call to ``check``. Every process must call this method."""
        is_set, self._is_set = self._is_set, False
        return self._collectives.any_process(is_set)
