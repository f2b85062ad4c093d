"""The part of DeepSpeed's accelerator that concerns the memory of the device, and the pinned memory of the host."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from accelkit.errors import UnsupportedError
from accelkit.specs import torch_functions
from accelkit.specs.accelerator import Accelerator


class DeviceMemory:
    """The methods of DeepSpeed's accelerator for memory statistics, the allocator's cache and pinned memory.

    If the device does not report a statistic, the result is 0, with two exceptions: ``total_memory`` raises UnsupportedError, and the
    methods for reserved memory return the allocated memory.
    """

    accelerator: Accelerator
    _torch_pins_host_memory: bool

    def torch_device(self, device: torch.device | int | str | None = None) -> torch.device:
        raise NotImplementedError

    def empty_cache(self) -> None:
        self.accelerator.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return self._statistic("memory.allocated.bytes", device_index)

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return self._statistic("memory.peak.bytes", device_index)

    def memory_reserved(self, device_index: int | None = None) -> int:
        with contextlib.suppress(UnsupportedError):
            return int(torch_functions.call(self.accelerator, "memory_reserved", self.torch_device(device_index)))
        return self.memory_allocated(device_index)

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        with contextlib.suppress(UnsupportedError):
            return int(torch_functions.call(self.accelerator, "max_memory_reserved", self.torch_device(device_index)))
        return self.max_memory_allocated(device_index)

    memory_cached, max_memory_cached = memory_reserved, max_memory_reserved

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        self.accelerator.reset_peak_memory_stats(self.torch_device(device_index))

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        with contextlib.suppress(UnsupportedError):
            return dict(torch_functions.call(self.accelerator, "memory_stats", self.torch_device(device_index)))
        names = {"current": self.memory_allocated, "peak": self.max_memory_allocated}
        return {f"allocated_bytes.all.{name}": function(device_index) for name, function in names.items()}

    def total_memory(self, device_index: int | None = None) -> int:
        free_and_total = self._free_and_total(device_index)
        if free_and_total is None:
            raise UnsupportedError(
                f"DeepSpeed needs to know how much memory {self.accelerator.name} has",
                plugin=self.accelerator.plugin,
                why="neither torch.accelerator.get_memory_info nor mem_get_info of the device's module reports it",
            )
        return free_and_total[1]

    def available_memory(self, device_index: int | None = None) -> int:
        """Return the number of free bytes. If it is unknown, return 0, so that ZeRO 1 and 2 flatten the parameters in host memory."""
        free_and_total = self._free_and_total(device_index)
        return 0 if free_and_total is None else free_and_total[0]

    def _free_and_total(self, device_index: int | None) -> tuple[int, int] | None:
        device = self.torch_device(device_index)
        with contextlib.suppress(UnsupportedError):
            free, total = torch_functions.call(self.accelerator, "get_memory_info", device, module_name="mem_get_info")
            return int(free), int(total)
        statistics = self.accelerator.memory_stats(device)
        if "memory.available.bytes" in statistics and "memory.total.bytes" in statistics:  # the host's memory
            return int(statistics["memory.available.bytes"]), int(statistics["memory.total.bytes"])
        return None

    def _statistic(self, name: str, device_index: int | None) -> int:
        return int(self.accelerator.memory_stats(self.torch_device(device_index)).get(name, 0))

    # -- pinned memory, with the names of the methods that DeepSpeed's class lets accelerators override ------------------

    def _torch_pin_memory(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if self._torch_pins_host_memory else tensor

    def _torch_empty_pinned(self, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
        return tensor.new_empty(shape, pin_memory=self._torch_pins_host_memory)

    def _torch_is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._torch_pins_host_memory and tensor.is_pinned()
