"""Functions of torch for one device type, taken from ``torch.accelerator`` or from the device's own module."""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from accelkit.errors import BrokenPluginError, UnsupportedError

if TYPE_CHECKING:
    import torch

    from accelkit.specs.accelerator import Accelerator

# Texts of torch's errors for functions that a backend does not implement, from DeviceGuardImplInterface.h, CachingDeviceAllocator.h
# and PrivateUse1HooksInterface.h. An error with any other text is an error of the device.
_NOT_IMPLEMENTED = (
    "Backend doesn't support",
    "is not a DeviceAllocator",
    "You should register `PrivateUse1HooksInterface`",
    "not linked with",
)

_MEMORY_STATISTICS = {"memory.allocated.bytes": "memory_allocated", "memory.peak.bytes": "max_memory_allocated"}


def device_module(accelerator: Accelerator) -> ModuleType:
    """Return ``torch.<device_type>``.

    Raises:
        BrokenPluginError: If torch has no such module.
    """
    import torch

    try:
        module: ModuleType = torch.get_device_module(accelerator.device_type)
        return module
    except RuntimeError as error:
        raise BrokenPluginError(
            f"torch has no module for the device type {accelerator.device_type!r}",
            plugin=accelerator.plugin,
            why=str(error),
            hint="call load() first; the vendor's package must call torch._register_device_module",
        ) from error


def call(accelerator: Accelerator, name: str, *arguments: Any, module_name: str = "") -> Any:
    """Call a function of ``torch.accelerator``, or of the device's module, and return its result.

    The module's function is called if ``torch.accelerator`` refers to another device type, lacks the function, or does not implement it
    for the device. An error that the device raises is not caught.

    Args:
        accelerator: The accelerator that determines the device type.
        name: The name of the function in ``torch.accelerator``.
        arguments: The arguments, which are the same for both functions.
        module_name: The name of the function in the device's module, if that name differs.

    Raises:
        UnsupportedError: If the module's function is to be called, but the module has no such function.
    """
    import torch

    current = torch.accelerator.current_accelerator()
    if current is None or current.type != accelerator.device_type:
        why = f"torch.accelerator does not refer to {accelerator.device_type}, but to {'no device' if current is None else current.type}"
    elif not hasattr(torch.accelerator, name):
        why = f"torch {torch.__version__} has no torch.accelerator.{name}"
    else:
        try:
            return getattr(torch.accelerator, name)(*arguments)
        except RuntimeError as error:  # or its subclass NotImplementedError
            if not (isinstance(error, NotImplementedError) or any(text in str(error) for text in _NOT_IMPLEMENTED)):
                raise
            why = f"torch.accelerator.{name}: {str(error).splitlines()[0]}"
    module_name = module_name or name
    function = getattr(accelerator.device_module, module_name, None)
    if function is None:
        raise UnsupportedError(
            f"{accelerator.name or accelerator.device_type} does not support {name}",
            plugin=accelerator.plugin,
            why=f"{why}; torch.{accelerator.device_type} has no {module_name}",
            hint="the vendor's package must implement one of them, or the plugin must override the method of Accelerator that calls them",
        )
    return function(*arguments)


def memory_stats(accelerator: Accelerator, device: torch.device) -> dict[str, float]:
    """Return the number of bytes allocated on ``device`` (``memory.allocated.bytes``) and its peak (``memory.peak.bytes``).

    The peak is the highest number since the last ``reset_peak_memory_stats``, or since the process started. Values that torch does not
    report are left out.
    """
    found: dict[str, float] = {}
    for key, name in _MEMORY_STATISTICS.items():
        with contextlib.suppress(UnsupportedError):
            found[key] = float(call(accelerator, name, device))
    return found


def reset_peak_memory_stats(accelerator: Accelerator, device: torch.device) -> None:
    """Reset the peak in ``memory_stats`` to the number of bytes that are allocated now.

    Does nothing if the accelerator reports no peak.

    Raises:
        UnsupportedError: If the accelerator reports a peak that cannot be reset.
    """
    try:
        call(accelerator, "reset_peak_memory_stats", device)
    except UnsupportedError:
        if "memory.peak.bytes" in accelerator.memory_stats(device):
            raise


def empty_cache(accelerator: Accelerator) -> None:
    """Release the allocator's cached memory. Does nothing if torch has no function for this, for example if the device has no cache."""
    with contextlib.suppress(UnsupportedError):
        call(accelerator, "empty_cache")


def set_device(accelerator: Accelerator, device: torch.device) -> None:
    """Make ``device`` current. Does nothing if the device has no index, or if it is device 0 and torch cannot select devices.

    Raises:
        UnsupportedError: If ``device`` has an index other than 0, and torch cannot select the device.
    """
    try:
        if device.index is not None:
            call(accelerator, "set_device_index", device.index, module_name="set_device")
    except UnsupportedError:
        if device.index != 0:
            raise


def manual_seed(accelerator: Accelerator, seed: int) -> None:
    """Seed the generators of all devices.

    This calls ``manual_seed_all`` of the device's module, or ``manual_seed`` if the module has no ``manual_seed_all``.
    ``torch.accelerator`` has no function that seeds generators.

    Raises:
        UnsupportedError: If the module has neither ``manual_seed_all`` nor ``manual_seed``.
    """
    module = accelerator.device_module
    seed_all = getattr(module, "manual_seed_all", None) or getattr(module, "manual_seed", None)
    if seed_all is None:
        raise UnsupportedError(
            f"{accelerator.name or accelerator.device_type} has no generator to seed",
            plugin=accelerator.plugin,
            why=f"torch.{accelerator.device_type} has neither manual_seed_all nor manual_seed",
        )
    seed_all(seed)
