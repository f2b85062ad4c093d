"""Device memory, in bytes. Nothing is cached: freed memory is available at once, so reserved and allocated memory are equal."""

from __future__ import annotations

from typing import Any

import torch

from accelkit_fake_xpu.device_module.devices import Device, index_of


def memory_allocated(device: Device = None) -> int:
    """Return the number of bytes that tensors now hold on the device."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """Return the peak memory of tensors on the device in bytes, since the program started or the peak was reset."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """Return the same as ``memory_allocated``, because nothing is cached."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """Return the same as ``max_memory_allocated``, because nothing is cached."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    """Return all statistics, in the form of ``torch.accelerator.memory_stats``."""
    return dict(torch.accelerator.memory_stats(index_of(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Reset the peak to the memory that is allocated now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Reset the totals of allocated and freed memory to zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the free memory and the total memory of the device, in bytes. FAKE_XPU_MEMORY sets the total memory."""
    free, total = torch.ops.fake_xpu.memory_info(index_of(device))
    return free, total


def empty_cache() -> None:
    """Do nothing, because nothing is cached."""
