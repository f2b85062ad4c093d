"""The accelerator's own implementation of a precision.

If an accelerator has such an implementation, Runtime and the bridges use it in place of the precision plugin of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accelkit.plugin_calls import call, wrong_result
from accelkit.specs.accelerator import Accelerator
from accelkit.specs.overrides import overrides
from accelkit.specs.precision import Precision

if TYPE_CHECKING:
    import torch


def own_precision(accelerator: Accelerator, name: str, device: torch.device) -> Precision | None:
    """Return the accelerator's own implementation of a precision for this device, or None if the accelerator has none.

    Raises:
        BrokenPluginError: If the accelerator's ``make_precision`` raises an error (see ``accelkit.plugin_calls.call``), or returns
            neither a Precision nor None.
    """
    if not overrides(accelerator, Accelerator, "make_precision"):
        return None
    precision: Precision | None = call(accelerator, "make_precision", name, device)
    if precision is None:
        return None
    if not isinstance(precision, Precision):
        raise wrong_result(accelerator, "make_precision", precision, "a Precision or None")
    precision.name, precision.plugin = precision.name or name, precision.plugin or accelerator.plugin
    return precision
