"""Selection of Accelerate's mixed precision, and the check that the device supports it.

Accelerate itself allows fp16 only on a fixed list of device types, replaces fp16 with full precision on the CPU, and uses CUDA's gradient
scaler for devices that it does not know. The bridge instead allows the precisions that the accelerator declares and torch supports on
the device, as Runtime does.

A plugin can define a precision with its own storage, computation and loss scaling. Accelerate has no hook for such a precision:
``AutocastKwargs`` only switches autocast and the cache of autocast on or off, and ``mixed_precision`` alone determines the dtype. The
bridge therefore rejects precisions from plugins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from accelkit.bridges.own_precision import own_precision
from accelkit.discovery import loading
from accelkit.discovery.catalog import plugins
from accelkit.errors import UnsupportedError
from accelkit.runtime import Runtime
from accelkit.runtime.configuration import select_precision
from accelkit.specs.precision import Precision
from accelkit.types import FROM_CODE

_NAMES = {"no": "32-true", "fp16": "16-mixed", "bf16": "bf16-mixed"}
_ALSO = {"32": "no", "16": "fp16", "bf16": "bf16", **{name: mixed for mixed, name in _NAMES.items()}}
_NO_HOOK = "Accelerate computes mixed precision itself and cannot be given an accelkit Precision"
_OURS, _THEIRS = "ACCELKIT_PRECISION", "ACCELERATE_MIXED_PRECISION"


def wanted_precision(argument: object, environ: Mapping[str, str] = os.environ) -> str:
    """Return the requested precision: ``no``, ``fp16`` or ``bf16``.

    The argument takes precedence over ACCELKIT_PRECISION, and ACCELKIT_PRECISION over ACCELERATE_MIXED_PRECISION. If none of the three is
    set, or all of them are empty, the precision is ``no``.

    Each precision may also be requested by its name in accelkit, such as ``16-mixed`` for ``fp16``. In addition, ``32`` is accepted for
    ``no``, and ``16`` for ``fp16``.

    Raises:
        UnsupportedError: If another precision is requested.
    """
    sources = (("mixed_precision", argument), (_OURS, environ.get(_OURS)), (_THEIRS, environ.get(_THEIRS)))
    source, value = next(((source, value) for source, value in sources if value), ("default", "no"))
    name = str(getattr(value, "value", value)).lower()
    name = _ALSO.get(name, name)
    if name in _NAMES:
        return name
    known = next((record for record in plugins("precision") if name in (record.name, record.qualified_name)), None)
    if known is None and not isinstance(value, Precision):
        raise UnsupportedError(
            f"{source}={value!s} is not supported by the bridge to Accelerate",
            why=f"it supports {', '.join(_NAMES)}",
            hint="use one of these, or use accelkit.Runtime(precision=...) without Accelerate",
        )
    precision = value.name or type(value).__name__ if isinstance(value, Precision) else name
    raise UnsupportedError(
        f"{source}={value!s} is not supported by the bridge to Accelerate",
        plugin=known.plugin if known is not None else f"{FROM_CODE}=={type(value).__module__}",
        why=f"it supports {', '.join(_NAMES)}; {_NO_HOOK}",
        hint=f"use precision {precision!r} in accelkit.Runtime or, through accelkit.bridges.lightning, in Lightning; or use bf16 here",
    )


def check_precision(mixed: str, runtime: Runtime) -> None:
    """Check that torch and the Runtime's device support the precision ``mixed``: ``no``, ``fp16`` or ``bf16``.

    Raises:
        UnsupportedError: If the device or torch does not support the precision, or if the accelerator has its own implementation of the
            precision, which Accelerate would not use.
    """
    precision = select_precision(_NAMES[mixed], runtime.accelerator)
    if own_precision(runtime.accelerator, precision.name, runtime.device) is not None:
        raise UnsupportedError(
            f"the bridge to Accelerate does not support precision {precision.name!r} on {runtime.accelerator.name}",
            plugin=runtime.accelerator.plugin,
            why=f"the accelerator has its own precision of that name; {_NO_HOOK}",
            hint=f"use precision {precision.name!r} in accelkit.Runtime or, through accelkit.bridges.lightning, in Lightning",
        )
    with loading.plugin_errors(precision.plugin, f"creating the precision {precision.name} for {runtime.device}"):
        precision.setup(runtime.accelerator, runtime.device)


def make_scaler(runtime: Runtime, options: Mapping[str, Any]) -> torch.amp.GradScaler:
    """Create a gradient scaler for the device of a Runtime.

    Args:
        runtime: The Runtime.
        options: Keyword arguments of ``torch.amp.GradScaler``, such as those in Accelerate's ``GradScalerKwargs``.
    """
    return torch.amp.GradScaler(runtime.accelerator.autocast_device_type, **options)
