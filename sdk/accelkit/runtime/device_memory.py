"""The memory that this process uses on its device."""

from __future__ import annotations

from accelkit.plugin_calls import call
from accelkit.runtime.session import Session


class DeviceMemory:
    """The device memory that tensors of this process use, as the accelerator reports it.

    The values are those of ``Accelerator.memory_stats``. Reading them starts the device if it is not in use yet, but does not wait for
    queued work. Call ``Runtime.synchronize`` first if that work may still free or allocate memory.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def current(self) -> int | None:
        """Number of bytes that are allocated now. None if the device does not report this number, as is the case for the CPU."""
        return self._value("memory.allocated.bytes")

    @property
    def peak(self) -> int | None:
        """Highest number of bytes that were allocated at the same time since the program started, or since ``reset_peak``.

        None if the device does not record this number.
        """
        return self._value("memory.peak.bytes")

    def reset_peak(self) -> None:
        """Set ``peak`` to ``current``. Does nothing on a device that records no peak.

        Raises:
            UnsupportedError: If the device records a peak that cannot be reset.
        """
        device = self._session.device
        call(self._session.configuration.accelerator, "reset_peak_memory_stats", device)

    def _value(self, key: str) -> int | None:
        device = self._session.device
        value = call(self._session.configuration.accelerator, "memory_stats", device).get(key)
        return None if value is None else int(value)

    def __repr__(self) -> str:
        return f"<DeviceMemory current={self.current} peak={self.peak} bytes>"
