"""An accelkit accelerator as Lightning's: the class asks the plugin everything."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from accelkit.bridges.lightning.compat import Framework
from accelkit.discovery import loading
from accelkit.plugin_calls import call
from accelkit.specs.accelerator import Accelerator

if TYPE_CHECKING:
    import torch

_SEED = "PL_GLOBAL_SEED"  # where Lightning's seed_everything leaves its seed


class PluginAccelerator:
    """What Lightning asks of an accelerator, answered by ``plugin``. Lightning asks the class, so each plugin gets one.

    Attributes:
        plugin: accelkit's, loaded.
        processes_of_one_device: How many processes of this machine see one device each, their own; None where all see all devices.
    """

    plugin: ClassVar[Accelerator]
    processes_of_one_device: ClassVar[int | None] = None

    @classmethod
    def parse_devices(cls, devices: int | str | Sequence[int]) -> list[int]:
        """Device indices.

        Raises:
            DevicesError: If ``devices`` cannot be read, or asks for what does not exist.
        """
        if cls.processes_of_one_device is not None:
            return list(range(cls.processes_of_one_device))
        return list(call(cls.plugin, "parse_devices", devices))

    @classmethod
    def get_parallel_devices(cls, devices: Sequence[int]) -> list[torch.device]:
        """A torch device for each process of this machine."""
        if cls.processes_of_one_device is not None:
            return list(call(cls.plugin, "get_parallel_devices", [0])) * len(devices)
        return list(call(cls.plugin, "get_parallel_devices", devices))

    @classmethod
    def auto_device_count(cls) -> int:
        return cls.processes_of_one_device or int(call(cls.plugin, "auto_device_count"))

    @classmethod
    def is_available(cls) -> bool:
        return cls.plugin.is_available()

    @classmethod
    def name(cls) -> str:
        return cls.plugin.name

    def setup_device(self, device: torch.device) -> None:
        """See that the device computes, also backwards, and make it current. Initialises the driver.

        Raises:
            UnavailableError: If torch does not drive the hardware, with the accelerator's reason.
        """
        from accelkit.runtime.device_checks import check_backward, check_device

        check_device(self.plugin)
        with loading.plugin_errors(self.plugin.plugin, f"setting up {device}"):
            self.plugin.setup_device(device)
        check_backward(self.plugin, device)

    def get_device_stats(self, device: torch.device | str | int) -> dict[str, Any]:
        """For DeviceStatsMonitor: quantities with their unit in the key."""
        import torch

        return dict(call(self.plugin, "get_device_stats", torch.device(device) if isinstance(device, str) else device))

    def teardown(self) -> None:
        call(self.plugin, "teardown")


def make_accelerator(framework: Framework, plugin: Accelerator, processes_of_one_device: int | None = None) -> Any:
    """A Lightning accelerator of this framework, of a class of its own."""
    base = framework.part("accelerators").Accelerator
    attributes: dict[str, Any] = {"plugin": plugin, "processes_of_one_device": processes_of_one_device}
    attributes |= {"__doc__": type(plugin).__doc__, "__module__": __name__}
    return type(type(plugin).__name__, (PluginAccelerator, base), attributes)()


def load(plugin: Accelerator) -> None:
    """Load the plugin. What Lightning's ``seed_everything`` could not seed, as torch did not know the device then, is seeded now."""
    was_there = plugin.torch_package is None or plugin.torch_package in sys.modules
    with loading.plugin_errors(plugin.plugin, f"loading the accelerator {plugin.name}"):
        plugin.load()
        if not was_there and (seed := os.environ.get(_SEED, "")).isdigit():
            plugin.manual_seed(int(seed))
