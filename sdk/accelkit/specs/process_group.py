"""The user's options for the process group."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from accelkit.errors import UsageError

TIMEOUT_VARIABLE = "ACCELKIT_TIMEOUT"
THROUGH_HOST = "host"
"""accelkit's own backend, for devices without collectives. Tensors are copied through main memory and communicated by gloo."""
DEFAULT_SECONDS = 1800.0


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessGroupOptions:
    """Options for the job's process group, as in ``Runtime(process_group=ProcessGroupOptions(timeout=60))``.

    Args:
        process_group_backend: The torch.distributed backend for tensors on the device. With the backend ``host``, tensors are copied to
            main memory, and gloo transfers them between the processes. If None, the strategy selects the backend, which is usually the
            accelerator's ``process_group_backend``.
        timeout: The number of seconds after which a collective fails if not every process has called it. If None, the timeout is the value
            of the environment variable ACCELKIT_TIMEOUT, or 1800 if that variable is not set.
    """

    process_group_backend: str | None = None
    timeout: float | None = None

    @property
    def seconds(self) -> float:
        """The timeout in seconds.

        This is ``timeout`` if it is not None. Otherwise, it is the value of ACCELKIT_TIMEOUT, or 1800 if that variable is not set or is
        empty.

        Raises:
            UsageError: If the timeout is not a positive number.
        """
        if self.timeout is not None:
            return read_seconds(self.timeout, "timeout")
        return read_seconds(os.environ.get(TIMEOUT_VARIABLE) or DEFAULT_SECONDS, TIMEOUT_VARIABLE)


def read_seconds(given: Any, source: str) -> float:
    """Convert ``given`` to a timeout in seconds.

    Args:
        given: The value of an argument, an environment variable or a command-line flag.
        source: The name of this argument, variable or flag. Errors show this name.

    Raises:
        UsageError: If the timeout is not a positive number.
    """
    try:
        seconds = float(given)
    except (TypeError, ValueError):
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        what = f"{source}={given!r} is not a valid timeout"
        raise UsageError(what, why="it must be a positive number of seconds", hint="omit it to use 1800 s")
    return seconds
