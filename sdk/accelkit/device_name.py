"""The name of a device, as its driver reports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_name(device: torch.device) -> str:
    """Return the name of a device for people, such as ``NVIDIA H100``. If it has none, return the device's, as in ``acme:0``.

    It never raises an error. Initialises the driver.
    """
    import torch

    getter = getattr(getattr(torch, device.type, None), "get_device_name", None)  # some devices have no module in torch
    try:
        return str(getter(device)) if getter is not None else str(device)
    except Exception as error:  # the name is only informative
        return f"{device} ({type(error).__name__}: {error})"
