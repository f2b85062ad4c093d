"""``bf16-true``: parameters, inputs and arithmetic in bfloat16, which needs half the memory of float32 and has the same range."""

from __future__ import annotations

from accelkit_builtin.precisions.true_precision import NarrowPrecision


class BFloat16(NarrowPrecision):
    """bfloat16 parameters and computation."""

    required_capabilities = ("dtype.bfloat16",)
    dtype_name = "bfloat16"
