"""How processes talk to each other, as the user says it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from accelkit.errors import UsageError

TIMEOUT_VARIABLE = "ACCELKIT_TIMEOUT"
THROUGH_HOST = "host"
"""The backend that accelkit itself has, for devices without collectives of their own: tensors travel through main memory, by gloo."""
DEFAULT_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessGroupOptions:
    """What the job's process group is made with, as ``Runtime(process_group=ProcessGroupOptions(timeout=60))``.

    Args:
        process_group_backend: The torch.distributed backend for tensors on the device; ``host`` for
            copies through main memory, by gloo; None for the accelerator's own word.
        timeout: Seconds after which a collective fails that not every process has called; None for ACCELKIT_TIMEOUT, else 1800.
    """

    process_group_backend: str | None = None
    timeout: float | None = None

    @property
    def seconds(self) -> float:
        """The time-out.

        Raises:
            UsageError: If it is no positive number.
        """
        if self.timeout is not None:
            return read_seconds(self.timeout, "timeout")
        return read_seconds(os.environ.get(TIMEOUT_VARIABLE) or DEFAULT_SECONDS, TIMEOUT_VARIABLE)


def read_seconds(given: Any, source: str) -> float:
    """A time-out in seconds, from an argument, a variable or a flag called ``source``.

    Raises:
        UsageError: If it is no positive number.
    """
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise UsageError(f"{source}={given!r} is no time-out", why="a positive number of seconds is expected", hint="leave it out for 1800")
    return seconds
