"""Two functions that check whether the selected device can compute in this process. Both initialise the driver."""

from __future__ import annotations

import torch

from accelkit import thread_shutdown
from accelkit.discovery import loading
from accelkit.errors import UnavailableError
from accelkit.specs.accelerator import Accelerator


def check_device(accelerator: Accelerator) -> None:
    """Check that torch can use the hardware, before anything is placed on the device. Initialises the driver.

    Raises:
        BrokenPluginError: If the accelerator's ``check`` raises an unexpected error.
        UnavailableError: If torch cannot use the hardware. The error gives the accelerator's reason and remedy.
    """
    with loading.plugin_errors(accelerator.plugin, f"checking the accelerator {accelerator.name}"):
        answer = accelerator.check()
    if not answer.is_usable:
        raise UnavailableError(
            f"the accelerator {accelerator.name!r} failed its check",
            plugin=accelerator.plugin,
            why=answer.reason,
            hint=answer.hint or f"accelkit probe {accelerator.name} repeats this; check the driver and the installed torch",
        )


def check_backward(accelerator: Accelerator, device: torch.device) -> None:
    """Run a backward pass on the device.

    The pass fails if the process ran its first backward pass before the device's backend was loaded, because torch counts the devices at
    its first backward pass and never again.

    Raises:
        UnavailableError: If the backward pass fails.
    """
    start = torch.zeros(1, device=device, requires_grad=True)
    if start.is_cpu:
        return
    try:
        with torch.enable_grad():
            start.sum().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise UnavailableError(
            f"a backward pass on {device} failed in this process",
            plugin=accelerator.plugin,
            why=str(error).splitlines()[0],
            hint="create the Runtime and read its .device before the first backward pass of the process, on any device",
        ) from error
    thread_shutdown.wait_for_threads_at_exit()
    thread_shutdown.wait_for_threads_before_forks()
