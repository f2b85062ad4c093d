"""The child process that reads the statistics of a plugin's devices.

Run as ``python -m accelkit.monitoring.worker``. The first line of standard input is a request (JSON), after which the process writes the
names of the devices to standard output. After each further line, the process writes the statistics of the devices. The output of the plugin
is discarded.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from accelkit.discovery import plugin_worker
from accelkit.discovery.loading import plugin_errors
from accelkit.errors import BrokenPluginError, UnsupportedError
from accelkit.specs import torch_functions

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator

OF_THIS_PROCESS = ("memory.allocated.bytes", "memory.peak.bytes", "memory.resident.bytes", "threads.interop", "threads.intraop")
"""Statistics that describe the process that reads them. They say nothing about the device as a whole."""


class Reader:
    """A reader of the statistics of a loaded accelerator's devices.

    Args:
        accelerator: The accelerator.
        devices: The devices, as in ``Runtime(devices=)``.

    Raises:
        BrokenPluginError: If the plugin fails.
        DevicesError: If the devices do not exist.
    """

    def __init__(self, accelerator: Accelerator, devices: str) -> None:
        self._accelerator = accelerator
        with plugin_errors(accelerator.plugin, f"counting the devices of {accelerator.name}"):
            self.devices = [accelerator.device(index) for index in accelerator.parse_devices(devices)]
        self._set_up: set[torch.device] = set()

    def read(self) -> list[dict[str, float]]:
        """Return a dict of statistics for each device. Each key names the unit of its value, as in ``memory.allocated.bytes``.

        Raises:
            BrokenPluginError: If the plugin fails, or returns anything but a mapping of names to finite numbers.
        """
        with plugin_errors(self._accelerator.plugin, f"reading the statistics of {self._accelerator.name}"):
            return [self._stats(device) for device in self.devices]

    def _stats(self, device: torch.device) -> dict[str, float]:
        if device not in self._set_up:
            with contextlib.suppress(Exception):  # some devices have statistics only after set-up, which may take memory on the device
                return self._device_stats(device)
            self._set_up.add(device)
            self._accelerator.setup_device(device)
        return self._device_stats(device)

    def _device_stats(self, device: torch.device) -> dict[str, float]:
        found = self._checked(self._accelerator.get_device_stats(device))
        return {name: value for name, value in found.items() if name not in OF_THIS_PROCESS} or self._memory(device)

    def _memory(self, device: torch.device) -> dict[str, float]:
        """Return the used and the total memory of the device in bytes, or an empty dict if torch does not report them."""
        with contextlib.suppress(UnsupportedError):
            free, total = torch_functions.call(self._accelerator, "get_memory_info", device, module_name="mem_get_info")
            return {"device.memory.used.bytes": float(total - free), "device.memory.total.bytes": float(total)}
        return {}

    def _checked(self, stats: object) -> dict[str, float]:
        if not isinstance(stats, Mapping):
            raise self._wrong(f"it returned {stats!r:.80}")
        for name, value in stats.items():
            if not isinstance(name, str) or isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise self._wrong(f"it returned {name!r:.60}: {value!r:.60}")
        return {name: float(value) for name, value in stats.items()}

    def _wrong(self, why: str) -> BrokenPluginError:
        return BrokenPluginError(
            f"get_device_stats() of {self._accelerator.name} did not return statistics",
            plugin=self._accelerator.plugin,
            why=why,
            hint="it must return a mapping of names to finite numbers; report it to the vendor",
        )


def main() -> None:
    with plugin_worker.connected() as connection:
        reader = Reader(connection.load(), connection.request["devices"])
        connection.write({"devices": [str(device) for device in reader.devices]})
        for _ in connection.further_requests:
            connection.write({"stats": reader.read()})


if __name__ == "__main__":
    main()
