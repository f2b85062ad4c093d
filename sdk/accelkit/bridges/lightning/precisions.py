"""Lightning's own precision plugins for an accelkit accelerator. They are used for the precisions that both accelkit and Lightning have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accelkit.bridges.lightning.compat import Framework
from accelkit.bridges.own_precision import own_precision
from accelkit.errors import ContradictionError
from accelkit.plugin_calls import call, is_built_in
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.precision import Precision

if TYPE_CHECKING:
    import torch

_NARROW, _MIXED = ("16-true", "bf16-true"), ("16-mixed", "bf16-mixed")
NAMES = ("32-true", "64-true", *_NARROW, *_MIXED)
"""The precisions of accelkit that Lightning also has."""


def is_lightnings(chosen: Precision, accelerator: Accelerator, device: torch.device) -> bool:
    """Return whether Lightning's own precision plugin can be used in place of the chosen precision.

    The result is True if the user chose a built-in precision by a name in NAMES, and the accelerator has no implementation of its own for
    this precision.
    """
    return is_built_in(chosen) and chosen.name in NAMES and own_precision(accelerator, chosen.name, device) is None


def make_precision(
    framework: Framework, chosen: Precision, accelerator: Accelerator, device: torch.device, *, for_deepspeed: bool = False
) -> Any:
    """Create Lightning's own plugin for a precision for which ``is_lightnings`` returns True.

    With precision 16-mixed, losses are scaled by the device's own gradient scaler, or by DeepSpeed if ``for_deepspeed`` is True.

    Raises:
        UnsupportedError: If torch has no autocast or gradient scaler for the precision on this device.
    """
    call(chosen, "setup", accelerator, device)
    plugins = framework.part("plugins.precision")
    if for_deepspeed:
        return plugins.DeepSpeedPrecision(chosen.name)
    if chosen.name in _MIXED:
        return plugins.MixedPrecision(chosen.name, accelerator.autocast_device_type)
    if chosen.name in _NARROW:
        return plugins.HalfPrecision(chosen.name)
    return plugins.DoublePrecision() if chosen.name == "64-true" else plugins.Precision()


def check_given(precision: Any, accelerator: Accelerator) -> None:
    """Check that the user's Lightning precision plugin is for the accelerator's autocast device type.

    Autocast for another device type would silently do nothing. A plugin without the attribute ``device`` is accepted.

    Raises:
        ContradictionError: If the precision plugin is for another device type.
    """
    device_type = getattr(precision, "device", accelerator.autocast_device_type)
    if str(device_type).partition(":")[0] != accelerator.autocast_device_type:
        raise ContradictionError(
            f"{type(precision).__name__} is for {device_type}, but the accelerator is {accelerator.name}",
            plugin=accelerator.plugin,
            why="torch.autocast for another device type has no effect on this device",
            hint=f"omit it and use precision={getattr(precision, 'precision', '32-true')!r}",
        )
