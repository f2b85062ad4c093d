"""Checks of the amounts of free, total and allocated memory that torch reports for a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from accelkit import BrokenPluginError, UnsupportedError
from accelkit.specs import torch_functions
from accelkit_conformance.oracle.device_streams import is_accelerator
from accelkit_conformance.results import NotSupported

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_BYTES = 32 << 20
_ATTEMPTS = 5


def check_free_memory(subject: Subject) -> None:
    """Check each function that reports the free and the total memory of the device.

    The total must not change. The free memory must be between 0 and the total. A new tensor must decrease the free memory by at least
    the size of the tensor.

    Raises:
        AssertionError: If the numbers that a function reports break one of these rules.
        NotSupported: If torch has no such function for the device.
    """
    functions = free_memory_functions(subject)
    if not functions:
        raise NotSupported(f"neither torch.accelerator nor torch.{subject.device_type} reports the free memory")
    for name, get in functions.items():
        total = get()[1]
        decreases: list[int] = []
        while len(decreases) < _ATTEMPTS and max(decreases, default=0) < _BYTES:
            subject.accelerator.empty_cache()
            before = get()
            block = torch.ones(_BYTES // 4, device=subject.device)
            subject.synchronize()
            during = get()
            del block
            for free, now in (before, during):
                assert now == total, f"{name} reports a total of {total} bytes, and later a total of {now} bytes"
                assert 0 <= free <= total, f"{name} reports that {free} of {total} bytes are free"
            decreases.append(before[0] - during[0])
        assert max(decreases) >= _BYTES, f"{_BYTES} bytes were allocated, but the free memory that {name} reports decreased by {decreases}"


def free_memory_functions(subject: Subject) -> dict[str, Callable[[], tuple[int, int]]]:
    """Return the functions that report the free and the total bytes of the device, by name."""

    def from_accelerator() -> tuple[int, int]:
        free, total = torch_functions.call(subject.accelerator, "get_memory_info", subject.device, module_name="mem_get_info")
        return free, total

    found: dict[str, Callable[[], tuple[int, int]]] = {}
    if (from_module := subject.optional_function("mem_get_info")) is not None:
        found[f"torch.{subject.device_type}.mem_get_info"] = lambda: from_module(subject.device)
    try:
        from_accelerator()
    except (BrokenPluginError, UnsupportedError):  # no module, or no function
        return found
    return {**found, "torch.accelerator.get_memory_info": from_accelerator}


def check_functions_agree(subject: Subject) -> None:
    """Check that the functions of the device's module and of ``torch.accelerator`` report the same allocated memory and the same peak as
    ``Accelerator.memory_stats``.

    Raises:
        AssertionError: If the numbers differ, or if the numbers of one module are inconsistent, for example if fewer bytes are reserved
            than allocated.
        NotSupported: If neither the device's module nor ``torch.accelerator`` has functions that count memory.
    """
    sources: dict[str, Any] = {f"torch.{subject.device_type}": subject.module}
    if is_accelerator(subject) and hasattr(torch.accelerator, "memory_allocated"):
        sources["torch.accelerator"] = torch.accelerator
    sources = {name: one for name, one in sources.items() if hasattr(one, "memory_allocated") and hasattr(one, "max_memory_allocated")}
    if not sources:
        raise NotSupported(f"torch.{subject.device_type} has no memory_allocated")
    subject.allocated_before()
    held = [torch.ones(size, device=subject.device) for size in (1, 1000, 1 << 20)]
    for name, source in sources.items():
        subject.accelerator.reset_peak_memory_stats(subject.device)
        block = torch.ones(1 << 21, device=subject.device)
        del block
        allocated, peak = source.memory_allocated(subject.device), source.max_memory_allocated(subject.device)
        expected = subject.accelerator.memory_stats(subject.device)
        assert allocated == expected["memory.allocated.bytes"], f"{name}.memory_allocated returns {allocated}, not the number in {expected}"
        assert peak == expected["memory.peak.bytes"], f"{name}.max_memory_allocated returns {peak}, not the number in {expected}"
        assert peak - allocated >= 4 << 21, f"{name}: the peak is only {peak - allocated} bytes above the allocated memory"
        if hasattr(source, "memory_reserved"):
            reserved = source.memory_reserved(subject.device)
            assert reserved >= allocated, f"{name} has {allocated} allocated bytes, but only {reserved} reserved bytes"
        if hasattr(source, "reset_peak_memory_stats"):
            source.reset_peak_memory_stats(subject.device)
            peak = source.max_memory_allocated(subject.device)
            assert peak == allocated, f"after {name}.reset_peak_memory_stats, the peak is {peak}, but {allocated} bytes are allocated"
        subject.accelerator.empty_cache()
        after = source.memory_allocated(subject.device)
        assert after == allocated, f"empty_cache changed the allocated bytes from {allocated} to {after}"
    del held
