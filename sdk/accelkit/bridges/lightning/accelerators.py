"""An accelkit accelerator as a Lightning accelerator, which delegates to the plugin."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from accelkit.bridges.lightning.compat import Framework
from accelkit.discovery import loading
from accelkit.plugin_calls import call
from accelkit.runtime.seeding import seed_generators
from accelkit.specs.accelerator import Accelerator

if TYPE_CHECKING:
    import torch

_SEED = "PL_GLOBAL_SEED"  # where Lightning's seed_everything stores its seed


class PluginAccelerator:
    """Lightning's accelerator interface, implemented by ``plugin``.

    Lightning calls some methods on the class instead of on an instance, so each plugin gets its own class.

    Attributes:
        plugin: The accelkit accelerator, already loaded.
        processes_of_one_device: The number of processes on this machine if each sees only its own device. None if all processes see all
            devices.
    """

    plugin: ClassVar[Accelerator]
    processes_of_one_device: ClassVar[int | None] = None

    @classmethod
    def parse_devices(cls, devices: int | str | Sequence[int]) -> list[int]:
        """Return the indices of the requested devices.

        If ``processes_of_one_device`` is set, this method ignores ``devices`` and returns one index for each process: 0, 1, and so on.

        Raises:
            DevicesError: If ``devices`` cannot be parsed or names a device that does not exist.
        """
        if cls.processes_of_one_device is not None:
            return list(range(cls.processes_of_one_device))
        return list(call(cls.plugin, "parse_devices", devices))

    @classmethod
    def get_parallel_devices(cls, devices: Sequence[int]) -> list[torch.device]:
        """Return one torch device for each process on this machine, in the order of ``devices``.

        If each process sees only its own device, that device is repeated, because its index is 0 in every process.
        """
        if cls.processes_of_one_device is not None:
            return list(call(cls.plugin, "get_parallel_devices", [0])) * len(devices)
        return list(call(cls.plugin, "get_parallel_devices", devices))

    @classmethod
    def auto_device_count(cls) -> int:
        return cls.processes_of_one_device or int(call(cls.plugin, "auto_device_count"))

    @classmethod
    def is_available(cls) -> bool:
        """Return whether the plugin's probe finds the hardware and there is at least one device. An error counts as False."""
        try:
            return cls.plugin.probe().is_usable and cls.plugin.auto_device_count() > 0
        except Exception:  # Lightning requires a bool, never an error; accelkit why gives the reason
            return False

    @classmethod
    def name(cls) -> str:
        return cls.plugin.name

    def setup_device(self, device: torch.device) -> None:
        """Check that the device can run forward and backward computations, and make it current. Initialises the driver.

        Raises:
            UnavailableError: If torch cannot use the hardware or a backward pass on the device fails. The error says why.
            BrokenPluginError: If ``check`` or ``setup_device`` of the accelerator fails with an error that is not accelkit's own.
        """
        from accelkit.runtime.device_checks import check_backward, check_device

        check_device(self.plugin)
        with loading.plugin_errors(self.plugin.plugin, f"setting up {device}"):
            self.plugin.setup_device(device)
        check_backward(self.plugin, device)

    def get_device_stats(self, device: torch.device | str | int) -> dict[str, Any]:
        """Return device statistics for DeviceStatsMonitor, with the unit in each key."""
        import torch

        if not isinstance(device, torch.device):
            device = torch.device(device) if isinstance(device, str) else self.plugin.device(device)
        return dict(call(self.plugin, "get_device_stats", device))

    def teardown(self) -> None:
        call(self.plugin, "teardown")


def make_accelerator(framework: Framework, plugin: Accelerator, processes_of_one_device: int | None = None) -> Any:
    """Return a Lightning accelerator for the plugin.

    The result is an instance of a new class, which inherits from both PluginAccelerator and the framework's Accelerator.

    Args:
        framework: The Trainer or Fabric that will use the accelerator. Its package provides the base class Accelerator.
        plugin: The accelkit accelerator, already loaded.
        processes_of_one_device: See ``PluginAccelerator``.
    """
    base = framework.part("accelerators").Accelerator
    attributes: dict[str, Any] = {"plugin": plugin, "processes_of_one_device": processes_of_one_device}
    attributes |= {"__doc__": type(plugin).__doc__, "__module__": __name__}
    return type(type(plugin).__name__, (PluginAccelerator, base), attributes)()


def load(plugin: Accelerator) -> None:
    """Load the plugin, and seed its device if Lightning's ``seed_everything`` ran before torch knew the device.

    Raises:
        BrokenPluginError: If loading or seeding fails.
        AccelkitError: If the plugin's code raises an AccelkitError. It is passed on unchanged.
    """
    was_there = plugin.torch_package is None or plugin.torch_package in sys.modules
    with loading.plugin_errors(plugin.plugin, f"loading the accelerator {plugin.name}"):
        plugin.load()
        if not was_there and (seed := os.environ.get(_SEED, "")).isdigit():
            seed_generators(int(seed), plugin)
