"""What a precision declares: the dtypes of stored parameters, the dtypes of computation, and the error that these dtypes and any quantised
formats permit.

A name such as ``bf16-mixed`` or ``16-true`` states the dtypes of storage and of computation. If the name does not state the dtypes, the
precision's ``required_capabilities`` state them. Parameters are stored in the floating-point dtypes of the capabilities ``dtype.*``, or in
float32 if there are none. Layers compute in the floating-point dtypes of the capabilities ``autocast.*``, or in the dtypes of the
parameters if there are none.
"""

from __future__ import annotations

import dataclasses
import re

import torch

from accelkit import Precision
from accelkit.specs.overrides import overrides
from accelkit_conformance.results import DECLARED_NONE, NotSupported

_NARROW = {"16": torch.float16, "bf16": torch.bfloat16, "32": torch.float32, "64": torch.float64}
_QUANTIZED = {"fp8": 2.0**-4, "transformer_engine": 2.0**-4, "dtype.int8": 2.0**-5, "dtype.uint8": 2.0**-4}
"""The relative rounding error of a number in each kind of quantised storage or product, by the capability that it requires."""
_MULTIPLE = 8.0


@dataclasses.dataclass(frozen=True, slots=True)
class Declaration:
    """What a precision declares.

    Attributes:
        stored: The dtypes in which parameters may be stored.
        computed: The dtypes in which layers may compute.
        source: What declares the dtypes, as text for messages: the precision's name or its required capabilities.
        tolerance: The largest permitted error of gradients and updates, relative to their norm.
    """

    stored: frozenset[torch.dtype]
    computed: frozenset[torch.dtype]
    source: str
    tolerance: float


def declaration_of(precision: Precision) -> Declaration:
    """Return what a precision declares by its name or, if the name states no dtypes, by its required capabilities.

    The tolerance is eight times the largest machine epsilon of the declared dtypes. If the required capabilities name quantised formats
    (such as ``fp8``) whose relative rounding errors are larger than this epsilon, the tolerance is eight times the largest of these
    rounding errors.
    """
    required = precision.required_capabilities
    if named := re.fullmatch(r"(16|bf16|32|64)-(true|mixed)", precision.name):
        dtype = _NARROW[named[1]]
        stored, computed = frozenset([dtype if named[2] == "true" else torch.float32]), frozenset([dtype])
        source = f"the name {precision.name}"
    else:
        stored = _dtypes(required, "dtype.") or frozenset([torch.float32])
        computed = _dtypes(required, "autocast.") or stored
        source = f"required_capabilities={required!r}"
    eps = max(torch.finfo(dtype).eps for dtype in stored | computed)
    eps = max([eps, *(_QUANTIZED[key] for key in required if key in _QUANTIZED)])
    return Declaration(stored, computed, source, _MULTIPLE * eps)


def _dtypes(required: tuple[str, ...], prefix: str) -> frozenset[torch.dtype]:
    found = (getattr(torch, key.removeprefix(prefix), None) for key in required if key.startswith(prefix))
    return frozenset(dtype for dtype in found if isinstance(dtype, torch.dtype) and dtype.is_floating_point)


def needs_scaling(precision: Precision) -> None:
    """Skip a check of loss scaling for a precision that does not change losses.

    Raises:
        NotSupported: If the precision does not override ``pre_backward``.
    """
    if not overrides(precision, Precision, "pre_backward"):
        raise NotSupported(f"it does not override pre_backward, so it does not scale losses: {DECLARED_NONE}")


def short(dtypes: frozenset[torch.dtype]) -> str:
    """Return the names of dtypes for a message, such as ``bfloat16 or float16``."""
    return " or ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
