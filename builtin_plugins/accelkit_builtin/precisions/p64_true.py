"""``64-true``: parameters, inputs and arithmetic in float64."""

from __future__ import annotations

from accelkit_builtin.precisions.true_precision import TruePrecision


class Float64(TruePrecision):
    """float64 parameters and computation."""

    required_capabilities = ("dtype.float64",)
    dtype_name = "float64"
