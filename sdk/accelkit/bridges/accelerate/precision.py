"""Selection of Accelerate's mixed precision, and the check that the device supports it.

Accelerate itself allows fp16 only on a fixed list of device types, replaces it with full precision on the CPU, and uses CUDA's gradient
scaler for devices that it does not know. The bridge asks the device instead, as Runtime does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from accelkit.discovery import loading
from accelkit.errors import UnsupportedError
from accelkit.runtime import Runtime
from accelkit.runtime.configuration import select_precision

_NAMES = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
_ALSO = {"32": "no", "16": "fp16", "bf16": "bf16", **{name: mixed for mixed, name in _NAMES.items()}}
_OURS, _THEIRS = "ACCELKIT_PRECISION", "ACCELERATE_MIXED_PRECISION"


def wanted_precision(argument: object, environ: Mapping[str, str] = os.environ) -> str:
    """Return ``no``, ``fp16`` or ``bf16`` from the argument, ACCELKIT_PRECISION or ACCELERATE_MIXED_PRECISION, in this order.

    Raises:
        UnsupportedError: If the requested precision is not one of these.
    """
    sources = (("mixed_precision", argument), (_OURS, environ.get(_OURS)), (_THEIRS, environ.get(_THEIRS)))
    source, value = next(((source, value) for source, value in sources if value), ("default", "no"))
    name = str(getattr(value, "value", value)).lower()
    name = _ALSO.get(name, name)
    if name not in _NAMES:
        raise UnsupportedError(
            f"{source}={value!s} is not supported by the bridge to Accelerate",
            why=f"it supports {', '.join(_NAMES)}",
            hint="use one of these, or use accelkit.Runtime(precision=...) without Accelerate",
        )
    return name


def check_precision(mixed: str, runtime: Runtime) -> None:
    """Check that the device and torch support a precision.

    Raises:
        UnsupportedError: If they do not. The text says why, and what the device supports.
    """
    precision = select_precision(_NAMES[mixed], runtime.accelerator)
    with loading.plugin_errors(precision.plugin, f"creating the precision {precision.name} for {runtime.device}"):
        precision.setup(runtime.accelerator, runtime.device)


def make_scaler(runtime: Runtime, options: Mapping[str, Any]) -> torch.amp.GradScaler:
    """Create a gradient scaler for the device of a Runtime.

    Args:
        runtime: The Runtime.
        options: The options of torch.amp.GradScaler, as in GradScalerKwargs.
    """
    return torch.amp.GradScaler(runtime.accelerator.autocast_device_type, **options)
