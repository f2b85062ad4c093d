"""The name of a device, as its driver reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_name(device: torch.device) -> str:
    """Return the name that the driver reports for a device, such as ``NVIDIA H100``, or ``str(device)`` if the driver reports none.

    If the driver raises an error, the returned text contains the error. Initialises the driver.
    """
    import torch

    getter = getattr(getattr(torch, device.type, None), "get_device_name", None)  # some devices have no module in torch
    try:
        return str(getter(device)) if getter is not None else str(device)
    except Exception as error:  # the name is only informative
        return f"{device} ({type(error).__name__}: {error})"
