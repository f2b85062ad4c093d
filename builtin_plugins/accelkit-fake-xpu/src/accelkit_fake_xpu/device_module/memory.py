"""Memory of the devices, in bytes. Nothing is cached: what is freed is free at once, so reserved is what is allocated."""

from __future__ import annotations

from typing import Any

import torch

from accelkit_fake_xpu.device_module.devices import Device, index_of


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors hold on the device now."""
    return torch.accelerator.memory_allocated(index_of(device))


def max_memory_allocated(device: Device = None) -> int:
    """The most bytes that tensors held on the device since the start or the last ``reset_peak_memory_stats``."""
    return torch.accelerator.max_memory_allocated(index_of(device))


def memory_reserved(device: Device = None) -> int:
    """As ``memory_allocated``: nothing is cached."""
    return torch.accelerator.memory_reserved(index_of(device))


def max_memory_reserved(device: Device = None) -> int:
    """As ``max_memory_allocated``: nothing is cached."""
    return torch.accelerator.max_memory_reserved(index_of(device))


def memory_stats(device: Device = None) -> dict[str, Any]:
    """All statistics, as ``torch.accelerator.memory_stats``."""
    return dict(torch.accelerator.memory_stats(index_of(device)))


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start a new peak at what is allocated now."""
    torch.accelerator.reset_peak_memory_stats(index_of(device))


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Count what was allocated and freed in all from zero."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Bytes that are free, and bytes in all (FAKE_XPU_MEMORY)."""
    free, total = torch.ops.fake_xpu.memory_info(index_of(device))
    return free, total


def empty_cache() -> None:
    """Nothing to do: nothing is cached."""
