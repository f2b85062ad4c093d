"""Functions with small results. The results are precise only if the device does not subtract numbers of almost equal size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # the usual name

from accelkit_conformance.oracle.lacking_dtypes import require_dtypes
from accelkit_conformance.oracle.tolerance import check_result

if TYPE_CHECKING:
    from accelkit_conformance.subject import Subject

_NEAR_ZERO = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8, 1e-10, -1e-1, -1e-2, -1e-3, -1e-4, -1e-5, -1e-6, -1e-8, -1e-10)
_NEGATIVE = (-2.0, -4.0, -8.0, -16.0, -32.0)
_POSITIVE = tuple(-one for one in _NEGATIVE)
_STAGES = 8  # a small error in the argument of an exponential function grows with the argument

SMALL: Mapping[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[float, ...]]] = {
    "expm1": (torch.expm1, _NEAR_ZERO),
    "log1p": (torch.log1p, _NEAR_ZERO),
    "sin": (torch.sin, _NEAR_ZERO),
    "tan": (torch.tan, _NEAR_ZERO),
    "sinh": (torch.sinh, _NEAR_ZERO),
    "tanh": (torch.tanh, _NEAR_ZERO),
    "asin": (torch.asin, _NEAR_ZERO),
    "atan": (torch.atan, _NEAR_ZERO),
    "asinh": (torch.asinh, _NEAR_ZERO),
    "atanh": (torch.atanh, _NEAR_ZERO),
    "erf": (torch.erf, _NEAR_ZERO),
    "erfinv": (torch.erfinv, _NEAR_ZERO),
    "xlog1py": (lambda x: torch.special.xlog1py(torch.ones_like(x), x), _NEAR_ZERO),
    "hypot": (lambda x: torch.hypot(x, x * 2), _NEAR_ZERO),
    "elu": (F.elu, _NEAR_ZERO),
    "celu": (F.celu, _NEAR_ZERO),
    "selu": (F.selu, _NEAR_ZERO),
    "gelu": (F.gelu, _NEAR_ZERO),
    "mish": (F.mish, _NEAR_ZERO),
    "silu": (F.silu, _NEAR_ZERO + _NEGATIVE),
    "softsign": (F.softsign, _NEAR_ZERO),
    "sigmoid": (torch.sigmoid, _NEGATIVE),
    "exp": (torch.exp, _NEGATIVE),
    "softplus": (F.softplus, _NEGATIVE),
    "logsigmoid": (F.logsigmoid, _POSITIVE),
    "erfc": (torch.erfc, (1.0, 2.0, 4.0, 8.0)),
}
"""The functions by name, each with numbers of different magnitudes for which its results are small."""


def check_small_results(subject: Subject, name: str, dtype: str) -> None:
    """Compare the results of a function with those on the CPU, for inputs close to each of the magnitudes that ``SMALL`` lists for it.

    Differences are recorded in the subject.

    Args:
        subject: The plugin under test, with its device.
        name: The name of the function in ``SMALL``.
        dtype: The dtype of the numbers.

    Raises:
        NotSupported: If the device lacks a dtype that the function needs.
    """
    function, magnitudes = SMALL[name]
    numbers = torch.linspace(1, 1.1, 33).to(getattr(torch, dtype))
    require_dtypes(subject, lambda: function(numbers))
    for magnitude in magnitudes:
        here = magnitude * numbers
        with subject.sample(f"{name}, numbers around {magnitude:g}", {"dtype": dtype, "magnitude": magnitude}):
            found = function(here.to(subject.device))
            check_result(found, function(here), function(here.double()), subject.device, num_stages=_STAGES)
