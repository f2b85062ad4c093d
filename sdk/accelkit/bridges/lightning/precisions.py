"""Precisions as Lightning plugins: Lightning's own classes, created for the accelerator's device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit.bridges.lightning.compat import Framework
from accelkit.errors import ContradictionError, UnsupportedError
from accelkit.plugin_calls import call
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.overrides import overrides
from accelkit.specs.precision import Precision

if TYPE_CHECKING:
    import torch

_NARROW, _MIXED = ("16-true", "bf16-true"), ("16-mixed", "bf16-mixed")
NAMES = ("32-true", "64-true", *_NARROW, *_MIXED)
"""The precisions of accelkit that Lightning also has."""


def make_precision(framework: Framework, chosen: Precision, accelerator: Accelerator, device: torch.device) -> Any:
    """Create Lightning's plugin for a precision that the accelerator supports.

    In 16-mixed, losses are scaled by the device's own gradient scaler.

    Raises:
        UnsupportedError: If Lightning does not have the precision, or torch has no autocast or gradient scaler for it on this device.
    """
    own = overrides(accelerator, Accelerator, "make_precision") and call(accelerator, "make_precision", chosen.name, device) is not None
    if own or chosen.name not in NAMES:
        raise UnsupportedError(
            f"the bridge to Lightning does not support precision {chosen.name!r} on {accelerator.name}",
            plugin=accelerator.plugin if own else chosen.plugin,
            why="the accelerator has its own precision of that name" if own else f"it supports {', '.join(NAMES)}",
            hint="use another precision, or use accelkit.Runtime without Lightning",
        )
    call(chosen, "setup", accelerator, device)
    plugins = framework.part("plugins.precision")
    if chosen.name in _MIXED:
        return plugins.MixedPrecision(chosen.name, accelerator.autocast_device_type)
    if chosen.name in _NARROW:
        return plugins.HalfPrecision(chosen.name)
    return plugins.DoublePrecision() if chosen.name == "64-true" else plugins.Precision()


def check_given(precision: Any, accelerator: Accelerator) -> None:
    """Check that a precision plugin given by the user is for this device, since autocast for another device would silently do nothing.

    Raises:
        ContradictionError: If it is for another device.
    """
    device_type = getattr(precision, "device", accelerator.autocast_device_type)
    if str(device_type).partition(":")[0] != accelerator.autocast_device_type:
        raise ContradictionError(
            f"{type(precision).__name__} is for {device_type}, but the accelerator is {accelerator.name}",
            plugin=accelerator.plugin,
            why="torch.autocast for another device type has no effect on this device",
            hint=f"omit it and use precision={getattr(precision, 'precision', '32-true')!r}",
        )
